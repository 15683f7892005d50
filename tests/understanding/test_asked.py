import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.understanding.references import asked_parts, nearest_numbers, reading_order


@pytest.mark.parametrize(("question", "expected"), [
    ("What does section 4.2 say?", "s4.2"), ("chapter 3 and clause 5.1, please", "s3 s5.1"), ("4.2", "s4.2"),
    ("Was steht in den Abschnitten 1, 2 und 7.3?", "s1 s2 s7.3"), ("Kapitel 4, Ziffer 2", "s4 s2"),
    ("¿Qué dice el artículo 4 bis?", "a4 bis"), ("el punto 3 del anexo", "s3"),
    ("chapitre 2 ou section 6.1", "s2 s6.1"),
    ("Что сказано в разделе 4.2 и статье 7?", "s4.2 a7"), ("пункты 3 и 4", "s3 s4"), ("第3.2节说了什么？", "s3.2"),
    ("第12条の内容は", "a12"), ("7.3節には何が", "s7.3"), ("第３章", "s3"),
    ("ตามมาตรา ๑๒ และข้อ 5.1", "a12 s5.1"), ("§ 12", "s12"),
    ("What is new in Python 3.11?", ""), ("a point 5% lower", ""), ("transection 5", ""),
    ("", ""), ("3 articles", ""),
])  # fmt: skip
def test_parts_are_read_in_the_words_that_people_use(question, expected):
    assert " ".join(part.kind[0] + part.number for part in asked_parts(question)) == expected


def test_reading_order_and_the_nearest_numbers():
    order = ["2", "4", "4 bis", "6.2", "6.2.1", "6.10", "10", "a.1"]
    assert sorted(["10", "6.10", "4 bis", "6.2.1", "a.1", "6.2", "4", "2"], key=reading_order) == order
    assert nearest_numbers("7.9", ["7.1", "7.8", "8.1", "7.10", "1", "7.8.1"]) == ["7.8", "7.10"]
    assert (nearest_numbers("99", ["1", "14"]), nearest_numbers("3", ["9"])) == (["1", "14"], ["9"])


@given(st.text(max_size=60), st.lists(st.from_regex(r"[1-9][0-9]?(\.[1-9][0-9]?){0,3}", fullmatch=True), max_size=9))
def test_any_question_is_read_and_the_nearest_are_known_numbers(text, known):
    for part in asked_parts(f"{text} section {text}"):
        found = nearest_numbers(part.number, known)
        assert set(found) <= set(known)
        assert bool(found) is bool(known)

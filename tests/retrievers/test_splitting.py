from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.errors import ConfigError
from agentic_retriever.retrievers.planner import (
    LISTS,
    MAX_PARTS,
    folded,
    load_table,
    lowered,
    parse_table,
    split_question,
)
from agentic_retriever.text.language_files import language_files, languages_with

COMPARISONS = {
    "Compare the operating margin of fiscal 2024 with fiscal 2025": (
        "the operating margin of fiscal 2024",
        "the operating margin of fiscal 2025",
    ),
    "Compare lead, zinc and copper in terms of weight": (
        "lead in terms of weight",
        "zinc in terms of weight",
        "copper in terms of weight",
    ),
    "What is the difference between oil and gas in price?": ("oil in price", "gas in price"),
    "How do cats and dogs differ in diet?": ("cats differ in diet", "dogs differ in diet"),
    "petrol versus diesel: which one is cheaper": ("petrol which one is cheaper", "diesel which one is cheaper"),
    "How does the 2026 budget compare with the 2025 result?": ("the 2026 budget", "the 2025 result"),
    "Compara la prueba de frenos de un turismo y un camión: distancia máxima": (
        "la prueba de frenos de un turismo distancia máxima",
        "la prueba de frenos de un camión distancia máxima",
    ),
    "¿Qué diferencia hay entre una multa leve y una grave en la cuantía?": (
        "una multa leve en la cuantía",
        "una grave en la cuantía",
    ),
    "COMPARA EL ALUMBRADO CON EL RUIDO": ("EL ALUMBRADO", "EL RUIDO"),
    "เปรียบเทียบโฉนดและน.ส.3 ว่าสิทธิต่างกันอย่างไร": ("โฉนด ว่าสิทธิต่างกันอย่างไร", "น.ส.3 ว่าสิทธิต่างกันอย่างไร"),
    "ขายเกิน 5 ปี เทียบกับขายก่อนครบ 5 ปี ค่าใช้จ่ายต่างกันอย่างไร": (
        "ขายเกิน 5 ปี ค่าใช้จ่ายต่างกันอย่างไร",
        "ขายก่อนครบ 5 ปี ค่าใช้จ่ายต่างกันอย่างไร",
    ),
}

SEVERAL = {
    "How long is the warranty? Who pays for shipping of spare parts?": (
        "How long is the warranty",
        "Who pays for shipping of spare parts",
    ),
    "There is only one seller. Who has to sign the order, and how long does the approval stay valid?": (
        "There is only one seller Who has to sign the order",
        "There is only one seller how long does the approval stay valid",
    ),
    "¿Cuánto se tarda en aprobar un turismo nuevo, cuánto cuesta y cuántos años vale después el certificado?": (
        "Cuánto se tarda en aprobar un turismo nuevo",
        "Cuánto se tarda en aprobar un turismo nuevo cuánto cuesta",
        "cuántos años vale después el certificado",
    ),
    "quiero una bola de remolque, ¿de qué clase es la reforma y qué anexos me afectan?": (
        "quiero una bola de remolque de qué clase es la reforma",
        "quiero una bola de remolque de qué clase es la reforma qué anexos me afectan",
    ),
    "แปลงนี้มีเนื้อที่กี่ตารางวา แล้วถ้าบิดายกให้บุตรต้องจ่ายกี่บาท": (
        "แปลงนี้มีเนื้อที่กี่ตารางวา",
        "ถ้าบิดายกให้บุตรต้องจ่ายกี่บาท",
    ),
}

NAMES = {
    "Which magazine was started first Arthur's Magazine or First for Women?": (
        "Which magazine was started first Arthur's Magazine?",
        "Which magazine was started first First for Women?",
    ),
    "Are Medici and Senet both board games?": ("Are Medici both board games?", "Are Senet both board games?"),
    'Who wrote "Blue Hour" and "Red Dawn"?': ('Who wrote "Blue Hour"?', 'Who wrote "Red Dawn"?'),
    "โฉนด 36877 กับโฉนด 40941 แปลงไหนแพงกว่า": ("โฉนด 36877 กับโฉนด แปลงไหนแพงกว่า", "โฉนด กับโฉนด 40941 แปลงไหนแพงกว่า"),
}


@pytest.mark.parametrize("cases", [COMPARISONS, SEVERAL, NAMES], ids=["comparisons", "several", "names"])
def test_questions_are_split_into_these_parts(cases):
    assert {query: split_question(query) for query in cases} == cases


@pytest.mark.parametrize(
    "query",
    [
        "how long do I have to hand in my receipts",
        "Explícame el capítulo completo",
        "Where is the city where Ana was born?",
        "Compare",
        "compare apples",
        "What can I pay at most for a room when I visit our office in Denver?",
        "เกี่ยวกับค่าธรรมเนียม เท่ากับเท่าไร",
        "แต่ละแปลงมีส่วนราชการกำกับดูแลอะไร",
        "",
        "?!",
        "\ud800 \x00",
    ],
)
def test_questions_that_ask_one_thing_are_left_alone(query):
    assert split_question(query) == ()


def test_a_pasted_document_is_not_split():
    short = "Compare A" + " a" * 480 + " with B"
    assert split_question("Compare oil with gas. " + "x" * 979) == ()
    assert len(short) < 1_000


def test_a_language_without_a_table_is_split_by_what_all_share():
    assert split_question("Beethoven versus Mozart") == ("Beethoven", "Mozart")
    assert len(split_question("Wer baute den Kölner Dom und wer den Berliner Dom?")) == 2


def test_parts_are_capped():
    assert len(split_question("Compare red, green, blue, pink, black, white, grey and brown in price")) == MAX_PARTS


WORDS = (
    *[
        "compare",
        "and",
        "with",
        "?",
        "which",
        "compara",
        "y",
        "¿",
        "qué",
        "เปรียบเทียบ",
        "และ",
        "กับ",
        "36877",
        ",",
        ".",
        "vs",
    ],
    "Ana Ruiz",
    '"x y"',
)


@given(st.text(max_size=200) | st.lists(st.sampled_from(WORDS) | st.text(max_size=8), max_size=30).map(" ".join))
def test_any_text_gives_few_distinct_parts(query):
    parts = split_question(query)
    assert len(parts) in (0, 2, 3, 4)
    assert len(set(parts)) == len(parts)
    assert query not in parts
    assert all(any(map(str.isalnum, part)) for part in parts)
    assert split_question(query) == parts


@pytest.mark.parametrize(
    "piece", ["compare ", "and ", "which ", "? ", "A ", "และ", "กับ ", "¿qué ", "(", "entre ", '"', "vs "]
)
def test_repetition_takes_no_long_time(piece):
    query = (piece * 1_000)[:1_000]
    split_question(query)  # compiles tables and loads the language model
    started = time.perf_counter()
    split_question(query)
    assert time.perf_counter() - started < 0.5


# The tables of the languages.


def a_table(*, spaced=True, **changes):
    return {"language": "xx", "spaced": spaced, "clauses": {**{name: [] for name in LISTS}, **changes}}


def test_shipped_tables_are_whole():
    assert languages_with("clauses") == ("en", "es", "th")
    for language in languages_with("clauses"):
        table = load_table(language)
        assert table.language == language
        assert table.spaced is (language != "th")


def test_shipped_entries_have_the_form_that_texts_are_brought_to():
    for language in languages_with("clauses"):
        data = language_files()[language]["clauses"]
        for name in set(LISTS) - {"asks", "relatives", "joins"}:
            for entry in data[name]:
                assert folded(entry) == entry.replace("\\W", "\\w").replace("\\S", "\\s"), (language, name, entry)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({**a_table(), "clauses": []}, "must be an object with the keys"),
        (a_table(more=[]), "more"),
        (a_table(joints="and"), "joints must be a list"),
        (a_table(joints=[""]), "joints must be a list"),
        (a_table(versus=["("]), "versus holds something that is no regular expression"),
    ],
)
def test_a_damaged_table_names_file_and_key(data, told):
    with pytest.raises(ConfigError, match=r"languages/xx\.json") as caught:
        parse_table(data, file="languages/xx.json")
    assert told in str(caught.value)


def test_words_match_as_words_where_there_are_spaces_and_anywhere_else():
    spaced = parse_table(a_table(joints=["and"]), file="f")
    joined = parse_table(a_table(joints=["and"], spaced=False), file="f")
    assert spaced.joints.search("sand") is None
    assert spaced.joints.search("a and b")
    assert joined.joints.search("sand")


@pytest.mark.parametrize("text", ["CAMIÓN", "İstanbul", "ß", "ﬁn", "ที่ดิน", "Ǆ", "\ud800"])
def test_every_character_keeps_its_place(text):
    assert len(folded(text)) == len(lowered(text)) == len(text)
    assert folded("CAMIÓN ñ") == "camion n"
    assert lowered("CAMIÓN ñ") == "camión ñ"

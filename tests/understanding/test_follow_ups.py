"""Follow-ups, by rules: what each means, and what is left alone."""

import json
from pathlib import Path

import pytest

from agentic_retriever.errors import ConfigError
from agentic_retriever.text import Tokenizer, language_files, stopwords
from agentic_retriever.understanding.follow_ups import leans, load_table, parse_table, stand_alone, topic_of

ROWS = [json.loads(line) for line in (Path(__file__).parent / "follow_ups.jsonl").read_text("utf-8").splitlines()]
FOLLOW_UPS = [row for row in ROWS if row["asked"] != row["alone"]]
COMPLETE = [row for row in ROWS if row["asked"] == row["alone"]]


def likeness(one, other, language):
    mine, theirs = (set(Tokenizer(language=language).query_tokens(text)) - stopwords(language) for text in (one, other))
    return 2 * len(mine & theirs) / (len(mine) + len(theirs))


@pytest.mark.parametrize(
    ("last", "asked", "alone"),
    [
        ("What is the maximum length of a rigid bus?", "and for trailers?", "What is the maximum length of trailers?"),
        (
            "¿Cuál es la longitud máxima de un autobús?",
            "¿y para remolques?",
            "¿Cuál es la longitud máxima de remolques?",
        ),
        ("ความยาวสูงสุดของรถบัสคือเท่าไร", "แล้วรถพ่วงล่ะ", "ความยาวสูงสุดของรถพ่วงคือเท่าไร"),
        (
            "Wie hoch ist die Gebühr für einen Anhänger?",
            "und für Motorräder?",
            "Wie hoch ist die Gebühr für Motorräder?",
        ),
        ("When does the warranty of the NS-3 begin?", "When does it end?", "When does the warranty of the NS-3 end?"),
        ("What does error E42 mean?", "And E17?", "What does error E17 mean?"),
        ("What is the limit for tier A?", "what about tier C", "What is the limit for tier C?"),
        ("¿Qué es la ITV?", "¿Cuánto cuesta?", "¿Cuánto cuesta la ITV?"),
        ("¿Quién firma el contrato?", "¿Y quién lo revisa?", "¿Quién revisa el contrato?"),
        ("Wann endet die Garantie?", "Und wann beginnt sie?", "Wann beginnt die Garantie?"),
        ("ส.ป.ก.4-01 คืออะไร", "ขายได้ไหม", "ส.ป.ก.4-01 ขายได้ไหม"),
        ("May I fly business class?", "Why not?", "Why not: May I fly business class?"),
        # The language of the question may change on the way.
        ("¿Cuál es la longitud máxima de un autobús?", "and for trailers?", "¿Cuál es la longitud máxima de trailers?"),
    ],
)
def test_a_follow_up_is_written_out(last, asked, alone):
    assert stand_alone(asked, last) == alone
    assert leans(asked)


def test_written_out_follow_ups_say_what_was_meant():
    scores = [likeness(stand_alone(row["asked"], row["last"]), row["alone"], row["language"]) for row in FOLLOW_UPS]
    assert sum(scores) / len(scores) > 0.9
    plain = [likeness(row["asked"], row["alone"], row["language"]) for row in FOLLOW_UPS]
    assert sum(plain) / len(plain) < 0.6  # so that the rules have something to do


@pytest.mark.parametrize("row", COMPLETE, ids=lambda row: row["asked"][:30])
def test_a_complete_question_is_left_alone(row):
    assert stand_alone(row["asked"], row["last"]) == row["asked"]
    assert not leans(row["asked"])
    assert not leans(row["asked"], row["last"])


@pytest.mark.parametrize("asked", [
    "Who runs IT?", "¿Quién es Carlos?", "¿A qué hora son las charlas?", "เขาใหญ่อยู่จังหวัดไหน", "มันสำปะหลังปลูกอย่างไร",
    "ที่ดินบนภูเขา", "สถานีน้ำมัน", "ดอกเบี้ยร้อยละ", "Wo arbeiten Sie?", "How long does it take to approve a claim?",
])  # fmt: skip
def test_words_that_look_like_pronouns_are_none(asked):
    assert not leans(asked)


@pytest.mark.parametrize("asked", ["leave policy?", "AQ-12 battery?", "warranty?", "E17?"])
def test_words_to_search_for_are_no_follow_up_by_themselves(asked):
    last = "What is the hotel limit in Denver?"
    assert not leans(asked)
    assert (stand_alone(asked, last) == asked) == (" " in asked)  # one word may stand in for another one


def test_what_is_nearest_in_meaning_is_replaced():
    last, asked = "What is the maximum length of a bus?", "And the weight?"
    near = {"maximum length": 0.9, "bus": 0.1}
    told = stand_alone(asked, last, near=lambda text, others: [near[one] for one in others] if text == "weight" else [])
    assert told == "What is the weight of a bus?"
    assert stand_alone(asked, last, near=lambda _text, _others: ()) == "What is the maximum length of the weight?"


@pytest.mark.parametrize(("asked", "last"), [
    ("", ""), ("?", "?"), ("and", "and"), ("and for trailers?", ""), ("it", "?!"), ("¿y?", "¿?"), ("ล่ะ", "ล่ะ"),
    ("and " * 200, "What is it?"), ("And E17?", "E" * 5_000), ("\ud800?", "and \ud800?"),
    ("it {topic}", "{last} {0}"),
])  # fmt: skip
def test_nothing_breaks_on_odd_texts(asked, last):
    assert isinstance(stand_alone(asked, last), str)
    leans(asked)


def test_braces_in_a_question_are_text():
    assert stand_alone("When does it end?", "What is the {topic} of {0}?") == "When does the {topic} of {0} end?"


def test_the_topic_of_a_question():
    assert topic_of("How long do the batteries of the NS-5 last", load_table("en")) == "the batteries of the NS-5"
    assert topic_of("โฉนดเลขที่ 45817 อยู่ที่ไหน", load_table("th")) == "โฉนดเลขที่ 45817"


def test_every_language_with_signals_reads_follow_ups():
    assert set(language_files.languages_with("signals")) <= set(language_files.languages_with("follow_ups"))


def test_a_file_with_a_list_too_few_is_named():
    data = {**language_files.language_files()["en"], "follow_ups": {"openers": []}}
    with pytest.raises(ConfigError, match=r"languages/xx\.json: follow_ups"):
        parse_table(data, file="languages/xx.json")

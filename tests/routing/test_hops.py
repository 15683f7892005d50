from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.errors import ConfigError
from agentic_retriever.routing.complexity import SECOND_NAME, THIRD_NAME, hop_cues
from agentic_retriever.routing.signals import load_table, parse_table, read_query, table_languages
from agentic_retriever.text.language_files import language_files


def cues_of(query: str) -> dict[str, float]:
    return hop_cues(query, read_query(query))


@pytest.mark.parametrize(
    ("query", "cue"),
    [
        ("Do the olive and the ash belong to the same family?", "compared"),
        ("Which is heavier, a swan or a goose?", "alternative"),
        ("Who trained the pilot, whose plane is in the hall?", "relative_clause"),
        ("Where is the mill painted by my aunt?", "participle"),
        ("Who is the owner of the yacht that won?", "described"),
        ("What does Lima, the capital of a country in the south, export?", "apposition"),
        ("The bridge over our river was opened by which mayor?", "late_question"),
        ("What is the name of the bird that sings before the sun rises here?", "long"),
        ("did Ada Lovelace meet Charles Babbage", "several_names"),
        ('who sang "River of Rain"', "quotation"),
        ("¿Pertenecen el olivo y el fresno a la misma familia?", "compared"),
        ("¿Quién nació primero, el conde o el duque?", "alternative"),
        ("¿Dónde vive el pintor cuya casa ardió?", "relative_clause"),
        ("¿Quién compró el molino pintado por mi tía?", "participle"),
        ("¿Cuál es la sede de la empresa que fabrica las velas?", "described"),
        ("El puente sobre nuestro río, ¿quién lo inauguró?", "late_question"),
        ("มะม่วงและมะปรางอยู่ในวงศ์เดียวกันไหม", "compared"),
        ("สนามบินของเมืองซึ่งเคยเป็นเมืองหลวงชื่ออะไร", "relative_clause"),
        ("ละครที่เขียนโดยหลานของเขาฉายเมื่อใด", "participle"),
        ("ใครเป็นภรรยาของผู้แต่งเพลงนี้", "described"),
    ],
)
def test_a_cue_is_found(query, cue):
    assert cues_of(query)[cue] > 0.0


@pytest.mark.parametrize("query", ["", "   ", "opening hours", "what is salt", "¿Qué es la sal?", "ร้านเปิดกี่โมง"])
def test_plain_questions_have_no_cue(query):
    assert cues_of(query) == {}


def test_names_are_counted_once_and_not_at_the_start():
    assert "several_names" not in cues_of("Gandhi and his friends in Porbandar")
    assert "several_names" not in cues_of("did Ada Lovelace know that Ada Lovelace was early")
    assert cues_of("did Ada meet Charles")["several_names"] == pytest.approx(SECOND_NAME)
    assert cues_of("did Ada meet Charles and Mary")["several_names"] == pytest.approx(SECOND_NAME + THIRD_NAME)


def test_names_of_several_words_are_one():
    assert "several_names" not in cues_of("who leads the University of the South Pacific")
    assert "several_names" not in cues_of("when was E. B. White born")
    assert "several_names" in cues_of("when did White leave. The end of Miller was near. So did Brown")


def test_codes_pronouns_and_shouting_name_nothing():
    assert "several_names" not in cues_of("what can I pay when I visit and I'm alone")
    assert "several_names" not in cues_of("does the NS-3 or the E42 fit N1")
    assert "several_names" not in cues_of("DID ADA MEET CHARLES, OR MARY")


def test_capitals_tell_nothing_in_a_language_without_table():
    german = "Welche Versicherung brauche ich für meinen Hund, wenn die Nachbarin mit ihm spazieren geht?"
    assert len(read_query(german).tables) > 1
    assert "several_names" not in cues_of(german)


def test_weights_are_those_of_the_table_for_each_pattern():
    long = next(cue for cue in load_table("en").hops if cue.name == "long")
    words = " ".join(["salt"] * 12)
    assert cues_of(words)["long"] == pytest.approx(long.weight)
    assert cues_of(f"{words} {words}")["long"] == pytest.approx(3 * long.weight)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=400))
def test_any_text_has_cues_of_positive_weight(query):
    cues = cues_of(query)
    known = {cue.name for code in table_languages() for cue in load_table(code).hops}
    assert set(cues) <= known | {"several_names", "quotation"}
    assert all(weight > 0.0 for weight in cues.values())


@pytest.mark.parametrize(
    "unit",
    [
        "the man of the director, ", "or or ", "how is and and ", "the ", "el director de la actriz que ", "nacido en ",
        "Aa Bb. ", '"a b', "a-'.&", "ที่ของซึ่ง", "นักเขียนของ", "กับใครระหว่าง", ", a ",
    ],
)  # fmt: skip
def test_repetition_takes_no_long_time(unit):
    query = (unit * 10_000)[:10_000]
    read = read_query(query)
    start = time.perf_counter()
    hop_cues(query, read)
    # A pattern of quadratic time would take seconds; the patterns take milliseconds.
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize(
    ("hops", "named"),
    [
        ([], "complexity.hops"),
        ({"odd": []}, "complexity.hops.odd"),
        ({"odd": {"weight": 0.1}}, "patterns"),
        ({"odd": {"weight": 0.0, "patterns": []}}, "complexity.hops.odd.weight"),
        ({"odd": {"weight": True, "patterns": []}}, "complexity.hops.odd.weight"),
        ({"odd": {"weight": float("nan"), "patterns": []}}, "complexity.hops.odd.weight"),
        ({"odd": {"weight": 0.1, "patterns": ["(unclosed"]}}, "complexity.hops.odd.patterns[0]"),
    ],
)
def test_damaged_cues_are_named(hops, named):
    english = language_files()["en"]
    raw = {**english, "complexity": {**english["complexity"], "hops": hops}}
    with pytest.raises(ConfigError) as caught:
        parse_table(raw, file="languages/xx.json")
    assert named in str(caught.value)

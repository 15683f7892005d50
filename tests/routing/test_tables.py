from __future__ import annotations

import copy

import pytest

from agentic_retriever.errors import ConfigError
from agentic_retriever.routing.signals import load_table, matching_form, parse_table, read_query, table_languages
from agentic_retriever.text.language_files import language_files


@pytest.fixture
def raw() -> dict:
    return copy.deepcopy(language_files()["en"])


def test_every_packaged_table_is_sound():
    assert {"en", "es", "th"} <= set(table_languages())
    for language in table_languages():
        assert load_table(language).language == language


def test_tables_are_read_once():
    assert load_table("es") is load_table("es")


def test_a_query_gets_the_table_of_its_language():
    assert [t.language for t in read_query("¿Cuánto cuesta la homologación de un coche usado?").tables] == ["es"]
    assert [t.language for t in read_query("ค่าธรรมเนียมการโอนที่ดินเท่าไร").tables] == ["th"]


@pytest.mark.parametrize("query", ["Сколько стоит перевод?", "これは何ですか", "42 €"])
def test_a_language_without_table_gets_all(query):
    assert [t.language for t in read_query(query).tables] == list(table_languages())


@pytest.mark.parametrize("query", ["", "42", "x-17"])
def test_ascii_alone_holds_no_words_of_scripts_without_spaces(query):
    assert [t.language for t in read_query(query).tables] == ["en", "es"]


def test_matching_form_drops_accents_capitals_and_white_space():
    assert matching_form("  ¿QUÉ\t Comparación\n según Ñu? ") == "¿que comparacion segun nu?"
    assert matching_form("ทำ") == matching_form("ท\u0e4d\u0e32")


def test_words_stand_alone_and_stars_take_endings():
    table = load_table("en")
    assert table.matches("comparison", "a comparative table, versus others")
    assert table.matches("overview", "please summarised this")
    assert not table.matches("comparison", "the vsat terminal")


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("complexity", "complex_patterns"), ["ok", "(unclosed"], "complexity.complex_patterns[1]"),
        (("signals", "range", "patterns"), ["[z-a]"], "signals.range.patterns[0]"),
        (("signals", "overview", "words"), "summary", "signals.overview.words"),
        (("signals", "overview", "words"), [""], "signals.overview.words"),
        (("signals", "overview"), {"words": []}, "patterns"),
        (("signals", "surprise"), {"words": [], "patterns": []}, "surprise"),
        (("complexity", "strong_keywords"), [3], "complexity.strong_keywords"),
        (("complexity",), [], "complexity"),
    ],
)
def test_a_damaged_table_names_file_and_key(raw, path, value, named):
    place = raw
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ConfigError) as caught:
        parse_table(raw, file="languages/xx.json")
    assert "languages/xx.json" in str(caught.value)
    assert named in str(caught.value)


def test_a_missing_key_is_named(raw):
    del raw["signals"]["detail"]
    with pytest.raises(ConfigError, match="detail"):
        parse_table(raw, file="languages/xx.json")

from __future__ import annotations

import copy

import pytest

from agentic_retriever.errors import ConfigError
from agentic_retriever.routing import assess_complexity, query_features, register_language, unregister_language
from agentic_retriever.routing.signals import (
    MAX_EXAMINED,
    ValueHit,
    examined,
    load_table,
    matching_form,
    parse_table,
    read_query,
    table_languages,
    value_table,
)
from agentic_retriever.schema import Complexity
from agentic_retriever.text import Tokenizer
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


COMPARE = "Lequel vaut mieux pour les employés, le congé annuel ou le congé sabbatique ?"


@pytest.fixture
def french():
    register_language(
        "fr",
        signals={
            "comparison": ["différence*", "compar*"],
            "range": {"patterns": [r"entre (?P<low>\d+) et (?P<high>\d+)"]},
        },
        complexity={"strong_keywords": ["différence*"], "conjunctions": ["et"]},
    )
    yield
    if "fr" in table_languages():
        unregister_language("fr")


def test_questions_of_the_language_are_read_by_its_table():
    before = [table.language for table in read_query(COMPARE).tables]
    assert query_features(COMPARE, None, 0.0)["comparison"] == 0.0
    assert assess_complexity(COMPARE)[0] is Complexity.SIMPLE
    register_language("fr", signals={"comparison": ["LÉQUEL"]}, complexity={"strong_keywords": ["vaut mieux"]})
    try:
        assert [table.language for table in read_query(COMPARE).tables] == ["fr"]
        assert query_features(COMPARE, None, 0.0)["comparison"] == 1.0
        assert assess_complexity(COMPARE)[0] is Complexity.COMPLEX
    finally:
        unregister_language("fr")
    assert [table.language for table in read_query(COMPARE).tables] == before
    assert assess_complexity(COMPARE)[0] is Complexity.SIMPLE


def test_words_and_patterns_and_what_is_left_out(french):
    table = load_table("fr")
    assert table.matches("comparison", "les differences")
    assert table.matches("range", "entre 5 et 10 jours")
    assert not table.matches("overview", "resume")
    assert query_features("Les congés entre 5 et 10 jours du personnel", None, 0.0)["range"] == 1.0


def test_other_languages_keep_their_tables(french):
    assert [table.language for table in read_query("What is the difference between the two?").tables] == ["en"]
    assert table_languages() == ("en", "es", "fr", "th")


def test_registering_again_replaces(french):
    register_language("fr", signals={"overview": ["résumé"]})
    assert not load_table("fr").matches("comparison", "differences")
    assert load_table("fr").matches("overview", "un resume")


@pytest.mark.parametrize(
    ("code", "table", "said"),
    [
        ("en", {"signals": {}}, "package has a table"),
        ("French", {"signals": {}}, "code"),
        ("fr", {"signals": {"comparisons": []}}, "did you mean 'comparison'"),
        ("fr", {"signals": {"comparison": "compare"}}, "must be a list"),
        ("fr", {"signals": {"comparison": {"word": []}}}, "missing or unknown: word"),
        ("fr", {"signals": {"comparison": {"patterns": ["("]}}}, "no regular expression"),
        ("fr", {"signals": {"comparison": [""]}}, "none empty"),
        ("fr", {"signals": {"comparison": [object()]}}, "must be a list of strings"),
        ("fr", {"signals": {}, "complexity": {"strong": []}}, "unknown list of complexity"),
    ],
)
def test_what_cannot_be_registered_is_named(code, table, said):
    with pytest.raises(ConfigError, match=said):
        register_language(code, **table)
    assert "fr" not in table_languages()


def test_taking_away_what_was_not_added():
    with pytest.raises(ConfigError, match="no table was added"):
        unregister_language("en")


def hits(values: dict[str, set[str]], query: str, language: str) -> list[ValueHit]:
    table = value_table({name: frozenset(found) for name, found in values.items()}, language)
    return table.found(Tokenizer(language=language).query_tokens(query))


def test_finds_values_whatever_their_endings():
    values = {"kind": {"policy", "report"}, "department": {"finance", "people"}}
    found = hits(values, "Which policies did the finance department write?", "en")
    assert found == [ValueHit("kind", "policy"), ValueHit("department", "finance")]


def test_a_value_of_several_words_needs_them_all_in_order():
    values = {"authority": {"agencia de homologación y ensayos"}}
    assert hits(values, "según la Agencia de Homologacion y Ensayos", "es")
    assert not hits(values, "los ensayos de homologación de la agencia", "es")
    assert not hits(values, "la agencia", "es")


def test_finds_values_inside_text_without_spaces():
    values = {"province": {"เชียงใหม่", "เชียงราย"}}
    assert hits(values, "ที่ดินในเชียงใหม่มีกี่แปลง", "th") == [ValueHit("province", "เชียงใหม่")]


def test_a_year_as_text_is_a_value_and_other_numbers_are_not():
    values = {"year": {"2024"}, "version": {"1.0", "7"}, "annex": {"v", "iv"}}
    assert hits(values, "annex IV of 2024, version 1.0, 7 V", "en") == [
        ValueHit("annex", "iv"),
        ValueHit("year", "2024"),
    ]


def test_each_value_counts_once():
    assert hits({"kind": {"report"}}, "report, reports and a report", "en") == [ValueHit("kind", "report")]


def test_both_ends_of_a_long_query_are_examined():
    assert examined("short") == "short"
    long = "start " + "x" * 30_000 + " end"
    assert len(examined(long)) == MAX_EXAMINED + 1
    assert examined(long).startswith("start")
    assert examined(long).endswith("end")

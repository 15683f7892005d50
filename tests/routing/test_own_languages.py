from __future__ import annotations

import pytest

from agentic_retriever.errors import ConfigError
from agentic_retriever.routing import assess_complexity, query_features, register_language, unregister_language
from agentic_retriever.routing.signals import load_table, read_query, table_languages
from agentic_retriever.schema import Complexity

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

from __future__ import annotations

from agentic_retriever.routing.signals import MAX_EXAMINED, ValueHit, ValueTable, examined
from agentic_retriever.text import Tokenizer


def hits(values: dict[str, set[str]], query: str, language: str) -> list[ValueHit]:
    table = ValueTable({name: frozenset(found) for name, found in values.items()}, language)
    return table.hits(Tokenizer(language=language).query_tokens(query))


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

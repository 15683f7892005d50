from __future__ import annotations

import math

import pytest
from ranked_nodes import dump, hit, ids, scores

from agentic_retriever.errors import ConfigError
from agentic_retriever.retrievers import source_scores
from agentic_retriever.retrievers.refining import Boost, boost, parse_boosts

NODES = [hit("a", 0.9, "tyres and wheels"), hit("b", 0.5, "the approval of brakes"), hit("c", 0.1, "brakes")]


def test_a_node_with_the_keyword_is_lifted_by_its_share_of_the_range():
    before = dump(NODES)
    got = boost("approval of a car", NODES, [Boost("approval", 0.75)])
    assert ids(got) == ["b", "a", "c"]
    assert scores(got) == pytest.approx([0.5 + 0.75 * 0.8, 0.9, 0.1])
    assert source_scores(got[0].node)["retrieved"] == 0.5
    assert got[1] is NODES[0]
    assert dump(NODES) == before


@pytest.mark.parametrize(
    ("query", "item"),
    [
        ("¿Qué homologaciones hay?", Boost("approval", 1.0, ("homologación",))),
        ("approvals", Boost("APPROVAL", 1.0)),
        ("approval of brakes", Boost("approval of brakes", 1.0)),
        ("ABS and approval", Boost("ABS", 1.0, ("approval",))),
    ],
)
def test_endings_case_and_aliases_do_not_matter(query, item):
    assert ids(boost(query, NODES, [item]))[0] == "b"


@pytest.mark.parametrize(
    ("query", "item"),
    [
        ("brakes", Boost("approval", 1.0)),
        ("approval", Boost("seat belt", 1.0, ("safety",))),
        ("the of", Boost("of the", 1.0)),
        ("approve", Boost("proval", 1.0)),
        ("", Boost("approval", 1.0)),
    ],
)
def test_what_the_question_or_the_node_does_not_have_changes_nothing(query, item):
    assert boost(query, NODES, [item]) == NODES


def test_thai_keywords_are_found_within_running_text():
    nodes = [hit("a", 0.9, "ราคาประเมิน"), hit("b", 0.5, "ที่ดินแปลงนี้มีภาระจำนองอยู่"), hit("c", 0.1, "บ้าน")]
    assert ids(boost("มีจำนองไหม", nodes, [Boost("จำนอง", 1.0)])) == ["b", "a", "c"]


def test_weights_add_up_within_the_range_and_may_be_negative():
    got = boost("approval brakes", NODES, [Boost("approval", 0.9), Boost("brakes", 0.9)])
    assert dict(zip(ids(got), scores(got), strict=True)) == pytest.approx({"b": 1.3, "a": 0.9, "c": 0.82})
    sunk = boost("tyres", NODES, [Boost("tyres", -0.75)])
    assert ids(sunk) == ["b", "a", "c"]


def test_scores_that_are_no_numbers_stay_last():
    nodes = [hit("a", 0.5), hit("b", None, "approval"), hit("c", math.nan, "approval")]
    assert ids(boost("approval", nodes, [Boost("approval", 1.0)])) == ["a", "b", "c"]
    assert boost("approval", [], [Boost("approval", 1.0)]) == []


def test_the_setting_is_read():
    text = " homologation | homologación = 0.3; ABS=-.1 \n\n E=mc2 = 1 ;"
    assert parse_boosts(text) == (
        Boost("homologation", 0.3, ("homologación",)),
        Boost("ABS", -0.1),
        Boost("E=mc2", 1.0),
    )
    assert parse_boosts("  ") == ()


@pytest.mark.parametrize("text", ["abs", "abs=", "=1", "abs=x", "abs=nan", "abs=2", "abs|=1", "?=1", "a=1;" * 501])
def test_a_bad_setting_is_refused(text):
    with pytest.raises(ConfigError):
        parse_boosts(text)

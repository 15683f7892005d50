"""Filters that mean the same are written alike; others are not."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever.filters import matches, merge_and, normalise

sys.path.insert(0, str(Path(__file__).parent))
from filter_strategies import filter_trees, metadata


def shuffled(filters, chosen):
    children = [_shuffled_child(child, chosen) for child in filters.filters]
    children += chosen.sample(children, chosen.randint(0, len(children)))
    chosen.shuffle(children)
    return MetadataFilters.model_construct(filters=children, condition=filters.condition)


def _shuffled_child(child, chosen):
    return shuffled(child, chosen) if isinstance(child, MetadataFilters) else _shuffled_clause(child, chosen)


def _shuffled_clause(clause, chosen):
    value = clause.value
    if isinstance(value, list):
        value = chosen.sample(value, len(value)) + value[:1]
    return MetadataFilter.model_construct(key=clause.key, operator=clause.operator, value=value)


@given(filter_trees, st.integers(0, 10**6), metadata)
def test_order_and_repetition_make_no_difference(filters, seed, row):
    other = shuffled(filters, random.Random(seed))
    assert normalise(other) == normalise(filters)
    assert matches(row, other) is matches(row, filters)


@given(filter_trees, filter_trees, st.lists(metadata, max_size=8))
def test_filters_written_alike_accept_alike(first, second, rows):
    if normalise(first) == normalise(second):
        assert [matches(row, first) for row in rows] == [matches(row, second) for row in rows]


@given(filter_trees, filter_trees, metadata)
def test_merging_is_and(first, second, row):
    assert matches(row, merge_and(first, second)) is (matches(row, first) and matches(row, second))


@given(filter_trees, metadata)
def test_not_is_the_complement(filters, row):
    opposite = MetadataFilters(filters=[filters], condition=FilterCondition.NOT)
    if normalise(filters):
        assert matches(row, opposite) is not matches(row, filters)


def one(key, value, operator="=="):
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (None, MetadataFilters(filters=[])),
        (one("k", 2020), one("k", 2020.0)),
        (one("k", "x"), one("k", "x", "contains")),
        (one("k", ["a", "b"], "in"), one("k", ["b", "a", "b"], "any")),
        (one("k", 1), MetadataFilters(filters=[one("k", 1), MetadataFilters(filters=[])])),
    ],
)
def test_alike(first, second):
    assert normalise(first) == normalise(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (one("k", 1), one("k", "1")),
        (one("k", 1), one("k", 1, "!=")),
        (one("k", "x"), one("K", "x")),
        (one("k", ["a"], "in"), one("k", ["a"], "all")),
        (one("k", 1), MetadataFilters(filters=[one("k", 1)], condition=FilterCondition.NOT)),
        (one("k", 1), None),
    ],
)
def test_not_alike(first, second):
    assert normalise(first) != normalise(second)


def test_it_is_json():
    assert json.loads(normalise(one("ชื่อ", ["x", 'q"'], "in"))) == [FilterOperator.IN.value, "ชื่อ", ['q"', "x"]]
    assert normalise(None) == ""

"""Filters on a server's collection find exactly the nodes that the plain evaluator accepts."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters
from metadata_strategies import messy_rows, oracle, random_filters, random_row, seeds
from server_tools import memory_link
from store_tools import assert_finds_what_is_accepted, fill

from agentic_retriever.filters import matches
from agentic_retriever.stores.points import wanted_points
from agentic_retriever.stores.server.store import QdrantServerVectorStore, client_filter

sys.path.insert(0, str(Path(__file__).parents[1] / "filters"))
from filter_strategies import filter_trees

NODES = 60


def filled(rows):
    made = QdrantServerVectorStore(memory_link(), "c", 4)
    return made, fill(made, rows, 4)


@pytest.fixture(scope="module")
def messy():
    return filled(messy_rows()[:NODES])


@pytest.fixture(scope="module")
def typed():
    chosen = random.Random(5)
    return filled([random_row(chosen) for _ in range(NODES)])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(filters=filter_trees)
def test_messy_metadata_agrees_with_the_evaluator(messy, filters):
    assert_finds_what_is_accepted(*messy, filters, matches, 5)


@settings(max_examples=60, deadline=None)
@given(chosen=seeds)
def test_typed_metadata_agrees_with_the_oracle(typed, chosen):
    assert_finds_what_is_accepted(*typed, random_filters(chosen), oracle, chosen.choice([1, 5, NODES]))


@pytest.mark.parametrize(
    ("key", "operator", "value", "exact"),
    [
        ("k", FilterOperator.EQ, "x", True),
        ("k", FilterOperator.IN, ["x", "true"], True),
        ("k", FilterOperator.GTE, 3, True),
        ("k", FilterOperator.IS_EMPTY, None, True),
        ("k", FilterOperator.TEXT_MATCH, "x", False),  # with a text index a server means tokens
        ("k", FilterOperator.LTE, "2020-01-31", False),
        ('k"', FilterOperator.EQ, "x", False),
    ],
)
def test_what_the_server_is_trusted_with(key, operator, value, exact):
    clause = MetadataFilter(key=key, operator=operator, value=value)
    wanted = wanted_points(MetadataFilters(filters=[clause]), {}, substrings=False)
    assert wanted.exact is exact
    assert (client_filter(wanted.filter) is not None) == (key != 'k"')


def test_nothing_is_nothing():
    assert client_filter(None) is None
    wanted = wanted_points(MetadataFilters(filters=[MetadataFilter(key="doc_id", value="None")]), {})
    assert wanted.exact
    assert client_filter(wanted.filter).must[0].has_id == []

"""Filters on real engines find exactly the nodes that the plain evaluator accepts."""

from __future__ import annotations

import random

import pytest
from filter_strategies import FIELDS, filter_trees
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_index.core.vector_stores.types import FilterOperator
from metadata_strategies import NODES, messy_rows, oracle, random_filters, random_row, seeds
from server_tools import memory_link
from store_tools import assert_finds_what_is_accepted, fill, where

from agentic_retriever.filters import matches
from agentic_retriever.stores.edge import QdrantEdgeVectorStore
from agentic_retriever.stores.points import push_down, wanted_points
from agentic_retriever.stores.server import QdrantServerVectorStore, client_filter

ON_SERVER = 60
"""Rows on a server, whose client's memory is slow."""


@pytest.fixture(scope="module", params=["unindexed", "keyword", "float", "datetime", "bool"])
def messy(request, tmp_path_factory):
    made = QdrantEdgeVectorStore(tmp_path_factory.mktemp("filters"), dimension=4)
    fields = fill(made, messy_rows(), 4)
    if request.param != "unindexed":
        for field in FIELDS:
            if '"' not in field:
                made.create_payload_index(field, request.param)
    yield made, fields
    made.close()


def on_server(rows):
    made = QdrantServerVectorStore(memory_link(), "c", 4)
    return made, fill(made, rows, 4)


@pytest.fixture(scope="module")
def messy_on_server():
    return on_server(messy_rows()[:ON_SERVER])


@pytest.fixture(scope="module")
def typed_on_server():
    chosen = random.Random(5)
    return on_server([random_row(chosen) for _ in range(ON_SERVER)])


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(filters=filter_trees, top_k=st.sampled_from([1, 3, 20, NODES]))
def test_every_way_in_agrees_with_the_evaluator(messy, filters, top_k):
    assert_finds_what_is_accepted(*messy, filters, matches, top_k)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(filters=filter_trees)
def test_messy_metadata_on_a_server_agrees_with_the_evaluator(messy_on_server, filters):
    assert_finds_what_is_accepted(*messy_on_server, filters, matches, 5)


@settings(max_examples=60, deadline=None)
@given(chosen=seeds)
def test_typed_metadata_on_a_server_agrees_with_the_oracle(typed_on_server, chosen):
    top_k = chosen.choice([1, 5, ON_SERVER])
    assert_finds_what_is_accepted(*typed_on_server, random_filters(chosen), oracle, top_k)


@pytest.mark.parametrize("field", FIELDS[:3])
def test_ranges_over_fields_of_mixed_types(messy, field):
    store, fields = messy
    for operator in (FilterOperator.GT, FilterOperator.GTE, FilterOperator.LT, FilterOperator.LTE):
        for bound in (0, 1, 2020, 0.5, "2020-01-31", "2020-01-31T10:00:00", "x", "9999-12-31", "0001-01-01"):
            filters = where(field, bound, operator)
            expected = [node_id for node_id, row in fields.items() if matches(row, filters)]
            assert store.count(filters) == len(expected), (operator, bound)


def test_the_sample_is_rich_enough(messy):
    store, fields = messy
    assert len(fields) == store.count() == NODES
    kinds = {type(value).__name__ for row in fields.values() for value in row.values()}
    assert kinds >= {"str", "int", "float", "bool", "list", "dict", "NoneType"}


@pytest.mark.parametrize(
    ("key", "operator", "value", "exact", "exact_on_server"),
    [
        ("k", FilterOperator.EQ, "x", True, True),
        ("k", FilterOperator.IN, ["x", "true"], True, True),
        ("k", FilterOperator.GTE, 3, True, True),
        ("k", FilterOperator.NIN, [1, 2], True, True),
        ("k", FilterOperator.IS_EMPTY, None, True, True),
        ("k", FilterOperator.TEXT_MATCH, "x", True, False),  # with a text index a server means tokens
        ("k", FilterOperator.EQ, 2**60, False, False),
        ("k", FilterOperator.LTE, "2020-01-31", False, False),
        ('k"', FilterOperator.EQ, "x", False, False),
    ],
)
def test_what_the_engine_is_trusted_with(key, operator, value, exact, exact_on_server):
    filters = where(key, value, operator)
    assert push_down(filters, {}).exact is exact
    wanted = wanted_points(filters, {}, substrings=False)
    assert wanted.exact is exact_on_server
    assert (client_filter(wanted.filter) is not None) == (key != 'k"')


def test_nothing_is_nothing():
    assert client_filter(None) is None
    wanted = wanted_points(where("doc_id", "None"), {})
    assert wanted.exact
    assert client_filter(wanted.filter).must[0].has_id == []


def test_numbers_are_not_looked_up_in_an_index_of_dates():
    number = where("k", 1)
    assert push_down(number, {}).exact
    assert not push_down(number, {"k": "datetime"}).exact
    assert not push_down(number, {"k": "other"}).exact

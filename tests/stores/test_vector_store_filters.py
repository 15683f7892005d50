"""Filters on a real engine find exactly the nodes that the plain evaluator accepts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters
from metadata_strategies import NODES, messy_rows
from store_tools import assert_finds_what_is_accepted, fill

from agentic_retriever.filters import matches
from agentic_retriever.stores.edge.store import QdrantEdgeVectorStore
from agentic_retriever.stores.push_down import push_down

sys.path.insert(0, str(Path(__file__).parents[1] / "filters"))
from filter_strategies import FIELDS, filter_trees


@pytest.fixture(scope="module", params=["unindexed", "keyword", "float", "datetime", "bool"])
def store(request, tmp_path_factory):
    made = QdrantEdgeVectorStore(tmp_path_factory.mktemp("filters"), dimension=4)
    fields = fill(made, messy_rows(), 4)
    if request.param != "unindexed":
        for field in FIELDS:
            if '"' not in field:
                made.create_payload_index(field, request.param)
    yield made, fields
    made.close()


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(filters=filter_trees, top_k=st.sampled_from([1, 3, 20, NODES]))
def test_every_way_in_agrees_with_the_evaluator(store, filters, top_k):
    assert_finds_what_is_accepted(*store, filters, matches, top_k)


@pytest.mark.parametrize("field", FIELDS[:3])
def test_ranges_over_fields_of_mixed_types(store, field):
    store, fields = store
    for operator in (FilterOperator.GT, FilterOperator.GTE, FilterOperator.LT, FilterOperator.LTE):
        for bound in (0, 1, 2020, 0.5, "2020-01-31", "2020-01-31T10:00:00", "x", "9999-12-31", "0001-01-01"):
            filters = MetadataFilters(filters=[MetadataFilter(key=field, operator=operator, value=bound)])
            expected = [node_id for node_id, row in fields.items() if matches(row, filters)]
            assert store.count(filters) == len(expected), (operator, bound)


def test_the_sample_is_rich_enough(store):
    store, fields = store
    assert len(fields) == NODES
    assert store.count() == NODES
    kinds = {type(value).__name__ for row in fields.values() for value in row.values()}
    assert kinds >= {"str", "int", "float", "bool", "list", "dict", "NoneType"}


@pytest.mark.parametrize(
    ("key", "operator", "value", "exact"),
    [
        ("k", FilterOperator.EQ, "x", True),
        ("k", FilterOperator.IN, ["x", "y"], True),
        ("k", FilterOperator.GTE, 3, True),
        ("k", FilterOperator.NIN, [1, 2], True),
        ("k", FilterOperator.EQ, 2**60, False),
        ("k", FilterOperator.LTE, "2020-01-31", False),
        ('k"', FilterOperator.EQ, "x", False),
    ],
)
def test_what_the_engine_is_trusted_with(key, operator, value, exact):
    clause = MetadataFilter(key=key, operator=operator, value=value)
    assert push_down(MetadataFilters(filters=[clause]), {}).exact is exact


def test_numbers_are_not_looked_up_in_an_index_of_dates():
    number = MetadataFilters(filters=[MetadataFilter(key="k", value=1)])
    assert push_down(number, {}).exact
    assert not push_down(number, {"k": "datetime"}).exact
    assert not push_down(number, {"k": "other"}).exact

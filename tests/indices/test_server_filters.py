"""Filters on a server's collection find exactly the nodes that the plain evaluator accepts."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters, VectorStoreQuery
from metadata_strategies import oracle, random_filters, random_row, seeds
from server_tools import memory_link
from test_vector_store_filters import _values

from agentic_retriever.filters import matches, node_fields
from agentic_retriever.indices.server_filters import server_filter
from agentic_retriever.indices.server_store import QdrantServerVectorStore

sys.path.insert(0, str(Path(__file__).parents[1] / "filters"))
from filter_strategies import filter_trees

NODES = 60


def vector(number):
    chosen = random.Random(number)
    return [chosen.gauss(0, 1) for _ in range(4)]


def filled(rows):
    nodes = [
        TextNode(id_=f"n{number:03}", text="t", metadata=row, embedding=vector(number))
        for number, row in enumerate(rows)
    ]
    made = QdrantServerVectorStore(memory_link(), "c", 4)
    made.add(nodes)
    return made, {node.node_id: node_fields(node) for node in nodes}


@pytest.fixture(scope="module")
def messy():
    return filled(_values()[:NODES])


@pytest.fixture(scope="module")
def typed():
    chosen = random.Random(5)
    return filled([random_row(chosen) for _ in range(NODES)])


def agrees(store, fields, filters, accepts, top_k):
    expected = {node_id for node_id, row in fields.items() if accepts(row, filters)}
    assert {node.node_id for node in store.get_nodes(filters=filters)} == expected
    assert store.count(filters) == len(expected)
    found = store.query(VectorStoreQuery(query_embedding=vector(-1), similarity_top_k=top_k, filters=filters)).ids
    every = store.query(VectorStoreQuery(query_embedding=vector(-1), similarity_top_k=NODES)).ids
    assert found == [node_id for node_id in every if node_id in expected][:top_k]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(filters=filter_trees)
def test_messy_metadata_agrees_with_the_evaluator(messy, filters):
    agrees(*messy, filters, matches, 5)


@settings(max_examples=60, deadline=None)
@given(chosen=seeds)
def test_typed_metadata_agrees_with_the_oracle(typed, chosen):
    agrees(*typed, random_filters(chosen), oracle, chosen.choice([1, 5, NODES]))


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
    pushed, is_exact = server_filter(MetadataFilters(filters=[clause]), {})
    assert is_exact is exact
    assert (pushed is not None) or key == 'k"'


def test_nothing_is_nothing():
    assert server_filter(None, {}) == (None, True)
    nothing, exact = server_filter(MetadataFilters(filters=[MetadataFilter(key="doc_id", value="None")]), {})
    assert exact
    assert nothing.must[0].has_id == []

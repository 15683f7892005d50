from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import (
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)

from agentic_retriever.stores import points as known_points
from agentic_retriever.stores.edge.store import QdrantEdgeVectorStore
from agentic_retriever.stores.points import KnownPoints, found_facts

COUNT = 60
DIMENSION = 3
# Few directions, so that many nodes have the same score.
DIRECTIONS = ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0])


def fact(node):
    return (node.node_id, node.metadata["year"])


def where(key, value, operator=FilterOperator.EQ):
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


def wanted(vector, top_k, filters=None):
    return VectorStoreQuery(query_embedding=vector, similarity_top_k=top_k, filters=filters)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    nodes = [
        TextNode(
            id_=f"n{i}",
            text=f"node {i}",
            metadata={"year": 2000 + i % 5, "tags": [f"t{i % 3}", "all"]},
            embedding=DIRECTIONS[i % len(DIRECTIONS)],
        )
        for i in range(COUNT)
    ]
    with QdrantEdgeVectorStore(tmp_path_factory.mktemp("known"), dimension=DIMENSION) as made:
        made.add(nodes)
        yield made


@settings(deadline=None)
@given(
    vector=st.sampled_from(DIRECTIONS) | st.lists(st.floats(0.1, 1), min_size=DIMENSION, max_size=DIMENSION),
    top_k=st.integers(0, COUNT + 5),
    filters=st.none()
    | st.integers(2000, 2005).map(lambda year: where("year", year))
    | st.sampled_from(["t0", "all", "none"]).map(lambda tag: where("tags", tag, FilterOperator.CONTAINS))
    | st.just(where("year", 2002, FilterOperator.GTE)),
)
def test_facts_are_those_of_the_nodes_that_a_query_finds_in_its_order(store, vector, top_k, filters):
    query = wanted(vector, top_k, filters)
    result = store.query(query)
    expected = list(zip(map(fact, result.nodes), result.similarities, strict=True))
    known = KnownPoints(fact)
    for _ in range(2):
        assert store.query_known(query, known) == expected


def test_a_node_without_a_fact_makes_room_for_the_next(store):
    known = KnownPoints(lambda node: None if node.node_id in {"n0", "n4"} else node.node_id)
    found = [node_id for node_id, _score in store.query_known(wanted(DIRECTIONS[0], 3), known)]
    assert found == ["n12", "n16", "n20"]


def test_a_node_is_read_once(store):
    read = []
    known = KnownPoints(lambda node: read.append(node.node_id) or fact(node))
    first = store.query_known(wanted(DIRECTIONS[0], 20), known)
    assert len(read) == len(set(read)) >= 20
    before = list(read)
    assert store.query_known(wanted(DIRECTIONS[0], 20), known) == first
    assert store.query_known(wanted(DIRECTIONS[0], 5), known) == first[:5]
    assert read == before


def test_remembering_begins_anew_when_there_is_too_much(store, monkeypatch):
    monkeypatch.setattr(known_points, "MAX_KNOWN", 10)
    known = KnownPoints(fact)
    for vector in (*DIRECTIONS, *DIRECTIONS):
        assert store.query_known(wanted(vector, 15), known) == store.query_known(wanted(vector, 15), KnownPoints(fact))


def test_any_store_can_be_searched_for_facts(store):
    class Careless:
        """Knows queries alone, and leaves a score out."""

        def query(self, query):
            result = store.query(query)
            result.similarities[0] = None
            return result

    query = wanted(DIRECTIONS[0], 10)
    assert found_facts(Careless(), query, KnownPoints(fact)) == found_facts(store, query, KnownPoints(fact))[1:]

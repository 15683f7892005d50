"""One meaning everywhere: 1,000 random filters on the embedded store and, by the prefilter's ids, on Qdrant's own."""

from __future__ import annotations

import random
import warnings
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery
from metadata_strategies import oracle, random_filters, random_row, seeds

from agentic_retriever.filters import node_fields, predicate
from agentic_retriever.indices.prefilter.index import MetadataIndex
from agentic_retriever.indices.prefilter.plan import PlanKind
from agentic_retriever.stores.edge.store import QdrantEdgeVectorStore

NODES = 48
QUERY = [0.3, -0.2, 0.9, 0.1]
thorough = settings(
    max_examples=1_000, derandomize=True, database=None, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip


@pytest.fixture(scope="module")
def nodes():
    chosen = random.Random(1)
    return [
        TextNode(
            id_=str(UUID(int=number + 1)), text="t", metadata=random_row(chosen),
            embedding=[chosen.gauss(0, 1) for _ in range(4)],
        )
        for number in range(NODES)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def index(nodes):
    return MetadataIndex.build(((node.node_id, node.metadata) for node in nodes), 1)


@pytest.fixture(scope="module")
def edge(nodes, tmp_path_factory):
    with QdrantEdgeVectorStore(tmp_path_factory.mktemp("edge"), dimension=4) as store:
        store.add(nodes)
        for field, kind in {"province": "keyword", "year": "float", "sold": "bool", "day": "datetime"}.items():
            store.create_payload_index(field, kind)
        yield store


@pytest.fixture(scope="module")
def peer(nodes):
    from llama_index.vector_stores.qdrant import QdrantVectorStore
    from qdrant_client import QdrantClient

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = QdrantClient(":memory:")
        store = QdrantVectorStore(client=client, collection_name="peer")
        store.add(nodes)
        yield store
        client.close()


def ask(top_k=NODES, **kwargs):
    return VectorStoreQuery(query_embedding=QUERY, similarity_top_k=top_k, **kwargs)


@thorough
@given(seeds)
def test_the_embedded_store_as_planned(nodes, index, edge, chosen):
    filters = random_filters(chosen)
    expected = {node.node_id for node in nodes if oracle(node_fields(node), filters)}
    assert index.candidates(filters) == expected
    plan = index.plan(filters, 10)
    assert plan.low <= len(expected) <= plan.high
    if plan.kind is PlanKind.NONE:
        assert not expected
        return
    node_ids = None if plan.node_ids is None else list(plan.node_ids)
    assert set(edge.query(ask(filters=plan.filters, node_ids=node_ids)).ids) == expected


@thorough
@given(seeds)
def test_qdrants_own_store_by_the_prefilters_ids(nodes, index, peer, chosen):
    """Its filters mean something else in places, so it gets ids, and the evaluator has the last word."""
    filters = random_filters(chosen)
    fields = {node.node_id: node_fields(node) for node in nodes}
    candidates = index.candidates(filters)
    found = set()
    if candidates:  # an empty list of ids would restrict nothing there
        accepts = predicate(filters)
        found = {i for i in peer.query(ask(node_ids=candidates.node_ids())).ids if accepts(fields[i])}
    assert found == {node_id for node_id, row in fields.items() if oracle(row, filters)}


def test_the_sample_is_rich_enough(nodes, index):
    assert len(index) == NODES
    assert len(index.fields()) == 9
    assert len({len(node.metadata) for node in nodes}) > 3

"""The prefilter finds exactly what the evaluator accepts, and what a second reading of its rules accepts."""

from __future__ import annotations

import random
import warnings
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters, VectorStoreQuery
from metadata_strategies import cases, oracle, random_filters, random_row, seeds

from agentic_retriever.filters import matches, node_fields, predicate
from agentic_retriever.indices.prefilter import MetadataIndex, PlanKind, btree, snapshot
from agentic_retriever.stores.edge.store import QdrantEdgeVectorStore

NODES = 48
QUERY = [0.3, -0.2, 0.9, 0.1]


def repeatable(examples):
    return settings(
        max_examples=examples, derandomize=True, database=None, deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )  # fmt: skip


def named(rows):
    return {f"n{number}": row for number, row in enumerate(rows)}


def accepted(nodes, filters):
    return {node_id for node_id, row in nodes.items() if oracle(row, filters)}


def bounds(index, filters):
    """At least and at most how many nodes a filter is believed to leave, before any is found."""
    _, matcher = index._matcher(filters)
    return matcher.low, matcher.high


def check(nodes, filters):
    expected = accepted(nodes, filters)
    assert {node_id for node_id, row in nodes.items() if matches(row, filters)} == expected

    index = MetadataIndex.build(nodes.items(), version=1)
    low, high = bounds(index, filters)
    found = index.candidates(filters)
    assert set(found) == expected
    assert found.exact
    assert low <= len(found) == len(expected) <= high
    assert all((node_id in found) == (node_id in expected) for node_id in nodes)


@repeatable(1_000)
@given(seeds)
def test_1000_filters_over_typed_metadata(chosen):
    check(named(random_row(chosen) for _ in range(chosen.randint(0, 20))), random_filters(chosen))


@repeatable(250)
@given(cases)
def test_filters_and_metadata_that_shrink(case):
    rows, filters = case
    check(named(rows), filters)


@repeatable(300)
@given(seeds, st.integers(0, 60))
def test_small_nodes_and_another_order_change_nothing(chosen, cut):
    nodes, filters = named(random_row(chosen) for _ in range(60)), random_filters(chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "_MIN_CLUSTERED", 4)
        for name, size in {"LEAF": 3, "FANOUT": 3, "RUN": 2}.items():
            patch.setattr(btree, name, size)
        index = MetadataIndex.build(list(nodes.items())[:cut], version=1)
        index.update(list(nodes.items())[cut:])
        found = set(index.candidates(filters))
    assert found == accepted(nodes, filters)


@repeatable(300)
@given(seeds)
def test_texts_that_are_left_out_only_widen(chosen):
    nodes, filters = named(random_row(chosen) for _ in range(chosen.randint(0, 9))), random_filters(chosen)
    expected = accepted(nodes, filters)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "TEXT_BYTES", 0)
        patch.setattr(snapshot, "TEXT_BYTES_PER_NODE", 0)
        index = MetadataIndex.build(list(nodes.items())[:4], version=1)
        index.update(list(nodes.items())[4:])
    low, high = bounds(index, filters)
    found = index.candidates(filters)
    assert expected <= set(found)
    assert low <= len(expected) <= high
    assert not found.exact or set(found) == expected
    assert set(found.narrowed(expected)) == expected


@pytest.mark.parametrize("row", [{"year": 2020}, {}], ids=["with", "without"])
def test_an_oracle_that_would_notice(row):
    is_2020 = MetadataFilters(filters=[MetadataFilter(key="year", operator=FilterOperator.EQ, value=2020)])
    assert oracle(row, is_2020) == bool(row)


@pytest.fixture(scope="module")
def nodes():
    chosen = random.Random(1)
    made = [
        TextNode(
            id_=str(UUID(int=number + 1)), text="t", metadata=random_row(chosen),
            embedding=[chosen.gauss(0, 1) for _ in range(4)],
        )
        for number in range(NODES)
    ]  # fmt: skip
    assert len({name for node in made for name in node.metadata}) == 9  # rich enough
    assert len({len(node.metadata) for node in made}) > 3
    return made


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


def ask(**kwargs):
    return VectorStoreQuery(query_embedding=QUERY, similarity_top_k=NODES, **kwargs)


@repeatable(1_000)
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


@repeatable(1_000)
@given(seeds)
def test_qdrants_own_store_by_the_prefilters_ids(nodes, index, peer, chosen):
    """Its filters mean something else in places, so it gets ids, and the evaluator has the last word."""
    filters = random_filters(chosen)
    fields = {node.node_id: node_fields(node) for node in nodes}
    candidates = index.candidates(filters)
    found = set()
    if candidates:  # an empty list of ids would restrict nothing there
        accepts = predicate(filters)
        found = {i for i in peer.query(ask(node_ids=list(candidates))).ids if accepts(fields[i])}
    assert found == accepted(fields, filters)

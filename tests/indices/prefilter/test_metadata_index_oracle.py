"""The prefilter finds exactly what the evaluator and a second reading of its rules accept, while nodes change."""

import random
import threading
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters, VectorStoreQuery
from metadata_strategies import cases, oracle, random_filters, random_row, seeds
from store_tools import where
from waiting import in_threads

from agentic_retriever.filters import matches, node_fields, predicate
from agentic_retriever.indices.prefilter import btree, snapshot
from agentic_retriever.indices.prefilter.index import MetadataIndex
from agentic_retriever.stores.edge import QdrantEdgeVectorStore

NODES = 48
QUERY = [0.3, -0.2, 0.9, 0.1]


def repeatable(examples):
    return settings(
        max_examples=examples, derandomize=True, database=None, deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )  # fmt: skip


def shrink(patch):
    """Make few nodes behave as very many do."""
    for name, size in {"LEAF": 3, "FANOUT": 3, "RUN": 2}.items():
        patch.setattr(btree, name, size)
    patch.setattr(snapshot, "_MIN_LOOSE", 8)
    patch.setattr(snapshot, "_MIN_CLUSTERED", 4)


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
        shrink(patch)
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


def test_an_oracle_that_would_notice():
    assert oracle({"year": 2020}, where("year", 2020))
    assert not oracle({}, where("year", 2020))


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
    if plan.high == 0:
        assert not expected
        return
    node_ids = None if plan.node_ids is None else list(plan.node_ids)
    assert set(edge.query(ask(filters=filters, node_ids=node_ids)).ids) == expected


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


class IndexStoreAndDict(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.patch, self.folder = pytest.MonkeyPatch(), TemporaryDirectory()
        shrink(self.patch)
        self.index, self.rows, self.version = MetadataIndex.build([], 0), {}, 0
        self.store = QdrantEdgeVectorStore(Path(self.folder.name), dimension=2)
        self.filters = MetadataFilters(filters=[])

    @rule(chosen=seeds, ids=st.sets(st.integers(0, 25).map(str), max_size=8))
    def add(self, chosen, ids):
        rows = {node_id: random_row(chosen) for node_id in sorted(ids)}
        self.version += 1
        self.index.update(rows.items(), version=self.version)
        self.store.add([TextNode(id_=i, text="t", metadata=row, embedding=[1.0, 0.5]) for i, row in rows.items()])
        self.rows.update(rows)

    @rule(gone=st.sets(st.integers(0, 25).map(str)))
    def delete(self, gone):
        self.version += 1
        self.index.update(deleted=gone, version=self.version)
        self.rows = {node_id: row for node_id, row in self.rows.items() if node_id not in gone}
        if gone:
            self.store.delete_nodes(node_ids=sorted(gone))

    @rule(chosen=seeds)
    def ask(self, chosen):
        self.filters = random_filters(chosen)

    @invariant()
    def equal(self):
        expected = accepted(self.rows, self.filters)
        low, high = bounds(self.index, self.filters)
        assert set(self.index.candidates(self.filters)) == expected
        assert self.store.count(self.filters) == len(expected)
        assert low <= len(expected) <= high
        assert (len(self.index), self.index.version) == (len(self.rows), self.version)
        there = {name for row in self.rows.values() for name, value in row.items() if value != []}
        assert set(self.index._snapshot.fields) == there

    def teardown(self):
        self.store.close()
        self.folder.cleanup()
        self.patch.undo()


def test_index_store_and_dict_agree_over_1000_steps():
    steps = settings(max_examples=20, stateful_step_count=50, deadline=None, derandomize=True, database=None)
    run_state_machine_as_test(IndexStoreAndDict, settings=steps)


def _clauses(*clauses):
    return MetadataFilters(filters=[MetadataFilter(key=k, operator=o, value=v) for k, o, v in clauses])


def _look(index, turn, size):
    """What a reader finds wrong; every change replaces all nodes, so two values at once are half of a change."""
    text = str(turn)
    mixed = index.candidates(_clauses(("text", "==", text), ("number", "!=", turn)))
    every = index.candidates(_clauses(("list", "==", "x")))
    found = index.candidates(_clauses(("number", "<", turn), ("list", "!=", text)))
    ids = list(found)
    right = not mixed and len(every) == size and len(ids) == len(found) == len(set(ids)) and len(ids) in {0, size}
    return [] if right and all(i in found for i in ids) else [(turn, mixed, len(every), len(found))]


def test_readers_see_one_moment_while_a_writer_writes(monkeypatch):
    monkeypatch.setattr(snapshot, "_MIN_LOOSE", 200)
    size, turns = 60, 120

    def state(turn):
        return ((f"n{i}", {"text": str(turn), "number": turn, "list": [str(turn), "x"], "i": i}) for i in range(size))

    index = MetadataIndex.build(state(0), 0)
    stop, problems, seen = threading.Event(), [], set()

    def read(seed):
        chosen = random.Random(seed)
        while not stop.is_set():
            problems.extend(_look(index, chosen.randrange(turns), size))
            seen.add(index.version)

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for reader in readers:
        reader.start()
    try:
        for turn in range(1, turns):
            index.update(state(turn), version=turn)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert problems == []
    assert len(seen) > 3


def test_writers_wait_for_each_other():
    index = MetadataIndex.build([], 0)

    def write(name):
        for i in range(50):
            index.update([(f"{name}-{i}", {"name": name, "i": i})])
            if i % 2:
                index.update(deleted=[f"{name}-{i - 1}"])

    in_threads(write, "abcd")
    assert index.candidates(None) == {f"{name}-{i}" for name in "abcd" for i in range(1, 50, 2)}
    assert [len(index.candidates(_clauses(("name", "==", name)))) for name in "abcd"] == [25] * 4
    assert index.candidates(_clauses(("i", "==", 49))) == {f"{name}-49" for name in "abcd"}

"""The prefilter stays true while nodes are added, updated and deleted, and while others read it."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from metadata_strategies import oracle, random_filters, random_row, seeds
from store_tools import in_threads

from agentic_retriever.indices.prefilter import btree_nodes, clustering, snapshot
from agentic_retriever.indices.prefilter.index import MetadataIndex
from agentic_retriever.stores.edge.store import QdrantEdgeVectorStore

STEPS = 1_000
SMALL = {"LEAF": 4, "FANOUT": 3, "RUN": 3}


def shrink(patch):
    for name, size in SMALL.items():
        patch.setattr(btree_nodes, name, size)
    patch.setattr(snapshot, "_MIN_LOOSE", 8)
    patch.setattr(clustering, "MIN_ROWS", 4)


class IndexAsDict(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        shrink(self.patch)
        self.index, self.rows, self.version = MetadataIndex.build([], 0), {}, 0
        self.filters = MetadataFilters(filters=[])

    @rule(chosen=seeds, ids=st.sets(st.integers(0, 25).map(str), max_size=8))
    def add(self, chosen, ids):
        rows = {node_id: random_row(chosen) for node_id in sorted(ids)}
        self.version += 1
        self.index.add(rows.items(), version=self.version)
        self.rows.update(rows)

    @rule(gone=st.sets(st.integers(0, 25).map(str)))
    def delete(self, gone):
        self.version += 1
        self.index.delete(gone, version=self.version)
        self.rows = {node_id: row for node_id, row in self.rows.items() if node_id not in gone}

    @rule(chosen=seeds)
    def ask(self, chosen):
        self.filters = random_filters(chosen)

    @invariant()
    def equal(self):
        expected = {node_id for node_id, row in self.rows.items() if oracle(row, self.filters)}
        low, high = self.index.estimate(self.filters)
        assert set(self.index.candidates(self.filters)) == expected
        assert low <= len(expected) <= high
        assert (len(self.index), self.index.version) == (len(self.rows), self.version)
        there = {name for row in self.rows.values() for name, value in row.items() if value != []}
        assert {field.name for field in self.index.fields()} == there

    def teardown(self):
        self.patch.undo()


def test_any_run_of_changes_and_filters():
    steps = settings(max_examples=20, stateful_step_count=50, deadline=None, derandomize=True, database=None)
    run_state_machine_as_test(IndexAsDict, settings=steps)


def test_index_store_and_dict_agree_over_1000_steps(tmp_path, monkeypatch):
    shrink(monkeypatch)
    chosen = random.Random(3)
    index, rows = MetadataIndex.build([], 0), {}
    asked = hits = 0
    with QdrantEdgeVectorStore(tmp_path, dimension=2) as store:
        for step in range(STEPS):
            kind = chosen.choices(["add", "update", "delete", "filter"], [2, 1, 1, 4])[0]
            if kind == "add" or not rows:
                new = {f"n{step}-{i}": random_row(chosen) for i in range(chosen.randint(1, 4))}
            elif kind == "update":
                new = {node_id: random_row(chosen) for node_id in chosen.sample(sorted(rows), min(2, len(rows)))}
            elif kind == "delete":
                gone = chosen.sample(sorted(rows), min(chosen.choice([1, 3, 20]), len(rows)))
                index.delete(gone)
                store.delete_nodes(node_ids=gone)
                rows = {node_id: row for node_id, row in rows.items() if node_id not in gone}
                continue
            else:
                filters = random_filters(chosen)
                expected = {node_id for node_id, row in rows.items() if oracle(row, filters)}
                assert set(index.candidates(filters)) == expected, (step, filters)
                assert store.count(filters) == len(expected), (step, filters)
                asked, hits = asked + 1, hits + len(expected)
                continue
            index.add(new.items())
            store.add([TextNode(id_=i, text="t", metadata=row, embedding=[1.0, 0.5]) for i, row in new.items()])
            rows.update(new)
    assert asked > 300
    assert hits > 1_000


def _clauses(*clauses):
    return MetadataFilters(filters=[MetadataFilter(key=k, operator=o, value=v) for k, o, v in clauses])


def _look(index, turn, size):
    """What a reader finds wrong; every change replaces all nodes, so two values at once are half of a change."""
    text = str(turn)
    mixed = index.candidates(_clauses(("text", "==", text), ("number", "!=", turn)))
    every = index.candidates(_clauses(("list", "==", "x")))
    found = index.candidates(_clauses(("number", "<", turn), ("list", "!=", text)))
    ids = found.node_ids()
    right = not mixed and every.count == size and found.count in {0, size} and len(set(ids)) == found.count
    return [] if right and all(found.contains(i) for i in ids) else [(turn, mixed, every.count, found.count)]


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
            index.add(state(turn), version=turn)
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
            index.add([(f"{name}-{i}", {"name": name, "i": i})])
            if i % 2:
                index.delete([f"{name}-{i - 1}"])

    in_threads(write, "abcd")
    assert len(index) == 100
    assert index.values("name") == dict.fromkeys("abcd", 25)
    odd = MetadataFilters(filters=[MetadataFilter(key="i", value=49)])
    assert index.candidates(odd) == {f"{name}-49" for name in "abcd"}

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

from agentic_retriever.indices.prefilter import MetadataIndex, btree, snapshot
from agentic_retriever.stores.edge.store import QdrantEdgeVectorStore

STEPS = 1_000


def shrink(patch):
    for name, size in {"LEAF": 4, "FANOUT": 3, "RUN": 3}.items():
        patch.setattr(btree, name, size)
    patch.setattr(snapshot, "_MIN_LOOSE", 8)
    patch.setattr(snapshot, "_MIN_CLUSTERED", 4)


def accepted(rows, filters):
    return {node_id for node_id, row in rows.items() if oracle(row, filters)}


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
        self.index.update(rows.items(), version=self.version)
        self.rows.update(rows)

    @rule(gone=st.sets(st.integers(0, 25).map(str)))
    def delete(self, gone):
        self.version += 1
        self.index.update(deleted=gone, version=self.version)
        self.rows = {node_id: row for node_id, row in self.rows.items() if node_id not in gone}

    @rule(chosen=seeds)
    def ask(self, chosen):
        self.filters = random_filters(chosen)

    @invariant()
    def equal(self):
        expected = accepted(self.rows, self.filters)
        _, matcher = self.index._matcher(self.filters)
        assert set(self.index.candidates(self.filters)) == expected
        assert matcher.low <= len(expected) <= matcher.high
        assert (len(self.index), self.index.version) == (len(self.rows), self.version)
        there = {name for row in self.rows.values() for name, value in row.items() if value != []}
        assert set(self.index._snapshot.fields) == there

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
                index.update(deleted=gone)
                store.delete_nodes(node_ids=gone)
                rows = {node_id: row for node_id, row in rows.items() if node_id not in gone}
                continue
            else:
                filters = random_filters(chosen)
                expected = accepted(rows, filters)
                assert set(index.candidates(filters)) == expected, (step, filters)
                assert store.count(filters) == len(expected), (step, filters)
                asked, hits = asked + 1, hits + len(expected)
                continue
            index.update(new.items())
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

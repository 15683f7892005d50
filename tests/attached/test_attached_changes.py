"""Changes to attached indexes that take long to read, or cannot be seen at all: questions go on."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from attached_material import TEXTS, attached, contracts, index_on, vector_index
from llama_index.core.schema import TextNode
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient

from agentic_retriever import AgenticRouter, Budget, RouterConfig
from agentic_retriever.errors import StoreError
from agentic_retriever.indices.attached import index as attached_index
from agentic_retriever.indices.attached import index as catching_up
from agentic_retriever.indices.attached.index import CatchingUp
from agentic_retriever.testing import FakeEmbedding

LEAVE = "How many days of paid leave do employees have?"


@pytest.fixture
def gate():
    """Opens at the end of a test, so that no thread is left waiting."""
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def router(tmp_path):
    config = RouterConfig(data_dir=tmp_path, query_log="none", on_abstain="answer")
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=64)) as made:
        yield made


def slow(source, method, gate):
    """Let a method of a source wait for the gate."""
    fast = getattr(source, method)

    def waiting():
        assert gate.wait(60)
        return fast()

    setattr(source, method, waiting)


def until(is_so):
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        threading.Event().wait(0.01)


def test_questions_go_on_while_a_change_is_read(router, gate):
    """The answer of the earlier state says so and is not kept; then the change is there."""
    index = vector_index(contracts())
    router.add_index("contracts", index=index, description="Contracts")
    slow(router.index("contracts").source, "nodes", gate)
    before = router.query(LEAVE, budget=Budget(max_ms=20_000))
    index.insert_nodes([TextNode(id_="new", text="The parking permit of the director ends in May.")])
    start = time.monotonic()
    answer = router.query("When does the parking permit end?", budget=Budget(max_ms=600))
    assert time.monotonic() - start < 5
    assert [(step.step, step.fallback) for step in answer.degraded if step.step == "index.contracts"] == [
        ("index.contracts", "its nodes as they were read last")
    ]
    assert answer.route.versions == before.route.versions
    assert router.query(LEAVE, budget=Budget(max_ms=600)).cached, "the key is that of the state that is served"
    gate.set()
    until(lambda: router.index("contracts").count() == 5)
    answer = router.query("When does the parking permit end?")
    assert not answer.cached
    assert not answer.degraded
    assert answer.citations[0].node_id == "new"


def test_a_server_that_hangs_on_its_count_keeps_nobody(router, gate):
    """Row 24, for callers without an event loop, too."""
    held = QdrantVectorStore("contracts", client=QdrantClient(":memory:"))
    router.add_index("contracts", index=index_on(held, contracts(uuids=True)), description="Contracts")
    made = router.index("contracts")
    made._watched._next_look = 0.0
    slow(made.source, "count", gate)
    start = time.monotonic()
    found = router.retrieve(LEAVE, strategy="hybrid", budget=Budget(max_ms=600))
    assert time.monotonic() - start < 5
    assert "thirty days of paid leave" in found.nodes[0].node.get_content()
    assert found.degraded[0].step == "index.contracts"
    router.refresh_index("contracts")
    assert made.version == 1


def test_all_callers_wait_for_one_reading():
    running, most, lock = [0], [0], threading.Lock()
    begun = threading.Event()

    def work():
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        begun.wait(0.1)
        with lock:
            running[0] -= 1

    both = CatchingUp("reading", work)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: both.run(30), range(8))) == [None] * 8
    assert most == [1]


def test_what_hangs_is_waited_for_once(gate, monkeypatch):
    """Patience counts from the beginning of the work, whoever asks and how often."""
    monkeypatch.setattr(catching_up, "PATIENCE_S", 0.05)
    hanging = CatchingUp("reading", lambda: gate.wait(60))
    assert "reading is under way since" in hanging.run(30)
    start = time.monotonic()
    assert all(hanging.run(30) for _ in range(50))
    assert time.monotonic() - start < 5
    gate.set()
    until(lambda: hanging.run(30) is None)


def test_what_fails_rests_before_it_is_tried_again(caplog):
    now, tried = [0.0], []

    def work():
        tried.append(now[0])
        raise StoreError("no such collection")

    failing = CatchingUp("reading index a", work, timer=lambda: now[0])
    assert [failing.run(30) for _ in range(3)] == ["no such collection"] * 3
    assert tried == [0.0]
    now[0] = 1.0
    failing.run(30)
    assert tried == [0.0, 1.0]
    assert "reading index a failed, so it stays as it was: no such collection" in caplog.text


def test_an_index_that_can_no_longer_be_read_stays_as_it_was():
    made = attached(vector_index(contracts()))

    def broken():
        raise ConnectionError("secret")

    made.source.nodes = broken
    made.refresh()
    said = made.catch_up(30)
    assert "failed with ConnectionError" in said
    assert "secret" not in said
    assert made.count() == len(TEXTS)
    assert made.version == 1


def test_reading_by_id_is_given_up_on(gate, monkeypatch):
    """Neighbours and vectors of nodes that were found are read outside of the search and its deadline."""
    monkeypatch.setattr(attached_index, "READ_S", 0.05)
    made = attached(vector_index(contracts()))
    for method in ("get", "vectors"):
        monkeypatch.setattr(made.source, method, lambda _ids: gate.wait(60))
    for read in (made.vector_store.vectors, made.vector_store.get_nodes):
        with pytest.raises(StoreError, match="the store of index contracts did not answer within"):
            read(["lease"])

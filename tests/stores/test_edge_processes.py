"""Kills, second processes and full disks."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from pathlib import Path

import pytest

from agentic_retriever.errors import StoreBusyError
from agentic_retriever.stores.edge.store import QdrantEdgeVectorStore

sys.path.insert(0, str(Path(__file__).parents[1]))
if "forkserver" not in multiprocessing.get_all_start_methods():
    pytest.skip("the platform cannot fork", allow_module_level=True)

import store_processes
from store_processes import BATCH
from store_tools import ask


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["store_processes", "pytest"])
    return context


def start(processes, target, *arguments):
    mine, theirs = processes.Pipe()
    process = processes.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, mine


def receive(connection, seconds=60):
    assert connection.poll(seconds), "the other process is silent"
    return connection.recv()


def test_nothing_acknowledged_is_lost_by_kill_9(processes, tmp_path):
    acknowledged = 0
    for rounds in (1, 3, 15, 8):
        process, connection = start(processes, store_processes.write_until_killed, tmp_path, acknowledged)
        for _ in range(rounds):
            acknowledged = receive(connection)
        process.kill()
        process.join()
        with contextlib.suppress(EOFError):
            while True:  # what it still said before it died
                acknowledged = connection.recv()
        with QdrantEdgeVectorStore(tmp_path) as store:
            ids = store.node_ids()
            assert len(ids) == len(set(ids)) == store.count()
            assert set(ids) >= {f"node-{number:05}" for number in range(acknowledged)}
            assert all(node.text == f"text {node.metadata['n']}" for node in store.iter_nodes())
            store.add(store_processes.batch(0))  # again, without duplicates
            assert store.count() == len(ids)
            assert store.query(ask(5, 1)).ids == ["node-00005"]
    assert acknowledged >= 27 * BATCH


def test_a_second_process_is_told_what_to_do_and_harms_nobody(processes, tmp_path):
    process, connection = start(processes, store_processes.hold, tmp_path)
    assert receive(connection) == "open"
    for _ in range(2):
        with pytest.raises(StoreBusyError, match=r"already in use.*server") as caught:
            QdrantEdgeVectorStore(tmp_path)
        assert str(tmp_path) in str(caught.value)
    connection.send("go on")
    assert receive(connection) == 2 * BATCH
    process.join(30)
    with QdrantEdgeVectorStore(tmp_path) as store:
        assert store.count() == 2 * BATCH


@pytest.mark.parametrize("attempt", range(2))
def test_processes_racing_for_a_fresh_folder(processes, tmp_path, attempt):
    barrier, done = processes.Barrier(3), processes.Event()
    started = [start(processes, store_processes.race, tmp_path / "new", number, barrier, done) for number in range(3)]
    results = [receive(connection) for _, connection in started]
    done.set()
    for process, _ in started:
        process.join(30)
    winners = [number for number, outcome, _ in results if outcome == "ok"]
    assert len(winners) == 1
    assert {outcome for _, outcome, _ in results} == {"ok", "StoreBusyError"}
    with QdrantEdgeVectorStore(tmp_path / "new") as store:
        assert store.node_ids() == [f"node-{winners[0] * BATCH + number:05}" for number in range(BATCH)]


def test_a_full_disk_loses_nothing_that_was_stored(processes, tmp_path):
    process, connection = start(processes, store_processes.fill_a_disk, tmp_path)
    said, acknowledged, readable = receive(connection)
    process.join(30)
    assert said.startswith("StoreError")
    assert "disk" in said
    assert str(tmp_path) in said
    assert readable == BATCH, readable
    with QdrantEdgeVectorStore(tmp_path) as store:
        assert set(store.node_ids()) >= {f"node-{number:05}" for number in range(acknowledged)}
        assert store.query(ask(5, 1)).ids == ["node-00005"]
        store.add(store_processes.batch(acknowledged))
        assert f"node-{acknowledged:05}" in store.node_ids()

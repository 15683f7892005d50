from __future__ import annotations

import gc
import logging
import threading

import pytest
from waiting import in_threads, within

from agentic_retriever import querylog as module
from agentic_retriever.errors import QueryLogError
from agentic_retriever.querylog import BatchWriter, LogEntry, LogStats, QueryLog

WAIT_S = 20


class Sink:
    """Keeps what it is given; can be held up, and can fail for a while."""

    def __init__(self):
        self.kept = []
        self.batches = []
        self.failures = []
        self.entered = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def __call__(self, batch):
        self.entered.set()
        assert self.go.wait(WAIT_S)
        if self.failures:
            failure = self.failures.pop(0) if len(self.failures) > 1 else self.failures[0]
            if failure is not None:
                raise failure
        self.batches.append(len(batch))
        self.kept += batch
        return len(batch)


@pytest.fixture
def sink():
    made = Sink()
    yield made
    made.go.set()


@pytest.fixture
def writer(sink):
    made = BatchWriter(sink, name="test", capacity=10)
    yield made
    sink.go.set()
    assert made.close(WAIT_S)


def test_all_is_written_in_order_and_in_batches(sink):
    writer = BatchWriter(sink, name="test", capacity=5_000)
    assert all(writer.put(n) for n in range(1_000))
    assert writer.flush(WAIT_S)
    assert sink.kept == list(range(1_000))
    assert len(sink.batches) <= 10
    assert writer.close(WAIT_S)
    assert writer.stats() == LogStats(written=1_000, dropped=0, pending=0)


def test_no_thread_before_the_first_entry(sink):
    before = threading.active_count()
    writer = BatchWriter(sink, name="test")
    assert threading.active_count() == before
    assert writer.flush(0)
    assert writer.close(0)


def test_a_slow_database_costs_entries_and_no_time(sink, writer, caplog):
    sink.go.clear()
    assert writer.put("first")
    assert sink.entered.wait(WAIT_S)
    with within(5):
        taken = sum(writer.put(n) for n in range(2_000))
    assert taken == 10
    assert writer.stats() == LogStats(written=0, dropped=1_990, pending=11)
    assert not writer.flush(0.05)
    sink.go.set()
    assert writer.flush(WAIT_S)
    assert sink.kept == ["first", *range(10)]
    assert writer.put("again")
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_a_short_outage_costs_nothing(sink, writer, caplog):
    sink.failures = [QueryLogError("gone"), OSError("x"), None]
    for n in range(3):
        writer.put(n)
    while not writer.flush(WAIT_S):
        assert writer.stats().dropped == 0
    assert sink.kept == [0, 1, 2]
    assert [r.getMessage() for r in caplog.records] == [
        "the query history test loses entries: gone; queries are answered all the same"
    ]


def test_after_a_long_outage_it_goes_on(sink, writer, monkeypatch):
    monkeypatch.setattr(module, "_RETRY_DELAYS_S", (0.0, 0.0))
    sink.failures = [OSError(), OSError(), OSError(), None]
    writer.put("lost")
    while writer.stats().pending:
        writer.flush(WAIT_S)
    assert writer.stats().dropped == 1
    writer.put("kept")
    assert writer.flush(WAIT_S)
    assert sink.kept == ["kept"]


def test_flush_tells_at_once_that_the_database_is_gone(sink, writer):
    sink.failures = [OSError("gone")]
    writer.put(1)
    with within(WAIT_S / 2):
        assert not writer.flush(WAIT_S)
    assert writer.close(WAIT_S)
    assert writer.stats() == LogStats(written=0, dropped=1, pending=0)


@pytest.mark.parametrize("failure", [ValueError("v"), RuntimeError("r"), MemoryError(), RecursionError()])
def test_the_thread_outlives_whatever_the_database_raises(sink, writer, failure):
    sink.failures = [failure, None]
    writer.put(1)
    while not writer.flush(WAIT_S):
        pass
    assert sink.kept == [1]


def test_one_warning_an_hour(sink, caplog):
    now = [0.0]
    writer = BatchWriter(sink, name="test", timer=lambda: now[0])
    sink.failures = [OSError("secret words")]
    for moment in (0.0, 10.0, 3_599.0, 3_600.0):
        now[0] = moment
        writer.put(1)
        assert not writer.flush(WAIT_S)
    assert writer.close(WAIT_S)
    assert len(caplog.records) == 2
    assert "secret" not in caplog.text


def test_refused_entries_are_counted():
    writer = BatchWriter(lambda batch: len(batch) - 1, name="test")
    writer.put(1)
    writer.put(2)
    assert writer.flush(WAIT_S)
    assert writer.close(WAIT_S)
    assert writer.stats() == LogStats(written=1, dropped=1, pending=0)


def test_close_writes_what_waits_and_takes_no_more(sink):
    writer = BatchWriter(sink, name="test")
    for n in range(700):
        writer.put(n)
    assert writer.close(WAIT_S)
    assert writer.close(0)
    assert len(sink.kept) == 700
    assert not writer.put("late")
    assert writer.stats() == LogStats(written=700, dropped=1, pending=0)


def test_close_tries_a_last_time_during_an_outage(sink):
    writer = BatchWriter(sink, name="test")
    sink.failures = [OSError(), None]
    writer.put(1)
    assert not writer.flush(WAIT_S)
    assert writer.close(WAIT_S)
    assert sink.kept == [1]


def test_close_does_not_wait_for_a_database_that_hangs(sink):
    writer = BatchWriter(sink, name="test")
    sink.go.clear()
    writer.put(1)
    assert sink.entered.wait(WAIT_S)
    with within(WAIT_S / 2):
        assert not writer.close(0.05)
    sink.go.set()
    assert writer.close(WAIT_S)


def test_no_thread_can_be_started(sink, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    writer = BatchWriter(sink, name="test")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert not writer.put(1)
    monkeypatch.undo()
    assert writer.put(2)
    assert writer.close(WAIT_S)
    assert sink.kept == [2]


def test_sixteen_threads_lose_nothing(sink):
    writer = BatchWriter(sink, name="test")
    start = threading.Barrier(16)

    def work(who):
        start.wait(WAIT_S)
        for n in range(200):
            writer.put((who, n))
            if n % 50 == 0:
                writer.flush(WAIT_S)

    in_threads(16, work)
    assert writer.close(WAIT_S)
    assert sorted(sink.kept) == [(who, n) for who in range(16) for n in range(200)]


def test_a_forgotten_history_ends_its_thread(tmp_path):
    log = QueryLog(tmp_path / "q")
    log.record(LogEntry(query="x"))
    thread = log._writer._thread
    del log
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    with QueryLog(tmp_path / "q") as again:
        assert [found.query for found in again.recent()] == ["x"]

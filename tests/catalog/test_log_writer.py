import gc
import logging
import os
import re
import subprocess
import sys
import textwrap
import threading
from unittest.mock import Mock

import pytest
from command_line import run_fresh
from waiting import in_threads, within

from agentic_retriever.catalog import history
from agentic_retriever.catalog.history import BatchWriter, LogEntry, LogStats, QueryLog
from agentic_retriever.errors import QueryLogError

WAIT_S = 20


class Sink:
    """Keeps what it is given; can be held up, and can fail for a while."""

    def __init__(self):
        self.kept, self.batches, self.failures = [], [], []
        self.entered, self.go = threading.Event(), threading.Event()
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


def test_all_is_written_in_order_and_in_batches_by_a_thread_of_its_own(sink):
    before = set(threading.enumerate())
    writer = BatchWriter(sink, name="test")
    assert set(threading.enumerate()) <= before
    assert writer.flush(0)
    assert writer.close(0)
    writer = BatchWriter(sink, name="test", capacity=5_000)
    assert all(writer.put(n) for n in range(1_000))
    assert writer.flush(WAIT_S)
    assert sink.kept == list(range(1_000))
    assert len(sink.batches) <= 10
    assert writer.close(WAIT_S)
    assert writer.stats() == LogStats(written=1_000, dropped=0, pending=0)


def test_a_slow_database_costs_entries_and_no_time(sink, writer, caplog):
    sink.go.clear()
    assert writer.put("first")
    assert sink.entered.wait(WAIT_S)
    with within(5):
        taken = sum(writer.put(n) for n in range(2_000))
    assert (taken, writer.stats()) == (10, LogStats(written=0, dropped=1_990, pending=11))
    assert not writer.flush(0.05)
    sink.go.set()
    assert writer.flush(WAIT_S)
    assert sink.kept == ["first", *range(10)]
    assert writer.put("again")
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize(
    ("failures", "lost"),
    [
        ([QueryLogError("gone"), OSError("x"), None], 0),
        *(([error, None], 0) for error in (ValueError("v"), RuntimeError("r"), MemoryError(), RecursionError())),
        ([OSError()] * 6 + [None], 1),
    ],
)
def test_a_short_outage_costs_nothing_and_a_long_one_ends(sink, writer, caplog, monkeypatch, failures, lost):
    monkeypatch.setattr(history, "_RETRY_DELAYS_S", (0.0,) * 5)
    said = str(failures[0]) if isinstance(failures[0], QueryLogError) else type(failures[0]).__name__
    sink.failures = failures
    writer.put("first")
    while writer.stats().pending:
        writer.flush(WAIT_S)
    writer.put("second")
    assert writer.flush(WAIT_S)
    assert (writer.stats().dropped, sink.kept) == (lost, ["first", "second"][lost:])
    told = f"the query history test loses entries: {said}; queries are answered all the same"
    assert [r.getMessage() for r in caplog.records] == [told]


def test_flush_tells_at_once_that_the_database_is_gone(sink, writer):
    sink.failures = [OSError("gone")]
    writer.put(1)
    with within(WAIT_S / 2):
        assert not writer.flush(WAIT_S)
    assert writer.close(WAIT_S)
    assert writer.stats() == LogStats(written=0, dropped=1, pending=0)


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


def test_close_writes_what_waits_and_takes_no_more_and_refused_entries_are_counted(sink):
    writer = BatchWriter(sink, name="test")
    for n in range(700):
        writer.put(n)
    assert writer.close(WAIT_S)
    assert writer.close(0)
    assert len(sink.kept) == 700
    assert not writer.put("late")
    assert writer.stats() == LogStats(written=700, dropped=1, pending=0)
    writer = BatchWriter(lambda batch: len(batch) - 1, name="test")
    writer.put(1)
    writer.put(2)
    assert writer.flush(WAIT_S)
    assert writer.close(WAIT_S)
    assert writer.stats() == LogStats(written=1, dropped=1, pending=0)


def test_close_tries_a_last_time_but_does_not_wait_for_a_database_that_hangs(sink):
    writer = BatchWriter(sink, name="test")
    sink.failures = [OSError(), None]
    writer.put(1)
    assert not writer.flush(WAIT_S)
    assert writer.close(WAIT_S)
    assert sink.kept == [1]
    writer = BatchWriter(sink, name="test")
    sink.go.clear()
    writer.put(1)
    assert sink.entered.wait(WAIT_S)
    with within(WAIT_S / 2):
        assert not writer.close(0.05)
    sink.go.set()
    assert writer.close(WAIT_S)


def test_no_thread_can_be_started(sink, monkeypatch):
    writer = BatchWriter(sink, name="test")
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
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

    in_threads(work, range(16))
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
        assert [found.query for found in again.list()] == ["x"]


PRELUDE = """
import os, sys, threading
from agentic_retriever.catalog import history as writer
from agentic_retriever.catalog.records import LogEntry
from agentic_retriever.catalog.history import QueryLog
place = sys.argv[1]
# The limit that a process waits at its end has a test of its own; a busy machine must not reach it in the others.
writer.EXIT_TIMEOUT_S = 60
"""


def run(code, *args):
    return run_fresh(PRELUDE + textwrap.dedent(code), *args)


def questions(place):
    return sorted(found.query for found in QueryLog(place).list(limit=10_000))


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise SystemExit(3)", 3)])
def test_what_waits_at_the_end_of_the_interpreter_is_written(place, end, code):
    done = run(f"log = QueryLog(place)\nfor n in range(300): log.record(LogEntry(query=str(n)))\n{end}", place)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert questions(place) == sorted(str(n) for n in range(300))


HANG = """
    hang, entered = threading.Event(), threading.Event()
    def write(batch):
        entered.set()
        hang.wait()
    made = writer.BatchWriter(write, name="x")
    for n in range(3): made.put(n)
    entered.wait()
"""


def test_the_end_of_the_interpreter_with_a_database_that_hangs_or_is_gone(tmp_path):
    done = run("writer.EXIT_TIMEOUT_S = 0.2\n" + textwrap.dedent(HANG), tmp_path / "q")
    assert (done.returncode, done.stdout) == (0, "")
    assert history.EXIT_TIMEOUT_S == 2.0
    # What is lost is told, in one line.
    assert re.fullmatch(r"the query history x loses entries: [1-3] were not written .*\n", done.stderr), done.stderr
    (tmp_path / "file").write_text("x")
    code = "log = QueryLog(place)\nfor n in range(300): log.record(LogEntry(query=str(n)))"
    done = run(code, tmp_path / "file" / "q")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert done.stderr.count("loses entries") == 1


def test_recording_while_the_interpreter_ends_is_harmless(place):
    code = """
        import atexit
        log = QueryLog(place)
        atexit.register(lambda: log.record(LogEntry(query="late")))
        log.record(LogEntry(query="early"))
    """
    done = run(code, place)
    assert (done.returncode, done.stderr) == (0, "")
    assert "early" in questions(place)


def test_several_processes_write_one_history(place):
    code = """
        log = QueryLog(place)
        for n in range(100):
            log.record(LogEntry(query=f"{os.getpid()} {n}"))
            if n % 25 == 0:
                log.flush(30)
        assert log.flush(60)
        print(log.stats().written, log.stats().dropped)
    """
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code), str(place)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    said = [process.communicate(timeout=120) for process in running]
    assert (said, len(set(questions(place)))) == ([("100 0\n", "")] * 4, 400)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_a_history_of_its_own(place):
    code = """
        log = QueryLog(place)
        log.record(LogEntry(query="parent before"))
        assert log.flush(30)
        # What waits at the time of the fork is the parent's to write, and its lock is not the child's.
        log.record(LogEntry(query="parent waiting"))
        log._writer._changed.acquire()
        child = os.fork()
        if child == 0:
            assert log.stats().pending == 0
            log.record(LogEntry(query="child"))
            done = log.flush(30) and log.stats().written == 1 and len(log.list()) >= 2
            log.close()
            os._exit(0 if done else 1)
        log._writer._changed.release()
        _, status = os.waitpid(child, 0)
        log.record(LogEntry(query="parent after"))
        assert log.flush(30)
        print(os.waitstatus_to_exitcode(status), log.stats().written, log.stats().dropped)
    """
    done = run(code, place)
    assert (done.stdout, done.returncode) == ("0 3 0\n", 0), done.stderr
    assert questions(place) == ["child", "parent after", "parent before", "parent waiting"]


def test_sqlalchemy_is_loaded_by_the_first_entry_alone(tmp_path):
    code = """
        import agentic_retriever, agentic_retriever.cli.app
        from agentic_retriever.config import RouterConfig
        from agentic_retriever.catalog.history import open_query_log
        log = open_query_log(RouterConfig(data_dir=place))
        print("sqlalchemy" in sys.modules)
        log.record(LogEntry(query="x"))
        log.flush(30)
        print("sqlalchemy" in sys.modules, "psycopg" in sys.modules)
    """
    done = run(code, tmp_path)
    assert done.stdout.split() == ["False", "True", "False"], done.stderr

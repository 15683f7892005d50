from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest

from agentic_retriever import querylog
from agentic_retriever.querylog import QueryLog

OPTIONS = {"capture_output": True, "text": True, "timeout": 120}
PRELUDE = """
import os, sys, threading
from agentic_retriever import querylog as writer
from agentic_retriever.querylog import LogEntry, QueryLog
place = sys.argv[1]
# The limit that a process waits at its end has a test of its own; a busy machine must not reach it in the others.
writer.EXIT_TIMEOUT_S = 60
"""


def run(code, *args):
    return subprocess.run([sys.executable, "-c", PRELUDE + textwrap.dedent(code), *map(str, args)], **OPTIONS)


def questions(place):
    return sorted(found.query for found in QueryLog(place).recent(10_000))


def test_what_waits_at_the_end_of_the_interpreter_is_written(place):
    done = run("log = QueryLog(place)\nfor n in range(300): log.record(LogEntry(query=str(n)))", place)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert questions(place) == sorted(str(n) for n in range(300))


def test_the_end_of_the_interpreter_after_an_error(place):
    done = run("log = QueryLog(place)\nlog.record(LogEntry(query='x'))\nraise SystemExit(3)", place)
    assert (done.returncode, done.stderr) == (3, "")
    assert questions(place) == ["x"]


HANG = """
    hang, entered = threading.Event(), threading.Event()
    def write(batch):
        entered.set()
        hang.wait()
    made = writer.BatchWriter(write, name="x")
    for n in range(3): made.put(n)
    entered.wait()
"""


def test_the_end_of_the_interpreter_does_not_wait_for_a_database_that_hangs(tmp_path):
    done = run("writer.EXIT_TIMEOUT_S = 0.2\n" + textwrap.dedent(HANG), tmp_path / "q")
    assert (done.returncode, done.stdout) == (0, "")
    # What is lost is told, in one line.
    assert re.fullmatch(r"the query history x loses entries: [1-3] were not written .*\n", done.stderr), done.stderr


def test_the_end_of_the_interpreter_waits_two_seconds_at_most():
    assert querylog.EXIT_TIMEOUT_S == 2.0


def test_the_end_of_the_interpreter_with_a_database_that_is_gone(tmp_path):
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
    assert said == [("100 0\n", "")] * 4
    assert len(set(questions(place))) == 400


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
            done = log.flush(30) and log.stats().written == 1 and len(log.recent()) >= 2
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


def test_sqlalchemy_is_loaded_by_the_first_entry_alone():
    code = """
        import agentic_retriever, agentic_retriever.cli.app
        from agentic_retriever.config import RouterConfig
        from agentic_retriever.querylog import open_query_log
        log = open_query_log(RouterConfig(data_dir=place))
        print("sqlalchemy" in sys.modules)
        log.record(LogEntry(query="x"))
        log.flush(30)
        print("sqlalchemy" in sys.modules, "psycopg" in sys.modules)
    """
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        done = run(code, folder)
    assert done.stdout.split() == ["False", "True", "False"], done.stderr

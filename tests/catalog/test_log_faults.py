import os
import shutil
import socket
import sqlite3
import threading
from contextlib import closing, contextmanager
from datetime import timedelta

import pytest
import sqlalchemy as sa
from log_material import EPOCH, entry, opened, write
from sqlalchemy import event
from waiting import in_threads, within

from agentic_retriever.catalog import database as engine
from agentic_retriever.catalog.history import QueryLog
from agentic_retriever.catalog.history_database import MAX_TEXT_CHARS
from agentic_retriever.errors import DeadlineExceededError, QueryLogError

WAIT_S = 20


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(engine, "LOG_BUSY_TIMEOUT_S", 0.05)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "queries.sqlite"


def filled(file, count=3):
    with opened(file) as log:
        write(log, *map(entry, range(count)))


def change(file, *statements):
    with closing(sqlite3.connect(file)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def questions(log):
    return [found.query for found in log.list(limit=5_000)]


@contextmanager
def on_connecting(set_up):
    """Set up every connection to a SQLite file."""
    event.listen(sa.Engine, "connect", set_up)
    try:
        yield
    finally:
        event.remove(sa.Engine, "connect", set_up)


def assert_lost(log, caplog):
    """Recording neither fails nor waits, entries are counted as dropped, and there is one warning."""
    for number in range(5):
        with within(5):
            log.record(entry(number))
        assert not log.flush(WAIT_S)
    log.close(WAIT_S)
    assert (log.stats().written, log.stats().dropped) == (0, 5)
    assert len([r for r in caplog.records if r.name.startswith("agentic_retriever")]) == 1


def test_sixteen_threads_and_two_hundred_records_each(place):
    with opened(place) as log:
        start = threading.Barrier(16)

        def work(who):
            start.wait(WAIT_S)
            for number in range(200):
                log.record(entry(who * 200 + number))

        in_threads(work, range(16))
        assert log.flush(60)
        assert (log.analytics().queries, len(set(questions(log)))) == (3_200, 3_200)
        assert (log.stats().written, log.stats().dropped) == (3_200, 0)


def test_another_program_that_locks_the_file_costs_nothing(file):
    filled(file)
    with closing(sqlite3.connect(file, isolation_level=None)) as other, opened(file) as log:
        other.execute("BEGIN IMMEDIATE")
        log.record(entry(7))
        assert not log.flush(WAIT_S)
        assert len(questions(log)) == 3  # reading goes on meanwhile
        with pytest.raises(QueryLogError, match="another program holds it"):
            log.check()
        other.execute("ROLLBACK")
        assert log.flush(WAIT_S)
        assert questions(log)[0] == "question 7"


def test_a_lock_that_lasts_costs_the_entries(file, caplog):
    filled(file)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert_lost(opened(file), caplog)


def test_a_file_deleted_while_running_is_made_anew_and_a_folder_is_not(file, tmp_path):
    with opened(file) as log:
        write(log, entry(1))
        for path in file.parent.iterdir():
            path.unlink()
        write(log, entry(2))
        assert questions(log) == ["question 2"]
    folder = tmp_path / "data"
    with opened(folder / "deep" / "q.sqlite") as log:
        write(log, entry(1))
        shutil.rmtree(folder)
        log.record(entry(2))
        assert not log.flush(WAIT_S)
    assert not folder.exists()
    assert log.stats().dropped == 1


def test_no_file_can_be_made(tmp_path, caplog):
    (tmp_path / "file").write_text("x")
    assert_lost(opened(tmp_path / "file" / "q.sqlite"), caplog)
    (tmp_path / "folder").mkdir()
    with pytest.raises(QueryLogError, match="folder"):
        opened(tmp_path / "folder").check()
    with pytest.raises(QueryLogError):
        opened(tmp_path / "folder").analytics()


def test_a_database_that_refuses_to_be_written(file, caplog):
    filled(file)
    with on_connecting(lambda connection, _record: connection.execute("PRAGMA query_only = ON")):
        with pytest.raises(QueryLogError, match="permissions"):
            opened(file).check()
        assert len(questions(opened(file))) == 3
        assert_lost(opened(file), caplog)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_may_only_be_read(file, caplog):
    filled(file)
    file.chmod(0o400)
    with pytest.raises(QueryLogError, match="permissions"):
        opened(file).check()
    assert_lost(opened(file), caplog)


def test_a_full_disk_costs_the_entries_and_what_was_written_stays(file, caplog):
    filled(file)

    def limit(connection, _record):
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")

    with on_connecting(limit):
        log = opened(file)
        for number in range(30):
            log.record(entry(100 + number, query="x" * MAX_TEXT_CHARS))
        assert not log.flush(WAIT_S)
        log.close(WAIT_S)
        assert (log.stats().written, log.stats().dropped) == (0, 30)
        assert "full" in caplog.text
    with opened(file) as log:
        assert len(questions(log)) == 3
        write(log, entry(9))


READS = (lambda log: log.check(), lambda log: log.analytics(), lambda log: log.list())


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_damaged_file_is_told_by_the_check_and_loses_only_the_history(file, content, caplog):
    file.write_bytes(content)
    for read in READS:
        with pytest.raises(QueryLogError, match=r"queries\.sqlite"):
            read(opened(file))
    assert_lost(opened(file), caplog)
    assert file.read_bytes() == content


def test_damage_in_the_middle_is_found_by_the_check(file):
    filled(file, 500)
    content = bytearray(file.read_bytes())
    half = len(content) // 2
    content[half : half + 8192] = b"\xa5" * 8192
    file.write_bytes(content)
    with pytest.raises(QueryLogError, match="damaged"):
        opened(file).check()


def test_a_newer_structure_is_left_alone(file, caplog):
    filled(file)
    change(file, "UPDATE agentic_retriever_revision SET version_num = '9999'")
    for read in READS:
        with pytest.raises(QueryLogError, match="structure 9999, this version knows up to"):
            read(opened(file))
    assert_lost(opened(file), caplog)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM agentic_retriever_queries").fetchone() == (3,)


@pytest.mark.parametrize("lost", ["agentic_retriever_revision", "agentic_retriever_meta WHERE name = 'salt'"])
def test_lost_facts_of_the_structure_are_damage(file, lost):
    filled(file)
    change(file, f"DELETE FROM {lost}")
    with pytest.raises(QueryLogError, match="damaged"):
        opened(file).check()


def test_a_lost_confirmation_does_not_count_twice_and_without_limits_all_is_kept(place):
    with opened(place, retention_days=None, max_rows=None) as log:
        write(log, entry(1, recorded_at=EPOCH - timedelta(days=9_999)))
        log.record(entry(1))  # the same entry_id: the batch is tried again
        write(log, entry(2))
        assert questions(log) == ["question 2", "question 1"]


def test_retention_by_age(place):
    now = [EPOCH]
    with opened(place, retention_days=2, clock=lambda: now[0]) as log:
        for number in range(3):
            write(log, entry(number, recorded_at=EPOCH + timedelta(days=number)))
        assert len(questions(log)) == 3
    now[0] = EPOCH + timedelta(days=3)
    with opened(place, retention_days=2, clock=lambda: now[0]) as log:
        write(log, entry(9, recorded_at=now[0]))
        assert questions(log) == ["question 9", "question 2", "question 1"]


def test_retention_by_number_keeps_the_newest(place):
    with opened(place, max_rows=50) as log:
        for first in range(0, 3_000, 100):
            write(log, *map(entry, range(first, first + 100)))
        kept = questions(log)
        assert 50 <= len(kept) <= 50 + 256
        assert kept == [f"question {n}" for n in range(2_999, 2_999 - len(kept), -1)]
    with opened(place, max_rows=50) as log:
        write(log, entry(3_000))
        assert len(questions(log)) == 50


def test_postgresql_that_is_not_there(caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        url = f"postgresql://u:canary-5d1@127.0.0.1:{taken.getsockname()[1]}/db"
        pytest.importorskip("psycopg")
        assert_lost(opened(url), caplog)
        with pytest.raises(QueryLogError, match="check the server"):
            opened(url).analytics()
    assert "canary" not in caplog.text


def test_postgresql_that_never_answers(caplog):
    pytest.importorskip("psycopg")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        log = opened(f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/db")
        with within(WAIT_S / 2):
            log.record(entry(1))
            assert not log.flush(0.05)
            with pytest.raises(DeadlineExceededError):
                log.check(0.1)
            log.close(0.05)
        log.close(WAIT_S)  # the connection attempt has its own limit
        assert log.stats().dropped == 1


def test_postgresql_that_may_only_be_read(postgres_url, caplog):
    with opened(postgres_url) as log:
        log.record(entry(1))
    read_only = postgres_url + "%20-cdefault_transaction_read_only%3Don"
    with pytest.raises(QueryLogError, match="permissions"):
        opened(read_only).check()
    assert_lost(opened(read_only), caplog)
    assert questions(opened(read_only)) == ["question 1"]


def test_postgresql_by_any_of_its_names(postgres_url):
    for scheme in ("postgres", "postgresql+psycopg", "POSTGRESQL"):
        with opened(scheme + postgres_url.removeprefix("postgresql")) as log:
            log.record(entry(1, entry_id=scheme))
    assert opened(postgres_url).analytics().queries == 3


def test_a_file_by_its_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("sqlite:///a.sqlite", f"sqlite:///{tmp_path}/b.sqlite", "c.sqlite", tmp_path / "d.sqlite"):
        with opened(place) as log:
            log.record(entry(1))
    assert {path.name for path in tmp_path.iterdir()} == {"a.sqlite", "b.sqlite", "c.sqlite", "d.sqlite"}


def test_psycopg_missing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(QueryLogError, match=r"agentic-retriever\[postgres\]"):
        QueryLog("postgresql://localhost/x").check()


def test_a_clock_that_fails_costs_the_entry(tmp_path):
    with QueryLog(tmp_path / "q", clock=lambda: next(iter(()))) as log:
        log.record(entry(1, recorded_at=None))
        assert log.stats().dropped == 1

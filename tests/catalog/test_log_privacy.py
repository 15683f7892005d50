import hashlib
import hmac
import logging
import traceback
from pathlib import Path

import pytest
from log_material import EPOCH, answer, entry, opened, route, write

from agentic_retriever.catalog.address import Address
from agentic_retriever.catalog.history import QueryLog, open_query_log
from agentic_retriever.catalog.history_database import hash_of
from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import AgenticRetrieverError, ConfigError
from agentic_retriever.schema import Degradation

CANARY = "canary-7f3a"
WAIT_S = 20


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def asked(text):
    lost = Degradation(step="metadata.filter", reason=f"nothing satisfies: {text}", fallback=f"without {text}")
    return answer(route=route(text), degraded=(lost,), understood=(text,))


@pytest.mark.parametrize("mode", ["hashed", "no_text", "plain"])
def test_a_question_is_in_the_files_only_where_it_is_asked_for(tmp_path, mode):
    with QueryLog(tmp_path / "q.sqlite", text=mode) as log:
        log.record_answer(asked(f"who is {CANARY}"))
        log.record_answer(None, error=ValueError(CANARY), query=CANARY)
        assert log.flush(WAIT_S)
        assert (CANARY.encode() in everything_in(tmp_path)) is (mode == "plain")
        failed, answered = log.list()
        for shown in (failed.query, answered.query, answered.degraded[0].reason):
            assert (CANARY in shown) is (mode == "plain")
        assert (CANARY in str([failed.to_dict(), answered.to_dict()])) is (mode == "plain")
        assert [bool(e.query_hash) for e in (failed, answered)] == [mode == "hashed"] * 2
        assert log.analytics().fallbacks == {"metadata.filter": 1}
    assert (CANARY.encode() in everything_in(tmp_path)) is (mode == "plain")


def test_a_question_is_nowhere_in_postgresql(postgres_url):
    import psycopg

    with QueryLog(postgres_url, text="hashed") as log:
        log.record_answer(asked(CANARY))
        assert log.flush(WAIT_S)
    with psycopg.connect(postgres_url) as connection:
        kept = str(connection.execute("SELECT * FROM agentic_retriever_queries").fetchall())
    assert "metadata.filter" in kept
    assert CANARY not in kept


def test_hashes_are_standard_and_tell_equal_questions_within_one_database_only(tmp_path):
    hashes = []
    for name in ("a", "b"):
        with QueryLog(tmp_path / name, text="hashed") as log:
            for number, text in enumerate(["What is NEW?", " what  is new? ", "What is old?"]):
                log.record(entry(number, query=text, recorded_at=None))
            hashes.append([e.query_hash for e in log.list()])
    for old, same, new in hashes:
        assert same == new != old
        assert len(new) == 64
    assert not set(hashes[0]) & set(hashes[1])
    assert hash_of("Ａb  C", b"key") == hmac.new(b"key", b"ab c", hashlib.sha256).hexdigest()
    assert len(hash_of("\ud800", b"key")) == 64


def test_no_question_is_left_in_the_file_by_retention_nor_in_the_log_output(tmp_path, caplog):
    now = [EPOCH]
    with opened(tmp_path / "q.sqlite", retention_days=1, clock=lambda: now[0]) as log:
        write(log, entry(1, query=CANARY * 50, recorded_at=EPOCH))
    assert (tmp_path / "q.sqlite").stat().st_mode & 0o077 == 0, "only the owner may read it"
    assert CANARY.encode() in everything_in(tmp_path)
    now[0] = EPOCH.replace(month=6)
    with opened(tmp_path / "q.sqlite", retention_days=1, clock=lambda: now[0]) as log:
        log.record(entry(2, recorded_at=now[0]))
    assert CANARY.encode() not in everything_in(tmp_path)
    caplog.set_level(logging.DEBUG)
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "q.sqlite", tmp_path / "file" / "q"):
        with QueryLog(place) as log:
            log.record_answer(asked(CANARY))
            log.record(entry(1, query=CANARY, citations=10**40))
            log.flush(WAIT_S)
    assert CANARY not in caplog.text


UNREADABLE = [
    f"postgresql://u:{CANARY}/x@h/db", f"postgresql://u:1{CANARY}@x@h/db", f"postgresql://u:5/{CANARY}@h/db",
    f"postgresql://u:5?{CANARY}@h/db", f"postgresql://u:x#{CANARY}@h/db", f"postgresql://u:[{CANARY}@h/db",
    f"postgresql://h:{CANARY}/db", f"mysql://u:{CANARY}@h/db", f"sqlite:///x?key={CANARY}", f"u:{CANARY}@h/db",
    f"postgresql:u:{CANARY}@h/db", f"{CANARY}://u@h/db",
]  # fmt: skip
NO_PLACES = ["", "  ", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://x", "oracle://h/x"]


def told(err):
    return "".join(traceback.format_exception(type(err), err, err.__traceback__)) + repr(err)


@pytest.mark.parametrize("place", NO_PLACES)
def test_places_that_cannot_be_one(place):
    with pytest.raises(ConfigError):
        Address.of(place)


@pytest.mark.parametrize("url", UNREADABLE)
def test_an_unreadable_url_is_a_config_error_without_its_password(url):
    for make in (Address.of, lambda url: open_query_log(RouterConfig(database_url=url))):
        with pytest.raises(ConfigError) as caught:
            make(url)
        # The test's own source lines are in a traceback, its values are not.
        assert CANARY not in told(caught.value)


@pytest.mark.parametrize("url", [
    f"postgresql://u:{CANARY}@127.0.0.1:1/db", f"postgres://u:{CANARY}@no.such.host.invalid/db",
    f"postgresql://u@127.0.0.1:1/db?password={CANARY}", f"postgresql://u:{CANARY}@127.0.0.1:1/db?{CANARY}=1",
    f"postgresql://u:a%40{CANARY}:b%2F@127.0.0.1:1/db",
])  # fmt: skip
def test_a_password_shows_nowhere(url, caplog):
    pytest.importorskip("psycopg")
    caplog.set_level(logging.DEBUG)
    config = RouterConfig(database_url=url)
    log = open_query_log(config)
    shown = [repr(log), str(log), repr(config), str(config.to_dict()), repr(Address.of(url)), str(Address.of(url))]
    for call in (log.check, log.analytics, log.list):
        with pytest.raises(AgenticRetrieverError) as caught:
            call()
        shown.append(told(caught.value))
    log.record(entry(1))
    assert not log.flush(WAIT_S)
    log.close(WAIT_S)
    shown.append(caplog.text)
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
    assert not [text for text in shown if CANARY in text]


def test_what_a_driver_says_of_the_password_is_starred_out():
    address = Address.of("postgresql://u:p%40ss@h:5/db?sslpassword=second&sslmode=require")
    assert str(address) == "postgresql://h:5/db"
    assert str(Address.of("postgresql://u:x@[::1]:5/db")) == "postgresql://[::1]:5/db"
    assert address.redacted("p@ss p%40ss second require") == "******** ******** ******** require"


def test_settings_lead_to_a_history_and_show_no_url(tmp_path):
    assert open_query_log(RouterConfig(data_dir=tmp_path, query_log="none")) is None
    assert str(tmp_path / "catalog.sqlite") in repr(open_query_log(RouterConfig(data_dir=tmp_path)))
    assert not list(tmp_path.iterdir())
    free = open_query_log(RouterConfig(data_dir=tmp_path, query_log_retention_days=0))
    free.record(entry(1))
    assert free.flush(WAIT_S)
    assert len(free.list()) == 1
    free.close()
    assert str(RouterConfig(database_url=f"postgresql://u:{CANARY}@h/d").database_url) == "********"
    for gone in ("sqlite", f"postgresql://u:{CANARY}@h/d"):
        with pytest.raises(ConfigError, match="set database_url") as caught:
            RouterConfig(query_log=gone)
        assert CANARY not in told(caught.value)
    with pytest.raises(ConfigError, match="query_log: plain, hashed, no_text or none"):
        RouterConfig(query_log_text="plain")

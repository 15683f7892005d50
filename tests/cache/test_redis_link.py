from __future__ import annotations

import logging
import socket
import threading
import time
import traceback

import pytest
from redis_servers import MISBEHAVIOURS, free_port, misbehaving

from agentic_retriever.config import RouterConfig, Secret
from agentic_retriever.errors import ConfigError
from agentic_retriever.redis_link import Breaker, RedisLink, RedisStore, Verdict, open_link


def took(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def until(condition, seconds=5.0):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "did not happen in time"
        threading.Event().wait(0.005)


class TestBreaker:
    def test_opens_with_the_first_failure_and_lets_one_probe_after_the_cooldown(self, breaker, clock):
        assert breaker.ask() is Verdict.CALL
        assert breaker.failed()
        assert not breaker.failed()
        assert breaker.ask() is Verdict.SKIP
        clock.now += 1.0
        assert [breaker.ask() for _ in range(3)] == [Verdict.PROBE, Verdict.SKIP, Verdict.SKIP]
        breaker.probed(ok=True)
        assert breaker.ask() is Verdict.CALL
        assert breaker.openings == 1

    def test_waits_longer_with_each_failed_probe_up_to_a_limit(self, breaker, clock):
        breaker.failed()
        clock.now += 1.0
        for wait in (2.0, 4.0, 8.0, 8.0):
            assert breaker.ask() is Verdict.PROBE
            breaker.probed(ok=False)
            clock.now += wait - 0.01
            assert breaker.ask() is Verdict.SKIP
            clock.now += 0.01
        assert breaker.ask() is Verdict.PROBE
        breaker.probed(ok=True)
        breaker.failed()
        clock.now += 1.0
        assert breaker.ask() is Verdict.PROBE

    def test_a_late_failure_of_an_old_call_changes_nothing(self, breaker, clock):
        breaker.failed()
        clock.now += 0.9
        breaker.failed()
        clock.now += 0.1
        assert breaker.ask() is Verdict.PROBE


class TestMisbehavingServers:
    @pytest.mark.parametrize("how", MISBEHAVIOURS)
    def test_costs_little_once_and_nothing_afterwards(self, links, breaker, how, caplog):
        with misbehaving(MISBEHAVIOURS[how]) as url:
            store = RedisStore(links(url, breaker=breaker), kind="answers")
            first = took(lambda: store.get("k"))
            later = sorted(took(lambda: store.get("k")) for _ in range(200))
            written = took(lambda: [store.set("k", b"1", 10) for _ in range(100)])
        assert first < 1.0  # 0.2 s, and patience with a busy machine
        assert later[190] < 0.05
        assert written < 0.5
        stats = store.stats()
        assert (stats.up, stats.hits, stats.misses, stats.failures, stats.skipped >= 200) == (False, 0, 201, 1, True)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "canary-secret" not in caplog.text

    @pytest.mark.parametrize("how", MISBEHAVIOURS)
    def test_no_thread_is_left_waiting(self, links, breaker, how):
        with misbehaving(MISBEHAVIOURS[how]) as url:
            link = links(url, breaker=breaker)
            link.call(lambda client: client.get("k"), default=None)
            until(lambda: not any(thread.name == f"Redis at {link.address}" for thread in threading.enumerate()))

    def test_nobody_listens(self, links, breaker, caplog):
        link = links(f"redis://127.0.0.1:{free_port()}", breaker=breaker)
        calls = [took(lambda: link.call(lambda client: client.get("k"), default="none")) for _ in range(100)]
        assert calls[0] < 1.0
        assert sorted(calls)[95] < 0.05
        assert link.call(lambda client: client.get("k"), default="none") == "none"
        assert len(caplog.records) == 1

    def test_connections_are_never_accepted(self, links, breaker):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            address = listener.getsockname()
            crowd = [socket.socket() for _ in range(4)]
            for one in crowd:
                one.setblocking(False)
                one.connect_ex(address)
            try:
                link = links(f"redis://127.0.0.1:{address[1]}", breaker=breaker)
                assert took(lambda: link.call(lambda client: client.get("k"), default=None)) < 1.0
                assert not link.stats().up
            finally:
                for one in crowd:
                    one.close()

    def test_many_callers_of_a_hanging_server_wait_at_the_same_time(self, links, breaker):
        with misbehaving(MISBEHAVIOURS["hangs"]) as url:
            link = links(url, breaker=breaker)
            threads = [
                threading.Thread(target=link.call, args=(lambda client: client.get("k"),), kwargs={"default": None})
                for _ in range(60)
            ]
            assert took(lambda: [thread.start() for thread in threads] + [thread.join() for thread in threads]) < 2.0
            assert link.stats().openings == 1

    def test_a_probe_costs_its_caller_nothing(self, links, breaker, clock):
        with misbehaving(MISBEHAVIOURS["hangs"]) as url:
            link = links(url, breaker=breaker, connect_timeout_s=1.0)
            link.call(lambda client: client.get("k"), default=None)
            for _ in range(5):
                clock.now += 100
                assert took(lambda: link.call(lambda client: client.get("k"), default=None)) < 0.5
            assert not link.stats().up


class TestRealServer:
    def test_stopped_and_started_again(self, own_server, links, breaker, clock, caplog):
        caplog.set_level(logging.INFO, "agentic_retriever")
        server = own_server()
        store = RedisStore(links(server.url, timeout_s=5.0, breaker=breaker), kind="answers")
        store.set("k", b'"before"', 60)
        assert store.flush(5)
        assert store.get("k").data == b'"before"'
        server.kill()
        assert store.get("k") is None
        assert not store.stats().up
        server.start()
        assert store.get("k") is None, "the cooldown is not over"
        clock.now += 1.0
        store.get("k")
        until(lambda: store.stats().up)
        store.set("k", b'"after"', 60)
        assert store.flush(5)
        assert store.get("k").data == b'"after"'
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]

    def test_frozen_and_thawed(self, own_server, links, breaker, clock):
        server = own_server()
        link = links(server.url, timeout_s=0.2, breaker=breaker)
        assert link.call(lambda client: client.ping(), default=False)
        server.freeze()
        assert took(lambda: link.call(lambda client: client.ping(), default=False)) < 1.0
        assert took(lambda: link.call(lambda client: client.ping(), default=False)) < 0.1
        server.thaw()
        clock.now += 1.0
        link.call(lambda client: client.ping(), default=False)
        until(lambda: link.stats().up)
        assert link.call(lambda client: client.ping(), default=False)

    def test_full(self, own_server, links, breaker, caplog):
        server = own_server("--maxmemory", "1mb", "--maxmemory-policy", "noeviction")
        link = links(server.url, timeout_s=5.0, breaker=breaker)
        store = RedisStore(link, kind="answers")
        for number in range(5):
            store.set(str(number), b'"%s"' % (b"x" * 500_000), 60)
        assert store.flush(5)
        stats = store.stats()
        assert stats.up, "a full server still answers"
        assert stats.dropped > 0
        assert store.get("k") is None
        assert [record.getMessage().count("OutOfMemoryError") for record in caplog.records] == [1]
        assert "xxx" not in caplog.text

    def test_wrong_password(self, own_server, links, breaker, caplog):
        server = own_server("--requirepass", "right")
        url = server.url.replace("redis://", "redis://:canary-wrong@")
        store = RedisStore(links(url, timeout_s=5.0, breaker=breaker), kind="answers")
        assert store.get("k") is None
        assert "AuthenticationError" in caplog.text
        assert "canary-wrong" not in caplog.text + repr(store)

    def test_right_password_and_database(self, own_server, links):
        server = own_server("--requirepass", "right")
        url = server.url.replace("redis://", "redis://:right@").replace("/0", "/3?decode_responses=true")
        store = RedisStore(links(url, timeout_s=5.0), kind="answers")
        store.set("k", "ไทย".encode(), 60)
        assert store.flush(5)
        assert store.get("k").data.decode() == "ไทย"


class TestConstruction:
    def test_calls_nobody(self, links):
        before = threading.active_count()
        link = links("redis://203.0.113.1:6379")
        assert threading.active_count() <= before
        assert link.stats().calls == link.stats().failures == 0

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("redis://:canary@cache.example:6380/2", "cache.example:6380/2"),
            ("rediss://user:canary@cache.example", "cache.example:6379/0"),
            ("redis://:canary@[::1]:7000", "[::1]:7000/0"),
            ("unix:///run/redis.sock?password=canary", "/run/redis.sock"),
        ],
    )
    def test_the_address_shows_no_secret(self, links, url, shown):
        link = links(Secret(url))
        assert link.address == shown
        assert "canary" not in repr(link) + repr(RedisStore(link, kind="answers"))

    @pytest.mark.parametrize(
        "url", ["", "localhost:6379", "http://:canary@host", "redis://", "redis://:canary@host:port", "redis://[::1",
                "redis://:canary@host:6379?socket_timeout=canary"]
    )  # fmt: skip
    def test_a_wrong_url_is_told_without_showing_it(self, links, url):
        with pytest.raises(ConfigError, match="redis_url") as caught:
            links(url)
        assert "canary" not in "".join(traceback.format_exception(caught.value))

    def test_the_url_cannot_undo_the_time_limits(self, breaker, links):
        with misbehaving(MISBEHAVIOURS["hangs"]) as url:
            link = links(url + "?socket_timeout=60&socket_connect_timeout=60", breaker=breaker)
            assert took(lambda: link.call(lambda client: client.get("k"), default=None)) < 1.0

    def test_open_link_reads_the_settings(self, tmp_path):
        config = RouterConfig(data_dir=tmp_path)
        assert open_link(config) is None
        made = open_link(config.with_changes(redis_url="redis://h:1/2", redis_timeout_ms=400))
        assert (made.address, made.timeout_s, made.connect_timeout_s) == ("h:1/2", 0.4, 0.4)

    def test_open_link_without_the_package(self, tmp_path, monkeypatch, caplog):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert open_link(RouterConfig(data_dir=tmp_path, redis_url=Secret("redis://:canary@h"))) is None
        assert "agentic-retriever[redis]" in caplog.text
        assert "canary" not in caplog.text

    def test_default_breaker_uses_real_time(self):
        assert Breaker().ask() is Verdict.CALL

    def test_a_foreign_failure_of_any_kind_is_a_miss(self, links, breaker):
        link = links("redis://127.0.0.1:1", breaker=breaker)

        def broken(client):
            raise RuntimeError("canary")

        assert link.call(broken, default=7) == 7
        assert isinstance(link, RedisLink)

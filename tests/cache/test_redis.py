"""Calls to a Redis server, good and bad ones; values and vectors on it."""

import contextlib
import json
import logging
import pickle
import socket
import threading
import time
import traceback
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis_servers import MISBEHAVIOURS, free_port, misbehaving
from waiting import in_threads, wait_until

from agentic_retriever.config import RouterConfig, Secret
from agentic_retriever.embeddings import EmbeddingModel, text_hash
from agentic_retriever.errors import ConfigError
from agentic_retriever.redis import RedisStore, RedisVectorCache, decode_vector, encode_vector, open_link, seal, unseal
from agentic_retriever.testing import FakeEmbedding


def took(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def put(store, key, data, ttl_s=60):
    """Set a value, and see that it is written."""
    store.set(key, data, ttl_s)
    assert store.flush(5)


def ask(link):
    return link.call(lambda client: client.get("k"), default="none")


def ping(link):
    return link.call(lambda client: client.ping(), default=False)


class TestMisbehavingServers:
    @pytest.mark.parametrize("how", MISBEHAVIOURS)
    def test_costs_little_once_and_nothing_afterwards(self, links, breaker, how, on_redis, caplog):
        with misbehaving(MISBEHAVIOURS[how]) as url:
            link = links(url, breaker=breaker)
            store, cache = RedisStore(link, kind="answers"), on_redis(link)
            first = took(lambda: store.get("k"))
            later = sorted(took(lambda: store.get("k")) for _ in range(200))
            written = took(lambda: [store.set("k", b"1", 10) for _ in range(100)])
            cached = sorted(took(lambda i=i: cache.get_or_compute(str(i), lambda: i)) for i in range(100))
            model = EmbeddingModel(FakeEmbedding(), name="fake", shared=RedisVectorCache(link))
            assert model.embed_query("the cat").shape == (32,)
            assert model.embed_passages([str(i) for i in range(200)])[1] == 200
            model.close()
            # No thread is left waiting for the server.
            wait_until(lambda: not any(thread.name == f"Redis at {link.address}" for thread in threading.enumerate()))
        assert first < 1.0  # 0.2 s, and patience with a busy machine
        assert max(later[190], cached[95]) < 0.05
        assert written < 0.5
        stats = store.stats()
        assert (stats["up"], stats["hits"], stats["misses"], stats["failures"]) == (False, 0, 201, 1)
        assert stats["skipped"] >= 200
        assert (cache.stats().misses, cache.stats().store_errors) == (100, 0)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "canary-secret" not in caplog.text

    def test_nobody_listens_and_a_foreign_failure_of_any_kind_is_a_miss(self, links, breaker, caplog):
        link = links(f"redis://127.0.0.1:{free_port()}", breaker=breaker)
        calls = [took(lambda: ask(link)) for _ in range(100)]
        assert calls[0] < 1.0
        assert sorted(calls)[95] < 0.05
        assert (ask(link), len(caplog.records)) == ("none", 1)
        assert links("redis://127.0.0.1:1").call(lambda client: 1 / 0, default=7) == 7

    def test_connections_are_never_accepted(self, links, breaker):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            address = listener.getsockname()
            with contextlib.ExitStack() as crowd:
                for _ in range(4):
                    one = crowd.enter_context(socket.socket())
                    one.setblocking(False)
                    one.connect_ex(address)
                link = links(f"redis://127.0.0.1:{address[1]}", breaker=breaker)
                assert took(lambda: ask(link)) < 1.0
                assert not link.is_up

    def test_many_callers_of_a_hanging_server_wait_at_the_same_time(self, links, breaker, caplog):
        with misbehaving(MISBEHAVIOURS["hangs"]) as url:
            link = links(url, breaker=breaker)
            assert took(lambda: in_threads(lambda _i: ask(link), range(60))) < 2.0
        assert link.stats()["openings"] == len(caplog.records) == 1

    def test_a_probe_costs_its_caller_nothing_and_the_url_cannot_undo_the_time_limits(self, links, breaker, clock):
        with misbehaving(MISBEHAVIOURS["hangs"]) as url:
            link = links(url, breaker=breaker, connect_timeout_s=1.0)
            ask(link)
            for _ in range(5):
                clock.now += 100
                assert took(lambda: ask(link)) < 0.5
            assert not link.is_up
            assert took(lambda: ask(links(url + "?socket_timeout=60&socket_connect_timeout=60"))) < 1.0


class TestOwnServer:
    def test_stopped_and_started_again(self, own_server, links, breaker, clock, caplog):
        caplog.set_level(logging.INFO, "agentic_retriever")
        server = own_server()
        link = links(server.url, timeout_s=5.0, breaker=breaker)
        store = RedisStore(link, kind="answers")
        put(store, "k", b'"before"')
        assert store.get("k")[0] == b'"before"'
        server.kill()
        assert store.get("k") is None
        assert not link.is_up
        server.start()
        assert store.get("k") is None, "the cooldown is not over"
        clock.now += 1.0
        store.get("k")
        wait_until(lambda: link.is_up)
        put(store, "k", b'"after"')
        assert store.get("k")[0] == b'"after"'
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]

    def test_frozen_and_thawed(self, own_server, links, breaker, clock):
        server = own_server()
        link = links(server.url, timeout_s=0.2, breaker=breaker)
        assert ping(link)
        server.freeze()
        assert took(lambda: ping(link)) < 1.0
        assert took(lambda: ping(link)) < 0.1
        server.thaw()
        clock.now += 1.0
        ping(link)
        wait_until(lambda: link.is_up)
        assert ping(link)

    def test_full(self, own_server, links, breaker, caplog):
        server = own_server("--maxmemory", "1mb", "--maxmemory-policy", "noeviction")
        store = RedisStore(links(server.url, timeout_s=5.0, breaker=breaker), kind="answers")
        for number in range(5):
            put(store, str(number), b'"%s"' % (b"x" * 500_000))
        stats = store.stats()
        assert stats["up"], "a full server still answers"
        assert stats["dropped"] > 0
        assert store.get("k") is None
        assert [record.getMessage().count("OutOfMemoryError") for record in caplog.records] == [1]
        assert "xxx" not in caplog.text

    def test_passwords(self, own_server, links, breaker, caplog):
        server = own_server("--requirepass", "right")
        url = server.url.replace("redis://", "redis://:canary-wrong@")
        store = RedisStore(links(url, timeout_s=5.0, breaker=breaker), kind="answers")
        assert store.get("k") is None
        assert "AuthenticationError" in caplog.text
        assert "canary-wrong" not in caplog.text + repr(store)
        url = server.url.replace("redis://", "redis://:right@").replace("/0", "/3?decode_responses=true")
        store = RedisStore(links(url, timeout_s=5.0), kind="answers")
        put(store, "k", "ไทย".encode())
        assert store.get("k")[0].decode() == "ไทย"

    def test_clear_of_a_server_that_is_down_is_made_up_for(self, own_server, links, breaker, clock, caplog):
        server = own_server()
        store = RedisStore(links(server.url, timeout_s=5.0, connect_timeout_s=5.0, breaker=breaker), kind="answers")
        put(store, "k", b'"old"')
        breaker.leave(breaker.enter(), ok=False)
        assert store.clear() == 0
        assert "could not be cleared" in caplog.text
        clock.now += 1.0
        found = []

        def new_is_there():
            found.append(store.get("k"))
            store.set("new", b"2", 60)
            return store.get("new")

        wait_until(new_is_there)
        assert (store.get("new")[0], found) == (b"2", [None] * len(found))
        assert store.get("k") is None


class TestConstruction:
    def test_calls_nobody(self, links):
        before = threading.active_count()
        link = links("redis://203.0.113.1:6379")
        assert threading.active_count() <= before
        assert link.stats() == {"up": True, "openings": 0, "calls": 0, "failures": 0, "refusals": 0, "skipped": 0}

    @pytest.mark.parametrize(
        ("url", "shown"),
        [("redis://:canary@cache.example:6380/2", "cache.example:6380/2"),
         ("rediss://user:canary@cache.example", "cache.example:6379/0"), ("redis://:canary@[::1]:7000", "[::1]:7000/0"),
         ("unix:///run/redis.sock?password=canary", "/run/redis.sock")],
    )  # fmt: skip
    def test_the_address_shows_no_secret(self, links, url, shown):
        link = links(Secret(url))
        assert link.address == shown
        assert "canary" not in repr(link) + repr(RedisStore(link, kind="answers"))

    def test_a_wrong_url_is_told_without_showing_it_and_namespaces_are_checked(self, links):
        for url in ("", "localhost:6379", "http://:canary@host", "redis://", "redis://:canary@host:port",
                    "redis://[::1", "redis://:canary@host:6379?socket_timeout=canary"):  # fmt: skip
            with pytest.raises(ConfigError, match="redis_url") as caught:
                links(url)
            assert "canary" not in "".join(traceback.format_exception(caught.value))
        for name in ("", "a*", "a b", "a\n", "x" * 70, "a::b", "[a]"):
            for names in ({"kind": "answers", "namespace": name}, {"kind": name}):
                with pytest.raises(ConfigError, match="namespace"):
                    RedisStore(links("redis://h"), **names)

    def test_open_link_reads_the_settings_and_needs_the_package(self, tmp_path, monkeypatch, caplog):
        config = RouterConfig(data_dir=tmp_path)
        assert open_link(config) is None
        made = open_link(config.with_changes(redis_url="redis://h:1/2"))
        assert (made.address, made.timeout_s, made.connect_timeout_s) == ("h:1/2", 0.05, 0.2)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert open_link(config.with_changes(redis_url=Secret("redis://:canary@h"))) is None
        assert "agentic-retriever[redis]" in caplog.text
        assert "canary" not in caplog.text


class TestEnvelope:
    @given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5), st.floats(1, 1e9))
    def test_comes_back_whole_and_is_json(self, value, until_s):
        data = json.dumps(value).encode()
        raw = seal(data, until_s)
        assert json.loads(raw)["value"] == value
        assert unseal(raw) == (data, pytest.approx(until_s, abs=0.002))

    @given(st.data())
    def test_any_changed_byte_is_noticed(self, data):
        raw = bytearray(seal(b'{"answer":"forty-two"}', 2_000))
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= data.draw(st.integers(1, 255))
        with pytest.raises(ValueError, match="value"):
            unseal(bytes(raw))

    @given(st.binary(max_size=80) | st.integers(1, 70).map(lambda cut: seal(b'{"answer":"forty-two"}', 2_000)[:-cut]))
    @example(seal(b"1", 2_000).replace(b'"v":1', b'"v":2'))  # another format
    def test_other_bytes_and_cut_values_are_refused(self, raw):
        with pytest.raises(ValueError, match="value of this format"):
            unseal(raw)


class TestStore:
    @pytest.fixture
    def store(self, link, namespace, closed_at_end):
        return closed_at_end(RedisStore(link, kind="answers", namespace=namespace))

    @pytest.fixture
    def raw_keys(self, link, namespace):
        return lambda: link.call(lambda client: list(client.scan_iter(f"{namespace}*")), default=None)

    @pytest.fixture
    def raw_key(self, store, raw_keys):
        """The name on the server of the value ``1`` under ``k``."""
        put(store, "k", b"1")
        [name] = raw_keys()
        return name

    def test_a_value_comes_back_with_the_time_that_it_still_has(self, store, link, namespace):
        put(store, "k", b'"value"')
        data, ttl_s = store.get("k")
        assert data == b'"value"'
        assert 0 < ttl_s <= 60
        assert store.get("other") is None
        assert store.stats() == json.loads(json.dumps(store.stats())) == {
            "up": True, "hits": 1, "misses": 1, "written": 1, "dropped": 0, "oversize": 0, "corrupt": 0,
            "failures": 0, "skipped": 0,
        }  # fmt: skip
        assert RedisStore(link, kind="answers", namespace=namespace).get("k")[0] == b'"value"', "another process"
        assert RedisStore(link, kind="vectors", namespace=namespace).get("k") is None

    def test_over_in_time_even_where_the_server_forgot_to_forget(self, link, namespace, raw_key):
        assert 0 < link.call(lambda client: client.pttl(raw_key), default=None) <= 60_000
        now = [1_000.0]
        store = RedisStore(link, kind="answers", namespace=namespace, clock=lambda: now[0])
        put(store, "k", b"1")
        now[0] += 59
        assert store.get("k") == (b"1", 1.0)
        now[0] += 1
        assert store.get("k") is None

    def test_nothing_is_kept_for_no_time_and_keys_hold_nothing_of_the_question(self, store, raw_keys, namespace):
        for ttl_s in (0, -1, 0.0001):
            put(store, "k", b"1", ttl_s)
            assert raw_keys() == []
        for key in ("What is my salary?", "\ud800", "k" * 100_000, "a b\r\nFLUSHALL\r\n"):
            put(store, key, b"1")
            assert store.get(key)[0] == b"1"
        for name in raw_keys():
            assert name.decode().removeprefix(f"{namespace}:answers:").isalnum()
            assert len(name) < 120

    def test_corrupt_values_are_misses_and_deleted_and_a_key_of_another_type_is_a_miss(
        self, store, link, raw_key, raw_keys
    ):
        other = b'{"v":2,"sum":"' + b"0" * 32 + b'","until":1,"value":1}'
        for number, raw in enumerate([b"", b"garbage", b'{"v":1}', pickle.dumps("x"), other], start=1):
            link.call(lambda client, raw=raw: client.set(raw_key, raw), default=None)
            assert store.get("k") is None
            assert store.flush(5)
            assert (raw_keys(), store.stats()["corrupt"]) == ([], number)
        link.call(lambda client: client.lpush(raw_key, "x"), default=None)
        assert store.get("k") is None

    def test_oversize_values_are_not_written(self, link, namespace):
        store = RedisStore(link, kind="answers", namespace=namespace)
        store.set_many({"small": b"1" * 1_000_000, "large": b"1" * 1_000_001}, 60)
        assert store.flush(5)
        assert (set(store.get_many(["small", "large"])), store.stats()["oversize"]) == ({"small"}, 1)

    def test_clear_drops_its_own_and_nothing_else(self, link, namespace):
        stores = [RedisStore(link, kind=kind, namespace=namespace) for kind in ("answers", "vectors", "answersX")]
        link.call(lambda client: client.set(f"{namespace}:answers", "a key of someone else", ex=60), default=None)
        for store in stores:
            store.set_many({str(i): b"1" for i in range(700)}, 60)
            assert store.flush(5)
        assert stores[0].clear() == 700
        assert [len(store.get_many([str(i) for i in range(700)])) for store in stores] == [0, 700, 700]
        assert link.call(lambda client: client.exists(f"{namespace}:answers"), default=None) == 1
        assert stores[0].clear() == 0

    def test_many_threads_and_clear_drops_what_was_set_and_not_yet_written(self, store):
        def work(seed):
            for i in range(30):
                store.set(f"{seed}-{i}", b"%d" % i, 60)
                found = store.get(f"{seed}-{i // 2}")
                assert found is None or found[0] == b"%d" % (i // 2)

        in_threads(work, range(8))
        assert store.flush(5)
        assert (store.stats()["failures"], store.stats()["written"]) == (0, 240)
        for i in range(50):
            store.set(str(i), b"1", 60)
        store.clear()
        assert store.flush(5)
        assert store.get_many([str(i) for i in range(50)]) == {}

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
    @given(values=st.dictionaries(st.text(max_size=8), st.text(max_size=50), max_size=6))
    def test_any_values(self, store, values):
        store.set_many({key: json.dumps(value).encode() for key, value in values.items()}, 60)
        assert store.flush(5)
        assert {key: json.loads(data) for key, (data, _) in store.get_many(list(values)).items()} == values


class TestWriting:
    """What is in line to be written, with a link that answers when it is told to."""

    class SlowLink:
        timeout_s = 0.001

        def __init__(self):
            self.begun, self.go = threading.Event(), threading.Event()
            self.calls = 0

        def call(self, function, *, default, timeout_s=None):
            self.begun.set()
            assert self.go.wait(10)
            self.calls += 1
            return default

        def stats(self):
            return {"up": True, "failures": 0, "refusals": 0, "skipped": 0}

    @pytest.fixture
    def slow(self):
        link = self.SlowLink()
        yield link
        link.go.set()

    def test_a_full_line_takes_no_more_and_never_waits_nor_does_one_with_many_bytes(self, slow):
        store = RedisStore(slow, kind="answers")
        for i in range(9):
            store.set(str(i), b"1" * 950_000, 60)
        assert store.stats()["dropped"] == 1
        store.set("small", b"1", 60)
        assert store.stats()["dropped"] == 1
        store = RedisStore(slow, kind="answers")
        for i in range(1_030):
            store.set(str(i), b"1", 60)
        assert store.stats()["dropped"] == 6
        assert not store.flush(0.01)  # so none of these waited for the link
        slow.go.set()
        assert store.flush(10)
        assert slow.calls >= 1_024

    def test_jobs_run_in_order_and_closing_waits_for_them(self, slow):
        store, done = RedisStore(slow, kind="ordered"), []
        slow.call = lambda function, *, default, timeout_s=None: function(SimpleNamespace(unlink=done.append))
        for _ in range(2):
            for i in range(100):
                store.delete(str(i % 10))
            store.close()
        assert (done, len(set(done))) == (done[:10] * 20, 10)
        wait_until(lambda: not any(thread.name.startswith("Redis writer ordered") for thread in threading.enumerate()))

    def test_no_more_threads(self, slow, monkeypatch):
        monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        store = RedisStore(slow, kind="answers")
        store.set("k", b"1", 60)
        assert store.stats()["dropped"] == 1
        assert store.flush(1)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_vectors_come_back_to_the_bit_and_are_json(numbers):
    vector = np.array(numbers, dtype=np.float32)
    data = encode_vector(vector)
    assert (json.loads(data)["n"], decode_vector(data).tobytes()) == (len(numbers), vector.tobytes())


def test_what_is_no_vector_is_none():
    for data in (b"", b"[]", b"{}", b'{"n":1}', b'{"n":1,"f32":3}', b'{"n":2,"f32":"AACAPw=="}', b"[" * 100_000,
                 b'{"n":1,"f32":"AACAP"}', b'{"n":1,"f32":"AA\xc3\xa4CAPw=="}', b'{"n":0,"f32":""}'):  # fmt: skip
        assert decode_vector(data) is None, data[:30]


class TestVectors:
    @pytest.fixture
    def make(self, link, namespace):
        return lambda: RedisVectorCache(link, namespace=namespace)

    def test_two_processes_embed_a_text_once(self, make):
        texts = [f"the cat number {i}" for i in range(150)]
        first, shared = FakeEmbedding(), make()
        matrix, computed = EmbeddingModel(first, name="fake", shared=shared).embed_passages(texts)
        assert computed == 150
        assert shared.store.flush(5)
        second = FakeEmbedding()
        again, computed = EmbeddingModel(second, name="fake", shared=make()).embed_passages(texts)
        assert computed == len(second.calls) == 0
        assert (again == matrix).all()
        assert shared.store.stats()["written"] == shared.store.clear() == 150

    def test_questions_too_and_apart_from_passages(self, make):
        shared = make()
        vector = EmbeddingModel(FakeEmbedding(), name="fake", shared=shared).embed_query("the cat")
        assert shared.store.flush(5)
        second = FakeEmbedding()
        other = EmbeddingModel(second, name="fake", shared=make())
        assert (other.embed_query("the cat") == vector).all()
        assert second.calls == []
        assert other.embed_passages(["the cat"])[1] == 1
        assert EmbeddingModel(FakeEmbedding(), name="another", shared=make()).embed_query("the cat") is not vector
        with pytest.raises(ValueError, match="read-only"):
            other.embed_query("the cat")[0] = 7

    def test_one_model_s_vector_for_a_day_unless_it_is_damaged(self, make, link, namespace):
        shared, key = make(), text_hash("x")
        shared.store.set(f"a\0{key.hex()}", b'{"n":7,"f32":""}', 60)
        assert shared.store.flush(5)
        assert shared.get_many("a", [key]) == {}
        assert shared.store.flush(5)
        assert link.call(lambda c: list(c.scan_iter(f"{namespace}*")), default=None) == []
        shared.put_many("a", {key: np.array([1, 0], dtype=np.float32)})
        assert shared.store.flush(5)
        assert (shared.get_many("b", [key]), shared.get_many("a", [key])[key].tolist()) == ({}, [1, 0])
        [left] = link.call(lambda c: [c.ttl(name) for name in c.scan_iter(f"{namespace}*")], default=[])
        assert 86_000 < left <= 86_400

    @pytest.mark.parametrize("vector", [[0, 0], [np.nan, 1], [3, 4]])
    def test_unusable_vectors_are_computed_again(self, make, vector):
        shared = make()
        key = text_hash("\0query the cat")
        shared.put_many("fake", {key: np.array(vector, dtype=np.float32), text_hash("the cat"): np.ones(2, np.float32)})
        assert shared.store.flush(5)
        model = EmbeddingModel(FakeEmbedding(), name="fake", shared=shared)
        assert model.embed_query("the cat").shape == (32,)
        assert model.embed_passages(["the cat"])[1] == 1

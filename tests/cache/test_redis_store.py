from __future__ import annotations

import json
import pickle
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_retriever.errors import ConfigError
from agentic_retriever.redis_link import RedisStore, Stored, WriteBehind
from agentic_retriever.redis_link.envelope import opened, sealed


class TestEnvelope:
    @given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5), st.floats(1, 1e9))
    def test_comes_back_whole_and_is_json(self, value, ttl_s):
        data = json.dumps(value).encode()
        raw = sealed(data, 1_000 + ttl_s)
        assert json.loads(raw)["value"] == value
        back = opened(raw, 1_000)
        assert back.data == data
        assert back.ttl_s == pytest.approx(ttl_s, abs=0.002)

    @given(st.data())
    def test_any_changed_byte_is_noticed(self, data):
        raw = bytearray(sealed(b'{"answer":"forty-two"}', 2_000))
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= data.draw(st.integers(1, 255))
        with pytest.raises(ValueError, match="value"):
            opened(bytes(raw), 1_000)

    @given(st.binary(max_size=80))
    def test_other_bytes_are_refused(self, raw):
        with pytest.raises(ValueError, match="value"):
            opened(raw, 1_000)

    @pytest.mark.parametrize("cut", range(1, 70, 7))
    def test_cut_values_are_refused(self, cut):
        with pytest.raises(ValueError, match="value"):
            opened(sealed(b'{"answer":"forty-two"}', 2_000)[:-cut], 1_000)

    def test_other_format_is_refused(self):
        with pytest.raises(ValueError, match="format"):
            opened(sealed(b"1", 2_000).replace(b'"v":1', b'"v":2'), 1_000)

    def test_over_when_its_time_is_over(self):
        assert opened(sealed(b"1", 1_000), 999.9) is not None
        assert opened(sealed(b"1", 1_000), 1_000) is None


class TestStore:
    @pytest.fixture
    def store(self, link, namespace):
        made = RedisStore(link, kind="answers", namespace=namespace)
        yield made
        made.close()

    def raw_keys(self, link, namespace):
        return link.call(lambda client: list(client.scan_iter(f"{namespace}*")), default=None)

    def test_a_value_comes_back_with_the_time_that_it_still_has(self, store):
        store.set("k", b'"value"', 60)
        assert store.flush(5)
        found = store.get("k")
        assert found.data == b'"value"'
        assert 0 < found.ttl_s <= 60
        assert store.get("other") is None
        stats = store.stats()
        assert (stats.hits, stats.misses, stats.written, stats.failures) == (1, 1, 1, 0)

    def test_another_process_sees_it(self, store, link, namespace):
        store.set("k", b"1", 60)
        assert store.flush(5)
        assert RedisStore(link, kind="answers", namespace=namespace).get("k").data == b"1"
        assert RedisStore(link, kind="vectors", namespace=namespace).get("k") is None

    def test_the_server_forgets_it_in_time(self, store, link, namespace):
        store.set("k", b"1", 60)
        assert store.flush(5)
        [name] = self.raw_keys(link, namespace)
        assert 0 < link.call(lambda client: client.pttl(name), default=None) <= 60_000

    def test_over_even_where_the_server_forgot_to_forget(self, link, namespace):
        now = [1_000.0]
        store = RedisStore(link, kind="answers", namespace=namespace, clock=lambda: now[0])
        store.set("k", b"1", 60)
        assert store.flush(5)
        now[0] += 59
        assert store.get("k") == Stored(b"1", 1.0)
        now[0] += 1
        assert store.get("k") is None

    @pytest.mark.parametrize("ttl_s", [0, -1, 0.0001])
    def test_nothing_is_kept_for_no_time(self, store, link, namespace, ttl_s):
        store.set("k", b"1", ttl_s)
        assert store.flush(5)
        assert self.raw_keys(link, namespace) == []

    def test_keys_hold_nothing_of_the_question(self, store, link, namespace):
        for key in ("What is my salary?", "\ud800", "k" * 100_000, "a b\r\nFLUSHALL\r\n"):
            store.set(key, b"1", 60)
            assert store.flush(5)
            assert store.get(key).data == b"1"
        for name in self.raw_keys(link, namespace):
            assert name.decode().removeprefix(f"{namespace}:answers:").isalnum()
            assert len(name) < 120

    @pytest.mark.parametrize(
        "raw",
        [b"", b"garbage", b'{"v":1}', pickle.dumps("x"), b'{"v":2,"sum":"' + b"0" * 32 + b'","until":1,"value":1}'],
    )
    def test_corrupt_values_are_misses_and_deleted(self, store, link, namespace, raw):
        store.set("k", b"1", 60)
        assert store.flush(5)
        [name] = self.raw_keys(link, namespace)
        link.call(lambda client: client.set(name, raw), default=None)
        assert store.get("k") is None
        assert store.flush(5)
        assert self.raw_keys(link, namespace) == []
        assert store.stats().corrupt == 1

    def test_a_key_of_another_type_is_a_miss(self, store, link, namespace):
        store.set("k", b"1", 60)
        assert store.flush(5)
        [name] = self.raw_keys(link, namespace)
        link.call(lambda client: (client.delete(name), client.lpush(name, "x")), default=None)
        assert store.get("k") is None

    def test_oversize_values_are_not_written(self, link, namespace):
        store = RedisStore(link, kind="answers", namespace=namespace, max_value_bytes=10)
        store.set_many({"small": b"1" * 10, "large": b"1" * 11}, 60)
        assert store.flush(5)
        assert set(store.get_many(["small", "large"])) == {"small"}
        assert store.stats().oversize == 1

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

    def test_clear_drops_what_was_set_and_not_yet_written(self, store):
        for i in range(50):
            store.set(str(i), b"1", 60)
        store.clear()
        assert store.flush(5)
        assert store.get_many([str(i) for i in range(50)]) == {}

    def test_clear_of_a_server_that_is_down_is_made_up_for(self, own_server, links, breaker, clock, caplog):
        server = own_server()
        store = RedisStore(links(server.url, timeout_s=5.0, connect_timeout_s=5.0, breaker=breaker), kind="answers")
        store.set("k", b'"old"', 60)
        assert store.flush(5)
        breaker.failed()
        assert store.clear() == 0
        assert "could not be cleared" in caplog.text
        clock.now += 1.0
        found = []
        for _ in range(500):
            found.append(store.get("k"))
            threading.Event().wait(0.01)
            store.set("new", b"2", 60)
            if store.get("new"):
                break
        assert store.get("new").data == b"2"
        assert found == [None] * len(found)
        assert store.get("k") is None

    def test_many_threads(self, store):
        def work(seed):
            for i in range(30):
                store.set(f"{seed}-{i}", b"%d" % i, 60)
                found = store.get(f"{seed}-{i // 2}")
                assert found is None or found.data == b"%d" % (i // 2)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.flush(5)
        assert store.stats().failures == 0
        assert store.stats().written == 240

    def test_statistics_turn_into_json(self, store):
        assert json.loads(json.dumps(store.stats().to_dict()))["up"] is True

    @pytest.mark.parametrize("name", ["", "a*", "a b", "a\n", "x" * 70, "a::b", "[a]"])
    def test_namespaces_are_checked(self, links, name):
        with pytest.raises(ConfigError, match="namespace"):
            RedisStore(links("redis://h"), kind="answers", namespace=name)
        with pytest.raises(ConfigError, match="namespace"):
            RedisStore(links("redis://h"), kind=name)

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
    @given(values=st.dictionaries(st.text(max_size=8), st.text(max_size=50), max_size=6))
    def test_any_values(self, store, values):
        store.set_many({key: json.dumps(value).encode() for key, value in values.items()}, 60)
        assert store.flush(5)
        found = store.get_many(list(values))
        assert {key: json.loads(stored.data) for key, stored in found.items()} == values


class TestWriteBehind:
    def test_jobs_run_in_order(self):
        done = []
        line = WriteBehind("test")
        for i in range(100):
            assert line.put(lambda i=i: done.append(i))
        assert line.flush(5)
        assert done == list(range(100))

    def test_full_line_takes_no_more_and_never_waits(self):
        go, begun = threading.Event(), threading.Event()
        line = WriteBehind("test", max_jobs=3, max_bytes=100)
        line.put(lambda: begun.set() or go.wait(5))
        assert begun.wait(5)
        assert [line.put(lambda: None, size) for size in (60, 50, 40, 0, 0)] == [True, False, True, True, False]
        assert not line.flush(0.01)
        assert line.discard(0.01) == 3
        assert line.put(lambda: None, 100)
        go.set()
        assert line.flush(5)

    def test_the_thread_ends_and_comes_back(self, monkeypatch):
        monkeypatch.setattr("agentic_retriever.redis_link.writer._IDLE_S", 0.001)
        line = WriteBehind("the thread that ends")
        for _ in range(3):
            done = threading.Event()
            assert line.put(done.set)
            assert done.wait(5)
            for thread in threading.enumerate():
                if thread.name == "the thread that ends":
                    thread.join(5)
                    assert not thread.is_alive()

    def test_no_more_threads(self, monkeypatch):
        def refuse(thread):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        line = WriteBehind("test")
        assert not line.put(lambda: None)
        assert line.flush(1)

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from redis_servers import MISBEHAVIOURS, misbehaving

from agentic_retriever.cache import SingleFlightCache
from agentic_retriever.errors import ConfigError
from agentic_retriever.redis import RedisStore
from agentic_retriever.threads import Workers


class Json:
    def encode(self, value):
        return json.dumps(value).encode()

    def decode(self, data):
        return json.loads(data)


class FakeStore:
    """Keeps bytes in a mapping, with time that stands still until it is told to move."""

    def __init__(self, clock):
        self.clock = clock
        self.kept = {}
        self.calls = []

    def get(self, key):
        self.calls.append("get")
        data, ends = self.kept.get(key, (b"", 0))
        return (data, ends - self.clock()) if ends > self.clock() else None

    def set(self, key, data, ttl_s):
        self.calls.append("set")
        self.kept[key] = (data, self.clock() + ttl_s)

    def delete(self, key):
        self.kept.pop(key, None)

    def clear(self):
        count = len(self.kept)
        self.kept.clear()
        return count

    def stats(self):
        return {"up": True}


class BrokenStore:
    """Raises whatever it is asked."""

    def __getattr__(self, name):
        def broken(*arguments):
            raise OSError("the disk is gone")

        return broken


@pytest.fixture
def store(clock):
    return FakeStore(clock)


@pytest.fixture
def make(clock, store):
    def _make(**settings):
        return SingleFlightCache(
            **{"max_entries": 10, "ttl_s": 60, "timer": clock, "store": store, "codec": Json(), **settings}
        )

    return _make


def never():
    pytest.fail("must not be computed")


def test_what_one_cache_computed_another_one_finds(make):
    assert make().get_or_compute("k", lambda: {"a": 1}) == ({"a": 1}, False)
    other = make()
    assert other.get_or_compute("k", never) == ({"a": 1}, True)
    assert other.get_or_compute("k", never) == ({"a": 1}, True)
    stats = other.stats()
    assert (stats.hits, stats.store_hits, stats.misses, stats.entries) == (1, 1, 0, 1)
    assert stats.to_dict()["store"]["up"] is True


async def test_tasks_find_it_too(make):
    make().get_or_compute("k", lambda: 1)
    with Workers(2, "test") as workers:
        other = make()
        results = await asyncio.gather(*(other.aget_or_compute("k", never, submit=workers.submit) for _ in range(5)))
    assert results == [(1, True)] * 5


def test_a_value_grows_no_older_than_its_time(make, clock):
    make().get_or_compute("k", lambda: "old")
    clock.now += 50
    other = make()
    assert other.get_or_compute("k", never) == ("old", True)
    clock.now += 9
    assert other.get_or_compute("k", never) == ("old", True)
    clock.now += 1
    assert other.get_or_compute("k", lambda: "new") == ("new", False)


def test_a_shorter_time_of_this_cache_holds(make, clock):
    make(ttl_s=600).get_or_compute("k", lambda: "old")
    other = make(ttl_s=10)
    other.get_or_compute("k", never)
    clock.now += 10
    assert other.stats().entries == 0


def test_failures_and_what_is_not_worth_keeping_never_get_there(make, store):
    cache = make()
    with pytest.raises(KeyError):
        cache.get_or_compute("a", lambda: {}["x"])
    cache.get_or_compute("b", lambda: "degraded", keep=lambda value: value != "degraded")
    assert store.kept == {}


def test_what_cannot_be_read_is_computed_and_replaced(make, store, clock):
    store.set("k", b"{damaged", 60)
    cache = make()
    assert cache.get_or_compute("k", lambda: 1) == (1, False)
    assert store.kept["k"][0] == b"1"
    assert cache.stats().store_errors == 1


def test_what_has_no_json_form_stays_in_memory(make, store):
    cache = make()
    assert cache.get_or_compute("k", lambda: {1, 2}) == ({1, 2}, False)
    assert cache.get_or_compute("k", never) == ({1, 2}, True)
    assert store.kept == {}


def test_a_store_that_raises_costs_nothing_but_its_use(make, caplog):
    cache = make(store=BrokenStore())
    assert cache.get_or_compute("k", lambda: 1) == (1, False)
    assert cache.get_or_compute("k", never) == (1, True)
    assert cache.clear() == 1
    stats = cache.stats()
    assert stats.store is None
    assert stats.store_errors >= 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_clear_empties_both_levels_and_counts_values_once(make, store):
    cache = make(max_entries=2)
    for key in "abc":
        cache.get_or_compute(key, lambda: 1)
    assert cache.clear() == 3
    assert store.kept == {}
    assert cache.get_or_compute("a", lambda: 2) == (2, False)


def test_what_was_computed_before_clear_does_not_come_back(make, store):
    cache = make()
    assert cache.get_or_compute("k", lambda: cache.clear() or "old") == ("old", False)
    assert store.kept == {}

    class Late(FakeStore):
        def set(self, key, data, ttl_s):
            cache.clear()
            super().set(key, data, ttl_s)

        def get(self, key):
            found = super().get(key)
            if found:
                cache.clear()
            return found

    late = Late(store.clock)
    cache = make(store=late)
    cache.get_or_compute("k", lambda: "old")
    assert late.kept == {}
    FakeStore.set(late, "k", b'"old"', 60)
    assert cache.get_or_compute("k", lambda: "new")[0] == "new"


@pytest.mark.parametrize("off", [{"max_entries": 0}, {"ttl_s": 0}])
def test_off_means_both_levels(make, store, off):
    cache = make(**off)
    cache.get_or_compute("k", lambda: 1)
    assert cache.get_or_compute("k", lambda: 2) == (2, False)
    assert store.calls == []


def test_a_store_needs_a_codec(store):
    with pytest.raises(ConfigError, match="codec"):
        SingleFlightCache(max_entries=1, ttl_s=1, store=store)
    with pytest.raises(ConfigError, match="codec"):
        SingleFlightCache(max_entries=1, ttl_s=1, codec=Json())


def test_waiters_share_one_look_into_the_store(make, store):
    begun, go = threading.Event(), threading.Event()

    class Slow(FakeStore):
        def get(self, key):
            begun.set()
            go.wait(5)
            return super().get(key)

    slow = Slow(store.clock)
    slow.set("k", b"1", 60)
    cache = make(store=slow)
    threads = [threading.Thread(target=cache.get_or_compute, args=("k", never)) for _ in range(10)]
    for thread in threads:
        thread.start()
    assert begun.wait(5)
    while cache.stats().shared < 9:
        threading.Event().wait(0.001)
    go.set()
    for thread in threads:
        thread.join()
    assert slow.calls == ["set", "get"]


class TestOnRedis:
    def test_two_caches_share_through_the_server(self, link, namespace):
        def make():
            store = RedisStore(link, kind="answers", namespace=namespace)
            return store, SingleFlightCache(max_entries=10, ttl_s=60, store=store, codec=Json())

        (store, first), (_, second) = make(), make()
        first.get_or_compute("k", lambda: "ไทย")
        assert store.flush(5)
        assert second.get_or_compute("k", never) == ("ไทย", True)
        assert second.clear() == 1
        third = make()[1]
        assert third.get_or_compute("k", lambda: "new") == ("new", False)
        assert first.get_or_compute("k", never) == ("ไทย", True), "another process's memory is its own"

    @pytest.mark.parametrize("how", MISBEHAVIOURS)
    def test_a_server_that_misbehaves_costs_little(self, links, breaker, how):
        import time

        with misbehaving(MISBEHAVIOURS[how]) as url:
            store = RedisStore(links(url, breaker=breaker), kind="answers")
            cache = SingleFlightCache(max_entries=1000, ttl_s=60, store=store, codec=Json())
            times = []
            for i in range(100):
                start = time.perf_counter()
                assert cache.get_or_compute(str(i), lambda i=i: i) == (i, False)
                times.append(time.perf_counter() - start)
        assert times[0] < 1.0  # 0.3 s, and patience with a busy machine
        assert sorted(times)[95] < 0.05
        assert cache.stats().store_errors == 0

    def test_killed_while_in_use(self, own_server, links, breaker):
        server = own_server()
        store = RedisStore(links(server.url, timeout_s=5.0, breaker=breaker), kind="answers")
        cache = SingleFlightCache(max_entries=1000, ttl_s=60, store=store, codec=Json())
        errors = []

        def work(seed):
            try:
                for i in range(200):
                    assert cache.get_or_compute(f"{seed}-{i}", lambda i=i: i)[0] == i
                    if seed == i == 3:
                        server.kill()
            except Exception as err:  # noqa: BLE001
                errors.append(err)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert errors == []
        assert not store.stats()["up"]

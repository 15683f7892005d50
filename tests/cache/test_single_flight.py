from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentic_retriever.cache import CacheStats, SingleFlightCache
from agentic_retriever.errors import DeadlineExceededError


def test_second_call_is_a_hit():
    cache = SingleFlightCache(max_entries=2, ttl_s=10)
    assert cache.get_or_compute("k", lambda: 1) == (1, False)
    assert cache.get_or_compute("k", lambda: 2) == (1, True)
    assert cache.stats() == CacheStats(hits=1, misses=1, shared=0, entries=1)


def test_values_expire_and_old_ones_are_evicted():
    now = [0.0]
    cache = SingleFlightCache(max_entries=2, ttl_s=10, timer=lambda: now[0])
    for key in ("a", "b", "c"):
        cache.get_or_compute(key, lambda key=key: key)
    assert cache.get_or_compute("a", lambda: "again") == ("again", False)
    now[0] = 11.0
    assert cache.get_or_compute("a", lambda: "later") == ("later", False)


@pytest.mark.parametrize(("entries", "ttl_s"), [(0, 10), (10, 0)])
def test_cache_can_be_off(entries, ttl_s):
    cache = SingleFlightCache(max_entries=entries, ttl_s=ttl_s)
    assert cache.get_or_compute("k", lambda: 1) == (1, False)
    assert cache.get_or_compute("k", lambda: 2) == (2, False)


def test_values_not_worth_keeping_are_not_kept():
    cache = SingleFlightCache(max_entries=2, ttl_s=10)
    assert cache.get_or_compute("k", lambda: "bad", keep=lambda v: v != "bad") == ("bad", False)
    assert cache.get_or_compute("k", lambda: "good") == ("good", False)


def test_failures_are_raised_and_never_kept():
    cache = SingleFlightCache(max_entries=2, ttl_s=10)
    with pytest.raises(KeyError):
        cache.get_or_compute("k", lambda: {}["x"])
    assert cache.get_or_compute("k", lambda: 1) == (1, False)


def stampede(cache, compute, callers=50):
    """Start the callers while the first is still computing."""
    with ThreadPoolExecutor(callers) as pool:
        return list(pool.map(lambda _: attempt(cache, compute), range(callers)))


def attempt(cache, compute):
    try:
        return cache.get_or_compute("k", compute)[0]
    except RuntimeError as err:
        return err


def gated(result, cache, callers):
    """A computation that ends once all other callers wait for it."""
    calls = []

    def compute():
        calls.append(1)
        for _ in range(10_000):
            if cache.stats().shared == callers - 1:
                break
            threading.Event().wait(0.001)
        if isinstance(result, Exception):
            raise result
        return result

    return compute, calls


def test_fifty_threads_one_computation():
    cache = SingleFlightCache(max_entries=2, ttl_s=10)
    compute, calls = gated("value", cache, 50)
    assert stampede(cache, compute) == ["value"] * 50
    assert len(calls) == 1


def test_one_failure_is_shared_by_all_waiters():
    cache = SingleFlightCache(max_entries=2, ttl_s=10)
    compute, calls = gated(RuntimeError("down"), cache, 20)
    assert all(isinstance(result, RuntimeError) for result in stampede(cache, compute, 20))
    assert len(calls) == 1


def test_followers_survive_an_interrupted_leader():
    cache = SingleFlightCache(max_entries=2, ttl_s=10)
    entered, release = threading.Event(), threading.Event()

    def interrupted():
        entered.set()
        release.wait(5)
        raise KeyboardInterrupt

    def lead():
        with pytest.raises(KeyboardInterrupt):
            cache.get_or_compute("k", interrupted)

    leader = threading.Thread(target=lead)
    leader.start()
    entered.wait(5)
    with ThreadPoolExecutor(1) as pool:
        follower = pool.submit(cache.get_or_compute, "k", lambda: "mine")
        while not cache.stats().shared:
            threading.Event().wait(0.001)
        release.set()
        assert follower.result(5)[0] == "mine"
    leader.join()


def test_waiting_for_another_has_a_limit():
    cache = SingleFlightCache(max_entries=2, ttl_s=10)
    entered, release = threading.Event(), threading.Event()
    leader = threading.Thread(target=lambda: cache.get_or_compute("k", lambda: entered.set() or release.wait(5)))
    leader.start()
    entered.wait(5)
    with pytest.raises(DeadlineExceededError):
        cache.get_or_compute("k", lambda: 1, timeout_s=0.01)
    release.set()
    leader.join()


def test_a_value_computed_before_clear_does_not_come_back():
    cache = SingleFlightCache(max_entries=2, ttl_s=10)
    assert cache.get_or_compute("k", lambda: cache.clear() or "old") == ("old", False)
    assert cache.get_or_compute("k", lambda: "new") == ("new", False)
    assert cache.clear() == 1


def test_threads_may_do_anything_at_once():
    cache = SingleFlightCache(max_entries=5, ttl_s=0.001)

    def work(seed):
        for i in range(300):
            key = str((seed * 7 + i) % 11)
            assert cache.get_or_compute(key, lambda k=key: k)[0] == key
            if i % 50 == 0:
                cache.clear()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert cache.stats().entries <= 5

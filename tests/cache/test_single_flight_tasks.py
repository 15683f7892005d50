"""Threads and tasks on one key."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentic_retriever.cache import SingleFlightCache
from agentic_retriever.errors import AgenticRetrieverError, DeadlineExceededError
from agentic_retriever.threads import Workers


@pytest.fixture
def cache():
    return SingleFlightCache(max_entries=10, ttl_s=60)


@pytest.fixture
def workers():
    with Workers(8, "test") as made:
        yield made


class Gate:
    """A computation that ends when it is told to."""

    def __init__(self, result="value"):
        self.result = result
        self.begun, self.go = threading.Event(), threading.Event()
        self.calls = 0

    def __call__(self):
        self.calls += 1
        self.begun.set()
        assert self.go.wait(10)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


async def waiting(cache, count):
    while cache.stats().shared < count:  # noqa: ASYNC110 - the cache has no event for it
        await asyncio.sleep(0.001)


class Stampede:
    """Fifty threads and two hundred tasks on one key; the computation begins when all of them are there."""

    def __init__(self, cache, workers, failure):
        self.cache, self.workers, self.failure = cache, workers, failure
        self.calls = []
        self.ready = threading.Barrier(51)

    def compute(self):
        # One caller leads; where a thread took over from a task, neither of the two counts as sharing.
        ends = time.monotonic() + 20
        while self.cache.stats().shared < 248 and time.monotonic() < ends:
            time.sleep(0.001)
        self.calls.append(time.perf_counter())
        time.sleep(0.3)
        if self.failure:
            raise self.failure
        return "value"

    async def tasks(self):
        jobs = [self.cache.aget_or_compute("k", self.compute, submit=self.workers.submit) for _ in range(200)]
        return await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 30)

    def thread(self, _):
        self.ready.wait()
        try:
            return self.cache.get_or_compute("k", self.compute, timeout_s=30)
        except ConnectionError as err:
            return err

    def run(self):
        with ThreadPoolExecutor(50) as pool:
            threads = [pool.submit(self.thread, i) for i in range(50)]
            self.ready.wait()
            outcomes = asyncio.run(self.tasks()) + [one.result() for one in threads]
        # 0.6 s on a machine with nothing else to do
        assert time.perf_counter() - self.calls[0] < 1.5
        assert (len(self.calls), len(outcomes)) == (1, 250)
        return outcomes


def test_fifty_threads_and_two_hundred_tasks_on_a_cold_key(cache, workers):
    outcomes = Stampede(cache, workers, None).run()
    assert {value for value, _ in outcomes} == {"value"}
    assert [cached for _, cached in outcomes].count(False) == 1


def test_fifty_threads_and_two_hundred_tasks_share_one_failure(cache, workers):
    failure = ConnectionError("down")
    assert all(outcome is failure for outcome in Stampede(cache, workers, failure).run())


async def test_waiting_tasks_hold_no_worker(cache, workers):
    gate = Gate()
    tasks = [asyncio.create_task(cache.aget_or_compute("k", gate, submit=workers.submit)) for _ in range(200)]
    await waiting(cache, 199)
    others = await asyncio.wait_for(
        asyncio.gather(*(cache.aget_or_compute(str(i), lambda i=i: i, submit=workers.submit) for i in range(50))), 5
    )
    assert [value for value, _ in others] == list(range(50))
    gate.go.set()
    assert {value for value, _ in await asyncio.gather(*tasks)} == {"value"}
    assert gate.calls == 1


async def test_a_task_follows_a_thread_and_a_thread_a_task(cache, workers):
    gate = Gate()
    leader = asyncio.create_task(asyncio.to_thread(cache.get_or_compute, "k", gate))
    await asyncio.to_thread(gate.begun.wait, 5)
    follower = asyncio.create_task(cache.aget_or_compute("k", gate, submit=workers.submit))
    await waiting(cache, 1)
    gate.go.set()
    assert (await leader, await follower) == (("value", False), ("value", True))

    cache.clear()
    gate = Gate()
    leader = asyncio.create_task(cache.aget_or_compute("k", gate, submit=workers.submit))
    assert await asyncio.to_thread(gate.begun.wait, 5)
    follower = asyncio.create_task(asyncio.to_thread(cache.get_or_compute, "k", gate))
    await waiting(cache, 2)
    gate.go.set()
    assert (await leader, await follower) == (("value", False), ("value", True))


async def test_a_cancelled_leader_harms_nobody_and_its_work_is_kept(cache, workers):
    gate = Gate()
    leader = asyncio.create_task(cache.aget_or_compute("k", gate, submit=workers.submit))
    assert await asyncio.to_thread(gate.begun.wait, 5)
    followers = [asyncio.create_task(cache.aget_or_compute("k", gate, submit=workers.submit)) for _ in range(5)]
    await waiting(cache, 5)
    leader.cancel()
    followers[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await leader
    gate.go.set()
    results = await asyncio.gather(*followers, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [("value", True)] * 4
    assert gate.calls == 1
    assert cache.get_or_compute("k", lambda: "other") == ("value", True)


async def test_all_cancelled_and_the_key_is_free(cache, workers):
    gate = Gate(RuntimeError("nobody hears this"))
    tasks = [asyncio.create_task(cache.aget_or_compute("k", gate, submit=workers.submit)) for _ in range(3)]
    await waiting(cache, 2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    gate.go.set()
    workers.close()
    assert cache.get_or_compute("k", lambda: "new") == ("new", False)


async def test_an_interrupted_leader_is_followed_by_another(cache, workers):
    gate = Gate(SystemExit())
    leader = asyncio.create_task(asyncio.to_thread(self_ending, cache, gate))
    assert await asyncio.to_thread(gate.begun.wait, 5)
    followers = [
        asyncio.create_task(cache.aget_or_compute("k", lambda: "mine", submit=workers.submit)) for _ in range(5)
    ]
    await waiting(cache, 5)
    gate.go.set()
    assert {value for value, _ in await asyncio.gather(*followers)} == {"mine"}
    await leader


def self_ending(cache, gate):
    with pytest.raises(SystemExit):
        cache.get_or_compute("k", gate)


async def test_a_pool_whose_workers_all_wait_for_the_same_key_does_not_stand_still(cache):
    with Workers(2, "small") as small:
        block = threading.Event()
        busy = [small.submit(block.wait, 5) for _ in range(2)]
        leader = asyncio.create_task(cache.aget_or_compute("k", lambda: "from the task", submit=small.submit))
        await asyncio.sleep(0)
        # Comes first in line when the workers are free, and would wait for what stands behind it in the line.
        assert await asyncio.wait_for(asyncio.to_thread(cache.get_or_compute, "k", lambda: "from the thread"), 5) == (
            "from the thread",
            False,
        )
        assert await leader == ("from the thread", True)
        block.set()
        assert all(one.result(5) for one in busy)
    assert cache.stats().misses == 1


async def test_waiting_has_a_limit_for_leaders_too(cache, workers):
    gate = Gate()
    with pytest.raises(DeadlineExceededError):
        await cache.aget_or_compute("k", gate, submit=workers.submit, timeout_s=0.01)
    with pytest.raises(DeadlineExceededError):
        await cache.aget_or_compute("k", gate, submit=workers.submit, timeout_s=0.01)
    gate.go.set()
    assert (await cache.aget_or_compute("k", gate, submit=workers.submit, timeout_s=5))[0] == "value"
    assert gate.calls == 1


async def test_a_timeout_of_the_computation_itself_is_its_own_failure(cache, workers):
    def compute():
        raise TimeoutError("the model")

    with pytest.raises(TimeoutError, match="the model"):
        await cache.aget_or_compute("k", compute, submit=workers.submit, timeout_s=5)
    with pytest.raises(TimeoutError, match="the model"):
        cache.get_or_compute("k", compute, timeout_s=5)


async def test_a_pool_that_takes_no_more_locks_no_key(cache):
    closed = Workers(1, "closed")
    closed.close()
    with pytest.raises(AgenticRetrieverError, match="closed"):
        await cache.aget_or_compute("k", lambda: 1, submit=closed.submit)
    assert cache.get_or_compute("k", lambda: 1) == (1, False)


def test_one_cache_on_several_event_loops(cache, workers):
    async def ask():
        return await cache.aget_or_compute("k", lambda: 1, submit=workers.submit)

    assert [asyncio.run(ask()) for _ in range(3)] == [(1, False), (1, True), (1, True)]


async def test_the_loop_stays_free(cache, workers):
    gaps, stop = [], asyncio.Event()

    async def watch():
        last = time.perf_counter()
        while not stop.is_set():
            await asyncio.sleep(0.001)
            gaps.append(time.perf_counter() - last)
            last = time.perf_counter()

    watcher = asyncio.create_task(watch())
    await cache.aget_or_compute("k", lambda: time.sleep(0.3), submit=workers.submit)
    stop.set()
    await watcher
    assert len(gaps) > 10
    assert max(gaps) < 0.25


def test_a_failing_keep_fails_the_call_and_frees_the_key(cache):
    with pytest.raises(ZeroDivisionError):
        cache.get_or_compute("k", lambda: 1, keep=lambda value: 1 / 0)
    assert cache.get_or_compute("k", lambda: 2) == (2, False)


async def test_everybody_gets_a_copy(workers):
    cache = SingleFlightCache(max_entries=10, ttl_s=60, copy=list)
    gate = Gate(["a"])
    tasks = [asyncio.create_task(cache.aget_or_compute("k", gate, submit=workers.submit)) for _ in range(3)]
    await waiting(cache, 2)
    gate.go.set()
    for value, _ in await asyncio.gather(*tasks):
        assert value == ["a"]
        value.append("spoiled")
    cache.get_or_compute("k", gate)[0].append("spoiled")
    assert cache.get_or_compute("k", gate) == (["a"], True)


def test_statistics():
    cache = SingleFlightCache(max_entries=10, ttl_s=60)
    cache.get_or_compute("a", lambda: 1)
    cache.get_or_compute("a", lambda: 1)
    cache.get_or_compute("b", lambda: 1, keep=lambda _value: False)
    with pytest.raises(KeyError):
        cache.get_or_compute("c", lambda: {}["x"])
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.unkept, stats.failures, stats.entries) == (1, 3, 1, 1, 1)
    assert stats.hit_rate == 0.25
    assert stats.to_dict() == {
        "hits": 1, "misses": 3, "shared": 0, "entries": 1, "store_hits": 0, "failures": 1, "unkept": 1,
        "store_errors": 0, "store": None, "hit_rate": 0.25,
    }  # fmt: skip
    assert SingleFlightCache(max_entries=1, ttl_s=1).stats().hit_rate == 0


async def test_what_nobody_wants_any_more_is_not_begun_and_told(cache):
    with Workers(1, "small") as small:
        gate, told, queued = Gate(), [], Gate()
        running = asyncio.create_task(
            cache.aget_or_compute("a", gate, submit=small.submit, unwanted=lambda: told.append("a"))
        )
        assert await asyncio.to_thread(gate.begun.wait, 5)
        later = [
            asyncio.create_task(
                cache.aget_or_compute("b", queued, submit=small.submit, unwanted=lambda: told.append("b"))
            )
            for _ in range(2)
        ]
        await waiting(cache, 1)
        later[0].cancel()
        await asyncio.gather(later[0], return_exceptions=True)
        assert not told  # the other one still waits
        later[1].cancel()
        running.cancel()
        await asyncio.gather(*later, running, return_exceptions=True)
        assert sorted(told) == ["a", "b"]
        gate.go.set()
    assert queued.calls == 0
    assert cache.get_or_compute("b", lambda: "new") == ("new", False)

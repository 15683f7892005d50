"""The cache: keys, memory, the second level, and one computation for all threads and tasks that want a key."""

import asyncio
import json
import random
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_indexes import GOOD, QUESTION
from waiting import in_threads, pool, wait_until

from agentic_retriever import errors
from agentic_retriever.cache import CacheStats, SingleFlightCache, cache_key, read_questions, warm
from agentic_retriever.testing import FakeLLM

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from("abcdef")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("get"), KEYS), st.tuples(st.just("share"), KEYS, st.sampled_from([0.0, 1.0, 2.5, 10.0])),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.5, 1.0, 3.0])), st.tuples(st.just("clear")),
    ),
    max_size=60,
)  # fmt: skip


class FakeStore:
    """Keeps bytes in a mapping, with time that stands still until it is told to move."""

    def __init__(self, clock):
        self.clock, self.kept, self.calls = clock, {}, []

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


JSON = (lambda value: json.dumps(value).encode(), json.loads)


def never():
    pytest.fail("must not be computed")


def until_shared(cache, count):
    wait_until(lambda: cache.stats().shared >= count, 20)


async def waiting(cache, count):
    await asyncio.to_thread(until_shared, cache, count)


@pytest.fixture
def cache():
    return SingleFlightCache(max_entries=10, ttl_s=60)


@pytest.fixture
def workers():
    with pool(8) as made:
        yield made


@pytest.fixture
def store(clock):
    return FakeStore(clock)


@pytest.fixture
def make(clock, store):
    def _make(**settings):
        return SingleFlightCache(
            **{"max_entries": 10, "ttl_s": 60, "timer": clock, "second": (store, *JSON), **settings}
        )

    return _make


@given(st.dictionaries(st.sampled_from("abcd"), JSON_VALUES, max_size=4))
def test_order_of_names_does_not_matter_in_keys_and_types_and_values_do(parts):
    assert cache_key(**parts) == cache_key(**dict(reversed(parts.items())))
    keys = [cache_key(v=v) for v in (1, True, "1", None, [1], {"1": 1}, 0, False, "")] + [cache_key(w=1), cache_key()]
    assert len(set(keys)) == len(keys)


class Model:
    """The memory as plainly as it can be said: the least recently used go when it is full, each in its own time."""

    def __init__(self, most):
        self.most = most
        self.now = 1_000.0
        self.entries = OrderedDict()

    def fresh(self):
        for key in [key for key, (_, ends) in self.entries.items() if self.now >= ends]:
            del self.entries[key]

    def get(self, key):
        self.fresh()
        if key not in self.entries:
            return None
        self.entries.move_to_end(key)
        return self.entries[key][0]

    def put(self, key, value, ttl_s):
        if not self.most or ttl_s <= 0:
            return
        if key not in self.entries:
            while len(self.entries) >= self.most:
                self.entries.popitem(last=False)
        self.entries[key] = (value, self.now + ttl_s)
        self.entries.move_to_end(key)

    def clear(self):
        self.fresh()
        count = len(self.entries)
        self.entries.clear()
        return count


class OneAnswerStore(FakeStore):
    """Gives each value once, and keeps none that the cache computed."""

    def get(self, key):
        found = super().get(key)
        self.kept.pop(key, None)
        return found

    def set(self, key, data, ttl_s):
        pass


@given(st.integers(0, 4), st.sampled_from([0, 2.0]), STEPS)
def test_memory_behaves_like_its_model(most, ttl_s, steps):
    model = Model(most)
    store = OneAnswerStore(lambda: model.now)
    cache = SingleFlightCache(max_entries=most, ttl_s=ttl_s, timer=store.clock, second=(store, *JSON))
    for name, *arguments in steps:
        if name == "wait":
            model.now += arguments[0]
        elif name == "clear":
            shared = len(store.kept) if most and ttl_s else 0
            assert cache.clear() == max(shared, model.clear())
            store.clear()
        elif name == "share":
            FakeStore.set(store, arguments[0], b'"shared"', arguments[1])
        else:
            [key] = arguments
            value = model.get(key)
            shared = FakeStore.get(store, key) if most and ttl_s and value is None else None
            expected = value or ("shared" if shared else "computed")
            assert cache.get_or_compute(key, lambda: "computed") == (expected, bool(value or shared))
            if value is None:
                model.put(key, expected, min(ttl_s, shared[1]) if shared else ttl_s)
        model.fresh()
        assert cache.stats().entries == len(model.entries)


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [({"max_entries": -1, "ttl_s": 1}, "max_entries"), ({"max_entries": 1, "ttl_s": -1}, "ttl_s"),
     ({"max_entries": 1, "ttl_s": float("nan")}, "ttl_s"), ({"max_entries": 1, "ttl_s": float("inf")}, "ttl_s")],
)  # fmt: skip
def test_what_cannot_be_is_refused(numbers, wrong):
    with pytest.raises(errors.ConfigError, match=wrong):
        SingleFlightCache(**numbers)


def test_second_call_is_a_hit_unless_the_cache_is_off_or_nothing_was_worth_keeping(cache, make, store):
    assert cache.stats().hit_rate == 0
    assert cache.get_or_compute("k", lambda: 1) == (1, False)
    assert cache.get_or_compute("k", never) == (1, True)
    assert cache.stats() == CacheStats(hits=1, misses=1, shared=0, entries=1)
    for off in ({"max_entries": 0}, {"ttl_s": 0}):
        cache = make(**off)
        assert cache.get_or_compute("k", lambda: 1) == (1, False)
        assert cache.get_or_compute("k", lambda: 2) == (2, False)
    assert store.calls == []
    cache = make()
    assert cache.get_or_compute("k", lambda: "bad", keep=lambda v: v != "bad") == ("bad", False)
    with pytest.raises(KeyError):
        cache.get_or_compute("k", lambda: {}["x"])
    with pytest.raises(ZeroDivisionError):
        cache.get_or_compute("k", lambda: 1, keep=lambda value: 1 / 0)
    assert store.kept == {}
    assert cache.get_or_compute("k", lambda: "good") == ("good", False)
    assert cache.get_or_compute("k", never) == ("good", True)
    assert cache.stats().to_dict() == {
        "hits": 1, "misses": 4, "shared": 0, "entries": 1, "store_hits": 0, "failures": 2, "unkept": 1,
        "store_errors": 0, "store": {"up": True}, "hit_rate": 0.2,
    }  # fmt: skip


def test_threads_may_do_anything_at_once():
    cache = SingleFlightCache(max_entries=5, ttl_s=0.001)

    def work(seed):
        for i in range(300):
            key = str((seed * 7 + i) % 11)
            assert cache.get_or_compute(key, lambda k=key: k)[0] == key
            if i % 50 == 0:
                cache.clear()

    in_threads(work, range(16))
    assert cache.stats().entries <= 5


@pytest.mark.parametrize("failure", [None, ConnectionError("down")])
def test_fifty_threads_and_two_hundred_tasks_on_a_cold_key(cache, workers, failure):
    calls = []
    ready = threading.Barrier(51)

    def compute():
        # One caller leads; where a thread took over from a task, neither of the two counts as sharing.
        until_shared(cache, 248)
        calls.append(time.perf_counter())
        time.sleep(0.3)
        if failure:
            raise failure
        return "value"

    async def tasks():
        jobs = [cache.aget_or_compute("k", compute, submit=workers.submit) for _ in range(200)]
        return await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 30)

    def thread(_):
        ready.wait()
        try:
            return cache.get_or_compute("k", compute, timeout_s=30)
        except ConnectionError as err:
            return err

    with ThreadPoolExecutor(50) as pool:
        threads = [pool.submit(thread, i) for i in range(50)]
        ready.wait()
        outcomes = asyncio.run(tasks()) + [one.result() for one in threads]
    assert time.perf_counter() - calls[0] < 1.5  # 0.6 s on a machine with nothing else to do
    assert (len(calls), len(outcomes)) == (1, 250)
    if failure:
        assert all(outcome is failure for outcome in outcomes)
    else:
        assert {value for value, _ in outcomes} == {"value"}
        assert [cached for _, cached in outcomes].count(False) == 1


class TestTasks:
    @pytest.fixture
    def ask(self, cache, workers):
        """Starts a task that wants a key."""
        return lambda compute, key="k": asyncio.create_task(cache.aget_or_compute(key, compute, submit=workers.submit))

    async def test_waiting_tasks_hold_no_worker(self, cache, ask):
        gate = Gate()
        tasks = [ask(gate) for _ in range(200)]
        await waiting(cache, 199)
        others = await asyncio.wait_for(asyncio.gather(*(ask(lambda i=i: i, str(i)) for i in range(50))), 5)
        assert [value for value, _ in others] == list(range(50))
        gate.go.set()
        assert {value for value, _ in await asyncio.gather(*tasks)} == {"value"}
        assert gate.calls == 1

    @pytest.mark.parametrize("thread_first", [True, False])
    async def test_a_task_follows_a_thread_and_a_thread_a_task(self, cache, ask, thread_first):
        gate = Gate()

        def in_thread():
            return asyncio.create_task(asyncio.to_thread(cache.get_or_compute, "k", gate))

        leader = in_thread() if thread_first else ask(gate)
        assert await asyncio.to_thread(gate.begun.wait, 5)
        follower = ask(gate) if thread_first else in_thread()
        await waiting(cache, 1)
        gate.go.set()
        assert (await leader, await follower) == (("value", False), ("value", True))

    async def test_a_cancelled_leader_harms_nobody_and_all_cancelled_free_the_key(self, cache, ask, workers):
        gate = Gate()
        leader = ask(gate)
        assert await asyncio.to_thread(gate.begun.wait, 5)
        followers = [ask(gate) for _ in range(5)]
        await waiting(cache, 5)
        leader.cancel()
        followers[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await leader
        gate.go.set()
        results = await asyncio.gather(*followers, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert (results[1:], gate.calls) == ([("value", True)] * 4, 1)
        assert cache.get_or_compute("k", never) == ("value", True)
        gate = Gate(RuntimeError("nobody hears this"))
        tasks = [ask(gate, "l") for _ in range(3)]
        await waiting(cache, 7)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gate.go.set()
        workers.close()
        assert cache.get_or_compute("l", lambda: "new") == ("new", False)

    async def test_what_nobody_wants_any_more_is_not_begun_and_told(self, cache):
        with pool(1) as small:
            gate, queued, unwanted = Gate(), Gate(), []

            def ask(key, compute):
                return asyncio.create_task(
                    cache.aget_or_compute(key, compute, submit=small.submit, unwanted=lambda: unwanted.append(key))
                )

            running = ask("a", gate)
            assert await asyncio.to_thread(gate.begun.wait, 5)
            later = [ask("b", queued) for _ in range(2)]
            await waiting(cache, 1)
            later[0].cancel()
            await asyncio.gather(later[0], return_exceptions=True)
            assert not unwanted  # the other one still waits
            later[1].cancel()
            running.cancel()
            await asyncio.gather(*later, running, return_exceptions=True)
            assert sorted(unwanted) == ["a", "b"]
            gate.go.set()
        assert queued.calls == 0
        assert cache.get_or_compute("b", lambda: "new") == ("new", False)

    @pytest.mark.parametrize("interrupt", [SystemExit, KeyboardInterrupt])
    async def test_an_interrupted_leader_is_followed_by_another(self, cache, ask, interrupt):
        gate = Gate(interrupt())

        def lead():
            with pytest.raises(interrupt):
                cache.get_or_compute("k", gate)

        leader = asyncio.create_task(asyncio.to_thread(lead))
        assert await asyncio.to_thread(gate.begun.wait, 5)
        followers = [ask(lambda: "mine") for _ in range(5)]
        followers.append(asyncio.create_task(asyncio.to_thread(cache.get_or_compute, "k", lambda: "mine")))
        await waiting(cache, 6)
        gate.go.set()
        assert {value for value, _ in await asyncio.gather(*followers)} == {"mine"}
        await leader

    async def test_a_pool_whose_workers_all_wait_for_the_same_key_does_not_stand_still(self, cache):
        with pool(2) as small:
            block = threading.Event()
            busy = [small.submit(block.wait, 5) for _ in range(2)]
            leader = asyncio.create_task(cache.aget_or_compute("k", never, submit=small.submit))
            await asyncio.sleep(0)
            # Comes first in line when the workers are free, and would wait for what stands behind it in the line.
            thread = asyncio.to_thread(cache.get_or_compute, "k", lambda: "from the thread")
            assert await asyncio.wait_for(thread, 5) == ("from the thread", False)
            assert await leader == ("from the thread", True)
            block.set()
            assert all(one.result(5) for one in busy)
        assert cache.stats().misses == 1

    async def test_waiting_has_a_limit_for_leaders_too(self, cache, workers):
        gate, told = Gate(), []
        for _ in range(2):
            with pytest.raises(errors.DeadlineExceededError) as caught:
                await cache.aget_or_compute("k", gate, submit=workers.submit, timeout_s=0.01)
            told.append(str(caught.value))
        assert ["another caller" in message for message in told] == [False, True]
        assert await asyncio.to_thread(gate.begun.wait, 5)
        with pytest.raises(errors.DeadlineExceededError):
            cache.get_or_compute("k", never, timeout_s=0.01)
        gate.go.set()
        assert (await cache.aget_or_compute("k", gate, submit=workers.submit, timeout_s=5))[0] == "value"
        assert gate.calls == 1

    async def test_a_timeout_of_the_computation_and_a_pool_that_takes_no_more_lock_no_key(self, cache, workers):
        def compute():
            raise TimeoutError("the model")

        with pytest.raises(TimeoutError, match="the model"):
            await cache.aget_or_compute("k", compute, submit=workers.submit, timeout_s=5)
        with pytest.raises(TimeoutError, match="the model"):
            cache.get_or_compute("k", compute, timeout_s=5)
        workers.close()
        with pytest.raises(errors.AgenticRetrieverError, match="closed"):
            await cache.aget_or_compute("k", never, submit=workers.submit)
        assert cache.get_or_compute("k", lambda: 1) == (1, False)

    def test_one_cache_on_several_event_loops(self, cache, workers):
        async def ask():
            return await cache.aget_or_compute("k", lambda: 1, submit=workers.submit)

        assert [asyncio.run(ask()) for _ in range(3)] == [(1, False), (1, True), (1, True)]

    async def test_the_loop_stays_free(self, ask):
        gaps = []
        task = ask(lambda: time.sleep(0.3))
        while not task.done():
            last = time.perf_counter()
            await asyncio.sleep(0.001)
            gaps.append(time.perf_counter() - last)
        assert len(gaps) > 10
        assert max(gaps) < 0.25

    async def test_everybody_gets_a_copy(self, workers):
        cache = SingleFlightCache(max_entries=10, ttl_s=60, prepare=lambda kept: lambda: list(kept))
        gate = Gate(["a"])
        tasks = [asyncio.create_task(cache.aget_or_compute("k", gate, submit=workers.submit)) for _ in range(3)]
        await waiting(cache, 2)
        gate.go.set()
        for value, _ in await asyncio.gather(*tasks):
            assert value == ["a"]
            value.append("spoiled")
        cache.get_or_compute("k", gate)[0].append("spoiled")
        assert cache.get_or_compute("k", gate) == (["a"], True)


class TestSecondLevel:
    async def test_what_one_cache_computed_another_one_finds_no_older_than_the_shorter_time(self, make, clock, workers):
        assert make().get_or_compute("k", lambda: {"a": 1}) == ({"a": 1}, False)
        other = make()
        assert other.get_or_compute("k", never) == ({"a": 1}, True)
        assert other.get_or_compute("k", never) == ({"a": 1}, True)
        stats = other.stats()
        assert (stats.hits, stats.store_hits, stats.misses, stats.entries) == (1, 1, 0, 1)
        assert stats.to_dict()["store"]["up"] is True
        third = make()
        results = await asyncio.gather(*(third.aget_or_compute("k", never, submit=workers.submit) for _ in range(5)))
        assert results == [({"a": 1}, True)] * 5
        make().get_or_compute("m", lambda: "old")
        clock.now += 50
        other = make()
        assert other.get_or_compute("m", never) == ("old", True)
        clock.now += 9
        assert other.get_or_compute("m", never) == ("old", True)
        clock.now += 1
        assert other.get_or_compute("m", lambda: "new") == ("new", False)
        make(ttl_s=600).get_or_compute("l", lambda: "old")
        other = make(ttl_s=10)
        other.get_or_compute("l", never)
        clock.now += 10
        assert other.stats().entries == 0

    def test_what_a_store_cannot_give_is_replaced_and_what_it_cannot_take_stays_in_memory(self, make, store, caplog):
        store.set("k", b"{damaged", 60)
        cache = make()
        assert cache.get_or_compute("k", lambda: 1) == (1, False)
        assert (store.kept["k"][0], cache.stats().store_errors) == (b"1", 1)
        assert cache.get_or_compute("set", lambda: {1, 2}) == ({1, 2}, False)
        assert cache.get_or_compute("set", never) == ({1, 2}, True)
        assert list(store.kept) == ["k"]
        caplog.clear()

        class BrokenStore:
            def __getattr__(self, name):
                raise OSError("the disk is gone")

        cache = make(second=(BrokenStore(), *JSON))
        assert cache.get_or_compute("k", lambda: 1) == (1, False)
        assert cache.get_or_compute("k", never) == (1, True)
        assert cache.clear() == 1
        stats = cache.stats()
        assert stats.store is None
        assert stats.store_errors >= 3
        assert [record.levelname for record in caplog.records] == ["WARNING"]

    def test_clear_empties_both_levels_and_what_was_computed_before_does_not_come_back(self, make, store):
        cache = make(max_entries=2)
        for key in "abc":
            cache.get_or_compute(key, lambda: 1)
        assert (cache.clear(), store.kept) == (3, {})
        assert cache.get_or_compute("a", lambda: 2) == (2, False)
        store.clear()
        cache = make()
        assert cache.get_or_compute("k", lambda: cache.clear() or "old") == ("old", False)
        assert store.kept == {}
        assert cache.get_or_compute("k", lambda: "new") == ("new", False)
        assert cache.clear() == 1

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
        cache = make(second=(late, *JSON))
        cache.get_or_compute("k", lambda: "old")
        assert late.kept == {}
        FakeStore.set(late, "k", b'"old"', 60)
        assert cache.get_or_compute("k", lambda: "new")[0] == "new"

    def test_waiters_share_one_look_into_the_store(self, make, store):
        gate = Gate()

        class Slow(FakeStore):
            def get(self, key):
                gate()
                return super().get(key)

        slow = Slow(store.clock)
        slow.set("k", b"1", 60)
        cache = make(second=(slow, *JSON))
        with ThreadPoolExecutor(10) as pool:
            jobs = [pool.submit(cache.get_or_compute, "k", never) for _ in range(10)]
            until_shared(cache, 9)
            gate.go.set()
            assert [job.result() for job in jobs] == [(1, True)] * 10
        assert slow.calls == ["set", "get"]


def test_redis_killed_while_in_use(on_redis, own_server, links, breaker):
    server = own_server()
    link = links(server.url, timeout_s=5.0, breaker=breaker)
    cache = on_redis(link)

    def work(seed):
        for i in range(200):
            assert cache.get_or_compute(f"{seed}-{i}", lambda i=i: i)[0] == i
            if seed == i == 3:
                server.kill()

    in_threads(work, range(4))
    assert not link.is_up


def consistent(caches, *, operations, seed):
    """After a change has returned, nobody gets what was true before it, while two threads for each cache ask on."""
    chosen, versions, done = random.Random(seed), [{}], threading.Event()

    def ask(cache, question):
        key = cache_key(question=question, version=len(versions))
        return cache.get_or_compute(key, lambda: versions[-1].get(question, -1))[0]

    def read(cache, random_):
        while not done.is_set():
            ask(cache, random_.randrange(5))

    with ThreadPoolExecutor(len(caches) * 2) as pool:
        jobs = [pool.submit(read, cache, random.Random(seed + i)) for i, cache in enumerate(caches * 2)]
        try:
            for number in range(operations):
                if chosen.random() < 0.3:
                    changed = {chosen.randrange(5): chosen.choice([-1, chosen.randrange(1_000)])}
                    versions.append(versions[-1] | changed)
                if number % 100 == 99:
                    chosen.choice(caches).clear()
                question = chosen.randrange(5)
                assert ask(chosen.choice(caches), question) == versions[-1].get(question, -1), number
        finally:
            done.set()
        for job in jobs:
            job.result()


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_operations_in_memory(seed):
    consistent([SingleFlightCache(max_entries=20, ttl_s=60)], operations=1_000, seed=seed)


def test_several_processes_caches_share_through_one_redis(on_redis, link, namespace):
    first, second, third = (on_redis(link, namespace=namespace) for _ in range(3))
    first.get_or_compute("k", lambda: "ไทย")
    first.close()
    assert second.get_or_compute("k", never) == ("ไทย", True)
    assert second.clear() == 1
    assert third.get_or_compute("k", lambda: "new") == ("new", False)
    assert first.get_or_compute("k", never) == ("ไทย", True), "another process's memory is its own"
    caches = [on_redis(link, namespace=namespace, max_entries=5) for _ in range(3)]
    consistent(caches, operations=300, seed=1)
    caches[0].get_or_compute("last", lambda: 7)
    for cache in caches:
        cache.close()
    assert caches[1].get_or_compute("last", never) == (7, True)
    assert caches[1].stats().store_hits > 0


@pytest.mark.parametrize(
    ("most", "seconds", "kept"), [(9, 77, 3), (2, 77, 2), (0, 77, 0), (9, 0, 0)], ids=["all", "two", "off", "no time"]
)
def test_the_settings_reach_the_cache_of_a_router(make_router, most, seconds, kept):
    router = make_router(model=FakeLLM(lambda _prompt: GOOD), cache_max_entries=most, cache_ttl_s=seconds)
    for top_k in (1, 2, 3):
        router.query(QUESTION, top_k=top_k)
    assert router.cache.stats().entries == kept
    assert all(0 < ends - time.monotonic() <= 77 for _, ends in router.cache._memory.values())


def written(folder, content, name="questions.txt"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_questions_to_warm_with_one_a_line_in_utf8_in_a_file_that_is_there_and_not_too_large(tmp_path, monkeypatch):
    path = written(tmp_path, "\ufeffWhat is leave?\r\n\n   \nที่ดินคืออะไร\nWhat is leave?\n  ¿Qué es?  ")
    assert read_questions(path) == (("What is leave?", "ที่ดินคืออะไร", "¿Qué es?"), ())
    questions, problems = read_questions(written(tmp_path, b"One?\n\xff\xfe\nTwo?"))
    assert (questions, problems) == (("One?", "Two?"), ("line 2: not UTF-8",))
    with pytest.raises(errors.SourceError, match=r"gone\.txt"):
        read_questions(tmp_path / "gone.txt")
    with pytest.raises(errors.SourceError):
        read_questions(tmp_path)
    monkeypatch.setattr("agentic_retriever.cache.MAX_FILE_BYTES", 1_000_000)
    with pytest.raises(errors.SourceError, match="larger than 1 MB"):
        read_questions(written(tmp_path, "What is new?\n" * 80_000))
    assert read_questions(written(tmp_path, "What is new?\n" * 70_000)) == (("What is new?",), ())


@pytest.mark.parametrize("name", ["q.jsonl", "q.ndjson", "Q.JSONL"])
def test_questions_in_json_lines(tmp_path, name):
    rows = ['{"query": "One?", "id": 1}', '{"query": " Two? "}', "not json", '["Three?"]', '{"query": 4}',
            '{"query": " "}', "[" * 100_000]  # fmt: skip
    questions, problems = read_questions(written(tmp_path, "\n".join(rows), name))
    assert questions == ("One?", "Two?")
    assert [problem.split(":")[0] for problem in problems] == ["line 3", "line 4", "line 5", "line 6", "line 7"]
    assert "'query'" in problems[1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(min_size=1).map(str.strip).filter(lambda q: q and q.isprintable())))
def test_any_questions_in_json_lines_come_back_once_and_in_order(tmp_path, questions):
    path = written(tmp_path, "\n".join(json.dumps({"query": q}) for q in questions), "q.jsonl")
    assert read_questions(path) == (tuple(dict.fromkeys(questions)), ())


def test_warming_counts_what_became_of_each_and_stops_where_the_rest_would_fail_alike():
    outcomes = {"a": "stored", "b": "cached", "c": "not_kept", "d": errors.LLMError("down")}

    def ask(question):
        if isinstance(outcomes[question], Exception):
            raise outcomes[question]
        return outcomes[question]

    heard = []
    report = warm(ask, list("abcda"), progress=lambda done, of: heard.append((done, of)))
    assert heard == [(i, 5) for i in range(1, 6)]
    assert json.loads(json.dumps(report.to_dict())) == {
        "asked": 5, "cached": 1, "stored": 2, "not_kept": 1, "failed": [{"question": "d", "reason": "down"}],
        "stopped": "",
    }  # fmt: skip
    assert warm(ask, []).asked == 0
    asked = []

    def fail(question):
        asked.append(question)
        raise errors.StoreError("the disk is full")

    report = warm(fail, ["a", "b"])
    assert (asked, report.asked, report.stopped, len(report.failed)) == (["a"], 1, "the disk is full", 1)
    with pytest.raises(ZeroDivisionError):
        warm(lambda _question: 1 / 0, ["a"])

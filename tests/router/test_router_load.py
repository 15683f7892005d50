"""Many callers at once: nothing fails, nothing waits for what hangs, nothing is left behind."""

import asyncio
import gc
import math
import os
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from command_line import run_fresh
from fault_material import LATE_S, PLAIN, all_down, mode
from llama_index.core.instrumentation.span import SimpleSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index_instrumentation import root_dispatcher
from model_servers import chat, stream_body
from redis_servers import free_port, hang, misbehaving
from small_indexes import GOOD, QUESTION, documents
from store_tools import copied_store
from waiting import in_threads, wait_until, within

from agentic_retriever import AgenticRouter, Budget, RouterConfig
from agentic_retriever.errors import AgenticRetrieverError, DeadlineExceededError, OverloadedError
from agentic_retriever.routing import HeuristicSelector
from agentic_retriever.schema import Tier
from agentic_retriever.synthesis import ExtractiveSynthesizer
from agentic_retriever.testing import FakeEmbedding, FakeLLM
from benchmarks.router_overhead import busy_threads, longest_gap_s

MARS = "How many moons does Mars have?"
WORDS = [
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath",
    "inlet", "jetty", "knoll", "ledge", "marsh", "notch", "oasis", "plain",
]  # fmt: skip


def facts(number):
    return f"Site {number} lies near the {WORDS[number % 16]} {WORDS[number // 16 % 16]} and has {number} gates."


def ask_site(number):
    return f"How many gates has site {number} near the {WORDS[number % 16]} {WORDS[number // 16 % 16]}?"


def told(answer):
    return answer.text, tuple((c.doc_id, c.start, c.end) for c in answer.citations), answer.tier


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    """A data directory with one index of 1,000 nodes."""
    folder = tmp_path_factory.mktemp("load") / "data"
    with AgenticRouter(RouterConfig(data_dir=folder, query_log="none"), embedding=FakeEmbedding(dimension=64)) as made:
        made.add_index("sites", documents({f"s{n}": facts(n) for n in range(1_000)}), description="Sites and gates")
        assert made.index("sites").count() == 1_000
    return folder


@pytest.fixture
def sites(thousand, make_router):
    """Makes routers over the 1,000 nodes."""
    return partial(make_router, data_dir=thousand)


def scripted(prompt):
    """Say what the first passage says, as a model would."""
    return prompt.split("Source: ", 1)[1].split("\n")[1] + " [1]"


def live_threads():
    """Threads that live now, without the one that the progress bars of a library may have started for good."""
    return sum(not thread.name.startswith("tqdm") for thread in threading.enumerate())


def sockets():
    """How many sockets this process holds."""
    held = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            held += entry.readlink().as_posix().startswith("socket:")
    return held


def resident_kb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


class Held:
    """The threads, sockets and memory that this process held at a moment."""

    def __init__(self):
        gc.collect()
        self.threads, self.sockets, self.memory = live_threads(), sockets(), resident_kb()

    def again(self, more_threads=0, seconds=10.0):
        """Wait until no more threads than these, and no more sockets, are held."""
        gc.collect()
        wait_until(lambda: live_threads() <= self.threads + more_threads, seconds)
        wait_until(lambda: sockets() <= self.sockets, seconds)

    def grown_kb(self):
        return resident_kb() - self.memory


linux_only = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts sockets as Linux shows them")


def test_sixteen_threads_get_the_answers_of_one(sites):
    questions = [ask_site(n) for n in range(50)]
    router = sites(model=FakeLLM(scripted), workers=32, cache_max_entries=0, **PLAIN)
    alone = [told(router.query(question)) for question in questions]
    assert {tier for _, _, tier in alone} == {Tier.PRIMARY}

    def work(number):
        answers = [told(router.query(question)) for question in questions[number:] + questions[:number]]
        return answers[50 - number :] + answers[: 50 - number]

    with within(60):
        results = in_threads(work, range(16))
    assert all(result == alone for result in results)


def test_212_callers_do_not_hold_up_the_loop(sites):
    router = sites(model=FakeLLM(scripted), **PLAIN)
    router.query("warm up")
    gc.collect()
    gc.freeze()  # what thousands of tests left takes half a second to look through

    async def streamed(question):
        async with router.astream(question) as pieces:
            async for _ in pieces:
                pass
        return pieces.answer

    async def work():
        ways = (router.aquery, router.aretrieve, router.aquery, streamed)
        return await asyncio.gather(*(ways[n % 4](ask_site(n)) for n in range(212)))

    def gap(_attempt):
        """Return the longest gap as a share of 0.1 s, or of twice what busy threads alone make on a machine in use."""
        router.cache.clear()
        longest, found = asyncio.run(longest_gap_s(work))
        assert [getattr(one, "tier", Tier.PRIMARY) for one in found] == [Tier.PRIMARY] * 212
        return longest / max(0.1, 2 * asyncio.run(longest_gap_s(busy_threads))[0])

    best_of(4, 1.0, gap)


def test_stampede_on_a_cold_key_asks_the_model_once(sites):
    def slow(prompt):
        time.sleep(0.3)
        return scripted(prompt)

    llm = FakeLLM(slow)
    router = sites(model=llm, **PLAIN)
    router.query("warm up")
    llm.prompts.clear()
    question = ask_site(7)

    async def tasks():
        return await asyncio.gather(*(router.aquery(question) for _ in range(200)))

    with ThreadPoolExecutor(51) as pool:
        in_tasks = pool.submit(lambda: asyncio.run(tasks()))
        threads = [pool.submit(router.query, question) for _ in range(50)]
        answers = in_tasks.result(30) + [one.result(30) for one in threads]
    assert (len(llm.prompts), len({told(answer) for answer in answers})) == (1, 1)
    assert sum(not answer.cached for answer in answers) == 1
    assert len({answer.query_id for answer in answers}) == 250


@pytest.mark.parametrize("fault", ["hang", "drip", "stall"])
def test_deadline_holds_for_twenty_at_once(make_tiers, ollama, cloud, fault):
    all_down(ollama, cloud, mode("hang"))
    bodies = {"hang": b"", "drip": b" " * 500, "stall": stream_body("ollama", ["The cat sleeps "], finish=None)}
    mode(fault, bodies[fault])(ollama)
    router = make_tiers(deadline_s=2.0)
    router.retrieve(QUESTION)

    def call(number):
        started = time.monotonic()
        try:
            question = f"{QUESTION} {number}"
            outcome = (router.stream(question).finish() if fault == "stall" else router.query(question)).tier
        except AgenticRetrieverError as err:
            outcome = type(err).__name__
        return time.monotonic() - started, outcome

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(call, range(20)))
    assert max(seconds for seconds, _ in results) <= 2.0 + LATE_S
    assert {outcome for _, outcome in results} <= {Tier.EXTRACTIVE, "StreamBrokenError"}


async def test_hung_models_stop_neither_retrieval_nor_routing(make_tiers, ollama, cloud):
    all_down(ollama, cloud, mode("hang"))
    router = make_tiers(deadline_s=2.0)
    router.retrieve(QUESTION)
    tasks = [asyncio.create_task(router.aquery(f"{QUESTION} {n}")) for n in range(20)]
    await asyncio.to_thread(wait_until, lambda: len(ollama.requests) >= 8)
    with within(1.0):
        found = await asyncio.gather(*(router.aretrieve(QUESTION) for _ in range(5)), router.aroute(QUESTION))
    with within(1.0):
        router.retrieve(QUESTION)
    assert not all(task.done() for task in tasks)  # while these hung, all the others were served
    assert all(one.nodes for one in found[:5])
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, DeadlineExceededError | OverloadedError) or outcome.tier is Tier.EXTRACTIVE


@pytest.mark.parametrize("mode", ["heuristic", "round_robin"])  # with the cache, and without it
def test_callers_of_a_hung_model_get_the_extract_within_their_budget(make_router, monkeypatch, hung_model, mode):
    monkeypatch.setattr(HeuristicSelector, "mode", mode)
    extract, limit_s = ExtractiveSynthesizer.extract, 1.2
    monkeypatch.setattr(ExtractiveSynthesizer, "extract", lambda *a, **b: time.sleep(limit_s / 3) or extract(*a, **b))

    async def ask(router, number):
        started, question = time.monotonic(), f"{QUESTION} {min(number, 6)}"  # alone, and six together
        way = router.aquery if number else partial(asyncio.to_thread, router.query)
        with suppress(DeadlineExceededError):
            if (await way(question, budget=Budget(max_ms=1_000 * limit_s))).tier is Tier.EXTRACTIVE:
                return time.monotonic() - started
        return math.inf

    def slowest(_attempt):
        router = make_router(model=hung_model, workers=12, **PLAIN)
        router.retrieve(QUESTION)

        async def all_at_once():
            return await asyncio.gather(*(ask(router, number) for number in range(12)))

        return max(asyncio.run(all_at_once()))

    best_of(3, limit_s + 0.1, slowest)


def test_dead_primary_costs_little_once_it_is_left_alone(make_tiers, ollama, cloud, endpoints):
    endpoints(cooldown_s=600)
    ollama.reply({"error": "x"}, 500)
    dead = make_tiers(cache_max_entries=0)
    alone = make_tiers(llm="openrouter:openai/gpt-4o-mini", llm_cloud="none", cache_max_entries=0)
    alone.query(QUESTION)
    dead.query(QUESTION)
    assert len(ollama.requests) == 3
    assert_hardly_slower(dead, alone)
    assert len(ollama.requests) == 3


def best_of(tries, enough, measure):
    """See that one of so many measurements is small; another process may hold up the machine in some, not in all."""
    measured = []
    while len(measured) < tries and not (measured and measured[-1] <= enough):
        measured.append(measure(len(measured)))
    assert min(measured) <= enough, measured


def p95(times):
    return statistics.quantiles(times, n=20)[-1]


def assert_hardly_slower(one, other):
    """A query of one router is hardly slower than one of another: 50 ms between their 95th percentiles."""

    def added(attempt):
        times = {one: [], other: []}
        for number in range(40):
            for router in (one, other):
                started = time.perf_counter()
                router.query(f"{QUESTION} {attempt} {number}")
                times[router].append(time.perf_counter() - started)
        return p95(times[one]) - p95(times[other])

    best_of(6, 0.05, added)


@pytest.mark.parametrize("server", ["dead", "hangs"])
def test_redis_that_is_down_costs_little(make_router, server):
    pytest.importorskip("redis", reason="the extra 'redis' is not installed")
    with misbehaving(hang) as hanging:
        url = hanging if server == "hangs" else f"redis://127.0.0.1:{free_port()}/0"
        without, router = make_router(), make_router(redis_url=url)
        without.query(QUESTION)
        best_of(6, 0.3, lambda _: timed(make_router(redis_url=url), MARS) - timed(make_router(), MARS))
        assert_hardly_slower(router, without)
        assert router.query(f"{QUESTION} 0 3").cached
        assert not router.cache.stats().to_dict()["store"]["up"] or server == "hangs"


def timed(router, question):
    """Ask a question whose answer must be whole, and return the seconds that it took."""
    started = time.perf_counter()
    assert not router.query(question).degraded
    return time.perf_counter() - started


def test_warm_cache_and_overhead_are_small(sites):
    """The bounds for any machine; ``make bench`` holds a quiet one to 0.2 ms for a hit and 1 ms of overhead."""
    router = sites(**PLAIN)
    question = ask_site(3)
    router.query(question)

    def hits(_attempt):
        times = []
        for _ in range(100):
            started = time.perf_counter()
            assert router.query(question).cached
            times.append(time.perf_counter() - started)
        return p95(times)

    def overhead(_attempt):
        nodes = [router.retrieve(ask_site(n), index="sites", strategy="vector").timings_ms for n in range(50)]
        return p95([timing["total"] - timing["retrieval"] - timing.get("embedding", 0.0) for timing in nodes])

    best_of(8, 0.005, hits)
    best_of(8, 10, overhead)


@linux_only
def test_some_hundred_queries_leave_nothing_behind(make_tiers, ollama):
    ollama.reply(chat("ollama", GOOD))
    router = make_tiers(cache_max_entries=50)
    for number in range(300):
        if number == 100:
            held = Held()
        assert router.query(f"{QUESTION} {number}").tier is Tier.PRIMARY
    # The router may have started its pool for searches side by side, which stays as large as it is allowed to be.
    held.again(more_threads=router.config.workers)
    assert held.grown_kb() <= 20_000


class Counting(BaseSpanHandler[SimpleSpan]):
    seen: int = 0  # those that have not ended are in ``open_spans``

    def new_span(self, id_, **_told):
        self.seen += 1
        return SimpleSpan(id_=id_)

    def prepare_to_exit_span(self, id_, **_told):
        return self.open_spans.get(id_)

    prepare_to_drop_span = prepare_to_exit_span


@pytest.fixture
def spans():
    """A handler of all spans until the test ends."""
    before, counting = list(root_dispatcher.span_handlers), Counting()
    root_dispatcher.add_span_handler(counting)
    yield counting
    root_dispatcher.span_handlers = before


@linux_only
def test_five_thousand_queries_leave_nothing_behind(make_router, small_store, tmp_path, spans):
    """Most come from the cache, as in use; each of the 200 new ones pushes an old answer out of the caches."""
    copied_store(small_store, tmp_path / "data")
    before = Held()
    router = make_router(cache_max_entries=50, query_log="plain", data_dir=tmp_path / "data", **PLAIN)

    def some(first, count):
        """Ask so many questions, of which every 25th is new, and return how many answers were in the cache."""
        return sum(router.query(f"{QUESTION} {number // 25}").cached for number in range(first, first + count))

    some(0, 1_500)
    held, seen = Held(), spans.seen
    assert some(1_500, 5_000) == 4_800
    # The pool for searches side by side may have grown to what it is allowed to be, which it stays.
    held.again(more_threads=router.config.workers)
    assert held.grown_kb() <= 20_000
    assert (router.cache.stats().entries, router.analytics().queries) == (50, 6_500)
    assert spans.seen - seen >= 5_000
    wait_until(lambda: not spans.open_spans)
    router.close()
    before.again()


@linux_only
def test_cancelled_queries_and_abandoned_streams_leave_nothing_behind(make_tiers, ollama, cloud, endpoints, spans):
    endpoints(failures=100)
    mode("stall", stream_body("ollama", ["The cat ", "sleeps ", "sixteen "], finish=None))(ollama)
    mode("hang")(cloud)
    router = make_tiers(deadline_s=1.5, llm_small="none")
    router.retrieve(QUESTION)
    held = Held()

    async def cancelled():
        tasks = [asyncio.create_task(router.aquery(f"{QUESTION} {n}")) for n in range(100)]
        await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert len(asyncio.all_tasks()) == 1
        # The query's own span has ended, whatever still runs below it in a thread.
        assert not [span_id for span_id in spans.open_spans if span_id.startswith("AgenticRouter.query")]

    async def abandoned():
        for number in range(50):
            async for piece in router.astream(f"{QUESTION} a{number}"):
                assert piece
                break

    asyncio.run(cancelled())
    for number in range(50):
        assert next(iter(router.stream(f"{QUESTION} s{number}")))
    asyncio.run(abandoned())
    gc.collect()
    # The stand-in keeps a thread and a socket for each connection until it is released, the router its worker threads.
    ollama.released.set()
    cloud.released.set()
    wait_until(lambda: ollama.open_connections == cloud.open_connections == 0, 10)
    held.again(more_threads=3 * router.config.workers + 1)
    wait_until(lambda: not spans.open_spans, 20)
    router.close()
    held.again()


async def test_what_waits_for_a_worker_is_not_begun_once_it_is_cancelled(make_router):
    begun, go = threading.Event(), threading.Event()

    def held(prompt):
        begun.set()
        assert go.wait(20)
        return GOOD

    llm = FakeLLM(held)
    router = make_router(model=llm, workers=1, **PLAIN)
    tasks = [asyncio.create_task(router.aquery(f"{QUESTION} {n}")) for n in range(20)]
    assert await asyncio.to_thread(begun.wait, 20)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    go.set()
    assert (await router.aquery(f"{QUESTION} 20")).text == GOOD
    assert (len(llm.prompts), router.cache.stats().misses) == (2, 2)


def test_one_router_in_successive_loops_threads_and_a_running_loop(make_tiers, ollama, cloud):
    before = asyncio.run.__module__
    ollama.reply(chat("ollama", GOOD))
    router = make_tiers(cache_max_entries=0)
    for _ in range(3):
        assert asyncio.run(router.aquery(QUESTION)).text == GOOD
        assert asyncio.run(router.aquery(QUESTION, force_cloud=True)).text == GOOD

    async def streamed():
        return "".join([piece async for piece in router.astream(QUESTION, force_cloud=True)])

    assert [asyncio.run(streamed()) for _ in range(3)] == [GOOD] * 3
    with ThreadPoolExecutor(4) as pool:
        loops = list(pool.map(lambda n: asyncio.run(router.aquery(f"{QUESTION} {n}")).text, range(8)))
    assert loops == [GOOD] * 8

    async def running():
        return router.query(QUESTION).text, (await router.aquery(QUESTION, force_cloud=True)).text

    assert asyncio.run(running()) == (GOOD, GOOD)
    assert asyncio.run.__module__ == before == "asyncio.runners"


@pytest.fixture
def hung(make_tiers, ollama, cloud):
    """A router whose models hang."""
    all_down(ollama, cloud, mode("hang"))
    router = make_tiers(deadline_s=1.5)
    router.retrieve(QUESTION)
    return router


def test_close_while_queries_run(hung, ollama):
    def call(number):
        try:
            return hung.query(f"{QUESTION} {number}").tier
        except AgenticRetrieverError as err:
            return type(err).__name__

    with ThreadPoolExecutor(6) as pool:
        callers = [pool.submit(call, number) for number in range(6)]
        wait_until(lambda: len(ollama.requests) == 6)
        with within(1.5 + LATE_S):  # what runs is let finish, within its deadline
            hung.close()
            hung.close()
        assert all(caller.result(5) for caller in callers)


async def test_close_while_tasks_wait_for_a_model(hung, ollama):
    task = asyncio.create_task(hung.aquery(QUESTION))
    await asyncio.to_thread(wait_until, lambda: ollama.requests)
    with within(1.5 + LATE_S):
        await asyncio.to_thread(hung.close)
    outcome = (await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 20))[0]
    assert isinstance(outcome, AgenticRetrieverError) or outcome.tier is Tier.EXTRACTIVE


def test_interpreter_ends_without_a_traceback(tmp_path, make_server):
    server = make_server()
    server.mode = "hang"
    code = f"""
        import asyncio
        from agentic_retriever import AgenticRouter, RouterConfig
        from agentic_retriever.testing import FakeEmbedding
        from llama_index.core.schema import Document

        async def main():
            tasks = [asyncio.create_task(router.aquery("How long does the cat sleep? " + str(n))) for n in range(3)]
            await asyncio.sleep(0.3)
            return tasks, router.stream("How long does the cat sleep, please?")

        config = RouterConfig(data_dir={str(tmp_path / "data")!r}, llm="ollama:x", ollama_base_url={server.url!r},
                              deadline_s=2.0, query_log="none")
        router = AgenticRouter(config, embedding=FakeEmbedding(dimension=64))
        router.add_index("cats", [Document(text="The cat sleeps sixteen hours.", doc_id="cat")])
        kept = asyncio.run(main())
        print("end")
    """
    done = run_fresh(code, timeout=40)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")

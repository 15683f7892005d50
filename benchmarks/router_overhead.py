"""What the router adds to a search: both routing stages, the way through its hops, the cache, and gaps of the loop."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.data import DIMENSION, questions, texts
from benchmarks.harness import Row, Timing, measure, no_garbage_collection, say, timed_row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from agentic_retriever.router import AgenticRouter
    from benchmarks.harness import Options

T = TypeVar("T")

NODES = 1_000
MANY_NODES = 1_024  # as many as a profile samples, so that stage one has all its work
INDEXES = 3
MANY_INDEXES = 20
WORDS = 20
TOP_K = 10
RUNS = 200
WARM_UP = 20
STRATEGY = "vector"
OVERHEAD_TARGET_MS = 1.0
ROUTING_TARGET_MS = 2.0
CACHE_TARGET_MS = 0.2
CALLERS = 212
GAP_ROUNDS = 5
GAP_TARGET_MS = 100.0
BUSY_THREADS = 8
BUSY_S = 0.2
_SEED = 41


def run(options: Options) -> list[Row]:
    """Measure without any model: made-up vectors, and questions whose vectors are known already."""
    count = options.sized(NODES)
    with _router(INDEXES, count, cached_answers=0) as (router, asked):
        rows = [_pinned(router, asked, count), _routed(router, asked, count)]
    with _router(INDEXES, count, cached_answers=RUNS) as (router, asked):
        rows.append(_cache_hit(router, asked))
        rows.append(_loop_gap(router))
    with _router(MANY_INDEXES, options.sized(MANY_NODES), cached_answers=0) as (router, asked):
        rows.append(_both_stages(router, asked, options.sized(MANY_NODES)))
    return rows


def _pinned(router: AgenticRouter, asked: Sequence[str], count: int) -> Row:
    name = router.index_names()[0]
    overhead, note = _overhead(
        router, asked, lambda query: router.retrieve(query, index=name, strategy=STRATEGY, top_k=TOP_K), lambda _: name
    )
    return timed_row(
        "router_overhead: index and strategy pinned", overhead, target_ms=OVERHEAD_TARGET_MS,
        note=f"{count:,} nodes; {note}",
    )  # fmt: skip


def _routed(router: AgenticRouter, asked: Sequence[str], count: int) -> Row:
    overhead, note = _overhead(
        router,
        asked,
        lambda query: router.retrieve(query, strategy=STRATEGY, top_k=TOP_K),
        lambda query: router.route(query).index.name,
    )
    return timed_row(
        f"router_overhead: routed over {INDEXES} indexes", overhead, target_ms=OVERHEAD_TARGET_MS,
        note=f"{count:,} nodes each; {note}",
    )  # fmt: skip


def _both_stages(router: AgenticRouter, asked: Sequence[str], count: int) -> Row:
    timing = measure(router.route, asked, warm_up=WARM_UP)
    return timed_row(
        f"router_overhead: both stages, {MANY_INDEXES} indexes", timing, target_ms=ROUTING_TARGET_MS,
        note=f"route() as a whole, question embedded before; {count:,} nodes each, {DIMENSION} dimensions",
    )  # fmt: skip


def _cache_hit(router: AgenticRouter, asked: Sequence[str]) -> Row:
    kept = [query for query in asked if not router.query(query).cached and router.query(query).cached]
    if not kept:
        raise RuntimeError("no answer was taken from the cache, so that a hit cannot be timed")
    timing = measure(router.query, kept, warm_up=WARM_UP)
    return timed_row(
        "router_overhead: answer from the cache", timing, target_ms=CACHE_TARGET_MS,
        note=f"query() as a whole; {INDEXES} indexes",
    )  # fmt: skip


def _loop_gap(router: AgenticRouter) -> Row:
    numbers = itertools.count()

    async def callers() -> None:
        ways = (router.aquery, router.aretrieve)
        await asyncio.gather(*(ways[n % 2](f"What is known of case {next(numbers)}?") for n in range(CALLERS)))

    async def gap_ms(work: Callable[[], Awaitable[object]]) -> float:
        return 1000 * (await longest_gap_s(work))[0]

    asyncio.run(callers())
    gaps = [(asyncio.run(gap_ms(callers)), asyncio.run(gap_ms(busy_threads))) for _ in range(GAP_ROUNDS)]
    ours, busy = (Timing.of(side) for side in zip(*gaps, strict=True))
    return timed_row(
        f"router_overhead: longest gap of the loop, {CALLERS} callers", ours, target_ms=GAP_TARGET_MS,
        peer=f"{BUSY_THREADS} busy threads", peer_timing=busy,
        note="new questions, half answered without a model, half only retrieved; each run is one longest gap",
    )  # fmt: skip


async def longest_gap_s(work: Callable[[], Awaitable[T]]) -> tuple[float, T]:
    """Return the longest time that the loop was held up while the work ran, and what the work returned."""
    gaps, wait_s, running = [0.0], 0.005, True

    async def tick() -> None:
        while running:
            last = time.perf_counter()
            await asyncio.sleep(wait_s)
            gaps.append(time.perf_counter() - last - wait_s)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(4 * wait_s)
    result = await work()
    running = False
    await ticking  # it may have been held up until now
    return max(gaps), result


async def busy_threads() -> None:
    """Compute in eight threads: what holds up any loop."""

    def burn() -> None:
        end = time.thread_time() + BUSY_S
        while time.thread_time() < end:
            sum(range(1_000))

    await asyncio.gather(*(asyncio.to_thread(burn) for _ in range(BUSY_THREADS)))


def _overhead(
    router: AgenticRouter, asked: Sequence[str], through_router: Callable[[str], object], index_of: Callable[[str], str]
) -> tuple[Timing, str]:
    """Time each question through the router and then on the bare adapter, and take the difference."""
    from agentic_retriever.retrievers import RetrievalRequest
    from agentic_retriever.schema import Strategy

    resources = router.resources
    embedding = resources.embedding()
    adapters = [resources.adapter(router.index(index_of(query)), Strategy(STRATEGY)) for query in asked]
    requests = [
        RetrievalRequest(query=query, top_k=TOP_K, query_vector=tuple(embedding.embed_query(query).tolist()))
        for query in asked
    ]
    measure(through_router, asked, warm_up=WARM_UP)
    calls = [
        (lambda a=adapter, r=request: a.search(r), lambda q=query: through_router(q))
        for query, adapter, request in zip(asked, adapters, requests, strict=True)
    ]
    bare, routed = _in_turn(calls)
    more = [ours - alone for alone, ours in zip(bare, routed, strict=True)]
    return Timing.of(more), f"on top of the bare adapter's {Timing.of(bare).p50_ms:.3f} ms"


def _in_turn(calls: Sequence[tuple[Callable[[], object], Callable[[], object]]]) -> tuple[list[float], list[float]]:
    """Time pairs of calls in milliseconds; every other pair the second goes first, so that neither gains from it."""
    taken: tuple[list[float], list[float]] = ([], [])
    with no_garbage_collection():
        for i, pair in enumerate(calls):
            for side in (0, 1) if i % 2 else (1, 0):
                start = time.perf_counter()
                pair[side]()
                taken[side].append((time.perf_counter() - start) * 1000)
    return taken


@contextmanager
def _router(indexes: int, nodes: int, *, cached_answers: int) -> Iterator[tuple[AgenticRouter, list[str]]]:
    """Make a router over synthetic indexes, and questions about all of them whose vectors it knows already."""
    from llama_index.core.schema import TextNode

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.router import AgenticRouter
    from agentic_retriever.routing import ProfileClassifier
    from agentic_retriever.testing import FakeEmbedding

    with tempfile.TemporaryDirectory() as folder:
        # Never two indexes at once, so that there is one bare search to compare with.
        config = RouterConfig(data_dir=Path(folder), cache_max_entries=cached_answers)
        asked: list[str] = []
        say(f"  indexing {indexes} x {nodes:,} nodes")
        classifier = ProfileClassifier(index_margin=0)
        with AgenticRouter(config, embedding=FakeEmbedding(dimension=DIMENSION), classifier=classifier) as router:
            for i in range(indexes):
                bodies = texts(nodes, seed=_SEED + i, words=WORDS, vocabulary=i)
                made = [TextNode(id_=f"index-{i}-node-{n}", text=body) for n, body in enumerate(bodies)]
                router.add_index(f"index-{i:02d}", made, description=bodies[0], views=False)
                asked += questions(bodies, -(-RUNS // indexes), seed=_SEED + i)
            asked = list(dict.fromkeys(asked))[:RUNS]
            for query in asked:
                router.route(query)
            yield router, asked

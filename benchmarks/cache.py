"""What a hit in the answer cache costs, beside cachetools' cache with a lock and a deep copy."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

from benchmarks.data import texts
from benchmarks.harness import Row, Timing, measure, no_garbage_collection, timed_row

if TYPE_CHECKING:
    from agentic_retriever.cache import SingleFlightCache
    from agentic_retriever.schema import Answer
    from benchmarks.harness import Options

ENTRIES = 500
NODES = 8
WORDS = 350  # about a chunk of 512 tokens
RUNS = 2_000
WARM_UP = 200
HIT_TARGET_MS = 0.2
THREADS = 50
TASKS = 200
COMPUTE_S = 0.3
STAMPEDE_TARGET_MS = 600.0
STAMPEDES = 5
_SEED = 61


def run(_options: Options) -> list[Row]:
    """Measure hits in memory, the JSON form that goes to Redis, and many callers of one cold key."""
    answer = _answer()
    return [_hit(answer), *_codec(answer), _stampede()]


def _hit(answer: Answer) -> Row:
    from cachetools import TTLCache

    from agentic_retriever.cache import SingleFlightCache
    from agentic_retriever.pipeline.answers import prepared_answer

    ours: SingleFlightCache[Answer] = SingleFlightCache(max_entries=ENTRIES, ttl_s=1_800, prepare=prepared_answer)
    theirs: TTLCache[str, Answer] = TTLCache(ENTRIES, 1_800)
    lock = threading.Lock()
    keys = [f"{i:064x}" for i in range(ENTRIES)]
    for key in keys:
        ours.get_or_compute(key, lambda: answer)
        theirs[key] = answer

    def peer(key: str) -> object:
        with lock:
            kept = theirs[key]
        return copy.deepcopy([(scored.node, scored.score) for scored in kept.nodes])

    asked = [keys[i * 7 % ENTRIES] for i in range(RUNS)]
    timing = measure(lambda key: ours.get_or_compute(key, _not_needed), asked, warm_up=WARM_UP)
    peer_timing = measure(peer, asked[: RUNS // 10], warm_up=WARM_UP // 10)
    return timed_row(
        "cache: hit in memory", timing, peer="cachetools TTLCache + lock + deepcopy of the nodes",
        peer_timing=peer_timing, target_ms=HIT_TARGET_MS, note=f"{ENTRIES} answers of {NODES} nodes of {WORDS} words",
    )  # fmt: skip


def _codec(answer: Answer) -> list[Row]:
    from agentic_retriever.pipeline.answers import decoded, encoded

    data = encoded(answer)
    note = f"{len(data):,} bytes; {NODES} nodes"
    return [
        timed_row("cache: answer to JSON", measure(encoded, [answer] * 300, warm_up=20), note=note),
        timed_row("cache: answer from JSON", measure(decoded, [data] * 300, warm_up=20), note=note),
    ]


def _stampede() -> Row:
    """Time from the start of all callers of one cold key to the end of the last, one computation of 300 ms included."""
    from agentic_retriever.cache import SingleFlightCache
    from agentic_retriever.threads import Workers

    taken = []
    with closing(Workers(8, "benchmark")) as workers, no_garbage_collection():
        for _ in range(STAMPEDES):
            cache: SingleFlightCache[int] = SingleFlightCache(max_entries=1, ttl_s=60)
            taken.append(asyncio.run(_all_at_once(cache, workers.submit)) * 1000)
            if cache.stats().misses != 1:
                raise RuntimeError(f"{cache.stats().misses} computations for one key")
    return timed_row(
        f"cache: {THREADS} threads and {TASKS} tasks on a cold key", Timing.of(taken), target_ms=STAMPEDE_TARGET_MS,
        note=f"one computation of {COMPUTE_S * 1000:.0f} ms, which is in the figure",
    )  # fmt: skip


async def _all_at_once(cache: SingleFlightCache[int], submit: object) -> float:
    def compute() -> int:
        time.sleep(COMPUTE_S)
        return 1

    ready = threading.Barrier(THREADS + 1)

    def call() -> None:
        ready.wait()
        cache.get_or_compute("key", compute)

    threads = [threading.Thread(target=call) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    waiting = [cache.aget_or_compute("key", compute, submit=submit) for _ in range(TASKS)]  # type: ignore[arg-type]
    await asyncio.gather(*waiting)
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def _not_needed() -> Answer:
    raise RuntimeError("a hit was expected")


def _answer() -> Answer:
    from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

    from agentic_retriever.schema import Answer, Citation, Complexity, Confidence, RouteDecision, Selection, Tier, Usage

    bodies = texts(NODES, seed=_SEED, words=WORDS)
    nodes = tuple(
        NodeWithScore(
            node=TextNode(
                id_=f"node-{i}",
                text=body,
                metadata={"title": f"Title {i}", "page": i, "section": "A", "retrieval": {"dense": 0.5, "bm25": 3.1}},
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"doc-{i}")},
            ),
            score=1.0 - i / 10,
        )
        for i, body in enumerate(bodies)
    )  # fmt: skip
    choice = Selection(name="a", confidence=0.9, scores={"a": 0.9, "b": 0.1}, margin=0.8, reason="r", mode="profile")
    route = RouteDecision(query="q", index=choice, strategy=choice, complexity=Complexity.SIMPLE, complexity_score=0.1)
    citation = Citation(number=1, doc_id="doc-0", node_id="node-0", start=0, end=10, quote=bodies[0][:10], score=1.0)
    return Answer(
        text=bodies[0][:200] + " [1]", citations=(citation,), confidence=Confidence.of(0.9), route=route, nodes=nodes,
        usage=Usage(), timings_ms={"total": 1.0}, tier=Tier.EXTRACTIVE, cached=False, degraded=(), query_id="1",
    )  # fmt: skip

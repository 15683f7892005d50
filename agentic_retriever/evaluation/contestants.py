"""Asking every question of everybody who takes part; each result is kept as soon as it is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agentic_retriever.evaluation.datasets import LabelledQuery
from agentic_retriever.evaluation.journal import Journal, SilentWatcher, Watcher
from agentic_retriever.evaluation.measures import error_text, fold_to_documents
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import Degradation, Usage

if TYPE_CHECKING:
    from llama_index.core.schema import NodeWithScore

from collections.abc import Iterable

from agentic_retriever.indices import Index
from agentic_retriever.indices.derived import BUILT_IN_QUERY, SilentProgress
from agentic_retriever.retrievers import REGISTRY
from agentic_retriever.schema import Strategy, View

COLD: Final = "cold"
"""Kind of the record of a first search, in which everything is opened."""

WARM: Final = "warm"
"""Kind of the record of one question."""


class Found(NamedTuple):
    """What a contestant gave for a question."""

    nodes: Sequence[NodeWithScore]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """Somebody who can be asked."""

    name: str
    ask: Callable[[LabelledQuery], Found]  # may raise anything
    close: Callable[[], None] | None = None  # closes what a search opens, so that the next one is a cold one
    peer: bool = False
    note: str = ""


def router_contestant(
    router: AgenticRouter, index: str, strategy: str | None, *, name: str, depth: int, owned: bool
) -> Contestant:
    """Make a contestant of the router with a strategy pinned, or choosing it itself, asked as in production."""

    def ask(query: LabelledQuery) -> Found:
        result = router.retrieve(query.text, index=index, strategy=strategy, top_k=depth)
        chosen = result.route.strategy
        return Found(
            result.nodes,
            {
                "stages": dict(result.timings_ms),
                "degraded": fallen_back(result.degraded),
                "strategy": chosen.name,
                "used": result.strategy.value,
                "confidence": chosen.confidence,
                "reason": chosen.reason,
                "mode": chosen.mode,
                "complexity": result.route.complexity.value,
                **spent(result.usage),
            },
        )

    return Contestant(name=name, ask=ask, close=router.resources.close if owned else None)


def spent(usage: Usage) -> dict[str, float]:
    """Return tokens, money and calls of a question."""
    facts = usage.to_dict()
    tokens = facts["prompt_tokens"] + facts["completion_tokens"]
    return {"tokens": tokens, "usd": facts["usd"], "llm_calls": facts["llm_calls"]}


def fallen_back(degraded: Sequence[Degradation]) -> list[str]:
    """Name the steps that fell back."""
    return sorted({lost.step for lost in degraded})


def run_contestants(
    contestants: Sequence[Contestant],
    shares: Mapping[str, Sequence[LabelledQuery]],
    journal: Journal,
    *,
    timer: Callable[[], float] = time.perf_counter,
    watcher: Watcher | None = None,
) -> None:
    """Ask the contestants, one after the other; the journal takes each result, and what it has is not done again.

    The first question of each is asked once more beforehand: cold, with everything closed, where that can be done.
    What failed in an interrupted run is tried again.
    """
    watch = watcher or SilentWatcher()
    done = {key for key, record in journal.latest(WARM).items() if not record["error"]}
    for contestant in contestants:
        queries = shares.get(contestant.name, ())
        waiting = [query for query in queries if (contestant.name, query.query_id) not in done]
        watch.begin(contestant.name, len(queries))
        watch.advance(len(queries) - len(waiting))
        if not waiting:
            continue
        if contestant.close is not None:
            contestant.close()
        opening = _asked(contestant, waiting[0], timer)
        if contestant.close is not None and not opening["error"]:
            journal.append({"kind": COLD, "row": contestant.name, "ms": opening["ms"]})
        for query in waiting:
            journal.append(_asked(contestant, query, timer))
            watch.advance(1)


def _asked(contestant: Contestant, query: LabelledQuery, timer: Callable[[], float]) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": WARM, "row": contestant.name, "query": query.query_id, "docs": [], "error": ""}
    start = timer()
    try:
        found = contestant.ask(query)
    except Exception as err:  # noqa: BLE001 - the seam to any retriever; one question must not end the run
        return {**record, "ms": (timer() - start) * 1000, "error": error_text(err)}
    ms = (timer() - start) * 1000
    return {**record, **found.facts, "ms": ms, "docs": fold_to_documents(found.nodes), "nodes": len(found.nodes)}


# Building the views that strategies need before anything is measured, so that no question pays for it.

VIEWS_AT_ONCE: Final = frozenset({View.HIERARCHY, View.SUMMARY})
"""Views that are built together."""


def build_views(index: Index, strategies: Iterable[Strategy], watcher: Watcher) -> frozenset[View]:
    """Build what strategies need; summaries are never written by a model here."""
    needed = {view for strategy in strategies for view in REGISTRY[strategy].needs}
    index.profile()
    if index.is_attached:
        return frozenset(needed & index.views)  # what it has was read when it was attached
    if View.KEYWORD in needed:
        watcher.begin(f"words of {index.name}", 1)
        index.keyword()
    if View.HIERARCHY in needed or (View.SUMMARY in needed and index.count() > BUILT_IN_QUERY):
        index.build_views(_Documents(watcher, index))
        needed |= VIEWS_AT_ONCE
    elif View.SUMMARY in needed:
        watcher.begin(f"summaries of {index.name}", 1)
        index.summaries()
    return frozenset(needed)


class _Documents(SilentProgress):
    """Hears of views being built, document by document, and tells a watcher."""

    def __init__(self, watcher: Watcher, index: Index) -> None:
        self._watcher = watcher
        self._name = index.name
        self._total = len(index.doc_ids())
        self._done = 0

    def nodes(self, found: int) -> None:  # noqa: ARG002 - one call a document
        """Tell of one document; leaves come first, then summaries."""
        if self._done in {0, self._total}:
            what = "leaves" if self._done == 0 else "summaries"
            self._watcher.begin(f"{what} of {self._name}", self._total)
        self._done += 1
        self._watcher.advance(1)

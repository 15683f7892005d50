"""Running every strategy of an index over judged questions."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.choices import told
from agentic_retriever.evaluation.measures import fold_to_documents, ndcg_by_query
from agentic_retriever.evaluation.results import Failure
from agentic_retriever.evaluation.watching import SilentWatcher
from agentic_retriever.indices import Index
from agentic_retriever.retrievers import AdapterSettings, RetrievalRequest, build_adapter, cards
from agentic_retriever.schema import Strategy, View, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentic_retriever.evaluation.journal import Journal
    from agentic_retriever.evaluation.vectors import Vector
    from agentic_retriever.evaluation.watching import Watcher
    from agentic_retriever.indices import RoutedIndex
    from agentic_retriever.retrievers import FusionModel, RetrieverAdapter
    from agentic_retriever.router import AgenticRouter

DEPTH: Final = 30
"""Nodes fetched for a question, so that ten documents are found where several nodes belong to one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedQuery:
    """A question with its judgments.

    Attributes:
        query_id: Unique in a run.
        text: The question.
        vector: The embedded question, ``(dimension,)``.
        relevance: Grade of each judged document of the index, from 0; at least one above 0.
    """

    query_id: str
    text: str
    vector: Vector
    relevance: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRun:
    """What one strategy did on every question.

    Attributes:
        strategy: Which one.
        quality: nDCG@10 by query id; 0.0 where it failed.
        latency_ms: Milliseconds by query id, the embedding of the question excluded.
        degraded: How often each step fell back to something lesser.
        failures: Questions on which it raised.
    """

    strategy: Strategy
    quality: Mapping[str, float]
    latency_ms: Mapping[str, float]
    degraded: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()

    def __post_init__(self) -> None:
        for name in ("quality", "latency_ms", "degraded"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    @property
    def mean_quality(self) -> float:
        """Mean nDCG@10, in [0, 1]."""
        return float(np.mean(list(self.quality.values())))

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the latencies, in milliseconds."""
        return float(np.percentile(list(self.latency_ms.values()), percent))

    def summary(self) -> dict[str, Any]:
        """Return the figures without those of each question, as plain JSON types."""
        return {
            "ndcg@10": self.mean_quality,
            "p50_ms": self.percentile_ms(50),
            "p95_ms": self.percentile_ms(95),
            "degraded": dict(self.degraded),
            "failures": [failure.to_dict() for failure in self.failures],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {**self.summary(), "quality": dict(self.quality), "latency_ms": dict(self.latency_ms)}

    @classmethod
    def from_dict(cls, strategy: Strategy, data: Mapping[str, Any]) -> StrategyRun:
        """Read what ``to_dict`` returned."""
        return cls(
            strategy=strategy,
            quality=data["quality"],
            latency_ms=data["latency_ms"],
            degraded=data["degraded"],
            failures=tuple(Failure(**failure) for failure in data["failures"]),
        )


def run_strategies(
    router: AgenticRouter,
    name: str,
    queries: Sequence[JudgedQuery],
    *,
    weights: FusionModel | None = None,
    journal: Journal | None = None,
    timer: Callable[[], float] = time.perf_counter,
    watcher: Watcher | None = None,
) -> tuple[StrategyRun, ...]:
    """Search with every strategy that an index serves; one after the other, warm.

    Args:
        router: Holds the index.
        name: Name of the index.
        queries: The questions, at least one.
        weights: Weights of hybrid search to try, instead of those that are in force.
        journal: Keeps what is done, and what it has is not done again.
        timer: Seconds, for latencies.
        watcher: Hears how far it is.

    Returns:
        One run per strategy, in declared order.

    Raises:
        EvaluationError: If there is no question, or the index is empty.
        ConfigError: If the extra ``bench`` is not installed.
        UnknownIndexError: If there is no such index.
        StoreError: If the index or the journal cannot be used.
    """
    index, watch = router.index(name), watcher or SilentWatcher()
    if not queries or not index.count():
        what = "no judged question to run" if index.count() else f"index {name!r} is empty"
        raise EvaluationError(f"{what}; name a data set whose judgments are about documents of the index")
    ndcg_by_query({}, {})  # a missing extra shows now, not when the work is done
    build_served_views(index)
    done = {} if journal is None else journal.parts
    runs = []
    for card in cards(index):
        known = _known_run(card.strategy, done.get(card.strategy.value), queries)
        watch.begin(card.strategy.value, len(queries))
        if known is not None:
            runs.append(known)
            watch.advance(len(queries))
            continue
        adapter = _adapter(router, index, card.strategy, weights)
        # An index with a model of its own embeds the questions itself.
        embedded = router.resources.compares(index)
        run = _run(adapter, card.strategy, queries, timer, watch, embedded=embedded)
        runs.append(run)
        if journal is not None:
            journal.keep(card.strategy.value, run.to_dict())
    return tuple(runs)


def _adapter(
    router: AgenticRouter, index: RoutedIndex, strategy: Strategy, weights: FusionModel | None
) -> RetrieverAdapter:
    """Return the router's adapter, or one that tries other weights."""
    if weights is None:
        return router.resources.adapter(index, strategy)
    settings = AdapterSettings.from_config(router.config, router.resources.workers(), model=router.resources.model)
    return build_adapter(strategy, index, replace(settings, weights=weights))


def build_served_views(index: RoutedIndex) -> None:
    """Build what the strategies that are offered need, so that no first question pays for it or falls back.

    Summaries are never written by a model here.

    Raises:
        EmbeddingError: If something could not be embedded.
        StoreError: If the disk failed.
    """
    if View.KEYWORD in index.views:
        index.keyword()
    if isinstance(index, Index) and index.views & {View.HIERARCHY, View.SUMMARY}:
        index.build_views()


def _known_run(strategy: Strategy, data: Any, queries: Sequence[JudgedQuery]) -> StrategyRun | None:  # noqa: ANN401 - from a file
    """Read a run of an earlier, interrupted measurement; one that does not fit the questions counts as none."""
    try:
        run = StrategyRun.from_dict(strategy, data)
    except (KeyError, TypeError, AttributeError):
        return None
    wanted = {query.query_id for query in queries}
    return run if set(run.quality) == wanted == set(run.latency_ms) else None


def _run(
    adapter: RetrieverAdapter,
    strategy: Strategy,
    queries: Sequence[JudgedQuery],
    timer: Callable[[], float],
    watch: Watcher,
    *,
    embedded: bool = True,
) -> StrategyRun:
    rankings: dict[str, list[str]] = {}
    spent: dict[str, float] = {}
    degraded: Counter[str] = Counter()
    failures: list[Failure] = []
    # The first question is asked twice: once to fill what the first search fills.
    for at, query in enumerate((queries[0], *queries)):
        request = RetrievalRequest(query.text, DEPTH, None, tuple(query.vector.tolist()) if embedded else None)
        start = timer()
        try:
            result = adapter.search(request)
        except Exception as err:  # noqa: BLE001 - the seam to any strategy; one question must not end the run
            rankings[query.query_id] = []
            if at:
                failures.append(Failure(query_id=query.query_id, error=told(err)))
        else:
            rankings[query.query_id] = fold_to_documents(result.nodes)
            if at:
                degraded.update({lost.step for lost in result.degraded})
        spent[query.query_id] = (timer() - start) * 1000
        watch.advance(min(at, 1))
    quality = ndcg_by_query({query.query_id: query.relevance for query in queries}, rankings)
    return StrategyRun(
        strategy=strategy,
        quality=quality,
        latency_ms=spent,
        degraded=dict(sorted(degraded.items())),
        failures=tuple(failures),
    )

"""The hops of one query between the question and the nodes: both routing stages, then retrieval."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agentic_retriever.deadlines import DeadlineCaller
from agentic_retriever.errors import (
    AgenticRetrieverError,
    DeadlineExceededError,
    InvalidQueryError,
    NoEligibleStrategyError,
    RetrievalError,
    RoutingError,
    UnknownIndexError,
    UnknownStrategyError,
    unknown_name,
)
from agentic_retriever.retrievers import REGISTRY, RetrievalRequest, cards
from agentic_retriever.router.merge import merge_indexes
from agentic_retriever.routing import assess_complexity, query_features
from agentic_retriever.schema import Degradation, Retrieval, RouteDecision, Selection, Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.embeddings.model import Vector
    from agentic_retriever.indices import Index
    from agentic_retriever.retrievers import SearchResult
    from agentic_retriever.router.refining import Refiner
    from agentic_retriever.router.resources import Resources
    from agentic_retriever.router.timing import QueryClock
    from agentic_retriever.routing import IndexClassifier, StrategySelector

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question with what its caller fixed."""

    query: str
    top_k: int
    index: str | None = None
    strategy: Strategy | None = None
    filters: MetadataFilters | None = None
    top_k_given: bool = False


@dataclass(frozen=True, slots=True)
class Routed:
    """A decision, the strategies to try in order, and the vector that was computed for it."""

    decision: RouteDecision
    order: tuple[Strategy, ...]
    query_vector: Vector | None


def pinned_strategy(name: str | Strategy | None) -> Strategy | None:
    """Return the strategy that a caller named.

    Raises:
        UnknownStrategyError: If no registered strategy has that name.
    """
    if name is None:
        return None
    known = [strategy.value for strategy in REGISTRY]
    value = name.value if isinstance(name, Strategy) else str(name)
    if value not in known:
        raise UnknownStrategyError(unknown_name("strategy", value, known))
    return Strategy(value)


class RouteStage:
    """Chooses the index and the strategy."""

    def __init__(self, resources: Resources, classifier: IndexClassifier, selector: StrategySelector) -> None:
        self._resources = resources
        self._classifier = classifier
        self._selector = selector

    def run(self, question: Question, clock: QueryClock) -> Routed:
        """Decide.

        Raises:
            UnknownIndexError: If the pinned index is unknown.
            RoutingError: If there is no index to choose from.
            NoEligibleStrategyError: If the chosen index serves no strategy.
        """
        names = self._resources.storage.names()
        if question.index is not None and question.index not in names:
            raise UnknownIndexError(unknown_name("index", question.index, names))
        if not names:
            raise RoutingError(
                f"there is no index in {self._resources.config.data_dir}; add one with add_index() "
                "or: agentic-retriever index add NAME PATH"
            )
        degraded: list[Degradation] = []
        vector = self._embed(question, clock, degraded)
        with clock.step("routing"):
            index = self._stage_one(question, names, vector, degraded)
            chosen = self._resources.index(index.name)
            complexity, score = assess_complexity(question.query)
            features = query_features(question.query, chosen.profile(), score)
            strategy = self._stage_two(question, chosen, features)
        decision = RouteDecision(
            query=question.query,
            index=index,
            strategy=strategy,
            complexity=complexity,
            complexity_score=score,
            features=features,
            timings_ms=clock.timings_ms(),
            degraded=tuple(degraded),
        )
        others = () if question.strategy else tuple(s for s in strategy.scores if s != strategy.name)
        return Routed(decision, tuple(Strategy(name) for name in (strategy.name, *others)), vector)

    def _embed(self, question: Question, clock: QueryClock, degraded: list[Degradation]) -> Vector | None:
        """Embed the question once for routing and retrieval; without a vector both go on lexically."""
        with clock.step("embedding"):
            try:
                # Half of the time at most, so that a search by words can still follow.
                limit = clock.left_s("embedding the question") / 2
                return self._resources.embedding().embed_query(question.query, timeout_s=limit)
            except AgenticRetrieverError as err:
                if question.strategy is Strategy.VECTOR:
                    raise
                degraded.append(Degradation(step="embedding", reason=str(err), fallback="words only"))
                return None

    def _stage_one(
        self, question: Question, names: Sequence[str], vector: Vector | None, degraded: list[Degradation]
    ) -> Selection:
        if question.index is not None:
            return _settled(question.index, "pinned", "the caller named it")
        if len(names) == 1:
            return _settled(names[0], "only", "it is the only index")
        indexes, lost = self._resources.usable()
        degraded.extend(lost)
        return self._classifier.classify(question.query, [i.profile() for i in indexes], query_vector=vector)

    def _stage_two(self, question: Question, index: Index, features: dict[str, float] | object) -> Selection:
        if question.strategy is not None:
            return _settled(question.strategy.value, "pinned", "the caller named it")
        offered = cards(index)
        if not offered:
            raise NoEligibleStrategyError(f"index {index.name!r} serves no registered strategy")
        return self._selector.select(question.query, offered, features=features)  # type: ignore[arg-type]  # a mapping


class RetrieveStage:
    """Runs the chosen strategy on the chosen indexes, and the next one when it fails."""

    def __init__(self, resources: Resources, refiner: Refiner) -> None:
        self._resources = resources
        self._refiner = refiner
        self._caller = DeadlineCaller("retrieval", max_calls=4 * resources.config.workers)

    def run(self, question: Question, routed: Routed, clock: QueryClock) -> tuple[Retrieval, dict[str, str]]:
        """Retrieve.

        Returns:
            The nodes, and the index of each by node id.

        Raises:
            RetrievalError: If every strategy failed; ``causes`` tells why, by strategy.
            DeadlineExceededError: If the time ran out.
        """
        decision = routed.decision
        kept = self._refiner.kept(question, decision.complexity_score)
        fetched = self._refiner.fetched(kept)
        causes: dict[str, BaseException] = {}
        degraded: list[Degradation] = list(decision.degraded)
        for position, strategy in enumerate(routed.order):
            try:
                with clock.step("retrieval"):
                    results = self._search(question, routed, strategy, clock, top_k=fetched)
            except (DeadlineExceededError, InvalidQueryError):
                raise
            except Exception as err:
                logger.debug("strategy %s failed", strategy.value, exc_info=err)
                causes[strategy.value] = err
                following = routed.order[position + 1].value if position + 1 < len(routed.order) else "none"
                degraded.append(
                    Degradation(step=f"retrieval.{strategy.value}", reason=_reason(err), fallback=following)
                )
                continue
            nodes, origin = merge_indexes(results, decision.index.scores, top_k=fetched)
            nodes, failed = self._refiner.run(question, nodes, origin, kept, clock)
            retrieval = Retrieval(
                nodes=tuple(nodes),
                strategy=strategy,
                indexes=decision.index.names,
                route=decision,
                degraded=(*degraded, *(lost for result in results.values() for lost in result.degraded), *failed),
                understood=tuple(dict.fromkeys(said for result in results.values() for said in result.understood)),
                timings_ms=clock.timings_ms(),
            )
            return retrieval, origin
        listed = "; ".join(f"{name}: {_reason(err)}" for name, err in causes.items())
        raise RetrievalError(f"every strategy failed on index {decision.index.name!r} ({listed})", causes) from next(
            iter(causes.values()), None
        )

    def _search(
        self, question: Question, routed: Routed, strategy: Strategy, clock: QueryClock, *, top_k: int
    ) -> dict[str, SearchResult]:
        vector = routed.query_vector
        results: dict[str, SearchResult] = {}
        for name in routed.decision.index.names:
            left = clock.left_s(f"searching index {name!r}")
            request = RetrievalRequest(
                query=question.query,
                top_k=top_k,
                filters=question.filters,
                query_vector=None if vector is None else tuple(vector.tolist()),
                timeout_s=left,
            )
            adapter = self._resources.adapter(self._resources.index(name), strategy)
            search = partial(adapter.search, request)
            # A thread costs more than a search, so only those that may overrun get one.
            results[name] = search() if adapter.keeps_deadlines else self._caller.call(search, left)
        return results


def _settled(name: str, mode: str, reason: str) -> Selection:
    return Selection(name=name, confidence=1.0, scores={name: 1.0}, margin=1.0, reason=reason, mode=mode)


def _reason(err: BaseException) -> str:
    """Say what happened in one line; the text of a foreign error may hold anything, so only its type is told."""
    return str(err) if isinstance(err, AgenticRetrieverError) else type(err).__name__

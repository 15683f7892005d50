"""The hop from a decision to nodes: the chosen strategy, and the next ones when it fails or finds little."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import (
    AgenticRetrieverError,
    DeadlineExceededError,
    InvalidQueryError,
    RetrievalError,
)
from agentic_retriever.retrievers import RetrievalRequest, run_sides
from agentic_retriever.retrievers.searchable import MayHang
from agentic_retriever.router.judging import cosines, relevance, search_profile
from agentic_retriever.router.merge import merge_indexes
from agentic_retriever.router.spans import SEARCH, adapter_search, traced
from agentic_retriever.router.spending import MeteredModel
from agentic_retriever.schema import Degradation, Retrieval, Strategy, Tried
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from llama_index.core.schema import NodeWithScore

    from agentic_retriever.llm import ModelClient
    from agentic_retriever.retrievers import SearchResult
    from agentic_retriever.router.questions import Question, Routed
    from agentic_retriever.router.refining import Refiner
    from agentic_retriever.router.resources import Resources
    from agentic_retriever.router.spending import Spending

logger = logging.getLogger(__name__)

MAX_RETRIES: Final = 2
"""Further strategies that a search with little to show for it may try."""

# A further strategy is tried when the time left is that many times what the last one took.
_TIME_FACTOR: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    strategy: Strategy
    nodes: list[NodeWithScore]
    origin: dict[str, str]
    confidence: float | None
    degraded: tuple[Degradation, ...]
    understood: tuple[str, ...]
    ms: float

    @property
    def rank(self) -> float:
        """What a choice among several searches goes by; an unknown confidence counts as middling.

        What satisfies the conditions that the question states fits by these, however near its wording lies. A search
        for such conditions that found none in the question is dense search alone, and any other strategy goes before.
        """
        if not self.nodes:
            return -1.0
        if self.strategy is Strategy.METADATA and not (self.understood and self.degraded):
            return 1.0 if self.understood else 0.0
        return 0.5 if self.confidence is None else self.confidence


@dataclass(slots=True)
class _Search:
    """What happened so far."""

    found: list[_Found] = field(default_factory=list)
    causes: dict[str, BaseException] = field(default_factory=dict)
    degraded: list[Degradation] = field(default_factory=list)


class RetrieveStage:
    """Runs the chosen strategy on the chosen indexes, and the next one when it fails or finds nothing near.

    Args:
        resources: Settings and indexes.
        refiner: What is done with the nodes.
        model: The model that strategies may ask, or ``None``.
    """

    def __init__(self, resources: Resources, refiner: Refiner, model: ModelClient | None) -> None:
        self._resources = resources
        self._refiner = refiner
        self._model = model
        self._caller = DeadlineCaller("retrieval", max_calls=4 * resources.config.workers)

    @traced(SEARCH)
    def run(self, question: Question, routed: Routed, spending: Spending) -> tuple[Retrieval, dict[str, str]]:
        """Retrieve.

        Returns:
            The nodes, and the index of each by node id; no nodes for a question that is declined as out of scope.

        Raises:
            RetrievalError: If every strategy failed; ``causes`` tells why, by strategy.
            DeadlineExceededError: If the time ran out.
        """
        decision = routed.decision
        if decision.index.abstained and self._resources.config.on_abstain == "decline":
            return self._declined(routed, spending), {}
        kept = self._refiner.kept(question, decision.complexity_score)
        fetched = self._refiner.fetched(kept)
        search = _Search(degraded=list(decision.degraded))
        for position, strategy in enumerate(routed.order):
            try:
                search.found.append(self._attempt(question, routed, strategy, spending, top_k=fetched))
            except (DeadlineExceededError, InvalidQueryError):
                if search.found:
                    break
                raise
            except Exception as err:  # strategies may be foreign code; what failed is told, and the next one is tried
                logger.debug("strategy %s failed", strategy.value, exc_info=err)
                search.causes[strategy.value] = err
                following = routed.order[position + 1].value if position + 1 < len(routed.order) else "none"
                lost = Degradation(step=f"retrieval.{strategy.value}", reason=_reason(err), fallback=following)
                search.degraded.append(lost)
                continue
            if not self._worth_another(search.found, spending):
                break
        if not search.found:
            raise _all_failed(decision.index.name, search.causes)
        return self._finished(question, routed, search, kept, spending)

    def _attempt(
        self, question: Question, routed: Routed, strategy: Strategy, spending: Spending, *, top_k: int
    ) -> _Found:
        clock, decision = spending.clock, routed.decision
        before = clock.elapsed_ms()
        with clock.step("retrieval"):
            results, lost = self._search(question, routed, strategy, spending, top_k=top_k)
            by_index = {name: result.nodes for name, result in results.items()}
            near = cosines(self._resources, by_index, routed.query_vector) if len(results) > 1 else {}
            nodes, origin = merge_indexes(results, decision.index.scores, cosines=near, top_k=top_k)
        profile = search_profile(self._resources.index(decision.index.name))
        return _Found(
            strategy=strategy,
            nodes=nodes,
            origin=origin,
            confidence=relevance(nodes, profile),
            degraded=(*lost, *(step for result in results.values() for step in result.degraded)),
            understood=tuple(dict.fromkeys(said for result in results.values() for said in result.understood)),
            ms=clock.elapsed_ms() - before,
        )

    def _search(
        self, question: Question, routed: Routed, strategy: Strategy, spending: Spending, *, top_k: int
    ) -> tuple[dict[str, SearchResult], list[Degradation]]:
        """Search all chosen indexes side by side; one that fails is left out as long as another answers."""
        names = routed.decision.index.names
        searches = {name: partial(self._one, question, routed, strategy, spending, name, top_k) for name in names}
        if len(searches) == 1:
            return {names[0]: searches[names[0]]()}, []
        results, errors = run_sides(
            self._resources.workers(), searches, timeout_s=lambda: spending.clock.left_s("searching")
        )
        if not results:
            raise errors[names[0]]
        lost = [
            Degradation(step=f"index.{n}", reason=_reason(e), fallback="the other indexes") for n, e in errors.items()
        ]
        return results, lost

    def _one(
        self, question: Question, routed: Routed, strategy: Strategy, spending: Spending, name: str, top_k: int
    ) -> SearchResult:
        index = self._resources.index(name)
        # An index with a model of its own embeds the question itself.
        vector = routed.query_vector if self._resources.compares(index) else None
        left = spending.clock.left_s(f"searching index {name!r}")
        request = RetrievalRequest(
            query=question.query,
            top_k=top_k,
            filters=question.filters,
            query_vector=None if vector is None else tuple(vector.tolist()),
            timeout_s=left,
            model=None if self._model is None else MeteredModel(self._model, spending),
        )
        adapter = self._resources.adapter(index, strategy)
        search = partial(adapter_search, adapter, name, request)
        # A thread costs more than a search, so only those that may overrun get one.
        ends = adapter.keeps_deadlines and not (isinstance(index, MayHang) and index.may_hang)
        return search() if ends else self._caller.call(search, left)

    def _worth_another(self, found: list[_Found], spending: Spending) -> bool:
        """Tell whether the next strategy should be tried: little found so far, and time enough."""
        last, threshold = found[-1], self._resources.config.retry_below
        if len(found) > MAX_RETRIES or threshold <= 0 or max(one.rank for one in found) >= threshold:
            return False
        return spending.clock.remaining_s() * 1000 > _TIME_FACTOR * last.ms

    def _finished(
        self, question: Question, routed: Routed, search: _Search, kept: int, spending: Spending
    ) -> tuple[Retrieval, dict[str, str]]:
        best = max(search.found, key=lambda one: one.rank)  # the first of equals
        metered = None if self._model is None else MeteredModel(self._model, spending)
        nodes, failed = self._refiner.run(question, best.nodes, best.origin, kept, spending.clock, metered)
        retrieval = Retrieval(
            nodes=tuple(nodes),
            strategy=best.strategy,
            indexes=routed.decision.index.names,
            route=routed.decision,
            degraded=(*search.degraded, *best.degraded, *failed),
            understood=best.understood,
            timings_ms=spending.clock.timings_ms(),
            tried=tuple(
                Tried(strategy=one.strategy, confidence=one.confidence, nodes=len(one.nodes), ms=one.ms)
                for one in search.found
            ),
            usage=spending.usage,
        )
        return retrieval, best.origin

    def _declined(self, routed: Routed, spending: Spending) -> Retrieval:
        return Retrieval(
            nodes=(),
            strategy=routed.order[0],
            indexes=routed.decision.index.names,
            route=routed.decision,
            degraded=routed.decision.degraded,
            timings_ms=spending.clock.timings_ms(),
            usage=spending.usage,
        )


def _all_failed(index: str, causes: dict[str, BaseException]) -> RetrievalError:
    listed = "; ".join(f"{name}: {_reason(err)}" for name, err in causes.items())
    error = RetrievalError(f"every strategy failed on index {index!r} ({listed})", causes)
    error.__cause__ = next(iter(causes.values()), None)
    return error


def _reason(err: BaseException) -> str:
    """Say what happened in one line; the text of a foreign error may hold anything, so only its type is told."""
    return str(err) if isinstance(err, AgenticRetrieverError) else type(err).__name__

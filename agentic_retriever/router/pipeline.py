"""One query's way through the hops: cache, route, retrieve, answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llama_index.core.schema import NodeWithScore

from agentic_retriever.router.answering import answer_key
from agentic_retriever.router.spending import Spending
from agentic_retriever.router.timing import QueryClock
from agentic_retriever.schema import Answer, Retrieval, RouteDecision, Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentic_retriever.cache import SingleFlightCache
    from agentic_retriever.router.answering import AnswerStage
    from agentic_retriever.router.questions import Question
    from agentic_retriever.router.resources import Resources
    from agentic_retriever.router.retrieve_stage import RetrieveStage
    from agentic_retriever.router.route_stage import RouteStage
    from agentic_retriever.schema import Budget


@dataclass(frozen=True, slots=True)
class Stages:
    """The hops of a query."""

    route: RouteStage
    retrieve: RetrieveStage
    answer: AnswerStage


class Pipeline:
    """Takes questions through the stages; safe to use from many threads.

    Args:
        resources: Settings and indexes.
        stages: The hops.
        cache: The answer cache.
        repeatable: Whether the same question gets the same strategy; answers are cached only then.
        llm: Name of the model that writes answers, for the cache key.
        timer: Monotonic time in seconds.
        new_id: Makes query ids.
    """

    def __init__(
        self,
        resources: Resources,
        stages: Stages,
        cache: SingleFlightCache[Answer],
        *,
        repeatable: bool,
        llm: str,
        timer: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        self._resources = resources
        self._stages = stages
        self._cache = cache
        self._repeatable = repeatable
        self._llm = llm
        self._timer = timer
        self._new_id = new_id

    def limit_s(self, budget: Budget | None) -> float:
        """Return the seconds that a query may take."""
        deadline_s = self._resources.config.deadline_s
        return deadline_s if budget is None or budget.max_ms is None else min(deadline_s, budget.max_ms / 1000)

    def route(
        self, question: Question, budget: Budget | None = None, *, recorded: RouteDecision | None = None
    ) -> RouteDecision:
        """Decide; with ``recorded``, as then where chance or a model decided."""
        return self._stages.route.run(question, self._spending(budget), recorded=recorded).decision

    def retrieve(self, question: Question, budget: Budget | None) -> Retrieval:
        """Decide and fetch."""
        spending = self._spending(budget)
        routed = self._stages.route.run(question, spending)
        return self._stages.retrieve.run(question, routed, spending)[0]

    def answer(self, question: Question, budget: Budget | None, *, force_cloud: bool) -> Answer:
        """Decide, fetch and answer, or return the answer from the cache."""
        spending = self._spending(budget)

        def compute() -> Answer:
            return self._computed(question, spending, force_cloud=force_cloud)

        if not self._repeatable and question.strategy is None:
            return replace(compute(), query_id=self._new_id())
        key = answer_key(self._resources, question, llm=self._llm, budget=budget, force_cloud=force_cloud)
        answer, cached = self._cache.get_or_compute(
            key, compute, keep=worth_keeping, timeout_s=spending.clock.left_s("waiting for the answer")
        )
        timings = spending.clock.timings_ms() if cached else answer.timings_ms
        nodes = tuple(_copied(node) for node in answer.nodes)
        return replace(answer, nodes=nodes, cached=cached, timings_ms=timings, query_id=self._new_id())

    def _computed(self, question: Question, spending: Spending, *, force_cloud: bool) -> Answer:
        routed = self._stages.route.run(question, spending)
        retrieval, origin = self._stages.retrieve.run(question, routed, spending)
        return self._stages.answer.run(
            retrieval, origin, spending, query_vector=routed.query_vector, force_cloud=force_cloud
        )

    def _spending(self, budget: Budget | None) -> Spending:
        return Spending(budget, QueryClock(self.limit_s(budget), self._timer))


def worth_keeping(answer: Answer) -> bool:
    """Keep what would be answered alike next time: nothing degraded, and no failure to find anything."""
    return not answer.degraded and answer.tier is not Tier.NONE


def _copied(node: NodeWithScore) -> NodeWithScore:
    """Copy a node as far as callers may change it, so that the cached one stays as it was."""
    inner = node.node.model_copy()
    inner.metadata = dict(inner.metadata)
    return NodeWithScore(node=inner, score=node.score)

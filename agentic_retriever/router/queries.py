"""What a router does with a question: decide, explain, retrieve, answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentic_retriever.checks import check_query, check_top_k
from agentic_retriever.filters import check_filters
from agentic_retriever.router.explaining import Explanation
from agentic_retriever.router.library import IndexLibrary
from agentic_retriever.router.offers import offer
from agentic_retriever.router.questions import Question, pinned_strategy
from agentic_retriever.router.streams import AnswerStream
from agentic_retriever.schema import RouteDecision

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.router.pipeline import Pipeline
    from agentic_retriever.router.resources import Resources
    from agentic_retriever.schema import Answer, Budget, Retrieval, Strategy


class Queries(IndexLibrary):
    """The part of a router that takes questions; safe to call from many threads.

    Attributes:
        config: The settings.
    """

    def __init__(self, resources: Resources, pipeline: Pipeline) -> None:
        super().__init__(resources)
        self.config: RouterConfig = resources.config
        self._pipeline = pipeline

    def route(
        self,
        query: str,
        *,
        index: str | None = None,
        strategy: str | Strategy | None = None,
        budget: Budget | None = None,
    ) -> RouteDecision:
        """Decide which index and strategy a question goes to, without retrieving.

        Args:
            query: The question.
            index: An index to use whatever the router thinks.
            strategy: A strategy to use whatever the router thinks.
            budget: What the query may spend; strategies that do not fit its time are withheld.

        Raises:
            InvalidQueryError: If the question cannot be used.
            OutOfScopeError: If it is about nothing in the indexes, and ``on_abstain`` is ``raise``.
            RoutingError: If there is nothing to choose from.
            UnknownIndexError: If the pinned index is unknown.
            UnknownStrategyError: If the pinned strategy is unknown.
            DeadlineExceededError: If the time ran out.
        """
        return self._pipeline.route(self._question(query, index, strategy, None, None), budget)

    def explain(
        self,
        query: str,
        *,
        index: str | None = None,
        strategy: str | Strategy | None = None,
        budget: Budget | None = None,
    ) -> Explanation:
        """Decide as :meth:`route`, and say why in words: print what is returned.

        Args:
            query: The question.
            index: An index to use whatever the router thinks.
            strategy: A strategy to use whatever the router thinks.
            budget: What the query may spend.

        Raises:
            RoutingError: As :meth:`route`, whose other errors are raised too.
        """
        return self.explanation(self.route(query, index=index, strategy=strategy, budget=budget))

    def explanation(self, decision: RouteDecision) -> Explanation:
        """Put a decision into words, with the strategies that its index can serve now.

        Args:
            decision: Any decision, such as ``answer.route``.
        """
        name = decision.index.name
        if name not in self.index_names():
            return Explanation(decision=decision)
        index = self.resources.index(name)
        cards, _ = offer(index, self.resources.trained(index).measured, left_ms=None)
        return Explanation(decision=decision, cards=cards)

    def replay(self, decision: RouteDecision | Mapping[str, Any]) -> RouteDecision:
        """Route a recorded question again, with the same pins.

        What evidence decided is decided anew from the indexes as they are now; what chance or a model decided (round
        robin, ``llm``) is taken from the record, as long as the index or strategy is still there. On unchanged indexes
        the result has no difference to the record: ``not decision.diff(router.replay(decision))``.

        Args:
            decision: A decision, or what its ``to_dict()`` gave.

        Raises:
            RoutingError: If it is no decision record; otherwise as :meth:`route`.
        """
        if not isinstance(decision, RouteDecision):
            decision = RouteDecision.from_dict(decision)
        question = self._question(
            decision.query,
            decision.index.name if decision.index.mode == "pinned" else None,
            decision.strategy.name if decision.strategy.mode == "pinned" else None,
            None,
            None,
        )
        return self._pipeline.route(question, recorded=decision)

    def retrieve(
        self,
        query: str,
        *,
        index: str | None = None,
        strategy: str | Strategy | None = None,
        filters: MetadataFilters | None = None,
        top_k: int | None = None,
        budget: Budget | None = None,
    ) -> Retrieval:
        """Route a question and fetch its nodes.

        Args:
            query: The question.
            index: An index to use whatever the router thinks.
            strategy: A strategy to use whatever the router thinks.
            filters: Conditions on metadata that every node must meet.
            top_k: Most nodes to return; the configured number by default.
            budget: What the query may spend.

        Returns:
            Copies of the nodes, best first, with the decision.

        Raises:
            InvalidQueryError: If the question or ``top_k`` cannot be used.
            FilterError: If the filters cannot be used.
            RetrievalError: If every strategy failed.
            DeadlineExceededError: If the time ran out.
            RoutingError: As :meth:`route`.
        """
        return self._pipeline.retrieve(self._question(query, index, strategy, filters, top_k), budget)

    def query(
        self,
        query: str,
        *,
        index: str | None = None,
        strategy: str | Strategy | None = None,
        filters: MetadataFilters | None = None,
        top_k: int | None = None,
        budget: Budget | None = None,
        force_cloud: bool = False,
    ) -> Answer:
        """Answer a question with citations.

        Args:
            query: The question.
            index: An index to use whatever the router thinks.
            strategy: A strategy to use whatever the router thinks.
            filters: Conditions on metadata that every node must meet.
            top_k: Most nodes to retrieve; the configured number by default.
            budget: What the query may spend.
            force_cloud: Ask for the cloud model; noted as degraded where none is configured.

        Returns:
            The answer with its citations, confidence, route, usage and timings.

        Raises:
            InvalidQueryError: If the question or ``top_k`` cannot be used.
            FilterError: If the filters cannot be used.
            RetrievalError: If every strategy failed.
            DeadlineExceededError: If the time ran out before nodes were found.
            RoutingError: As :meth:`route`.
        """
        return self._pipeline.answer(
            self._question(query, index, strategy, filters, top_k), budget, force_cloud=force_cloud
        )

    def stream(
        self,
        query: str,
        *,
        index: str | None = None,
        strategy: str | Strategy | None = None,
        filters: MetadataFilters | None = None,
        top_k: int | None = None,
        budget: Budget | None = None,
        force_cloud: bool = False,
    ) -> AnswerStream:
        """Answer a question piece by piece; arguments as :meth:`query`.

        Returns:
            The pieces, and the finished ``answer`` behind them. The model may change until the first piece is shown,
            never after it: a reply that breaks off then raises a ``StreamBrokenError`` with what was shown. Iterating
            raises as :meth:`query` does, otherwise.

        Raises:
            InvalidQueryError: If the question or ``top_k`` cannot be used.
            FilterError: If the filters cannot be used.
            UnknownStrategyError: If the pinned strategy is unknown.
        """
        question = self._question(query, index, strategy, filters, top_k)
        return AnswerStream(lambda control: self._pipeline.stream(question, budget, control, force_cloud=force_cloud))

    def _question(
        self,
        query: str,
        index: str | None,
        strategy: str | Strategy | None,
        filters: MetadataFilters | None,
        top_k: int | None,
    ) -> Question:
        check_filters(filters)
        return Question(
            query=check_query(query, max_chars=self.config.max_query_chars),
            top_k=self.config.top_k if top_k is None else check_top_k(top_k, maximum=self.config.max_top_k),
            index=index,
            strategy=pinned_strategy(strategy),
            filters=filters,
            top_k_given=top_k is not None,
        )

"""The router that people use: from a question to a decision, to nodes, to a cited answer."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from llama_index.core.schema import NodeWithScore

from agentic_retriever.cache import SingleFlightCache
from agentic_retriever.checks import check_query, check_top_k
from agentic_retriever.concurrency import Workers
from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import DeadlineExceededError
from agentic_retriever.filters import check_filters
from agentic_retriever.router.answering import AnswerStage, answer_key
from agentic_retriever.router.choices import make_classifier, make_client, make_selector, make_synthesizer
from agentic_retriever.router.library import IndexLibrary
from agentic_retriever.router.refining import Refiner
from agentic_retriever.router.resources import Resources
from agentic_retriever.router.stages import Question, RetrieveStage, RouteStage, pinned_strategy
from agentic_retriever.router.timing import QueryClock
from agentic_retriever.schema import Answer, Budget, Retrieval, RouteDecision, Strategy, Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.llms import LLM
    from llama_index.core.vector_stores.types import MetadataFilters
    from typing_extensions import Self

    from agentic_retriever.embeddings import VectorSource
    from agentic_retriever.routing import IndexClassifier, StrategySelector
    from agentic_retriever.synthesis import Synthesizer

T = TypeVar("T")

#: How much longer than its deadline an async call may take, in seconds: the sync side should end first and say more.
_GRACE_S = 0.25


class AgenticRouter(IndexLibrary):
    """Routes questions to indexes and strategies and answers them with citations.

    Making one reads no index and calls no server. All methods are safe to call from many threads, from a running event
    loop (Jupyter) and, with an ``a`` in front, as coroutines that never block the loop.

    Args:
        config: The settings; from the environment and ``.env`` by default.
        embedding: Any LlamaIndex embedding, instead of the one that the settings name.
        llm: Any LlamaIndex LLM that writes the answers, instead of the one that the settings name.
        classifier: Stage one, instead of the one that the settings name.
        selector: Stage two, instead of the one that the settings name.
        synthesizer: Writes the answers, instead of the built-in one.
        packed: Known vectors, such as those shipped with the sample.
        timer: Monotonic time in seconds.
        new_id: Makes query ids.

    Example:
        >>> router = AgenticRouter()
        >>> router.add_index("handbook", "docs/", description="Company handbook")
        >>> print(router.query("How many days of leave do I have?"))
    """

    def __init__(  # noqa: PLR0913 - every stage can be replaced, by keyword
        self,
        config: RouterConfig | None = None,
        *,
        embedding: BaseEmbedding | None = None,
        llm: LLM | None = None,
        classifier: IndexClassifier | None = None,
        selector: StrategySelector | None = None,
        synthesizer: Synthesizer | None = None,
        packed: Sequence[VectorSource] = (),
        timer: Callable[[], float] = time.perf_counter,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        config = config or RouterConfig.load()
        client = make_client(config, llm)
        super().__init__(Resources(config, embedding=embedding, packed=packed, model=client))
        self.config = config
        self._timer = timer
        self._new_id = new_id
        self._selector = selector or make_selector(self.config)
        self._route_stage = RouteStage(self.resources, classifier or make_classifier(self.config), self._selector)
        self._retrieve_stage = RetrieveStage(self.resources, Refiner(self.resources, client))
        self._llm_name = "none" if client is None else client.model
        self._answer_stage = AnswerStage(self.resources, synthesizer or make_synthesizer(self.resources, client))
        self._workers = Workers(self.config.workers, "agentic-router")
        #: The answer cache: ``cache.clear()`` and ``cache.stats()``.
        self.cache: SingleFlightCache[Answer] = SingleFlightCache(
            max_entries=self.config.cache_max_entries, ttl_s=self.config.cache_ttl_s
        )

    def route(self, query: str, *, index: str | None = None, strategy: str | Strategy | None = None) -> RouteDecision:
        """Decide which index and strategy a question goes to, without retrieving.

        Args:
            query: The question.
            index: An index to use whatever the router thinks.
            strategy: A strategy to use whatever the router thinks.

        Raises:
            InvalidQueryError: If the question cannot be used.
            RoutingError: If there is nothing to choose from.
            UnknownIndexError: If the pinned index is unknown.
            UnknownStrategyError: If the pinned strategy is unknown.
        """
        question = self._question(query, index, strategy, None, None)
        return self._route_stage.run(question, self._clock(None)).decision

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
        question = self._question(query, index, strategy, filters, top_k)
        clock = self._clock(budget)
        return self._retrieve_stage.run(question, self._route_stage.run(question, clock), clock)[0]

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
        question = self._question(query, index, strategy, filters, top_k)
        clock = self._clock(budget)

        def compute() -> Answer:
            routed = self._route_stage.run(question, clock)
            retrieval, origin = self._retrieve_stage.run(question, routed, clock)
            return self._answer_stage.run(
                retrieval, origin, clock, query_vector=routed.query_vector, budget=budget, force_cloud=force_cloud
            )

        if self._selector.mode == "round_robin" and question.strategy is None:
            return replace(compute(), query_id=self._new_id())
        key = answer_key(self.resources, question, llm=self._llm_name, budget=budget, force_cloud=force_cloud)
        answer, cached = self.cache.get_or_compute(
            key, compute, keep=_worth_keeping, timeout_s=clock.left_s("waiting for the answer")
        )
        timings = clock.timings_ms() if cached else answer.timings_ms
        nodes = tuple(_copied(node) for node in answer.nodes)
        return replace(answer, nodes=nodes, cached=cached, timings_ms=timings, query_id=self._new_id())

    async def aroute(
        self, query: str, *, index: str | None = None, strategy: str | Strategy | None = None
    ) -> RouteDecision:
        """Do as :meth:`route`, off the event loop."""
        return await self._off_loop(None, lambda: self.route(query, index=index, strategy=strategy))

    async def aretrieve(
        self,
        query: str,
        *,
        index: str | None = None,
        strategy: str | Strategy | None = None,
        filters: MetadataFilters | None = None,
        top_k: int | None = None,
        budget: Budget | None = None,
    ) -> Retrieval:
        """Do as :meth:`retrieve`, off the event loop."""
        return await self._off_loop(
            budget,
            lambda: self.retrieve(query, index=index, strategy=strategy, filters=filters, top_k=top_k, budget=budget),
        )

    async def aquery(
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
        """Do as :meth:`query`, off the event loop."""
        return await self._off_loop(
            budget,
            lambda: self.query(
                query, index=index, strategy=strategy, filters=filters, top_k=top_k, budget=budget,
                force_cloud=force_cloud,
            ),
        )  # fmt: skip

    def close(self) -> None:
        """Close every index; a second call does nothing."""
        self._workers.close()
        self.resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

    def _limit_s(self, budget: Budget | None) -> float:
        if budget is None or budget.max_ms is None:
            return self.config.deadline_s
        return min(self.config.deadline_s, budget.max_ms / 1000)

    def _clock(self, budget: Budget | None) -> QueryClock:
        return QueryClock(self._limit_s(budget), self._timer)

    async def _off_loop(self, budget: Budget | None, call: Callable[[], T]) -> T:
        limit = self._limit_s(budget)
        try:
            return await asyncio.wait_for(self._workers.run(call), limit + _GRACE_S)
        except asyncio.TimeoutError as err:
            raise DeadlineExceededError(f"the query took longer than {limit:.1f} s; allow more or ask less") from err


def _worth_keeping(answer: Answer) -> bool:
    """Keep what would be answered alike next time: nothing degraded, and no failure to find anything."""
    return not answer.degraded and answer.tier is not Tier.NONE


def _copied(node: NodeWithScore) -> NodeWithScore:
    """Copy a node as far as callers may change it, so that the cached one stays as it was."""
    inner = node.node.model_copy()
    inner.metadata = dict(inner.metadata)
    return NodeWithScore(node=inner, score=node.score)

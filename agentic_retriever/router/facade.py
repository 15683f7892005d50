"""The router that people use: from a question to a decision, to nodes, to a cited answer."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, TypeVar

from agentic_retriever.cache import SingleFlightCache
from agentic_retriever.concurrency import Workers
from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import DeadlineExceededError
from agentic_retriever.router.answering import AnswerStage
from agentic_retriever.router.choices import (
    Selectors,
    make_classifier,
    make_client,
    make_synthesizer,
)
from agentic_retriever.router.pipeline import Pipeline, Stages
from agentic_retriever.router.queries import Queries
from agentic_retriever.router.refining import Refiner
from agentic_retriever.router.resources import Resources
from agentic_retriever.router.retrieve_stage import RetrieveStage
from agentic_retriever.router.route_stage import RouteStage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.llms import LLM
    from llama_index.core.vector_stores.types import MetadataFilters
    from typing_extensions import Self

    from agentic_retriever.embeddings import VectorSource
    from agentic_retriever.routing import IndexClassifier, StrategySelector
    from agentic_retriever.schema import Answer, Budget, Retrieval, RouteDecision, Strategy
    from agentic_retriever.synthesis import Synthesizer

T = TypeVar("T")

#: How much longer than its deadline an async call may take, in seconds: the sync side should end first and say more.
_GRACE_S = 0.25


class AgenticRouter(Queries):
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
        resources = Resources(config, embedding=embedding, packed=packed, model=client)
        selectors = Selectors(resources, client, given=selector)
        stages = Stages(
            RouteStage(resources, classifier or make_classifier(config, client), selectors),
            RetrieveStage(resources, Refiner(resources, client), client),
            AnswerStage(resources, synthesizer or make_synthesizer(resources, client)),
        )
        #: The answer cache: ``cache.clear()`` and ``cache.stats()``.
        self.cache: SingleFlightCache[Answer] = SingleFlightCache(
            max_entries=config.cache_max_entries, ttl_s=config.cache_ttl_s
        )
        pipeline = Pipeline(
            resources,
            stages,
            self.cache,
            repeatable=selectors.repeatable,
            llm="none" if client is None else client.model,
            timer=timer,
            new_id=new_id,
        )
        super().__init__(resources, pipeline)
        self._workers = Workers(config.workers, "agentic-router")

    async def aroute(
        self,
        query: str,
        *,
        index: str | None = None,
        strategy: str | Strategy | None = None,
        budget: Budget | None = None,
    ) -> RouteDecision:
        """Do as :meth:`route`, off the event loop."""
        return await self._off_loop(budget, lambda: self.route(query, index=index, strategy=strategy, budget=budget))

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

    async def _off_loop(self, budget: Budget | None, call: Callable[[], T]) -> T:
        limit = self._pipeline.limit_s(budget)
        try:
            return await asyncio.wait_for(self._workers.run(call), limit + _GRACE_S)
        except asyncio.TimeoutError as err:
            raise DeadlineExceededError(f"the query took longer than {limit:.1f} s; allow more or ask less") from err

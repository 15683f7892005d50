"""The router that people use: from a question to a decision, to nodes, to a cited answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any, TypeVar

from agentic_retriever.bridge import Pluggable
from agentic_retriever.cache import answer_cache, warm
from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import ConfigError, DeadlineExceededError, IndexingError, StoreError
from agentic_retriever.querylog import open_query_log
from agentic_retriever.router.answer_codec import AnswerCodec
from agentic_retriever.router.answer_values import copied_answer, warm_outcome
from agentic_retriever.router.answering import AnswerStage
from agentic_retriever.router.choices import (
    make_classifier,
    make_client,
    make_selector,
    make_synthesizer,
    writers_key,
)
from agentic_retriever.router.pipeline import Pipeline, Services, Stages
from agentic_retriever.router.queries import Queries
from agentic_retriever.router.recording import Recorder
from agentic_retriever.router.refining import Refiner
from agentic_retriever.router.resources import Resources
from agentic_retriever.router.retrieve_stage import RetrieveStage
from agentic_retriever.router.route_stage import RouteStage
from agentic_retriever.router.streams import AsyncAnswerStream
from agentic_retriever.threads import DeadlineCaller, Workers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType

    from llama_index.core.base.base_query_engine import BaseQueryEngine
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.indices.base import BaseIndex
    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.response_synthesizers import BaseSynthesizer
    from llama_index.core.vector_stores.types import MetadataFilters
    from typing_extensions import Self

    from agentic_retriever.cache import SingleFlightCache, WarmReport
    from agentic_retriever.embeddings import VectorSource
    from agentic_retriever.querylog import Analytics
    from agentic_retriever.routing import IndexClassifier, StrategySelector
    from agentic_retriever.schema import Answer, Budget, Retrieval, RouteDecision, Strategy
    from agentic_retriever.synthesis import Synthesizer

T = TypeVar("T")

#: How much longer than its deadline an async call may take, in seconds: the sync side should end first and say more.
_GRACE_S = 0.25

#: Streamed answers under way at once, each read by a thread of its own.
_MAX_STREAMS = 128


class AgenticRouter(Queries, Pluggable):
    """Routes questions to indexes and strategies and answers them with citations.

    Making one reads no index and calls no server. All methods are safe to call from many threads, from a running event
    loop (Jupyter) and, with an ``a`` in front, as coroutines that never block the loop.

    Args:
        config: The settings; from the environment and ``.env`` by default.
        embedding: Any LlamaIndex embedding, instead of the one that the settings name.
        llm: Any LlamaIndex LLM that writes the answers, instead of the one that the settings name.
        classifier: Stage one, instead of the one that the settings name.
        selector: Stage two, instead of the one that the settings name.
        synthesizer: Writes the answers, instead of the built-in one; any LlamaIndex response synthesizer, too, whose
            citations are then checked, and which extraction stands in for when it fails.
        postprocessors: LlamaIndex node postprocessors, run last on what was retrieved; one that fails is left out.
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
        synthesizer: Synthesizer | BaseSynthesizer | None = None,
        postprocessors: Sequence[BaseNodePostprocessor] = (),
        packed: Sequence[VectorSource] = (),
        timer: Callable[[], float] = time.perf_counter,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        config = config or RouterConfig.load()
        client = make_client(config, llm)
        resources = Resources(config, embedding=embedding, packed=packed, model=client)
        selector = selector or make_selector(config, client)
        stages = Stages(
            RouteStage(resources, classifier or make_classifier(config, client), selector),
            RetrieveStage(resources, Refiner(resources, client, postprocessors), client),
            AnswerStage(resources, make_synthesizer(resources, client, synthesizer)),
        )
        #: The answer cache: ``cache.clear()`` and ``cache.stats()``.
        self.cache: SingleFlightCache[Answer] = answer_cache(
            config, AnswerCodec(), link=resources.redis, copy=copied_answer
        )
        self._client = client
        self._log = open_query_log(config)
        services = Services(
            cache=self.cache,
            recorder=Recorder(self._log, client),
            llm=writers_key(client, synthesizer, postprocessors),
            timer=timer,
            new_id=new_id,
        )
        pipeline = Pipeline(resources, stages, services, repeatable=selector.mode != "round_robin")
        super().__init__(resources, pipeline)
        self._workers = Workers(config.workers, "agentic-router")
        # Threads of their own, so that retrieval goes on while answers wait for models that hang.
        self._finders = Workers(config.workers, "agentic-finder")
        self._streams = DeadlineCaller("streamed answers", max_calls=_MAX_STREAMS, max_waiting=0)

    @classmethod
    def from_indexes(
        cls,
        indexes: Mapping[str, BaseIndex[Any] | BaseQueryEngine | BaseRetriever],
        config: RouterConfig | None = None,
        *,
        descriptions: Mapping[str, str] | None = None,
        **options: Any,  # noqa: ANN401 - those of the constructor
    ) -> Self:
        """Make a router over LlamaIndex indexes, query engines or retrievers, as ``add_index(name, index=...)`` does.

        Args:
            indexes: What is attached, by the name that it is to have.
            config: The settings; from the environment and ``.env`` by default.
            descriptions: What each holds, by name; a retriever or query engine needs one.
            **options: Models and stages, as for the constructor.

        Raises:
            IndexingError: If a name or what is to be attached cannot be used, or a description is of no index.
            AgenticRetrieverError: If it cannot be read; otherwise as ``add_index``.

        Example:
            >>> router = AgenticRouter.from_indexes({"contracts": index}, embedding=embedding, llm=llm)
        """
        told = dict(descriptions or {})
        if not told.keys() <= indexes.keys():
            unknown = ", ".join(sorted(map(repr, told.keys() - indexes.keys())))
            raise IndexingError(f"descriptions of {unknown}, which is not among the indexes")
        router = cls(config, **options)
        try:
            for name, index in indexes.items():
                router.add_index(name, index=index, description=told.get(name, ""))
        except BaseException:
            router.close()
            raise
        return router

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
        """Do as :meth:`query`, off the event loop; whoever waits for the same answer as another holds no thread."""
        question = self._question(query, index, strategy, filters, top_k)
        answering = self._pipeline.aanswer(question, budget, force_cloud=force_cloud, workers=self._workers)
        return await self._in_time(budget, answering)

    def astream(
        self,
        query: str,
        *,
        index: str | None = None,
        strategy: str | Strategy | None = None,
        filters: MetadataFilters | None = None,
        top_k: int | None = None,
        budget: Budget | None = None,
        force_cloud: bool = False,
    ) -> AsyncAnswerStream:
        """Do as :meth:`stream`, for ``async for``, off the event loop."""
        stream = self.stream(
            query, index=index, strategy=strategy, filters=filters, top_k=top_k, budget=budget, force_cloud=force_cloud
        )
        return AsyncAnswerStream(stream, self._streams)

    def analytics(self, since: datetime | None = None, until: datetime | None = None) -> Analytics:
        """Sum up the query history: totals, routes, tiers, times, cost and savings, fallbacks.

        Args:
            since: Begin of the period, with a time zone; ``None`` for the first query.
            until: End of the period, with a time zone; ``None`` for now.

        Raises:
            ConfigError: If there is no history by the setting ``query_log``, or a time has no zone.
            QueryLogError: If the history cannot be read.
        """
        if self._log is None:
            raise ConfigError("query_log is none, so there is no history; set it to sqlite or the URL of a database")
        return self._log.analytics(since, until)

    def warm(
        self, questions: Iterable[str], *, progress: Callable[[int, int], None] = lambda _done, _total: None
    ) -> WarmReport:
        """Ask questions beforehand, so that their answers are in the cache; one that fails never stops the rest.

        Args:
            questions: The questions, such as those that ``cache.read_questions(path)`` finds in a file.
            progress: Hears how many are done, and of how many.
        """
        return warm(
            lambda one: warm_outcome(self.query(one)), tuple(questions), progress=progress, stop_on=(StoreError,)
        )

    def close(self) -> None:
        """Close every index; a second call does nothing."""
        self._workers.close()
        self._finders.close()
        self.cache.close()
        if self._log is not None:
            self._log.close()
        if self._client is not None:
            self._client.close()
        self.resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _off_loop(self, budget: Budget | None, call: Callable[[], T]) -> T:
        return await self._in_time(budget, self._finders.run(call))

    async def _in_time(self, budget: Budget | None, call: Awaitable[T]) -> T:
        limit = self._pipeline.limit_s(budget)
        try:
            return await asyncio.wait_for(call, limit + _GRACE_S)
        except asyncio.TimeoutError as err:
            raise DeadlineExceededError(f"the query took longer than {limit:.1f} s; allow more or ask less") from err

"""The router that people use: from a question to a decision, to nodes, to a cited answer."""

import asyncio
import gc
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM, ChatMessage
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import BaseNode, Document
from llama_index.core.tools import QueryEngineTool, ToolMetadata
from llama_index.core.vector_stores.types import MetadataFilters
from typing_extensions import Self, Unpack

from agentic_retriever import errors
from agentic_retriever.bridge import RoutedChatEngine, RoutedQueryEngine, RoutedRetriever, tool_description
from agentic_retriever.cache import SingleFlightCache, WarmReport, warm
from agentic_retriever.catalog.history import QueryLog, open_query_log
from agentic_retriever.catalog.records import Analytics
from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import VectorSource
from agentic_retriever.indices import Index, Indexer, IngestReport, Progress, StoredIndex
from agentic_retriever.indices.derived import Watcher
from agentic_retriever.indices.index import CopyReport, copy_index
from agentic_retriever.ingestion import discover
from agentic_retriever.lifecycle import Documents, DocumentWorker
from agentic_retriever.pipeline import answers
from agentic_retriever.pipeline.query import Pins, Pipeline, Question, checked_pins, offer
from agentic_retriever.redis import RedisStore
from agentic_retriever.resources import (
    Resources,
    make_classifier,
    make_selector,
    make_synthesizer,
    measured,
    writers_key,
)
from agentic_retriever.retrievers.refining import NodePostprocessors
from agentic_retriever.routing import IndexClassifier, StrategySelector
from agentic_retriever.schema import Answer, Budget, Retrieval, RouteDecision, Strategy, Turn, check_query
from agentic_retriever.synthesis import Synthesizer
from agentic_retriever.threads import DeadlineCaller, Workers

T = TypeVar("T")
PinnedIndex: TypeAlias = str | Sequence[str] | None  # one index, several to choose from, or any
PinnedStrategy: TypeAlias = str | Strategy | None

_GRACE_S: Final = 0.25  # an async call may take that much longer: the sync side should end first and say more
_MAX_STREAMS: Final = 128  # streamed answers under way at once, each read by a thread of its own


class AgenticRouter:
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
        self.config = config = config or RouterConfig.load()
        self.resources = resources = Resources(config, embedding=embedding, packed=packed, llm=llm)
        client = resources.model
        #: The answer cache: ``cache.clear()`` and ``cache.stats()``.
        self.cache: SingleFlightCache[Answer] = SingleFlightCache(
            max_entries=config.cache_max_entries,
            ttl_s=config.cache_ttl_s,
            second=None
            if resources.redis is None
            else (RedisStore(resources.redis, kind="answers"), answers.encoded, answers.decoded),
            prepare=answers.prepared_answer,
        )
        #: The documents of the stored indexes, as records: see :class:`Documents`.
        self.documents = Documents(resources)
        self._document_worker: DocumentWorker | None = None
        self._log = open_query_log(config)
        self._pipeline = Pipeline(
            resources=resources,
            classifier=classifier or make_classifier(config, resources),
            selector=selector or make_selector(config, client),
            synthesizer=make_synthesizer(resources, synthesizer),
            postprocessors=NodePostprocessors(postprocessors),
            cache=self.cache,
            log=self._log,
            writers=writers_key(client, synthesizer, postprocessors),
            timer=timer,
            new_id=new_id,
        )
        self._workers = Workers(config.workers, "agentic-router", at_once=True)
        # Goes on while answers wait for models that hang.
        self._finders = Workers(config.workers, "agentic-finder", at_once=True)
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
        described = dict(descriptions or {})
        if not described.keys() <= indexes.keys():
            unknown = ", ".join(sorted(map(repr, described.keys() - indexes.keys())))
            raise errors.IndexingError(f"descriptions of {unknown}, which is not among the indexes")
        router = cls(config, **options)
        try:
            for name, index in indexes.items():
                router.add_index(name, index=index, description=described.get(name, ""))
        except BaseException:
            router.close()
            raise
        return router

    # -- Indexes: made, brought up to date, removed

    def index_names(self) -> list[str]:
        """Return the names of all indexes, in order."""
        return self.resources.names()

    def descriptions(self) -> dict[str, str]:
        """Return what each index holds, by its name, without opening any; ``""`` where that cannot be read."""
        return {name: self._description(name) for name in self.index_names()}

    def index(self, name: str) -> Index:
        """Return an index, stored or attached; changes to an attached one are waited for, two seconds at most.

        Raises:
            UnknownIndexError: If there is none of that name.
            StoreError: If it cannot be opened.
        """
        self.resources.attached.catch_up(name, self.resources.config.deadline_s)
        return self.resources.index(name)

    def stored_index(self, name: str) -> StoredIndex:
        """Return an index of the data directory, with its folder, documents and files.

        Raises:
            IndexingError: If it is an attached one, which has none.
            UnknownIndexError: If there is none of that name.
            StoreError: If it cannot be opened.
        """
        return self.resources.stored(name)

    def refresh_index(self, name: str) -> None:
        """Have an attached index read anew by the next question, for changes that cannot be seen from outside.

        A stored index is always up to date.

        Raises:
            UnknownIndexError: If there is none of that name.
        """
        self.resources.index(name).refresh()

    def add_index(
        self,
        name: str,
        source: str | Path | Sequence[str | Path] | Sequence[Document] | Sequence[BaseNode] | None = None,
        *,
        index: BaseIndex[Any] | BaseQueryEngine | BaseRetriever | None = None,
        description: str = "",
        chunk_size: int | None = None,
        views: bool = True,
        progress: Progress | None = None,
    ) -> IngestReport:
        """Make an index from sources, bring an existing one up to date with them, or attach one of LlamaIndex.

        Chunks can be searched when this returns. Leaves and summaries, which some strategies need, are built in the
        background after it; until then these strategies are not offered. :meth:`build_views` waits for them.

        An attached index is searched where it is, lives in this router only, and is not copied: nothing is written.

        Args:
            name: Name of the index: letters, digits, ``_``, ``-`` and ``.``.
            source: A file or folder, several of them, or LlamaIndex documents or nodes.
            index: A LlamaIndex index, query engine or retriever to attach, instead of a source.
            description: What the index holds; used when it is made.
            chunk_size: Largest chunk in tokens, used when it is made; 2,000 keeps most articles of laws whole.
            views: Whether to build leaves and summaries, too.
            progress: Hears how far it is, in the background as well.

        Returns:
            What was added, changed, left alone, removed and skipped.

        Raises:
            IndexingError: If the name, a source or what is to be attached cannot be used, or both or none are given.
            IndexExistsError: If an index is to be attached under a name that is taken.
            EmbeddingError: If the embedding model failed; run again to go on.
            StoreError: If the index cannot be opened, read or written.
        """
        if index is not None or source is None:
            if source is not None or index is None:
                raise errors.IndexingError(f"index {name!r} needs either a source or index=..., exactly one of them")
            return self.resources.attach(name, index, description=description, progress=progress)
        self.resources.attached.refuse(name)
        report = self._add_sources(name, source, description, chunk_size, progress)
        made = self.resources.stored(name, to_change=True)
        made.build_search(progress)
        if views:
            made.build_in_background(progress)
        return report

    def _add_sources(
        self, name: str, source: object, description: str, chunk_size: int | None, progress: Progress | None
    ) -> IngestReport:
        items = _as_list(source)
        paths = [Path(item) for item in items if isinstance(item, (str, Path))]
        for path in paths:
            discover(path)  # one that is not there must not leave an empty index behind
        resources = self.resources
        is_new = not resources.storage.holds(name)
        if is_new:
            index = resources.create(name, description=description, chunk_size=chunk_size)
        else:
            index = resources.stored(name, to_change=True)
        indexer = Indexer(index, self.config, progress, model=resources.section_model)
        documents = [item for item in items if isinstance(item, Document)]
        nodes = [item for item in items if isinstance(item, BaseNode) and not isinstance(item, Document)]
        report = IngestReport()
        for path in paths:
            report += indexer.add_path(path)
        if documents:
            report += indexer.add_documents(documents)
        if nodes:
            report += indexer.add_nodes(nodes)
        if is_new and not index.count():
            self.remove_index(name)
            reasons = "; ".join(report.skipped_lines()[:3]) or "no files"
            raise errors.IndexingError(f"nothing could be indexed, so index {name!r} was not made ({reasons})")
        return report

    def start_worker(self, concurrency: int = 1) -> None:
        """Process uploaded documents in the background of this process, until :meth:`close`.

        The process that holds embedded indexes is the one that can; where catalog and vectors are on servers any number
        of processes may, on any machines, as ``agentic-retriever worker`` does.

        Args:
            concurrency: Documents that are processed side by side.

        Raises:
            ConfigError: If a worker runs already.
            StoreError: If the catalog cannot be used.
        """
        self.resources.check_open()
        if self._document_worker is not None:
            raise errors.ConfigError("a worker runs already; give it more threads with start_worker(concurrency=...)")
        worker = self._document_worker = DocumentWorker(self.resources, self.documents, concurrency=concurrency)
        worker.start()

    def build_views(self, name: str, *, progress: Progress | None = None) -> None:
        """Build what some strategies need of an index: leaves, and summaries written by the model where there is one.

        Waits for what is being built in the background already.

        Args:
            name: The index.
            progress: Hears how far it is.

        Raises:
            EmbeddingError: If something could not be embedded; run again to go on.
            StoreError: If the disk failed; other errors are as those of :meth:`stored_index`.
        """
        index, model = self.resources.stored(name, to_change=True), self.resources.model
        index.build_views(progress, write_summary=None if model is None else lambda text: model.complete(text).text)

    def copy_index(
        self, name: str, *, to: str, new_name: str | None = None, progress: Watcher | None = None
    ) -> CopyReport:
        """Move an index between the data directory and the Qdrant server, or copy it there; nothing is embedded again.

        A copy that was cut off goes on when it is started again. The source is kept until the copy has been counted.
        Add nothing to the index meanwhile.

        Args:
            name: The index.
            to: ``server`` or ``embedded``.
            new_name: Name of the copy; without one the index itself moves.
            progress: Hears how far it is.

        Returns:
            What was done.

        Raises:
            UnknownIndexError: If there is no such index.
            IndexingError: If it is there already, kept changing, or the new name is taken.
            ConfigError: If no server is configured.
            StoreError: If either side failed; the source is as before.
        """
        self.resources.attached.refuse(name)
        report = copy_index(
            self.resources.storage, name, self.resources.embedding(), to=to, new_name=new_name, progress=progress
        )
        if report.moved:
            self.resources.forget(name)
        return report

    def remove_documents(self, name: str, doc_ids: Sequence[str]) -> IngestReport:
        """Drop documents from an index.

        Args:
            name: An index of the data directory.
            doc_ids: Ids of documents in it.

        Returns:
            What was removed.

        Raises:
            UnknownIndexError: If there is no such index.
            IndexingError: If a document is not in it; nothing is removed then.
        """
        index = self.resources.stored(name, to_change=True)
        report = Indexer(index).remove_documents(doc_ids)
        index.build_search()
        index.build_in_background()
        return report

    def remove_index(self, name: str) -> None:
        """Delete an index and everything in it; an attached one is only let go of, and stays as it is.

        Raises:
            UnknownIndexError: If there is none of that name.
        """
        self.resources.forget(name)
        if self.resources.attached.pop(name, None) is None:
            known = self.documents.list(index=name, limit=10_000_000) if name in self.index_names() else []
            self.resources.storage.remove(name)
            self.documents.discard_files(known)

    # -- Questions: decided, explained, retrieved, answered

    def route(
        self, query: str, *, index: PinnedIndex = None, strategy: PinnedStrategy = None, budget: Budget | None = None
    ) -> RouteDecision:
        """Decide which index and strategy a question goes to, without retrieving.

        Args:
            query: The question.
            index: An index to use whatever the router thinks, or several, of which it chooses.
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
        return self._pipeline.route(_question(query, index=index, strategy=strategy, budget=budget))

    def explain(
        self, query: str, *, index: PinnedIndex = None, strategy: PinnedStrategy = None, budget: Budget | None = None
    ) -> answers.Explanation:
        """Decide as :meth:`route`, and say why in words: print what is returned."""
        return self.explanation(self.route(query, index=index, strategy=strategy, budget=budget))

    def explanation(self, decision: RouteDecision) -> answers.Explanation:
        """Put a decision into words, with the strategies that its index can serve now.

        Args:
            decision: Any decision, such as ``answer.route``.
        """
        name = decision.index.name
        if name not in self.index_names():
            return answers.Explanation(decision=decision)
        index = self.resources.index(name)
        cards, _ = offer(index, measured(index)[0], left_ms=None)
        return answers.Explanation(decision=decision, cards=cards)

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
        index, strategy = (
            stage.name if stage.mode == "pinned" else None for stage in (decision.index, decision.strategy)
        )
        asked = _question(decision.query, index=index or list(decision.among) or None, strategy=strategy)
        meant = decision.understood_as
        question = replace(asked, query=meant, asked=decision.query) if meant else asked
        return self._pipeline.route(question, recorded=decision)

    def retrieve(self, query: str, **pins: Unpack[Pins]) -> Retrieval:
        """Route a question and fetch its nodes: copies, best first, with the decision; arguments as :meth:`query`."""
        return self._pipeline.retrieve(_question(query, **pins))

    def query(  # noqa: PLR0913 - what a question can be asked with, by keyword
        self,
        query: str,
        *,
        index: PinnedIndex = None,
        strategy: PinnedStrategy = None,
        filters: MetadataFilters | None = None,
        top_k: int | None = None,
        budget: Budget | None = None,
        force_cloud: bool = False,
        conversation_id: str = "",
        user_id: str = "",
        turns: Sequence[Turn] = (),
    ) -> Answer:
        """Answer a question with citations.

        Args:
            query: The question.
            index: An index to use whatever the router thinks, or several, of which it chooses.
            strategy: A strategy to use whatever the router thinks.
            filters: Conditions on metadata that every node must meet.
            top_k: Most nodes to retrieve; the configured number by default.
            budget: What the query may spend.
            force_cloud: Ask for the cloud model; noted as degraded where none is configured.
            conversation_id: The conversation that it is a part of. A follow-up such as "and for trailers?" is
                understood in the light of its last turns (``answer.understood_as``), which the router keeps in memory.
            user_id: Whose conversation it is; one of the same name of another user is another one.
            turns: What was said before, oldest first, instead of what the router remembers.

        Returns:
            The answer with its citations, confidence, route, usage and timings.

        Raises:
            InvalidQueryError: If the question or ``top_k`` cannot be used.
            FilterError: If the filters cannot be used.
            RetrievalError: If every strategy failed.
            DeadlineExceededError: If the time ran out before nodes were found.
            RoutingError: As :meth:`route`.
        """
        pins = Pins(
            index=index, strategy=strategy, filters=filters, top_k=top_k, budget=budget,
            turns=turns, conversation_id=conversation_id, user_id=user_id,
        )  # fmt: skip
        return self._pipeline.answer(_question(query, force_cloud=force_cloud, **pins))

    def stream(self, query: str, *, force_cloud: bool = False, **pins: Unpack[Pins]) -> answers.AnswerStream:
        """Answer a question piece by piece, with the finished ``answer`` behind the pieces; arguments as :meth:`query`.

        The model may change until the first piece is shown, never after it: a reply that breaks off then raises a
        ``StreamBrokenError`` with what was shown. Iterating raises as :meth:`query` does, otherwise.
        """
        return answers.AnswerStream(partial(self._pipeline.stream, _question(query, force_cloud=force_cloud, **pins)))

    # -- The same for event loops

    async def aroute(
        self, query: str, *, index: PinnedIndex = None, strategy: PinnedStrategy = None, budget: Budget | None = None
    ) -> RouteDecision:
        """Do as :meth:`route`, off the event loop."""
        call = partial(self.route, query, index=index, strategy=strategy, budget=budget)
        return await self._in_time(budget, self._finders.run(call))

    async def aretrieve(self, query: str, **pins: Unpack[Pins]) -> Retrieval:
        """Do as :meth:`retrieve`, off the event loop."""
        return await self._in_time(pins.get("budget"), self._finders.run(partial(self.retrieve, query, **pins)))

    async def aquery(self, query: str, *, force_cloud: bool = False, **pins: Unpack[Pins]) -> Answer:
        """Do as :meth:`query`, off the event loop; whoever waits for the same answer as another holds no thread."""
        question = _question(query, force_cloud=force_cloud, **pins)
        return await self._in_time(question.budget, self._pipeline.aanswer(question, self._workers))

    def astream(self, query: str, *, force_cloud: bool = False, **pins: Unpack[Pins]) -> answers.AsyncAnswerStream:
        """Do as :meth:`stream`, for ``async for``, off the event loop."""
        return answers.AsyncAnswerStream(self.stream(query, force_cloud=force_cloud, **pins), self._streams)

    # -- As part of a LlamaIndex application

    def as_retriever(self, *, callback_manager: CallbackManager | None = None, **pins: Unpack[Pins]) -> RoutedRetriever:
        """Return the router as a LlamaIndex retriever; ``retrievers.details`` of a node tell its route.

        What is fixed for every question (``index``, ``strategy``, ``filters``, ``top_k``, ``budget``) is checked at
        once and otherwise as :meth:`query` takes it. There are no LlamaIndex callbacks by default.
        """
        return RoutedRetriever(self, pins, callback_manager=callback_manager)

    def as_query_engine(
        self, *, streaming: bool = False, callback_manager: CallbackManager | None = None, **pins: Unpack[Pins]
    ) -> RoutedQueryEngine:
        """Return the router as a LlamaIndex query engine; see :class:`RoutedQueryEngine` for its responses.

        Pins and callbacks as :meth:`as_retriever`; with ``streaming`` responses come word by word.
        """
        return RoutedQueryEngine(self, pins, streaming=streaming, callback_manager=callback_manager)

    def as_chat_engine(self, *, chat_history: Sequence[ChatMessage] = (), **pins: Unpack[Pins]) -> RoutedChatEngine:
        """Return the router as a LlamaIndex chat engine, for one conversation; see :class:`RoutedChatEngine`.

        Pins as :meth:`as_retriever`; ``chat_history`` is what was said before.
        """
        return RoutedChatEngine(self, pins, chat_history=chat_history)

    def as_tool(
        self,
        *,
        name: str = "search_documents",
        description: str | None = None,
        return_direct: bool = False,
        **pins: Unpack[Pins],
    ) -> QueryEngineTool:
        """Return the router as a tool for LlamaIndex agents, workflows and other query engines; pins as :meth:`query`.

        The ``name`` holds letters, digits, ``_`` and ``-``. What it can answer, its ``description``, is by default made
        from the names and descriptions of the indexes as they are now, at most 1,024 characters. With
        ``return_direct`` an agent ends with this tool's answer.
        """
        described = description or tool_description(self.descriptions(), only=pins.get("index"))
        metadata = ToolMetadata(name=name, description=described, return_direct=return_direct)
        return QueryEngineTool(query_engine=RoutedQueryEngine(self, pins), metadata=metadata)

    # -- History, warming up, the end

    @property
    def history(self) -> QueryLog:
        """The queries that were asked: ``history.list()``, ``get(query_id)`` with citations, ``add_feedback(...)``.

        Raises:
            ConfigError: If there is no history by the setting ``query_log``.
        """
        if self._log is None:
            raise errors.ConfigError("query_log is none, so there is no history; set it to plain, hashed or no_text")
        return self._log

    def analytics(self, since: datetime | None = None, until: datetime | None = None) -> Analytics:
        """Sum up the query history: totals, routes, tiers, times, cost and savings, fallbacks.

        Args:
            since: Begin of the period, with a time zone; ``None`` for the first query.
            until: End of the period, with a time zone; ``None`` for now.

        Raises:
            ConfigError: If there is no history by the setting ``query_log``, or a time has no zone.
            QueryLogError: If the history cannot be read.
        """
        return self.history.analytics(since, until)

    def warm(
        self, questions: Iterable[str], *, progress: Callable[[int, int], None] = lambda _done, _total: None
    ) -> WarmReport:
        """Ask questions beforehand, so that their answers are in the cache; one that fails never stops the rest.

        Args:
            questions: The questions, such as those that ``cache.read_questions(path)`` finds in a file.
            progress: Hears how many are done, and of how many.
        """
        return warm(lambda one: answers.warm_outcome(self.query(one)), tuple(questions), progress=progress)

    def close(self) -> None:
        """Close every index; a later use raises ``StoreClosedError``, a second call does nothing."""
        if self._document_worker is not None:
            self._document_worker.stop()
        self._workers.close()
        self._finders.close()
        self._streams.close()
        self.cache.close()
        if self._log is not None:
            self._log.close()
        self.resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def _in_time(self, budget: Budget | None, call: Awaitable[T]) -> T:
        limit = self._pipeline.limit_s(budget)
        try:
            return await asyncio.wait_for(call, limit + _GRACE_S)
        except asyncio.TimeoutError as err:
            raise errors.DeadlineExceededError(
                f"the query took longer than {limit:.1f} s; allow more or ask less"
            ) from err

    def _description(self, name: str) -> str:
        try:
            attached = self.resources.attached.get(name)
            return (self.resources.storage.manifest(name) if attached is None else attached).description
        except errors.AgenticRetrieverError:  # using that index will say so
            return ""


def _question(query: str, *, force_cloud: bool = False, **pins: Unpack[Pins]) -> Question:
    if not isinstance(pins.get("budget"), Budget | None):
        raise errors.InvalidQueryError(f"budget must be a Budget, got {type(pins.get('budget')).__name__}")
    return Question(query=check_query(query), force_cloud=force_cloud, **checked_pins(pins))


def _as_list(source: object) -> list[str | Path | BaseNode]:
    items: list[object] = list(source) if isinstance(source, (list, tuple)) else [source]
    usable = [item for item in items if isinstance(item, (str, Path, BaseNode))]
    if not items or len(usable) < len(items):
        got = type(next((item for item in items if not isinstance(item, (str, Path, BaseNode))), source)).__name__
        raise errors.IndexingError(f"a source must be a path or LlamaIndex documents or nodes, at least one; got {got}")
    return usable


# What is loaded by now stays, so it need not be looked through again: with all of LlamaIndex, a full collection would
# hold every thread, and with them an event loop, for a tenth of a second.
gc.freeze()

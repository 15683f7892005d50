"""The router as LlamaIndex retriever, query engine and tool."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import AsyncStreamingResponse, Response, StreamingResponse
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.tools import QueryEngineTool, ToolMetadata

from agentic_retriever.errors import UnknownStrategyError, unknown_name
from agentic_retriever.filters import check_filters
from agentic_retriever.schema import Strategy, Tier, check_query, check_top_k
from agentic_retriever.tracing import safe_callbacks, spanned_by_base

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping, Sequence

    from llama_index.core.base.response.schema import RESPONSE_TYPE
    from llama_index.core.callbacks.base import CallbackManager
    from llama_index.core.prompts.mixin import PromptMixinType
    from llama_index.core.schema import QueryType
    from llama_index.core.vector_stores.types import MetadataFilters
    from typing_extensions import Self

    from agentic_retriever.schema import Answer, Budget, Retrieval, RouteDecision


# What an application fixes for every question that it passes on.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """What every question of one retriever or query engine is asked with; what is ``None`` the router decides."""

    index: str | None = None
    strategy: str | Strategy | None = None
    filters: MetadataFilters | None = None
    top_k: int | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        check_filters(self.filters)
        if self.top_k is not None:
            check_top_k(self.top_k)
        if self.strategy is not None:
            _check_strategy(self.strategy)

    def options(self) -> dict[str, Any]:
        """Return them as keyword arguments of the router's methods."""
        return {name: getattr(self, name) for name in self.__slots__}


def checked_bundle(query: QueryType) -> QueryBundle:
    """Return a question as LlamaIndex passes it on.

    LlamaIndex itself fails on anything but text with an error that does not tell what is wrong.
    """
    bundle = query if isinstance(query, QueryBundle) else QueryBundle(query)
    check_query(bundle.query_str, max_chars=sys.maxsize)
    return bundle


def _check_strategy(name: str | Strategy) -> None:
    try:
        Strategy(name)
    except ValueError as err:
        raise UnknownStrategyError(unknown_name("strategy", str(name), [one.value for one in Strategy])) from err


# Answers as LlamaIndex responses.

_ELSEWHERE: Final = frozenset({"text", "nodes"})


def as_response(answer: Answer) -> Response:
    """Return an answer as LlamaIndex passes it on."""
    return Response(response=answer.text, source_nodes=source_nodes(answer), metadata=response_metadata(answer))


def source_nodes(answer: Answer) -> list[NodeWithScore]:
    """Return the nodes that an answer may stand on: none where it says that nothing was found."""
    return [] if answer.tier is Tier.NONE else list(answer.nodes)


def response_metadata(answer: Answer) -> dict[str, Any]:
    """Return all of an answer but text and nodes: ``route``, ``citations``, ``confidence``, ``tier``, ``usage``, ..."""
    return {name: value for name, value in answer.to_dict().items() if name not in _ELSEWHERE}


# The router as a LlamaIndex retriever.

logger = logging.getLogger(__name__)

ROUTE_KEY: Final = "route"
"""Metadata key of a node under which its route stands: ``index``, ``indexes`` (all that were searched), ``strategy``,
``index_confidence``, ``strategy_confidence`` and ``degraded``, in plain JSON types. Prompts and embeddings do not show
it. A field of that name in the stored node is hidden by it, in results only.
"""

#: What tells a model nothing.
_NOISE: Final = ("content_hash", "chunk_type")


class FindsNodes(Protocol):
    """What a retriever needs of the router."""

    def retrieve(self, query: str, *args: Any, **options: Any) -> Retrieval:  # noqa: ANN401 - any pins
        """Route a question and fetch its nodes."""

    async def aretrieve(self, query: str, *args: Any, **options: Any) -> Retrieval:  # noqa: ANN401 - any pins
        """Do as :meth:`retrieve`, off the event loop."""


class RoutedRetriever(BaseRetriever):
    """Retrieves through the router: which index and which strategy is decided anew for every question.

    It keeps nothing between questions, so one serves many threads and event loops. Each node tells its route in its
    metadata under ``ROUTE_KEY``. The vector of a ``QueryBundle`` is not used, for each index has its own model.

    Args:
        router: The router.
        pins: What is fixed for every question.
        callback_manager: LlamaIndex callbacks, which can never end a query; none by default, whatever the process-wide
            settings say.
    """

    def __init__(
        self, router: FindsNodes, pins: Pins | None = None, *, callback_manager: CallbackManager | None = None
    ) -> None:
        super().__init__(callback_manager=safe_callbacks(callback_manager))
        self._router = router
        self.pins = pins or Pins()

    @spanned_by_base
    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Return the nodes for a question, best first; none for one that is declined as out of scope.

        Args:
            str_or_query_bundle: The question.

        Raises:
            InvalidQueryError: If the question cannot be used.
            RetrievalError: If every strategy failed.
            DeadlineExceededError: If the time ran out.
            RoutingError: If there is nothing to choose from.
        """
        return super().retrieve(checked_bundle(str_or_query_bundle))

    @spanned_by_base
    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Do as :meth:`retrieve` without blocking the event loop."""
        return await super().aretrieve(checked_bundle(str_or_query_bundle))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _told(self._router.retrieve(query_bundle.query_str, **self.pins.options()))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _told(await self._router.aretrieve(query_bundle.query_str, **self.pins.options()))


def _told(retrieval: Retrieval) -> list[NodeWithScore]:
    """Return new nodes that tell their route."""
    for step in retrieval.degraded:
        # Plain LlamaIndex callers often see nothing but texts.
        logger.info("%s fell back to %s: %s", step.step, step.fallback, step.reason)
    return [_with_route(scored, _route_of(retrieval)) for scored in retrieval.nodes]  # each a record of its own


def _route_of(retrieval: Retrieval) -> dict[str, Any]:
    decision = retrieval.route
    return {
        "index": decision.index.name,
        "indexes": list(retrieval.indexes),
        "index_confidence": decision.index.confidence,
        "strategy": retrieval.strategy.value,
        "strategy_confidence": decision.strategy.confidence,
        "degraded": [step.to_dict() for step in retrieval.degraded],
    }


def _with_route(scored: NodeWithScore, route: dict[str, Any]) -> NodeWithScore:
    node = scored.node.model_copy()
    node.metadata = {**node.metadata, ROUTE_KEY: route}
    node.excluded_llm_metadata_keys = list(dict.fromkeys([*node.excluded_llm_metadata_keys, ROUTE_KEY, *_NOISE]))
    node.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, ROUTE_KEY]
    return NodeWithScore(node=node, score=scored.score)


# The router as a LlamaIndex query engine.


class ShownAnswer(Protocol):
    """A streamed answer, as far as both twins are alike."""

    @property
    def answer(self) -> Answer | None:
        """The finished answer, once the stream has ended by itself."""

    @property
    def nodes(self) -> Sequence[NodeWithScore]:
        """What was retrieved, from the first piece on."""

    @property
    def route(self) -> RouteDecision | None:
        """The decision, from the first piece on."""


class Shown(ShownAnswer, Protocol):
    """A streamed answer."""

    def __iter__(self) -> Iterator[str]: ...
    def __next__(self) -> str: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *raised: object) -> None: ...


class AsyncShown(ShownAnswer, Protocol):
    """A streamed answer, for event loops."""

    def __aiter__(self) -> AsyncIterator[str]: ...
    async def __anext__(self) -> str: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *raised: object) -> None: ...


class AnswersQuestions(FindsNodes, Protocol):
    """What a query engine needs of the router."""

    def query(self, query: str, *args: Any, **options: Any) -> Answer:  # noqa: ANN401 - any pins
        """Answer a question."""

    async def aquery(self, query: str, *args: Any, **options: Any) -> Answer:  # noqa: ANN401 - any pins
        """Answer a question, off the event loop."""

    def stream(self, query: str, *args: Any, **options: Any) -> Shown:  # noqa: ANN401 - any pins
        """Answer a question piece by piece."""

    def astream(self, query: str, *args: Any, **options: Any) -> AsyncShown:  # noqa: ANN401 - any pins
        """Answer a question piece by piece, off the event loop."""


class RoutedQueryEngine(BaseQueryEngine):
    """Answers through the router, with citations that were checked.

    A response has the retrieved nodes as ``source_nodes`` and, as ``metadata``, ``route``, ``citations``,
    ``confidence``, ``tier``, ``usage``, ``degraded`` and the rest of ``Answer.to_dict()``. Where nothing was found, or
    the question was declined, the text says so and there are no source nodes.

    A streaming response comes with its first words: by then nodes and route are known, and the metadata holds
    ``route``. The rest of the metadata follows, in the same dictionary, when the stream has ended.

    Args:
        router: The router.
        pins: What is fixed for every question.
        streaming: Whether responses are streamed.
        callback_manager: LlamaIndex callbacks, which can never end a query; none by default.
    """

    def __init__(
        self,
        router: AnswersQuestions,
        pins: Pins | None = None,
        *,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        super().__init__(callback_manager=safe_callbacks(callback_manager))
        self._router = router
        self._streaming = streaming
        self.pins = pins or Pins()
        self._retriever = RoutedRetriever(router, self.pins, callback_manager=callback_manager)

    @spanned_by_base
    def query(self, str_or_query_bundle: QueryType) -> RESPONSE_TYPE:
        """Answer a question.

        Args:
            str_or_query_bundle: The question.

        Raises:
            InvalidQueryError: If the question cannot be used; otherwise as ``AgenticRouter.query``.
        """
        return super().query(checked_bundle(str_or_query_bundle))

    @spanned_by_base
    async def aquery(self, str_or_query_bundle: QueryType) -> RESPONSE_TYPE:
        """Do as :meth:`query` without blocking the event loop."""
        return await super().aquery(checked_bundle(str_or_query_bundle))

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the nodes for a question, as :class:`RoutedRetriever` does."""
        return self._retriever.retrieve(query_bundle)

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Do as :meth:`retrieve` without blocking the event loop."""
        return await self._retriever.aretrieve(query_bundle)

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        options = self.pins.options()
        if not self._streaming:
            return as_response(self._router.query(query_bundle.query_str, **options))
        stream = self._router.stream(query_bundle.query_str, **options)
        first = next(stream, "")
        nodes, metadata = _begun(stream)
        return StreamingResponse(_shown(stream, first, nodes, metadata), source_nodes=nodes, metadata=metadata)

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        options = self.pins.options()
        if not self._streaming:
            return as_response(await self._router.aquery(query_bundle.query_str, **options))
        stream = self._router.astream(query_bundle.query_str, **options)
        try:
            first = await stream.__anext__()
        except StopAsyncIteration:
            first = ""
        nodes, metadata = _begun(stream)
        return AsyncStreamingResponse(_ashown(stream, first, nodes, metadata), source_nodes=nodes, metadata=metadata)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}


def _begun(stream: ShownAnswer) -> tuple[list[NodeWithScore], dict[str, Any]]:
    route = stream.route
    return list(stream.nodes), {} if route is None else {"route": route.to_dict()}


def _ended(stream: ShownAnswer, nodes: list[NodeWithScore], metadata: dict[str, Any]) -> None:
    answer = stream.answer
    if answer is not None:
        nodes[:] = source_nodes(answer)
        metadata.update(response_metadata(answer))


def _shown(
    stream: Shown, first: str, nodes: list[NodeWithScore], metadata: dict[str, Any]
) -> Generator[str, None, None]:
    with stream:
        yield first
        yield from stream
        _ended(stream, nodes, metadata)


async def _ashown(
    stream: AsyncShown, first: str, nodes: list[NodeWithScore], metadata: dict[str, Any]
) -> AsyncGenerator[str, None]:
    async with stream:
        yield first
        async for piece in stream:
            yield piece
        _ended(stream, nodes, metadata)


# The methods by which a router plugs into a LlamaIndex application.

MAX_DESCRIPTION: Final = 1_024
"""Longest description of a tool that LlamaIndex passes to OpenAI's models, in characters."""

_INTRODUCTION: Final = "Answers a question in plain language, with citations, from these collections of documents:"


class Describes(AnswersQuestions, Protocol):
    """What a tool needs of the router."""

    def descriptions(self) -> Mapping[str, str]:
        """Return what each index holds, by its name."""


class Pluggable:
    """What a router offers to a LlamaIndex application; it needs no more of the router than the protocols say."""

    def as_retriever(
        self: FindsNodes,
        *,
        index: str | None = None,
        strategy: str | Strategy | None = None,
        filters: MetadataFilters | None = None,
        top_k: int | None = None,
        budget: Budget | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> RoutedRetriever:
        """Return the router as a LlamaIndex retriever; each node tells its route in ``metadata["route"]``.

        Args:
            index: An index to use whatever the router thinks.
            strategy: A strategy to use whatever the router thinks.
            filters: Conditions on metadata that every node must meet.
            top_k: Most nodes to return; the configured number by default.
            budget: What a query may spend.
            callback_manager: LlamaIndex callbacks; none by default.

        Raises:
            FilterError: If the filters cannot be used.
            InvalidQueryError: If ``top_k`` cannot be used.
            UnknownStrategyError: If no strategy has that name.
        """
        pins = Pins(index=index, strategy=strategy, filters=filters, top_k=top_k, budget=budget)
        return RoutedRetriever(self, pins, callback_manager=callback_manager)

    def as_query_engine(
        self: AnswersQuestions,
        *,
        index: str | None = None,
        strategy: str | Strategy | None = None,
        filters: MetadataFilters | None = None,
        top_k: int | None = None,
        budget: Budget | None = None,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> RoutedQueryEngine:
        """Return the router as a LlamaIndex query engine; see :class:`RoutedQueryEngine` for its responses.

        Args:
            index: An index to use whatever the router thinks.
            strategy: A strategy to use whatever the router thinks.
            filters: Conditions on metadata that every node must meet.
            top_k: Most nodes to retrieve; the configured number by default.
            budget: What a query may spend.
            streaming: Whether responses come word by word.
            callback_manager: LlamaIndex callbacks; none by default.

        Raises:
            FilterError: If the filters cannot be used; otherwise as :meth:`as_retriever`.
        """
        pins = Pins(index=index, strategy=strategy, filters=filters, top_k=top_k, budget=budget)
        return RoutedQueryEngine(self, pins, streaming=streaming, callback_manager=callback_manager)

    def as_tool(  # noqa: PLR0913 - the pins and what a tool has besides, all by keyword
        self: Describes,
        *,
        name: str = "search_documents",
        description: str | None = None,
        return_direct: bool = False,
        index: str | None = None,
        strategy: str | Strategy | None = None,
        filters: MetadataFilters | None = None,
        top_k: int | None = None,
        budget: Budget | None = None,
    ) -> QueryEngineTool:
        """Return the router as a tool for LlamaIndex agents, workflows and other query engines.

        Args:
            name: Name of the tool: letters, digits, ``_`` and ``-``.
            description: What it can answer; by default made from the names and descriptions of the indexes as they are
                now, at most 1,024 characters.
            return_direct: Whether an agent ends with this tool's answer.
            index: An index to use whatever the router thinks.
            strategy: A strategy to use whatever the router thinks.
            filters: Conditions on metadata that every node must meet.
            top_k: Most nodes to retrieve; the configured number by default.
            budget: What a query may spend.

        Raises:
            FilterError: If the filters cannot be used; otherwise as :meth:`as_retriever`.
        """
        pins = Pins(index=index, strategy=strategy, filters=filters, top_k=top_k, budget=budget)
        told = description or tool_description(self.descriptions(), only=index)
        metadata = ToolMetadata(name=name, description=told, return_direct=return_direct)
        return QueryEngineTool(query_engine=RoutedQueryEngine(self, pins), metadata=metadata)


def tool_description(indexes: Mapping[str, str], *, only: str | None = None) -> str:
    """Describe what a router can answer, in at most 1,024 characters."""
    lines = [
        f"- {name}: {' '.join(text.split())}" if text.strip() else f"- {name}"
        for name, text in indexes.items()
        if only is None or name == only
    ]
    room = MAX_DESCRIPTION - len(_INTRODUCTION)
    share = max(24, room // max(1, len(lines)) - 1)
    if sum(len(line) + 1 for line in lines) > room:
        lines = [line if len(line) <= share else line[: share - 1] + "…" for line in lines]
    return "\n".join([_INTRODUCTION, *lines])[:MAX_DESCRIPTION]

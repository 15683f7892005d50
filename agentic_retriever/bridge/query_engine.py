"""The router as a LlamaIndex query engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse

from agentic_retriever.bridge.pins import Pins, checked_bundle
from agentic_retriever.bridge.responses import as_response, response_metadata, source_nodes
from agentic_retriever.bridge.retriever import FindsNodes, RoutedRetriever
from agentic_retriever.tracing import safe_callbacks, spanned_by_base

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence

    from llama_index.core.base.response.schema import RESPONSE_TYPE
    from llama_index.core.callbacks.base import CallbackManager
    from llama_index.core.prompts.mixin import PromptMixinType
    from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
    from typing_extensions import Self

    from agentic_retriever.schema import Answer, RouteDecision


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

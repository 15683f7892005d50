"""The router as LlamaIndex retriever, query engine, chat engine and tool."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import RESPONSE_TYPE, AsyncStreamingResponse, StreamingResponse
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.chat_engine.types import AgentChatResponse, BaseChatEngine, StreamingAgentChatResponse
from llama_index.core.llms import ChatMessage, ChatResponse, MessageRole
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType

from agentic_retriever.pipeline import answers
from agentic_retriever.pipeline.conversations import turns_of
from agentic_retriever.pipeline.query import Pins, checked_pins
from agentic_retriever.retrievers.base import CheckedRetriever, checked_bundle, detailed
from agentic_retriever.schema import Answer, Retrieval
from agentic_retriever.tracing import safe_callbacks, spanned_by_base

logger = logging.getLogger(__name__)

ROUTE_KEY: Final = "route"
"""Key of the route in ``retrievers.details`` of a node: ``index``, ``indexes`` (all that were searched), ``strategy``,
``index_confidence``, ``strategy_confidence`` and ``degraded``, in plain JSON types.
"""

_MEANT: Final = "understood_as"  # key of a message: what it meant, where it leaned on those before it
MAX_DESCRIPTION: Final = 1_024  # longest description of a tool that LlamaIndex passes to OpenAI's models, in characters
_NOISE: Final = ("content_hash", "chunk_type", "page_starts")  # what tells a model nothing
_INTRODUCTION: Final = "Answers a question in plain language, with citations, from these collections of documents:"


class Router(Protocol):
    """What is needed of the router, which imports this file."""

    def retrieve(self, query: str, *args: Any, **pins: Any) -> Retrieval: ...  # noqa: ANN401 - any pins
    async def aretrieve(self, query: str, *args: Any, **pins: Any) -> Retrieval: ...  # noqa: ANN401 - any pins
    def query(self, query: str, *args: Any, **pins: Any) -> Answer: ...  # noqa: ANN401 - any pins
    async def aquery(self, query: str, *args: Any, **pins: Any) -> Answer: ...  # noqa: ANN401 - any pins
    def stream(self, query: str, *args: Any, **pins: Any) -> answers.AnswerStream: ...  # noqa: ANN401 - any pins
    def astream(self, query: str, *args: Any, **pins: Any) -> answers.AsyncAnswerStream: ...  # noqa: ANN401 - any pins


class RoutedRetriever(CheckedRetriever):
    """Retrieves through the router: which index and which strategy is decided anew for every question.

    A question that is declined as out of scope has no nodes; errors are those of ``AgenticRouter.retrieve``. It keeps
    nothing between questions, so one serves many threads and event loops. Each node is as it is stored; its route is
    in ``retrievers.details(node)``. The vector of a ``QueryBundle`` is not used, for each index has its own model.

    Args:
        router: The router.
        pins: What is fixed for every question.
        callback_manager: LlamaIndex callbacks, which can never end a query; none by default, whatever the process-wide
            settings say.
    """

    def __init__(
        self, router: Router, pins: Pins | None = None, *, callback_manager: CallbackManager | None = None
    ) -> None:
        super().__init__(callback_manager=safe_callbacks(callback_manager))
        self._router = router
        self.pins: Pins = pins or {}
        checked_pins(self.pins)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _with_routes(self._router.retrieve(query_bundle.query_str, **self.pins))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _with_routes(await self._router.aretrieve(query_bundle.query_str, **self.pins))


def _with_routes(retrieval: Retrieval) -> list[NodeWithScore]:
    """Return new nodes that tell their route."""
    decision = retrieval.route
    for step in retrieval.degraded:
        # Plain LlamaIndex callers often see nothing but texts.
        logger.info("%s fell back to %s: %s", step.step, step.fallback, step.reason)
    marked: list[NodeWithScore] = []
    for scored in retrieval.nodes:
        route = {  # each a record of its own
            "index": decision.index.name,
            "indexes": list(retrieval.indexes),
            "index_confidence": decision.index.confidence,
            "strategy": retrieval.strategy.value,
            "strategy_confidence": decision.strategy.confidence,
            "degraded": [step.to_dict() for step in retrieval.degraded],
        }
        hidden = list(dict.fromkeys([*scored.node.excluded_llm_metadata_keys, *_NOISE]))
        scored.node.excluded_llm_metadata_keys = hidden
        marked.append(detailed(scored, scored.score, **{ROUTE_KEY: route}))
    return marked


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
        router: Router,
        pins: Pins | None = None,
        *,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        super().__init__(callback_manager=safe_callbacks(callback_manager))
        self._router = router
        self._streaming = streaming
        self.pins: Pins = pins or {}
        self._retriever = RoutedRetriever(router, self.pins, callback_manager=callback_manager)

    @spanned_by_base
    def query(self, str_or_query_bundle: QueryType) -> RESPONSE_TYPE:
        """Answer a question; errors are those of ``AgenticRouter.query``."""
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
        if not self._streaming:
            return answers.as_response(self._router.query(query_bundle.query_str, **self.pins))
        stream = self._router.stream(query_bundle.query_str, **self.pins)
        first = next(stream, "")
        begun = _begun(stream)
        return StreamingResponse(_pieces(stream, first, begun), **begun)

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        if not self._streaming:
            return answers.as_response(await self._router.aquery(query_bundle.query_str, **self.pins))
        stream = self._router.astream(query_bundle.query_str, **self.pins)
        first = await anext(stream, "")
        begun = _begun(stream)
        return AsyncStreamingResponse(_apieces(stream, first, begun), **begun)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}


def _begun(stream: answers.AnswerStream | answers.AsyncAnswerStream) -> dict[str, Any]:
    """Return what a response is begun with: by the first piece, nodes and route are known."""
    metadata = {} if stream.route is None else {"route": stream.route.to_dict()}
    return {"source_nodes": list(stream.nodes), "metadata": metadata}


def _pieces(stream: answers.AnswerStream, first: str, begun: dict[str, Any]) -> Generator[str, None, None]:
    with stream:
        yield first
        yield from stream
        _complete(stream.answer, **begun)


async def _apieces(stream: answers.AsyncAnswerStream, first: str, begun: dict[str, Any]) -> AsyncGenerator[str, None]:
    async with stream:
        yield first
        async for piece in stream:
            yield piece
        _complete(stream.answer, **begun)


def _complete(answer: Answer | None, source_nodes: list[NodeWithScore], metadata: dict[str, Any]) -> None:
    """Put the finished answer into what a response was begun with."""
    if answer is not None:
        source_nodes[:] = answers.source_nodes(answer)
        metadata.update(answers.response_metadata(answer))


@dataclass
class RoutedChatStream(StreamingAgentChatResponse):
    """A message that is being written; ``metadata`` is complete when it has ended."""

    metadata: dict[str, Any] = field(default_factory=dict)


class RoutedChatEngine(BaseChatEngine):
    """Chats through the router: a message that leans on those before it is understood in their light.

    ``metadata`` of a response is as that of :class:`RoutedQueryEngine`, with ``understood_as`` in its ``route``. A
    message is answered from the documents alone: instructions and small talk are questions like others. Messages that
    failed, or whose stream was not read to its end, are not in the history.

    Args:
        router: The router.
        pins: What is fixed for every message.
        chat_history: What was said before.
    """

    def __init__(self, router: Router, pins: Pins | None = None, *, chat_history: Sequence[ChatMessage] = ()) -> None:
        self._router = router
        self.pins: Pins = pins or {}
        checked_pins(self.pins)
        self._history = list(chat_history)

    def reset(self) -> None:
        """Forget what was said."""
        self._history = []

    @property
    def chat_history(self) -> list[ChatMessage]:
        """What was said, oldest first: a copy."""
        return list(self._history)

    def chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> AgentChatResponse:
        """Answer a message; errors are those of ``AgenticRouter.query``.

        Args:
            message: What the user says.
            chat_history: What was said before, instead of what the engine remembers.
        """
        return self._said(message, self._router.query(message, **self._with_turns(chat_history)))

    async def achat(self, message: str, chat_history: list[ChatMessage] | None = None) -> AgentChatResponse:
        """Do as :meth:`chat` without blocking the event loop."""
        return self._said(message, await self._router.aquery(message, **self._with_turns(chat_history)))

    def stream_chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> RoutedChatStream:
        """Do as :meth:`chat`, piece by piece: read ``response_gen``. Nodes and route come with the first piece."""
        stream = self._router.stream(message, **self._with_turns(chat_history))
        first = next(stream, "")
        begun = _begun(stream)
        pieces = self._chats(message, stream, _pieces(stream, first, begun))
        return RoutedChatStream(chat_stream=pieces, **begun, is_writing_to_memory=False)

    async def astream_chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> RoutedChatStream:
        """Do as :meth:`stream_chat` without blocking the event loop: read ``async_response_gen()``."""
        stream = self._router.astream(message, **self._with_turns(chat_history))
        first = await anext(stream, "")
        begun = _begun(stream)
        pieces = self._achats(message, stream, _apieces(stream, first, begun))
        return RoutedChatStream(achat_stream=pieces, **begun, is_writing_to_memory=False)

    def _with_turns(self, chat_history: list[ChatMessage] | None) -> dict[str, Any]:
        if chat_history is not None:
            self._history = list(chat_history)
        said = ((one.role.value, one.content or "", one.additional_kwargs.get(_MEANT, "")) for one in self._history)
        return {**self.pins, "turns": turns_of(said)}

    def _said(self, message: str, answer: Answer) -> AgentChatResponse:
        self._remember(message, answer)
        nodes, metadata = answers.source_nodes(answer), answers.response_metadata(answer)
        return AgentChatResponse(response=answer.text, source_nodes=nodes, metadata=metadata)

    def _remember(self, message: str, answer: Answer) -> None:
        meant = {_MEANT: answer.understood_as} if answer.understood_as else {}
        asked = ChatMessage(role=MessageRole.USER, content=message, additional_kwargs=meant)
        said = ChatMessage(role=MessageRole.ASSISTANT, content=answer.text)
        self._history = [*self._history, asked, said]

    def _chats(
        self, message: str, stream: answers.AnswerStream, pieces: Iterator[str]
    ) -> Generator[ChatResponse, None, None]:
        for piece in pieces:
            yield _chat_piece(piece)
        if stream.answer is not None:
            self._remember(message, stream.answer)

    async def _achats(
        self, message: str, stream: answers.AsyncAnswerStream, pieces: AsyncIterator[str]
    ) -> AsyncGenerator[ChatResponse, None]:
        async for piece in pieces:
            yield _chat_piece(piece)
        if stream.answer is not None:
            self._remember(message, stream.answer)


def _chat_piece(piece: str) -> ChatResponse:
    return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=piece), delta=piece)


def tool_description(indexes: Mapping[str, str], *, only: str | Sequence[str] | None = None) -> str:
    """Describe what a router can answer, in at most 1,024 characters."""
    lines = [
        f"- {name}: {' '.join(text.split())}" if text.strip() else f"- {name}"
        for name, text in indexes.items()
        if only is None or name in ([only] if isinstance(only, str) else only)
    ]
    room = MAX_DESCRIPTION - len(_INTRODUCTION)
    share = max(24, room // max(1, len(lines)) - 1)
    if sum(len(line) + 1 for line in lines) > room:
        lines = [line if len(line) <= share else line[: share - 1] + "…" for line in lines]
    return "\n".join([_INTRODUCTION, *lines])[:MAX_DESCRIPTION]

"""The stages of a query as LlamaIndex spans, with LlamaIndex's events where they fit; see ``tracing``.

::

    AgenticRouter.query                  QueryStartEvent, QueryEndEvent
    ├── AgenticRouter.route              RouteDecisionEvent
    ├── AgenticRouter.search             RetrievalStartEvent, RetrievalEndEvent
    │   ├── VectorRetriever.search ...     one for each strategy that was run, on each index
    │   └── AgenticRouter.refine         ReRankStartEvent, ReRankEndEvent where there is a reranker
    └── AgenticRouter.synthesize         SynthesizeStartEvent, SynthesizeEndEvent

``AgenticRouter.retrieve`` stands above route and search where only nodes are asked for. An answer from the cache has
the first one alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, ParamSpec, TypeVar

from llama_index.core.instrumentation.events.query import QueryEndEvent, QueryStartEvent
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent, SynthesizeStartEvent

from agentic_retriever.bridge.responses import as_response
from agentic_retriever.tracing import RouteDecisionEvent, Span, emit, is_watched, span, streamed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from llama_index.core.schema import NodeWithScore
    from llama_index_instrumentation.base import BaseEvent

    from agentic_retriever.retrievers import RetrievalRequest, RetrieverAdapter, SearchResult
    from agentic_retriever.router.questions import Question, Routed
    from agentic_retriever.router.refining import Refiner
    from agentic_retriever.schema import Answer, Degradation, Retrieval

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stage(Generic[T]):
    """How a stage is told.

    Attributes:
        name: Of the span.
        inputs: What the span shows, from the arguments of the stage.
        begins: The event with which it begins, from the same; or ``None``.
        ends: What the span gave, and the event with which it ends, from the result and the same.
    """

    name: str
    inputs: Callable[..., dict[str, object]]
    begins: Callable[..., BaseEvent | None]
    ends: Callable[..., tuple[object, BaseEvent | None]]

    def open(self, args: Sequence[object]) -> Span:
        """Make the span; it is not entered yet."""
        return Span(self.name, self.inputs(*args))

    def begun(self, args: Sequence[object]) -> None:
        """Tell that it begins."""
        self._emit(self.begins(*args))

    def ended(self, opened: Span, result: T, args: Sequence[object]) -> None:
        """Tell what it gave."""
        opened.result, event = self.ends(result, *args)
        self._emit(event)

    @staticmethod
    def _emit(event: BaseEvent | None) -> None:
        if event is not None:
            emit(event)


def traced(stage: Stage[T]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Open a span around every call of a method while somebody watches."""

    def decorate(run: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(run)
        def watched(*args: P.args, **kwargs: P.kwargs) -> T:
            if not is_watched():
                return run(*args, **kwargs)
            with span(stage.open(args)) as opened:
                stage.begun(args)
                result = run(*args, **kwargs)
                stage.ended(opened, result, args)
                return result

        return watched

    return decorate


def traced_task(stage: Stage[T]) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """Do as :func:`traced` for a coroutine."""

    def decorate(run: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @functools.wraps(run)
        async def watched(*args: P.args, **kwargs: P.kwargs) -> T:
            if not is_watched():
                return await run(*args, **kwargs)
            with span(stage.open(args)) as opened:
                stage.begun(args)
                result = await run(*args, **kwargs)
                stage.ended(opened, result, args)
                return result

        return watched

    return decorate


def traced_stream(
    stage: Stage[T],
) -> Callable[[Callable[P, Generator[str, None, T]]], Callable[P, Generator[str, None, T]]]:
    """Do as :func:`traced` for a generator; the span lasts until it ends, breaks or is closed."""

    def decorate(run: Callable[P, Generator[str, None, T]]) -> Callable[P, Generator[str, None, T]]:
        @functools.wraps(run)
        def watched(*args: P.args, **kwargs: P.kwargs) -> Generator[str, None, T]:
            if not is_watched():
                return (yield from run(*args, **kwargs))
            opened = stage.open(args)
            return (
                yield from streamed(
                    opened,
                    run(*args, **kwargs),
                    begun=lambda: stage.begun(args),
                    ended=lambda result: stage.ended(opened, result, args),
                )
            )

        return watched

    return decorate


def adapter_search(adapter: RetrieverAdapter, index: str, request: RetrievalRequest) -> SearchResult:
    """Search with a strategy, inside a span while somebody watches."""
    if not is_watched():
        return adapter.search(request)
    inputs = {"query": request.query, "index": index, "top_k": request.top_k}
    with span(Span(f"{type(adapter).__name__}.search", inputs, adapter)) as opened:
        result = adapter.search(request)
        opened.result = list(result.nodes)
        return result


def _question(_self: object, question: Question, *_rest: object) -> dict[str, object]:
    pins = {
        "index": question.index,
        "strategy": None if question.strategy is None else question.strategy.value,
        "top_k": question.top_k if question.top_k_given else None,
    }
    return {"query": question.query, **{name: value for name, value in pins.items() if value is not None}}


def _nothing(*_args: object) -> None:
    return None


def _routed(routed: Routed, *_args: object) -> tuple[object, BaseEvent]:
    record = routed.decision.to_dict()
    return record, RouteDecisionEvent(decision=record)


def _search_begins(_self: object, question: Question, *_rest: object) -> BaseEvent:
    return RetrievalStartEvent(str_or_query_bundle=question.query)


def _search_ends(
    found: tuple[Retrieval, dict[str, str]], _self: object, question: Question, *_rest: object
) -> tuple[object, BaseEvent]:
    nodes = list(found[0].nodes)
    return nodes, RetrievalEndEvent(str_or_query_bundle=question.query, nodes=nodes)


def _refine_begins(
    refiner: Refiner, question: Question, nodes: Sequence[NodeWithScore], _origin: object, kept: int, *_rest: object
) -> BaseEvent | None:
    if refiner.reranker == "none":
        return None
    return ReRankStartEvent(query=question.query, nodes=list(nodes), top_n=kept, model_name=refiner.reranker)


def _refine_ends(
    refined: tuple[list[NodeWithScore], tuple[Degradation, ...]], refiner: Refiner, *_rest: object
) -> tuple[object, BaseEvent | None]:
    nodes = list(refined[0])
    return nodes, None if refiner.reranker == "none" else ReRankEndEvent(nodes=nodes)


def _retrieval(_self: object, retrieval: Retrieval, *_rest: object) -> dict[str, object]:
    return {"query": retrieval.route.query, "nodes": [scored.node.node_id for scored in retrieval.nodes]}


def _synthesis_begins(_self: object, retrieval: Retrieval, *_rest: object) -> BaseEvent:
    return SynthesizeStartEvent(query=retrieval.route.query)


def _synthesis_ends(answer: Answer, _self: object, retrieval: Retrieval, *_rest: object) -> tuple[object, BaseEvent]:
    response = as_response(answer)
    return response, SynthesizeEndEvent(query=retrieval.route.query, response=response)


def _query_begins(_self: object, question: Question, *_rest: object) -> BaseEvent:
    return QueryStartEvent(query=question.query)


def _query_ends(answer: Answer, _self: object, question: Question, *_rest: object) -> tuple[object, BaseEvent]:
    response = as_response(answer)
    return response, QueryEndEvent(query=question.query, response=response)


def _nodes(retrieval: Retrieval, *_args: object) -> tuple[object, None]:
    return list(retrieval.nodes), None


QUERY: Final[Stage[Answer]] = Stage("AgenticRouter.query", _question, _query_begins, _query_ends)
RETRIEVE: Final[Stage[Retrieval]] = Stage("AgenticRouter.retrieve", _question, _nothing, _nodes)
ROUTE: Final[Stage[Routed]] = Stage("AgenticRouter.route", _question, _nothing, _routed)
SEARCH: Final[Stage[tuple[Retrieval, dict[str, str]]]] = Stage(
    "AgenticRouter.search", _question, _search_begins, _search_ends
)
REFINE: Final[Stage[tuple[list[NodeWithScore], tuple[Degradation, ...]]]] = Stage(
    "AgenticRouter.refine", _question, _refine_begins, _refine_ends
)
SYNTHESIZE: Final[Stage[Answer]] = Stage("AgenticRouter.synthesize", _retrieval, _synthesis_begins, _synthesis_ends)

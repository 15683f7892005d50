"""Spans and events of our stages for whoever watches LlamaIndex: Phoenix, Langfuse, OpenTelemetry handlers, and others.

They reach the handlers of LlamaIndex's root dispatcher, and those of the dispatcher ``agentic_retriever`` below it.
While no handler is attached nothing is made at all. A handler that raises is warned of once and never ends a query.

Example:
    >>> from llama_index.core.instrumentation import get_dispatcher
    >>> get_dispatcher().add_event_handler(my_handler)
"""

from __future__ import annotations

import inspect
import logging
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.dispatcher import active_instrument_tags
from llama_index_instrumentation.event_handlers import NullEventHandler
from llama_index_instrumentation.events.span import SpanDropEvent
from llama_index_instrumentation.span import active_span_id
from llama_index_instrumentation.span_handlers import NullSpanHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from llama_index_instrumentation.dispatcher import Dispatcher

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DISPATCHER: Final = get_dispatcher("agentic_retriever")

_ALL: Final = (_DISPATCHER, _DISPATCHER.root)

_QUIET: Final = frozenset({NullEventHandler, NullSpanHandler})

#: Classes of handlers that have raised, so that each is warned of once.
_told_of: set[type] = set()


class RouteDecisionEvent(BaseEvent):
    """A question was routed.

    Attributes:
        decision: The decision record, as ``RouteDecision.to_dict()`` gives it.
    """

    decision: dict[str, Any]

    @classmethod
    def class_name(cls) -> str:
        """Name of the event, as handlers and exporters show it."""
        return "RouteDecisionEvent"


class Span:
    """One stage of one query under way; ``result`` is what handlers are told that it gave.

    Args:
        name: As ``Class.method``, from which handlers take the name they show.
        inputs: What the stage works on, by name.
        instance: The object that does it.
    """

    def __init__(self, name: str, inputs: Mapping[str, object], instance: object = None) -> None:
        self.span_id = f"{name}-{uuid.uuid4()}"
        self.result: object = None
        self._instance = instance
        self._bound = _bound(inputs)

    def enter(self) -> None:
        """Tell the handlers that it begins, below the span that is active now."""
        tags = active_instrument_tags.get()
        self._tell(
            "span_enter", bound_args=self._bound, instance=self._instance, parent_id=active_span_id.get(), tags=tags
        )

    def end(self, error: BaseException | None = None) -> None:
        """Tell the handlers that it ended, or what broke it off."""
        if error is None:
            self._tell("span_exit", bound_args=self._bound, instance=self._instance, result=self.result)
            return
        emit(SpanDropEvent(span_id=self.span_id, err_str=type(error).__name__))
        self._tell("span_drop", bound_args=self._bound, instance=self._instance, err=error)

    def active(self, call: Callable[[], T]) -> T:
        """Run a call with this span as the one that others begin below."""
        token = active_span_id.set(self.span_id)
        try:
            return call()
        finally:
            active_span_id.reset(token)

    def _tell(self, what: str, **told: object) -> None:
        for dispatcher in _chain():
            for handler in dispatcher.span_handlers:
                _guarded(handler, lambda: getattr(handler, what)(id_=self.span_id, **told))  # noqa: B023 - called here


def is_watched() -> bool:
    """Tell whether any handler is attached that does something."""
    for dispatcher in _chain():  # plain loops: every stage of every query asks
        for event_handler in dispatcher.event_handlers:
            if type(event_handler) not in _QUIET:
                return True
        for span_handler in dispatcher.span_handlers:
            if type(span_handler) not in _QUIET:
                return True
    return False


@contextmanager
def span(opened: Span) -> Iterator[Span]:
    """Open a span around a block; not around a ``yield``, for which there is :func:`streamed`.

    Args:
        opened: The span, not yet entered.
    """
    opened.enter()
    token = active_span_id.set(opened.span_id)
    try:
        yield opened
    except BaseException as err:
        opened.end(err)
        raise
    else:
        opened.end()
    finally:
        with suppress(ValueError):  # a coroutine that nobody awaits any more is closed in another context
            active_span_id.reset(token)


def streamed(
    opened: Span,
    pieces: Generator[str, None, T],
    *,
    begun: Callable[[], None],
    ended: Callable[[T], None],
) -> Generator[str, None, T]:
    """Run a generator inside a span, which is active only while the generator runs, never in its reader's code.

    Args:
        opened: The span, not yet entered.
        pieces: The generator.
        begun: Called first, while the span is active.
        ended: Hears the result, likewise.

    Yields:
        What the generator yields.
    """
    opened.enter()
    try:
        opened.active(begun)
        while True:
            try:
                piece = opened.active(lambda: next(pieces))
            except StopIteration as end:
                result: T = end.value
                break
            yield piece
        opened.active(lambda: ended(result))
    except BaseException as err:
        try:
            opened.active(pieces.close)
        finally:
            opened.end(err)
        raise
    opened.end()
    return result


def emit(event: BaseEvent) -> None:
    """Tell the event handlers."""
    event.tags.update(active_instrument_tags.get())
    for dispatcher in _chain():
        for handler in dispatcher.event_handlers:
            _guarded(handler, lambda: handler.handle(event))  # noqa: B023 - called here


def _chain() -> tuple[Dispatcher, ...]:
    return _ALL if _DISPATCHER.propagate else _ALL[:1]


def _bound(inputs: Mapping[str, object]) -> inspect.BoundArguments:
    kinds = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in inputs]
    return inspect.Signature(kinds).bind(**inputs)


def _guarded(handler: object, call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as err:  # foreign code, of which nothing but its failure may be noticed
        kind = type(handler)
        if kind not in _told_of:
            _told_of.add(kind)
            logger.warning(
                "the handler %s of instrumentation raised %s; queries go on, and this is told once",
                kind.__name__,
                type(err).__name__,
            )
            logger.debug("as told of %s", kind.__name__, exc_info=err)

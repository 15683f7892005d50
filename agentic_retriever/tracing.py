"""Spans and events of our stages for whoever watches LlamaIndex: Phoenix, Langfuse, OpenTelemetry handlers, and others.

They reach the handlers of LlamaIndex's root dispatcher, and those of the dispatcher ``agentic_retriever`` below it.
While no handler is attached nothing is made at all. LlamaIndex's older callback handlers are at the end: none by
default. A handler of either kind that raises is warned of once and never ends a query.
"""

from __future__ import annotations

import functools
import inspect
import logging
import uuid
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.dispatcher import DISPATCHER_SPAN_DECORATED_ATTR, active_instrument_tags
from llama_index_instrumentation.event_handlers import NullEventHandler
from llama_index_instrumentation.events.span import SpanDropEvent
from llama_index_instrumentation.span import active_span_id
from llama_index_instrumentation.span_handlers import NullSpanHandler

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from llama_index.core.callbacks.schema import CBEventType
    from llama_index_instrumentation.dispatcher import Dispatcher

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_DISPATCHER: Final = get_dispatcher("agentic_retriever")
_ALL: Final = (_DISPATCHER, _DISPATCHER.root)
_QUIET: Final = frozenset({NullEventHandler, NullSpanHandler})
_warned_of: set[type] = set()  # classes of handlers that have raised


class RouteDecisionEvent(BaseEvent):
    """A question was routed.

    Example:
        >>> from llama_index.core.instrumentation import get_dispatcher
        >>> get_dispatcher().add_event_handler(my_handler)

    Attributes:
        decision: The decision record, as ``RouteDecision.to_dict()`` gives it.
    """

    decision: dict[str, Any]

    @classmethod
    def class_name(cls) -> str:
        """Name of the event, as handlers and exporters show it."""
        return "RouteDecisionEvent"


class Span:
    """One stage of one query under way; ``result`` is what handlers hear that it gave.

    Args:
        name: As ``Class.method``, from which handlers take the name they show.
        inputs: What the stage works on, by name.
        instance: The object that does it.
    """

    def __init__(self, name: str, inputs: Mapping[str, object], instance: object = None) -> None:
        self.span_id = f"{name}-{uuid.uuid4()}"
        self.result: object = None
        kinds = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY) for key in inputs]
        self._bound: Final = inspect.Signature(kinds).bind(**inputs)
        self._instance = instance

    def enter(self) -> None:
        """Tell the handlers that it begins, below the span that is active now."""
        parent, tags = active_span_id.get(), active_instrument_tags.get()
        self._tell("span_enter", parent_id=parent, tags=tags)

    def end(self, error: BaseException | None = None) -> None:
        """Tell the handlers that it ended, or what broke it off."""
        if error is None:
            self._tell("span_exit", result=self.result)
            return
        emit(SpanDropEvent(span_id=self.span_id, err_str=type(error).__name__))
        self._tell("span_drop", err=error)

    def active(self, call: Callable[[], T]) -> T:
        """Run a call with this span as the one that others begin below."""
        token = active_span_id.set(self.span_id)
        try:
            return call()
        finally:
            active_span_id.reset(token)

    def _tell(self, what: str, **values: object) -> None:
        for dispatcher in _dispatchers():
            for handler in dispatcher.span_handlers:
                values.update(id_=self.span_id, bound_args=self._bound, instance=self._instance)
                _notify(handler, "handler {} of instrumentation", what, **values)


def is_watched() -> bool:
    """Tell whether any handler is attached that does something."""
    for dispatcher in _dispatchers():  # plain loops: every stage of every query asks
        for event_handler in dispatcher.event_handlers:
            if type(event_handler) not in _QUIET:
                return True
        for span_handler in dispatcher.span_handlers:
            if type(span_handler) not in _QUIET:
                return True
    return False


@contextmanager
def span(opened: Span) -> Iterator[Span]:
    """Enter a span for a block; never around a ``yield``."""
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


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a query as handlers see it; its functions get the arguments of the method that does it."""

    name: str
    inputs: Callable[..., Mapping[str, object]]
    begins: Callable[..., BaseEvent | None]
    ends: Callable[..., tuple[object, BaseEvent | None]]  # gets the result first; gives the span's result and an event

    def open(self, args: Sequence[object]) -> Span:
        """Make the span; it is not entered yet."""
        return Span(self.name, self.inputs(*args))

    def begin(self, args: Sequence[object]) -> None:
        """Tell the handlers of events that it begins."""
        event = self.begins(*args)
        if event is not None:
            emit(event)

    def end(self, opened: Span, result: T, args: Sequence[object]) -> T:
        """Tell the handlers of events that it ended, and return the result."""
        opened.result, event = self.ends(result, *args)
        if event is not None:
            emit(event)
        return result


def traced(stage: Stage) -> Callable[[F], F]:
    """Open a span around every call while somebody watches; that of a generator lasts until it ends or is closed."""

    def decorate(run: F) -> F:
        if inspect.iscoroutinefunction(run):
            watched = _watched_task(stage, run)
        elif inspect.isgeneratorfunction(run):
            watched = _watched_stream(stage, run)
        else:
            watched = _watched_call(stage, run)
        return cast("F", functools.wraps(run)(watched))

    return decorate


def _watched_call(stage: Stage, run: Callable[..., Any]) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the method
        if not is_watched():
            return run(*args, **kwargs)
        with span(stage.open(args)) as opened:
            stage.begin(args)
            return stage.end(opened, run(*args, **kwargs), args)

    return watched


def _watched_task(stage: Stage, run: Callable[..., Any]) -> Callable[..., Any]:
    async def watched(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the coroutine
        if not is_watched():
            return await run(*args, **kwargs)
        with span(stage.open(args)) as opened:
            stage.begin(args)
            return stage.end(opened, await run(*args, **kwargs), args)

    return watched


def _watched_stream(stage: Stage, run: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the span active only while the generator runs, never in its reader's code."""

    def watched(*args: Any, **kwargs: Any) -> Generator[Any, None, Any]:  # noqa: ANN401 - those of the generator
        if not is_watched():
            return (yield from run(*args, **kwargs))
        opened, pieces = stage.open(args), run(*args, **kwargs)
        opened.enter()
        try:
            opened.active(lambda: stage.begin(args))
            while True:
                try:
                    piece = opened.active(lambda: next(pieces))
                except StopIteration as end:
                    result = end.value
                    break
                yield piece
            opened.active(lambda: stage.end(opened, result, args))
        except BaseException as err:
            try:
                opened.active(pieces.close)
            finally:
                opened.end(err)
            raise
        opened.end()
        return result

    return watched


def emit(event: BaseEvent) -> None:
    """Tell the event handlers."""
    event.tags.update(active_instrument_tags.get())
    for dispatcher in _dispatchers():
        for handler in dispatcher.event_handlers:
            _notify(handler, "handler {} of instrumentation", "handle", event)


def _dispatchers() -> tuple[Dispatcher, ...]:
    return _ALL if _DISPATCHER.propagate else _ALL[:1]


def _notify(handler: object, label: str, method: str, *args: object, **kwargs: object) -> None:
    """Call a method of a handler; LlamaIndex's dispatcher would swallow its error without a word."""
    try:
        getattr(handler, method)(*args, **kwargs)
    except Exception as err:  # foreign code, of which nothing but its failure may be noticed
        what, kind = label.format(type(handler).__name__), type(handler)
        logger.debug("the %s failed", what, exc_info=err)
        if kind not in _warned_of:
            _warned_of.add(kind)
            logger.warning("the %s raised %s; queries go on, and this is told once", what, type(err).__name__)


def spanned_by_base(method: F) -> F:
    """Mark an override that calls the base's method, which opens the span, so that no second one is put around it."""
    setattr(method, DISPATCHER_SPAN_DECORATED_ATTR, True)
    return method


def no_callbacks() -> CallbackManager:
    """Make a manager of its own: a fresh one takes over the handlers of the whole process."""
    manager = CallbackManager()
    manager.handlers = []
    return manager


def safe_callbacks(given: CallbackManager | None) -> CallbackManager:
    """Make a manager that calls the handlers that another one has now; a handler that raises is warned of once."""
    manager = no_callbacks()
    if given is not None:
        manager.handlers = [_SafeHandler(handler) for handler in given.handlers]
    return manager


class _SafeHandler(BaseCallbackHandler):
    """Passes everything on, but no error back: LlamaIndex's manager would raise it."""

    def __init__(self, handler: BaseCallbackHandler) -> None:
        super().__init__(list(handler.event_starts_to_ignore), list(handler.event_ends_to_ignore))
        self._handler = handler

    def on_event_start(
        self,
        event_type: CBEventType,
        payload: dict[str, Any] | None = None,
        event_id: str = "",
        parent_id: str = "",
        **kwargs: Any,  # noqa: ANN401 - LlamaIndex's signature
    ) -> str:
        self._call("on_event_start", event_type, payload, event_id=event_id, parent_id=parent_id, **kwargs)
        return event_id

    def on_event_end(
        self,
        event_type: CBEventType,
        payload: dict[str, Any] | None = None,
        event_id: str = "",
        **kwargs: Any,  # noqa: ANN401 - LlamaIndex's signature
    ) -> None:
        self._call("on_event_end", event_type, payload, event_id=event_id, **kwargs)

    def start_trace(self, trace_id: str | None = None) -> None:
        self._call("start_trace", trace_id=trace_id)

    def end_trace(self, trace_id: str | None = None, trace_map: dict[str, list[str]] | None = None) -> None:
        self._call("end_trace", trace_id=trace_id, trace_map=trace_map)

    def _call(self, method: str, *args: object, **kwargs: object) -> None:
        _notify(self._handler, "callback handler {}", method, *args, **kwargs)

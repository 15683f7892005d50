"""Spans and events of our stages for whoever watches LlamaIndex; a handler that raises is warned of once."""

import inspect
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.dispatcher import DISPATCHER_SPAN_DECORATED_ATTR, Dispatcher, active_instrument_tags
from llama_index_instrumentation.event_handlers import NullEventHandler
from llama_index_instrumentation.events.span import SpanDropEvent
from llama_index_instrumentation.span import active_span_id
from llama_index_instrumentation.span_handlers import NullSpanHandler

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

_DISPATCHER: Final = get_dispatcher("agentic_retriever")
_ALL: Final = (_DISPATCHER, _DISPATCHER.root)
_QUIET: Final = frozenset({NullEventHandler, NullSpanHandler})
_warned_of: set[type] = set()  # classes of handlers that have raised


class RouteDecisionEvent(BaseEvent):
    """A question was routed; ``get_dispatcher().add_event_handler(handler)`` of LlamaIndex hears of it.

    Attributes:
        decision: The decision record, as ``RouteDecision.to_dict()`` gives it.
    """

    decision: dict[str, Any]

    @classmethod
    def class_name(cls) -> str:
        """Name of the event, as handlers and exporters show it."""
        return "RouteDecisionEvent"


class Span:
    """One stage of one query under way, named as ``Class.method``, from which handlers take the name they show."""

    def __init__(self, name: str, inputs: Mapping[str, object], instance: object = None) -> None:
        self.span_id = f"{name}-{uuid.uuid4()}"
        self.result: object = None  # what the handlers of spans are to hear that it gave
        kinds = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY) for key in inputs]
        self._bound: Final = inspect.Signature(kinds).bind(**inputs)
        self._instance = instance

    def finish(self, result: object, event: BaseEvent | None = None) -> None:
        """Tell the handlers of events that the work is done, and keep its result for those of spans."""
        self.result = result
        if event is not None:
            emit(event)

    def tell(self, what: str, **values: object) -> None:
        for dispatcher in _dispatchers():
            for handler in dispatcher.span_handlers:
                values.update(id_=self.span_id, bound_args=self._bound, instance=self._instance)
                _notify(handler, "handler {} of instrumentation", what, **values)


def is_watched() -> bool:
    """Tell whether any handler is attached that does something."""
    for dispatcher in _dispatchers():  # a plain loop: every stage of every query asks
        for handler in (*dispatcher.event_handlers, *dispatcher.span_handlers):
            if type(handler) not in _QUIET:
                return True
    return False


@contextmanager
def span(
    name: str,
    inputs: Callable[[], Mapping[str, object]],
    begins: Callable[[], BaseEvent] | None = None,
    *,
    instance: object = None,
) -> Iterator[Span | None]:
    """Open a span around a block, with an event at its begin; give ``None`` and make nothing while nobody watches.

    A generator that yields within the block has to run in a context of its own: its reader's code is not part of it.
    """
    if not is_watched():
        yield None
        return
    opened = Span(name, inputs(), instance)
    opened.tell("span_enter", parent_id=active_span_id.get(), tags=active_instrument_tags.get())
    token = active_span_id.set(opened.span_id)
    try:
        if begins is not None:
            emit(begins())
        yield opened
    except BaseException as err:
        emit(SpanDropEvent(span_id=opened.span_id, err_str=type(err).__name__))
        opened.tell("span_drop", err=err)
        raise
    else:
        opened.tell("span_exit", result=opened.result)
    finally:
        with suppress(ValueError):  # what nobody awaits or reads any more is closed in another context
            active_span_id.reset(token)


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


def safe_callbacks(given: CallbackManager | None = None) -> CallbackManager:
    """Make a manager that calls the handlers that another one has now; a handler that raises is warned of once."""
    manager = CallbackManager()  # a fresh one takes over the handlers of the whole process
    manager.handlers = [_SafeHandler(handler) for handler in given.handlers] if given is not None else []
    return manager


class _SafeHandler(BaseCallbackHandler):
    """Passes everything on, but no error back: LlamaIndex's manager would raise it."""

    def __init__(self, handler: BaseCallbackHandler) -> None:
        super().__init__(list(handler.event_starts_to_ignore), list(handler.event_ends_to_ignore))
        self._handler = handler

    def on_event_start(self, *args: Any, **kwargs: Any) -> str:  # noqa: ANN401 - passed on as they are
        self._call("on_event_start", *args, **kwargs)
        return str(kwargs.get("event_id", ""))

    def on_event_end(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - likewise
        self._call("on_event_end", *args, **kwargs)

    def start_trace(self, trace_id: str | None = None) -> None:
        self._call("start_trace", trace_id=trace_id)

    def end_trace(self, trace_id: str | None = None, trace_map: dict[str, list[str]] | None = None) -> None:
        self._call("end_trace", trace_id=trace_id, trace_map=trace_map)

    def _call(self, method: str, *args: object, **kwargs: object) -> None:
        _notify(self._handler, "callback handler {}", method, *args, **kwargs)

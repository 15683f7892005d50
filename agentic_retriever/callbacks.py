"""LlamaIndex callbacks for what we plug in: none by default, and none that can end a query."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index_instrumentation.dispatcher import DISPATCHER_SPAN_DECORATED_ATTR

if TYPE_CHECKING:
    from llama_index.core.callbacks.schema import CBEventType

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


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
    """Make a manager that calls the handlers of another one; a handler that raises is warned of once.

    Args:
        given: Whose handlers are called, as they are now; ``None`` for none.
    """
    manager = no_callbacks()
    if given is not None:
        manager.handlers = [_SafeHandler(handler) for handler in given.handlers]
    return manager


class _SafeHandler(BaseCallbackHandler):
    """Passes everything on, but no error back."""

    def __init__(self, handler: BaseCallbackHandler) -> None:
        super().__init__(list(handler.event_starts_to_ignore), list(handler.event_ends_to_ignore))
        self._handler = handler
        self._told = False

    def on_event_start(
        self,
        event_type: CBEventType,
        payload: dict[str, Any] | None = None,
        event_id: str = "",
        parent_id: str = "",
        **kwargs: Any,  # noqa: ANN401 - LlamaIndex's signature
    ) -> str:
        self._pass(
            lambda: self._handler.on_event_start(event_type, payload, event_id=event_id, parent_id=parent_id, **kwargs)
        )
        return event_id

    def on_event_end(
        self,
        event_type: CBEventType,
        payload: dict[str, Any] | None = None,
        event_id: str = "",
        **kwargs: Any,  # noqa: ANN401 - LlamaIndex's signature
    ) -> None:
        self._pass(lambda: self._handler.on_event_end(event_type, payload, event_id=event_id, **kwargs))

    def start_trace(self, trace_id: str | None = None) -> None:
        self._pass(lambda: self._handler.start_trace(trace_id=trace_id))

    def end_trace(self, trace_id: str | None = None, trace_map: dict[str, list[str]] | None = None) -> None:
        self._pass(lambda: self._handler.end_trace(trace_id=trace_id, trace_map=trace_map))

    def _pass(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as err:  # foreign code, of which nothing but its failure may be noticed
            logger.debug("as told of %s", type(self._handler).__name__, exc_info=err)
            if not self._told:
                self._told = True
                logger.warning(
                    "the callback handler %s raised %s; queries go on, and this is told once",
                    type(self._handler).__name__,
                    type(err).__name__,
                )

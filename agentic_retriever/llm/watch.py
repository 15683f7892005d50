"""Sight of the HTTP requests below a provider's client: their time, their ``Retry-After``, and a way to end them.

A provider's client limits each read and knows no total time. The hooks made here give each request no more than the
time that its call has left, and keep hold of its connection, so that a call that was given up ends at once: its thread
and its socket do not wait for the server.
"""

from __future__ import annotations

import contextlib
import contextvars
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from agentic_retriever.errors import DeadlineExceededError
from agentic_retriever.llm.retry import retry_after_s

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

T = TypeVar("T")

_CURRENT: contextvars.ContextVar[CallWatch | None] = contextvars.ContextVar("agentic_retriever_call", default=None)


class CallWatch:
    """One call to a provider, seen from below its client; safe to use from several threads.

    Args:
        limit_s: Seconds that the call has.

    Attributes:
        retry_after_s: Seconds that the server asked to wait before the next request, or ``None``.
    """

    def __init__(self, limit_s: float) -> None:
        self.retry_after_s: float | None = None
        self._deadline = time.monotonic() + limit_s
        self._lock = threading.RLock()
        self._connection: Any = None
        self._responses: list[httpx.Response] = []
        self._over = False
        self._cancelled = False

    def run(self, function: Callable[[], T]) -> T:
        """Run the call in this thread, with its requests in sight."""
        token = _CURRENT.set(self)
        try:
            return function()
        finally:
            _CURRENT.reset(token)
            self.finish()

    def finish(self) -> None:
        """Close the responses, in the thread that reads them and before their iterators are dropped.

        A stream of the ``openai`` package that is dropped half read is part of a reference cycle. The collector would
        close its response in whatever thread it runs, which waits for ever if that thread holds the connection pool's
        lock.
        """
        with self._lock:
            self._over, self._connection = True, None
        for response in self._responses:
            response.close()

    def cancel(self) -> None:
        """Give the call up: its connection is cut, and it sends no further request. Does nothing once it is over."""
        with self._lock:
            self._cancelled = True
            connection, self._connection = self._connection, None
            if connection is not None and not self._over:
                _cut(connection)

    def starts(self, request: httpx.Request) -> None:
        """Limit a request to the time that is left.

        Raises:
            DeadlineExceededError: If the call was given up.
        """
        left = self._deadline - time.monotonic()
        if self._cancelled or left <= 0:
            raise DeadlineExceededError("the call was given up before its request was sent")
        limits = request.extensions.get("timeout") or {}
        request.extensions["timeout"] = {
            kind: min(left, limits.get(kind) or left) for kind in ("connect", "read", "write", "pool")
        }

    def answered(self, response: httpx.Response) -> None:
        """Note what a response's head says."""
        self.retry_after_s = retry_after_s(response.headers)
        self._responses.append(response)
        with self._lock:
            self._connection = response.extensions.get("network_stream")
            if self._cancelled and self._connection is not None:
                _cut(self._connection)


def _cut(connection: Any) -> None:  # noqa: ANN401 - httpcore.NetworkStream, which has no public type in httpx
    sock = connection.get_extra_info("socket")
    if isinstance(sock, socket.socket):
        # The plain socket's method: that of an SSL socket takes its state away below the thread that reads from it.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _on_request(request: httpx.Request) -> None:
    watch = _CURRENT.get()
    if watch is not None:
        watch.starts(request)


def _on_response(response: httpx.Response) -> None:
    watch = _CURRENT.get()
    if watch is not None:
        watch.answered(response)


def event_hooks() -> dict[str, list[Callable[..., Any]]]:
    """Return the hooks for an ``httpx.Client`` whose calls are to be seen."""
    return {"request": [_on_request], "response": [_on_response]}

"""Sight of a provider below LlamaIndex's face: its HTTP requests, and what models and raw responses say of themselves.

A provider's client limits each read and knows no total time. The hooks made here give each request no more than the
time that its call has left, and keep hold of its connection, so that a call that was given up ends at once: its thread
and its socket do not wait for the server.
"""

from __future__ import annotations

import contextlib
import contextvars
import email.utils
import math
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from agentic_retriever.errors import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx
    from llama_index.core.llms import LLM

T = TypeVar("T")

_CURRENT: contextvars.ContextVar[CallWatch | None] = contextvars.ContextVar("agentic_retriever_call", default=None)
_CUT: Final = frozenset({"length", "max_tokens", "model_length", "content_filter"})
_DEFAULT_WINDOW: Final = 4_096


class CallWatch:
    """One call to a provider, seen from below its client; safe to use from several threads."""

    def __init__(self, limit_s: float) -> None:
        self.retry_after_s: float | None = None  # what the server asked to wait before the next request
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
        """Limit a request to the time that is left; ``DeadlineExceededError`` if the call was given up."""
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


def event_hooks() -> dict[str, list[Callable[..., Any]]]:
    """Return the hooks for an ``httpx.Client`` whose calls are to be seen."""
    return {"request": [_on_request], "response": [_on_response]}


def _on_request(request: httpx.Request) -> None:
    watch = _CURRENT.get()
    if watch is not None:
        watch.starts(request)


def _on_response(response: httpx.Response) -> None:
    watch = _CURRENT.get()
    if watch is not None:
        watch.answered(response)


def _cut(connection: Any) -> None:  # noqa: ANN401 - httpcore.NetworkStream, which has no public type in httpx
    sock = connection.get_extra_info("socket")
    if isinstance(sock, socket.socket):
        # The plain socket's method: that of an SSL socket takes its state away below the thread that reads from it.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def retry_after_s(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Read the seconds, from 0, of a ``Retry-After`` (RFC 9110, section 10.2.3), which may be a date.

    ``headers`` have names in lower case, or ignore case; ``now`` gives seconds since 1970.
    """
    value = str(headers.get("retry-after") or "").strip()
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now()
        except (TypeError, ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def model_name(llm: LLM) -> str:
    """Return a model's name without asking its server."""
    # Not llm.metadata: for Ollama without a context window that is a network call.
    for name in ("model", "model_name"):
        value = getattr(llm, name, None)
        if isinstance(value, str) and value.strip():
            return value
    return type(llm).__name__


def is_ollama(llm: LLM) -> bool:
    """Tell whether a model runs on an Ollama server."""
    return any(cls.__name__ == "Ollama" and "ollama" in cls.__module__ for cls in type(llm).__mro__)


def model_window(llm: LLM) -> int:
    """Return the tokens that a model's context holds, without asking its server; 4,096 if it does not say."""
    own = getattr(llm, "context_window", None)
    if isinstance(own, int) and own > 0:
        return own
    if is_ollama(llm):
        return _DEFAULT_WINDOW
    try:
        window = llm.metadata.context_window
    except Exception:  # noqa: BLE001 - the seam to foreign code: models raise whatever they like for unknown names
        return _DEFAULT_WINDOW
    return window if window > 0 else _DEFAULT_WINDOW


@dataclass(slots=True)
class Ending:
    """What a provider's raw responses say about their end: the one of a whole reply, or those of a stream in turn."""

    prompt_tokens: int = 0  # as the provider counted them; 0 if it did not
    completion_tokens: int = 0
    read_tokens: int = 0  # of the prompt, by an Ollama server, which cuts a prompt to its window without a word
    reason: str = ""  # such as "stop" or "length"
    announced: bool = False  # whether this is a protocol that says when an answer is done
    done: bool = False

    def see(self, raw: object) -> None:
        """Read one raw response."""
        usage = _field(raw, "usage")
        self.read_tokens = _count(raw, "prompt_eval_count") or self.read_tokens
        self.prompt_tokens = _count(usage, "prompt_tokens") or self.read_tokens or self.prompt_tokens
        self.completion_tokens = (
            _count(usage, "completion_tokens") or _count(raw, "eval_count") or self.completion_tokens
        )
        choices = _field(raw, "choices")
        first = choices[0] if isinstance(choices, (list, tuple)) and choices else None
        reason = _field(first, "finish_reason") or _field(raw, "done_reason")
        if isinstance(reason, str) and reason:
            self.reason = reason
        done = _field(raw, "done")
        self.announced = self.announced or isinstance(done, bool) or first is not None
        self.done = self.done or done is True or bool(_field(first, "finish_reason"))

    @property
    def cut(self) -> bool:
        """Whether the answer stopped short, or stopped without saying that it was done."""
        return self.reason in _CUT or (self.announced and not self.done)

    @property
    def failed(self) -> bool:
        """Whether the provider says that it failed within the answer, as OpenRouter does with ``"error"``."""
        return self.reason == "error"


def _field(raw: object, name: str) -> object:
    """Read a field of a provider's response, which is a mapping or an object."""
    return raw.get(name) if isinstance(raw, Mapping) else getattr(raw, name, None)


def _count(raw: object, name: str) -> int:
    value = _field(raw, name)
    return value if isinstance(value, int) and value > 0 else 0

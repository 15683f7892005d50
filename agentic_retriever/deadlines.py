"""A total wall-clock limit around calls that may hang.

The clients of model servers limit each read, not the whole call: a slowly dripping answer can take minutes. A call made
here is abandoned when its time is up; its thread ends when the call does.
"""

from __future__ import annotations

import contextvars
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, TypeVar

from agentic_retriever.errors import DeadlineExceededError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class DeadlineCaller:
    """Runs calls in daemon threads, a bounded number at a time, each with a total time limit.

    Attributes:
        what: What is called, for messages, such as ``"embedding model ollama:nomic-embed-text"``.
        max_calls: Calls under way at once, abandoned ones included, so that a dead server cannot eat all threads.
        max_waiting: Callers that may wait for a place; ``None`` for any number.
    """

    def __init__(self, what: str, *, max_calls: int = 8, max_waiting: int | None = None) -> None:
        self.what = what
        self.max_calls = max_calls
        self.max_waiting = max_waiting
        self._free = threading.BoundedSemaphore(max_calls)
        self._lock = threading.Lock()
        self._waiting = 0

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Return what the function returns, or raise what it raises, within the time.

        Args:
            function: The call to make.
            timeout_s: Seconds for waiting and running together.

        Raises:
            OverloadedError: If no place came free in time, or too many wait for one already.
            DeadlineExceededError: If the time ran out first.
        """
        started = time.monotonic()
        future = self.start(function, timeout_s)
        try:
            return future.result(timeout=max(0.0, timeout_s - (time.monotonic() - started)))
        except FutureTimeoutError as err:
            if future.done():  # the function itself raised a TimeoutError
                raise
            raise DeadlineExceededError(
                f"{self.what} did not answer within {timeout_s:.1f} s; check that it is up, or allow more time"
            ) from err

    def start(self, function: Callable[[], T], timeout_s: float) -> Future[T]:
        """Start a call in a thread of its own, as soon as there is a place, and do not wait for its end.

        Args:
            function: The call to make; it has to see to its own end.
            timeout_s: Seconds to wait for a place.

        Returns:
            What will hold its result.

        Raises:
            OverloadedError: If no place came free in time, or too many wait for one already.
        """
        self._take_place(timeout_s)
        future: Future[T] = Future()
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._run, function, future), name=self.what, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives out no more threads
            self._free.release()
            raise
        return future

    def _take_place(self, timeout_s: float) -> None:
        if self._free.acquire(blocking=False):
            return
        with self._lock:
            if self.max_waiting is not None and self._waiting >= self.max_waiting:
                raise OverloadedError(
                    f"{self.what} is overloaded: {self.max_calls} calls under way and {self._waiting} waiting; "
                    "check the server or ask less at once"
                )
            self._waiting += 1
        try:
            free = self._free.acquire(timeout=max(0.0, timeout_s))
        finally:
            with self._lock:
                self._waiting -= 1
        if not free:
            raise OverloadedError(
                f"{self.what} is overloaded: {self.max_calls} calls under way, none ended within {timeout_s:.1f} s; "
                "check the server or ask less at once"
            )

    def _run(self, function: Callable[[], T], future: Future[T]) -> None:
        try:
            future.set_result(function())
        except BaseException as err:  # noqa: BLE001 - handed to the caller, who raises it
            future.set_exception(err)
        finally:
            self._free.release()

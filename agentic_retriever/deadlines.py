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

from agentic_retriever.errors import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class DeadlineCaller:
    """Runs calls in daemon threads, a bounded number at a time, each with a total time limit.

    Attributes:
        what: What is called, for messages, such as ``"embedding model ollama:nomic-embed-text"``.
        max_calls: Calls under way at once, abandoned ones included, so that a dead server cannot eat all threads.
    """

    def __init__(self, what: str, *, max_calls: int = 8) -> None:
        self.what = what
        self.max_calls = max_calls
        self._free = threading.BoundedSemaphore(max_calls)

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Return what the function returns, or raise what it raises, within the time.

        Args:
            function: The call to make.
            timeout_s: Seconds for waiting and running together.

        Raises:
            DeadlineExceededError: If the time ran out first.
        """
        started = time.monotonic()
        if not self._free.acquire(timeout=max(0.0, timeout_s)):
            raise DeadlineExceededError(
                f"{self.what} is overloaded: {self.max_calls} calls under way, none ended within {timeout_s:.1f} s; "
                "check the server or ask less at once"
            )
        future: Future[T] = Future()
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run, function, future), name=self.what, daemon=True).start()
        try:
            return future.result(timeout=max(0.0, timeout_s - (time.monotonic() - started)))
        except FutureTimeoutError as err:
            if future.done():  # the function itself raised a TimeoutError
                raise
            raise DeadlineExceededError(
                f"{self.what} did not answer within {timeout_s:.1f} s; check that it is up, or allow more time"
            ) from err

    def _run(self, function: Callable[[], T], future: Future[T]) -> None:
        try:
            future.set_result(function())
        except BaseException as err:  # noqa: BLE001 - handed to the caller, who raises it
            future.set_exception(err)
        finally:
            self._free.release()

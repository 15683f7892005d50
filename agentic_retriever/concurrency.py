"""Bounded pools of worker threads, and the way into them from async code.

Nothing here keeps an asyncio object, so one pool serves any number of event loops, one after another or side by side.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from agentic_retriever.errors import AgenticRetrieverError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from types import TracebackType

    from typing_extensions import Self

P = ParamSpec("P")
T = TypeVar("T")


def usable_cores() -> int:
    """Return how many cores this process may use, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """A pool of at most ``max_workers`` named threads, started on first use.

    Each call runs in a copy of its caller's context variables. A pool that was in use before ``os.fork`` starts fresh
    threads in the child, where the old ones do not exist.

    Example:
        >>> with Workers(2, "doc") as workers:
        ...     workers.submit(max, 1, 2).result()
        2
    """

    def __init__(self, max_workers: int, name: str) -> None:
        """Describe the pool; no thread is started yet.

        Args:
            max_workers: Most threads at once, at least 1. Further calls wait in line.
            name: Prefix of the threads' names.

        Raises:
            ValueError: ``max_workers`` is below 1.
        """
        if max_workers < 1:
            message = f"max_workers is {max_workers}; at least 1 is needed"
            raise ValueError(message)
        self.max_workers = max_workers
        self.name = name
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start ``fn(*args, **kwargs)`` in a worker thread.

        Args:
            fn: What to call.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The future of its result.

        Raises:
            AgenticRetrieverError: The pool is closed.
        """
        context = contextvars.copy_context()

        def call() -> T:
            return context.run(fn, *args, **kwargs)

        with self._lock:
            return self._pool().submit(call)

    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Await ``fn(*args, **kwargs)``, run in a worker thread.

        The event loop stays free. Cancelling the awaiting task drops a call that has not started; one that has started
        runs to its end in its thread, and its result is thrown away.

        Args:
            fn: What to call.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            What ``fn`` returned.

        Raises:
            AgenticRetrieverError: The pool is closed.
        """
        return await asyncio.wrap_future(self.submit(fn, *args, **kwargs))

    def close(self, *, wait: bool = True) -> None:
        """Take no more calls; those that were handed in still run. Closing twice does nothing.

        Args:
            wait: Whether to wait for them. Not from inside a call of the same pool.
        """
        with self._lock:
            self._closed = True
            executor, self._executor = self._executor, None
        if executor is not None and self._pid == os.getpid():
            executor.shutdown(wait=wait)

    def _pool(self) -> ThreadPoolExecutor:
        if self._closed:
            message = f"the worker pool {self.name!r} is closed; make a new one"
            raise AgenticRetrieverError(message)
        if self._executor is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._executor = ThreadPoolExecutor(self.max_workers, thread_name_prefix=self.name)
        return self._executor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""Calls to what may hang or fail, bounded in number and in time; nothing here belongs to one event loop."""

import asyncio
import atexit
import contextvars
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, ParamSpec, TypeVar

from agentic_retriever.errors import AgenticRetrieverError, DeadlineExceededError, OverloadedError, StoreError

P = ParamSpec("P")
T = TypeVar("T")

_LAST_S: Final = 0.5  # that calls under way have at the end of the program; those that hang stay where they hang


def usable_cores() -> int:
    """Return how many cores this process may use, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """A pool of at most ``max_workers`` named threads, started on first use, and afresh in the child of ``os.fork``.

    For an event loop, all start ``at_once``, while none has work: it would be held by one that starts beside busy ones.
    """

    def __init__(self, max_workers: int, name: str, *, at_once: bool = False) -> None:
        if max_workers < 1:
            raise ValueError(f"max_workers is {max_workers}; at least 1 is needed")
        self.max_workers = max_workers
        self.name = name
        self._at_once = at_once
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start ``fn(*args, **kwargs)`` in a worker thread; ``AgenticRetrieverError`` when the pool is closed."""
        call = partial(contextvars.copy_context().run, fn, *args, **kwargs)
        with self._lock:
            if self._closed:
                raise AgenticRetrieverError(f"the worker pool {self.name!r} is closed; make a new one")
            if self._executor is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._executor = ThreadPoolExecutor(self.max_workers, thread_name_prefix=self.name)
                begun = threading.Barrier(self.max_workers)
                wait([self._executor.submit(begun.wait, 1.0) for _ in range(self.max_workers if self._at_once else 0)])
            return self._executor.submit(call)

    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Await ``fn(*args, **kwargs)`` in a worker thread; cancelling drops a call only if it has not started."""
        return await asyncio.wrap_future(self.submit(fn, *args, **kwargs))

    def close(self, *, wait: bool = True) -> None:
        """Take no more calls; those that were handed in still run, and are waited for unless the caller is one."""
        with self._lock:
            self._closed = True
            executor, self._executor = self._executor, None
        if executor is not None and self._pid == os.getpid():
            executor.shutdown(wait=wait)


class BriefThread(threading.Thread):
    """A daemon thread that the end of the program waits a moment for: cut off within native code it would crash."""

    def __init__(
        self, target: Callable[[], object], name: str, *, at_exit: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self.at_exit = at_exit


@atexit.register
def _wait_for_brief_threads() -> None:
    brief = [thread for thread in threading.enumerate() if isinstance(thread, BriefThread)]
    for thread in brief:
        thread.at_exit()
    ends = time.monotonic() + _LAST_S
    for thread in brief:
        thread.join(max(0.0, ends - time.monotonic()))


class DeadlineCaller:
    """Runs calls that may hang in daemon threads, each for a limited time; an abandoned one counts until it ends."""

    def __init__(
        self, what: str, *, max_calls: int = 8, max_waiting: int | None = None, advice: str = "check that it is up, or "
    ) -> None:
        self.what = what
        self.advice = advice
        self.max_calls = max_calls
        self.max_waiting = max_waiting
        self._free = threading.BoundedSemaphore(max_calls)
        self._lock = threading.Lock()
        self._waiting = 0
        self._starter = Workers(1, f"starting {what}")

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Return what the function returns, or raise what it raises or ``DeadlineExceededError``, within the time."""
        started = time.monotonic()
        future = self.start(function, timeout_s)
        try:
            return future.result(timeout=max(0.0, timeout_s - (time.monotonic() - started)))
        except FutureTimeoutError as err:
            if future.done():  # the function itself raised a TimeoutError
                raise
            raise DeadlineExceededError(
                f"{self.what} did not answer within {timeout_s:.1f} s; {self.advice}allow more time"
            ) from err

    def start(self, function: Callable[[], T], timeout_s: float) -> Future[T]:
        """Start a call that sees to its own end, as soon as there is a place (else ``OverloadedError``)."""
        self._take_place(timeout_s)
        future: Future[T] = Future()
        context = contextvars.copy_context()
        try:
            BriefThread(partial(context.run, self._run, function, future), self.what).start()
        except RuntimeError:  # the system gives out no more threads
            self._free.release()
            raise
        return future

    async def astart(self, function: Callable[[], T], timeout_s: float) -> Future[T]:
        """Do as :meth:`start` without holding the event loop until the thread runs, which takes long beside others."""
        return await self._starter.run(self.start, function, timeout_s)

    def close(self) -> None:
        """Let go of the thread that starts others; what runs goes on."""
        self._starter.close(wait=False)

    def _take_place(self, timeout_s: float) -> None:
        if self._free.acquire(blocking=False):
            return
        busy = f"{self.what} is overloaded: {self.max_calls} calls under way"
        advice = "check the server or ask less at once"
        with self._lock:
            if self.max_waiting is not None and self._waiting >= self.max_waiting:
                raise OverloadedError(f"{busy} and {self._waiting} waiting; {advice}")
            self._waiting += 1
        try:
            free = self._free.acquire(timeout=max(0.0, timeout_s))
        finally:
            with self._lock:
                self._waiting -= 1
        if not free:
            raise OverloadedError(f"{busy}, none ended within {timeout_s:.1f} s; {advice}")

    def _run(self, function: Callable[[], T], future: Future[T]) -> None:
        try:
            future.set_result(function())
        except BaseException as err:  # noqa: BLE001 - handed to the caller, who raises it
            future.set_exception(err)
        finally:
            self._free.release()


class BreakerState(str, Enum):
    """Whether calls go through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Ticket(NamedTuple):
    """Leave to make one call, to be handed back when it ended."""

    generation: int
    is_probe: bool


class Breaker:
    """Lets no call out for a while after some failures in a row, then one as a probe (M. Nygard, Release It!, 2007)."""

    def __init__(
        self,
        *,
        failures: int = 3,
        cooldown_s: float = 30.0,
        max_cooldown_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if failures < 1 or not cooldown_s > 0:
            raise ValueError(f"failures must be at least 1 and cooldown_s above 0, got {failures} and {cooldown_s}")
        self.failures = failures
        self.cooldown_s = cooldown_s
        self.failed = 0  # failures in a row so far
        self.openings = 0  # how often it went from closed to open
        self._max_cooldown_s = max(cooldown_s, max_cooldown_s)
        self._clock = clock
        # Reentrant, since the finalizer of a forgotten stream may hand its ticket back in the middle of anything.
        self._lock = threading.RLock()
        self._state = BreakerState.CLOSED
        self._open_s = cooldown_s
        self._opened_at = 0.0
        self._probing = False
        self._generation = 0

    def __repr__(self) -> str:
        return f"Breaker({self.state.value!r}, failures={self.failures}, cooldown_s={self.cooldown_s:g})"

    @property
    def state(self) -> BreakerState:
        """Whether calls go through now."""
        with self._lock:
            self._tick()
            return self._state

    @property
    def retry_in_s(self) -> float:
        """Seconds until the next probe may go out; 0 unless open."""
        with self._lock:
            self._tick()
            if self._state is not BreakerState.OPEN:
                return 0.0
            return max(0.0, self._opened_at + self._open_s - self._clock())

    def enter(self) -> Ticket | None:
        """Give a ticket to hand to :meth:`leave`, or ``None`` when the call must not go out."""
        with self._lock:
            self._tick()
            if self._state is BreakerState.OPEN or (self._state is BreakerState.HALF_OPEN and self._probing):
                return None
            self._probing = self._state is BreakerState.HALF_OPEN
            return Ticket(self._generation, self._probing)

    def leave(self, ticket: Ticket, *, ok: bool | None) -> bool:
        """Note how a call ended (``ok`` is ``None`` if that says nothing of the server); tell if it opened."""
        with self._lock:
            self._tick()
            if ticket.generation != self._generation:
                return False
            self._probing = False
            if ok:
                self.failed = 0
                if ticket.is_probe:
                    self._open_s = self.cooldown_s
                    self._move(BreakerState.CLOSED)
            elif ok is False:
                self.failed += 1
                if ticket.is_probe:
                    self._open_s = min(self._max_cooldown_s, 2 * self._open_s)
                    self._move(BreakerState.OPEN)
                elif self.failed >= self.failures:
                    self.openings += 1
                    self._move(BreakerState.OPEN)
                    return True
            return False

    def _tick(self) -> None:
        if self._state is BreakerState.OPEN and self._clock() - self._opened_at >= self._open_s:
            self._move(BreakerState.HALF_OPEN)

    def _move(self, state: BreakerState) -> None:
        self._state = state
        self._generation += 1
        if state is BreakerState.OPEN:
            self._opened_at = self._clock()
        elif state is BreakerState.CLOSED:
            self.failed = 0


def guarded(
    what: str, call: Callable[[], T], *, error: type[AgenticRetrieverError] = StoreError, advice: str = "see the cause"
) -> T:
    """Call foreign code within a :func:`guard`."""
    with guard(what, error, advice):
        return call()


@contextmanager
def guard(what: str, error: type[AgenticRetrieverError] = StoreError, advice: str = "see the cause") -> Iterator[None]:
    """Around foreign code: what it raises comes out as ``error`` without its text, which may hold keys or documents."""
    try:
        yield
    except AgenticRetrieverError:
        raise
    except Exception as err:  # every library has errors of its own; what ends the program passes
        raise error(f"{what} failed with {type(err).__name__}; {advice}") from err

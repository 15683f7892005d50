"""A cache with a time to live, least-recently-used eviction, single flight, and a second level if wanted.

Single flight: of many callers that miss one key at once, threads and tasks alike, one computes and all get its result,
or its failure, together. Time is passed in, so tests need not sleep.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from agentic_retriever.cache.flight import AbandonedError, Flight, Flights, Landed, Ticket
from agentic_retriever.cache.values import CachedValues
from agentic_retriever.errors import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentic_retriever.cache.levels import CacheStore, Codec
    from agentic_retriever.cache.stats import CacheStats

V = TypeVar("V")


class SingleFlightCache(Generic[V]):
    """The cache; safe for any number of threads and of tasks on any number of event loops.

    Args:
        max_entries: Most values kept in memory; 0 turns the cache off (single flight still works).
        ttl_s: Seconds that a value stays; 0 turns the cache off.
        timer: Monotonic time in seconds.
        store: A second level, asked when the memory does not have a value.
        codec: Brings values into the second level and back.
        copy: Makes what is handed out from what is kept, so that callers cannot change it; without it values are
            handed out as they are.

    Raises:
        ConfigError: If a number is out of range, or there is a store without a codec.
    """

    def __init__(
        self,
        *,
        max_entries: int,
        ttl_s: float,
        timer: Callable[[], float] = time.monotonic,
        store: CacheStore | None = None,
        codec: Codec[V] | None = None,
        copy: Callable[[V], V] = lambda value: value,
    ) -> None:
        self._values: CachedValues[V] = CachedValues(
            max_entries=max_entries, ttl_s=ttl_s, timer=timer, store=store, codec=codec
        )
        self._flights: Flights[V] = Flights()
        self._timer = timer
        self._copy = copy

    def get_or_compute(
        self,
        key: str,
        compute: Callable[[], V],
        *,
        keep: Callable[[V], bool] = lambda _value: True,
        timeout_s: float | None = None,
    ) -> tuple[V, bool]:
        """Return the value of a key, computing it if need be.

        Args:
            key: From :func:`agentic_retriever.cache.cache_key`.
            compute: Makes the value; called at most once at a time for a key.
            keep: Tells whether a value may be stored; a failure never is.
            timeout_s: Longest wait for another caller's computation, in seconds.

        Returns:
            The value, and whether it came from the cache or from another caller's computation.

        Raises:
            DeadlineExceededError: If another caller's computation took longer than ``timeout_s``.
            Exception: Whatever ``compute`` raised, for every caller that waited for it.
        """
        ends = None if timeout_s is None else self._timer() + timeout_s
        while True:
            flight, leads = self._board(key, lead=True)
            if isinstance(flight, tuple):
                return self._copy(flight[0]), True
            if leads:
                landed = self._lead(key, flight, compute, keep)
                return self._copy(landed.value), not landed.computed
            try:
                return self._copy(flight.future.result(self._left(ends)).value), True
            except AbandonedError:
                continue
            except FutureTimeoutError as err:
                return self._late(flight, timeout_s, err), True

    async def aget_or_compute(
        self,
        key: str,
        compute: Callable[[], V],
        *,
        submit: Callable[[Callable[[], None]], object],
        keep: Callable[[V], bool] = lambda _value: True,
        timeout_s: float | None = None,
        unwanted: Callable[[], None] = lambda: None,
    ) -> tuple[V, bool]:
        """Do as :meth:`get_or_compute` without holding a thread while waiting.

        One thread serves all tasks and threads that want one key. A task that is cancelled takes nothing from the
        others: the computation goes on, and its result is kept. When all are cancelled, a computation that has not
        begun never does, and one that has is told so by ``unwanted``. A thread that comes while the computation still
        waits for a worker makes it itself, so that a pool whose workers all wait for it cannot come to a standstill.

        Args:
            key: As there.
            compute: As there; runs in a worker thread.
            submit: Starts a function in a worker thread, such as :meth:`agentic_retriever.threads.Workers.submit`.
            keep: As there.
            timeout_s: Longest wait for the computation, one's own included, in seconds.
            unwanted: Called when nobody waits any more for what ``compute`` makes; it may end early then.

        Returns:
            As there.

        Raises:
            DeadlineExceededError: If the computation took longer than ``timeout_s``.
            Exception: Whatever ``compute`` or ``submit`` raised.
        """
        ends = None if timeout_s is None else self._timer() + timeout_s
        while True:
            flight, leads = self._board(key, lead=False)
            if isinstance(flight, tuple):
                return self._copy(flight[0]), True
            ticket = Ticket()
            if leads:
                flight.unwanted = unwanted
                self._start(key, flight, partial(self._lead_once, ticket, key, flight, compute, keep), submit)
            try:
                landed = await asyncio.wait_for(asyncio.wrap_future(flight.future), self._left(ends))
            except AbandonedError:
                continue
            except asyncio.CancelledError:
                self._flights.leave(key, flight)
                raise
            except asyncio.TimeoutError as err:
                return self._late(flight, timeout_s, err), True
            return self._copy(landed.value), not (ticket.led and landed.computed)

    def peek(self, key: str) -> V | None:
        """Return the value of a key from either level, or ``None``; nobody is made to wait or to compute."""
        found = self._values.in_memory(key) or self._values.in_store(key, self.epoch)
        return None if found is None else self._copy(found[0])

    def put(self, key: str, value: V, *, epoch: int) -> None:
        """Keep a value that was made elsewhere, unless the cache was cleared since.

        Args:
            key: As in :meth:`get_or_compute`.
            value: The value.
            epoch: What :attr:`epoch` was before the value was made.
        """
        self._values.missed()
        if self._values.keep(key, value, epoch):
            self._values.share(key, value, epoch)

    @property
    def epoch(self) -> int:
        """Counts the times that the cache was cleared."""
        return self._values.epoch

    def clear(self) -> int:
        """Drop every value of both levels, those being computed included.

        Returns:
            How many there were: the larger of the counts of the two levels, as most values are in both.
        """
        count = self._values.clear_memory()
        self._flights.drop_before(self._values.epoch)
        return max(count, self._values.clear_store())

    def close(self) -> None:
        """Let the second level write what is still in line; the cache can be used further."""
        self._values.close()

    def stats(self) -> CacheStats:
        """Return the counts."""
        shared, failures = self._flights.counts()
        return self._values.stats(shared=shared, failures=failures)

    def _board(self, key: str, *, lead: bool) -> tuple[tuple[V] | Flight[V], bool]:
        return self._flights.board(key, self._values.in_memory, self._epoch_now, lead=lead)

    def _epoch_now(self) -> int:
        return self._values.epoch

    def _start(
        self, key: str, flight: Flight[V], job: Callable[[], None], submit: Callable[[Callable[[], None]], object]
    ) -> None:
        try:
            submit(job)
        except BaseException as err:
            if self._flights.take(flight):
                self._flights.fail(key, flight, err)
            raise

    def _lead_once(
        self, ticket: Ticket, key: str, flight: Flight[V], compute: Callable[[], V], keep: Callable[[V], bool]
    ) -> None:
        if not self._flights.take(flight):
            return
        ticket.led = True
        try:
            self._lead(key, flight, compute, keep)
        except Exception:  # noqa: BLE001 - the flight hands it to all who wait; nobody looks at the future of this job
            return

    def _lead(self, key: str, flight: Flight[V], compute: Callable[[], V], keep: Callable[[V], bool]) -> Landed[V]:
        try:
            landed = self._stored(key, flight) or self._computed(key, flight, compute, keep)
        except BaseException as err:
            self._flights.fail(key, flight, err)
            raise
        self._flights.land(key, flight, landed)
        if landed.kept and landed.computed:
            self._values.share(key, landed.value, flight.epoch)
        return landed

    def _stored(self, key: str, flight: Flight[V]) -> Landed[V] | None:
        found = self._values.in_store(key, flight.epoch)
        return None if found is None else Landed(found[0], computed=False, kept=True)

    def _computed(self, key: str, flight: Flight[V], compute: Callable[[], V], keep: Callable[[V], bool]) -> Landed[V]:
        self._values.missed()
        value = compute()
        kept = self._values.keep(key, value, flight.epoch, wanted=keep(value))
        return Landed(value, computed=True, kept=kept)

    def _left(self, ends: float | None) -> float | None:
        return None if ends is None else max(0.0, ends - self._timer())

    def _late(self, flight: Flight[V], timeout_s: float | None, err: Exception) -> V:
        # The computation may have ended just now, or have raised a TimeoutError of its own.
        if flight.future.done():
            return self._copy(flight.future.result().value)
        raise DeadlineExceededError(f"the same question is still being answered after {timeout_s or 0:.1f} s") from err

"""A cache with a time to live, least-recently-used eviction, single flight, and a second level if wanted.

Single flight: of many callers that miss one key at once, threads and tasks alike, one computes and all get its result,
or its failure, together. Time is passed in, so tests need not sleep.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from agentic_retriever.cache.flight import AbandonedError, Flight, Landed, Ticket
from agentic_retriever.cache.memory import ExpiringLRU, checked_ttl
from agentic_retriever.cache.second_level import SecondLevel
from agentic_retriever.cache.stats import CacheStats
from agentic_retriever.errors import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentic_retriever.cache.levels import CacheStore, Codec

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
        self._ttl_s = checked_ttl(ttl_s)
        self._values: ExpiringLRU[V] = ExpiringLRU(max_entries, timer)
        self._second = SecondLevel(store, codec) if max_entries and ttl_s else SecondLevel[V](None, None)
        self._timer = timer
        self._copy = copy
        self._lock = threading.Lock()
        self._flights: dict[str, Flight[V]] = {}
        self._epoch = 0
        self._hits = self._store_hits = self._misses = self._shared = self._failures = self._unkept = 0

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
            submit: Starts a function in a worker thread, such as :meth:`agentic_retriever.concurrency.Workers.submit`.
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
                self._leave(key, flight)
                raise
            except asyncio.TimeoutError as err:
                return self._late(flight, timeout_s, err), True
            return self._copy(landed.value), not (ticket.led and landed.computed)

    def peek(self, key: str) -> V | None:
        """Return the value of a key from either level, or ``None``; nobody is made to wait or to compute."""
        with self._lock:
            found = self._values.get(key)
            self._hits += found is not None
        if found is not None:
            return self._copy(found[0])
        stored = self._from_store(key, Flight(self.epoch))
        return None if stored is None else self._copy(stored.value)

    def put(self, key: str, value: V, *, epoch: int) -> None:
        """Keep a value that was made elsewhere, unless the cache was cleared since.

        Args:
            key: As in :meth:`get_or_compute`.
            value: The value.
            epoch: What :attr:`epoch` was before the value was made.
        """
        with self._lock:
            if epoch != self._epoch:
                return
            self._misses += 1
            self._values.put(key, value, self._ttl_s)
        self._second.put(key, value, self._ttl_s)

    @property
    def epoch(self) -> int:
        """Counts the times that the cache was cleared."""
        with self._lock:
            return self._epoch

    def clear(self) -> int:
        """Drop every value of both levels, those being computed included.

        Returns:
            How many there were: the larger of the counts of the two levels, as most values are in both.
        """
        with self._lock:
            count = self._values.clear()
            self._flights.clear()
            self._epoch += 1
        return max(count, self._second.clear())

    def close(self) -> None:
        """Let the second level write what is still in line; the cache can be used further."""
        self._second.close()

    def stats(self) -> CacheStats:
        """Return the counts."""
        with self._lock:
            return CacheStats(
                hits=self._hits,
                misses=self._misses,
                shared=self._shared,
                entries=len(self._values),
                store_hits=self._store_hits,
                failures=self._failures,
                unkept=self._unkept,
                store_errors=self._second.errors,
                store=self._second.stats(),
            )

    def _board(self, key: str, *, lead: bool) -> tuple[tuple[V] | Flight[V], bool]:
        """Return the value of a key in a tuple, or its flight and whether the caller has to see to the computation.

        With ``lead`` a caller also takes over a flight that nobody has begun to compute.
        """
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._hits += 1
                return found, False
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = Flight(self._epoch)
                flight.taken = lead
                return flight, True
            flight.waiting += 1
            if lead and not flight.taken:
                flight.taken = True
                return flight, True
            self._shared += 1
            return flight, False

    def _start(
        self, key: str, flight: Flight[V], job: Callable[[], None], submit: Callable[[Callable[[], None]], object]
    ) -> None:
        try:
            submit(job)
        except BaseException as err:
            if self._take(flight):
                self._fail(key, flight, err)
            raise

    def _leave(self, key: str, flight: Flight[V]) -> None:
        """Note that a task was cancelled; the last one ends the flight, so that who comes then begins anew."""
        with self._lock:
            flight.waiting -= 1
            if flight.waiting or flight.future.done():
                return
            free, flight.taken = not flight.taken, True
            if self._flights.get(key) is flight:
                del self._flights[key]
        if free:
            flight.future.set_exception(AbandonedError())
        flight.unwanted()

    def _take(self, flight: Flight[V]) -> bool:
        """Take a flight that nobody computes yet; return whether it could be had."""
        with self._lock:
            free, flight.taken = not flight.taken, True
            return free

    def _lead_once(
        self, ticket: Ticket, key: str, flight: Flight[V], compute: Callable[[], V], keep: Callable[[V], bool]
    ) -> None:
        if not self._take(flight):
            return
        ticket.led = True
        try:
            self._lead(key, flight, compute, keep)
        except Exception:  # noqa: BLE001 - the flight hands it to all who wait; nobody looks at the future of this job
            return

    def _lead(self, key: str, flight: Flight[V], compute: Callable[[], V], keep: Callable[[V], bool]) -> Landed[V]:
        try:
            landed = self._from_store(key, flight) or self._computed(key, flight, compute, keep)
        except BaseException as err:
            self._fail(key, flight, err)
            raise
        self._land(key, flight)
        flight.future.set_result(landed)
        if landed.kept and landed.computed and self._second.put(key, landed.value, self._ttl_s):
            with self._lock:
                cleared = flight.epoch != self._epoch
            if cleared:
                self._second.drop(key)
        return landed

    def _from_store(self, key: str, flight: Flight[V]) -> Landed[V] | None:
        found = self._second.get(key)
        if found is None:
            return None
        value, ttl_s = found
        with self._lock:
            if flight.epoch != self._epoch:
                return None
            self._store_hits += 1
            self._values.put(key, value, min(ttl_s, self._ttl_s))
        return Landed(value, computed=False, kept=True)

    def _computed(self, key: str, flight: Flight[V], compute: Callable[[], V], keep: Callable[[V], bool]) -> Landed[V]:
        with self._lock:
            self._misses += 1
        value = compute()
        wanted = keep(value)
        with self._lock:
            # A value computed before clear() must not come back after it.
            kept = wanted and flight.epoch == self._epoch
            self._unkept += not kept
            if kept:
                self._values.put(key, value, self._ttl_s)
        return Landed(value, computed=True, kept=kept)

    def _fail(self, key: str, flight: Flight[V], err: BaseException) -> None:
        with self._lock:
            self._failures += 1
        self._land(key, flight)
        flight.future.set_exception(err if isinstance(err, Exception) else AbandonedError())

    def _land(self, key: str, flight: Flight[V]) -> None:
        with self._lock:
            if self._flights.get(key) is flight:
                del self._flights[key]

    def _left(self, ends: float | None) -> float | None:
        return None if ends is None else max(0.0, ends - self._timer())

    def _late(self, flight: Flight[V], timeout_s: float | None, err: Exception) -> V:
        # The computation may have ended just now, or have raised a TimeoutError of its own.
        if flight.future.done():
            return self._copy(flight.future.result().value)
        raise DeadlineExceededError(f"the same question is still being answered after {timeout_s or 0:.1f} s") from err

"""Computations that many callers wait for."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

V = TypeVar("V")


class AbandonedError(Exception):
    """The caller that computed was interrupted; whoever waits computes for itself."""


@dataclass(frozen=True, slots=True)
class Landed(Generic[V]):
    """What came of a flight.

    Attributes:
        value: The value.
        computed: Whether it was computed; otherwise it came from the second level.
        kept: Whether it was stored.
    """

    value: V
    computed: bool
    kept: bool


class Flight(Generic[V]):
    """A computation under way, or about to be.

    Attributes:
        epoch: How often the cache had been cleared when it began.
        taken: Whether a caller computes already; guarded by the lock of the :class:`Flights`.
        waiting: How many want its result, guarded likewise; when it is none, nobody need compute any more.
        unwanted: Called then.
        future: Its end. It counts as running from the start, so that no task that waits for it can cancel it.
    """

    __slots__ = ("epoch", "future", "taken", "unwanted", "waiting")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.taken = False
        self.waiting = 1
        self.unwanted: Callable[[], None] = lambda: None
        self.future: Future[Landed[V]] = Future()
        self.future.set_running_or_notify_cancel()


class Ticket:
    """Notes for a task whether the computation that it asked for was begun on its behalf."""

    __slots__ = ("led",)

    def __init__(self) -> None:
        self.led = False


class Flights(Generic[V]):
    """The computations under way, one for each key; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[str, Flight[V]] = {}
        self._shared = self._failures = 0

    def board(
        self, key: str, known: Callable[[str], tuple[V] | None], epoch: Callable[[], int], *, lead: bool
    ) -> tuple[tuple[V] | Flight[V], bool]:
        """Find the value of a key, or its flight.

        Args:
            key: The key.
            known: Returns the value of a key, in a tuple, if there is one. It is asked while no flight can land, since
                otherwise one that landed in between would be missed and its value computed again.
            epoch: Returns how often the cache was cleared.
            lead: Also take over a flight that nobody has begun to compute.

        Returns:
            The value in a tuple, or the flight; and whether the caller has to see to the computation.
        """
        with self._lock:
            found = known(key)
            if found is not None:
                return found, False
            flight = self._by_key.get(key)
            if flight is None:
                flight = self._by_key[key] = Flight(epoch())
                flight.taken = lead
                return flight, True
            flight.waiting += 1
            if lead and not flight.taken:
                flight.taken = True
                return flight, True
            self._shared += 1
            return flight, False

    def take(self, flight: Flight[V]) -> bool:
        """Take a flight that nobody computes yet; return whether it could be had."""
        with self._lock:
            free, flight.taken = not flight.taken, True
            return free

    def leave(self, key: str, flight: Flight[V]) -> None:
        """Note that a task was cancelled; the last one ends the flight, so that who comes then begins anew."""
        with self._lock:
            flight.waiting -= 1
            if flight.waiting or flight.future.done():
                return
            free, flight.taken = not flight.taken, True
            self._forget(key, flight)
        if free:
            flight.future.set_exception(AbandonedError())
        flight.unwanted()

    def land(self, key: str, flight: Flight[V], landed: Landed[V]) -> None:
        """End a flight with what came of it."""
        with self._lock:
            self._forget(key, flight)
        flight.future.set_result(landed)

    def fail(self, key: str, flight: Flight[V], err: BaseException) -> None:
        """End a flight with a failure, for all who wait; they compute for themselves if it is no ``Exception``."""
        with self._lock:
            self._failures += 1
            self._forget(key, flight)
        flight.future.set_exception(err if isinstance(err, Exception) else AbandonedError())

    def drop_before(self, epoch: int) -> None:
        """Let nobody board flights that began before an epoch."""
        with self._lock:
            self._by_key = {key: flight for key, flight in self._by_key.items() if flight.epoch >= epoch}

    def counts(self) -> tuple[int, int]:
        """Return how many callers waited for another, and how many flights failed."""
        with self._lock:
            return self._shared, self._failures

    def _forget(self, key: str, flight: Flight[V]) -> None:
        if self._by_key.get(key) is flight:
            del self._by_key[key]

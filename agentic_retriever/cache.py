"""A cache with a time to live, least-recently-used eviction and single flight.

Single flight: of many callers that miss one key at once, one computes and all get its result, or its failure, together.
Time is passed in, so tests need not sleep. Values are handed out as they are: callers store immutable ones or copies.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from cachetools import TTLCache

from agentic_retriever.errors import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable

V = TypeVar("V")


class _AbandonedError(Exception):
    """The caller that computed was interrupted; whoever waits computes for itself."""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts since the cache was made; ``entries`` is how many it holds now."""

    hits: int
    misses: int
    shared: int
    entries: int


def cache_key(**parts: object) -> str:
    """Return a key for named plain values; the order of names and of mapping keys does not matter, types do.

    Args:
        parts: JSON values, by name.

    Returns:
        64 hexadecimal characters.
    """
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class SingleFlightCache(Generic[V]):
    """The cache; safe for any number of threads, and for tasks through worker threads.

    Args:
        max_entries: Most values kept; 0 keeps none (single flight still works).
        ttl_s: Seconds that a value stays; 0 keeps none.
        timer: Monotonic time in seconds.
    """

    def __init__(self, *, max_entries: int, ttl_s: float, timer: Callable[[], float] = time.monotonic) -> None:
        self._enabled = max_entries > 0 and ttl_s > 0
        self._values: TTLCache[str, V] = TTLCache(max(1, max_entries), max(ttl_s, 1e-9), timer=timer)
        self._lock = threading.Lock()
        self._flights: dict[str, Future[V]] = {}
        self._epoch = 0
        self._hits = self._misses = self._shared = 0

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
            key: From :func:`cache_key`.
            compute: Makes the value; called at most once at a time for a key.
            keep: Tells whether a value may be stored; a failure never is.
            timeout_s: Longest wait for another caller's computation, in seconds.

        Returns:
            The value, and whether it came from the cache or from another caller's computation.

        Raises:
            DeadlineExceededError: If another caller's computation took longer than ``timeout_s``.
            Exception: Whatever ``compute`` raised, for every caller that waited for it.
        """
        with self._lock:
            if key in self._values:
                self._hits += 1
                return self._values[key], True
            flight = self._flights.get(key)
            if flight is None:
                mine: Future[V] = Future()
                self._flights[key] = mine
                self._misses += 1
                epoch = self._epoch
            else:
                self._shared += 1
        if flight is not None:
            try:
                return flight.result(timeout_s), True
            except _AbandonedError:
                return self.get_or_compute(key, compute, keep=keep, timeout_s=timeout_s)
            except FutureTimeoutError as err:
                if flight.done():
                    raise
                raise DeadlineExceededError(
                    f"the same question is still being answered after {timeout_s:.1f} s"
                ) from err
        return self._lead(key, mine, compute, keep, epoch), False

    def clear(self) -> int:
        """Drop every value, those being computed included; return how many there were."""
        with self._lock:
            count = len(self._values)
            self._values.clear()
            self._flights.clear()
            self._epoch += 1
            return count

    def stats(self) -> CacheStats:
        """Return the counts."""
        with self._lock:
            self._values.expire()
            return CacheStats(self._hits, self._misses, self._shared, len(self._values))

    def _lead(self, key: str, flight: Future[V], compute: Callable[[], V], keep: Callable[[V], bool], epoch: int) -> V:
        try:
            value = compute()
        except BaseException as err:
            self._land(key, flight)
            flight.set_exception(err if isinstance(err, Exception) else _AbandonedError())
            raise
        with self._lock:
            # A value computed before clear() must not come back after it.
            if self._enabled and epoch == self._epoch and keep(value):
                self._values[key] = value
        self._land(key, flight)
        flight.set_result(value)
        return value

    def _land(self, key: str, flight: Future[V]) -> None:
        with self._lock:
            if self._flights.get(key) is flight:
                del self._flights[key]

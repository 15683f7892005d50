"""Values in memory: the least recently used go when it is full, each one when its own time is over."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, TypeVar

from cachetools import TLRUCache

from agentic_retriever.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

V = TypeVar("V")


class ExpiringLRU(Generic[V]):
    """The values; hold a lock around every call, as the container below is not safe for threads.

    Args:
        max_entries: Most values kept; 0 keeps none.
        timer: Monotonic time in seconds.

    Raises:
        ConfigError: If ``max_entries`` is negative.
    """

    def __init__(self, max_entries: int, timer: Callable[[], float]) -> None:
        if max_entries < 0:
            raise ConfigError(f"max_entries must be 0 or more, got {max_entries}")
        self._max_entries = max_entries
        self._timer = timer
        # A value is kept with the time at which it ends, since those from a second level have less than the full time.
        self._values: TLRUCache[str, tuple[V, float]] = TLRUCache(
            max(1, max_entries), ttu=lambda _key, entry, _now: entry[1], timer=timer
        )

    def get(self, key: str) -> tuple[V] | None:
        """Return a value, in a tuple as it may be ``None`` itself, and note its use."""
        entry = self._values.get(key)
        return None if entry is None else (entry[0],)

    def put(self, key: str, value: V, ttl_s: float) -> None:
        """Keep a value for some seconds; for 0 or less, or without room for any, not at all."""
        if self._max_entries and ttl_s > 0:
            self._values[key] = (value, self._timer() + ttl_s)

    def clear(self) -> int:
        """Drop everything; return how many values there were."""
        count = len(self)
        self._values.clear()
        return count

    def __len__(self) -> int:
        self._values.expire()
        return len(self._values)


def checked_ttl(ttl_s: float) -> float:
    """Return a time to live that can be used.

    Raises:
        ConfigError: If it is negative or not finite.
    """
    if not math.isfinite(ttl_s) or ttl_s < 0:
        raise ConfigError(f"ttl_s must be a finite number of seconds, 0 or more, got {ttl_s}")
    return float(ttl_s)

"""The values that a cache has: in memory, and on a second level if there is one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from agentic_retriever.cache.memory import ExpiringLRU, checked_ttl
from agentic_retriever.cache.second_level import SecondLevel
from agentic_retriever.cache.stats import CacheStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentic_retriever.cache.levels import CacheStore, Codec

V = TypeVar("V")


class CachedValues(Generic[V]):
    """Both levels, and the epoch, which counts the times that they were cleared; safe to use from many threads.

    Args:
        max_entries: Most values kept in memory; 0 turns both levels off.
        ttl_s: Seconds that a value stays; 0 turns both levels off.
        timer: Monotonic time in seconds.
        store: The second level, asked when the memory does not have a value.
        codec: Brings values into the second level and back.

    Raises:
        ConfigError: If a number is out of range, or there is a store without a codec.
    """

    def __init__(
        self,
        *,
        max_entries: int,
        ttl_s: float,
        timer: Callable[[], float],
        store: CacheStore | None,
        codec: Codec[V] | None,
    ) -> None:
        self._ttl_s = checked_ttl(ttl_s)
        self._memory: ExpiringLRU[V] = ExpiringLRU(max_entries, timer)
        self._second = SecondLevel(store, codec) if max_entries and ttl_s else SecondLevel[V](None, None)
        self._lock = threading.Lock()
        self._epoch = 0
        self._hits = self._store_hits = self._misses = self._unkept = 0

    @property
    def epoch(self) -> int:
        """Counts the times that the values were cleared."""
        with self._lock:
            return self._epoch

    def in_memory(self, key: str) -> tuple[V] | None:
        """Return a value from memory, in a tuple, or ``None``."""
        with self._lock:
            found = self._memory.get(key)
            self._hits += found is not None
            return found

    def in_store(self, key: str, epoch: int) -> tuple[V] | None:
        """Return a value from the second level, in a tuple, and keep it in memory; of an old epoch there is none."""
        found = self._second.get(key)
        if found is None:
            return None
        value, ttl_s = found
        with self._lock:
            if epoch != self._epoch:
                return None
            self._store_hits += 1
            self._memory.put(key, value, min(ttl_s, self._ttl_s))
        return (value,)

    def missed(self) -> None:
        """Count a value that neither level had."""
        with self._lock:
            self._misses += 1

    def keep(self, key: str, value: V, epoch: int, *, wanted: bool = True) -> bool:
        """Keep a value in memory if it is wanted; return whether it was kept.

        A value whose computation began before the last clearing must not come back after it.
        """
        with self._lock:
            kept = wanted and epoch == self._epoch
            self._unkept += not kept
            if kept:
                self._memory.put(key, value, self._ttl_s)
        return kept

    def share(self, key: str, value: V, epoch: int) -> None:
        """Hand a value that was kept to the second level, and take it back if all was cleared meanwhile."""
        if self._second.put(key, value, self._ttl_s) and epoch != self.epoch:
            self._second.drop(key)

    def clear_memory(self) -> int:
        """Begin a new epoch with an empty memory; return how many values there were."""
        with self._lock:
            count = self._memory.clear()
            self._epoch += 1
        return count

    def clear_store(self) -> int:
        """Empty the second level; return how many values there were."""
        return self._second.clear()

    def close(self) -> None:
        """Let the second level write what is still in line."""
        self._second.close()

    def stats(self, *, shared: int, failures: int) -> CacheStats:
        """Return the counts, with those of the computations."""
        with self._lock:
            return CacheStats(
                hits=self._hits,
                misses=self._misses,
                shared=shared,
                entries=len(self._memory),
                store_hits=self._store_hits,
                failures=failures,
                unkept=self._unkept,
                store_errors=self._second.errors,
                store=self._second.stats(),
            )

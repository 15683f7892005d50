"""What a cache counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentic_retriever.cache.levels import StoreCounts


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts since the cache was made.

    Attributes:
        hits: Calls answered from memory.
        misses: Calls that computed.
        shared: Calls that waited for the computation of another.
        entries: How many values the memory holds now.
        store_hits: Calls answered from the second level.
        failures: Computations that failed.
        unkept: Values computed and not stored, such as degraded answers.
        store_errors: Errors of the second level or its codec; each counted as a miss.
        store: Counts of the second level, where there is one.
    """

    hits: int
    misses: int
    shared: int
    entries: int
    store_hits: int = 0
    failures: int = 0
    unkept: int = 0
    store_errors: int = 0
    store: StoreCounts | None = None

    @property
    def hit_rate(self) -> float:
        """Share of calls that did not compute, in [0, 1]; 0 before the first call."""
        free = self.hits + self.store_hits + self.shared
        return free / (free + self.misses) if free + self.misses else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        counts = {name: getattr(self, name) for name in self.__slots__ if name != "store"}
        return {
            **counts,
            "hit_rate": self.hit_rate,
            "store": None if self.store is None else self.store.to_dict(),
        }

"""What a second level below the memory must be able to do, and how values get there and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from agentic_retriever.redis_link import Stored

V = TypeVar("V")


class StoreCounts(Protocol):
    """Statistics of a store."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        ...


class CacheStore(Protocol):
    """Keeps bytes for a while outside of the process, such as :class:`agentic_retriever.redis_link.RedisStore`."""

    def get(self, key: str) -> Stored | None:
        """Return what is kept under a key and how long it still holds, or ``None``."""
        ...

    def set(self, key: str, data: bytes, ttl_s: float) -> None:
        """Keep bytes for some seconds, now or soon."""
        ...

    def delete(self, key: str) -> None:
        """Drop what is kept under a key, after all that was set before."""
        ...

    def clear(self) -> int:
        """Drop everything, what was set but not yet written included; return how many values there were."""
        ...

    def stats(self) -> StoreCounts:
        """Return the statistics."""
        ...

    def close(self) -> None:
        """Write what was set but not yet written."""
        ...


class Codec(Protocol[V]):
    """Turns values into bytes and back; never with pickle, since a store may be written by others."""

    def encode(self, value: V) -> bytes:
        """Return a value as JSON in UTF-8.

        Raises:
            ValueError: If it has no such form.
        """
        ...

    def decode(self, data: bytes) -> V:
        """Return the value again.

        Raises:
            ValueError: If these bytes are no value of this version.
        """
        ...

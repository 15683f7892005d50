"""The second level of a cache: whatever goes wrong in it is a miss."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Generic, TypeVar

from agentic_retriever.errors import ConfigError

if TYPE_CHECKING:
    from agentic_retriever.cache.levels import CacheStore, Codec, StoreCounts

V = TypeVar("V")

logger = logging.getLogger(__name__)


class SecondLevel(Generic[V]):
    """A store and a codec, or neither.

    Attributes:
        errors: How often one of them raised.

    Raises:
        ConfigError: If there is only one of them.
    """

    def __init__(self, store: CacheStore | None, codec: Codec[V] | None) -> None:
        if (store is None) != (codec is None):
            raise ConfigError("a cache with a store needs a codec, and a codec needs a store; pass both or neither")
        self._pair = None if store is None or codec is None else (store, codec)
        self.errors = 0

    def get(self, key: str) -> tuple[V, float] | None:
        """Return a value and the seconds that it still holds; what cannot be read is dropped."""
        if self._pair is None:
            return None
        store, codec = self._pair
        try:
            stored = store.get(key)
        except Exception as err:  # noqa: BLE001 - the store is foreign code, and a cache must not fail a query
            self._note("read", err)
            return None
        if stored is None:
            return None
        try:
            return codec.decode(stored.data), stored.ttl_s
        except Exception as err:  # noqa: BLE001 - bytes that others wrote may break a codec in any way
            self._note("decode", err)
            self.drop(key)
            return None

    def put(self, key: str, value: V, ttl_s: float) -> bool:
        """Store a value; return whether the store took it."""
        if self._pair is None:
            return False
        store, codec = self._pair
        try:
            store.set(key, codec.encode(value), ttl_s)
        except Exception as err:  # noqa: BLE001 - as above; a value without a JSON form stays in memory only
            self._note("write", err)
            return False
        return True

    def close(self) -> None:
        """Let the store write what is still in line."""
        if self._pair is not None:
            try:
                self._pair[0].close()
            except Exception as err:  # noqa: BLE001 - as above
                self._note("close", err)

    def drop(self, key: str) -> None:
        """Drop a value."""
        if self._pair is not None:
            try:
                self._pair[0].delete(key)
            except Exception as err:  # noqa: BLE001 - as above
                self._note("delete", err)

    def clear(self) -> int:
        """Drop everything; return how many values there were."""
        if self._pair is None:
            return 0
        try:
            return self._pair[0].clear()
        except Exception as err:  # noqa: BLE001 - as above
            self._note("clear", err)
            return 0

    def stats(self) -> StoreCounts | None:
        """Return the store's statistics."""
        if self._pair is None:
            return None
        try:
            return self._pair[0].stats()
        except Exception as err:  # noqa: BLE001 - as above
            self._note("count", err)
            return None

    def _note(self, what: str, err: Exception) -> None:
        self.errors += 1
        log = logger.warning if self.errors == 1 else logger.debug
        log("the second level of a cache could not %s a value (%s)", what, type(err).__name__)

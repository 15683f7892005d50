"""Vectors that several processes share through Redis."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING

import numpy as np

from agentic_retriever.redis_link import RedisStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from agentic_retriever.redis_link import RedisLink, StoreStats

    Vector = npt.NDArray[np.float32]

VECTORS = "vectors"
"""The part of a Redis key that says what is kept."""

_BATCH = 64
_DAY_S = 86_400.0
_FLOAT = np.dtype("<f4")


class RedisVectorCache:
    """Vectors by model and text hash on a Redis server, with a time to live; absent when the server is.

    Args:
        link: The server.
        ttl_s: Seconds that a vector stays.
    """

    def __init__(self, link: RedisLink, *, ttl_s: float = _DAY_S) -> None:
        self._ttl_s = ttl_s
        self._store = RedisStore(link, kind=VECTORS)

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        """Return the vectors known for these text hashes under this model."""
        found: dict[bytes, Vector] = {}
        for i in range(0, len(hashes), _BATCH):
            keys = {_key(model, one): one for one in hashes[i : i + _BATCH]}
            for key, stored in self._store.get_many(list(keys)).items():
                vector = decoded(stored.data)
                if vector is None:
                    self._store.delete(key)
                else:
                    found[keys[key]] = vector
        return found

    def put_many(self, model: str, vectors: Mapping[bytes, Vector]) -> None:
        """Keep vectors for later; nobody waits for it."""
        items = [(_key(model, one), encoded(vector)) for one, vector in vectors.items()]
        for i in range(0, len(items), _BATCH):
            self._store.set_many(dict(items[i : i + _BATCH]), self._ttl_s)

    def clear(self) -> int:
        """Drop the vectors of every model; return how many there were."""
        return self._store.clear()

    def stats(self) -> StoreStats:
        """Return the counts."""
        return self._store.stats()

    def flush(self, timeout_s: float = 0.5) -> bool:
        """Wait until what was put is written; return whether it is."""
        return self._store.flush(timeout_s)

    def close(self) -> None:
        """Write what is still in line; the link stays open."""
        self._store.close()


def encoded(vector: Vector) -> bytes:
    """Write a vector as JSON: its length, and its numbers as base64 of little-endian float32."""
    numbers = np.ascontiguousarray(vector, dtype=_FLOAT).tobytes()
    return b'{"n":%d,"f32":"%s"}' % (len(vector), base64.b64encode(numbers))


def decoded(data: bytes) -> Vector | None:
    """Read a vector again; ``None`` if these bytes are none."""
    try:
        row = json.loads(data)
        numbers = np.frombuffer(base64.b64decode(row["f32"], validate=True), dtype=_FLOAT)
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error):
        return None
    return numbers.astype(np.float32) if len(numbers) == row.get("n") and len(numbers) else None


def _key(model: str, text_hash: bytes) -> str:
    return f"{model}\0{text_hash.hex()}"

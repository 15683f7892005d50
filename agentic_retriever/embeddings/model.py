"""An embedding model with batches, a total deadline, caches, and vectors that can be trusted."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import numpy as np
from cachetools import TTLCache

from agentic_retriever.embeddings.vectors import text_hash
from agentic_retriever.errors import AgenticRetrieverError, EmbeddingError
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt
    from llama_index.core.base.embeddings.base import BaseEmbedding

    from agentic_retriever.embeddings.vectors import VectorCache, VectorSource

    Vector = npt.NDArray[np.float32]
    Matrix = npt.NDArray[np.float32]

BATCH_SIZE: Final = 16
TIMEOUT_S: Final = 120.0
"""Seconds for one call: a batch of long passages on a slow processor needs most of a minute."""

MEMORY_TTL_S: Final = 86_400.0


class EmbeddingModel:
    """Any LlamaIndex embedding, made safe to build on; usable from many threads.

    Queries go through ``get_query_embedding`` and passages through ``get_text_embedding_batch``, so that models with
    two sides (E5, BGE) are used as they were trained. Vectors come back as read-only float32 of unit length. A model
    that fails, or whose vectors are not usable, raises ``EmbeddingError``, one that takes too long
    ``DeadlineExceededError``.
    """

    def __init__(  # noqa: PLR0913 - keyword-only settings of one object
        self,
        base: BaseEmbedding,
        *,
        name: str,
        batch_size: int = BATCH_SIZE,
        timeout_s: float = TIMEOUT_S,
        memory_size: int = 2048,
        memory_ttl_s: float = MEMORY_TTL_S,
        disk: VectorCache | None = None,
        packed: Sequence[VectorSource] = (),
        shared: VectorCache | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name  # such as "local:multilingual-e5-small-q4"; an index remembers it
        self.base = base
        self.batch_size = batch_size
        self.timeout_s = timeout_s  # for one call in all
        self._shared = shared
        self._levels = tuple(level for level in (disk, shared) if level is not None)
        self._sources: tuple[VectorSource, ...] = (*packed, *self._levels)
        self._memory: TTLCache[str, Vector] = TTLCache(memory_size, memory_ttl_s, timer=timer)
        self._lock = threading.Lock()
        self._dimension: int | None = None
        self._caller = DeadlineCaller(f"embedding model {name}")

    @property
    def dimension(self) -> int:
        """Length of the vectors; asks the model once if it has not embedded anything yet."""
        if self._dimension is None:
            self.embed_query("dimension")
        return self._dimension or 0

    def embed_query(self, text: str, *, timeout_s: float | None = None) -> Vector:
        """Embed a question, in ``timeout_s`` at most if that is less than the model's own limit."""
        known = self._remembered([text])
        if known:
            return known[text]
        vector = self._shared_query(text)
        if vector is None:
            vector = self._checked(self._call(lambda: [self.base.get_query_embedding(text)], timeout_s), 1)[0]
            if self._shared is not None:
                self._shared.put_many(self.name, {_query_hash(text): vector})
        self._remember({text: vector})
        return vector

    def embed_passages(
        self, texts: Sequence[str], *, on_progress: Callable[[int], None] | None = None
    ) -> tuple[Matrix, int]:
        """Embed passages, taking from the caches what is known and keeping there what is new, batch by batch.

        Returns unit vectors ``(len(texts), dimension)``, and how many of them the model had to compute.
        ``on_progress`` hears the number of passages finished since the last call.
        """
        report = on_progress or (lambda _done: None)
        hashes = [text_hash(text) for text in texts]
        known = self._known(hashes)
        report(sum(1 for key in hashes if key in known))
        missing = {key: text for key, text in zip(hashes, texts, strict=True) if key not in known}
        keys = list(missing)
        for i in range(0, len(keys), self.batch_size):
            part = keys[i : i + self.batch_size]
            fresh = dict(zip(part, self._embed([missing[key] for key in part]), strict=True))
            for level in self._levels:
                level.put_many(self.name, fresh)
            known.update(fresh)
            report(len(part))
        return self._stacked([known[key] for key in hashes]), len(keys)

    def embed_sentences(self, texts: Sequence[str], *, timeout_s: float | None = None) -> Matrix:
        """Embed short-lived passages, such as the sentences of an answer: one call, kept in memory only."""
        keys = ["\0passage " + text for text in texts]
        known = self._remembered(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:
            fresh = dict(zip(missing, self._embed(list(missing.values()), timeout_s), strict=True))
            known.update(fresh)
            self._remember(fresh)
        return self._stacked([known[key] for key in keys])

    def close(self) -> None:
        """Close the caches that outlive the process."""
        for level in self._levels:
            level.close()

    def _remembered(self, keys: Iterable[str]) -> dict[str, Vector]:
        with self._lock:
            return {key: vector for key in keys if (vector := self._memory.get(key)) is not None}

    def _remember(self, vectors: dict[str, Vector]) -> None:
        with self._lock:
            if self._memory.maxsize >= 1:
                self._memory.update(vectors)

    def _shared_query(self, text: str) -> Vector | None:
        if self._shared is None:
            return None
        key = _query_hash(text)
        vector = self._shared.get_many(self.name, [key]).get(key)
        if vector is None or not self._is_usable(vector):
            return None
        vector.setflags(write=False)
        return vector

    def _known(self, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        known: dict[bytes, Vector] = {}
        for source in self._sources:
            wanted = [key for key in dict.fromkeys(hashes) if key not in known]
            found = source.get_many(self.name, wanted)
            # A damaged cache entry counts as absent.
            known.update({key: vector for key, vector in found.items() if self._is_usable(vector)})
        return known

    def _is_usable(self, vector: Vector) -> bool:
        if self._dimension is not None and vector.shape != (self._dimension,):
            return False
        if not np.isfinite(vector).all() or abs(float(np.linalg.norm(vector)) - 1.0) > 1e-3:
            return False
        self._dimension = vector.shape[0]
        return True

    def _embed(self, batch: list[str], timeout_s: float | None = None) -> Matrix:
        # LlamaIndex cuts a call by its own batch size, so it gets no more texts than that at once.
        most = self.base.embed_batch_size

        def embed() -> list[list[float]]:
            parts = [batch[i : i + most] for i in range(0, len(batch), most)]
            return [vector for part in parts for vector in self.base.get_text_embedding_batch(part)]

        return self._checked(self._call(embed, timeout_s), len(batch))

    def _call(self, function: Callable[[], list[list[float]]], timeout_s: float | None) -> list[list[float]]:
        limit = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        try:
            return self._caller.call(function, limit)
        except AgenticRetrieverError:
            raise
        except Exception as err:  # the seam to embedding models: every client has errors of its own
            raise EmbeddingError(
                f"embedding model {self.name} failed: {type(err).__name__}; check that it is up and run again"
            ) from err

    def _checked(self, raw: Sequence[Sequence[float]], count: int) -> Matrix:
        """Refuse what cannot be stored or compared: wrong counts, wrong or ragged dimensions, NaN, infinity, zero."""
        if len(raw) != count:
            raise EmbeddingError(f"embedding model {self.name} returned {len(raw)} vectors for {count} texts")
        try:
            matrix = np.asarray(raw, dtype=np.float32)
        except (TypeError, ValueError) as err:
            raise EmbeddingError(
                f"embedding model {self.name} returned vectors of different lengths or no numbers"
            ) from err
        if matrix.ndim != 2 or matrix.shape[1] == 0:
            raise EmbeddingError(
                f"embedding model {self.name} returned an array of shape {matrix.shape}, not (texts, dimension)"
            )
        if self._dimension is not None and matrix.shape[1] != self._dimension:
            raise EmbeddingError(
                f"embedding model {self.name} returned {matrix.shape[1]} dimensions, {self._dimension} before"
            )
        norms = np.linalg.norm(matrix, axis=1, keepdims=True)
        if not np.isfinite(norms).all() or bool((norms == 0).any()):
            raise EmbeddingError(f"embedding model {self.name} returned a vector that is zero, NaN or infinite")
        self._dimension = int(matrix.shape[1])
        unit: Matrix = matrix / norms
        unit.setflags(write=False)
        return unit

    def _stacked(self, vectors: list[Vector]) -> Matrix:
        return np.stack(vectors) if vectors else np.empty((0, self._dimension or 0), dtype=np.float32)


def _query_hash(text: str) -> bytes:
    """Return the key of a question, which has another vector than the passage of the same text."""
    return text_hash("\0query " + text)

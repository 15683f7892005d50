"""An embedding model with batches, a total deadline, caches, and vectors that can be trusted."""

import hashlib
import io
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from cachetools import TTLCache
from llama_index.core.base.embeddings.base import BaseEmbedding

from agentic_retriever.embeddings.local import IS_INGEST, LocalEmbedding
from agentic_retriever.errors import AgenticRetrieverError, DeadlineExceededError, EmbeddingError, OverloadedError
from agentic_retriever.schema import examined
from agentic_retriever.threads import Breaker, DeadlineCaller

Vector = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float32]

logger = logging.getLogger(__name__)

BATCH_SIZE: Final = 16
TIMEOUT_S: Final = 120.0  # for one call: a batch of long passages on a slow processor needs most of a minute
MEMORY_TTL_S: Final = 86_400.0
# What one question waits for vectors: long enough for a server that loads its model first, and short enough that a
# search by words and its answer follow in time where a server hangs.
QUESTION_SHARE, QUESTION_S = 1 / 3, 5.0
_FAIR_S: Final = 0.1  # a timeout after less says nothing about the model
_QUERY_CHUNK: Final = 500
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS vectors (model TEXT, hash BLOB, vector BLOB, PRIMARY KEY (model, hash)) WITHOUT ROWID"
)


def embedding_time_s(left_s: float, model: object = None) -> float:
    """Return how long of the time that a question has left an embedding model is waited for."""
    share = QUESTION_SHARE * left_s
    return share if getattr(model, "is_local", False) else min(QUESTION_S, share)


def text_hash(text: str) -> bytes:
    """Return the 32-byte key of a passage text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def query_hash(text: str) -> bytes:
    """Return the key of a question, which has another vector than the passage of the same text."""
    return text_hash("\0query " + examined(text))


# Vectors that were computed once: on disk beside the indexes, and shipped with the sample.


class VectorSource(Protocol):
    """Somewhere that known vectors come from."""

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        """Return the vectors known for these text hashes under this model."""


class VectorCache(VectorSource, Protocol):
    """A source that also keeps vectors, beyond the life of the process."""

    def put_many(self, model: str, vectors: Mapping[bytes, Vector]) -> None: ...
    def close(self) -> None:
        """Let go of files and connections; a later call opens them again."""


class DiskVectorCache:
    """Vectors by model and text hash in one SQLite file, shared safely by threads and processes.

    It is a cache: when the file cannot be read or written the vectors are computed again, with one warning in the log.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._broken = False

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        found: dict[bytes, Vector] = {}

        def read(connection: sqlite3.Connection) -> None:
            for i in range(0, len(hashes), _QUERY_CHUNK):
                part = hashes[i : i + _QUERY_CHUNK]
                marks = ",".join("?" * len(part))
                query = f"SELECT hash, vector FROM vectors WHERE model = ? AND hash IN ({marks})"  # noqa: S608
                rows = connection.execute(query, [model, *part])
                found.update({key: np.frombuffer(blob, dtype=np.float32) for key, blob in rows})

        self._attempt(read)
        return found

    def put_many(self, model: str, vectors: Mapping[bytes, Vector]) -> None:
        rows = [(model, key, np.asarray(vector, dtype=np.float32).tobytes()) for key, vector in vectors.items()]

        def write(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)

        self._attempt(write)

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _attempt(self, use: Callable[[sqlite3.Connection], None]) -> None:
        with self._lock:
            if self._broken:
                return
            try:
                if self._connection is None:
                    self._connection = _connect(self.path)
                use(self._connection)
            except (sqlite3.Error, ValueError, OSError) as err:
                why = type(err).__name__
                logger.warning("embedding cache %s is not usable (%s); vectors are computed again", self.path, why)
                self._broken = True
                self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=5.0, check_same_thread=False)
    try:
        connection.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; {_SCHEMA}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class PackedVectors:
    """Read-only ``.npz``: ``model`` (text), ``hashes`` ``(n, 32)`` uint8, ``vectors`` ``(n, dimension)`` float16."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        packed_model, rows, vectors = self._content
        known = [key for key in hashes if key in rows] if model == packed_model else []
        found = {key: vectors[rows[key]].astype(np.float32) for key in known}
        return {key: vector / np.linalg.norm(vector) for key, vector in found.items()}

    @cached_property
    def _content(self) -> tuple[str, dict[bytes, int], npt.NDArray[np.float16]]:
        with np.load(io.BytesIO(self.path.read_bytes()), allow_pickle=False) as data:
            return str(data["model"]), {row.tobytes(): i for i, row in enumerate(data["hashes"])}, data["vectors"]

    @staticmethod
    def write(path: str | Path, model: str, vectors: Mapping[bytes, Vector]) -> None:
        """Write such a file, ordered by hash so that the same content gives the same file."""
        keys = sorted(vectors)
        np.savez_compressed(
            path,
            model=np.array(model),
            hashes=np.array([np.frombuffer(key, dtype=np.uint8) for key in keys]),
            vectors=np.array([vectors[key] for key in keys], dtype=np.float16),
        )


class EmbeddingModel:
    """Any LlamaIndex embedding, made safe to build on; usable from many threads.

    Queries go through ``get_query_embedding`` and passages through ``get_text_embedding_batch``, so that models with
    two sides (E5, BGE) are used as they were trained. Vectors come back as read-only float32 of unit length. A model
    that fails, or whose vectors are not usable, raises ``EmbeddingError``, one that takes too long
    ``DeadlineExceededError``. A call with a limit is a question's: after three failures in a row none goes out for a
    while. Other calls go out in any case.
    """

    def __init__(  # noqa: PLR0913 - keyword-only settings of one object
        self,
        base: BaseEmbedding,
        *,
        name: str,
        batch_size: int | None = None,
        timeout_s: float | None = None,
        memory_size: int = 2048,
        memory_ttl_s: float = MEMORY_TTL_S,
        disk: VectorCache | None = None,
        packed: Sequence[VectorSource] = (),
        shared: VectorCache | None = None,
        breaker: Breaker | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name  # such as "local:multilingual-e5-small-q4"; an index remembers it
        self.base = base
        self.is_local = isinstance(base, LocalEmbedding)
        self.batch_size = batch_size or (base.embed_batch_size if self.is_local else BATCH_SIZE)
        # For one call in all; a model in this process does not hang, however long it takes.
        self.timeout_s = timeout_s or (None if self.is_local else TIMEOUT_S)
        self._shared = [level for level in (shared,) if level is not None]
        self._query_sources: tuple[VectorSource, ...] = (*packed, *self._shared)  # the file on disk has no questions
        self._levels = [level for level in (disk, shared) if level is not None]
        self._sources: tuple[VectorSource, ...] = (*packed, *self._levels)
        self._memory: TTLCache[str, Vector] = TTLCache(memory_size, memory_ttl_s, timer=timer)
        self._lock = threading.Lock()
        self._dimension: int | None = None
        advice = "it runs in this process and is slow here; " if self.is_local else "check that it is up, or "
        self._caller = DeadlineCaller(f"embedding model {name}", advice=advice)
        self.breaker = breaker or Breaker()

    @property
    def dimension(self) -> int:
        """Length of the vectors; asks the model once if it has not embedded anything yet."""
        if self._dimension is None:
            self.embed_query("dimension")
        return self._dimension or 0

    @property
    def cached(self) -> int:
        """How many vectors are kept in memory."""
        with self._lock:
            return len(self._memory)

    def embed_query(self, text: str, *, timeout_s: float | None = None) -> Vector:
        """Embed a question, of a long one what tells most, in ``timeout_s`` if the model's own limit is not less."""
        text = examined(text)
        known = self._remembered([text])
        if known:
            return known[text]
        key = query_hash(text)
        vector = self._known([key], self._query_sources).get(key)
        if vector is None:
            vector = self._checked(self._call(lambda: [self.base.get_query_embedding(text)], timeout_s), 1)[0]
            for level in self._shared:
                level.put_many(self.name, {key: vector})
        vector.setflags(write=False)
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
        known = self._known(hashes, self._sources)
        report(sum(1 for key in hashes if key in known))
        missing = {key: text for key, text in zip(hashes, texts, strict=True) if key not in known}
        keys = list(missing)
        for i in range(0, len(keys), self.batch_size):
            part = keys[i : i + self.batch_size]
            made = copy_context()
            made.run(IS_INGEST.set, True)
            fresh = dict(zip(part, made.run(self._embed, [missing[key] for key in part]), strict=True))
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
            self._remember(fresh)
            known |= fresh
        return self._stacked([known[key] for key in keys])

    def close(self) -> None:
        for level in self._levels:
            level.close()

    def _remembered(self, keys: Iterable[str]) -> dict[str, Vector]:
        with self._lock:
            return {key: vector for key in keys if (vector := self._memory.get(key)) is not None}

    def _remember(self, vectors: dict[str, Vector]) -> None:
        with self._lock:
            if self._memory.maxsize >= 1:
                self._memory.update(vectors)

    def _known(self, hashes: Sequence[bytes], sources: Sequence[VectorSource]) -> dict[bytes, Vector]:
        known: dict[bytes, Vector] = {}
        for source in sources:
            found = source.get_many(self.name, [key for key in dict.fromkeys(hashes) if key not in known])
            # A damaged cache entry counts as absent.
            known.update({key: vector for key, vector in found.items() if self._is_usable(vector)})
        return known

    def _is_usable(self, vector: Vector) -> bool:
        fits = self._dimension is None or vector.shape == (self._dimension,)
        # A vector with NaN or infinity has no such length either.
        if not fits or not abs(float(np.linalg.norm(vector)) - 1.0) <= 1e-3:
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
        limit = min((each for each in (timeout_s, self.timeout_s) if each is not None), default=None)
        # Nobody is spared by not asking a model in this process.
        is_guarded = timeout_s is not None and not self.is_local
        ticket, ok = self.breaker.enter() if is_guarded else None, None
        if is_guarded and ticket is None:
            failed = f"embedding model {self.name} is not asked since it failed {self.breaker.failures} times in a row"
            raise EmbeddingError(f"{failed}; check that it is up; tried again in {self.breaker.retry_in_s:.0f} s")
        try:
            vectors, ok = function() if limit is None else self._caller.call(function, limit), True
        except OverloadedError:
            # Nobody but abandoned calls can be in the way of a probe.
            ok = False if ticket is not None and ticket.is_probe else None
            raise
        except DeadlineExceededError:
            ok = False if limit is None or limit >= _FAIR_S else None
            raise
        except AgenticRetrieverError:
            raise
        except Exception as err:  # the seam to embedding models: every client has errors of its own
            ok = False
            failed = f"embedding model {self.name} failed: {type(err).__name__}"
            raise EmbeddingError(f"{failed}; {'' if self.is_local else 'check that it is up and '}run again") from err
        finally:
            if ticket is not None:
                self.breaker.leave(ticket, ok=ok)
        return vectors

    def _checked(self, raw: Sequence[Sequence[float]], count: int) -> Matrix:
        """Refuse what cannot be stored or compared: wrong counts, wrong or ragged dimensions, NaN, infinity, zero."""
        returned = f"embedding model {self.name} returned"
        if len(raw) != count:
            raise EmbeddingError(f"{returned} {len(raw)} vectors for {count} texts")
        try:
            matrix = np.asarray(raw, dtype=np.float32)
        except (TypeError, ValueError) as err:
            raise EmbeddingError(f"{returned} vectors of different lengths or no numbers") from err
        if matrix.ndim != 2 or matrix.shape[1] == 0:
            raise EmbeddingError(f"{returned} an array of shape {matrix.shape}, not (texts, dimension)")
        if self._dimension is not None and matrix.shape[1] != self._dimension:
            raise EmbeddingError(f"{returned} {matrix.shape[1]} dimensions, {self._dimension} before")
        norms = np.linalg.norm(matrix, axis=1, keepdims=True)
        if not np.isfinite(norms).all() or bool((norms == 0).any()):
            raise EmbeddingError(f"{returned} a vector that is zero, NaN or infinite")
        self._dimension = int(matrix.shape[1])
        unit: Matrix = matrix / norms
        unit.setflags(write=False)
        return unit

    def _stacked(self, vectors: list[Vector]) -> Matrix:
        return np.stack(vectors) if vectors else np.empty((0, self._dimension or 0), dtype=np.float32)

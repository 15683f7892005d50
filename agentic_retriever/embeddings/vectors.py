"""Vectors that were computed once: on disk beside the indexes, and shipped with the sample."""

from __future__ import annotations

import hashlib
import io
import logging
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    Vector = npt.NDArray[np.float32]

logger = logging.getLogger(__name__)

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS vectors (model TEXT, hash BLOB, vector BLOB, PRIMARY KEY (model, hash)) WITHOUT ROWID"
)
_QUERY_CHUNK = 500


def text_hash(text: str) -> bytes:
    """Return the 32-byte key of a passage text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class VectorSource(Protocol):
    """Somewhere that known vectors come from."""

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        """Return the vectors known for these text hashes under this model."""
        ...


class VectorCache(VectorSource, Protocol):
    """A source that also keeps vectors, beyond the life of the process."""

    def put_many(self, model: str, vectors: Mapping[bytes, Vector]) -> None:
        """Keep vectors for later."""
        ...

    def close(self) -> None:
        """Let go of files and connections; a later call opens them again."""
        ...


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
        """Return the vectors known for these text hashes under this model."""
        found: dict[bytes, Vector] = {}

        def read(connection: sqlite3.Connection) -> None:
            for i in range(0, len(hashes), _QUERY_CHUNK):
                part = hashes[i : i + _QUERY_CHUNK]
                marks = ",".join("?" * len(part))
                rows = connection.execute(
                    f"SELECT hash, vector FROM vectors WHERE model = ? AND hash IN ({marks})",  # noqa: S608
                    [model, *part],
                )
                found.update({key: np.frombuffer(blob, dtype=np.float32) for key, blob in rows})

        self._attempt(read)
        return found

    def put_many(self, model: str, vectors: Mapping[bytes, Vector]) -> None:
        """Keep vectors for later."""
        rows = [
            (model, key, np.ascontiguousarray(vector, dtype=np.float32).tobytes()) for key, vector in vectors.items()
        ]

        def write(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)

        self._attempt(write)

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._lock:
            self._disconnect()

    def _attempt(self, use: Callable[[sqlite3.Connection], None]) -> None:
        """Use the file unless it failed before."""
        with self._lock:
            if self._broken:
                return
            try:
                if self._connection is None:
                    self._connection = _connect(self.path)
                use(self._connection)
            except (sqlite3.Error, ValueError, OSError) as err:
                logger.warning(
                    "embedding cache %s is not usable (%s); vectors are computed again", self.path, type(err).__name__
                )
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
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(_SCHEMA)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class PackedVectors:
    """Read-only vectors in one ``.npz`` file.

    Its arrays: ``model`` (text), ``hashes`` ``(n, 32)`` uint8, ``vectors`` ``(n, dimension)`` float16.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._loaded: tuple[str, dict[bytes, int], npt.NDArray[np.float16]] | None = None

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        """Return the vectors known for these text hashes under this model."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
        packed_model, rows, vectors = self._loaded
        if model != packed_model:
            return {}
        found = {}
        for key in hashes:
            row = rows.get(key)
            if row is not None:
                vector = vectors[row].astype(np.float32)
                found[key] = vector / np.linalg.norm(vector)
        return found

    def _load(self) -> tuple[str, dict[bytes, int], npt.NDArray[np.float16]]:
        with np.load(io.BytesIO(self.path.read_bytes()), allow_pickle=False) as data:
            keys = [row.tobytes() for row in data["hashes"]]
            return str(data["model"]), {key: i for i, key in enumerate(keys)}, data["vectors"]

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

"""The engine of one collection in this process: made, loaded, checked, flushed and closed.

Used through the leases of :mod:`agentic_retriever.indices.edge_shard`, which count its users.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from filelock import FileLock, Timeout
from qdrant_edge import (
    CountRequest,
    Distance,
    EdgeConfig,
    EdgeShard,
    EdgeVectorParams,
    Query,
    QueryRequest,
)

from agentic_retriever.errors import ConfigError, EmbeddingMismatchError, StoreClosedError, StoreError
from agentic_retriever.indices.edge_errors import busy, damaged, edge_errors
from agentic_retriever.indices.edge_fields import indexed_kinds
from agentic_retriever.indices.edge_files import CollectionFile, Layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PROBED: Final = 8
_FLUSH_EVERY: Final = 20_000  # nodes; bounds the log that is replayed after a crash


class SharedShard:
    """The engine, our lock file and our description of one folder.

    Attributes:
        layout: Where the files are.
        collection: Name of the collection.
        pid: The process that opened it.
        users: How many leases are out.
        edge: The engine; ``None`` until the collection is made.
        kinds: The kind of payload index of each indexed field; replaced, never changed.
        unindexed: Fields that were found to suit no kind of index; changed by the one writer only.
        approximate: Whether the engine has a graph, so that searches through it may miss a node.
        write_lock: Held by the one writer.
    """

    def __init__(self, folder: Path, collection: str) -> None:
        self.layout = Layout(folder)
        self.collection = collection
        self.pid = os.getpid()
        self.users = 0
        self.edge: EdgeShard | None = None
        self.kinds: Mapping[str, str] = {}
        self.unindexed: set[str] = set()
        self.approximate = False
        self.write_lock = threading.RLock()
        self._idle = threading.Condition()
        self._busy = 0
        self._shut = False
        self._unflushed = 0
        self._lock = _take_lock(self.layout)
        try:
            self.description = self._load()
        except BaseException:
            self._lock.release()
            raise

    @property
    def dimension(self) -> int | None:
        """Length of the vectors; ``None`` until the collection is made."""
        return self.description.dimension if self.description is not None else None

    def expect(self, collection: str, dimension: int | None) -> None:
        """Check that the folder holds what a user expects; make the collection where a dimension is given."""
        stored = self.description.collection if self.description is not None else self.collection
        if stored != collection:
            message = f"{self.layout.folder} holds the collection {stored!r}, not {collection!r}; choose another name"
            raise ConfigError(message)
        if dimension is not None:
            with edge_errors("make the index", self.layout.folder):
                self.ensure_made(dimension)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the engine open while inside."""
        with self._idle:
            if self._shut:
                message = f"the index in {self.layout.folder} was closed meanwhile; open it again"
                raise StoreClosedError(message)
            self._busy += 1
        try:
            yield
        finally:
            with self._idle:
                self._busy -= 1
                if self._busy == 0:
                    self._idle.notify_all()

    def ensure_made(self, dimension: int) -> None:
        """Make the engine's files, or check that those there are have this dimension."""
        with self.write_lock:
            if self.dimension is not None and self.dimension != dimension:
                message = (
                    f"the index in {self.layout.folder} holds vectors of {self.dimension} dimensions, got "
                    f"{dimension}; use the embedding model it was built with, or build it again"
                )
                raise EmbeddingMismatchError(message)
            if self.edge is not None:
                return
            made = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
            description = CollectionFile(collection=self.collection, dimension=dimension, created=made)
            self.layout.write(description)
            shutil.rmtree(self.layout.shard, ignore_errors=True)  # of a making that was cut off
            params = EdgeVectorParams(size=dimension, distance=Distance.Cosine)
            edge = EdgeShard.create(str(self.layout.shard), EdgeConfig(vectors=params))
            self.description = description.with_points(0)
            self.layout.write(self.description)
            self.edge = edge

    def mark_dirty(self) -> None:
        """Note that the number of nodes on disk is about to change."""
        if self.description is not None and self.description.points is not None:
            self.description = self.description.with_points(None)
            self.layout.write(self.description)

    def count_written(self, points: int) -> None:
        """Count written nodes, and flush the engine's log now and then."""
        self._unflushed += points
        if self.edge is not None and self._unflushed >= _FLUSH_EVERY:
            self.edge.flush()
            self._unflushed = 0

    def flush_clean(self) -> None:
        """Bring changes to disk and note the number of nodes."""
        if self.edge is None or self.description is None or self.description.points is not None:
            return
        self.edge.flush()
        self._unflushed = 0
        self.description = self.description.with_points(self.edge.count(CountRequest(exact=True)))
        self.layout.write(self.description)

    def shut(self, patience_s: float | None = None) -> None:
        """Close the files once nobody is inside; give up after ``patience_s`` seconds, if given."""
        with self._idle:
            self._shut = True
            if not self._idle.wait_for(lambda: self._busy == 0, patience_s):
                return
        try:
            with edge_errors("close the index", self.layout.folder):
                self.flush_clean()
        finally:
            edge, self.edge = self.edge, None
            try:
                if edge is not None:
                    with edge_errors("close the index", self.layout.folder):
                        edge.close()
            finally:
                self._lock.release()

    def _load(self) -> CollectionFile | None:
        with edge_errors("open the index", self.layout.folder):
            description = self.layout.read()
        if description is None or not description.ready:
            return None
        with edge_errors("open the index", self.layout.folder, loading=True):
            self.edge = EdgeShard.load(str(self.layout.shard))
        try:
            with edge_errors("open the index", self.layout.folder, loading=True):
                _check_whole(self.edge, description, self.layout.folder)
        except BaseException:
            self.edge.close()
            raise
        self.refresh()
        return description

    def refresh(self) -> None:
        """Read from the engine which fields are indexed and whether it has a graph."""
        if self.edge is not None:
            info = self.edge.info()
            self.kinds = indexed_kinds(info)
            self.approximate = info.indexed_vectors_count > 0


def _take_lock(layout: Layout) -> FileLock:
    lock = FileLock(layout.lock, blocking=False, thread_local=False)
    try:
        with edge_errors("lock the index", layout.folder):
            lock.acquire()
    except StoreError as err:
        if isinstance(err.__cause__, Timeout):
            raise busy(layout.folder) from err.__cause__
        raise
    return lock


def _check_whole(edge: EdgeShard, description: CollectionFile, folder: Path) -> None:
    found = edge.count(CountRequest(exact=True))
    if description.points is not None and found != description.points:
        raise damaged(folder, f"{description.points:,} nodes were stored, {found:,} are left")
    if not found:
        return
    # The engine opens without a word when the files of the vectors or of the payloads are gone.
    probe = Query.Nearest([1.0] * description.dimension)
    sample = edge.query(QueryRequest(limit=_PROBED, query=probe, with_payload=True))
    if not sample:
        raise damaged(folder, f"the vectors of {found:,} nodes are gone")
    if not any(point.payload for point in sample):
        raise damaged(folder, f"the texts and metadata of {found:,} nodes are gone")

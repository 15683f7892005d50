"""One shared handle per collection folder and process over Qdrant Edge's ``EdgeShard``.

The engine lets a folder be open once. Here every user in the process shares that one handle and counts its users;
another process gets :class:`StoreBusyError`, because our own lock file is taken before a file of the engine is touched.
A child made by ``os.fork`` gets :class:`StoreClosedError` and writes nothing.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import ConfigError, StoreClosedError, StoreError
from agentic_retriever.indices.edge_errors import edge_errors
from agentic_retriever.indices.edge_handle import SharedShard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from qdrant_edge import EdgeShard

MAX_DIMENSION: Final = 65_536
_EXIT_PATIENCE_S: Final = 10.0


def open_shard(folder: Path, *, collection: str, dimension: int | None = None) -> ShardLease:
    """Open or make the collection in a folder, or join those in this process who have it open.

    Args:
        folder: The collection's own folder; made where it is missing. Links are followed.
        collection: The collection's name, as checked by ``check_collection_name``.
        dimension: Length of its vectors; ``None`` takes what is stored, or what the first vectors have.

    Returns:
        A lease, to be closed by its user.

    Raises:
        StoreBusyError: Another process has it open.
        StoreDamagedError: Files are missing or unreadable.
        EmbeddingMismatchError: It holds vectors of another dimension.
        StoreError: The folder cannot be used.
        ConfigError: The dimension is out of range, or the folder belongs to a collection of another name.
    """
    if dimension is not None and not 1 <= dimension <= MAX_DIMENSION:
        message = f"the dimension is {dimension}; allowed are 1 to {MAX_DIMENSION:,}"
        raise ConfigError(message)
    with edge_errors("open the index", folder):
        folder.mkdir(parents=True, exist_ok=True)
        real = folder.resolve()
    with _registry.lock:
        shared = _registry.shards.get(real)
        if shared is None:
            shared = SharedShard(real, collection)
            _registry.shards[real] = shared
        try:
            shared.expect(collection, dimension)
        except BaseException:
            if shared.users == 0:
                _registry.shards.pop(real).shut()
            raise
        shared.users += 1
    return ShardLease(shared)


class ShardLease:
    """One user's hold on a shared collection. Safe for use from many threads."""

    def __init__(self, shared: SharedShard) -> None:
        self._shared = shared
        self._closed = False

    @property
    def folder(self) -> Path:
        """The collection's folder, links resolved."""
        return self._shared.layout.folder

    @property
    def dimension(self) -> int | None:
        """Length of the vectors; ``None`` until the first are stored."""
        return self._shared.dimension

    @property
    def kinds(self) -> Mapping[str, str]:
        """The kind of payload index of each indexed field."""
        return self._shared.kinds

    @property
    def unindexed(self) -> set[str]:
        """Fields that were found to suit no kind of index; for the writer to change."""
        return self._shared.unindexed

    @property
    def approximate(self) -> bool:
        """Whether the engine has a graph, so that searches through it may miss a node."""
        return self._shared.approximate

    @property
    def engine(self) -> EdgeShard | None:
        """The engine itself, for what this class does not offer."""
        return self._shared.edge

    def refresh(self) -> None:
        """Read again from the engine what :attr:`kinds` and :attr:`approximate` say."""
        self._shared.refresh()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    @contextmanager
    def reading(self, action: str) -> Iterator[EdgeShard | None]:
        """Use the engine for reading, side by side with other readers and a writer.

        Args:
            action: What is being done, for error messages.

        Yields:
            The engine; ``None`` while nothing was ever stored.

        Raises:
            StoreClosedError: The lease is closed, or this is a forked child.
            StoreError: The engine failed.
        """
        self.check_open()
        with self._shared.in_use(), edge_errors(action, self.folder):
            yield self._shared.edge

    @contextmanager
    def writing(self, action: str, *, dimension: int | None = None, points: int = 0) -> Iterator[EdgeShard | None]:
        """Use the engine for writing; one writer at a time.

        Args:
            action: What is being done, for error messages.
            dimension: Length of the vectors about to be stored; makes the collection where there is none.
            points: About how many nodes are written; after every 20,000 the engine's log is flushed.

        Yields:
            The engine; ``None`` while nothing was ever stored and no dimension was given.

        Raises:
            StoreClosedError: The lease is closed, or this is a forked child.
            EmbeddingMismatchError: The collection has vectors of another dimension.
            StoreError: The engine failed.
        """
        self.check_open()
        shared = self._shared
        with shared.in_use(), shared.write_lock, edge_errors(action, self.folder):
            if dimension is not None:
                shared.ensure_made(dimension)
            if shared.edge is not None:
                shared.mark_dirty()
            yield shared.edge
            shared.count_written(points)

    def flush(self) -> None:
        """Bring everything to disk, so that it survives a power cut as well as a crash.

        Raises:
            StoreClosedError: The lease is closed, or this is a forked child.
            StoreError: The disk failed.
        """
        self.check_open()
        shared = self._shared
        with shared.in_use(), shared.write_lock, edge_errors("flush the index", self.folder):
            shared.flush_clean()

    def close(self) -> None:
        """Give the hold back; the last one closes the files. Closing twice, or in a forked child, does nothing."""
        shared = self._shared
        if self._closed:
            return
        self._closed = True
        if shared.pid != os.getpid():
            return
        with _registry.lock:
            shared.users -= 1
            if shared.users == 0:
                _registry.shards.pop(self.folder, None)
                shared.shut()

    def check_open(self) -> None:
        """Refuse use after :meth:`close` and in a forked child.

        Raises:
            StoreClosedError: The lease is closed, or this is a forked child.
        """
        if self._shared.pid != os.getpid():
            message = (
                f"the index in {self.folder} was opened by the parent process and cannot be used after a fork; open it "
                "in one process only, after forking"
            )
            raise StoreClosedError(message)
        if self._closed:
            message = f"the index in {self.folder} is closed; open it again"
            raise StoreClosedError(message)


class _Registry:
    """Every collection that this process has open, by its real path."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.shards: dict[Path, SharedShard] = {}

    def close_all(self) -> None:
        with self.lock:
            for shared in list(self.shards.values()):
                with suppress(StoreError):  # the log has everything; the next start replays it
                    shared.shut(_EXIT_PATIENCE_S)
            self.shards.clear()

    def forget_in_child(self) -> None:
        # Dropping an inherited engine would write to files that belong to the parent, and releasing an inherited lock
        # would release the parent's. So the child never lets go of them.
        for shared in self.shards.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(shared))
        self.lock = threading.RLock()
        self.shards = {}


_registry = _Registry()
atexit.register(_registry.close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_registry.forget_in_child)

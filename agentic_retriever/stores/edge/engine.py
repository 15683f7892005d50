"""The engine of one collection in this process: made, loaded, checked, flushed and closed.

Used through the leases of :mod:`agentic_retriever.stores.edge.engine`, which count its users.
"""

from __future__ import annotations

import atexit
import ctypes
import datetime as dt
import errno
import json
import os
import re
import shutil
import threading
import unicodedata
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from filelock import FileLock, Timeout
from qdrant_edge import CountRequest, Distance, EdgeConfig, EdgeShard, EdgeVectorParams, Query, QueryRequest

from agentic_retriever.errors import (
    AgenticRetrieverError,
    ConfigError,
    EmbeddingMismatchError,
    StoreBusyError,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
)
from agentic_retriever.json_files import write_atomically
from agentic_retriever.stores.payload import indexed_kinds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Self


# The one place where errors of Qdrant Edge and of the operating system become ours.

# What Edge says when its own lock on the write-ahead log is taken.
_BUSY_MARK: Final = "WouldBlock"
_FULL_MARKS: Final = ("os error 27", "os error 28", "os error 122", "No space left", "File too large", "quota exceeded")
_DENIED_MARKS: Final = ("os error 13", "os error 1)", "os error 30", "Permission denied", "Read-only file system")
_FULL: Final = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MAX_DETAIL: Final = 300


def busy(folder: Path) -> StoreBusyError:
    """Say that another process holds a folder."""
    return StoreBusyError(
        f"{folder} is already in use by another process; close it there, use another folder, or run a Qdrant server "
        "when several processes must share one index"
    )


def damaged(folder: Path, what: str) -> StoreDamagedError:
    """Say that a collection's files are not whole."""
    return StoreDamagedError(
        f"the index in {folder} is damaged or incomplete: {what}; restore the folder from a copy, or remove it and "
        "index the sources again"
    )


@contextmanager
def edge_errors(action: str, folder: Path, *, loading: bool = False) -> Iterator[None]:
    """Turn what goes wrong inside into an error of ours."""
    try:
        yield
    except (AgenticRetrieverError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as err:  # Edge raises bare Exception, and on a panic a BaseException that cannot be imported
        raise _translate(err, action, folder, loading=loading) from err


def _translate(err: BaseException, action: str, folder: Path, *, loading: bool) -> StoreError:
    detail = " ".join(str(err).split())[:_MAX_DETAIL]
    code = err.errno if isinstance(err, OSError) else None
    if _BUSY_MARK in detail:
        return busy(folder)
    if code in _FULL or any(mark in detail for mark in _FULL_MARKS):
        return StoreError(
            f"cannot {action} in {folder}: the disk, a quota or the file size limit is exhausted ({detail}); free some "
            "space and try again, what was acknowledged before is kept"
        )
    if code in _DENIED or any(mark in detail for mark in _DENIED_MARKS):
        return StoreError(
            f"cannot {action} in {folder}: permission denied ({detail}); make the folder writable for this user or "
            "choose another"
        )
    if isinstance(err, (FileExistsError, NotADirectoryError)):
        return StoreError(f"cannot {action} in {folder}: a file is in the way ({detail}); choose another folder")
    if loading and not isinstance(err, MemoryError):
        return damaged(folder, detail or type(err).__name__)
    return StoreError(f"cannot {action} in {folder}: {detail or type(err).__name__}")


# The files of one collection on disk, and what tells a fresh folder from a lost one.
#
# ::
#
#     FOLDER/COLLECTION/
#         collection.json   format version, name, dimension, distance, state; replaced atomically
#         collection.lock   held by the process that has the collection open
#         shard/            the engine's own files
#
# ``collection.json`` is written before the engine's files, so a folder that has engine files without it, or the other
# way
# round, has lost something and is never taken for an empty one. None of our files holds a pickle.

FORMAT_VERSION: Final = 1
MAX_NAME_LENGTH: Final = 100
_MAX_NAME_BYTES: Final = 200  # file systems allow 255 for one name
_RESERVED_NAME: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionFile:
    """What ``collection.json`` says."""

    collection: str
    dimension: int
    created: str  # When it was made, in ISO 8601 with UTC offset
    ready: bool = False
    points: int | None = None  # Number of nodes at the last clean close or flush; None while changes are under way
    distance: str = "cosine"
    format_version: int = FORMAT_VERSION

    def with_points(self, points: int | None) -> Self:
        """Copy it with another number of nodes."""
        return replace(self, ready=True, points=points)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the files of one collection are."""

    folder: Path

    @property
    def description(self) -> Path:
        """The file that describes the collection."""
        return self.folder / "collection.json"

    @property
    def lock(self) -> Path:
        """The lock file."""
        return self.folder / "collection.lock"

    @property
    def shard(self) -> Path:
        """The engine's folder."""
        return self.folder / "shard"

    def read(self) -> CollectionFile | None:
        """Read the description, checking that the engine's files are there too."""
        try:
            text = self.description.read_text(encoding="utf-8")
        except FileNotFoundError:
            if self.shard.is_dir() and any(self.shard.iterdir()):
                raise damaged(self.folder, f"{self.description.name} is missing") from None
            return None
        except UnicodeDecodeError as err:
            raise damaged(self.folder, f"{self.description.name} is not text") from err
        found = self._parse(text)
        if found.ready:
            self._check_engine_files()
        return found

    def write(self, description: CollectionFile) -> None:
        """Replace the description as a whole: after a crash the old or the new one is there."""
        content = json.dumps(asdict(description), ensure_ascii=False, indent=1)
        write_atomically(self.description, content.encode("utf-8"))

    def _parse(self, text: str) -> CollectionFile:
        name = self.description.name
        try:
            found = CollectionFile(**json.loads(text))
        except (ValueError, TypeError) as err:
            raise damaged(self.folder, f"{name} cannot be read") from err
        if found.format_version != FORMAT_VERSION or found.distance != "cosine":
            raise damaged(self.folder, f"{name} has format {found.format_version}; this version reads {FORMAT_VERSION}")
        if type(found.dimension) is not int or found.dimension < 1:
            raise damaged(self.folder, f"{name} gives the dimension as {found.dimension!r}")
        return found

    def _check_engine_files(self) -> None:
        segments, log = self.shard / "segments", self.shard / "wal"
        for path in (self.shard / "edge_config.json", segments, log):
            if not path.exists():
                raise damaged(self.folder, f"{path.relative_to(self.folder)} is missing")
        for path in (segments, log):
            if not any(path.iterdir()):
                raise damaged(self.folder, f"{path.relative_to(self.folder)} is empty")


def check_collection_name(name: str) -> str:
    """Check that a collection's name is a plain, portable folder name."""
    normal = unicodedata.normalize("NFC", name)
    wrong = sorted({char for char in normal if not _allowed(char)})
    problem = None
    if not normal or normal != normal.strip(" ."):
        problem = "is empty or starts or ends with a dot or a space"
    elif wrong:
        problem = f"has the characters {wrong[:5]!r}"
    elif len(normal) > MAX_NAME_LENGTH or len(normal.encode()) > _MAX_NAME_BYTES:
        problem = f"is longer than {MAX_NAME_LENGTH} characters or {_MAX_NAME_BYTES} bytes"
    elif _RESERVED_NAME.fullmatch(normal):
        problem = "is reserved on some systems"
    if problem is not None:
        message = (
            f"the collection name {name[:60]!r} {problem}; allowed are letters, digits, spaces, '_', '-' and '.', "
            f"at most {MAX_NAME_LENGTH} characters"
        )
        raise ConfigError(message)
    return normal


def _allowed(char: str) -> bool:
    return char in " _-." or unicodedata.category(char)[0] in "LMN"


_PROBED: Final = 8
_FLUSH_EVERY: Final = 20_000  # nodes; bounds the log that is replayed after a crash


class SharedShard:
    """The engine, our lock file and our description of one folder."""

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


# One shared handle per collection folder and process over Qdrant Edge's ``EdgeShard``.
#
# The engine lets a folder be open once. Here every user in the process shares that one handle and counts its users;
# another process gets :class:`StoreBusyError`, because our own lock file is taken before a file of the engine is
# touched.
# A child made by ``os.fork`` gets :class:`StoreClosedError` and writes nothing.

MAX_DIMENSION: Final = 65_536
_EXIT_PATIENCE_S: Final = 10.0


def open_shard(folder: Path, *, collection: str, dimension: int | None = None) -> ShardLease:
    """Open or make the collection in a folder, or join those in this process who have it open."""
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
        """Use the engine for reading, side by side with other readers and a writer."""
        self.check_open()
        with self._shared.in_use(), edge_errors(action, self.folder):
            yield self._shared.edge

    @contextmanager
    def writing(self, action: str, *, dimension: int | None = None, points: int = 0) -> Iterator[EdgeShard | None]:
        """Use the engine for writing; one writer at a time."""
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
        """Bring everything to disk, so that it survives a power cut as well as a crash."""
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
        """Refuse use after :meth:`close` and in a forked child."""
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

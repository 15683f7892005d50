"""Qdrant Edge: the engine in this process, and a LlamaIndex vector store on it. No file of ours holds a pickle.

``collection.json`` is written before the engine's files, so a folder that has only one of them has lost something and
is never taken for an empty one. Every other graph brings ``shard-b/`` in place of ``shard/``.
"""

import atexit
import ctypes
import datetime as dt
import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy.typing as npt
import qdrant_edge as engine
from filelock import FileLock, Timeout
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic import Field as Checked
from typing_extensions import Self

from agentic_retriever import errors
from agentic_retriever.json_files import write_atomically
from agentic_retriever.stores import points
from agentic_retriever.stores.files import sync
from agentic_retriever.stores.node_store import GRAPH_FROM, PAGE, Begin, NodeStore, Offset, Page, Side, Vectors
from agentic_retriever.threads import Workers

_BUSY_MARK: Final = "WouldBlock"  # what Edge says when its own lock on the write-ahead log is taken
_FULL_MARKS: Final = ("os error 27", "os error 28", "os error 122", "No space left", "File too large", "quota exceeded")
_DENIED_MARKS: Final = ("os error 13", "os error 1)", "os error 30", "Permission denied", "Read-only file system")
_FULL: Final = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@contextmanager
def edge_errors(action: str, folder: Path, *, loading: bool = False) -> Iterator[None]:
    """Turn what goes wrong inside into an error of ours."""
    try:
        yield
    except (errors.AgenticRetrieverError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as err:  # Edge raises bare Exception, and on a panic a BaseException that cannot be imported
        raise _translate(err, action, folder, loading=loading) from err


def _translate(err: BaseException, action: str, folder: Path, *, loading: bool) -> errors.StoreError:
    detail = " ".join(str(err).split())[:300]
    code = err.errno if isinstance(err, OSError) else None
    if isinstance(err, Timeout) or _BUSY_MARK in detail:
        return errors.StoreBusyError(
            f"{folder} is already in use by another process; close it there, use another folder, or run a Qdrant "
            "server when several processes must share one index"
        )
    if code in _FULL or any(mark in detail for mark in _FULL_MARKS):
        return errors.StoreError(
            f"cannot {action} in {folder}: the disk, a quota or the file size limit is exhausted ({detail}); free some "
            "space and try again, what was acknowledged before is kept"
        )
    if code in _DENIED or any(mark in detail for mark in _DENIED_MARKS):
        return errors.StoreError(
            f"cannot {action} in {folder}: permission denied ({detail}); make the folder writable for this user or "
            "choose another"
        )
    if isinstance(err, (FileExistsError, NotADirectoryError)):
        return errors.StoreError(f"cannot {action} in {folder}: a file is in the way ({detail}); choose another folder")
    if loading and not isinstance(err, MemoryError):
        return _damaged(folder, detail or type(err).__name__)
    return errors.StoreError(f"cannot {action} in {folder}: {detail or type(err).__name__}")


def _damaged(folder: Path, what: str) -> errors.StoreDamagedError:
    return errors.StoreDamagedError(
        f"the index in {folder} is damaged or incomplete: {what}; restore the folder from a copy, or remove it and "
        "index the sources again"
    )


_MIN_FREE_BYTES: Final = 64 * 1024**2


def check_space(action: str, folder: Path, data_bytes: int = 0) -> None:
    """Stop before the disk is full: the engine maps its files into memory, where writing then kills the process."""
    free, needed = shutil.disk_usage(folder).free, _MIN_FREE_BYTES + 3 * data_bytes
    if free < needed:
        raise errors.StoreError(
            f"cannot {action} in {folder}: {free // 1024**2:,} MB of disk are free, {needed // 1024**2:,} MB are "
            "needed; free some space and try again"
        )


MAX_NAME_LENGTH: Final = 100
MAX_DIMENSION: Final = 65_536
_MAX_NAME_BYTES: Final = 200  # file systems allow 255 for one name
_RESERVED_NAME: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


class CollectionFile(BaseModel):
    """What ``collection.json`` says."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    collection: str
    dimension: int = Checked(ge=1)
    created: str  # ISO 8601 with UTC offset
    ready: bool = False
    points: int | None = None  # number of nodes at the last clean close or flush; None while changes are under way
    distance: Literal["cosine"] = "cosine"
    shard: Literal["shard", "shard-b"] = "shard"  # the folder of the engine's files
    format_version: Literal[1] = 1

    def write(self, folder: Path) -> None:
        write_atomically(folder / "collection.json", self.model_dump_json(indent=1).encode())


def read_collection(folder: Path) -> CollectionFile | None:
    """Read the description of a collection, checking that the engine's files are there too."""
    path = folder / "collection.json"
    try:
        found = CollectionFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        if any(folder.glob("shard*/*")):
            raise _damaged(folder, f"{path.name} is missing") from None
        return None
    except ValidationError as err:
        wrong = err.errors()[0]
        where = ".".join(map(str, wrong["loc"]))
        raise _damaged(folder, f"{path.name} cannot be read ({where} {wrong['msg']})") from err
    if found.ready:
        shard = folder / found.shard
        for part in (shard / "edge_config.json", shard / "segments", shard / "wal"):
            if not part.exists():
                raise _damaged(folder, f"{part.relative_to(folder)} is missing")
            if part.is_dir() and not any(part.iterdir()):
                raise _damaged(folder, f"{part.relative_to(folder)} is empty")
    return found


def check_collection_name(name: str) -> str:
    """Check that a collection's name is a plain, portable folder name."""
    normal = unicodedata.normalize("NFC", name)
    wrong = sorted({char for char in normal if char not in " _-." and unicodedata.category(char)[0] not in "LMN"})
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
        raise errors.ConfigError(
            f"the collection name {name[:60]!r} {problem}; allowed are letters, digits, spaces, '_', '-' and '.', "
            f"at most {MAX_NAME_LENGTH} characters"
        )
    return normal


# One handle per folder and process. The engine lets a folder be open once: here every user in the process shares that
# one handle, and another process gets StoreBusyError, because our own lock file is taken before a file of the engine is
# touched. A child made by os.fork gets StoreClosedError and writes nothing.

SCHEMA: Final = {kind: getattr(engine.PayloadSchemaType, kind.capitalize()) for kind in points.FIELD_KINDS}
_KIND_OF: Final = {str(schema): kind for kind, schema in SCHEMA.items()}
_FLUSH_EVERY: Final = 20_000  # nodes; bounds the log that is replayed after a crash
_EXIT_PATIENCE_S: Final = 10.0
_WORK: Final = ".graph-"
_GLANCE_S: Final = 0.2  # between two looks at the process that builds a graph
_ROUNDS: Final = 3
_BUILDER: Final = """
import os, sys
getattr(os, "nice", int)(19)
sys.path.insert(0, sys.argv[1])
from qdrant_edge import Distance, EdgeConfig, EdgeShard, EdgeVectorParams, HnswIndexConfig
vectors = EdgeVectorParams(size=int(sys.argv[3]), distance=Distance.Cosine)
shard = EdgeShard.load(sys.argv[2], EdgeConfig(vectors, hnsw_config=HnswIndexConfig(16, 100, 10_000, payload_m=0)))
shard.optimize()
shard.close()
"""
# Ends the builder when nobody holds the other end of its standard input any more, as after ``kill -9``.
_KEEPER: Final = """
import os, subprocess, sys, threading
builder = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=lambda: (os.read(0, 1), builder.kill()), daemon=True).start()
os._exit(builder.wait() & 255)
"""


class SharedShard:
    """The engine of one folder, for all its users in this process and any number of threads."""

    def __init__(self, folder: Path, collection: str) -> None:
        self.folder = folder
        self.collection = collection
        self.users = 0
        self.edge: engine.EdgeShard | None = None  # None while nothing was ever stored
        self.kinds: Mapping[str, str] = {}
        self.approximate = False  # whether the engine has a graph, so that searches through it may miss a node
        self._pid = os.getpid()
        self._write_lock = threading.RLock()
        self._idle = threading.Condition()
        self._busy: Counter[engine.EdgeShard | None] = Counter()  # who is inside, by what they use
        self._shut = False
        self._unflushed = 0
        self._ungraphed = 0  # nodes that were written since the graph was built
        self._graph_lock = threading.Lock()
        self.noted: set[Any] | None = None  # points that have changed since a graph of the others is being built
        self._lock = FileLock(folder / "collection.lock", blocking=False, thread_local=False)
        with edge_errors("lock the index", folder):
            self._lock.acquire()
        try:
            self.description = self._load()
        except BaseException:
            self._lock.release()
            raise
        with suppress(errors.StoreError):  # after a crash, so that what was replayed counts as written
            self._flush()

    @property
    def dimension(self) -> int | None:
        return self.description.dimension if self.description is not None else None

    @property
    def is_inherited(self) -> bool:  # the parent process opened it, before a fork
        return self._pid != os.getpid()

    @contextmanager
    def reading(self, action: str) -> Iterator[engine.EdgeShard | None]:
        """Use the engine for reading, side by side with other readers and a writer."""
        with self._idle:
            if self._shut:
                raise errors.StoreClosedError(f"the index in {self.folder} was closed meanwhile; open it again")
            edge = self.edge
            self._busy[edge] += 1
        try:
            with edge_errors(action, self.folder):
                yield edge
        finally:
            with self._idle:
                self._busy[edge] -= 1
                if self._busy[edge] == 0:
                    self._idle.notify_all()

    @contextmanager
    def writing(self, action: str, dimension: int | None = None, points: int = 0) -> Iterator[None]:
        """Use the engine for writing so many points, one writer at a time; with a dimension it is made if need be."""
        with self._write_lock, self.reading(action):
            if dimension is not None:
                self.ensure_made(dimension)
            if self.description is not None and self.description.points is not None:
                self._describe(self.description, None)
            yield
            self._unflushed += points
            self._ungraphed += points
            if self.edge is not None and self._unflushed >= _FLUSH_EVERY:
                self.edge.flush()
                self._unflushed = 0

    def expect(self, collection: str, dimension: int | None) -> None:
        """Check that the folder holds what a user expects; make the collection where a dimension is given."""
        stored = self.description.collection if self.description is not None else self.collection
        if stored != collection:
            raise errors.ConfigError(f"{self.folder} holds the collection {stored!r}, not {collection!r}; take another")
        if dimension is not None:
            with edge_errors("make the index", self.folder):
                self.ensure_made(dimension)

    def ensure_made(self, dimension: int) -> None:
        """Make the engine's files, or check that those there are have this dimension."""
        with self._write_lock:
            if self.dimension is not None and self.dimension != dimension:
                raise errors.EmbeddingMismatchError(
                    f"the index in {self.folder} holds vectors of {self.dimension} dimensions, got "
                    f"{dimension}; use the embedding model it was built with, or build it again"
                )
            if self.edge is not None:
                return
            check_space("make the index", self.folder)
            made = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
            description = CollectionFile(collection=self.collection, dimension=dimension, created=made)
            description.write(self.folder)
            shutil.rmtree(self.folder / "shard", ignore_errors=True)  # of a making that was cut off
            params = engine.EdgeVectorParams(size=dimension, distance=engine.Distance.Cosine)
            always = engine.EdgeOptimizersConfig(indexing_threshold=1)  # a graph, however small, where one is asked for
            config = engine.EdgeConfig(vectors=params, optimizers=always)
            edge = engine.EdgeShard.create(str(self.folder / "shard"), config)
            self._describe(description, 0)
            self.edge = edge

    def refresh(self) -> None:
        """Read from the engine which fields are indexed and whether it has a graph."""
        if self.edge is not None:
            info = self.edge.info()
            types = {points.path_field(path): str(index.data_type) for path, index in info.payload_schema.items()}
            self.kinds = {field: _KIND_OF.get(data_type, "other") for field, data_type in types.items()}
            self.approximate = info.indexed_vectors_count > 0

    def flush(self) -> None:
        """Bring changes to disk and note the number of nodes."""
        with self._write_lock, self.reading("flush the index"):
            self._flush()

    def _flush(self) -> None:
        with self._write_lock:
            if self.edge is None or self.description is None or self.description.points is not None:
                return
            self.edge.flush()
            self._unflushed = 0
            self._describe(self.description, self.edge.count(engine.CountRequest(exact=True)))

    def shut(self, patience_s: float | None = None) -> None:
        """Close the files once nobody is inside; give up after ``patience_s`` seconds, if given."""
        with self._idle:
            self._shut = True
            self._idle.notify_all()  # who builds a graph
            if not self._idle.wait_for(lambda: not any(self._busy.values()), patience_s):
                return
        if not self._graph_lock.acquire(timeout=-1 if patience_s is None else patience_s):
            return
        self._graph_lock.release()
        edge = self.edge
        try:
            with edge_errors("close the index", self.folder):
                try:
                    self._flush()
                finally:
                    self.edge = None
                    if edge is not None:
                        edge.close()
        finally:
            self._lock.release()

    def release(self) -> None:
        """Give a hold back; the last one of the process closes the files. In a forked child this does nothing."""
        if not self.is_inherited:
            with _registry.lock:
                self.users -= 1
                if self.users == 0:
                    _registry.shards.pop(self.folder, None)
                    self.shut()

    def _describe(self, description: CollectionFile, points: int | None) -> None:
        described = description.model_copy(update={"ready": True, "points": points})
        described.write(self.folder)
        self.description = described

    def _load(self) -> CollectionFile | None:
        with edge_errors("open the index", self.folder):
            description = read_collection(self.folder)
        if description is None or not description.ready:
            return None
        with edge_errors("open the index", self.folder, loading=True), ExitStack() as undo:
            check_space("open the index", self.folder)
            self.edge = engine.EdgeShard.load(str(self.folder / description.shard))
            undo.callback(self.edge.close)
            found = self.edge.count(engine.CountRequest(exact=True))
            if description.points is not None and found != description.points:
                raise _damaged(self.folder, f"{description.points:,} nodes were stored, {found:,} are left")
            # The engine opens without a word when the files of the vectors or of the payloads are gone.
            probe = engine.Query.Nearest([1.0] * description.dimension)
            sample = self.edge.query(engine.QueryRequest(limit=8, query=probe, with_payload=True)) if found else []
            if found and not any(point.payload for point in sample):
                lost = "texts and metadata" if sample else "vectors"
                raise _damaged(self.folder, f"the {lost} of {found:,} nodes are gone")
            undo.pop_all()
        self._remove_all_but(description.shard)
        self.refresh()
        self._ungraphed = max(0, found - self.edge.info().indexed_vectors_count)
        return description

    # A graph (HNSW) is built in a copy of the files by another process, since the engine stops all threads of its own.
    # Points that change meanwhile are noted and brought to the copy. Until ``collection.json`` names the folder of the
    # copy the files of before are the collection, from then on the copy is, so at no time a crash loses anything.

    def note(self, point_ids: Iterable[Any] | None) -> None:
        """Note which points a writer changes, ``None`` for all, if a graph is being built without these changes."""
        if point_ids is None:
            self.noted = None
        elif self.noted is not None:
            self.noted.update(point_ids)

    def build_graph(self, begin: Begin, from_nodes: int, *, wait: bool) -> int:
        """Build a graph if a fifth of so many nodes are in none; return of how many it is, or 0."""
        if not self._graph_lock.acquire(blocking=wait):
            return 0
        try:
            with edge_errors("build a graph", self.folder), ExitStack() as undo:
                live, description = self.edge, self.description
                count = 0 if live is None else live.info().points_count
                is_wanted = count >= max(1, from_nodes) and 5 * self._ungraphed >= count
                if live is None or description is None or not is_wanted or getattr(sys, "frozen", False):
                    return 0
                work = self._copied(self.folder / description.shard, undo)
                begin(count)
                self._await_builder(work, description.dimension)
                return self._switch(live, description, work, undo)
        finally:
            with self._write_lock:
                self.noted = None
            self._graph_lock.release()

    def _copied(self, shard: Path, undo: ExitStack) -> Path:
        with self._write_lock:
            check_space("build a graph", self.folder, sum(file.stat().st_size for file in shard.rglob("*")))
            self._flush()
            work = Path(tempfile.mkdtemp(prefix=_WORK, dir=self.folder))
            undo.callback(shutil.rmtree, work, ignore_errors=True)
            shutil.copytree(shard, work, dirs_exist_ok=True)
            self.noted = set()
            return work

    def _await_builder(self, work: Path, dimension: int) -> None:
        python, pipe = [sys.executable, "-I", "-c"], subprocess.PIPE
        packages = str(Path(str(engine.__file__)).parents[1])
        command = [*python, _KEEPER, *python, _BUILDER, packages, str(work), str(dimension)]
        start = partial(subprocess.Popen[bytes], start_new_session=True)  # or an interrupt would end the keeper alone
        with tempfile.TemporaryFile() as said, start(command, stdin=pipe, stdout=said, stderr=said) as keeper:
            while keeper.poll() is None:
                with self._idle:
                    self._idle.wait_for(lambda: self._shut or self.noted is None, _GLANCE_S)
                self._check_wanted()
            said.seek(0)
            if keeper.returncode:
                why = said.read().decode("utf-8", "replace").strip() or f"it ended with code {keeper.returncode}"
                raise errors.StoreError(f"the graph of {self.folder} could not be built: {why[-300:]}")

    def _check_wanted(self) -> None:
        if self._shut or self.noted is None:
            raise errors.StoreClosedError(f"the index in {self.folder} was closed or cleared while a graph was built")

    def _switch(self, live: engine.EdgeShard, description: CollectionFile, work: Path, undo: ExitStack) -> int:
        """Search in the copy from now on, once it has what has changed."""
        named = description.model_copy(update={"shard": "shard" if description.shard == "shard-b" else "shard-b"})
        after = self.folder / named.shard
        shutil.rmtree(after, ignore_errors=True)
        undo.callback(shutil.rmtree, work.rename(after), ignore_errors=True)
        copy = engine.EdgeShard.load(str(after))
        undo.callback(copy.close)
        built, brought = copy.info().indexed_vectors_count, 0
        for _ in range(_ROUNDS):  # beside writers: first what came while it was built, then what came in that time
            brought += self._bring(live, copy)
            copy.flush()
            for path in (after, *after.rglob("*")):
                sync(path)
        with self._write_lock:
            brought += self._bring(live, copy)
            known = {field: index.data_type for field, index in copy.info().payload_schema.items()}
            for field, index in live.info().payload_schema.items():
                if field not in known or known[field] != index.data_type:
                    copy.update(engine.UpdateOperation.delete_field_index(field))
                    copy.update(engine.UpdateOperation.create_field_index(field, index.data_type))
            copy.flush()
            if live.count(engine.CountRequest(exact=True)) != copy.count(engine.CountRequest(exact=True)):
                raise errors.StoreError(f"the graph of {self.folder} is not of the nodes that are there; try again")
            self._describe(named, None)
            undo.pop_all()
            with self._idle:
                self.edge, self._ungraphed = copy, brought
            self.refresh()
            self._flush()
        with self._idle:
            self._idle.wait_for(lambda: not self._busy[live])
            del self._busy[live]
        live.close()
        sync(self.folder)
        self._remove_all_but(named.shard)
        return built

    def _bring(self, live: engine.EdgeShard, copy: engine.EdgeShard) -> int:
        """Bring to the copy what was noted, as it is now; return how many points."""
        with self._write_lock:
            self._check_wanted()
            noted, self.noted = list(self.noted or ()), set()
        for start in range(0, len(noted), PAGE):
            some = noted[start : start + PAGE]
            copy.update(engine.UpdateOperation.delete_points(some))
            records = live.retrieve(some, with_payload=True, with_vector=True)
            found = [engine.Point(record.id, cast("Any", record.vector), record.payload) for record in records]
            copy.update(engine.UpdateOperation.upsert_points(found))
        return len(noted)

    def _remove_all_but(self, shard: str) -> None:
        """Remove what a graph was being built in, and what it has replaced."""
        for path in (self.folder / "shard", self.folder / "shard-b", *self.folder.glob(f"{_WORK}*")):
            if path.name != shard:
                shutil.rmtree(path, ignore_errors=True)


def open_shard(folder: Path, *, collection: str, dimension: int | None = None) -> SharedShard:
    """Open or make the collection in a folder, or join those in this process who have it open."""
    if dimension is not None and not 1 <= dimension <= MAX_DIMENSION:
        raise errors.ConfigError(f"the dimension is {dimension}; allowed are 1 to {MAX_DIMENSION:,}")
    with edge_errors("open the index", folder):
        folder.mkdir(parents=True, exist_ok=True)
        real = folder.resolve()
    with _registry.lock:
        shard = _registry.shards.get(real)
        if shard is None:
            shard = _registry.shards[real] = SharedShard(real, collection)
        shard.users += 1
        try:
            shard.expect(collection, dimension)
        except BaseException:
            shard.release()
            raise
    return shard


class _Registry:
    """Every collection that this process has open, by its real path."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.shards: dict[Path, SharedShard] = {}

    def close_all(self) -> None:
        with self.lock:
            for shard in list(self.shards.values()):
                with suppress(errors.StoreError):  # the log has everything; the next start replays it
                    shard.shut(_EXIT_PATIENCE_S)
            self.shards.clear()

    def forget_in_child(self) -> None:
        # Dropping an inherited engine would write to files that belong to the parent, and releasing an inherited lock
        # would release the parent's. So the child never lets go of them.
        for shard in self.shards.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(shard))
        self.lock = threading.RLock()
        self.shards = {}


_registry = _Registry()
atexit.register(_registry.close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_registry.forget_in_child)


# Making an index takes tens of milliseconds, more than all scans that it would spare a small collection.
INDEX_FROM: Final = 500
_GRAPH_EFFORT: Final = 1_024  # candidates that a search through the graph keeps; docs/scaling.md has how many are found
_FURTHER: Final = engine.AcornSearchParams(enable=True, max_selectivity=0.5)  # at those of neighbours, if few are left
_COMPARED: Final = 50_000  # so many that a filter leaves are compared as fast as a graph is searched
_WORKERS: Final = 4


class QdrantEdgeVectorStore(NodeStore):
    """Nodes and their vectors in a folder, searched exactly by cosine, with metadata filters.

    Usable by any LlamaIndex application. Safe for many threads; several stores of one process may share a collection;
    another process is refused. What ``add`` has returned survives ``kill -9``; after ``flush`` and ``close`` it
    survives a power cut too. Filters mean what :mod:`agentic_retriever.filters` says.

    Attributes:
        path: Folder of the collections.
        collection_name: Name of this collection, a folder in ``path``.
        dimension: Length of the vectors; ``None`` until the first are stored.

    Example:
        >>> with QdrantEdgeVectorStore("data", collection_name="papers") as store:  # doctest: +SKIP
        ...     index = VectorStoreIndex.from_vector_store(store, embed_model=embed_model)
        ...     index.insert_nodes(nodes)
    """

    path: str

    _shard: SharedShard = PrivateAttr()
    _closed: bool = PrivateAttr(default=False)

    def __init__(self, path: str | Path, collection_name: str = "default", dimension: int | None = None) -> None:
        """Open the collection, or make it.

        Args:
            path: Folder of the collections; made where it is missing.
            collection_name: Letters and digits of any script, spaces, ``_``, ``-`` and ``.``; at most 100 characters.
            dimension: Length of the vectors; by default what is stored, or what the first vectors have.

        Raises:
            ConfigError: The name or the dimension is not allowed.
            StoreBusyError: Another process has the collection open.
            StoreDamagedError: Files are missing or unreadable.
            EmbeddingMismatchError: The collection holds vectors of another dimension.
            StoreError: The folder cannot be used.
        """
        name = check_collection_name(collection_name)
        shard = open_shard(Path(path) / name, collection=name, dimension=dimension)
        fields: dict[str, Any] = {"path": str(path), "collection_name": name, "dimension": shard.dimension}
        super().__init__(**fields)
        self._shard = shard
        self._workers = Workers(_WORKERS, f"vector-store-{name}")

    @property
    def client(self) -> engine.EdgeShard | None:
        """The engine itself; ``None`` while nothing was ever stored."""
        self._check_open()
        return self._shard.edge

    def close(self) -> None:
        super().close()
        if not self._closed:
            self._closed = True
            self._shard.release()

    def clear(self) -> None:
        with self._writing("clear the index"):
            self._shard.note(None)
            if self._shard.edge is not None:
                self._shard.edge.update(engine.UpdateOperation.delete_points_by_filter(engine.Filter()))

    def flush(self) -> None:
        self._check_open()
        self._shard.flush()

    @property
    def search_kind(self) -> str:
        """How nodes are searched: ``exact`` or by a ``graph``, and whether one is being built."""
        kind = "graph" if self._shard.approximate else "exact"
        return kind if self._shard.noted is None else f"{kind}, a new graph is being built"

    def build_graph(self, begin: Begin = int, *, from_nodes: int = GRAPH_FROM, wait: bool = True) -> int:
        self._check_open()
        return self._shard.build_graph(begin, from_nodes, wait=wait)

    def query_known(
        self, query: VectorStoreQuery, known: points.KnownPoints[points.FactT]
    ) -> list[tuple[points.FactT, float]]:
        """Find as :meth:`query` does, and read only those points of which ``known`` has no fact."""
        top_k, wanted = self._checked(query, {})
        vector = self._unit(query)
        if not wanted.exact:
            return known.in_result(self.query(query))

        def retrieve(point_ids: list[str]) -> Sequence[engine.Record]:
            with self._reading("read nodes") as edge:
                return [] if edge is None else edge.retrieve(list(point_ids), with_payload=True, with_vector=False)

        def read(best: Sequence[points.EnginePoint], whole: bool) -> tuple[list[tuple[points.FactT, float]], int]:
            floor = float("-inf") if whole or not best else best[-1].score
            scores = {str(point.id): point.score for point in best if point.score > floor}
            facts = known.of(list(scores), retrieve)
            order = sorted(facts, key=lambda point: (-scores[point], facts[point][0]))[:top_k]
            return [(facts[point][1], scores[point]) for point in order], len(scores) - len(facts)

        return self._find_points([vector], top_k, wanted, read, payload=False)[0]

    @property
    def _stored_dimension(self) -> int | None:
        return self._shard.dimension

    def _check_open(self) -> None:
        if self._shard.is_inherited:
            raise errors.StoreClosedError(
                f"the index in {self._shard.folder} was opened by the parent process and cannot be used after a fork; "
                "open it in one process only, after forking"
            )
        if self._closed:
            raise errors.StoreClosedError(f"the index in {self._shard.folder} is closed; open it again")

    def _reading(self, what: str) -> AbstractContextManager[engine.EdgeShard | None]:
        self._check_open()
        return self._shard.reading(what)

    def _writing(self, what: str, dimension: int | None = None, points: int = 0) -> AbstractContextManager[None]:
        self._check_open()
        return self._shard.writing(what, dimension, points)

    def _engine(self) -> engine.EdgeShard:
        if self._shard.edge is None:
            raise errors.StoreError(f"the index in {self._shard.folder} holds nothing yet; add nodes first")
        return self._shard.edge

    def _prepare(self, nodes: Sequence[BaseNode], vectors: Vectors, payloads: Sequence[dict[str, Any]]) -> None:
        del nodes
        size = vectors.nbytes + sum(len(payload["_node_content"]) for payload in payloads)
        check_space("add nodes", self._shard.folder, size)
        if points.SOURCE_FIELD in self._kinds() or self._engine().info().points_count + len(payloads) >= INDEX_FROM:
            self._index_fields(payloads)

    def _put(self, nodes: Sequence[BaseNode], vectors: Vectors, payloads: Sequence[dict[str, Any]]) -> None:
        rows = zip([points.point_id(node.node_id) for node in nodes], vectors, payloads, strict=True)
        made = [engine.Point(point_id, cast("Any", vector), payload) for point_id, vector, payload in rows]
        self._shard.note(point.id for point in made)
        self._engine().update(engine.UpdateOperation.upsert_points(made))

    def _remove(self, point_ids: list[Any]) -> None:
        self._shard.note(point_ids)
        self._engine().update(engine.UpdateOperation.delete_points(point_ids))

    def _kinds(self) -> Mapping[str, str]:
        return self._shard.kinds

    def _make_index(self, path: str, kind: points.FieldKind, *, replace: bool) -> None:
        edge = self._engine()
        if replace:
            edge.update(engine.UpdateOperation.delete_field_index(path))
        edge.update(engine.UpdateOperation.create_field_index(path, SCHEMA[kind]))
        self._shard.refresh()

    def _scroll(self, condition: engine.Filter | None, offset: Offset, size: int, payload: points.Payload) -> Page:
        fields = engine.PayloadSelector.Include(payload) if isinstance(payload, list) else payload
        with self._reading("read nodes") as edge:
            if edge is None:
                return [], None
            return edge.scroll(engine.ScrollRequest(offset=offset, limit=size, filter=condition, with_payload=fields))

    def _vectors(self, point_ids: list[str]) -> Mapping[str, npt.ArrayLike]:
        with self._reading("read vectors") as edge:
            if edge is None:
                return {}
            records = edge.retrieve(list(point_ids), with_payload=False, with_vector=True)
        return {str(record.id): cast("npt.ArrayLike", record.vector) for record in records}

    def _count(self, condition: engine.Filter | None) -> int:
        with self._reading("count the nodes") as edge:
            return 0 if edge is None else edge.count(engine.CountRequest(exact=True, filter=condition))

    def _ask(
        self, sides: Sequence[Side], limit: int, condition: engine.Filter | None, payload: bool
    ) -> list[list[engine.ScoredPoint]]:
        [vector] = sides
        query = engine.Query.Nearest(cast("list[float]", vector))
        ask = partial(engine.QueryRequest, limit=limit, query=query, filter=condition, with_payload=payload)
        with self._reading("search") as edge:
            if edge is None:
                return [[]]
            left = engine.CountRequest(exact=False, filter=condition)
            if self._shard.approximate and (condition is None or edge.count(left) > _COMPARED):
                effort = max(_GRAPH_EFFORT if condition is None else _GRAPH_EFFORT // 2, 2 * limit)
                found = edge.query(ask(params=engine.SearchParams(hnsw_ef=effort, acorn=_FURTHER)))
                if len(found) == limit:
                    return [found]
            return [edge.query(ask(params=engine.SearchParams(exact=True)))]

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[str, str, int | None]]:
        # Copies, deep copies and pickles open the same collection again; a handle cannot be copied.
        return type(self), (self.path, self.collection_name, self.dimension)

    def __copy__(self) -> Self:
        return type(self)(self.path, self.collection_name, self.dimension)


def found_facts(
    store: BasePydanticVectorStore, query: VectorStoreQuery, known: points.KnownPoints[points.FactT]
) -> list[tuple[points.FactT, float]]:
    """Search any store for facts about its nodes, best first."""
    if isinstance(store, QdrantEdgeVectorStore):
        return store.query_known(query, known)
    return known.in_result(store.query(query))

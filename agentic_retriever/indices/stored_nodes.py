"""The nodes of a stored index: what is fixed for its life, its collections here or on a Qdrant server, its catalog.

All else of an index is derived from this.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sqlite3
import threading
import unicodedata
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout
from llama_index.core.schema import BaseNode

from agentic_retriever import errors
from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.ingestion import ChunkSettings, SourceDocument
from agentic_retriever.json_files import model_bytes, write_atomically
from agentic_retriever.stores.edge import QdrantEdgeVectorStore
from agentic_retriever.stores.node_store import PAGE, NodeStore
from agentic_retriever.stores.sparse import SparseBM25

if TYPE_CHECKING:
    from agentic_retriever.stores.server import QdrantLink  # its package takes a second to load

logger = logging.getLogger(__name__)

FORMAT = 1
MANIFEST_FILE = "manifest.json"
EMBEDDED = "embedded"
SERVER = "server"

CHUNKS: Final = "chunks"
LEAVES: Final = "leaves"
SUMMARIES: Final = "summaries"
COLLECTIONS: Final = (CHUNKS, LEAVES, SUMMARIES)

KNOWN_NODES = 100_000  # most nodes of an index on a server that are read to learn what it is about
_LOCK_PATIENCE_S = 60.0
_NAME = re.compile(r"[^\W_][\w.-]{0,63}", re.UNICODE)

CATALOG_FILE = "catalog.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO meta VALUES ('version', 0);
CREATE TABLE IF NOT EXISTS documents (
    doc_id TEXT PRIMARY KEY, source TEXT NOT NULL, root TEXT NOT NULL, kind TEXT NOT NULL, title TEXT NOT NULL,
    metadata TEXT NOT NULL, text TEXT NOT NULL, content_hash TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS documents_root ON documents (root);
CREATE TABLE IF NOT EXISTS nodes (node_id TEXT PRIMARY KEY, doc_id TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS nodes_doc ON nodes (doc_id);
CREATE TABLE IF NOT EXISTS checksums (node_id TEXT PRIMARY KEY, checksum INTEGER NOT NULL) WITHOUT ROWID;
"""
_DROP_NODES = (
    "DELETE FROM checksums WHERE node_id IN (SELECT node_id FROM nodes WHERE doc_id = ?)",
    "DELETE FROM nodes WHERE doc_id = ?",
)
_RAISE_VERSION = "UPDATE meta SET value = value + 1 WHERE key = 'version'"
_COUNTS = (
    "SELECT (SELECT COUNT(*) FROM documents), (SELECT COUNT(*) FROM nodes),"
    " (SELECT COUNT(*) FROM documents WHERE content_hash = ''),"
    " (SELECT COUNT(*) FROM nodes JOIN documents USING (doc_id) WHERE content_hash != '')"
)
_ADDING = "adding "
_DOCUMENT = "SELECT doc_id, source, root, kind, title, metadata, text, content_hash FROM documents"


def damaged(name: str, what: str) -> errors.StoreDamagedError:
    return errors.StoreDamagedError(
        f"index {name!r} is damaged or incomplete: {what}; remove it (agentic-retriever index remove {name}) "
        "and add its sources again; vectors of unchanged text are still in the embedding cache"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is fixed for the life of an index, in one small JSON file beside it."""

    name: str
    description: str
    embedding: str
    dimension: int
    chunk_size: int  # Largest chunk, in tokens
    chunk_overlap: int  # Text shared by neighbouring chunks, in tokens
    leaf_size: int  # Largest leaf, in tokens
    created: str  # When it was made, ISO 8601 in UTC
    format: int = FORMAT
    store: str = EMBEDDED
    collection: str = ""

    def write(self, folder: Path) -> None:
        write_atomically(folder / MANIFEST_FILE, model_bytes(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        path = folder / MANIFEST_FILE
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            version = data["format"]
            manifest = cls(**data) if version == FORMAT else None
        except (OSError, ValueError, TypeError, KeyError) as err:
            raise damaged(folder.name, f"{path} is missing or not a manifest") from err
        if manifest is None:
            raise damaged(folder.name, f"{path} has format {version}, this version reads {FORMAT}")
        return manifest

    @property
    def chunk_settings(self) -> ChunkSettings:
        return ChunkSettings(chunk_size=self.chunk_size, chunk_overlap=self.chunk_overlap, leaf_size=self.leaf_size)


def check_index_name(name: object) -> str:
    """Return an index name that is safe as a folder on every platform, in Unicode's NFC form."""
    normal = unicodedata.normalize("NFC", name) if isinstance(name, str) else ""
    if not _NAME.fullmatch(normal) or normal.endswith("."):
        raise errors.IndexingError(
            f"index name {str(name)[:80]!r} cannot be used; take 1 to 64 letters, digits, '_', '-' or '.', "
            "starting with a letter or a digit"
        )
    return normal


@dataclass(frozen=True, slots=True)
class EmbeddedStores:
    """The collections of one index as folders beside the catalog."""

    _folder: Path
    is_remote: ClassVar[bool] = False

    def exists(self, name: str) -> bool:
        return (self._folder / name).exists()

    def open(self, name: str, dimension: int, *, must_exist: bool = False) -> NodeStore:  # noqa: ARG002
        return QdrantEdgeVectorStore(self._folder, collection_name=name, dimension=dimension)

    def discard(self, name: str) -> None:
        """Remove a collection that is not open; one that is not there is no error."""
        try:
            if self.exists(name):
                shutil.rmtree(self._folder / name)
        except OSError as err:
            raise errors.StoreError(f"cannot remove {self._folder / name}: {err.strerror}; check permissions") from err

    def lost(self) -> str:
        return f"gone from {self._folder / CHUNKS}"


@dataclass(frozen=True, slots=True)
class StoreServer:
    link: QdrantLink
    prefix: str = ""

    @classmethod
    def from_config(cls, config: RouterConfig) -> StoreServer | None:
        if not config.qdrant_url:
            return None
        from agentic_retriever.stores.server import QdrantLink  # noqa: PLC0415 - takes a second to load

        return cls(QdrantLink.from_config(config), config.qdrant_prefix)


@dataclass(frozen=True, slots=True)
class ServerStores:
    """Collections on a server, used by several processes at a time; the folder keeps how words are weighed there."""

    _server: StoreServer
    base: str
    _folder: Path
    is_remote: ClassVar[bool] = True

    @classmethod
    def choose(cls, folder: Path, name: str, server: StoreServer) -> ServerStores:
        stores = cls(server, f"{server.prefix}{name}", folder)
        if stores.exists(CHUNKS):
            raise errors.IndexExistsError(
                f"Qdrant at {server.link.address} has a collection {stores._name_of(CHUNKS)!r} already, from another "
                "data directory perhaps; set qdrant_prefix to another text, or use another name"
            )
        return stores

    def exists(self, name: str) -> bool:
        collection = self._name_of(name)
        return self._server.link.call("look for a collection", lambda client: client.collection_exists(collection))

    def open(self, name: str, dimension: int, *, must_exist: bool = False) -> NodeStore:
        """Describe the collection; calls nobody."""
        has_words = name == CHUNKS
        from agentic_retriever.stores.server import QdrantServerVectorStore  # noqa: PLC0415 - takes a second to load

        return QdrantServerVectorStore(
            self._server.link,
            self._name_of(name),
            dimension,
            keywords=has_words,
            sparse=SparseBM25.load(self._folder) if has_words else None,
            on_fitted=lambda sparse: sparse.save(self._folder),
            must_exist=must_exist,
        )

    def discard(self, name: str) -> None:
        collection = self._name_of(name)
        self._server.link.call("remove a collection", lambda client: client.delete_collection(collection))

    def lost(self) -> str:
        return (
            f"gone: Qdrant at {self._server.link.address} has no collection {self._name_of(CHUNKS)!r} "
            "(is QDRANT_URL the server that the index was made on?)"
        )

    def _name_of(self, name: str) -> str:
        return f"{self.base}-{name}"


IndexStores: TypeAlias = EmbeddedStores | ServerStores


def stores_of(folder: Path, manifest: Manifest, server: StoreServer | None) -> IndexStores:
    """Return where the nodes of an index live, as its manifest says."""
    if manifest.store == EMBEDDED:
        return EmbeddedStores(folder)
    if manifest.store != SERVER:
        raise damaged(manifest.name, f"its manifest names the store {manifest.store!r}")
    if server is None:
        raise errors.StoreError(
            f"index {manifest.name!r} lives on a Qdrant server, in the collections {manifest.collection}-...; set "
            "QDRANT_URL (setting qdrant_url) to that server, and QDRANT_API_KEY if it wants a key"
        )
    return ServerStores(server, manifest.collection, folder)


class CatalogEntry(NamedTuple):
    """One document as the catalog knows it; ``content_hash`` is empty while it is being written."""

    doc_id: str
    source: str
    root: str
    kind: str
    title: str
    metadata: Mapping[str, Any]
    text: str
    content_hash: str

    @property
    def is_altered(self) -> bool:
        """Whether a document that was read from a source is not what its hash says; nodes were added as they are."""
        fields = {name: getattr(self, name) for name in ("doc_id", "kind", "title", "metadata", "text")}
        _, colon, digest = self.content_hash.partition(":")
        return bool(colon) and SourceDocument(**fields).content_hash != digest


def vector_checksums(vectors: npt.NDArray[np.float32]) -> list[int]:
    return [zlib.crc32(row.tobytes()) for row in vectors]


class CatalogCounts(NamedTuple):
    documents: int
    nodes: int
    unfinished: int  # documents whose writing was cut off
    finished_nodes: int  # nodes of finished documents


class Catalog:
    """Which documents an index holds, their texts and nodes, and the version of the whole; usable from many threads.

    It is written around every change of the vector store: first the intent (the document without its content hash, and
    the node ids it is about to get), last the confirmation. A process killed in between leaves documents without a
    hash, which the next run writes again under the same ids.
    """

    def __init__(self, folder: Path, name: str, *, shared: bool = False) -> None:
        self._name = name
        self._shared = shared
        self._pid = os.getpid()
        self._path = folder / CATALOG_FILE
        self._lock = threading.RLock()
        self._version: int | None = None
        with self._guard(), ExitStack() as undo:
            # isolation_level=None: transactions are opened by name in _write, and never by surprise.
            connection = sqlite3.connect(self._path, timeout=5.0, check_same_thread=False, isolation_level=None)
            undo.callback(connection.close)
            connection.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; {_SCHEMA}")
            undo.pop_all()
            self._connection = connection

    def version(self) -> int:
        """Return the version, which grows with every confirmed change."""
        if self._version is None or self._shared:
            self._version = int(self._read("SELECT value FROM meta WHERE key = 'version'")[0][0])
        return self._version

    def counts(self) -> CatalogCounts:
        return CatalogCounts(*self._read(_COUNTS)[0])

    def get(self, doc_id: str) -> CatalogEntry | None:
        rows = self._read(f"{_DOCUMENT} WHERE doc_id = ?", (doc_id,))
        return CatalogEntry(*rows[0])._replace(metadata=json.loads(rows[0][5])) if rows else None

    def documents(self) -> Iterator[CatalogEntry]:
        return (entry for entry in map(self.get, self.doc_ids()) if entry is not None)

    def doc_ids(self, *, root: str | None = None) -> list[str]:
        """Return the ids of all documents, or of those that came from one root, in order."""
        if root is None:
            return [row[0] for row in self._read("SELECT doc_id FROM documents ORDER BY doc_id")]
        return [row[0] for row in self._read("SELECT doc_id FROM documents WHERE root = ? ORDER BY doc_id", (root,))]

    def node_ids(self, doc_id: str) -> list[str]:
        """Return the ids of a document's nodes, intended ones included, in order."""
        return [row[0] for row in self._read("SELECT node_id FROM nodes WHERE doc_id = ? ORDER BY node_id", (doc_id,))]

    def begin_source(self, root: str) -> None:
        """Note that a file or folder is being added, until :meth:`end_source`."""
        with self._write() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, 0)", (_ADDING + root,))

    def end_source(self, root: str) -> None:
        with self._write() as connection:
            connection.execute("DELETE FROM meta WHERE key = ?", (_ADDING + root,))

    def unfinished_sources(self) -> list[str]:
        """Return the files and folders whose adding was cut off."""
        rows = self._read("SELECT key FROM meta WHERE key LIKE ? ORDER BY key", (f"{_ADDING}%",))
        return [key.removeprefix(_ADDING) for (key,) in rows]

    def begin(self, documents: Sequence[tuple[CatalogEntry, Sequence[str]]]) -> None:
        """Note that these documents are about to get these nodes."""
        with self._write() as connection:
            for entry, node_ids in documents:
                self._put(connection, entry._replace(content_hash=""), node_ids)

    def confirm(
        self, documents: Sequence[tuple[CatalogEntry, Sequence[str]]], checksums: Mapping[str, int] | None = None
    ) -> None:
        """Note that documents now have exactly these nodes, whose vectors may be as before; raise the version."""
        with self._write() as connection:
            for entry, node_ids in documents:
                for drop in _DROP_NODES[checksums is None :]:
                    connection.execute(drop, (entry.doc_id,))
                self._put(connection, entry, node_ids)
            connection.executemany("INSERT OR REPLACE INTO checksums VALUES (?, ?)", (checksums or {}).items())
            connection.execute(_RAISE_VERSION)

    def checksums(self) -> dict[str, int]:
        """Return the checksum of each node's vector; those that earlier versions wrote have none."""
        return dict(self._read("SELECT node_id, checksum FROM checksums"))

    @staticmethod
    def _put(connection: sqlite3.Connection, entry: CatalogEntry, node_ids: Sequence[str]) -> None:
        metadata = json.dumps(dict(entry.metadata), ensure_ascii=False, default=str)
        row = (*entry[:5], metadata, *entry[6:])
        connection.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        connection.executemany("INSERT OR REPLACE INTO nodes VALUES (?, ?)", [(i, entry.doc_id) for i in node_ids])

    def begin_removal(self, doc_ids: Sequence[str]) -> None:
        with self._write() as connection:
            connection.executemany("UPDATE documents SET content_hash = '' WHERE doc_id = ?", [(i,) for i in doc_ids])

    def confirm_removal(self, doc_ids: Sequence[str]) -> None:
        """Note that these documents and their nodes are gone, and raise the version."""
        with self._write() as connection:
            for drop in (*_DROP_NODES, "DELETE FROM documents WHERE doc_id = ?"):
                connection.executemany(drop, [(i,) for i in doc_ids])
            connection.execute(_RAISE_VERSION)

    def close(self) -> None:
        with self._lock:
            self._version = None
            self._connection.close()

    def _read(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        with self._guard():
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._guard():
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
                self._version = None
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _guard(self) -> Iterator[None]:
        if self._pid != os.getpid():
            raise errors.StoreClosedError(f"index {self._name!r} was opened before a fork; open it after forking")
        with self._lock:
            try:
                yield
            except sqlite3.ProgrammingError as err:  # what a closed connection answers with
                raise errors.StoreClosedError(f"index {self._name!r} is closed; open it again") from err
            except sqlite3.OperationalError as err:
                what = f"index {self._name!r}: cannot use {self._path}: {err}; check space and permissions"
                raise errors.StoreError(what) from err
            except sqlite3.DatabaseError as err:
                raise damaged(self._name, f"{self._path} is not a readable catalog") from err


class StoredNodes:
    """The nodes of an index with their catalog, opened together and held against each other, or made new."""

    def __init__(self, folder: Path, embedding: EmbeddingModel, server: StoreServer | None = None) -> None:
        self.folder: Path = folder
        self.manifest = Manifest.read(folder)
        self.name = self.manifest.name
        self.description = self.manifest.description
        self.created = self.manifest.created
        self.embedding = embedding
        if embedding.name != self.manifest.embedding:
            raise errors.EmbeddingMismatchError(
                f"index {self.name!r} was built with the embedding model {self.manifest.embedding!r}, the router uses "
                f"{embedding.name!r}; set embedding_model to the first, or build the index again under the second"
            )
        self.stores = stores_of(folder, self.manifest, server)
        self._counted = (-1, 0)
        self._locks: dict[str, FileLock] = {}
        is_new = not self.stores.exists(CHUNKS)
        # The store's lock is what keeps a second process out, so it is taken before anything is judged or written.
        self.vector_store: NodeStore = self.stores.open(CHUNKS, self.manifest.dimension, must_exist=not is_new)
        with ExitStack() as undo:
            undo.callback(self.vector_store.close)
            if not is_new and not (folder / CATALOG_FILE).exists() and self.vector_store.count():
                raise damaged(self.name, f"{folder / CATALOG_FILE} is missing")
            self.catalog = Catalog(folder, self.name, shared=self.is_remote)
            undo.callback(self.catalog.close)
            self._check_counts(is_new=is_new)
            undo.pop_all()

    @property
    def version(self) -> int:
        return self.catalog.version()

    @property
    def is_remote(self) -> bool:
        """Whether the nodes are on a server, which then checks filters and finds words, too."""
        return self.stores.is_remote

    def count(self) -> int:
        version, known = self.version, self._counted
        if known[0] != version:
            known = self._counted = (version, self.vector_store.count())
        return known[1]

    def doc_ids(self) -> list[str]:
        return self.catalog.doc_ids()

    def source_text(self, doc_id: str) -> str | None:
        entry = self.catalog.get(doc_id)
        return entry.text if entry and entry.text else None

    def nodes(self) -> Iterator[BaseNode]:
        return self.vector_store.iter_nodes()

    def known_nodes(self) -> Iterator[BaseNode]:
        """Yield the nodes that tell what the index is about: all, or of many on a server 100,000 drawn by a hash."""
        # A server lists nodes by the hash of their ids, so the first of them are a fair sample.
        nodes = self.nodes()
        return islice(nodes, KNOWN_NODES) if self.is_remote else nodes

    def check_contents(self) -> None:
        """Hold source texts and vectors against their checksums, which no engine does when it reads them."""
        texts = [entry.doc_id for entry in self.catalog.documents() if entry.is_altered]
        if texts:
            raise damaged(self.name, f"the text of {len(texts):,} documents is not what was added, as of {texts[0]!r}")
        sums = {} if self.is_remote else self.catalog.checksums()
        ids = list(sums)
        for start in range(0, len(ids), PAGE):
            wanted = ids[start : start + PAGE]
            found, vectors = self.vector_store.vectors(wanted)
            wrong = [i for i, checksum in zip(found, vector_checksums(vectors), strict=True) if checksum != sums[i]]
            if wrong or len(found) < len(wanted):
                what = (
                    f"vectors of {len(wrong) + len(wanted) - len(found):,} nodes or more are not those that were added"
                )
                raise damaged(self.name, what)

    @contextmanager
    def exclusive(self, what: str) -> Iterator[None]:
        """Keep other processes from changing a part of an index that they share; an embedded one has none."""
        if not self.is_remote:
            yield
            return
        lock = self._locks.setdefault(what, FileLock(self.folder / f"{what}.lock", thread_local=False))
        try:
            held = lock.acquire(timeout=_LOCK_PATIENCE_S)
        except Timeout as err:
            busy = f"another process is changing the {what} of index {self.name!r}; try again when it is done"
            raise errors.StoreBusyError(busy) from err
        with held:
            yield

    def close(self) -> None:
        self.catalog.close()
        self.vector_store.close()

    def _check_counts(self, *, is_new: bool) -> None:
        counts, stored = self.catalog.counts(), self.vector_store.count()
        if is_new and counts.finished_nodes:
            raise damaged(self.name, f"its {counts.finished_nodes:,} nodes are {self.stores.lost()}")
        expected = counts.nodes
        for root in self.catalog.unfinished_sources():
            logger.warning("index %r is incomplete: adding %s was cut off; add it again to finish", self.name, root)
        if counts.unfinished:
            what = "index %r is incomplete: writing %d documents was cut off; add its sources again to finish"
            logger.warning(what, self.name, counts.unfinished)
            expected = counts.finished_nodes
        if stored < expected or (stored > expected and not counts.unfinished):
            raise damaged(self.name, f"{stored:,} nodes stored, {expected:,} expected")

"""The nodes of a stored index: what is fixed for its life, its collections here or on a Qdrant server, its catalog.

All else of an index is derived from this.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout
from llama_index.core.schema import BaseNode

from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.errors import (
    EmbeddingMismatchError,
    IndexExistsError,
    IndexingError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
)
from agentic_retriever.indices.catalog import CATALOG_FILE, Catalog, damaged
from agentic_retriever.ingestion import ChunkSettings
from agentic_retriever.json_files import model_bytes, write_atomically
from agentic_retriever.stores.edge import QdrantEdgeVectorStore
from agentic_retriever.stores.node_store import NodeStore
from agentic_retriever.stores.server import QdrantLink, open_server
from agentic_retriever.stores.sparse import SparseBM25

logger = logging.getLogger(__name__)

FORMAT = 1
MANIFEST_FILE = "manifest.json"
EMBEDDED = "embedded"
SERVER = "server"

CHUNKS: Final = "chunks"
LEAVES: Final = "leaves"
SUMMARIES: Final = "summaries"
COLLECTIONS: Final = (CHUNKS, LEAVES, SUMMARIES)

KNOWN_NODES = 100_000
"""Most nodes of an index on a server that are read to learn what it is about."""

_LOCK_PATIENCE_S = 60.0
_NAME = re.compile(r"[^\W_][\w.-]{0,63}", re.UNICODE)


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
        """Write the file in one step: readers see the old one or the new one."""
        write_atomically(folder / MANIFEST_FILE, model_bytes(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the file."""
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
        """How the index cuts documents."""
        return ChunkSettings(chunk_size=self.chunk_size, chunk_overlap=self.chunk_overlap, leaf_size=self.leaf_size)


def check_index_name(name: object) -> str:
    """Return an index name that is safe as a folder on every platform, in Unicode's NFC form."""
    normal = unicodedata.normalize("NFC", name) if isinstance(name, str) else ""
    if not _NAME.fullmatch(normal) or normal.endswith("."):
        raise IndexingError(
            f"index name {str(name)[:80]!r} cannot be used; take 1 to 64 letters, digits, '_', '-' or '.', "
            "starting with a letter or a digit"
        )
    return normal


class IndexStores(ABC):
    """The collections of one index; those on a server may be used by several processes at a time."""

    is_remote: bool

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Tell whether a collection is there."""

    @abstractmethod
    def open(self, name: str, dimension: int, *, must_exist: bool = False) -> NodeStore:
        """Open a collection, or make it."""

    @abstractmethod
    def discard(self, name: str) -> None:
        """Remove a collection that is not open; one that is not there is no error."""

    @abstractmethod
    def lost_nodes(self, index: str, nodes: int) -> StoreDamagedError:
        """Make the error for chunks that should be there and are not."""


class EmbeddedStores(IndexStores):
    """Collections as folders beside the catalog."""

    is_remote = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def exists(self, name: str) -> bool:
        return (self._folder / name).exists()

    def open(self, name: str, dimension: int, *, must_exist: bool = False) -> NodeStore:  # noqa: ARG002
        return QdrantEdgeVectorStore(self._folder, collection_name=name, dimension=dimension)

    def discard(self, name: str) -> None:
        try:
            shutil.rmtree(self._folder / name)
        except FileNotFoundError:
            return
        except OSError as err:
            raise StoreError(f"cannot remove {self._folder / name}: {err.strerror or err}; check permissions") from err

    def lost_nodes(self, index: str, nodes: int) -> StoreDamagedError:
        return damaged(index, f"its {nodes:,} nodes are gone from {self._folder / CHUNKS}")


@dataclass(frozen=True, slots=True)
class StoreServer:
    """A Qdrant server, and how collections are made there."""

    link: QdrantLink
    prefix: str = ""

    @classmethod
    def from_config(cls, config: RouterConfig) -> StoreServer | None:
        """Take the server that the settings name, or ``None``; calls nobody."""
        link = open_server(config)
        if link is None:
            return None
        return cls(link, config.qdrant_prefix)


class ServerStores(IndexStores):
    """Collections on a server; the folder keeps how words are weighed there."""

    is_remote = True

    def __init__(self, server: StoreServer, base: str, folder: Path) -> None:
        self.base = base
        self._server = server
        self._folder = folder

    @classmethod
    def choose(cls, folder: Path, name: str, server: StoreServer) -> ServerStores:
        """Choose collections for a new index."""
        stores = cls(server, f"{server.prefix}{name}", folder)
        if stores.exists(CHUNKS):
            raise IndexExistsError(
                f"Qdrant at {server.link.address} has a collection {stores._name_of(CHUNKS)!r} already, from another "
                "data directory perhaps; set qdrant_prefix to another text, or use another name"
            )
        return stores

    def exists(self, name: str) -> bool:
        collection = self._name_of(name)
        return self._server.link.call("look for a collection", lambda client: client.collection_exists(collection))

    def open(self, name: str, dimension: int, *, must_exist: bool = False) -> NodeStore:
        """Describe the collection; calls nobody."""
        from agentic_retriever.stores.server import QdrantServerVectorStore  # noqa: PLC0415 - takes a second to load

        has_words = name == CHUNKS
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

    def lost_nodes(self, index: str, nodes: int) -> StoreDamagedError:
        return damaged(
            index,
            f"its {nodes:,} nodes are gone: Qdrant at {self._server.link.address} has no collection "
            f"{self._name_of(CHUNKS)!r} (is QDRANT_URL the server that the index was made on?)",
        )

    def _name_of(self, name: str) -> str:
        return f"{self.base}-{name}"


def stores_of(folder: Path, manifest: Manifest, server: StoreServer | None) -> IndexStores:
    """Return where the nodes of an index live, as its manifest says."""
    if manifest.store == EMBEDDED:
        return EmbeddedStores(folder)
    if manifest.store != SERVER:
        raise damaged(manifest.name, f"its manifest names the store {manifest.store!r}")
    if server is None:
        raise StoreError(
            f"index {manifest.name!r} lives on a Qdrant server, in the collections {manifest.collection}-...; set "
            "QDRANT_URL (setting qdrant_url) to that server, and QDRANT_API_KEY if it wants a key"
        )
    return ServerStores(server, manifest.collection, folder)


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
            raise EmbeddingMismatchError(
                f"index {self.name!r} was built with the embedding model {self.manifest.embedding!r}, the router uses "
                f"{embedding.name!r}; set embedding_model to the first, or build the index again under the second"
            )
        self.stores = stores_of(folder, self.manifest, server)
        self._counted = (-1, 0)
        self._locks: dict[str, FileLock] = {}
        is_new = not self.stores.exists(CHUNKS)
        if not is_new and not (folder / CATALOG_FILE).exists():
            raise damaged(self.name, f"{folder / CATALOG_FILE} is missing")
        # The store's lock is what keeps a second process out, so it is taken before anything is written.
        self.vector_store: NodeStore = self.stores.open(CHUNKS, self.manifest.dimension, must_exist=not is_new)
        try:
            self.catalog = Catalog(folder, self.name, shared=self.is_remote)
            try:
                self._check_counts(is_new=is_new)
            except BaseException:
                self.catalog.close()
                raise
        except BaseException:
            self.vector_store.close()
            raise

    @property
    def version(self) -> int:
        """Grows with every change; views and cached answers carry the version they were made from."""
        return self.catalog.version()

    @property
    def is_remote(self) -> bool:
        """Whether the nodes are on a server, which then checks filters and finds words, too."""
        return self.stores.is_remote

    def count(self) -> int:
        version = self.version
        known = self._counted
        if known[0] != version:
            known = self._counted = (version, self.vector_store.count())
        return known[1]

    def doc_ids(self) -> list[str]:
        return self.catalog.doc_ids()

    def source_text(self, doc_id: str) -> str | None:
        entry = self.catalog.get(doc_id)
        return entry.text if entry and entry.text else None

    def nodes(self) -> Iterator[BaseNode]:
        yield from self.vector_store.iter_nodes()

    def known_nodes(self) -> Iterator[BaseNode]:
        """Yield the nodes that tell what the index is about: all, or of many on a server 100,000 drawn by a hash."""
        # A server lists nodes by the hash of their ids, so the first of them are a fair sample.
        nodes = self.nodes()
        return islice(nodes, KNOWN_NODES) if self.is_remote else nodes

    @contextmanager
    def exclusive(self, what: str) -> Iterator[None]:
        """Keep other processes from changing a part of an index that they share; an embedded one has none."""
        if not self.is_remote:
            yield
            return
        lock = self._locks.setdefault(what, FileLock(self.folder / f"{what}.lock", thread_local=False))
        try:
            lock.acquire(timeout=_LOCK_PATIENCE_S)
        except Timeout as err:
            raise StoreBusyError(
                f"another process is changing the {what} of index {self.name!r}; try again when it is done"
            ) from err
        try:
            yield
        finally:
            lock.release()

    def close(self) -> None:
        self.catalog.close()
        self.vector_store.close()

    def _check_counts(self, *, is_new: bool) -> None:
        counts, stored = self.catalog.counts(), self.vector_store.count()
        if is_new and counts.finished_nodes:
            raise self.stores.lost_nodes(self.name, counts.finished_nodes)
        if counts.unfinished:
            logger.warning(
                "index %r is incomplete: writing %d documents was cut off; add its sources again to finish",
                self.name,
                counts.unfinished,
            )
            if stored < counts.finished_nodes:
                raise damaged(self.name, f"{stored:,} nodes stored, {counts.finished_nodes:,} expected")
        elif stored != counts.nodes:
            raise damaged(self.name, f"{stored:,} nodes stored, {counts.nodes:,} expected")

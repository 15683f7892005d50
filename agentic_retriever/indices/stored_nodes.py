"""The nodes of a stored index: what is fixed for its life, its collections here or on a Qdrant server, its catalog."""

from __future__ import annotations

import json
import logging
import re
import shutil
import unicodedata
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout
from llama_index.core.schema import BaseNode

from agentic_retriever import errors
from agentic_retriever.catalog.contents import Catalog
from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.ingestion.chunking import ChunkSettings
from agentic_retriever.json_files import model_bytes
from agentic_retriever.stores.edge import QdrantEdgeVectorStore
from agentic_retriever.stores.node_store import PAGE, NodeStore
from agentic_retriever.stores.sparse import SparseBM25

if TYPE_CHECKING:
    from agentic_retriever.stores.server import QdrantLink  # its package takes a second to load

logger = logging.getLogger(__name__)

FORMAT = 1
EMBEDDED = "embedded"
SERVER = "server"

CHUNKS: Final = "chunks"
LEAVES: Final = "leaves"
SUMMARIES: Final = "summaries"
COLLECTIONS: Final = (CHUNKS, LEAVES, SUMMARIES)

KNOWN_NODES = 100_000  # most nodes of an index on a server that are read to learn what it is about
_LOCK_PATIENCE_S = 60.0
_NAME = re.compile(r"[^\W_][\w.-]{0,63}", re.UNICODE)


def damaged(name: str, what: str) -> errors.StoreDamagedError:
    return errors.StoreDamagedError(
        f"index {name!r} is damaged or incomplete: {what}; remove it (agentic-retriever index remove {name}) "
        "and add its sources again; vectors of unchanged text are still in the embedding cache"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is fixed for the life of an index: in the catalog, and in a small file beside its vectors."""

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

    def to_json(self) -> str:
        return model_bytes(asdict(self)).decode()

    @classmethod
    def from_json(cls, name: str, text: str) -> Manifest:
        try:
            data = json.loads(text)
            version = data["format"]
            manifest = cls(**data) if version == FORMAT else None
        except (ValueError, TypeError, KeyError) as err:
            raise damaged(name, "what the catalog has for its manifest is none") from err
        if manifest is None:
            raise damaged(name, f"its manifest has format {version}, this version reads {FORMAT}")
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
class Words:
    """How the words of an index on a server are weighed: kept in the catalog, so that all machines weigh alike."""

    _catalog: Catalog | None = None
    _held: Mapping[str, Any] | None = None

    def load(self) -> SparseBM25 | None:
        held = self._held if self._catalog is None else self._catalog.row.words
        return None if held is None else SparseBM25.from_dict(held)

    def keep(self, sparse: SparseBM25, known: SparseBM25 | None) -> SparseBM25:
        """Keep what is new, or what replaces what is known; the first of several machines decides."""
        if self._catalog is None:
            return sparse
        indexes, row = self._catalog.indexes, self._catalog.row
        if known is None:
            return SparseBM25.from_dict(indexes.settle_words(row, asdict(sparse)))
        indexes.update(row, words=asdict(sparse))
        return sparse


NO_WORDS: Final = Words()


@dataclass(frozen=True, slots=True)
class ServerStores:
    """Collections on a server, used by several processes at a time."""

    _server: StoreServer
    base: str
    _words: Words
    is_remote: ClassVar[bool] = True

    @classmethod
    def choose(cls, name: str, server: StoreServer, words: Words) -> ServerStores:
        stores = cls(server, f"{server.prefix}{name}", words)
        if stores.exists(CHUNKS):
            raise errors.IndexExistsError(
                f"Qdrant at {server.link.address} has a collection {stores._name_of(CHUNKS)!r} already, from another "
                "catalog perhaps; set qdrant_prefix to another text, or use another name"
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
            sparse=self._words.load() if has_words else None,
            on_fitted=self._words.keep,
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


def stores_of(folder: Path, manifest: Manifest, server: StoreServer | None, words: Words) -> IndexStores:
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
    return ServerStores(server, manifest.collection, words)


def vector_checksums(vectors: npt.NDArray[np.float32]) -> list[int]:
    return [zlib.crc32(row.tobytes()) for row in vectors]


class StoredNodes:
    """The nodes of an index with their catalog, opened together and held against each other, or made new."""

    def __init__(
        self, folder: Path, embedding: EmbeddingModel, catalog: Catalog, server: StoreServer | None = None
    ) -> None:
        self.folder: Path = folder
        self.catalog = catalog
        self.name = catalog.name
        self.manifest_text = catalog.row.manifest
        self.manifest = Manifest.from_json(self.name, self.manifest_text)
        self.description = self.manifest.description
        self.created = self.manifest.created
        self.embedding = embedding
        if embedding.name != self.manifest.embedding:
            raise errors.EmbeddingMismatchError(
                f"index {self.name!r} was built with the embedding model {self.manifest.embedding!r}, the router uses "
                f"{embedding.name!r}; set embedding_model to the first, or build the index again under the second"
            )
        self.stores = stores_of(folder, self.manifest, server, Words(catalog))
        self.words_seen = catalog.row.words
        self._counted = (-1, 0)
        self._locks: dict[str, FileLock] = {}
        is_new = not self.stores.exists(CHUNKS)
        # The store's lock is what keeps a second process out, so it is taken before anything is judged or written.
        self.vector_store: NodeStore = self.stores.open(CHUNKS, self.manifest.dimension, must_exist=not is_new)
        with ExitStack() as undo:
            undo.callback(self.vector_store.close)
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
            lost = len(wrong) + len(wanted) - len(found)
            if lost:
                raise damaged(self.name, f"vectors of {lost:,} nodes or more are not those that were added")

    @contextmanager
    def exclusive(self, what: str, *parts: str) -> Iterator[None]:
        """Keep others from changing documents of an index on a server, or all of the part if the catalog is a file."""
        indexes, busy = self.catalog.indexes, f"the {what} of index {self.name!r}; try again when it is done"
        with ExitStack() as held:
            try:
                if self.is_remote and indexes.database.address.is_shared:
                    row = self.catalog.row
                    held.enter_context(indexes.locked(row, what, parts, timeout_s=_LOCK_PATIENCE_S))
                elif self.is_remote:
                    lock = self._locks.setdefault(what, FileLock(self.folder / f"{what}.lock", thread_local=False))
                    held.enter_context(lock.acquire(timeout=_LOCK_PATIENCE_S))
            except (Timeout, errors.StoreBusyError) as err:
                raise errors.StoreBusyError(f"another process is changing {busy}") from err
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

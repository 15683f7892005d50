"""One named index: the vector store as the one truth, and the views derived from it."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from agentic_retriever.errors import EmbeddingMismatchError, StoreBusyError
from agentic_retriever.indices.catalog import CATALOG_FILE, Catalog
from agentic_retriever.indices.index import ALWAYS_THERE, Index
from agentic_retriever.indices.keyword import index_keyword, index_words, revise_words
from agentic_retriever.indices.manifest import Manifest, damaged
from agentic_retriever.indices.prefilter import MetadataView
from agentic_retriever.indices.profile import index_profile
from agentic_retriever.indices.stores import CHUNKS, stores_of
from agentic_retriever.indices.vector_rows import VectorRowsView
from agentic_retriever.indices.views import ViewSet
from agentic_retriever.ingestion import ChunkSettings
from agentic_retriever.schema import View

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.embeddings import EmbeddingModel
    from agentic_retriever.indices.hierarchy import HierarchyView
    from agentic_retriever.indices.ingest import Progress
    from agentic_retriever.indices.keyword import KeywordSearch
    from agentic_retriever.indices.prefilter import CandidateSet, MetadataIndex
    from agentic_retriever.indices.profile import IndexProfile
    from agentic_retriever.indices.stores import IndexStores, StoreServer
    from agentic_retriever.indices.summaries import SummaryView, SummaryWriter
    from agentic_retriever.indices.vector_rows import VectorRows
    from agentic_retriever.stores.node_store import NodeStore
    from agentic_retriever.stores.server.searching import ServerWords


# What an index lives on: the store of its chunks and its catalog, opened together and held against each other.

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IndexParts:
    """The parts of an index that are not derived from others."""

    name: str
    stores: IndexStores
    vector_store: NodeStore
    catalog: Catalog

    @classmethod
    def opened(cls, folder: Path, manifest: Manifest, server: StoreServer | None) -> IndexParts:
        """Open the parts, or make those of a new index."""
        stores = stores_of(folder, manifest, server)
        store_is_new = not stores.exists(CHUNKS)
        if not store_is_new and not (folder / CATALOG_FILE).exists():
            raise damaged(manifest.name, f"{folder / CATALOG_FILE} is missing")
        # The store's lock is what keeps a second process out, so it is taken before anything is written.
        vector_store = stores.open(CHUNKS, manifest.dimension, must_exist=not store_is_new)
        try:
            catalog = Catalog(folder, manifest.name, shared=stores.is_remote)
            parts = cls(manifest.name, stores, vector_store, catalog)
            try:
                parts._check_counts(store_is_new=store_is_new)
            except BaseException:
                catalog.close()
                raise
        except BaseException:
            vector_store.close()
            raise
        return parts

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self.catalog.close()
        self.vector_store.close()

    def _check_counts(self, *, store_is_new: bool) -> None:
        counts, stored = self.catalog.counts(), self.vector_store.count()
        if store_is_new and counts.finished_nodes:
            raise self.stores.gone(self.name, counts.finished_nodes)
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


METADATA = "metadata"
KNOWN_NODES = 100_000
"""Most nodes of an index on a server that are read to learn what it is about."""
_LOCK_PATIENCE_S = 60.0


class StoredIndex(Index):
    """A named collection of nodes with several views, each built on first use and again when the index changed.

    Safe to use from many threads; one process at a time holds it, unless its nodes are on a server: then processes of
    this machine share it. Made by :class:`IndexStorage`.
    """

    def __init__(self, folder: Path, embedding: EmbeddingModel, *, server: StoreServer | None = None) -> None:
        self.folder: Path = folder
        self.manifest = Manifest.read(folder)
        if embedding.name != self.manifest.embedding:
            raise EmbeddingMismatchError(
                f"index {self.manifest.name!r} was built with the embedding model {self.manifest.embedding!r}, the "
                f"router uses {embedding.name!r}; set embedding_model to the first, or build the index again under "
                "the second"
            )
        self.name = self.manifest.name
        self.description = self.manifest.description
        self.created = self.manifest.created
        self.embedding = embedding
        self._lock = threading.RLock()
        self._keyword: KeywordSearch | None = None
        self._profile: IndexProfile | None = None
        self._counted = (-1, 0)
        self._locks: dict[str, FileLock] = {}
        self._views = ViewSet(self)
        self._parts = IndexParts.opened(folder, self.manifest, server)
        self.stores = self._parts.stores
        self.vector_store: NodeStore = self._parts.vector_store
        self.catalog = self._parts.catalog
        self._metadata = MetadataView(self.vector_store, folder / METADATA, self.catalog.version)
        self._vector_rows = VectorRowsView(self.vector_store, self.catalog.version, lambda: self.metadata().numbering)

    @property
    def version(self) -> int:
        """Grows with every change; views and cached answers carry the version they were made from."""
        return self.catalog.version()

    @property
    def chunk_settings(self) -> ChunkSettings:
        """How this index cuts documents."""
        pins = self.manifest
        return ChunkSettings(chunk_size=pins.chunk_size, chunk_overlap=pins.chunk_overlap, leaf_size=pins.leaf_size)

    def count(self) -> int:
        """Return the number of nodes."""
        version = self.version
        known = self._counted
        if known[0] != version:
            known = self._counted = (version, self.vector_store.count())
        return known[1]

    def doc_ids(self) -> list[str]:
        """Return the ids of the documents, in order."""
        return self.catalog.doc_ids()

    def source_text(self, doc_id: str) -> str | None:
        """Return the source text that citations of a document point into, or ``None`` if it is not known."""
        entry = self.catalog.get(doc_id)
        return entry.text if entry and entry.text else None

    @property
    def is_remote(self) -> bool:
        """Whether the nodes are on a server, which then checks filters and finds words, too."""
        return self.stores.is_remote

    @property
    def may_hang(self) -> bool:
        """Whether searches must be given up when their time is over; a call to a server has a limit of its own."""
        return self.is_remote

    def both_sides(self) -> ServerWords | None:
        """Return the server's search by words and meaning, or ``None`` where the nodes are in this process."""
        return index_words(self)

    def keyword(self) -> KeywordSearch:
        """Return the BM25 view of the current version."""
        with self._lock:
            version = self.version
            if self._keyword is None or self._keyword.version != version:
                self._keyword = index_keyword(self, version)
            return self._keyword

    def profile(self) -> IndexProfile:
        """Return the profile of the current version."""
        with self._lock:
            version = self.version
            if self._profile is None or self._profile.version != version:
                self._profile = index_profile(self, version)
            return self._profile

    @property
    def has_prefilter(self) -> bool:
        """A server checks filters itself."""
        return not self.is_remote

    def metadata(self) -> MetadataIndex:
        """Return the metadata prefilter of the current version."""
        return self._metadata.current()

    def candidates(self, filters: MetadataFilters | None, *, known_only: bool = False) -> CandidateSet:
        """Return the ids of the nodes that satisfy filters, exactly; with ``known_only`` a field must be known."""
        return self._metadata.candidates(filters, known_only=known_only)

    def vector_rows(self) -> VectorRows | None:
        """Return the vectors of the current version if they are in memory; else they are read in the background."""
        return None if self.is_remote else self._vector_rows.current(self.count())

    def changing(
        self, *, written: Sequence[BaseNode] = (), removed: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        """Raise the version in this block, after these nodes were written or removed: the prefilter follows at once."""
        return self._metadata.changing(written, removed)

    @property
    def views(self) -> frozenset[View]:
        """The views that a query can use now; leaves and summaries of an index above 2,000 nodes only once built."""
        return ALWAYS_THERE | self._views.usable()

    def hierarchy(self, *, timeout_s: float | None = None) -> HierarchyView:
        """Return the leaves of the current version, building them first where they are missing or old."""
        return self._views.hierarchy(timeout_s)

    def summaries(self, *, timeout_s: float | None = None) -> SummaryView:
        """Return the summaries of the current version; otherwise as :meth:`hierarchy`."""
        return self._views.summaries(timeout_s)

    def build_views(self, progress: Progress | None = None, *, write_summary: SummaryWriter | None = None) -> None:
        """Bring leaves and summaries up to date, however large the index is."""
        with self.exclusive("keyword"):
            revise_words(self, progress)
        self._views.build(progress, write_summary)

    def nodes(self) -> Iterator[BaseNode]:
        """Yield every node of the store."""
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
        """Close the files; a second call does nothing."""
        self._views.close()
        self._metadata.save()
        self._parts.close()

"""One named index: the vector store as the one truth, and the views derived from it."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from agentic_retriever.errors import EmbeddingMismatchError, StoreBusyError
from agentic_retriever.indices.index_parts import IndexParts
from agentic_retriever.indices.keyword_view import index_keyword, index_words, revise_words
from agentic_retriever.indices.manifest import Manifest
from agentic_retriever.indices.prefilter.view import MetadataView
from agentic_retriever.indices.profile_view import index_profile
from agentic_retriever.indices.vector_rows import VectorRowsView
from agentic_retriever.indices.view_set import ViewSet
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
    from agentic_retriever.indices.keyword_search import KeywordSearch
    from agentic_retriever.indices.prefilter.candidates import CandidateSet
    from agentic_retriever.indices.prefilter.index import MetadataIndex
    from agentic_retriever.indices.profile import IndexProfile
    from agentic_retriever.indices.server_words import ServerWords
    from agentic_retriever.indices.stores import StoreServer
    from agentic_retriever.indices.summaries import SummaryView, SummaryWriter
    from agentic_retriever.indices.vector_rows import VectorRows

METADATA = "metadata"
KNOWN_NODES = 100_000
"""Most nodes of an index on a server that are read to learn what it is about."""
_LOCK_PATIENCE_S = 60.0


class Index:
    """A named collection of nodes with several views, each built on first use and again when the index changed.

    Safe to use from many threads; one process at a time holds it, unless its nodes are on a server: then processes of
    this machine share it. Made by :class:`IndexStorage`.

    Attributes:
        folder: Where it lives.
        manifest: Its pins.
        embedding: The embedding model that it was built with.
        stores: Where its collections are.
        vector_store: The chunks with their vectors; a LlamaIndex vector store.
        catalog: Documents, source texts and the version.

    Raises:
        EmbeddingMismatchError: If the embedding model is another one than the index was built with.
        StoreDamagedError: If files are missing or disagree.
        StoreBusyError: If another process holds the index.
    """

    def __init__(self, folder: Path, embedding: EmbeddingModel, *, server: StoreServer | None = None) -> None:
        self.folder = folder
        self.manifest = Manifest.read(folder)
        if embedding.name != self.manifest.embedding:
            raise EmbeddingMismatchError(
                f"index {self.name!r} was built with the embedding model {self.manifest.embedding!r}, the router uses "
                f"{embedding.name!r}; set embedding_model to the first, or build the index again under the second"
            )
        self.embedding = embedding
        self._lock = threading.RLock()
        self._keyword: KeywordSearch | None = None
        self._profile: IndexProfile | None = None
        self._counted = (-1, 0)
        self._locks: dict[str, FileLock] = {}
        self._views = ViewSet(self)
        self._parts = IndexParts.opened(folder, self.manifest, server)
        self.stores = self._parts.stores
        self.vector_store = self._parts.vector_store
        self.catalog = self._parts.catalog
        self._metadata = MetadataView(self.vector_store, folder / METADATA, self.catalog.version)
        self._vector_rows = VectorRowsView(self.vector_store, self.catalog.version, lambda: self.metadata().numbering)

    @property
    def name(self) -> str:
        """Name of the index."""
        return self.manifest.name

    @property
    def description(self) -> str:
        """What the index holds."""
        return self.manifest.description

    @property
    def created(self) -> str:
        """When it was made, which tells it from another index of that name."""
        return self.manifest.created

    @property
    def version(self) -> int:
        """Grows with every change; views and cached answers carry the version they were made from."""
        return self.catalog.version()

    @property
    def chunk_settings(self) -> ChunkSettings:
        """How this index cuts documents."""
        pins = self.manifest
        return ChunkSettings(chunk_size=pins.chunk_size, chunk_overlap=pins.chunk_overlap, leaf_size=pins.leaf_size)

    @property
    def language(self) -> str:
        """The language of most nodes."""
        return self.profile().language

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
        return frozenset({View.CHUNKS, View.KEYWORD}) | self._views.usable()

    def hierarchy(self, *, timeout_s: float | None = None) -> HierarchyView:
        """Return the leaves of the current version, building them first where they are missing or old.

        Args:
            timeout_s: Seconds to wait for that; it goes on in the background when they are over.

        Raises:
            DeadlineExceededError: If they were not ready in time.
            EmbeddingError: If they could not be embedded.
            StoreError: If the index is too large for a query to build them, or the disk failed.
        """
        return self._views.hierarchy(timeout_s)

    def summaries(self, *, timeout_s: float | None = None) -> SummaryView:
        """Return the summaries of the current version; otherwise as :meth:`hierarchy`."""
        return self._views.summaries(timeout_s)

    def build_views(self, progress: Progress | None = None, *, write_summary: SummaryWriter | None = None) -> None:
        """Bring leaves and summaries up to date, however large the index is.

        Args:
            progress: Hears how far it is.
            write_summary: A model that writes the summaries; else they are the most central sentences. Summaries that
                a model wrote stay until their document changes.

        Raises:
            EmbeddingError: If something could not be embedded; what was done stays, and a second run goes on.
            StoreError: If the disk failed.
        """
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
        """Keep other processes from changing a part of an index that they share; an embedded one has none.

        Raises:
            StoreBusyError: If another process is still changing it after a minute.
        """
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

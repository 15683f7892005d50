"""One named index: the vector store as the one truth, and the views derived from it."""

from __future__ import annotations

import logging
import shutil
import threading
from typing import TYPE_CHECKING

import numpy as np
from llama_index.core.schema import MetadataMode

from agentic_retriever.errors import (
    DeadlineExceededError,
    EmbeddingError,
    EmbeddingMismatchError,
    StoreDamagedError,
    StoreError,
)
from agentic_retriever.indices.catalog import CATALOG_FILE, Catalog
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.indices.manifest import Manifest, damaged
from agentic_retriever.indices.metadata_view import MetadataView
from agentic_retriever.indices.profile import IndexProfile, ProfiledNode, make_profile, sample_ids
from agentic_retriever.indices.vector_rows import VectorRowsView
from agentic_retriever.indices.vector_store import QdrantEdgeVectorStore
from agentic_retriever.indices.view_set import ViewSet
from agentic_retriever.ingestion import ChunkSettings
from agentic_retriever.schema import View
from agentic_retriever.text import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.embeddings import EmbeddingModel
    from agentic_retriever.indices.hierarchy import HierarchyView
    from agentic_retriever.indices.ingest import Progress
    from agentic_retriever.indices.metadata import MetadataIndex
    from agentic_retriever.indices.metadata_candidates import CandidateSet
    from agentic_retriever.indices.summaries import SummaryView, SummaryWriter
    from agentic_retriever.indices.vector_rows import VectorRows

logger = logging.getLogger(__name__)

CHUNKS = "chunks"
KEYWORD = "keyword"
METADATA = "metadata"


class Index:
    """A named collection of nodes with several views, each built on first use and again when the index changed.

    Safe to use from many threads; one process at a time holds it. Made by :class:`IndexStorage`.

    Attributes:
        folder: Where it lives.
        manifest: Its pins.
        embedding: The embedding model that it was built with.
        vector_store: The chunks with their vectors; a LlamaIndex vector store.
        catalog: Documents, source texts and the version.

    Raises:
        EmbeddingMismatchError: If the embedding model is another one than the index was built with.
        StoreDamagedError: If files are missing or disagree.
        StoreBusyError: If another process holds the index.
    """

    def __init__(self, folder: Path, embedding: EmbeddingModel) -> None:
        self.folder = folder
        self.manifest = Manifest.read(folder)
        if embedding.name != self.manifest.embedding:
            raise EmbeddingMismatchError(
                f"index {self.name!r} was built with the embedding model {self.manifest.embedding!r}, the router uses "
                f"{embedding.name!r}; set embedding_model to the first, or build the index again under the second"
            )
        self.embedding = embedding
        self._lock = threading.RLock()
        self._keyword: KeywordIndex | None = None
        self._profile: IndexProfile | None = None
        self._counted = (-1, 0)
        self._views = ViewSet(self)
        store_is_new = not (folder / CHUNKS).exists()
        catalog_is_new = not (folder / CATALOG_FILE).exists()
        if catalog_is_new and not store_is_new:
            raise damaged(self.name, f"{folder / CATALOG_FILE} is missing")
        # The store's lock is what keeps a second process out, so it is taken before anything is written.
        self.vector_store = QdrantEdgeVectorStore(folder, collection_name=CHUNKS, dimension=self.manifest.dimension)
        try:
            self.catalog = Catalog(folder, self.name)
            try:
                self._check_counts(store_is_new=store_is_new)
            except BaseException:
                self.catalog.close()
                raise
        except BaseException:
            self.vector_store.close()
            raise
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

    def source_text(self, doc_id: str) -> str | None:
        """Return the source text that citations of a document point into, or ``None`` if it is not known."""
        entry = self.catalog.get(doc_id)
        return entry.text if entry and entry.text else None

    def keyword(self) -> KeywordIndex:
        """Return the BM25 view of the current version."""
        with self._lock:
            version = self.version
            if self._keyword is None or self._keyword.version != version:
                self._keyword = self._load_keyword(version)
            return self._keyword

    def profile(self) -> IndexProfile:
        """Return the profile of the current version."""
        with self._lock:
            version = self.version
            if self._profile is None or self._profile.version != version:
                saved = IndexProfile.load(self.folder, version=version, description=self.description)
                self._profile = saved or self._make_profile(version)
            return self._profile

    def metadata(self) -> MetadataIndex:
        """Return the metadata prefilter of the current version."""
        return self._metadata.current()

    def candidates(self, filters: MetadataFilters | None, *, known_only: bool = False) -> CandidateSet:
        """Return the ids of the nodes that satisfy filters, exactly; with ``known_only`` a field must be known."""
        return self._metadata.candidates(filters, known_only=known_only)

    def vector_rows(self) -> VectorRows | None:
        """Return the vectors of the current version if they are in memory; else they are read in the background."""
        return self._vector_rows.current(self.count())

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
        self._views.build(progress, write_summary)

    def nodes(self) -> Iterator[BaseNode]:
        """Yield every node of the store."""
        yield from self.vector_store.iter_nodes()

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self._views.close()
        self._metadata.save()
        self.catalog.close()
        self.vector_store.close()

    def _check_counts(self, *, store_is_new: bool) -> None:
        counts, stored = self.catalog.counts(), self.vector_store.count()
        if store_is_new and counts.finished_nodes:
            raise damaged(self.name, f"its {counts.finished_nodes:,} nodes are gone from {self.folder / CHUNKS}")
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

    def _load_keyword(self, version: int) -> KeywordIndex:
        tokenizer = Tokenizer(language=self.language)
        folder = self.folder / KEYWORD
        try:
            saved = KeywordIndex.load(folder, tokenizer=tokenizer, version=version)
        except StoreDamagedError as err:
            logger.warning("%s; building the keyword index again", err)
            saved = None
        if saved is not None:
            return saved
        items = ((node.node_id, embedded_text(node)) for node in self.nodes())
        built = KeywordIndex.build(items, tokenizer=tokenizer, version=version)
        self._save(lambda: built.save(folder), "keyword index")
        return built

    def _make_profile(self, version: int) -> IndexProfile:
        nodes = [ProfiledNode(node.node_id, embedded_text(node), node.metadata) for node in self.nodes()]
        chosen = sample_ids([node.node_id for node in nodes])
        sample = self.vector_store.vectors(chosen)[1] if chosen else np.empty((0, self.manifest.dimension))
        described = self._embedded_description()
        profile = make_profile(
            nodes,
            np.asarray(sample, dtype=np.float32),
            name=self.name,
            description=self.description,
            description_vector=np.empty(0, dtype=np.float32) if described is None else described,
            version=version,
        )
        if described is not None or not self.description:
            self._save(lambda: profile.save(self.folder), "profile")
        return profile

    def _embedded_description(self) -> npt.NDArray[np.float32] | None:
        """Embed the description; without it the rest of the profile still tells the indexes apart."""
        if not self.description:
            return None
        try:
            return self.embedding.embed_query(self.description)
        except (EmbeddingError, DeadlineExceededError) as err:
            logger.warning("index %r: its description could not be embedded: %s", self.name, err)
            return None

    def _save(self, save: Callable[[], None], what: str) -> None:
        """Save a derived view; without it the index works just as well, only the next start is slower."""
        try:
            save()
        except StoreError as err:
            logger.warning(
                "index %r: the %s could not be saved (%s); it is built again next time", self.name, what, err
            )


def embedded_text(node: BaseNode) -> str:
    """Return what is embedded and searched of a node: its title, section and text."""
    return node.get_content(metadata_mode=MetadataMode.EMBED)


def delete_index_folder(folder: Path) -> None:
    """Remove everything of an index.

    Raises:
        StoreError: If a file cannot be removed.
    """
    try:
        shutil.rmtree(folder)
    except OSError as err:
        raise StoreError(f"cannot remove {folder}: {err.strerror or err}; check the permissions") from err

"""One index of the data directory: its stored nodes, and the views derived from them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import MetadataFilters

from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.indices.derived import (
    HierarchyView,
    Progress,
    SummaryView,
    SummaryWriter,
    hierarchy_collection,
    summary_collection,
    summary_derivation,
)
from agentic_retriever.indices.index import ALWAYS_THERE, Index
from agentic_retriever.indices.keyword import KeywordSearch, keyword_view, revise_words, server_words
from agentic_retriever.indices.prefilter import CandidateSet, MetadataIndex, MetadataView, VectorRows, VectorRowsView
from agentic_retriever.indices.profile import IndexProfile, profile_view
from agentic_retriever.indices.stored_nodes import StoredNodes, StoreServer
from agentic_retriever.schema import View
from agentic_retriever.stores.node_store import NodeStore

if TYPE_CHECKING:
    from agentic_retriever.stores.server import ServerWords  # its package takes a second to load

METADATA = "metadata"


class StoredIndex(StoredNodes, Index):
    """A named collection of nodes with several views, each built on first use and again when the index changed.

    Safe to use from many threads; one process at a time holds it, unless its nodes are on a server: then processes of
    this machine share it. Made by :class:`IndexStorage`.
    """

    folder: Path
    vector_store: NodeStore

    def __init__(self, folder: Path, embedding: EmbeddingModel, *, server: StoreServer | None = None) -> None:
        super().__init__(folder, embedding, server)
        version = self.catalog.version
        self._profile = profile_view(self)
        self._keyword = keyword_view(self, lambda: self.language)
        self._metadata = MetadataView(self.vector_store, folder / METADATA, version)
        self._vector_rows = VectorRowsView(self.vector_store, version, lambda: self.metadata().numbering)
        self._leaves = hierarchy_collection(self)
        self._summaries = summary_collection(self)

    @property
    def views(self) -> frozenset[View]:
        """The views that a query can use now; leaves and summaries of an index above 2,000 nodes only once built."""
        leaves = {View.HIERARCHY} if self._leaves.is_usable() else set()
        return ALWAYS_THERE | leaves | ({View.SUMMARY} if self._summaries.is_usable() else set())

    @property
    def may_hang(self) -> bool:
        """Whether searches must be given up when their time is over; a call to a server has a limit of its own."""
        return self.is_remote

    @property
    def has_prefilter(self) -> bool:
        """A server checks filters itself."""
        return not self.is_remote

    def keyword(self) -> KeywordSearch:
        return self._keyword.current()

    def both_sides(self) -> ServerWords | None:
        return server_words(self)

    def profile(self) -> IndexProfile:
        return self._profile.current()

    def metadata(self) -> MetadataIndex:
        return self._metadata.current()

    def candidates(self, filters: MetadataFilters | None, *, known_only: bool = False) -> CandidateSet:
        """Return the ids of the nodes that satisfy filters, exactly; with ``known_only`` a field must be known."""
        return self._metadata.candidates(filters, known_only=known_only)

    def vector_rows(self) -> VectorRows | None:
        """Return the vectors of the current version if they are in memory; else they are read in the background."""
        return None if self.is_remote else self._vector_rows.current(self.count())

    def hierarchy(self, *, timeout_s: float | None = None) -> HierarchyView:
        return self._leaves.current(timeout_s)

    def summaries(self, *, timeout_s: float | None = None) -> SummaryView:
        return self._summaries.current(timeout_s)

    def build_views(self, progress: Progress | None = None, *, write_summary: SummaryWriter | None = None) -> None:
        """Bring leaves and summaries up to date, however large the index is."""
        with self.exclusive("keyword"):
            revise_words(self, progress)
        self._leaves.refresh(progress)
        derivation = None if write_summary is None else summary_derivation(write_summary)
        self._summaries.refresh(progress, derivation=derivation)

    def changing(
        self, *, written: Sequence[BaseNode] = (), removed: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        """Raise the version in this block, after these nodes were written or removed: the prefilter follows at once."""
        return self._metadata.changing(written, removed)

    def close(self) -> None:
        self._leaves.close()
        self._summaries.close()
        self._metadata.save()
        super().close()

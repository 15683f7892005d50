"""What an index is to all who search it or route to it, wherever its nodes are; and one of a data directory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters

from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.errors import StoreError
from agentic_retriever.indices.derived import (
    HierarchyView,
    Progress,
    SummaryView,
    SummaryWriter,
    hierarchy_collection,
    summary_collection,
    summary_derivation,
)
from agentic_retriever.indices.keyword import KeywordSearch, keyword_view, revise_words, server_words
from agentic_retriever.indices.prefilter.index import (
    CandidateSet,
    MetadataIndex,
    MetadataView,
    VectorRows,
    VectorRowsView,
)
from agentic_retriever.indices.profile import IndexProfile, profile_view
from agentic_retriever.indices.stored_nodes import StoredNodes, StoreServer
from agentic_retriever.schema import Strategy, View
from agentic_retriever.stores.node_store import NodeStore

if TYPE_CHECKING:
    from agentic_retriever.stores.server import ServerWords  # its package takes a second to load

ALWAYS_THERE = frozenset({View.CHUNKS, View.KEYWORD})  # the views that any index has or builds when first asked


class Index(ABC):
    """A named collection of nodes that questions can be routed to and searched in.

    A subclass says what it has; what it does not say has the default of an index that keeps vectors and words only.
    """

    #: Whether it belongs to somebody else: it has no files, documents or derived views of its own.
    is_attached: ClassVar[bool] = False
    #: Whether it can only be asked in words, by :meth:`ask`.
    only_asked: ClassVar[bool] = False

    name: str
    description: str
    created: str = ""  # what tells it from another index of that name, before or after it
    embedding: EmbeddingModel  # that questions to it are embedded with
    vector_store: BasePydanticVectorStore
    folder: Path | None = None  # where its files are, if it has any
    #: Whether somebody else's code may take any time, so that searches must be given up when theirs is over.
    may_hang: bool = False
    #: Whether it knows what satisfies filters before anything is searched; a server checks them itself.
    has_prefilter: bool = False

    @property
    @abstractmethod
    def version(self) -> int:
        """Grows with every change."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of nodes."""

    @abstractmethod
    def keyword(self) -> KeywordSearch:
        """Return the search by words in the current version."""

    @abstractmethod
    def profile(self) -> IndexProfile:
        """Return the profile of the current version, by which questions are routed."""

    @property
    def language(self) -> str:
        return self.profile().language

    def search_profile(self) -> IndexProfile:
        """Return the profile with what cosines of searches are worth."""
        return self.profile()

    def doc_ids(self) -> list[str]:
        return []

    def source_text(self, doc_id: str) -> str | None:  # noqa: ARG002 - for those that know
        """Return the source text that citations of a document point into, or ``None`` if it is not known."""
        return None

    def nodes(self) -> Iterable[BaseNode]:
        return self.vector_store.get_nodes()

    def known_nodes(self) -> Iterable[BaseNode]:
        """Go through all nodes, or through a fair sample of very many."""
        return self.nodes()

    # What strategies may use.

    @property
    def views(self) -> frozenset[View]:
        return ALWAYS_THERE

    def serves(self, strategy: Strategy, needs: Collection[View]) -> bool:  # noqa: ARG002 - for those that serve few
        """Tell whether a strategy that needs these views can be used now."""
        return ALWAYS_THERE.union(self.views).issuperset(needs)

    def ask(self, query: str, depth: int) -> Sequence[NodeWithScore]:  # noqa: ARG002 - for those that can
        """Ask for nodes in words, about so many."""
        raise StoreError(f"index {self.name!r} cannot be asked in words")

    # What makes filters fast.

    def metadata(self) -> MetadataIndex:
        raise StoreError(f"index {self.name!r} has no prefilter")

    def candidates(self, filters: MetadataFilters | None) -> AbstractSet[str]:  # noqa: ARG002 - for those that know
        """Return the ids of the nodes that satisfy filters, exactly; without a prefilter, none."""
        return frozenset()

    def vector_rows(self) -> VectorRows | None:
        """Return the vectors of the current version, or ``None`` while they are not in memory."""
        return None

    def both_sides(self) -> ServerWords | None:
        """Return the search by meaning and words in one request, where a server offers it."""
        return None

    # What is derived from the nodes.

    def hierarchy(self, *, timeout_s: float | None = None) -> HierarchyView:  # noqa: ARG002 - for those that have it
        """Return the leaves of the current version, built within so many seconds if need be."""
        raise StoreError(f"index {self.name!r} keeps no leaves; use an index of this package for this strategy")

    def summaries(self, *, timeout_s: float | None = None) -> SummaryView:  # noqa: ARG002 - for those that have them
        """Return the summaries of the current version, built within so many seconds if need be."""
        raise StoreError(f"index {self.name!r} keeps no summaries; use an index of this package for this strategy")

    def build_views(  # noqa: B027 - a default
        self, progress: Progress | None = None, *, write_summary: SummaryWriter | None = None
    ) -> None:
        """Bring leaves and summaries up to date; an index without them has nothing to do."""

    # Changes that happen elsewhere.

    def catch_up(self, timeout_s: float) -> str | None:  # noqa: ARG002 - for those that change elsewhere
        """Take notice of changes within so many seconds, and return why that was not possible."""
        return None

    def refresh(self) -> None:  # noqa: B027 - a default
        """Have it read anew by the next question, where changes cannot be seen."""


class StoredIndex(StoredNodes, Index):
    """A named collection of nodes with several views, each built on first use and again when the index changed.

    Safe to use from many threads; one process at a time holds it, unless its nodes are on a server: then processes of
    this machine share it.
    """

    folder: Path
    vector_store: NodeStore

    def __init__(self, folder: Path, embedding: EmbeddingModel, *, server: StoreServer | None = None) -> None:
        super().__init__(folder, embedding, server)
        self.may_hang = self.is_remote
        self.has_prefilter = not self.is_remote
        version = self.catalog.version
        self._profile = profile_view(self)
        self._keyword = keyword_view(self, lambda: self.language)
        self._metadata = MetadataView(self.vector_store, folder / "metadata", version)
        self._vector_rows = VectorRowsView(self.vector_store, version, lambda: self.metadata().numbering)
        self._leaves = hierarchy_collection(self)
        self._summaries = summary_collection(self)

    @property
    def views(self) -> frozenset[View]:
        leaves = {View.HIERARCHY} if self._leaves.is_usable() else set()
        return ALWAYS_THERE | leaves | ({View.SUMMARY} if self._summaries.is_usable() else set())

    def keyword(self) -> KeywordSearch:
        return self._keyword.current()

    def both_sides(self) -> ServerWords | None:
        return server_words(self)

    def profile(self) -> IndexProfile:
        return self._profile.current()

    def metadata(self) -> MetadataIndex:
        return self._metadata.current()

    def candidates(self, filters: MetadataFilters | None, *, known_only: bool = False) -> CandidateSet:
        return self._metadata.candidates(filters, known_only=known_only)

    def vector_rows(self) -> VectorRows | None:
        return None if self.is_remote else self._vector_rows.current(self.count())

    def hierarchy(self, *, timeout_s: float | None = None) -> HierarchyView:
        return self._leaves.current(timeout_s)

    def summaries(self, *, timeout_s: float | None = None) -> SummaryView:
        return self._summaries.current(timeout_s)

    def build_views(self, progress: Progress | None = None, *, write_summary: SummaryWriter | None = None) -> None:
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

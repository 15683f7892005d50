"""What an index is to everybody who searches it or routes to it: one class with defaults, wherever the nodes are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters

from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.errors import StoreError
from agentic_retriever.indices.derived import HierarchyView, Progress, SummaryView, SummaryWriter
from agentic_retriever.indices.keyword import KeywordSearch
from agentic_retriever.indices.prefilter import MetadataIndex, VectorRows
from agentic_retriever.indices.profile import IndexProfile
from agentic_retriever.schema import Strategy, View

if TYPE_CHECKING:
    from agentic_retriever.stores.server import ServerWords  # its package takes a second to load

ALWAYS_THERE = frozenset({View.CHUNKS, View.KEYWORD})
"""The views that any index has or builds when first asked."""


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
        """The language of most nodes."""
        return self.profile().language

    def search_profile(self) -> IndexProfile | None:
        """Return the profile with what cosines of searches are worth, or ``None`` where nobody knows."""
        return self.profile()

    def doc_ids(self) -> list[str]:
        """Return the ids of the source documents, in order, as far as they are known."""
        return []

    def source_text(self, doc_id: str) -> str | None:  # noqa: ARG002 - for those that know
        """Return the source text that citations of a document point into, or ``None`` if it is not known."""
        return None

    def nodes(self) -> Iterable[BaseNode]:
        """Go through every node."""
        return self.vector_store.get_nodes()

    def known_nodes(self) -> Iterable[BaseNode]:
        """Go through all nodes, or through a fair sample of very many."""
        return self.nodes()

    # What strategies may use.

    @property
    def views(self) -> frozenset[View]:
        """The views that strategies can use now."""
        return ALWAYS_THERE

    def serves(self, strategy: Strategy, needs: Collection[View]) -> bool:  # noqa: ARG002 - for those that serve few
        """Tell whether a strategy that needs these views can be used now."""
        return ALWAYS_THERE.union(self.views).issuperset(needs)

    @property
    def may_hang(self) -> bool:
        """Whether somebody else's code may take any time, so that searches must be given up when theirs is over."""
        return False

    def ask(self, query: str, depth: int) -> Sequence[NodeWithScore]:  # noqa: ARG002 - for those that can
        """Ask for nodes in words, about so many."""
        raise StoreError(f"index {self.name!r} cannot be asked in words")

    # What makes filters fast.

    @property
    def has_prefilter(self) -> bool:
        """Whether it knows what satisfies filters before anything is searched."""
        return False

    def metadata(self) -> MetadataIndex:
        """Return the prefilter of the current version."""
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

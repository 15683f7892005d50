"""What a search needs of an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from llama_index.core.schema import NodeWithScore
    from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters

    from agentic_retriever.indices.keyword import KeywordSearch
    from agentic_retriever.indices.prefilter import CandidateSet, MetadataIndex
    from agentic_retriever.indices.profile import IndexProfile
    from agentic_retriever.indices.vector_rows import VectorRows
    from agentic_retriever.schema import Strategy, View
    from agentic_retriever.stores.points import Hit


class QueryEmbedder(Protocol):
    """Turns a question into a vector."""

    def embed_query(self, text: str, *, timeout_s: float | None = None) -> Iterable[float]:
        """Embed a question within ``timeout_s`` seconds."""


class SearchableIndex(Protocol):
    """All that a retriever needs of an index."""

    @property
    def name(self) -> str:
        """Name of the index."""

    @property
    def description(self) -> str:
        """What the index holds."""

    @property
    def version(self) -> int:
        """Grows with every change."""

    @property
    def vector_store(self) -> BasePydanticVectorStore:
        """The nodes and their vectors."""

    @property
    def embedding(self) -> QueryEmbedder:
        """The embedding model that the vectors come from."""

    def keyword(self) -> KeywordSearch:
        """Return the BM25 view of the current version."""

    def count(self) -> int:
        """Return the number of nodes."""


@runtime_checkable
class HasViews(Protocol):
    """An index that tells which views it has, beyond those that every index has."""

    @property
    def views(self) -> Collection[View]:
        """The views that strategies may use."""


@runtime_checkable
class HasMetadata(Protocol):
    """An index with a metadata prefilter, which tells what satisfies filters before anything is searched."""

    def metadata(self) -> MetadataIndex:
        """Return the prefilter of the current version."""

    def candidates(self, filters: MetadataFilters | None) -> CandidateSet:
        """Return the ids of the nodes that satisfy filters, exactly."""


@runtime_checkable
class HasRemoteNodes(Protocol):
    """An index whose nodes may be on a server."""

    @property
    def is_remote(self) -> bool:
        """Whether they are; the server then checks filters, too."""


class BothSides(Protocol):
    """A server that searches by meaning and by words in one request."""

    def search_both(
        self, vector: Sequence[float], text: str, top_k: int, filters: MetadataFilters | None = None
    ) -> tuple[Sequence[Hit], Sequence[Hit]]:
        """Return the best by cosine, and the best by BM25."""

    def search_fused(
        self, vector: Sequence[float], text: str, top_k: int, *, depth: int, alpha: float, rrf_k: int,
        filters: MetadataFilters | None = None,
    ) -> Sequence[Hit] | None:  # fmt: skip
        """Return the best of both by weighted reciprocal ranks, or ``None`` where the server cannot do it."""


@runtime_checkable
class HasServerHybrid(Protocol):
    """An index that may be on such a server."""

    def both_sides(self) -> BothSides | None:
        """Return the server's search, or ``None``."""


@runtime_checkable
class HasVectorRows(HasMetadata, Protocol):
    """An index that may have its vectors in memory."""

    def vector_rows(self) -> VectorRows | None:
        """Return the vectors of the current version, or ``None`` while they are not in memory."""


@runtime_checkable
class HasProfile(Protocol):
    """An index that knows what its content is like."""

    def profile(self) -> IndexProfile:
        """Return the profile of the current version."""


@runtime_checkable
class HasSearchProfile(Protocol):
    """An index whose own embedding model is another one than that of its profile's sample."""

    def search_profile(self) -> IndexProfile:
        """Return the profile with the background of the cosines that searches give."""


@runtime_checkable
class ServesSome(Protocol):
    """An index that cannot serve every strategy."""

    def serves(self, strategy: Strategy, needs: Collection[View]) -> bool:
        """Tell whether it can serve a strategy that needs these views."""


@runtime_checkable
class MayHang(Protocol):
    """An index behind which somebody else's code may take any time."""

    @property
    def may_hang(self) -> bool:
        """Whether searches must be given up when their time is over."""


@runtime_checkable
class AnswersItself(Protocol):
    """An index that is asked in words and tells nothing else."""

    def ask(self, query: str, depth: int) -> Sequence[NodeWithScore]:
        """Ask for nodes, about so many."""


@runtime_checkable
class HasFolder(Protocol):
    """An index with a folder of its own, beside whose views a fitted fusion may lie."""

    @property
    def folder(self) -> Path:
        """The folder."""


def prefilter_of(index: SearchableIndex) -> HasMetadata | None:
    """Return an index as one with a prefilter, if it has one; nodes on a server have none, for it checks filters."""
    if isinstance(index, HasRemoteNodes) and index.is_remote:
        return None
    return index if isinstance(index, HasMetadata) else None

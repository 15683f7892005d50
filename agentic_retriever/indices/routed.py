"""What a router needs of an index, wherever it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from llama_index.core.vector_stores.types import BasePydanticVectorStore

    from agentic_retriever.embeddings import EmbeddingModel
    from agentic_retriever.indices.keyword_search import KeywordSearch
    from agentic_retriever.indices.profile import IndexProfile
    from agentic_retriever.schema import View


class RoutedIndex(Protocol):
    """An index that questions can be routed to: a stored one, or one of LlamaIndex that was registered."""

    @property
    def name(self) -> str:
        """Name of the index."""

    @property
    def description(self) -> str:
        """What it holds."""

    @property
    def created(self) -> str:
        """What tells it from another index of that name, before or after it."""

    @property
    def version(self) -> int:
        """Grows with every change."""

    @property
    def language(self) -> str:
        """The language of most nodes."""

    @property
    def views(self) -> frozenset[View]:
        """The views that strategies can use now."""

    @property
    def vector_store(self) -> BasePydanticVectorStore:
        """The nodes and their vectors."""

    @property
    def embedding(self) -> EmbeddingModel:
        """The model that questions to it are embedded with."""

    def keyword(self) -> KeywordSearch:
        """Return the BM25 view of the current version."""

    def count(self) -> int:
        """Return the number of nodes."""

    def profile(self) -> IndexProfile:
        """Return the profile of the current version."""

    def doc_ids(self) -> list[str]:
        """Return the ids of the source documents, in order."""

    def source_text(self, doc_id: str) -> str | None:
        """Return the source text that citations of a document point into, or ``None`` if it is not known."""

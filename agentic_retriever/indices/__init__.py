"""Indexes: the vector store as the one truth, the views derived from it, and the directory that holds them."""

from agentic_retriever.indices.derived import Progress
from agentic_retriever.indices.index import Index, IndexStorage, StoredIndex
from agentic_retriever.indices.ingest import Indexer, IngestReport
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.indices.profile import IndexProfile
from agentic_retriever.stores.edge import QdrantEdgeVectorStore
from agentic_retriever.stores.points import embedded_text, searched_text

__all__ = [
    "Index", "IndexProfile", "IndexStorage", "Indexer", "IngestReport", "KeywordIndex", "Progress",
    "QdrantEdgeVectorStore", "StoredIndex", "embedded_text", "searched_text",
]  # fmt: skip

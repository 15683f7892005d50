"""Indexes: the vector store as the one truth, the views derived from it, and the directory that holds them."""

from agentic_retriever.indices.index import Index
from agentic_retriever.indices.ingest import Indexer, Progress
from agentic_retriever.indices.ingest_report import IngestReport
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.indices.keyword_search import KeywordSearch
from agentic_retriever.indices.manifest import Manifest
from agentic_retriever.indices.node_text import embedded_text
from agentic_retriever.indices.profile import IndexProfile
from agentic_retriever.indices.routed import RoutedIndex
from agentic_retriever.indices.storage import IndexStorage
from agentic_retriever.indices.vector_store import QdrantEdgeVectorStore

__all__ = [
    "Index",
    "IndexProfile",
    "IndexStorage",
    "Indexer",
    "IngestReport",
    "KeywordIndex",
    "KeywordSearch",
    "Manifest",
    "Progress",
    "QdrantEdgeVectorStore",
    "RoutedIndex",
    "embedded_text",
]

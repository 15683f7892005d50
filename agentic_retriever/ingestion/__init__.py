"""Files, documents and nodes to text nodes that know their place in the source. Nothing is embedded or stored here."""

from __future__ import annotations

from agentic_retriever.ingestion.chunking import CHUNKING_VERSION, EMBEDDED_KEYS, ChunkSettings, chunk_document
from agentic_retriever.ingestion.documents import PageSpan, SkippedSource, SourceDocument
from agentic_retriever.ingestion.files import MAX_SOURCE_BYTES
from agentic_retriever.ingestion.hierarchy import leaves_of
from agentic_retriever.ingestion.llama_inputs import from_llama_documents, nodes_as_they_are
from agentic_retriever.ingestion.metadata import RESERVED_KEYS
from agentic_retriever.ingestion.readers import SUPPORTED_SUFFIXES, discover, read_source
from agentic_retriever.ingestion.tokens import count_tokens

__all__ = [
    "CHUNKING_VERSION",
    "EMBEDDED_KEYS",
    "MAX_SOURCE_BYTES",
    "RESERVED_KEYS",
    "SUPPORTED_SUFFIXES",
    "ChunkSettings",
    "PageSpan",
    "SkippedSource",
    "SourceDocument",
    "chunk_document",
    "count_tokens",
    "discover",
    "from_llama_documents",
    "leaves_of",
    "nodes_as_they_are",
    "read_source",
]

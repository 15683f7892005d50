"""Files, documents and nodes to text nodes that know their place in the source. Nothing is embedded or stored here."""

from __future__ import annotations

from agentic_retriever.ingestion.chunking import (
    CHUNKING_VERSION,
    EMBEDDED_KEYS,
    ChunkSettings,
    chunk_document,
    count_tokens,
    leaves_of,
)
from agentic_retriever.ingestion.documents import (
    MAX_SOURCE_BYTES,
    RESERVED_KEYS,
    PageSpan,
    SkippedSource,
    SourceDocument,
    from_llama_documents,
    nodes_as_they_are,
)
from agentic_retriever.ingestion.readers import SUPPORTED_SUFFIXES, discover, read_source

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

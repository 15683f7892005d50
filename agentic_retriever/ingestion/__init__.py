"""Files, documents and nodes to text nodes that know their place in the source. Nothing is embedded or stored here."""

from agentic_retriever.ingestion.chunking import CHUNKING_VERSION, ChunkSettings, chunk_document
from agentic_retriever.ingestion.documents import SkippedSource, SourceDocument, from_llama_documents, nodes_as_they_are
from agentic_retriever.ingestion.readers import BoundedReader, digests_of_alike, discover, read_source

__all__ = [
    "CHUNKING_VERSION", "BoundedReader", "ChunkSettings", "SkippedSource", "SourceDocument", "chunk_document",
    "digests_of_alike", "discover", "from_llama_documents", "nodes_as_they_are", "read_source",
]  # fmt: skip

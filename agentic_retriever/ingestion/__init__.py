"""Files, documents and nodes to text nodes that know their place; ``chunking``, which loads LlamaIndex, is left out."""

from agentic_retriever.ingestion.documents import SkippedSource, SourceDocument, from_llama_documents, nodes_as_they_are
from agentic_retriever.ingestion.readers import BoundedReader, digests_of_alike, discover, read_source

__all__ = [
    "BoundedReader", "SkippedSource", "SourceDocument", "digests_of_alike", "discover", "from_llama_documents",
    "nodes_as_they_are", "read_source",
]  # fmt: skip

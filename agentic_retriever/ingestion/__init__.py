"""Files, documents and nodes to text nodes that know their place in the source. Nothing is embedded or stored here.

``chunking`` is imported by its own name: it loads LlamaIndex, which the process that reads files starts without.
"""

from agentic_retriever.ingestion.documents import SkippedSource, SourceDocument, from_llama_documents, nodes_as_they_are
from agentic_retriever.ingestion.readers import BoundedReader, digests_of_alike, discover, read_source

__all__ = [
    "BoundedReader", "SkippedSource", "SourceDocument", "digests_of_alike", "discover", "from_llama_documents",
    "nodes_as_they_are", "read_source",
]  # fmt: skip

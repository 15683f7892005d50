"""Embedding models by name, with batches, a deadline and caches."""

from agentic_retriever.embeddings.local import LocalEmbedding
from agentic_retriever.embeddings.model import (
    DiskVectorCache,
    EmbeddingModel,
    PackedVectors,
    VectorSource,
    query_hash,
    text_hash,
)
from agentic_retriever.embeddings.resolve import embedding_name, ollama_models, resolve_embedding

__all__ = [
    "DiskVectorCache", "EmbeddingModel", "LocalEmbedding", "PackedVectors", "VectorSource", "embedding_name",
    "ollama_models", "query_hash", "resolve_embedding", "text_hash",
]  # fmt: skip

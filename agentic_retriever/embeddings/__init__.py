"""Embedding models by name, with batches, a deadline and caches."""

from agentic_retriever.embeddings.model import (
    DiskVectorCache,
    EmbeddingModel,
    PackedVectors,
    VectorCache,
    VectorSource,
    text_hash,
)
from agentic_retriever.embeddings.resolve import (
    KnownQueryEmbedding,
    LocalE5Embedding,
    embedding_name,
    ollama_models,
    resolve_embedding,
)

__all__ = [
    "DiskVectorCache",
    "EmbeddingModel",
    "KnownQueryEmbedding",
    "LocalE5Embedding",
    "PackedVectors",
    "VectorCache",
    "VectorSource",
    "embedding_name",
    "ollama_models",
    "resolve_embedding",
    "text_hash",
]

"""Write the vectors that ship with the sample corpus; run it when the corpus or the chunking has changed.

Usage: python scripts/pack_sample_vectors.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from agentic_retriever.embeddings import (
    DiskVectorCache,
    EmbeddingModel,
    LocalEmbedding,
    PackedVectors,
    embedding_name,
    text_hash,
)
from agentic_retriever.indices import Indexer, IndexStorage, QdrantEdgeVectorStore, embedded_text
from agentic_retriever.indices.stored_nodes import CHUNKS, LEAVES, SUMMARIES
from agentic_retriever.ingestion.chunking import ChunkSettings
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS


def main() -> None:
    """Index the sample with the local model and pack the vectors of its chunks, leaves and summaries."""
    base = LocalEmbedding()
    # What is packed already is not computed again.
    packed = [PackedVectors(VECTORS)] if VECTORS.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        disk = DiskVectorCache(Path(folder) / "vectors.sqlite")
        embedding = EmbeddingModel(base, name=embedding_name(base), disk=disk, packed=packed)
        storage = IndexStorage(folder)
        texts: list[str] = []
        for sample in SAMPLE_INDEXES:
            index = storage.create(sample.name, embedding, description=sample.description, chunks=ChunkSettings())
            report = Indexer(index).add_path(sample.folder)
            sys.stdout.write(f"{sample.name}: {report.nodes} nodes, {report.embedded} computed\n")
            index.build_views()
            for collection in (CHUNKS, LEAVES, SUMMARIES):
                with QdrantEdgeVectorStore(index.folder, collection_name=collection) as store:
                    texts += [embedded_text(node) for node in store.iter_nodes()]
        vectors, _ = embedding.embed_passages(texts)
        storage.close()
        embedding.close()
    PackedVectors.write(VECTORS, embedding.name, dict(zip(map(text_hash, texts), vectors, strict=True)))
    sys.stdout.write(f"{VECTORS}: {len(set(texts))} vectors, {VECTORS.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()

"""How fast nodes with ready vectors are stored, beside Qdrant's local mode on disk."""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.data import BATCH, DIMENSION, node_batches
from benchmarks.harness import Row, Unit, no_garbage_collection

if TYPE_CHECKING:
    from llama_index.core.vector_stores.types import BasePydanticVectorStore

    from benchmarks.harness import Options

NODES = 20_000
PEER_NODES = 1_000  # it stores about 200 a second
_SEED = 23


def run(options: Options) -> list[Row]:
    """Measure nodes per second of ``add``."""
    from llama_index.vector_stores.qdrant import QdrantVectorStore
    from qdrant_client import QdrantClient

    from agentic_retriever.indices import QdrantEdgeVectorStore

    count, peer_count = options.sized(NODES), options.sized(PEER_NODES)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the peer warns of its own slowness
        with QdrantEdgeVectorStore(Path(folder) / "ours", collection_name="ours") as ours:
            rate = _nodes_per_s(ours, count)
        client = QdrantClient(path=str(Path(folder) / "peer"))
        peer_rate = _nodes_per_s(QdrantVectorStore(client=client, collection_name="peer"), peer_count)
        client.close()
    return [
        Row(
            name="ingest: add with ready vectors",
            unit=Unit.NODES_PER_S,
            ours=rate,
            peer="QdrantVectorStore, local, disk",
            peer_value=peer_rate,
            note=f"{DIMENSION} dimensions, {BATCH:,} nodes a call; {count:,} nodes, peer {peer_count:,}",
        )
    ]


def _nodes_per_s(store: BasePydanticVectorStore, count: int) -> float:
    taken = 0.0
    for batch in node_batches(count, seed=_SEED):
        with no_garbage_collection():
            start = time.perf_counter()
            store.add(batch)
            taken += time.perf_counter() - start
    return count / taken

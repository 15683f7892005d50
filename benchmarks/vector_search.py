"""Search among stored vectors, plain and filtered, beside Qdrant's local mode."""

from __future__ import annotations

import tempfile
import time
import warnings
from typing import TYPE_CHECKING

import numpy as np

from agentic_retriever.indices.prefilter.index import MIN_NODES
from benchmarks.data import DIMENSION, node_batches, three_clause_filters, unit_vectors
from benchmarks.harness import Row, Timing, measure, say, timed_row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters, VectorStoreQuery
    from numpy.typing import NDArray

    from benchmarks.harness import Options

NODES = 50_000
TOP_K = 10
RUNS = 200
WARM_UP = 20
PEER_RUNS = 30
PEER_FILTERED_RUNS = 8  # each takes more than a second
PEER = "QdrantVectorStore, local, memory"
_SEED = 11


def run(options: Options) -> list[Row]:
    """Measure top-10 search without and with a filter of three clauses."""
    from llama_index.vector_stores.qdrant import QdrantVectorStore
    from qdrant_client import QdrantClient

    from agentic_retriever.indices import QdrantEdgeVectorStore

    count = options.sized(NODES)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the peer warns of its own slowness
        client = QdrantClient(":memory:")
        peer = QdrantVectorStore(client=client, collection_name="peer")
        with QdrantEdgeVectorStore(folder, collection_name="ours") as ours:
            _load((ours, peer), count)
            rows = [
                _compare("vector_search: top 10", ours, peer, _queries(None), count, target_ms=20, peer_runs=PEER_RUNS),
                _compare(
                    "vector_search: top 10, filter of 3 clauses", ours, peer,
                    _queries(three_clause_filters(RUNS, seed=_SEED)), count,
                    target_ms=2, peer_runs=PEER_FILTERED_RUNS,
                ),
            ]  # fmt: skip
            rows.append(_strategy(count, peer_ms=rows[-1].peer_value))
        client.close()
    return rows


def _load(stores: Sequence[BasePydanticVectorStore], count: int) -> None:
    taken = [0.0] * len(stores)
    for batch in node_batches(count, seed=_SEED):
        for i, store in enumerate(stores):
            start = time.perf_counter()
            store.add(batch)
            taken[i] += time.perf_counter() - start
    ours, peer = taken
    say(f"  {count:,} nodes loaded: ours {ours:.1f} s, peer {peer:.1f} s")


def _queries(filters: Sequence[MetadataFilters] | None) -> list[VectorStoreQuery]:
    from llama_index.core.vector_stores.types import VectorStoreQuery

    vectors = unit_vectors(RUNS, seed=_SEED - 1).tolist()
    return [
        VectorStoreQuery(query_embedding=vector, similarity_top_k=TOP_K, filters=filters[i] if filters else None)
        for i, vector in enumerate(vectors)
    ]


def _compare(
    name: str,
    ours: BasePydanticVectorStore,
    peer: BasePydanticVectorStore,
    queries: Sequence[VectorStoreQuery],
    count: int,
    *,
    target_ms: float,
    peer_runs: int,
) -> Row:
    ours_timing: Timing = measure(ours.query, queries, warm_up=WARM_UP)
    peer_timing = measure(peer.query, queries[:peer_runs], warm_up=1)
    same = sum(ours.query(query).ids == peer.query(query).ids for query in queries[:PEER_FILTERED_RUNS])
    note = f"{count:,} x {DIMENSION}; same nodes in the same order: {same} of {PEER_FILTERED_RUNS} queries"
    return timed_row(name, ours_timing, peer=PEER, peer_timing=peer_timing, target_ms=target_ms, note=note)


def _strategy(count: int, *, peer_ms: float | None) -> Row:
    """Measure the strategy itself: prefilter, exact search among the candidates, nodes read and checked."""
    from agentic_retriever.embeddings import EmbeddingModel, text_hash
    from agentic_retriever.indices import Indexer, IndexStorage, embedded_text
    from agentic_retriever.ingestion.chunking import ChunkSettings
    from agentic_retriever.retrievers import AdapterSettings, RetrievalRequest, VectorRetriever
    from agentic_retriever.testing import FakeEmbedding

    nodes = [node for batch in node_batches(count, seed=_SEED) for node in batch]
    known = {text_hash(embedded_text(node)): np.asarray(node.get_embedding(), dtype=np.float32) for node in nodes}
    with tempfile.TemporaryDirectory() as folder:
        model = EmbeddingModel(FakeEmbedding(dimension=DIMENSION), name="bench", packed=[_Known(known)])
        storage = IndexStorage(folder)
        index = storage.create("bench", model, description="", chunks=ChunkSettings())
        Indexer(index).add_nodes(nodes)
        adapter = VectorRetriever(index, AdapterSettings())
        requests = [
            RetrievalRequest("bench", TOP_K, filters, tuple(vector))
            for filters, vector in zip(
                three_clause_filters(RUNS, seed=_SEED), unit_vectors(RUNS, seed=_SEED - 1).tolist(), strict=True
            )
        ]
        adapter.search(requests[0])
        while index.vector_rows() is None and count >= MIN_NODES:
            time.sleep(0.05)
        timing = measure(adapter.search, requests, warm_up=WARM_UP)
        storage.close()
    return Row(
        name="vector_search: strategy, filter of 3 clauses",
        ours=timing.p50_ms,
        ours_p95=timing.p95_ms,
        peer=PEER,
        peer_value=peer_ms,
        target=2,
        note=f"{count:,} x {DIMENSION}; vectors in memory; the peer's figure is that of its bare store above",
    )


class _Known:
    """The nodes' own vectors, by the hash of their texts."""

    def __init__(self, vectors: Mapping[bytes, NDArray[np.float32]]) -> None:
        self._vectors = vectors

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, NDArray[np.float32]]:
        del model
        return {key: self._vectors[key] for key in hashes if key in self._vectors}

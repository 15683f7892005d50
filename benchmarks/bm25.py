"""BM25 over many nodes, plain and filtered, beside LlamaIndex's retriever."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from benchmarks.data import questions, texts
from benchmarks.harness import Row, Timing, measure, no_garbage_collection, timed_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.schema import TextNode
    from llama_index.core.vector_stores.types import MetadataFilters
    from llama_index.retrievers.bm25 import BM25Retriever

    from agentic_retriever.indices import KeywordIndex
    from benchmarks.harness import Options

T = TypeVar("T")

NODES = 50_000
WORDS = 120
TOP_K = 10
RUNS = 200
WARM_UP = 20
SHARE = 100  # the filter leaves one node in so many
PEER = "BM25Retriever"
TARGET_MS = 10
_SEED = 31


def run(options: Options) -> list[Row]:
    """Measure building, plain queries, and queries with a filter that leaves 1 % of the nodes."""
    count = options.sized(NODES)
    nodes = _nodes(count)
    asked = questions([node.text for node in nodes[:1000]], RUNS, seed=_SEED)
    size = f"{count:,} nodes of {WORDS} words"
    ours, ours_built = _timed(lambda: _build_ours(nodes))
    peer, peer_built = _timed(lambda: _build_peer(nodes))
    filtered_peer, mask_made = _timed(lambda: _with_filter(peer, _first_group()))
    group = frozenset(node.node_id for node in nodes if node.metadata["group"] == 0)
    return [
        Row(name="bm25: build", ours=ours_built, peer=PEER, peer_value=peer_built, note=f"{size}, once"),
        _row("bm25: query", lambda q: ours.search(q, TOP_K), peer.retrieve, asked, size),
        _row(
            "bm25: query, filter leaves 1 %", lambda q: ours.search(q, TOP_K, allowed=group), filtered_peer.retrieve,
            asked, f"{size}; filter applied beforehand on both sides, which took the peer {mask_made:,.0f} ms",
        ),
    ]  # fmt: skip


def _row(
    name: str, ours: Callable[[str], object], peer: Callable[[str], object], asked: Sequence[str], note: str
) -> Row:
    timing: Timing = measure(ours, asked, warm_up=WARM_UP)
    peer_timing = measure(peer, asked, warm_up=WARM_UP)
    return timed_row(name, timing, peer=PEER, peer_timing=peer_timing, target_ms=TARGET_MS, note=note)


def _nodes(count: int) -> list[TextNode]:
    from llama_index.core.schema import TextNode

    bodies = texts(count, seed=_SEED, words=WORDS)
    return [
        TextNode(
            id_=f"node-{i:07d}", text=body, metadata={"group": i % SHARE}, excluded_embed_metadata_keys=["group"]
        )
        for i, body in enumerate(bodies)
    ]  # fmt: skip


def _timed(build: Callable[[], T]) -> tuple[T, float]:
    with no_garbage_collection():
        start = time.perf_counter()
        built = build()
        return built, (time.perf_counter() - start) * 1000


def _build_ours(nodes: Sequence[TextNode]) -> KeywordIndex:
    from agentic_retriever.indices import KeywordIndex
    from agentic_retriever.text import Tokenizer

    return KeywordIndex.build(
        ((node.node_id, node.text) for node in nodes), tokenizer=Tokenizer(language="en"), version=1
    )


def _build_peer(nodes: Sequence[TextNode]) -> BM25Retriever:
    from llama_index.retrievers.bm25 import BM25Retriever

    return BM25Retriever(nodes=list(nodes), similarity_top_k=TOP_K)


def _with_filter(peer: BM25Retriever, filters: MetadataFilters) -> BM25Retriever:
    """Return a retriever that shares the peer's index; it takes filters only when it is made."""
    from llama_index.retrievers.bm25 import BM25Retriever

    peer.bm25.corpus = peer.corpus
    filtered = BM25Retriever(existing_bm25=peer.bm25, similarity_top_k=TOP_K, filters=filters)
    peer.bm25.corpus = None
    return filtered


def _first_group() -> MetadataFilters:
    from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

    return MetadataFilters(filters=[MetadataFilter(key="group", value=0)])

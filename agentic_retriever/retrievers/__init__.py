"""The strategies, each a LlamaIndex retriever over one index, and what they share."""

from agentic_retriever.retrievers.base import RetrieverAdapter, fetch_nodes
from agentic_retriever.retrievers.fusion import Fusion, borda, fuse, reciprocal_rank, weighted_sum
from agentic_retriever.retrievers.hybrid import HybridRetriever
from agentic_retriever.retrievers.promises import SCORES_KEY, source_scores
from agentic_retriever.retrievers.registry import REGISTRY, StrategySpec, build_adapter, cards, spec_of
from agentic_retriever.retrievers.search import (
    AdapterSettings,
    Candidate,
    Found,
    HasViews,
    QueryEmbedder,
    RetrievalRequest,
    SearchableIndex,
    SearchResult,
)
from agentic_retriever.retrievers.vector import VectorRetriever

__all__ = [
    "REGISTRY",
    "SCORES_KEY",
    "AdapterSettings",
    "Candidate",
    "Found",
    "Fusion",
    "HasViews",
    "HybridRetriever",
    "QueryEmbedder",
    "RetrievalRequest",
    "RetrieverAdapter",
    "SearchResult",
    "SearchableIndex",
    "StrategySpec",
    "VectorRetriever",
    "borda",
    "build_adapter",
    "cards",
    "fetch_nodes",
    "fuse",
    "reciprocal_rank",
    "source_scores",
    "spec_of",
    "weighted_sum",
]

"""The strategies, each a LlamaIndex retriever over one index, and what they share."""

from agentic_retriever.retrievers.base import (
    SCORES_KEY,
    AdapterSettings,
    RetrievalRequest,
    RetrieverAdapter,
    SearchResult,
    fetch_nodes,
    run_sides,
    source_scores,
)
from agentic_retriever.retrievers.chunk_decoupling import SPAN_KEY, ChunkDecouplingRetriever
from agentic_retriever.retrievers.fusion import (
    DEFAULT_FUSION,
    FUSION_FILE,
    Fusion,
    FusionModel,
    FusionTrainedOn,
    borda,
    calibrated,
    fuse,
    reciprocal_rank,
    weighted_sum,
)
from agentic_retriever.retrievers.hybrid import HybridRetriever, SideLists
from agentic_retriever.retrievers.metadata import MetadataRetriever
from agentic_retriever.retrievers.planner import PARTS_KEY, PlannerRetriever
from agentic_retriever.retrievers.recursive import RecursiveRetriever
from agentic_retriever.retrievers.registry import REGISTRY, StrategySpec, build_adapter, cards, spec_of
from agentic_retriever.retrievers.summary import SummaryRetriever
from agentic_retriever.retrievers.vector import VectorRetriever

__all__ = [
    "DEFAULT_FUSION",
    "FUSION_FILE",
    "PARTS_KEY",
    "REGISTRY",
    "SCORES_KEY",
    "SPAN_KEY",
    "AdapterSettings",
    "ChunkDecouplingRetriever",
    "Fusion",
    "FusionModel",
    "FusionTrainedOn",
    "HybridRetriever",
    "MetadataRetriever",
    "PlannerRetriever",
    "RecursiveRetriever",
    "RetrievalRequest",
    "RetrieverAdapter",
    "SearchResult",
    "SideLists",
    "StrategySpec",
    "SummaryRetriever",
    "VectorRetriever",
    "borda",
    "build_adapter",
    "calibrated",
    "cards",
    "fetch_nodes",
    "fuse",
    "reciprocal_rank",
    "run_sides",
    "source_scores",
    "spec_of",
    "weighted_sum",
]

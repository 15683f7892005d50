"""Which index to search (stage one), which strategy to search with (stage two), and how hard the question is."""

from agentic_retriever.routing.classifier import EmbeddingClassifier, IndexClassifier, ProfileClassifier
from agentic_retriever.routing.models import AutoClassifier, AutoSelector, LLMClassifier, LLMSelector
from agentic_retriever.routing.selector import (
    FEATURES,
    DomainTerms,
    HeuristicSelector,
    RoundRobinSelector,
    StrategySelector,
    StrategyWeights,
    fused_weights,
    packaged_weights,
    query_features,
    read_form,
)
from agentic_retriever.routing.signals import (
    assess_complexity,
    complexity_reasons,
    register_language,
    unregister_language,
)

__all__ = [
    "FEATURES", "AutoClassifier", "AutoSelector", "DomainTerms", "EmbeddingClassifier", "HeuristicSelector",
    "IndexClassifier", "LLMClassifier", "LLMSelector", "ProfileClassifier", "RoundRobinSelector", "StrategySelector",
    "StrategyWeights", "assess_complexity", "complexity_reasons", "fused_weights", "packaged_weights",
    "query_features", "read_form", "register_language", "unregister_language",
]  # fmt: skip

"""Which index to search (stage one), which strategy to search with (stage two), and how hard the question is.

Routing chooses among descriptions of content and strategies; it never sees a retriever.
"""

from agentic_retriever.routing.classifier import EmbeddingClassifier, IndexClassifier, ProfileClassifier
from agentic_retriever.routing.complexity import assess_complexity
from agentic_retriever.routing.features import FEATURES, query_features
from agentic_retriever.routing.selector import (
    HeuristicSelector,
    RoundRobinSelector,
    StrategySelector,
    StrategyWeights,
    packaged_weights,
    parse_weights,
)

__all__ = [
    "FEATURES",
    "EmbeddingClassifier",
    "HeuristicSelector",
    "IndexClassifier",
    "ProfileClassifier",
    "RoundRobinSelector",
    "StrategySelector",
    "StrategyWeights",
    "assess_complexity",
    "packaged_weights",
    "parse_weights",
    "query_features",
]

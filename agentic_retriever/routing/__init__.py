"""Which index to search (stage one), which strategy to search with (stage two), and how hard the question is.

Routing chooses among descriptions of content and strategies; it never sees a retriever.
"""

from agentic_retriever.routing.abstention import Scope, Support, scope_of, support_of
from agentic_retriever.routing.auto import AutoClassifier, AutoSelector
from agentic_retriever.routing.calibration import Calibration, expected_calibration_error, fit_temperature
from agentic_retriever.routing.classifier import EmbeddingClassifier, IndexClassifier, ProfileClassifier
from agentic_retriever.routing.complexity import assess_complexity, complexity_reasons
from agentic_retriever.routing.cross_validation import CrossValidation, cross_validate
from agentic_retriever.routing.domain_terms import DomainTerms
from agentic_retriever.routing.features import FEATURES, query_features
from agentic_retriever.routing.learned import LearnedSelector
from agentic_retriever.routing.llm_classifier import LLMClassifier
from agentic_retriever.routing.llm_selector import LLMSelector
from agentic_retriever.routing.own_languages import register_language, unregister_language
from agentic_retriever.routing.probes import PROBE_FEATURES, PROBE_RANGES, probe_features
from agentic_retriever.routing.pseudo_queries import LabelledQuery, calibrate, pseudo_queries
from agentic_retriever.routing.round_robin import RoundRobinSelector
from agentic_retriever.routing.selector import (
    HeuristicSelector,
    StrategySelector,
    StrategyWeights,
    fused_weights,
    packaged_weights,
    parse_weights,
)
from agentic_retriever.routing.strategy_model import MODEL_FILE, StrategyModel, TrainedOn
from agentic_retriever.routing.training import TrainingRow, fit_strategy_model

__all__ = [
    "FEATURES",
    "MODEL_FILE",
    "PROBE_FEATURES",
    "PROBE_RANGES",
    "AutoClassifier",
    "AutoSelector",
    "Calibration",
    "CrossValidation",
    "DomainTerms",
    "EmbeddingClassifier",
    "HeuristicSelector",
    "IndexClassifier",
    "LLMClassifier",
    "LLMSelector",
    "LabelledQuery",
    "LearnedSelector",
    "ProfileClassifier",
    "RoundRobinSelector",
    "Scope",
    "StrategyModel",
    "StrategySelector",
    "StrategyWeights",
    "Support",
    "TrainedOn",
    "TrainingRow",
    "assess_complexity",
    "calibrate",
    "complexity_reasons",
    "cross_validate",
    "expected_calibration_error",
    "fit_strategy_model",
    "fit_temperature",
    "fused_weights",
    "packaged_weights",
    "parse_weights",
    "probe_features",
    "pseudo_queries",
    "query_features",
    "register_language",
    "scope_of",
    "support_of",
    "unregister_language",
]

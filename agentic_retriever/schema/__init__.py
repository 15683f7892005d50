"""The frozen values that pass from hop to hop of one query.

``query: str`` goes in; routing yields a :class:`RouteDecision` (two :class:`Selection` values and a complexity),
retrieval a :class:`Retrieval`, synthesis an :class:`Answer` with :class:`Citation` values. Every mapping held here is
read-only, every sequence a tuple, and every value turns into plain JSON types with ``to_dict()``.
"""

from agentic_retriever.schema.answers import Answer, Citation, Confidence, ConfidenceLevel, Retrieval, Tried
from agentic_retriever.schema.attempts import Attempt, FailureKind
from agentic_retriever.schema.checks_made import SentenceCheck
from agentic_retriever.schema.decision import Difference, RouteDecision, RouteDiff
from agentic_retriever.schema.routing import (
    Complexity,
    Degradation,
    Selection,
    Strategy,
    StrategyCard,
    View,
    frozen,
    strategy_named,
)
from agentic_retriever.schema.usage import NO_LIMITS, Allowance, Budget, Tier, TierUsage, Usage

__all__ = [
    "NO_LIMITS",
    "Allowance",
    "Answer",
    "Attempt",
    "Budget",
    "Citation",
    "Complexity",
    "Confidence",
    "ConfidenceLevel",
    "Degradation",
    "Difference",
    "FailureKind",
    "Retrieval",
    "RouteDecision",
    "RouteDiff",
    "Selection",
    "SentenceCheck",
    "Strategy",
    "StrategyCard",
    "Tier",
    "TierUsage",
    "Tried",
    "Usage",
    "View",
    "frozen",
    "strategy_named",
]

"""The frozen values that pass from hop to hop of one query.

``query: str`` goes in; routing yields a :class:`RouteDecision` (two :class:`Selection` values and a complexity),
retrieval a :class:`Retrieval`, synthesis an :class:`Answer` with :class:`Citation` values. Every mapping held here is
read-only, every sequence a tuple, and every value turns into plain JSON types with ``to_dict()``.
"""

from agentic_retriever.schema.answers import (
    Answer,
    Budget,
    Citation,
    Confidence,
    ConfidenceLevel,
    Retrieval,
    Tier,
    TierUsage,
    Usage,
)
from agentic_retriever.schema.routing import (
    Complexity,
    Degradation,
    RouteDecision,
    Selection,
    Strategy,
    StrategyCard,
    View,
    frozen,
)

__all__ = [
    "Answer",
    "Budget",
    "Citation",
    "Complexity",
    "Confidence",
    "ConfidenceLevel",
    "Degradation",
    "Retrieval",
    "RouteDecision",
    "Selection",
    "Strategy",
    "StrategyCard",
    "Tier",
    "TierUsage",
    "Usage",
    "View",
    "frozen",
]

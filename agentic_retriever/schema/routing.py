"""What routing decides: the strategies, one selection a stage, and the decision record."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentic_retriever.schema.usage import TierUsage

V = TypeVar("V")


def frozen(mapping: Mapping[str, V]) -> Mapping[str, V]:
    """Copy a mapping into a read-only view, so that a frozen value stays frozen."""
    return MappingProxyType(dict(mapping))


class Strategy(str, Enum):
    """The seven ways to retrieve, in declared order of reliability."""

    VECTOR = "vector"
    HYBRID = "hybrid"
    RECURSIVE = "recursive"
    CHUNK_DECOUPLING = "chunk_decoupling"
    PLANNER = "planner"
    METADATA = "metadata"
    SUMMARY = "summary"


class View(str, Enum):
    """A view of an index that strategies may need."""

    CHUNKS = "chunks"
    KEYWORD = "keyword"
    SUMMARY = "summary"
    HIERARCHY = "hierarchy"
    METADATA = "metadata"


class Complexity(str, Enum):
    """How hard a question is: one look-up, or several facts to combine."""

    SIMPLE = "simple"
    COMPLEX = "complex"


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """One step that fell back to something lesser, and why.

    Attributes:
        step: The step, such as ``"hybrid.keyword"`` or ``"synthesis.llm"``.
        reason: What went wrong, one line without secrets.
        fallback: What was used instead.
    """

    step: str
    reason: str
    fallback: str

    def to_dict(self) -> dict[str, str]:
        """Return plain JSON types."""
        return {"step": self.step, "reason": self.reason, "fallback": self.fallback}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What one routing stage chose, and how sure it is.

    Attributes:
        name: The first choice.
        names: All that were chosen, best first; several when the margin was small. Starts with ``name``.
        confidence: Probability of the first choice, in [0, 1].
        scores: A score for every candidate, best first; probabilities that sum to 1 unless the mode says otherwise.
        margin: Score of the first choice less that of the second, in [0, 1]; 1 with a single candidate.
        reason: One line for a person.
        mode: How it was chosen in the end, such as ``"profile"``, ``"heuristic"``, ``"llm"`` or ``"pinned"``.
        abstained: Whether no candidate is probable enough; ``name`` is then the nearest one all the same.
        escalated: Whether a model was asked because the evidence alone was not clear.
        evidence: What spoke for each candidate, by candidate and kind of evidence.
        degraded: What fell back on the way to the choice.
        spent: Model calls that it took.
    """

    name: str
    confidence: float
    scores: Mapping[str, float]
    margin: float
    reason: str
    mode: str
    names: tuple[str, ...] = ()
    abstained: bool = False
    escalated: bool = False
    evidence: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    degraded: tuple[Degradation, ...] = ()
    spent: tuple[TierUsage, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", frozen(self.scores))
        object.__setattr__(self, "evidence", frozen({name: frozen(kinds) for name, kinds in self.evidence.items()}))
        object.__setattr__(self, "names", self.names or (self.name,))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "name": self.name,
            "names": list(self.names),
            "confidence": self.confidence,
            "scores": dict(self.scores),
            "margin": self.margin,
            "reason": self.reason,
            "mode": self.mode,
            "abstained": self.abstained,
            "escalated": self.escalated,
            "evidence": {name: dict(kinds) for name, kinds in self.evidence.items()},
            "degraded": [lost.to_dict() for lost in self.degraded],
            "spent": [usage.to_dict() for usage in self.spent],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyCard:
    """What stage two knows about one strategy that an index can serve.

    Attributes:
        strategy: Which one.
        description: When to use it, one line.
        needs: The views of the index that it reads.
        cost: Relative work of one query; ``vector`` is 1.
        typical_ms: Typical latency in milliseconds: measured on this index, else on a small one.
        quality: Measured mean nDCG@10 on this index in [0, 1], or ``None`` when nothing was measured yet.
        measured: Whether ``typical_ms`` was measured on this index.
    """

    strategy: Strategy
    description: str
    needs: tuple[View, ...]
    cost: float
    typical_ms: float
    quality: float | None = None
    measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteDecision:
    """Which index and strategy a query goes to, with everything that was weighed.

    Attributes:
        query: The question as it was asked.
        index: Stage one.
        strategy: Stage two.
        complexity: Simple or complex.
        complexity_score: In [0, 1].
        features: The signals that stage two saw, by name.
        timings_ms: Milliseconds by step (``embedding``, ``stage_one``, ``stage_two``).
        degraded: Steps of routing that fell back.
    """

    query: str
    index: Selection
    strategy: Selection
    complexity: Complexity
    complexity_score: float
    features: Mapping[str, float] = field(default_factory=dict)
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    degraded: tuple[Degradation, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", frozen(self.features))
        object.__setattr__(self, "timings_ms", frozen(self.timings_ms))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types: the choices flat, the whole of both stages below ``stages``."""
        return {
            "query": self.query,
            "index": self.index.name,
            "indexes": list(self.index.names),
            "index_scores": dict(self.index.scores),
            "index_confidence": self.index.confidence,
            "strategy": self.strategy.name,
            "strategy_scores": dict(self.strategy.scores),
            "strategy_confidence": self.strategy.confidence,
            "complexity": self.complexity.value,
            "complexity_score": self.complexity_score,
            "stages": {"index": self.index.to_dict(), "strategy": self.strategy.to_dict()},
            "features": dict(self.features),
            "timings_ms": dict(self.timings_ms),
            "degraded": [d.to_dict() for d in self.degraded],
        }

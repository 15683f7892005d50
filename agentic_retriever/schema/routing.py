"""What routing chooses among and what each of its stages chose."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from agentic_retriever.schema.draw_route import draw_selection
from agentic_retriever.schema.markup import short_text
from agentic_retriever.schema.usage import TierUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

V = TypeVar("V")


def frozen(mapping: Mapping[str, V]) -> Mapping[str, V]:
    """Copy a mapping into a read-only view, so that a frozen value stays frozen."""
    return MappingProxyType(dict(mapping))


class Strategy(str, Enum):
    """The seven ways to retrieve, in declared order of reliability, and those that a program adds.

    A strategy that :func:`strategy_named` added is found by its name, ``Strategy("recent")``, and has no place in the
    declared order: iteration gives the seven alone.
    """

    VECTOR = "vector"
    HYBRID = "hybrid"
    RECURSIVE = "recursive"
    CHUNK_DECOUPLING = "chunk_decoupling"
    PLANNER = "planner"
    METADATA = "metadata"
    SUMMARY = "summary"

    @classmethod
    def _missing_(cls, value: object) -> Strategy | None:
        return _ADDED.get(value) if isinstance(value, str) else None

    @property
    def reliability(self) -> int:
        """Place in the declared order, from 0; strategies that were added stand behind the seven."""
        return _RELIABILITY.get(self.value, len(_RELIABILITY))


_ADDED: dict[str, Strategy] = {}
_RELIABILITY: dict[str, int] = {strategy.value: at for at, strategy in enumerate(Strategy)}


def strategy_named(name: str) -> Strategy:
    """Return the strategy of a name, adding it when there is none.

    Names only grow, so that a decision that names a strategy can be read as long as the process lives.
    """
    if name not in _RELIABILITY and name not in _ADDED:
        added = str.__new__(Strategy, name)
        added._name_, added._value_ = name.upper(), name
        _ADDED.setdefault(name, added)
    return Strategy(name)


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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Degradation:
        """Read what :meth:`to_dict` wrote; ``KeyError`` if a key is missing."""
        return cls(step=str(data["step"]), reason=str(data["reason"]), fallback=str(data["fallback"]))

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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Selection:
        """Read what :meth:`to_dict` wrote.

        Raises:
            KeyError: If a key is missing.
            TypeError: If a value has another type.
            ValueError: If a value is out of range.
        """
        return cls(
            name=str(data["name"]),
            names=tuple(str(name) for name in data["names"]),
            confidence=float(data["confidence"]),
            scores={str(name): float(score) for name, score in data["scores"].items()},
            margin=float(data["margin"]),
            reason=str(data["reason"]),
            mode=str(data["mode"]),
            abstained=bool(data["abstained"]),
            escalated=bool(data["escalated"]),
            evidence={name: {k: float(v) for k, v in kinds.items()} for name, kinds in data["evidence"].items()},
            degraded=tuple(Degradation.from_dict(lost) for lost in data["degraded"]),
            spent=tuple(TierUsage.from_dict(usage) for usage in data["spent"]),
        )

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

    def _repr_html_(self) -> str:
        """Draw the stage in Jupyter: escaped, no assets, colours of the theme."""
        return draw_selection(self)

    _repr_pretty_ = short_text


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
        signals: How much each signal of a query speaks for it, as logarithm of odds times the signal's strength; added
            to what the selector's own table says.
    """

    strategy: Strategy
    description: str
    needs: tuple[View, ...]
    cost: float
    typical_ms: float
    quality: float | None = None
    measured: bool = False
    signals: Mapping[str, float] = field(default_factory=dict, hash=False)

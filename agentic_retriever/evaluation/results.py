"""What measuring the routing gives back: values that turn into JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentic_retriever.schema import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentic_retriever.evaluation.classification import Outcomes
    from agentic_retriever.evaluation.reliability import Reliability


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A question on which something raised; it counts as answered wrongly.

    Attributes:
        query_id: The question, as ``DATASET/ID``.
        error: Type of the error, and its message where it is one of ours.
    """

    query_id: str
    error: str

    def to_dict(self) -> dict[str, str]:
        """Return plain JSON types."""
        return {"query_id": self.query_id, "error": self.error}


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds of one choice, the embedding of the question excluded; ``None`` when nothing was measured."""

    p50_ms: float | None
    p95_ms: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Return plain JSON types."""
        return {"p50": self.p50_ms, "p95": self.p95_ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention:
    """Whether questions that no index answers were told from the others.

    Attributes:
        asked: Questions in all.
        out_of_scope: Those that no index answers.
        abstained: Those on which it abstained.
        right: Those on which it abstained rightly.
    """

    asked: int
    out_of_scope: int
    abstained: int
    right: int

    @property
    def precision(self) -> float | None:
        """Share of the abstentions that were right; ``None`` without an abstention or an out-of-scope question."""
        return self.right / self.abstained if self.abstained and self.out_of_scope else None

    @property
    def recall(self) -> float | None:
        """Share of the out-of-scope questions on which it abstained; ``None`` without one."""
        return self.right / self.out_of_scope if self.out_of_scope else None

    @property
    def false_rate(self) -> float | None:
        """Share of the questions that an index answers on which it abstained; ``None`` without one."""
        inside = self.asked - self.out_of_scope
        return (self.abstained - self.right) / inside if inside else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "out_of_scope": self.out_of_scope,
            "abstained": self.abstained,
            "right": self.right,
            "precision": self.precision,
            "recall": self.recall,
            "false_rate": self.false_rate,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOneMeasures:
    """How well one way to choose the index did.

    Attributes:
        outcomes: Right index against chosen one, over the questions that an index answers; abstaining or not.
        reliability: Confidence against accuracy, each question counting the same; ``None`` for scores that are no
            probabilities.
        macro_ece: Expected calibration error with each index counting the same, or ``None``.
        reached: Share of these questions whose index is among those to be searched.
        searched: Mean number of indexes to be searched.
        abstention: On all questions.
        escalation_rate: Share of all questions for which a model was asked.
        latency: Of one choice.
        llm_calls: Calls of models in all.
        failures: Questions on which it raised.
        peer: Whether it is somebody else's way.
        note: What to know of it, or ``""``.
    """

    outcomes: Outcomes
    reliability: Reliability | None
    macro_ece: float | None
    reached: float | None
    searched: float | None
    abstention: Abstention
    escalation_rate: float
    latency: Latency
    llm_calls: int = 0
    failures: tuple[Failure, ...] = ()
    peer: bool = False
    note: str = ""

    @property
    def ece(self) -> float | None:
        """Expected calibration error, each question counting the same."""
        return self.reliability.ece if self.reliability is not None else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        told = self.outcomes.to_dict()
        return {
            "queries": told["count"],
            "accuracy": told["accuracy"],
            "macro_accuracy": told["macro_accuracy"],
            "macro_f1": told["macro_f1"],
            "ece": self.ece,
            "macro_ece": self.macro_ece,
            "by_index": told["by_label"],
            "confusion": told["confusion"],
            "reached": self.reached,
            "searched": self.searched,
            "abstention": self.abstention.to_dict(),
            "escalation_rate": self.escalation_rate,
            "llm_calls": self.llm_calls,
            "latency_ms": self.latency.to_dict(),
            "reliability": None if self.reliability is None else [b.to_dict() for b in self.reliability.bins],
            "failures": [failure.to_dict() for failure in self.failures],
            "peer": self.peer,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTwoMeasures:
    """How well one way to choose the strategy agrees with the labels of questions.

    Attributes:
        outcomes: Right strategy against chosen one.
        latency: Of signals and choice.
        escalation_rate: Share of the questions for which a model was asked.
        failures: Questions on which it raised.
    """

    outcomes: Outcomes
    latency: Latency
    escalation_rate: float = 0.0
    failures: tuple[Failure, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            **self.outcomes.to_dict(),
            "escalation_rate": self.escalation_rate,
            "latency_ms": self.latency.to_dict(),
            "failures": [failure.to_dict() for failure in self.failures],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ComplexityMeasures:
    """How well the judgment of complexity agrees with the labels.

    Attributes:
        outcomes: Right complexity against the judged one.
        by_dataset: Accuracy in each data set.
    """

    outcomes: Outcomes
    by_dataset: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_dataset", frozen(self.by_dataset))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        told = self.outcomes.to_dict()
        return {**told, "balanced_accuracy": told["macro_accuracy"], "by_dataset": dict(self.by_dataset)}

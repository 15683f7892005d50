"""What one row of a benchmark reached: quality with intervals, latency, failures, tokens and money."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from agentic_retriever.errors import EvaluationError, unknown_name
from agentic_retriever.evaluation.measures import MEASURES
from agentic_retriever.evaluation.options import ORACLE
from agentic_retriever.evaluation.results import Failure
from agentic_retriever.evaluation.statistics import bootstrap_interval, holm, randomisation_test
from agentic_retriever.schema import Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STAGES = ("embedding", "routing", "retrieval", "rerank", "total")
"""Steps of a query that are told apart, where a row knows them."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one strategy, the router itself, the oracle or a peer did on the questions of one index.

    Attributes:
        name: Its name.
        quality: Value by measure, by question; all 0 where it failed or found nothing.
        records: What it gave, by question.
        cold_ms: Milliseconds of a first search with everything closed before; ``None`` where that was not measured.
        seed: Of the intervals.
        peer: Whether it is somebody else's way.
        note: What to know of it, or ``""``.
    """

    name: str
    quality: Mapping[str, Mapping[str, float]]
    records: Mapping[str, Mapping[str, Any]]
    cold_ms: float | None = None
    seed: int = 0
    peer: bool = False
    note: str = ""

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Questions on which it raised."""
        failed = ((query, record.get("error")) for query, record in self.records.items())
        return tuple(Failure(query_id=query, error=str(error)) for query, error in failed if error)

    @property
    def latency_ms(self) -> list[float]:
        """Milliseconds of every question."""
        return [float(record["ms"]) for record in self.records.values()]

    def values(self, measure: str) -> list[float]:
        """Return the values of all questions by one measure, in their order."""
        return [by_name[measure] for by_name in self.quality.values()]

    def mean(self, measure: str = MEASURES[0]) -> float:
        """Return the mean of one measure."""
        return float(np.mean(self.values(measure)))

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % bootstrap interval of every mean."""
        return {name: bootstrap_interval(self.values(name), seed=self.seed) for name in MEASURES}

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the latencies, in milliseconds."""
        return percentile(self.latency_ms, percent)

    def total(self, fact: str) -> float:
        """Add up a fact over all questions."""
        return float(sum(float(record.get(fact) or 0.0) for record in self.records.values()))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; but for times, the same questions, settings and seed give the same values."""
        degraded = [step for record in self.records.values() for step in record.get("degraded", ())]
        spent = sum(self.latency_ms)
        return {
            **{name: self.mean(name) for name in MEASURES},
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "queries": len(self.quality),
            "failed": len(self.failures),
            "failures": [failure.to_dict() for failure in self.failures],
            "without_result": sum(not record.get("docs") for record in self.records.values()),
            "degraded": {step: degraded.count(step) for step in sorted(set(degraded))},
            "p50_ms": self.percentile_ms(50),
            "p95_ms": self.percentile_ms(95),
            "cold_ms": self.cold_ms,
            "queries_per_second": len(self.records) * 1000 / spent if spent > 0 else None,
            "stages_ms": stage_percentiles(list(self.records.values())),
            "llm_calls": int(self.total("llm_calls")),
            "tokens": int(self.total("tokens")),
            "usd": self.total("usd"),
            "peer": self.peer,
            "note": self.note,
            "per_query": {
                query: {**values, "ms": float(self.records[query]["ms"])} for query, values in self.quality.items()
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a row stands against the baseline on the same questions, by the first measure.

    Attributes:
        difference: Mean of the row less that of the baseline.
        interval: Its 95 % bootstrap interval.
        p: By a paired randomisation test.
        p_holm: Corrected for the number of rows that are tested.
    """

    difference: float
    interval: tuple[float, float]
    p: float
    p_holm: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "difference": self.difference,
            "interval": list(self.interval),
            "p": self.p,
            "p_holm": self.p_holm,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """All rows against the baseline.

    Attributes:
        baseline: Name of the baseline.
        rows: The comparison of each other row, by its name.
    """

    baseline: str
    rows: Mapping[str, Comparison] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Mapping[str, Row], baseline: str | None, *, seed: int) -> Against | None:
        """Test every row against one of them; the oracle, which knows the judgments, is left out.

        Args:
            rows: Rows that were all asked the same questions.
            baseline: Name of the baseline; ``None`` takes ``vector``, else the first row.
            seed: Of tests and intervals.

        Returns:
            The comparisons; ``None`` without a second row.

        Raises:
            EvaluationError: If there is no row of that name.
        """
        tested = {name: row for name, row in rows.items() if name != ORACLE}
        if baseline is not None and baseline not in tested:
            raise EvaluationError(unknown_name("baseline", baseline, tested))
        if len(tested) < 2:
            return None
        name = baseline or (Strategy.VECTOR.value if Strategy.VECTOR.value in tested else next(iter(tested)))
        base = tested.pop(name)
        gaps = {other: _gaps(row, base) for other, row in tested.items()}
        p_values = {other: randomisation_test(gap, [0.0] * len(gap), seed=seed) for other, gap in gaps.items()}
        corrected = holm(p_values)
        made = {
            other: Comparison(
                difference=float(np.mean(gap)),
                interval=bootstrap_interval(gap, seed=seed),
                p=p_values[other],
                p_holm=corrected[other],
            )
            for other, gap in gaps.items()
        }
        return cls(baseline=name, rows=made)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"baseline": self.baseline, "rows": {name: one.to_dict() for name, one in self.rows.items()}}


def _gaps(row: Row, base: Row) -> list[float]:
    measure = MEASURES[0]
    return [values[measure] - base.quality[query][measure] for query, values in row.quality.items()]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile; 0.0 of nothing."""
    return float(np.percentile(values, percent)) if len(values) else 0.0


def stage_percentiles(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return p50 and p95 milliseconds of every stage that records tell apart."""
    found: dict[str, list[float]] = {}
    for record in records:
        for stage, spent in (record.get("stages") or {}).items():
            found.setdefault(stage, []).append(float(spent))
    order = [*(name for name in STAGES if name in found), *(name for name in sorted(found) if name not in STAGES)]
    return {name: {"p50": percentile(found[name], 50), "p95": percentile(found[name], 95)} for name in order}

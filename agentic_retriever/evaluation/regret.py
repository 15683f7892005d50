"""How well the choice of the strategy was: against the best of every question, and against the cheapest good one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agentic_retriever.evaluation.classification import Outcomes, compare
from agentic_retriever.evaluation.measures import MEASURES
from agentic_retriever.evaluation.options import AUTO, ORACLE
from agentic_retriever.evaluation.reliability import Reliability, measure_reliability
from agentic_retriever.evaluation.rows import Row
from agentic_retriever.evaluation.statistics import bootstrap_interval
from agentic_retriever.retrievers.registry import spec_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GOOD_ENOUGH: Final = 0.02
"""By how much a cheaper strategy may fall short of the best."""

_EQUAL: Final = 1e-9
_QUALITY: Final = MEASURES[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingQuality:
    """How the router's own choices of strategy did.

    Attributes:
        best_fixed: The strategy of the best mean.
        best_fixed_mean: That mean.
        auto_mean: Mean of what the router chose itself.
        oracle_mean: Mean of the best strategy of each question.
        cheapest_good: The strategy of least cost whose mean is within 0.02 of the best one's.
        regret: By how much the router fell short of the best strategy, by question; below 0 where it did better, which
            it can by a second try.
        regret_interval: 95 % bootstrap interval of the mean regret.
        accuracy: Share of the questions on which no strategy did better than the chosen one.
        cost_aware_accuracy: Share of the questions on which the chosen one was the cheapest within 0.02 of the best.
        decided: Share of the questions on which the strategies differ by more than 0.02, so that the choice matters.
        picked: How often each strategy was chosen.
        outcomes: Best strategy against the chosen one; where several are best, the chosen one of them counts.
        reliability: Confidence of the choice against whether none did better.
    """

    best_fixed: str
    best_fixed_mean: float
    auto_mean: float
    oracle_mean: float
    cheapest_good: str
    regret: Mapping[str, float]
    regret_interval: tuple[float, float]
    accuracy: float
    cost_aware_accuracy: float
    decided: float
    picked: Mapping[str, int]
    outcomes: Outcomes
    reliability: Reliability

    @property
    def mean_regret(self) -> float:
        """Mean over the questions."""
        return float(np.mean(list(self.regret.values())))

    @property
    def gap(self) -> float:
        """By how much the oracle is above the best fixed strategy."""
        return self.oracle_mean - self.best_fixed_mean

    @property
    def gap_closed(self) -> float | None:
        """Share of the gap that the router closes; below 0 when it is under the best fixed one; ``None`` without."""
        return share_closed(self.best_fixed_mean, self.auto_mean, self.oracle_mean)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "best_fixed": self.best_fixed,
            "best_fixed_mean": self.best_fixed_mean,
            "auto_mean": self.auto_mean,
            "oracle_mean": self.oracle_mean,
            "oracle_gap": self.gap,
            "gap_closed": self.gap_closed,
            "cheapest_good": self.cheapest_good,
            "mean_regret": self.mean_regret,
            "regret_interval": list(self.regret_interval),
            "accuracy": self.accuracy,
            "cost_aware_accuracy": self.cost_aware_accuracy,
            "decided": self.decided,
            "picked": dict(self.picked),
            "confusion": self.outcomes.confusion(),
            "reliability": self.reliability.to_dict(),
            "regret": dict(self.regret),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanChoice:
    """How the router's own choices did over several data sets, each of which counts the same.

    Attributes:
        best_fixed: The strategy of the best mean over the data sets: one for all of them.
        best_fixed_mean: That mean of nDCG@10.
        auto_mean: Mean of what the router chose itself.
        oracle_mean: Mean of the best strategy of each question.
    """

    best_fixed: str
    best_fixed_mean: float
    auto_mean: float
    oracle_mean: float

    @property
    def gap_closed(self) -> float | None:
        """Share of the distance from the best fixed strategy to the oracle that the router closes."""
        return share_closed(self.best_fixed_mean, self.auto_mean, self.oracle_mean)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "best_fixed": self.best_fixed,
            "best_fixed_mean": self.best_fixed_mean,
            "auto_mean": self.auto_mean,
            "oracle_mean": self.oracle_mean,
            "gap_closed": self.gap_closed,
        }


def mean_choice(means: Mapping[str, float]) -> MeanChoice | None:
    """Hold the router's own choices against the strategies by their means over several data sets.

    Args:
        means: Mean nDCG@10 by the name of the row; ``auto``, ``oracle``, and any others are strategies.

    Returns:
        The comparison; ``None`` where ``auto`` or ``oracle`` or every strategy is missing.
    """
    fixed = {name: mean for name, mean in means.items() if name not in {AUTO, ORACLE}}
    if not fixed or AUTO not in means or ORACLE not in means:
        return None
    best = max(fixed, key=fixed.__getitem__)
    return MeanChoice(best_fixed=best, best_fixed_mean=fixed[best], auto_mean=means[AUTO], oracle_mean=means[ORACLE])


def share_closed(best_fixed: float, auto: float, oracle: float) -> float | None:
    """Return which share of the way from the best fixed strategy to the oracle is done; ``None`` where there is none.

    It is below 0 where the choice falls behind the best fixed strategy.
    """
    gap = oracle - best_fixed
    return (auto - best_fixed) / gap if gap > _EQUAL else None


def oracle_row(rows: Sequence[Row], *, seed: int) -> Row | None:
    """Take for each question what the strategy gave that did best on it by nDCG@10, the cheapest of equals.

    Args:
        rows: The strategies, all asked the same questions.
        seed: Of the intervals.

    Returns:
        The row of the oracle; its other measures and its latency are those of the strategies it takes. ``None`` with
        fewer than two strategies.
    """
    if len(rows) < 2:
        return None
    by_cost = sorted(rows, key=lambda row: spec_of(row.name).cost)
    best = {query: max(by_cost, key=lambda row: row.quality[query][_QUALITY]) for query in rows[0].quality}
    records = {query: {**row.records[query], "strategy": row.name} for query, row in best.items()}
    return Row(
        name=ORACLE,
        quality={query: row.quality[query] for query, row in best.items()},
        records=records,
        seed=seed,
        note="the best strategy of each question, known only afterwards",
    )


def cheapest_within(qualities: Mapping[str, float]) -> str:
    """Return the cheapest strategy that is within ``GOOD_ENOUGH`` of the best one, the better of equals."""
    best = max(qualities.values())
    good = [name for name, value in qualities.items() if value >= best - GOOD_ENOUGH - _EQUAL]
    return min(good, key=lambda name: (spec_of(name).cost, -qualities[name]))


def routing_quality(rows: Sequence[Row], auto: Row, *, seed: int) -> RoutingQuality:
    """Hold the router's own choices against what every strategy did.

    Args:
        rows: The strategies, all asked the same questions as ``auto``.
        auto: What the router did by itself.
        seed: Of the interval.

    Returns:
        The measures.
    """
    table = {query: {row.name: row.quality[query][_QUALITY] for row in rows} for query in auto.quality}
    chosen = {query: str(auto.records[query].get("strategy", "")) for query in table}
    best = {query: max(values.values()) for query, values in table.items()}
    right = {query: table[query].get(chosen[query], -1.0) >= best[query] - _EQUAL for query in table}
    gold = [chosen[query] if right[query] else max(table[query], key=table[query].__getitem__) for query in table]
    regret = {query: best[query] - auto.quality[query][_QUALITY] for query in table}
    means = {row.name: row.mean() for row in rows}
    confident = [query for query in table if auto.records[query].get("confidence") is not None]
    fixed = max(means, key=means.__getitem__)
    names = list(chosen.values())
    return RoutingQuality(
        best_fixed=fixed,
        best_fixed_mean=means[fixed],
        auto_mean=auto.mean(),
        oracle_mean=float(np.mean(list(best.values()))),
        cheapest_good=cheapest_within(means),
        regret=regret,
        regret_interval=bootstrap_interval(list(regret.values()), seed=seed),
        accuracy=float(np.mean(list(right.values()))),
        cost_aware_accuracy=float(np.mean([cheapest_within(table[query]) == chosen[query] for query in table])),
        decided=float(np.mean([max(v.values()) - min(v.values()) > GOOD_ENOUGH for v in table.values()])),
        picked={name: names.count(name) for name in sorted(set(names)) if name},
        outcomes=compare(gold, names),
        reliability=measure_reliability(
            [min(1.0, max(0.0, float(auto.records[query]["confidence"]))) for query in confident],
            [right[query] for query in confident],
            bins=10,
        ),
    )

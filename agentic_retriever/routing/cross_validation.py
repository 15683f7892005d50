"""Whether a trained strategy model is worth installing, by cross-validation."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agentic_retriever.errors import EvaluationError
from agentic_retriever.routing.training import (
    TOLERANCE,
    Table,
    best_fixed,
    choose_penalty,
    fit,
    folds_of,
    picks,
)
from agentic_retriever.schema import Strategy, StrategyCard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from agentic_retriever.routing.selector import StrategySelector
    from agentic_retriever.routing.training import Array, TrainingRow

    Columns = npt.NDArray[np.int64]

LARGEST_LOSS: Final = 0.01
"""nDCG@10 that the interval of the gain may reach below 0 for a model that helps."""

_RESAMPLES: Final = 2_000
_MIN_FOLDS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossValidation:
    """What a model reaches on questions that it was not trained on; means of nDCG@10.

    Attributes:
        rows: How many questions.
        folds: How many folds.
        repeats: How often the questions were cut into folds anew; all figures are means over that.
        learned: Of the strategies that the models picked.
        best_fixed: Of the strategy that was best on the questions trained on, fold by fold.
        best_in_hindsight: Of the one strategy that was best on all questions, which flatters it.
        oracle: Of the best strategy of each question, which nothing can exceed.
        heuristic: Of the heuristic's picks, told the qualities measured on the questions trained on; ``None`` without a
            heuristic.
        gain: ``learned`` less ``best_fixed``.
        gain_low: Lower end of the 95 % interval of the gain, by a paired bootstrap over questions.
        gain_high: Its upper end.
        over_heuristic: ``learned`` less ``heuristic``, and its 95 % interval; ``None`` without a heuristic.
        learned_ms: Mean milliseconds of the strategies that the models picked, by their mean latencies.
        best_fixed_ms: The same for the best fixed strategies.
        picked: How often each strategy was picked, as shares.
    """

    rows: int
    folds: int
    repeats: int
    learned: float
    best_fixed: float
    best_in_hindsight: float
    oracle: float
    heuristic: float | None
    gain: float
    gain_low: float
    gain_high: float
    over_heuristic: tuple[float, float, float] | None
    learned_ms: float
    best_fixed_ms: float
    picked: Mapping[Strategy, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "picked", MappingProxyType(dict(self.picked)))

    @property
    def helps(self) -> bool:
        """Whether to install the model.

        It must gain on average over what would decide without it: the heuristic, or the best fixed strategy where no
        heuristic is given. Against either it may lose at most one hundredth of nDCG@10 at the lower end of the
        interval. A lower end of 0 would refuse most models that do help, since the interval of some hundred questions
        is wide.
        """
        gain, low = (self.gain, self.gain_low) if self.over_heuristic is None else self.over_heuristic[:2]
        return gain > 0 and min(low, self.gain_low) >= -LARGEST_LOSS

    @property
    def gap_closed(self) -> float | None:
        """Share of the distance from the best fixed strategy to the oracle; ``None`` when there is no distance."""
        gap = self.oracle - self.best_fixed
        return self.gain / gap if gap > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "picked"}
        shares = {strategy.value: share for strategy, share in self.picked.items()}
        return {**plain, "picked": shares, "gap_closed": self.gap_closed, "helps": self.helps}


def cross_validate(
    rows: Sequence[TrainingRow],
    *,
    strategies: Sequence[Strategy] | None = None,
    folds: int = 5,
    repeats: int = 5,
    seed: int = 0,
    heuristic: StrategySelector | None = None,
    tolerance: float = TOLERANCE,
) -> CrossValidation:
    """Train on all folds but one and pick strategies for that one, in turn.

    Everything is chosen within the folds trained on: the best fixed strategy, the penalty, the weights.

    Args:
        rows: As for ``fit_strategy_model``.
        strategies: Those to choose among; by default those of the first row.
        folds: From 2, with at least five questions in each.
        repeats: How often the questions are cut into folds anew, from 1, so that no cut decides by chance.
        seed: Of the folds and of the bootstrap; the same seed gives the same figures.
        heuristic: A selector that decides by features and cards alone, to compare with.
        tolerance: Predicted nDCG@10 by which a slower strategy must be ahead.

    Raises:
        EvaluationError: If the rows cannot be trained on, or there are too few for the folds.
    """
    table = Table.of(rows, strategies)
    if not _MIN_FOLDS <= folds <= len(rows) // 5 or repeats < 1:
        raise EvaluationError(
            f"{folds} folds, {repeats} times, of {len(rows)} questions: take 2 to {len(rows) // 5} folds, once at least"
        )
    generator = np.random.default_rng(seed)
    picked = _Picked.of(table, rows, folds, repeats, generator, heuristic=heuristic, tolerance=tolerance)
    learned, base = picked.reached(table, picked.learned), picked.reached(table, picked.fixed)
    ruled = None if picked.heuristic is None else picked.reached(table, picked.heuristic)
    gain, low, high = _interval(learned - base, seed)
    return CrossValidation(
        rows=len(rows),
        folds=folds,
        repeats=repeats,
        learned=float(learned.mean()),
        best_fixed=float(base.mean()),
        best_in_hindsight=float(table.quality.mean(axis=0).max()),
        oracle=float(table.quality.max(axis=1).mean()),
        heuristic=None if ruled is None else float(ruled.mean()),
        gain=gain,
        gain_low=low,
        gain_high=high,
        over_heuristic=None if ruled is None else _interval(learned - ruled, seed),
        learned_ms=float(table.latency_ms[picked.learned].mean()),
        best_fixed_ms=float(table.latency_ms[picked.fixed].mean()),
        picked={strategy: float((picked.learned == at).mean()) for at, strategy in enumerate(table.strategies)},
    )


@dataclass(frozen=True, slots=True)
class _Picked:
    """Columns of the strategies picked, ``(repeats, rows)``, by models, as the best fixed one, and by the heuristic."""

    learned: Columns
    fixed: Columns
    heuristic: Columns | None

    @classmethod
    def of(
        cls,
        table: Table,
        rows: Sequence[TrainingRow],
        folds: int,
        repeats: int,
        generator: np.random.Generator,
        *,
        heuristic: StrategySelector | None,
        tolerance: float,
    ) -> _Picked:
        learned, fixed, ruled = (np.zeros((repeats, len(rows)), dtype=np.int64) for _ in range(3))
        for at in range(repeats):
            for train, test in folds_of(len(rows), folds, generator):
                part = table.part(train)
                penalty, _ = choose_penalty(part, seed=int(generator.integers(2**31)), tolerance=tolerance)
                predicted = fit(part, (penalty,))[0].predict(table.features[test])
                learned[at, test] = picks(predicted, table.latency_ms, tolerance)
                fixed[at, test] = best_fixed(part.quality)
                if heuristic is not None:
                    ruled[at, test] = _ruled(heuristic, part, [rows[row] for row in test])
        return cls(learned, fixed, ruled if heuristic is not None else None)

    @staticmethod
    def reached(table: Table, picked: Columns) -> Array:
        """Mean nDCG@10 of what was picked for each row."""
        found: Array = table.quality[np.arange(picked.shape[1]), picked].mean(axis=0)
        return found


def _ruled(heuristic: StrategySelector, part: Table, rows: Sequence[TrainingRow]) -> list[int]:
    measured = dict(zip(part.strategies, part.quality.mean(axis=0).tolist(), strict=True))
    cards = [
        StrategyCard(strategy=s, description="", needs=(), cost=1.0, typical_ms=float(ms), quality=measured[s])
        for s, ms in zip(part.strategies, part.latency_ms, strict=True)
    ]
    chosen = (Strategy(heuristic.select("", cards, features=row.features).name) for row in rows)
    return [part.strategies.index(strategy) for strategy in chosen]


def _interval(gains: Array, seed: int) -> tuple[float, float, float]:
    """Mean of the gains, and the ends of its 95 % interval by a bootstrap over questions."""
    generator = np.random.default_rng(seed)
    means = [gains[generator.integers(0, len(gains), len(gains))].mean() for _ in range(_RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(gains.mean()), float(low), float(high)

"""Training of the strategy model from the results of a benchmark.

For each strategy a ridge regression (A. E. Hoerl and R. W. Kennard, "Ridge Regression: Biased Estimation for
Nonorthogonal Problems", Technometrics 12, 1970) predicts its nDCG@10 on a query less that of the strategy that was best
on average. To predict this difference and not the score itself means that a penalty which shrinks all weights to 0
leaves "always the best fixed strategy", so with nothing to learn nothing is lost. The penalty is chosen by inner
cross-validation of what counts, the mean nDCG@10 of the strategies picked: of all penalties within one standard error
of the best one, the heaviest (the one-standard-error rule of L. Breiman, J. Friedman, R. Olshen and C. Stone,
"Classification and Regression Trees", 1984).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from agentic_retriever.errors import EvaluationError
from agentic_retriever.routing.strategy_model import StrategyModel, standardised

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from agentic_retriever.routing.strategy_model import TrainedOn
    from agentic_retriever.schema import Strategy

    Array = npt.NDArray[np.float64]

MIN_ROWS: Final = 20
PENALTIES: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, math.inf)
"""Ridge penalties per row, for features at unit variance; infinity leaves the averages alone."""
TOLERANCE: Final = 0.0
"""Predicted nDCG@10 by which a slower strategy must be ahead of a faster one to be picked.

Above 0 it buys speed with quality: predictions are shrunk so far that a tolerance of 0.02 decides most questions, and
cost 0.006 of mean nDCG@10 on each of the two collections that it was tried on first; see docs/routing.md.
"""

_INNER_FOLDS: Final = 5
_REPEATS: Final = 3
_TEMPERATURES: Final = tuple(float(t) for t in np.logspace(-2, 1, 25))
_TIES: Final = 1e-9
_MIN_SCALE: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """What a benchmark found out about one question on one index.

    Attributes:
        query_id: Unique within a training run.
        features: Of ``query_features`` and ``probe_features``, all finite.
        quality: nDCG@10 by strategy, in [0, 1].
        latency_ms: Milliseconds by strategy, from 0.
    """

    query_id: str
    features: Mapping[str, float]
    quality: Mapping[Strategy, float]
    latency_ms: Mapping[Strategy, float]

    def __post_init__(self) -> None:
        for name in ("features", "quality", "latency_ms"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))


@dataclass(frozen=True, slots=True)
class Table:
    """Training rows as arrays.

    Attributes:
        strategies: Names of the columns of ``quality``.
        names: Names of the columns of ``features``.
        features: ``(n, features)``.
        quality: nDCG@10, ``(n, strategies)``.
        latency_ms: Mean by strategy, ``(strategies,)``.
    """

    strategies: tuple[Strategy, ...]
    names: tuple[str, ...]
    features: Array
    quality: Array
    latency_ms: Array

    @classmethod
    def of(cls, rows: Sequence[TrainingRow], strategies: Sequence[Strategy] | None = None) -> Table:
        """Check rows and put them into arrays.

        Args:
            rows: At least 20, with different ids, the same features, and a quality for each strategy.
            strategies: Those to choose among; by default those of the first row.

        Raises:
            EvaluationError: If the rows are not so; the row is named.
        """
        if len(rows) < MIN_ROWS:
            raise EvaluationError(f"{len(rows)} judged questions are too few to train on; {MIN_ROWS} are the least")
        if len({row.query_id for row in rows}) < len(rows):
            raise EvaluationError("training rows have the same query_id; give each question its own")
        wanted = set(rows[0].quality if strategies is None else strategies)
        kept = tuple(sorted(wanted, key=lambda strategy: (strategy.reliability, strategy.value)))
        names = tuple(sorted(rows[0].features))
        if not kept or not names:
            raise EvaluationError("training rows need at least one strategy and one feature")
        for row in rows:
            _check(row, kept, names)
        latencies = np.array([[row.latency_ms[s] for s in kept] for row in rows], dtype=np.float64)
        return cls(
            kept,
            names,
            np.array([[row.features[name] for name in names] for row in rows], dtype=np.float64),
            np.array([[row.quality[s] for s in kept] for row in rows], dtype=np.float64),
            latencies.mean(axis=0),
        )

    def part(self, rows: npt.NDArray[np.int64]) -> Table:
        """Return some of the rows; latencies stay those of all."""
        return Table(self.strategies, self.names, self.features[rows], self.quality[rows], self.latency_ms)


@dataclass(frozen=True, slots=True)
class Fitted:
    """Weights of one penalty."""

    means: Array
    scales: Array
    intercepts: Array
    weights: Array

    def predict(self, features: Array) -> Array:
        """Predict advantages, ``(n, strategies)``."""
        found: Array = self.intercepts + standardised(features, self.means, self.scales) @ self.weights.T
        return found


def fit_strategy_model(
    rows: Sequence[TrainingRow],
    *,
    trained_on: TrainedOn,
    strategies: Sequence[Strategy] | None = None,
    seed: int = 0,
    tolerance: float = TOLERANCE,
) -> StrategyModel:
    """Train the model of an index.

    Args:
        rows: One per judged question; 50 to 1,000 are usual, 20 the least.
        trained_on: Where the rows are from; their number is put in.
        strategies: Those to choose among; by default those of the first row.
        seed: Of the folds; the same seed gives the same model.
        tolerance: Predicted nDCG@10 by which a slower strategy must be ahead.

    Raises:
        EvaluationError: If the rows cannot be trained on.
    """
    table = Table.of(rows, strategies)
    penalty, temperature = choose_penalty(table, seed=seed, tolerance=tolerance)
    fitted = fit(table, (penalty,))[0]
    return StrategyModel(
        strategies=table.strategies,
        features=table.names,
        means=tuple(fitted.means.tolist()),
        scales=tuple(fitted.scales.tolist()),
        intercepts=tuple(fitted.intercepts.tolist()),
        weights=tuple(map(tuple, fitted.weights.tolist())),
        temperature=temperature,
        tolerance=tolerance,
        latency_ms=dict(zip(table.strategies, table.latency_ms.tolist(), strict=True)),
        shrinkage=penalty if math.isfinite(penalty) else None,
        trained_on=replace(trained_on, rows=len(rows)),
    )


def fit(table: Table, penalties: Sequence[float]) -> list[Fitted]:
    """Fit the regressions of all strategies, once for each penalty."""
    means, deviations = table.features.mean(axis=0), table.features.std(axis=0)
    constant = deviations < _MIN_SCALE
    scales = np.where(constant, 1.0, deviations)
    z = standardised(table.features, means, scales)
    z[:, constant] = 0.0
    centre = z.mean(axis=0)
    z -= centre
    advantages = table.quality - table.quality[:, [best_fixed(table.quality)]]
    averages = advantages.mean(axis=0)
    values, vectors = np.linalg.eigh(z.T @ z / len(z))
    slopes = vectors.T @ (z.T @ (advantages - averages) / len(z))
    found = []
    for penalty in penalties:
        weights = (vectors @ (slopes / (np.maximum(values, 0.0) + penalty)[:, None])).T
        found.append(Fitted(means, scales, averages - weights @ centre, weights))
    return found


def choose_penalty(table: Table, *, seed: int, tolerance: float) -> tuple[float, float]:
    """Choose the penalty, and the temperature that goes with it, by repeated cross-validation within the rows."""
    generator = np.random.default_rng(seed)
    reached = np.zeros((len(PENALTIES), len(table.quality)))
    predicted = np.zeros((len(PENALTIES), *table.quality.shape))
    for _ in range(_REPEATS):
        for train, test in folds_of(len(table.quality), _INNER_FOLDS, generator):
            for at, fitted in enumerate(fit(table.part(train), PENALTIES)):
                advantages = fitted.predict(table.features[test])
                chosen = picks(advantages, table.latency_ms, tolerance)
                reached[at, test] += table.quality[test, chosen] / _REPEATS
                predicted[at, test] += advantages / _REPEATS
    best = int(reached.mean(axis=1).argmax())
    losses = reached[best] - reached
    errors = losses.std(axis=1, ddof=1) / math.sqrt(losses.shape[1])
    heaviest = max(at for at in range(len(PENALTIES)) if losses[at].mean() <= errors[at] + _TIES)
    return PENALTIES[heaviest], _temperature(predicted[heaviest], table.quality)


def picks(advantages: Array, latency_ms: Array, tolerance: float) -> npt.NDArray[np.int64]:
    """Pick a strategy for each row: of those within the tolerance of the best, the fastest."""
    near = advantages >= advantages.max(axis=1, keepdims=True) - tolerance
    fastest: npt.NDArray[np.int64] = np.where(near, latency_ms, np.inf).argmin(axis=1)
    return fastest


def best_fixed(quality: Array) -> int:
    """Return the column with the highest mean; the first of equals."""
    return int(quality.mean(axis=0).argmax())


def folds_of(
    rows: int, folds: int, generator: np.random.Generator
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Cut rows into folds by chance; each is the test part once."""
    parts = np.array_split(generator.permutation(rows), folds)
    return [(np.concatenate([p for p in parts if p is not part]), part) for part in parts]


def _temperature(predicted: Array, quality: Array) -> float:
    """The temperature whose softmax of predictions gives the best strategies the highest likelihood."""
    best = quality >= quality.max(axis=1, keepdims=True) - _TIES
    telling = ~best.all(axis=1)
    if not telling.any():
        return 1.0
    wanted = best[telling] / best[telling].sum(axis=1, keepdims=True)

    def loss(temperature: float) -> float:
        logits = predicted[telling] / temperature
        logits = logits - logits.max(axis=1, keepdims=True)
        return -float((wanted * (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))).sum(axis=1).mean())

    return min(_TEMPERATURES, key=loss)


def _check(row: TrainingRow, strategies: tuple[Strategy, ...], names: tuple[str, ...]) -> None:
    if tuple(sorted(row.features)) != names:
        raise EvaluationError(f"question {row.query_id[:80]!r} has other features than the first one")
    if not all(map(math.isfinite, row.features.values())):
        raise EvaluationError(f"question {row.query_id[:80]!r} has a feature that is not finite")
    for strategy in strategies:
        quality, spent = row.quality.get(strategy, math.nan), row.latency_ms.get(strategy, math.nan)
        if not 0 <= quality <= 1 or not 0 <= spent < math.inf:
            raise EvaluationError(
                f"question {row.query_id[:80]!r} needs a quality from 0 to 1 and a latency from 0 for "
                f"{strategy.value}, got {quality!r} and {spent!r}"
            )

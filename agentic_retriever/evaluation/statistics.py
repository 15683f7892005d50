"""How sure a mean is, and whether two ways differ: bootstrap intervals, randomisation tests, Holm's correction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from agentic_retriever.errors import EvaluationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESAMPLES: Final = 2_000
"""Samples of a bootstrap."""

PERMUTATIONS: Final = 10_000
"""Random sign changes of a test; with up to 13 differences all of them are tried instead."""

_EXACT_UP_TO: Final = 13
_BLOCK: Final = 1_000
_TOLERANCE: Final = 1e-12


def bootstrap_interval(values: Sequence[float], *, seed: int, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of a mean (B. Efron, Annals of Statistics 7, 1979).

    Args:
        values: One for each question, at least one.
        seed: Of the samples; as many values and the same seed draw the same questions, so intervals can be compared.
        resamples: How many samples.

    Returns:
        Lower and upper end.

    Raises:
        EvaluationError: If there is no value, or ``resamples`` is out of range.
    """
    if not len(values) or resamples < 1:
        raise EvaluationError(f"a bootstrap needs a value and a sample; got {len(values)} and {resamples}")
    numbers, rng = np.asarray(values, dtype=np.float64), np.random.default_rng(seed)
    means = [
        numbers[rng.integers(0, len(numbers), size=(min(_BLOCK, resamples - start), len(numbers)))].mean(axis=1)
        for start in range(0, resamples, _BLOCK)
    ]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return float(low), float(high)


def randomisation_test(first: Sequence[float], second: Sequence[float], *, seed: int) -> float:
    """Return how probable so large a mean difference is if it does not matter which of two ways was taken.

    A paired, two-sided randomisation test on the difference of the means (M. Smucker, J. Allan and B. Carterette,
    CIKM 2007). With up to 13 questions that differ all sign changes are tried, otherwise random ones.

    Args:
        first: Values of one way, one for each question.
        second: Values of the other on the same questions.
        seed: Of the random sign changes.

    Returns:
        The p-value, in (0, 1].

    Raises:
        EvaluationError: If the two are not of one length, or empty.
    """
    if len(first) != len(second) or not len(first):
        raise EvaluationError(f"a paired test needs as many values of both, got {len(first)} and {len(second)}")
    gaps = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    gaps = gaps[gaps != 0]
    if not len(gaps):
        return 1.0
    seen = abs(float(gaps.sum())) - _TOLERANCE
    if len(gaps) <= _EXACT_UP_TO:
        bits = (np.arange(2 ** len(gaps))[:, None] >> np.arange(len(gaps))) & 1
        return float(np.mean(np.abs((1 - 2 * bits) @ gaps) >= seen))
    rng = np.random.default_rng(seed)
    extreme = 0
    for start in range(0, PERMUTATIONS, _BLOCK):
        signs = 1 - 2 * rng.integers(0, 2, size=(min(_BLOCK, PERMUTATIONS - start), len(gaps)))
        extreme += int(np.count_nonzero(np.abs(signs @ gaps) >= seen))
    # The observed assignment counts as one of the random ones, so that p is never 0.
    return (extreme + 1) / (PERMUTATIONS + 1)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Correct p-values of several comparisons (S. Holm, Scandinavian Journal of Statistics 6, 1979).

    Args:
        p_values: By name, each in [0, 1].

    Returns:
        Corrected ones by name, in the given order, each at most 1; below 0.05 they are significant all together at 5 %.
    """
    corrected: dict[str, float] = {}
    highest = 0.0
    for at, name in enumerate(sorted(p_values, key=lambda one: p_values[one])):
        highest = max(highest, min(1.0, (len(p_values) - at) * p_values[name]))
        corrected[name] = highest
    return {name: corrected[name] for name in p_values}

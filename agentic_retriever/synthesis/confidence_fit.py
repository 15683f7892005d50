"""Fitting the confidence of answers on answers of which it is known whether they were right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agentic_retriever.schema import frozen
from agentic_retriever.synthesis.confidence import SIGNS, AnswerFeatures, ConfidenceModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, np.dtype[np.float64]]

_ROUNDS: Final = 4_000
_STILL: Final = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAnswer:
    """An answer of which it is known whether it was right.

    Attributes:
        features: What was known of it.
        right: Whether it was.
        weight: How much it counts, above 0.
    """

    features: AnswerFeatures
    right: bool
    weight: float = 1.0


def fit_confidence(
    rows: Sequence[JudgedAnswer], *, l2: float = 0.002, prior: ConfidenceModel | None = None
) -> ConfidenceModel:
    """Fit the weights by maximum likelihood with a quadratic penalty, under the signs that are fixed.

    The same rows always give the same weights.

    Args:
        rows: Judged answers, right ones and wrong ones.
        l2: The penalty, above 0.
        prior: The model whose weights the penalty pulls towards, for few rows; 0 by default. What is not known is
            then filled as there.

    Returns:
        The model; a feature that is not known is filled with its weighted mean over the rows where it is.

    Raises:
        ValueError: If the rows do not hold both right and wrong answers.
    """
    if len({row.right for row in rows}) < 2:
        raise ValueError(f"got {len(rows)} judged answers; right and wrong ones are needed to fit a confidence")
    names = list(SIGNS)
    mass = np.array([row.weight for row in rows])
    mass = mass / mass.sum()
    raw = np.array(
        [
            [math.nan if (v := values[name]) is None else v for name in names]
            for values in (r.features.values() for r in rows)
        ]
    )
    means = {name: _mean(raw[:, at], mass) for at, name in enumerate(names)}
    neutral = means if prior is None else {name: prior.neutral.get(name, 0.0) for name in names}
    filled = np.where(np.isnan(raw), [neutral[name] for name in names], raw)
    towards = np.array([0.0 if prior is None else prior.weights.get(name, 0.0) for name in names])
    right = np.array([row.right for row in rows], dtype=float)
    weights, intercept = _fitted(filled, right, mass, l2, towards)
    return ConfidenceModel(
        intercept=round(intercept, 4),
        weights=frozen({name: round(float(weights[at]), 4) for at, name in enumerate(names)}),
        neutral=frozen({name: round(value, 4) for name, value in neutral.items()}),
    )


def _fitted(filled: Array, right: Array, mass: Array, l2: float, towards: Array) -> tuple[Array, float]:
    """Projected gradient ascent; the step is one over a bound of the curvature, so it converges."""
    design = np.hstack([filled, np.ones((len(filled), 1))])
    penalty, towards = np.array([l2] * filled.shape[1] + [0.0]), np.append(towards, 0.0)
    signs = np.array([*SIGNS.values(), 0])
    step = 1 / (0.25 * float(np.linalg.eigvalsh((design * mass[:, None]).T @ design).max()) + l2)
    weights = towards.copy()
    ahead, momentum = weights.copy(), 1.0
    for _ in range(_ROUNDS):
        odds = 1 / (1 + np.exp(-np.clip(design @ ahead, -30, 30)))
        moved = ahead + step * (design.T @ (mass * (right - odds)) - penalty * (ahead - towards))
        moved = np.where(signs * moved < 0, 0.0, moved)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = moved + (momentum - 1) / following * (moved - weights)
        still = float(np.abs(moved - weights).max()) < _STILL
        weights, momentum = moved, following
        if still:
            break
    return weights[:-1], float(weights[-1])


def _mean(column: Array, mass: Array) -> float:
    known = ~np.isnan(column)
    return float((column[known] * mass[known]).sum() / mass[known].sum()) if known.any() else 0.0

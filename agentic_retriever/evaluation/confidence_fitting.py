"""Fitting the confidence of answers to one index, and telling on other questions whether that helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.reliability import measure_reliability
from agentic_retriever.synthesis import JudgedAnswer, confidence_score, fit_confidence
from agentic_retriever.synthesis.confidence import AnswerFeatures, default_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from agentic_retriever.synthesis import ConfidenceModel

    Array = npt.NDArray[np.float64]

MIN_ANSWERS: Final = 20
MIN_OF_A_KIND: Final = 5
"""Least right and least wrong answers."""

SPREAD: Final = 0.5
"""Standard deviation of the normal prior around the weights of the package."""

LEFT_OUT_WEIGHT: Final = 0.1
"""What an answer counts that was given with the relevant documents left out, beside one to the question as it stands:
about so many of the questions that people ask have no answer."""

MORE_DECLINED: Final = 0.05
"""By how much the share of right answers that are declined may grow for a calibration that is installed."""

_FOLDS: Final = 5
_REPEATS: Final = 5
_RESAMPLES: Final = 2_000
_BINS: Final = 10
_LEAST: Final = 0.01
"""Probabilities are kept this far from 0 and 1 where the logarithm is taken."""

_DECLINED_BELOW: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredQuestion:
    """An answer without a model, with what was known of it and whether it was right.

    Attributes:
        query_id: The question; its answers with and without the relevant documents share it.
        features: What was known.
        support: How well its citations support it, in [0, 1].
        right: Whether it was right.
        answerable: Whether what was searched holds an answer, as far as it is judged.
        weight: How much it counts, above 0.
    """

    query_id: str
    features: AnswerFeatures
    support: float
    right: bool
    answerable: bool
    weight: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        features = {name: getattr(self.features, name) for name in AnswerFeatures.__slots__}
        return {name: getattr(self, name) for name in self.__slots__} | {"features": features}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AnsweredQuestion:
        """Read what ``to_dict`` returned."""
        return cls(**{**data, "features": AnswerFeatures(**data["features"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How far confidences agree with what was right.

    Attributes:
        log_loss: Mean negative logarithm of the probability given to what was the case; from 0, less is better.
        brier: Mean squared distance from what was the case (G. Brier, 1950), in [0, 1], less is better.
        ece: Expected calibration error over ten bins, in [0, 1], less is better.
        declined_wrong: Share of wrong answers below 0.5, where the router says that nothing was found.
        declined_right: Share of right answers below 0.5.
    """

    log_loss: float
    brier: float
    ece: float
    declined_wrong: float
    declined_right: float

    def to_dict(self) -> dict[str, float]:
        """Return plain JSON types."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceValidation:
    """What fitted weights reach on questions that they were not fitted on.

    Attributes:
        rows: How many answers, those with the relevant documents left out included.
        questions: How many questions.
        unanswerable: How many answers were to questions that nothing answers, or with the relevant documents left out.
        folds: How many folds; the answers of one question are in one.
        repeats: How often the questions were cut into folds anew; all figures are means over that.
        before: With the weights of the package.
        after: With the weights fitted on the other folds.
        brier_gain: ``before.brier`` less ``after.brier``, and its 95 % interval by a paired bootstrap over questions.
        log_loss_gain: The same of the logarithmic loss.
    """

    rows: int
    questions: int
    unanswerable: int
    folds: int
    repeats: int
    before: Calibration
    after: Calibration
    brier_gain: tuple[float, float, float]
    log_loss_gain: tuple[float, float, float]

    @property
    def is_closer(self) -> bool:
        """Whether both losses are less, and that of the squares surely so."""
        return self.brier_gain[1] > 0 and self.log_loss_gain[0] > 0

    @property
    def silences(self) -> bool:
        """Whether it would decline right answers: honest perhaps, where few answers are right, but of no use."""
        return self.after.declined_right > self.before.declined_right + MORE_DECLINED

    @property
    def helps(self) -> bool:
        """Whether it is closer to what is right, and does not silence right answers."""
        return self.is_closer and not self.silences

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        plain = {name: getattr(self, name) for name in ("rows", "questions", "unanswerable", "folds", "repeats")}
        return {
            **plain,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "brier_gain": list(self.brier_gain),
            "log_loss_gain": list(self.log_loss_gain),
            "helps": self.helps,
        }


def too_few(rows: Sequence[AnsweredQuestion]) -> str:
    """Say why answers are too few to fit on; ``""`` when they are enough."""
    questions, right = len({row.query_id for row in rows}), sum(row.right for row in rows)
    if questions < MIN_ANSWERS:
        return f"{questions} judged questions are too few, {MIN_ANSWERS} are the least"
    if min(right, len(rows) - right) < MIN_OF_A_KIND:
        return f"{right} right and {len(rows) - right} wrong answers are too few, {MIN_OF_A_KIND} of each are the least"
    return ""


def fit_index_confidence(rows: Sequence[AnsweredQuestion]) -> ConfidenceModel:
    """Fit the weights of an index, drawn towards those of the package by a normal prior: few answers move them little.

    Args:
        rows: Answers, right ones and wrong ones.

    Raises:
        ValueError: If the answers are not of both kinds.
    """
    judged = [JudgedAnswer(features=row.features, right=row.right, weight=row.weight) for row in rows]
    mass = sum(row.weight for row in rows)
    return fit_confidence(judged, l2=1 / (SPREAD**2 * max(mass, 1e-9)), prior=default_model())


def validate_confidence(rows: Sequence[AnsweredQuestion], *, seed: int = 0) -> ConfidenceValidation:
    """Fit on all folds but one and measure on that one, in turn.

    Args:
        rows: Answers, at least 20 questions and five of each kind.
        seed: Of the folds and of the bootstrap; the same seed gives the same figures.

    Raises:
        EvaluationError: If there are too few answers.
    """
    missing = too_few(rows)
    if missing:
        raise EvaluationError(missing)
    given, fitted = _scores(rows, default_model()), _held_out(rows, seed)
    right = np.array([row.right for row in rows], dtype=np.float64)
    mass = np.array([row.weight for row in rows])
    squares: Array = np.mean([_squares(one, right) for one in fitted], axis=0)
    losses: Array = np.mean([_losses(one, right) for one in fitted], axis=0)
    return ConfidenceValidation(
        rows=len(rows),
        questions=len({row.query_id for row in rows}),
        unanswerable=sum(not row.answerable for row in rows),
        folds=_FOLDS,
        repeats=_REPEATS,
        before=_calibration(given, right, mass),
        after=_mean([_calibration(one, right, mass) for one in fitted]),
        brier_gain=_gain(rows, _squares(given, right) - squares, seed),
        log_loss_gain=_gain(rows, _losses(given, right) - losses, seed),
    )


def _held_out(rows: Sequence[AnsweredQuestion], seed: int) -> list[Array]:
    """Score every answer by weights fitted without its question, once for each repeat."""
    generator = np.random.default_rng(seed)
    names = list(dict.fromkeys(row.query_id for row in rows))
    of = np.array([names.index(row.query_id) for row in rows])
    found = []
    for _ in range(_REPEATS):
        scores = np.zeros(len(rows))
        for part in np.array_split(generator.permutation(len(names)), _FOLDS):
            inside = np.isin(of, part)
            others = [row for row, held in zip(rows, inside, strict=True) if not held]
            one_kind = len({row.right for row in others}) < 2
            model = default_model() if one_kind else fit_index_confidence(others)
            scores[inside] = _scores([row for row, held in zip(rows, inside, strict=True) if held], model)
        found.append(scores)
    return found


def _scores(rows: Sequence[AnsweredQuestion], model: ConfidenceModel) -> Array:
    return np.array(
        [
            confidence_score(
                coverage=row.features.coverage,
                relevance=row.features.relevance,
                support=row.support,
                features=row.features,
                model=model,
            )
            for row in rows
        ]
    )


def _squares(given: Array, right: Array) -> Array:
    return (given - right) ** 2


def _losses(given: Array, right: Array) -> Array:
    kept = np.clip(given, _LEAST, 1 - _LEAST)
    return -np.where(right > 0, np.log(kept), np.log(1 - kept))


def _calibration(given: Array, right: Array, mass: Array) -> Calibration:
    reliability = measure_reliability(given.tolist(), (right > 0).tolist(), bins=_BINS, weights=mass.tolist())
    declined = given < _DECLINED_BELOW
    return Calibration(
        log_loss=float(np.average(_losses(given, right), weights=mass)),
        brier=float(np.average(_squares(given, right), weights=mass)),
        ece=float(reliability.ece or 0.0),
        declined_wrong=float(declined[right == 0].mean()),
        declined_right=float(declined[right > 0].mean()),
    )


def _mean(found: Sequence[Calibration]) -> Calibration:
    names = Calibration.__slots__
    return Calibration(**{name: float(np.mean([getattr(one, name) for one in found])) for name in names})


def _gain(rows: Sequence[AnsweredQuestion], less: Array, seed: int) -> tuple[float, float, float]:
    """Mean of what the losses are less, and the ends of its 95 % interval by a bootstrap over questions."""
    names = list(dict.fromkeys(row.query_id for row in rows))
    of = np.array([names.index(row.query_id) for row in rows])
    mass = np.array([row.weight for row in rows])
    gains = np.bincount(of, weights=mass * less)
    masses = np.bincount(of, weights=mass)
    generator = np.random.default_rng(seed)
    drawn = (generator.integers(0, len(names), len(names)) for _ in range(_RESAMPLES))
    means = [gains[one].sum() / masses[one].sum() for one in drawn]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(gains.sum() / masses.sum()), float(low), float(high)

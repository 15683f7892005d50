"""Temperature scaling of stage one, and how far probabilities are from what comes true.

One temperature divides the logits (C. Guo, G. Pleiss, Y. Sun and K. Q. Weinberger, "On Calibration of Modern Neural
Networks", ICML 2017), so that the order of the indexes, and with it every first choice, stays as it is. It is fitted on
questions whose index is known, or, without any, on pseudo-queries: sentences of sampled nodes, each held out from the
profile that it is asked of. How well either serves real questions is in ``docs/routing.md``.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agentic_retriever.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

MIN_TEMPERATURE: Final = 0.25
MAX_TEMPERATURE: Final = 8.0
LABELS: Final = "labels"
PSEUDO_QUERIES: Final = "pseudo-queries"
NOTHING: Final = "nothing"

CALIBRATION_FORMAT: Final = 1
_STEPS: Final = 60
_GOLDEN: Final = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A temperature and what it was fitted on.

    Attributes:
        temperature: What logits are divided by, in [0.25, 8]; above 1 makes probabilities more cautious.
        fitted_on: ``"labels"``, ``"pseudo-queries"`` or ``"nothing"``.
        queries: How many questions it was fitted on.
        indexes: How many indexes they were asked of.
        error_before: Expected calibration error of those questions at temperature 1.
        error_after: The same at this temperature.
    """

    temperature: float = 1.0
    fitted_on: str = NOTHING
    queries: int = 0
    indexes: int = 0
    error_before: float = 0.0
    error_after: float = 0.0

    def __post_init__(self) -> None:
        if not _is_number(self.temperature) or not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            raise ConfigError(
                f"temperature must be a number from {MIN_TEMPERATURE} to {MAX_TEMPERATURE}, "
                f"got {str(self.temperature)[:40]!r}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "format": CALIBRATION_FORMAT,
            "temperature": self.temperature,
            "fitted_on": self.fitted_on,
            "queries": self.queries,
            "indexes": self.indexes,
            "error_before": self.error_before,
            "error_after": self.error_after,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Calibration:
        """Read what ``to_dict`` returned.

        Raises:
            ConfigError: If it is of another format, or a value is missing or not possible.
        """
        if data.get("format") != CALIBRATION_FORMAT:
            raise ConfigError(
                f"calibration has format {str(data.get('format'))[:40]!r}, only {CALIBRATION_FORMAT} can be read; "
                "fit it again"
            )
        numbers = {name: data.get(name) for name in ("temperature", "error_before", "error_after")}
        counts = {name: data.get(name) for name in ("queries", "indexes")}
        bad = [name for name, value in numbers.items() if not _is_number(value)]
        bad += [name for name, value in counts.items() if not isinstance(value, int) or isinstance(value, bool)]
        if bad:
            raise ConfigError(f"calibration has no usable {', '.join(bad)}; fit it again")
        return cls(fitted_on=str(data.get("fitted_on", NOTHING)), **numbers, **counts)  # type: ignore[arg-type]  # checked

    def save(self, path: Path) -> None:
        """Write it as JSON.

        Raises:
            ConfigError: If the file cannot be written.
        """
        try:
            path.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        except OSError as err:
            raise ConfigError(f"cannot write {path}: {err.strerror or err}; check folder and permissions") from err

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read what ``save`` wrote.

        Raises:
            ConfigError: If the file cannot be read or is no calibration.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as err:
            raise ConfigError(f"cannot read {path}: {err.strerror or err}") from err
        except ValueError as err:
            raise ConfigError(f"{path} is not JSON; fit the calibration again") from err
        if not isinstance(data, dict):
            raise ConfigError(f"{path} holds no calibration but {type(data).__name__}; fit it again")
        return cls.from_dict(data)


def expected_calibration_error(
    confidences: Sequence[float], correct: Sequence[bool], *, bins: int = 15, weights: Sequence[float] | None = None
) -> float:
    """Mean distance between confidence and accuracy over bins of equal width (Naeini et al., AAAI 2015).

    Args:
        confidences: Probability given to each choice, in [0, 1].
        correct: Whether each choice was right.
        bins: How many bins.
        weights: What each choice counts; 1 by default.

    Returns:
        In [0, 1]; 0.0 for no choices.

    Raises:
        ConfigError: If the lengths differ, a confidence is not in [0, 1] or there is no bin.
    """
    sure = np.asarray(confidences, dtype=np.float64)
    right = np.asarray(correct, dtype=np.float64)
    share = np.ones(len(sure)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(sure) == len(right) == len(share):
        raise ConfigError(f"{len(sure)} confidences, {len(right)} outcomes and {len(share)} weights do not match")
    if bins < 1 or not bool(np.all((sure >= 0) & (sure <= 1))):
        raise ConfigError("confidences must be numbers from 0 to 1, and there must be at least one bin")
    if not share.sum() > 0:
        return 0.0
    bin_of = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_of, weights=share * (right - sure), minlength=bins)
    return float(np.abs(gaps).sum() / share.sum())


def fit_temperature(logits: npt.ArrayLike, labels: npt.ArrayLike, *, weights: npt.ArrayLike | None = None) -> float:
    """Find the temperature at which the known indexes are likeliest.

    The mean negative logarithm of their probability has one minimum in the inverse temperature, so that golden section
    finds it; the same questions always give the same temperature.

    Args:
        logits: ``(questions, indexes)``; finite, or minus infinity for an index that cannot be.
        labels: Column of the right index of each question, ``(questions,)``.
        weights: What each question counts, ``(questions,)``; 1 by default.

    Returns:
        In [0.25, 8]; 1.0 for no questions.

    Raises:
        ConfigError: If the shapes do not fit, or a label names no column.
    """
    table = np.asarray(logits, dtype=np.float64)
    right = np.asarray(labels)
    count = np.ones(len(right)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(right):
        return 1.0
    if table.ndim != 2 or right.shape != (len(table),) or count.shape != right.shape:
        raise ConfigError(f"logits {table.shape}, labels {right.shape} and weights {count.shape} do not match")
    if right.dtype.kind not in "iu" or right.min() < 0 or right.max() >= table.shape[1]:
        raise ConfigError(f"labels must be columns from 0 to {table.shape[1] - 1}")
    if np.isnan(table).any() or np.isposinf(table).any():
        raise ConfigError("logits must be finite, or minus infinity for an index that cannot be")

    def loss(inverse_log: float) -> float:
        shares = softmax_rows(table * math.exp(inverse_log))
        likely = np.log(np.maximum(shares[np.arange(len(right)), right], 1e-300))
        return -float((count * likely).sum())

    return math.exp(-_least(loss, -math.log(MAX_TEMPERATURE), -math.log(MIN_TEMPERATURE)))


def softmax_rows(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Turn rows of logits, ``(questions, indexes)``, into rows of probabilities."""
    top = logits.max(axis=1, keepdims=True)
    powers = np.exp(logits - np.where(np.isfinite(top), top, 0.0))
    shares: npt.NDArray[np.float64] = powers / np.maximum(powers.sum(axis=1, keepdims=True), 1e-300)
    return shares


def _least(loss: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one minimum is least, by golden section."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = loss(left), loss(right)
    for _ in range(_STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = loss(right)
    return (low + high) / 2


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

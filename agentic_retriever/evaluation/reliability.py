"""Whether probabilities mean what they say: expected calibration error, as a table and as a diagram."""

from __future__ import annotations

import importlib
import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agentic_retriever.errors import ConfigError, EvaluationError
from agentic_retriever.evaluation.measures import BENCH_HINT
from agentic_retriever.json_files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


BINS: Final = 15
"""Bins of equal width, as in the paper."""

PLOT_FORMATS: Final = ("svg", "png")

_COLUMNS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """The choices whose confidence lies in one stretch."""

    low: float
    high: float
    count: int
    weight: float  # Their share of all, in [0, 1]
    confidence: float | None  # Their mean confidence, or None without any
    accuracy: float | None  # The share that was right, or None without any

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Confidence against accuracy."""

    bins: tuple[ReliabilityBin, ...]
    ece: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"ece": self.ece, "bins": [one.to_dict() for one in self.bins]}


def measure_reliability(
    confidences: Sequence[float], right: Sequence[bool], *, bins: int = BINS, weights: Sequence[float] | None = None
) -> Reliability:
    """Hold the confidence of choices against how often they were right."""
    sure, hits = np.asarray(confidences, dtype=np.float64), np.asarray(right, dtype=np.float64)
    load = np.ones(len(sure)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(sure) == len(hits) == len(load):
        raise ValueError(f"{len(sure)} confidences, {len(hits)} outcomes, {len(load)} weights; they must be as many")
    if not ((sure >= 0) & (sure <= 1)).all():
        raise ValueError("a confidence must be in [0, 1]")
    place = np.minimum((sure * bins).astype(np.int64), bins - 1)
    mass = np.bincount(place, weights=load, minlength=bins)
    counts = np.bincount(place, minlength=bins)
    mean_sure = np.bincount(place, weights=load * sure, minlength=bins)
    mean_right = np.bincount(place, weights=load * hits, minlength=bins)
    total = float(load.sum())
    made = tuple(
        ReliabilityBin(
            low=at / bins,
            high=(at + 1) / bins,
            count=int(counts[at]),
            weight=float(mass[at] / total) if total else 0.0,
            confidence=float(mean_sure[at] / mass[at]) if mass[at] else None,
            accuracy=float(mean_right[at] / mass[at]) if mass[at] else None,
        )
        for at in range(bins)
    )
    gaps = np.bincount(place, weights=load * (hits - sure), minlength=bins)
    return Reliability(bins=made, ece=float(np.abs(gaps).sum() / total) if total else None)


def check_plot(path: Path) -> str:
    """See whether a diagram can be drawn into a file, before anything is measured."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in PLOT_FORMATS:
        raise EvaluationError(f"cannot draw into {path}: its name must end in .{' or .'.join(PLOT_FORMATS)}")
    _matplotlib("figure")
    return kind


def draw_reliability(measured: Mapping[str, Reliability], path: Path) -> None:
    """Draw a reliability diagram for each of several ways to choose."""
    kind = check_plot(path)
    columns = min(_COLUMNS, len(measured))
    rows = math.ceil(len(measured) / columns)
    buffer = io.BytesIO()
    with _matplotlib("").rc_context({"svg.hashsalt": "agentic-retriever"}):
        figure = _matplotlib("figure").Figure(figsize=(4.2 * columns, 4.2 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, (name, reliability) in zip(grid.flat, measured.items(), strict=False):
            _draw(axes, name, reliability)
        for axes in list(grid.flat)[len(measured) :]:
            axes.set_axis_off()
        figure.savefig(buffer, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, buffer.getvalue())


def _draw(axes: Any, name: str, reliability: Reliability) -> None:  # noqa: ANN401 - of an optional library
    filled = [one for one in reliability.bins if one.count]
    width = 1 / len(reliability.bins)
    axes.plot([0, 1], [0, 1], linestyle="--", color="0.5", linewidth=1, label="calibrated")
    axes.bar(
        [one.low for one in filled],
        [one.accuracy for one in filled],
        width=width,
        align="edge",
        color="#4878a8",
        edgecolor="white",
        label="right",
    )
    axes.plot(
        [one.confidence for one in filled],
        [one.accuracy for one in filled],
        marker="o",
        linestyle="",
        color="#c44e52",
        markersize=4,
        label="mean confidence",
    )
    for one in filled:
        axes.annotate(str(one.count), ((one.low + one.high) / 2, 0.02), ha="center", fontsize=6, color="black")
    told = "" if reliability.ece is None else f" (ECE {reliability.ece:.3f})"
    axes.set(title=name + told, xlabel="confidence", ylabel="share right", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(loc="upper left", fontsize=7)


def _matplotlib(module: str) -> Any:  # noqa: ANN401 - an optional module
    try:
        return importlib.import_module(f"matplotlib.{module}" if module else "matplotlib")
    except ImportError as err:
        raise ConfigError(f"drawing a diagram {BENCH_HINT}") from err

"""Means with their intervals as a plot: where each line, point and figure stands; ``interval_plot.html`` draws it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMES, _PLOT, _FIGURES, _ROW, _AXIS = 200, 340, 50, 18, 22
_MOST_TICKS: Final = 6
_RADIUS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One line of the plot."""

    name: str
    mean: float
    low: float
    high: float
    hollow: bool = False  # a ring instead of a point, for what is not to be compared on equal terms
    best: bool = False  # the name in bold


def interval_plot(lines: Sequence[Interval]) -> dict[str, Any] | None:
    """Place means with their intervals, one below the other; ``None`` when no line has finite figures."""
    drawn = [line for line in lines if all(map(math.isfinite, (line.mean, line.low, line.high)))]
    if not drawn:
        return None
    ticks = _ticks(min(line.low for line in drawn), max(line.high for line in drawn))
    return {
        "width": _NAMES + _PLOT + _FIGURES,
        "height": _ROW * len(drawn) + _AXIS,
        "axis": _ROW * len(drawn),
        "figures_x": _NAMES + _PLOT + 6,
        "radius": _RADIUS,
        "ticks": [(_at(tick, ticks), f"{tick:g}") for tick in ticks],
        "lines": [_line(line, ticks, _ROW * at + _ROW // 2) for at, line in enumerate(drawn)],
    }


def _ticks(low: float, high: float) -> list[float]:
    """Return round figures that take in both ends, two at least and six at most but for rounding."""
    span = max(high - low, 1e-3)
    rough = span / (_MOST_TICKS - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * at, 10) for at in range(first, max(last, first + 1) + 1)]


def _at(value: float, ticks: Sequence[float]) -> float:
    share = (value - ticks[0]) / (ticks[-1] - ticks[0])
    return round(_NAMES + 8 + share * (_PLOT - 16), 1)


def _line(line: Interval, ticks: Sequence[float], y: int) -> dict[str, Any]:
    x, low, high = _at(line.mean, ticks), _at(line.low, ticks), _at(line.high, ticks)
    # A ring must let the line through as little as the ground does, so the line stops on both sides of it.
    strokes = [(low, max(low, x - _RADIUS)), (min(high, x + _RADIUS), high)] if line.hollow else [(low, high)]
    return {"of": line, "x": x, "y": y, "strokes": strokes}

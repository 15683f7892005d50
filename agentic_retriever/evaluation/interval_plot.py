"""Means with their intervals as a plot that is written by hand: no library, no other file, the theme's colours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agentic_retriever.evaluation.markup import Html, element, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMES, _PLOT, _FIGURES, _ROW, _AXIS = 200, 340, 50, 18, 22
_MAX_NAME_CHARS: Final = 34
_MOST_TICKS: Final = 6
_FONT: Final = "font-size:11px;font-family:inherit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One line of the plot."""

    name: str
    mean: float
    low: float
    high: float
    hollow: bool = False
    best: bool = False


def interval_plot(lines: Sequence[Interval], title: str) -> Html:
    """Draw means with their intervals, one line below the other."""
    drawn = [line for line in lines if all(map(math.isfinite, (line.mean, line.low, line.high)))]
    if not drawn:
        return Html()
    ticks = _ticks(min(line.low for line in drawn), max(line.high for line in drawn))
    height = _ROW * len(drawn) + _AXIS
    parts = [element("title", title), *_grid(ticks, height)]
    for at, line in enumerate(drawn):
        parts += _line(line, ticks, _ROW * at + _ROW // 2)
    width = _NAMES + _PLOT + _FIGURES
    style = f"max-width:100%;height:auto;color:inherit;{_FONT}"
    return element("svg", *parts, viewBox=f"0 0 {width} {height}", width=width, height=height, role="img", style=style)


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


def _grid(ticks: Sequence[float], height: int) -> list[Html]:
    parts = []
    for tick in ticks:
        x = _at(tick, ticks)
        parts.append(
            element("line", x1=x, x2=x, y1=0, y2=height - _AXIS, stroke="currentColor", opacity=".2", stroke_width=1)
        )
        parts.append(
            element("text", f"{tick:g}", x=x, y=height - 6, text_anchor="middle", fill="currentColor", opacity=".75")
        )
    return parts


def _line(line: Interval, ticks: Sequence[float], y: int) -> list[Html]:
    weight = "bold" if line.best else "normal"
    x = _at(line.mean, ticks)
    name = shortened(line.name, _MAX_NAME_CHARS)
    ends = {"x1": _at(line.low, ticks), "x2": _at(line.high, ticks), "y1": y, "y2": y}
    # A ring must let the line through as little as the ground does, so the line stops on both sides of it.
    radius = 4
    inside = "none" if line.hollow else "currentColor"
    strokes = (
        [{**ends, "x2": max(ends["x1"], x - radius)}, {**ends, "x1": min(ends["x2"], x + radius)}]
        if line.hollow
        else [ends]
    )
    return [
        element("text", name, x=0, y=y + 4, fill="currentColor", font_weight=weight),
        *(element("line", **stroke, stroke="currentColor", opacity=".6", stroke_width=2) for stroke in strokes),
        element("circle", cx=x, cy=y, r=radius, fill=inside, stroke="currentColor", stroke_width=1.5),
        element("text", f"{line.mean:.3f}", x=_NAMES + _PLOT + 6, y=y + 4, fill="currentColor", font_weight=weight),
    ]

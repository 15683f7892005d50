"""The plots of a benchmark, drawn by matplotlib."""

from __future__ import annotations

import importlib
import io
import math
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agentic_retriever.errors import ConfigError, EvaluationError
from agentic_retriever.evaluation.measures import BENCH_HINT, MEASURES, ORACLE, Reliability
from agentic_retriever.json_files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


OURS, PEER, FRONT, GREY = "#3b78b5", "#c2703d", "#4f9a55", "#888888"

PLOT_FORMATS: Final = ("svg", "png")

_COLUMNS: Final = 3
_SIZE: Final = (7.2, 4.2)
_ID: Final = re.compile(r'(\bid="|url\(#|href="#)')
_COMMENT: Final = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
_STYLE: Final = {
    "svg.hashsalt": "agentic-retriever",
    "svg.fonttype": "none",
    "font.size": 9,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "axes.titlecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "legend.labelcolor": GREY,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.facecolor": "none",
    "legend.edgecolor": GREY,
    "text.parse_math": False,
}
"""Nothing but mid-grey on nothing, so that a plot can be read on light and on dark ground."""


def tradeoff_figure(result: Any) -> Any:  # noqa: ANN401 - a TargetResult, which itself draws by this file
    """Draw quality against latency for one target; see ``Benchmark.plot``."""
    with _library("").rc_context(_STYLE):
        return _tradeoff(result.rows)


def target_svgs(result: Any, prefix: str) -> dict[str, str]:  # noqa: ANN401 - a TargetResult
    """Draw everything about one target as SVG elements by title, whose ids begin with a prefix of their page's own."""
    with _library("").rc_context(_STYLE):
        drawn = {
            "Quality against latency": _tradeoff(result.rows),
            "Distribution over the questions": _distributions(list(result.rows.values())),
        }
        if result.routing is not None:
            drawn["Regret by question"] = _regret(result.routing.regret)
            drawn["Confidence in the chosen strategy"] = _reliability(result.routing.reliability)
        if result.answers is not None and result.answers.reliability is not None:
            drawn["Confidence in the answers"] = _reliability(result.answers.reliability)
        return {title: _svg(figure, f"{prefix}{at}-") for at, (title, figure) in enumerate(drawn.items())}


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names that no other one beats in both latency and quality, the fastest first."""
    front: list[str] = []
    best = float("-inf")
    for name in sorted(points, key=lambda one: (points[one][0], -points[one][1])):
        if points[name][1] > best:
            front.append(name)
            best = points[name][1]
    return front


def _tradeoff(rows: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of an optional library
    figure, axes = _axes()
    ours = {name: row for name, row in rows.items() if name != ORACLE}
    points = {name: (max(row.percentile_ms(50), 1e-3), row.mean()) for name, row in ours.items()}
    for name, row in ours.items():
        low, high = row.intervals[MEASURES[0]]
        at, mean = points[name]
        colour = PEER if row.peer else OURS
        axes.errorbar(
            [at], [mean], yerr=[[max(0.0, mean - low)], [max(0.0, high - mean)]], fmt="o", color=colour, capsize=2
        )
    front = pareto_front(points)
    axes.step(
        [points[n][0] for n in front], [points[n][1] for n in front], where="post", color=FRONT, label="Pareto front"
    )
    if ORACLE in rows:
        axes.axhline(rows[ORACLE].mean(), linestyle="--", color=GREY, linewidth=1, label="oracle")
    axes.set_xscale("log")
    axes.margins(0.08, 0.12)
    axes.xaxis.set_minor_locator(_library("ticker").LogLocator(subs=(2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    fastest, slowest = axes.get_xlim()
    # Over more than three powers of ten, figures between them would run into each other.
    axes.xaxis.set_minor_formatter("{x:g}" if slowest < 1000 * fastest else "")
    axes.set(xlabel="median milliseconds of one question", ylabel=f"mean {MEASURES[0]}, 95 % interval")
    axes.legend(fontsize=7, loc="lower right")
    _name_points(figure, axes, points, {name: row.intervals[MEASURES[0]] for name, row in ours.items()})
    return figure


def _name_points(
    figure: Any,  # noqa: ANN401 - of an optional library
    axes: Any,  # noqa: ANN401 - likewise
    points: Mapping[str, tuple[float, float]],
    intervals: Mapping[str, tuple[float, float]],
) -> None:
    """Write each name beside its point, as near as it covers no other name, no point, no interval, nor the legend."""
    figure.draw_without_rendering()  # settles the layout, so that places on the page are known
    box_of = _library("transforms").Bbox.from_bounds
    places = {name: axes.transData.transform(point) for name, point in points.items()}
    ends = {name: [axes.transData.transform((points[name][0], end))[1] for end in intervals[name]] for name in points}
    taken = [box_of(x - 4, y - 4, 8, 8) for x, y in places.values()]
    taken += [box_of(x - 1, ends[name][0], 2, ends[name][1] - ends[name][0]) for name, (x, _) in places.items()]
    taken.append(axes.get_legend().get_window_extent())
    pixels = figure.dpi / 72
    for name, (x, y) in places.items():
        label = axes.annotate(
            name, points[name], textcoords="offset points", xytext=(0, 0), fontsize=7, ha="center", va="center",
            arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": GREY, "shrinkA": 0, "shrinkB": 3},
        )  # fmt: skip
        label.set_in_layout(False)
        size = _library("text").Text.get_window_extent(label)  # without its arrow
        for right, up in _around(size.width + 4, size.height + 3):
            box = box_of(x + right - size.width / 2 - 2, y + up - size.height / 2 - 1, size.width + 4, size.height + 2)
            inside = axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1 and axes.bbox.y0 < box.y0 and box.y1 < axes.bbox.y1
            if inside and not any(box.overlaps(other) for other in taken):
                break
        label.xyann = (right / pixels, up / pixels)
        taken.append(box)


def _around(width: float, height: float) -> Iterator[tuple[float, float]]:
    """Yield offsets in pixels from a point to the middle of its label, the nearest first, all around it."""
    for distance in range(5, 600, 4):
        for turn in range(24):
            angle = math.pi * ((turn + 1) // 2 * (-1) ** turn) / 12  # on the right first, then up and down from there
            yield math.cos(angle) * (distance + width / 2), math.sin(angle) * (distance + height / 2)


def _distributions(rows: Sequence[Any]) -> Any:  # noqa: ANN401 - of an optional library
    figure, axes = _axes()
    values = [row.values(MEASURES[0]) for row in rows]
    axes.boxplot(
        values,
        showmeans=True,
        flierprops={"markersize": 2, "markeredgecolor": GREY},
        boxprops={"color": OURS},
        whiskerprops={"color": GREY},
        capprops={"color": GREY},
        medianprops={"color": OURS},
        meanprops={"marker": "d", "markerfacecolor": FRONT, "markeredgecolor": FRONT, "markersize": 5},
    )
    axes.set_xticks(range(1, len(rows) + 1), [row.name for row in rows], rotation=40, ha="right", fontsize=7)
    axes.set(ylabel=f"{MEASURES[0]} of single questions\n(box: quartiles, diamond: mean)", ylim=(-0.02, 1.02))
    return figure


def _regret(regret: Mapping[str, float]) -> Any:  # noqa: ANN401 - of an optional library
    figure, axes = _axes()
    ordered = np.sort(np.array(list(regret.values())))[::-1]
    axes.bar(np.arange(len(ordered)), ordered, width=1.0, color=PEER)
    axes.set(
        xlabel=f"questions, by regret ({int((ordered > 1e-9).sum())} of {len(ordered)} above 0)",
        ylabel=f"{MEASURES[0]} below the best strategy",
    )
    return figure


def _reliability(reliability: Reliability) -> Any:  # noqa: ANN401 - of an optional library
    figure, axes = _axes()
    _draw_reliability(axes, reliability)
    return figure


def _draw_reliability(axes: Any, reliability: Reliability, title: str = "") -> None:  # noqa: ANN401 - likewise
    filled = [one for one in reliability.bins if one.count]
    right = [one.accuracy for one in filled]
    axes.plot([0, 1], [0, 1], linestyle="--", color=GREY, linewidth=1, label="calibrated")
    axes.bar([one.low for one in filled], right, width=1 / len(reliability.bins), align="edge", color=OURS)
    sure = [one.confidence for one in filled]
    axes.plot(sure, right, marker="o", linestyle="", color=PEER, markersize=4, label="mean confidence")
    for one in filled:
        axes.annotate(str(one.count), ((one.low + one.high) / 2, 0.02), ha="center", fontsize=6)
    error = "" if reliability.ece is None else f", calibration error {reliability.ece:.3f}"
    axes.set(title=title, xlabel=f"confidence{error}", ylabel="share right", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(loc="upper left", fontsize=7)


# Reliability diagrams in a file of their own.


def check_plot(path: Path) -> str:
    """See whether a diagram can be drawn into a file, before anything is measured; return its kind."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in PLOT_FORMATS:
        raise EvaluationError(f"cannot draw into {path}: its name must end in .{' or .'.join(PLOT_FORMATS)}")
    _library("figure")
    return kind


def draw_reliability(measured: Mapping[str, Reliability], path: Path) -> None:
    """Draw a reliability diagram for each of several ways to choose."""
    kind = check_plot(path)
    columns = min(_COLUMNS, len(measured))
    rows = math.ceil(len(measured) / columns)
    buffer = io.BytesIO()
    with _library("").rc_context({"svg.hashsalt": "agentic-retriever"}):
        figure = _library("figure").Figure(figsize=(4.2 * columns, 4.2 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, (name, reliability) in zip(grid.flat, measured.items(), strict=False):
            _draw_reliability(axes, reliability, name)
        for axes in list(grid.flat)[len(measured) :]:
            axes.set_axis_off()
        figure.savefig(buffer, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, buffer.getvalue())


def _axes() -> tuple[Any, Any]:
    figure = _library("figure").Figure(figsize=_SIZE, layout="constrained")
    return figure, figure.subplots()


def _svg(figure: Any, prefix: str) -> str:  # noqa: ANN401 - of an optional library
    """Return a figure as an SVG element to stand in a page: no prologue, no outside address but the name spaces."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = _COMMENT.sub("", buffer.getvalue().decode("utf-8")).strip()
    return _ID.sub(lambda found: found[1] + prefix, svg)


def _library(module: str) -> Any:  # noqa: ANN401 - an optional module
    try:
        return importlib.import_module(f"matplotlib.{module}" if module else "matplotlib")
    except ImportError as err:
        raise ConfigError(f"drawing a plot {BENCH_HINT}") from err

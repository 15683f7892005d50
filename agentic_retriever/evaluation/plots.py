"""The plots of a benchmark, drawn by matplotlib."""

from __future__ import annotations

import importlib
import io
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agentic_retriever.errors import ConfigError, EvaluationError, unknown_name
from agentic_retriever.evaluation.measures import BENCH_HINT, MEASURES
from agentic_retriever.evaluation.options import ORACLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.evaluation.reliability import Reliability
    from agentic_retriever.evaluation.results import Benchmark, Row, TargetResult

OURS, PEER, FRONT, GREY = "#3b78b5", "#c2703d", "#4f9a55", "#888888"

_SIZE: Final = (7.2, 4.2)
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


def tradeoff_figure(result: Benchmark, target: str | None = None) -> Any:  # noqa: ANN401 - of an optional library
    """Draw quality against latency for one target; see ``Benchmark.plot``."""
    names = list(result.results)
    if target is not None and target not in names:
        raise EvaluationError(unknown_name("data set", target, names))
    chosen = result.results[target or names[0]]
    with _library("").rc_context(_STYLE):
        return _tradeoff(chosen)


def target_svgs(result: TargetResult) -> dict[str, str]:
    """Draw everything about one target."""
    with _library("").rc_context(_STYLE):
        drawn = {
            "Quality against latency": _svg(_tradeoff(result)),
            "Distribution over the questions": _svg(_distributions(list(result.rows.values()))),
        }
        if result.routing is not None:
            drawn["Regret by question"] = _svg(_regret(result.routing.regret))
            drawn["Confidence in the chosen strategy"] = _svg(_reliability(result.routing.reliability))
        if result.answers is not None and result.answers.reliability is not None:
            drawn["Confidence in the answers"] = _svg(_reliability(result.answers.reliability))
    return drawn


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names that no other one beats in both latency and quality, the fastest first."""
    front: list[str] = []
    best = float("-inf")
    for name in sorted(points, key=lambda one: (points[one][0], -points[one][1])):
        if points[name][1] > best:
            front.append(name)
            best = points[name][1]
    return front


def _tradeoff(result: TargetResult) -> Any:  # noqa: ANN401 - of an optional library
    figure, axes = _axes()
    rows = {name: row for name, row in result.rows.items() if name != ORACLE}
    points = {name: (max(row.percentile_ms(50), 1e-3), row.mean()) for name, row in rows.items()}
    for name, row in rows.items():
        low, high = row.intervals[MEASURES[0]]
        at, mean = points[name]
        colour = PEER if row.peer else OURS
        axes.errorbar(
            [at], [mean], yerr=[[max(0.0, mean - low)], [max(0.0, high - mean)]], fmt="o", color=colour, capsize=2
        )
        axes.annotate(name, (at, mean), textcoords="offset points", xytext=(4, 4), fontsize=7, rotation=25)
    front = pareto_front(points)
    axes.step(
        [points[n][0] for n in front], [points[n][1] for n in front], where="post", color=FRONT, label="Pareto front"
    )
    if ORACLE in result.rows:
        axes.axhline(result.rows[ORACLE].mean(), linestyle="--", color=GREY, linewidth=1, label="oracle")
    axes.set_xscale("log")
    for axis in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        axis("{x:g}")
    axes.set(xlabel="median milliseconds of one question", ylabel=f"mean {MEASURES[0]}, 95 % interval")
    axes.legend(fontsize=7)
    return figure


def _distributions(rows: Sequence[Row]) -> Any:  # noqa: ANN401 - of an optional library
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
    filled = [one for one in reliability.bins if one.count]
    width = 1 / len(reliability.bins)
    axes.plot([0, 1], [0, 1], linestyle="--", color=GREY, linewidth=1, label="calibrated")
    axes.bar([one.low for one in filled], [one.accuracy or 0 for one in filled], width=width, align="edge", color=OURS)
    for one in filled:
        axes.annotate(str(one.count), ((one.low + one.high) / 2, 0.02), ha="center", fontsize=6)
    error = "" if reliability.ece is None else f", calibration error {reliability.ece:.3f}"
    axes.set(xlabel=f"confidence{error}", ylabel="share right", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(fontsize=7)
    return figure


def _axes() -> tuple[Any, Any]:
    figure = _library("figure").Figure(figsize=_SIZE, layout="constrained")
    return figure, figure.subplots()


def _svg(figure: Any) -> str:  # noqa: ANN401 - of an optional library
    """Return a figure as an SVG element to stand in a page: no prologue, no outside address but the name spaces."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _COMMENT.sub("", buffer.getvalue().decode("utf-8")).strip()


def _library(module: str) -> Any:  # noqa: ANN401 - an optional module
    try:
        return importlib.import_module(f"matplotlib.{module}" if module else "matplotlib")
    except ImportError as err:
        raise ConfigError(f"drawing a plot {BENCH_HINT}") from err

"""The plots of the history: where bars and lines stand; the templates draw them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Final

from agentic_retriever.catalog.entries import Analytics, LogEntry, nearest_rank
from agentic_retriever.show import axis_ticks, duration

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 440, 180, 52, 22, 10
_MOST_LABELS: Final = 6


def history_plots(entries: Sequence[LogEntry], found: Analytics) -> list[dict[str, Any]]:
    """Return the plots that the entries and their sums have figures for: volume, latency, tiers, savings by day."""
    days: dict[date, list[LogEntry]] = {}
    for entry in reversed(entries):
        if entry.recorded_at is not None:
            days.setdefault(entry.recorded_at.date(), []).append(entry)
    if not days:
        return []
    volume = {f"{day:%m-%d}": float(len(asked)) for day, asked in days.items()}
    saved = {f"{day:%m-%d}": sum(map(_saved_usd, asked)) for day, asked in days.items()}
    plots = [bar_plot("Questions by day", volume), _latency(days)]
    plots.append(bar_plot("Answers by tier", {name: float(count) for name, count in found.tiers.items()}))
    if any(saved.values()):
        plots.append(bar_plot("Saved against the cloud alone, USD by day", saved))
    return [plot for plot in plots if plot is not None]


def _saved_usd(entry: LogEntry) -> float:
    return 0.0 if entry.cloud_only_usd is None else entry.cloud_only_usd - entry.totals()["usd"]


def _latency(days: Mapping[date, Sequence[LogEntry]]) -> dict[str, Any] | None:
    times = {
        day: sorted(e.timings_ms["total"] for e in asked if "total" in e.timings_ms) for day, asked in days.items()
    }
    known = {f"{day:%m-%d}": ordered for day, ordered in times.items() if ordered}
    percents = {"median": 50, "95 of 100 are faster": 95}
    lines = {said: {day: nearest_rank(ordered, p) for day, ordered in known.items()} for said, p in percents.items()}
    return line_plot("Time of an answer by day", lines) if len(known) > 1 else bar_plot(
        "Time of an answer", {said: next(iter(line.values())) for said, line in lines.items() if line}, unit=duration
    )  # fmt: skip


def bar_plot(
    title: str, figures: Mapping[str, float], unit: Callable[[float], str] | None = None
) -> dict[str, Any] | None:
    """Place a bar for each figure; ``None`` when there is none."""
    if not figures:
        return None
    scale = _Scale(figures.values(), unit)
    step = (WIDTH - LEFT) / len(figures)
    wide, bars = min(step * 0.7, 60.0), []
    for at, value in enumerate(figures.values()):
        top, base = sorted((scale.y(value), scale.y(0.0)))
        bars.append((round(LEFT + step * (at + 0.5) - wide / 2, 1), top, round(wide, 1), round(base - top, 1)))
    words = f"{title}: " + ", ".join(f"{name} {scale.text(value)}" for name, value in figures.items())
    labels = _labels(list(figures), lambda at: LEFT + step * (at + 0.5))
    return _plot(title, "bars", words, scale, labels, bars=bars)


def line_plot(title: str, lines: Mapping[str, Mapping[str, float]]) -> dict[str, Any] | None:
    """Place lines over the same days; ``None`` when there is no day."""
    names = list(next(iter(lines.values()), {}))
    if not names:
        return None
    scale = _Scale([value for line in lines.values() for value in line.values()], duration)
    step = (WIDTH - LEFT) / len(names)

    def x(at: int) -> float:
        return LEFT + step * (at + 0.5)

    placed = [
        (name, " ".join(f"{x(at):.1f},{scale.y(value)}" for at, value in enumerate(line.values())))
        for name, line in lines.items()
    ]
    said = [f"{name} {scale.text(list(line.values())[-1])}" for name, line in lines.items()]
    words = f"{title}: from {names[0]} to {names[-1]}, at last {', '.join(said)}"
    return _plot(title, "lines", words, scale, _labels(names, x), lines=placed)


class _Scale:
    """Heights of figures, from 0 or the least on."""

    def __init__(self, values: Iterable[float], unit: Callable[[float], str] | None) -> None:
        self.ticks = axis_ticks(min(0.0, *values), max(0.0, *values))
        self.text = unit or (lambda value: f"{value:,.6g}")

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return round(TOP + (HEIGHT - BOTTOM - TOP) * (1 - (value - low) / (high - low)), 1)


def _labels(names: Sequence[str], x: Callable[[int], float]) -> list[tuple[float, str]]:
    every = -(-len(names) // _MOST_LABELS)
    return [(round(x(at), 1), name) for at, name in enumerate(names) if at % every == 0]


def _plot(
    title: str, kind: str, words: str, scale: _Scale, labels: list[tuple[float, str]], **marks: object
) -> dict[str, Any]:
    ticks = [(scale.y(tick), scale.text(tick)) for tick in scale.ticks]
    size = {"width": WIDTH, "height": HEIGHT, "left": LEFT}
    return {"title": title, "kind": kind, "words": words, "ticks": ticks, "labels": labels, **size, **marks}

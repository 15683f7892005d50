"""Results as tables: what the terminal, the report and a notebook draw alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentic_retriever.evaluation.measures import Outcomes, Reliability
from agentic_retriever.show import Cell, Interval, figure_text


class Section(NamedTuple):
    """One part of a result: what it is called, its table, and what is to be said of it."""

    title: str
    headers: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    names: int = 1  # how many columns hold words
    lines: Sequence[str] = ()  # below the table
    intervals: Sequence[Interval] = ()  # drawn as a plot where there can be one
    detail: bool = False  # for the report; folded away in a notebook, left out on the terminal


def best_marked(rows: Sequence[Sequence[float | None]], compared: Sequence[bool]) -> list[list[Cell]]:
    """Write figures, the best of each column in bold, all of them where several are equal as written."""
    made: list[list[Cell]] = []
    columns = list(zip(*rows, strict=True))
    best = [
        figure_text(
            max((v for v, counts in zip(column, compared, strict=True) if counts and v is not None), default=None)
        )
        for column in columns
    ]
    for row, counts in zip(rows, compared, strict=True):
        texts = [figure_text(value) for value in row]
        made.append([Cell(text, best=counts and text == top != "-") for text, top in zip(texts, best, strict=True)])
    return made


def row_name(name: str, *, peer: bool) -> str:
    """Write the name of a row, and whether it is somebody else's way."""
    return f"{name} (peer)" if peer else name


def interval_text(ends: tuple[float, float]) -> str:
    """Write the ends of an interval."""
    return f"[{ends[0]:.3f}, {ends[1]:.3f}]"


def share_text(value: float | None) -> str:
    """Write a share in per cent, or a dash where there is none."""
    return "-" if value is None else f"{value:.0%}"


def outcomes_sections(title: str, outcomes: Outcomes) -> list[Section]:
    """Show how well choices agree with the right ones."""
    line = (
        f"{outcomes.total:,} questions: accuracy {figure_text(outcomes.accuracy)}, balanced accuracy "
        f"{figure_text(outcomes.macro_accuracy)}, macro F1 {figure_text(outcomes.macro_f1)}"
    )
    return [Section(title, lines=[line]), confusion_section(f"confusion, {title}", outcomes)]


def confusion_section(
    title: str, outcomes: Outcomes, *, corner: str = "right \\ chosen", detail: bool = False
) -> Section:
    """Show which names were chosen for which."""
    table = outcomes.confusion()
    rows = [[gold, *(table[gold].get(label, 0) for label in outcomes.labels)] for gold in table]
    return Section(title, [corner, *outcomes.labels], rows, detail=detail)


def reliability_section(name: str, reliability: Reliability) -> Section:
    """Show how often choices were right, by how sure they were."""
    rows = [
        (f"{one.low:.2f}-{one.high:.2f}", one.count, figure_text(one.confidence), figure_text(one.accuracy))
        for one in reliability.bins
        if one.count
    ]
    title = f"reliability, {name}: expected calibration error {figure_text(reliability.ece, 4)}"
    return Section(title, ["confidence", "questions", "mean confidence", "share right"], rows)

"""Timing, rows, the table and the results file that all benchmarks share."""

from __future__ import annotations

import gc
import json
import time
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")

RESULTS = Path(__file__).parent / "results" / "latest.json"

_MIN_NODES = 200


class BenchmarkSkippedError(Exception):
    """A benchmark cannot run here; the message says why."""


class Unit(Enum):
    """What a row counts in: the ending of its JSON keys, and whether less of it is better."""

    MS = ("ms", True)
    NODES_PER_S = ("nodes_per_s", False)
    ANSWERS_PER_S = ("answers_per_s", False)
    NDCG10 = ("ndcg10", False)
    PERCENT = ("percent", True)

    def __init__(self, suffix: str, less_is_better: bool) -> None:
        self.suffix = suffix
        self.less_is_better = less_is_better


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for.

    Attributes:
        nodes: Most nodes in any collection, to try a benchmark quickly; ``None`` for the full sizes.

    Raises:
        ValueError: If there are too few nodes for filters and quantiles to mean anything.
    """

    nodes: int | None = None

    def __post_init__(self) -> None:
        if self.nodes is not None and self.nodes < _MIN_NODES:
            raise ValueError(f"--nodes must be at least {_MIN_NODES}, got {self.nodes}")

    def sized(self, full: int) -> int:
        """Return the size of a collection that has ``full`` nodes in a full run."""
        return full if self.nodes is None else min(full, self.nodes)


@dataclass(frozen=True, slots=True)
class Timing:
    """Quantiles of repeated calls, in milliseconds.

    Attributes:
        p50_ms: The median.
        p95_ms: The 95th percentile, interpolated.
        runs: How many calls were timed.
    """

    p50_ms: float
    p95_ms: float
    runs: int

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Timing:
        """Summarise measured milliseconds, at least one."""
        p50, p95 = np.percentile(np.asarray(milliseconds, dtype=np.float64), (50, 95)).tolist()
        return cls(p50, p95, len(milliseconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, ours beside the peer's.

    Attributes:
        name: What was measured.
        ours: Our median, or our only value.
        ours_p95: Our 95th percentile, where calls were repeated.
        peer: Who it is compared with; ``""`` for nobody.
        peer_value: The peer's median, or its only value.
        target: What is to be reached; the 95th percentile is held against it where there is one.
        unit: Unit of all these.
        note: Sizes, repetitions and whatever must be known to read the figures rightly.
    """

    name: str
    ours: float
    ours_p95: float | None = None
    peer: str = ""
    peer_value: float | None = None
    target: float | None = None
    unit: Unit = Unit.MS
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times better ours is than the peer; for times that is peer / ours."""
        better, worse = (self.ours, self.peer_value) if self.unit.less_is_better else (self.peer_value, self.ours)
        return None if not better or worse is None else worse / better

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; ``None`` without one."""
        if self.target is None:
            return None
        judged = self.ours if self.ours_p95 is None else self.ours_p95
        return judged <= self.target if self.unit.less_is_better else judged >= self.target

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; the keys end in the unit."""
        suffix = self.unit.suffix
        middle = "_p50" if self.unit.less_is_better else ""
        shown: dict[str, Any] = {"name": self.name, f"ours{middle}_{suffix}": _rounded(self.ours)}
        if self.unit.less_is_better:
            shown[f"ours_p95_{suffix}"] = _rounded(self.ours_p95)
        return {
            **shown,
            "peer": self.peer or None,
            f"peer{middle}_{suffix}": _rounded(self.peer_value),
            "ratio": _rounded(self.ratio),
            f"target_{suffix}": self.target,
            "met": self.met,
            "note": self.note,
        }


def timed_row(
    name: str, ours: Timing, *, peer: str = "", peer_timing: Timing | None = None, target_ms: float | None = None,
    note: str = "",
) -> Row:  # fmt: skip
    """Return the row of repeated calls; the note begins with how many there were."""
    runs = f"{ours.runs} runs" if peer_timing is None else f"{ours.runs} runs, peer {peer_timing.runs}"
    return Row(
        name=name,
        ours=ours.p50_ms,
        ours_p95=ours.p95_ms,
        peer=peer,
        peer_value=None if peer_timing is None else peer_timing.p50_ms,
        target=target_ms,
        note="; ".join(part for part in (runs, note) if part),
    )


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect now and not again within the block, so that no collection falls into a timed call."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def measure(
    call: Callable[[T], object],
    inputs: Sequence[T],
    *,
    warm_up: int = 0,
    timer: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time a call once for every input.

    Args:
        call: What to time.
        inputs: Its arguments, made beforehand so that making them is not timed; at least one.
        warm_up: How many calls to make before, untimed, with inputs from the end of the list.
        timer: Time in seconds.
    """
    for item in inputs[len(inputs) - min(warm_up, len(inputs)) :]:
        call(item)
    taken = []
    with no_garbage_collection():
        for item in inputs:
            start = timer()
            call(item)
            taken.append((timer() - start) * 1000)
    return Timing.of(taken)


def seconds(call: Callable[[], object], *, timer: Callable[[], float] = time.perf_counter) -> float:
    """Time one call, in seconds."""
    with no_garbage_collection():
        start = timer()
        call()
        return timer() - start


def say(text: str) -> None:
    """Tell what is being done, on standard error."""
    Console(stderr=True, highlight=False).print(text, style="dim", markup=False, soft_wrap=True)


def write_results(
    path: Path, rows: Sequence[Row], *, skipped: Mapping[str, str], when: str, load_before: float | None
) -> None:
    """Write the results file, whole or not at all.

    Args:
        path: Where; its folder is made.
        rows: The figures.
        skipped: Reasons by the name of the benchmark.
        when: Start of the run, ISO 8601.
        load_before: What :func:`load` was then.
    """
    content = {
        "machine": machine(),
        "versions": versions(),
        "when": when,
        "load_before": load_before,
        "skipped": dict(skipped),
        "results": [row.to_dict() for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


def table(rows: Iterable[Row]) -> Table:
    """Draw the figures."""
    drawn = Table(
        title="ours beside its peers, measured in the same run on the same data",
        caption="rates and nDCG@10: ours / peer, so that above 1 is always for us; targets of times are held to p95",
    )
    drawn.add_column("name", overflow="fold")
    for head in ("unit", "ours p50", "ours p95"):
        drawn.add_column(head, justify="right", no_wrap=True)
    drawn.add_column("peer", overflow="fold")
    for head in ("peer p50", "peer / ours:\ntimes faster", "target", "met"):
        drawn.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        met = {None: "", True: "yes", False: "NO"}[row.met]
        figures = (row.ours, row.ours_p95, row.peer_value, row.ratio, row.target)
        ours, p95, peer, ratio, target = (_shown(figure) for figure in figures)
        unit = row.unit.suffix.replace("_per_", "/").replace("ndcg10", "nDCG@10")
        drawn.add_row(row.name, unit, ours, p95, row.peer, peer, ratio, target, met)
    return drawn


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    decimals = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 3
    return f"{value:,.{decimals}f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")

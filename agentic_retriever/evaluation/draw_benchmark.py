"""Results of benchmarks and trainings as a notebook draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentic_retriever.evaluation.interval_plot import Interval, interval_plot
from agentic_retriever.evaluation.markup import Html, details, element, figure, frame, joined, note, small, table
from agentic_retriever.evaluation.measures import MEASURES
from agentic_retriever.evaluation.options import ORACLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentic_retriever.evaluation.results import Benchmark, Row, StageOneMeasures, TargetResult
    from agentic_retriever.evaluation.routing import RoutingBenchmark
    from agentic_retriever.evaluation.training import TrainingResult

_FIRST: Final = MEASURES[0]


def draw_benchmark(result: Benchmark) -> str:
    """Draw every target: its table with the best in bold, a plot with the intervals, and how the router chose."""
    parts = [_target(target) for target in result.results.values()]
    if len(result.results) > 1:
        means = result.means()
        rows: list[list[str | float]] = [[name, *found.values()] for name, found in means.items()]
        free = [at for at, name in enumerate(means) if name != ORACLE]
        caption = "Mean over the data sets"
        parts.append(table(["row", *MEASURES], _marked(rows, free), caption=caption))
    return frame(*parts)


def draw_training(result: TrainingResult) -> str:
    """Draw what the strategies reached, and what became of what was fitted."""
    runs: list[list[str | float]] = [[run.strategy.value, run.mean_quality] for run in result.runs]
    times = [[f"{run.percentile_ms(p):.1f}" for p in (50, 95)] for run in result.runs]
    cells = [[*row, *ms] for row, ms in zip(_marked(runs, range(len(runs))), times, strict=True)]
    caption = f"{result.index}: {result.queries:,} judged questions"
    return frame(
        table(["strategy", _FIRST, "p50 ms", "p95 ms"], cells, caption=caption),
        *(element("div", element("b", line)) for line in (result.verdict, result.fusion.verdict)),
        *(note(line) for line in result.problems.summary()),
    )


def draw_routing_benchmark(result: RoutingBenchmark) -> str:
    """Draw how well each way chose index and strategy."""
    ways = list(result.stage_one.items())
    first = _marked([[_peer(name, peer=one.peer), one.outcomes.accuracy] for name, one in ways], range(len(ways)))
    rows = [[*row, *_stage_one(one)] for row, (_, one) in zip(first, ways, strict=True)]
    head = ["choosing the index", "accuracy", "by index", "ECE", "reached", "out of scope told", "wrongly", "p50 ms"]
    parts = [table(head, rows, caption="Stage one")]
    if result.stage_two:
        agreed = [[name, one.outcomes.accuracy, one.outcomes.macro_f1] for name, one in result.stage_two.items()]
        head = ["choosing the strategy", "accuracy", "macro F1"]
        parts.append(table(head, _marked(agreed, range(len(agreed))), caption="Stage two"))
    if result.complexity is not None:
        parts.append(small(f"complexity: {figure(result.complexity.outcomes.accuracy)} accuracy"))
    parts += [small(f"{name} was left out: {why}") for name, why in result.left_out.items()]
    parts += [note(line) for line in (*result.notes, *result.problems.summary())]
    return frame(*parts)


def _target(result: TargetResult) -> Html:
    rows = list(result.rows.values())
    free = [at for at, row in enumerate(rows) if row.name != ORACLE]
    asked = result.facts.get("queries", "")
    caption = f"{result.target}: {asked} questions" + (" (pseudo-queries)" if result.pseudo else "")
    marked = _marked([[_peer(row.name, peer=row.peer), *(row.mean(m) for m in MEASURES)] for row in rows], free)
    cells = [
        [name, joined([first, " ", _interval_text(row)]), *others, *(f"{row.percentile_ms(p):.1f}" for p in (50, 95))]
        for (name, first, *others), row in zip(marked, rows, strict=True)
    ]
    return element(
        "div",
        table(["row", f"{_FIRST} [95 %]", *MEASURES[1:], "p50 ms", "p95 ms"], cells, caption=caption),
        interval_plot(_intervals(rows), f"{_FIRST} with 95 % intervals, {result.target}"),
        small(f"{_FIRST} with 95 % bootstrap intervals; rings are the oracle and peers") if rows else "",
        _choice(result),
        *(small(f"{name} did not take part: {why}") for name, why in result.not_served.items()),
        *(note(line) for line in (*result.notes, *result.problems.summary())),
        style="margin-bottom:1em",
    )


def _interval_text(row: Row) -> Html:
    """Write the interval of the first measure of a row."""
    low, high = row.intervals[_FIRST]
    return element("span", f"[{low:.2f}, {high:.2f}]", style="opacity:.75;font-size:.85em")


def _intervals(rows: Sequence[Row]) -> list[Interval]:
    ours = [row for row in rows if row.name != ORACLE]
    best = max((row.mean() for row in ours), default=0.0)
    lines = []
    for row in rows:
        low, high = row.intervals[_FIRST]
        apart = row.peer or row.name == ORACLE
        top = row.name != ORACLE and f"{row.mean():.3f}" == f"{best:.3f}"
        lines.append(Interval(name=row.name, mean=row.mean(), low=low, high=high, hollow=apart, best=top))
    return lines


def _choice(result: TargetResult) -> Html:
    found = result.routing
    if found is None:
        return Html()
    closed = "" if found.gap_closed is None else f", {found.gap_closed:.0%} of the gap to the oracle closed"
    chosen = ", ".join(f"{name} {count}" for name, count in found.picked.items())
    said = (
        f"auto {found.auto_mean:.3f}, best fixed strategy {found.best_fixed} {found.best_fixed_mean:.3f}, oracle "
        f"{found.oracle_mean:.3f}{closed}; mean regret {found.mean_regret:.3f}; cheapest within 0.02 of the best: "
        f"{found.cheapest_good}"
    )
    return joined([small(said), details("What auto chose", small(chosen))])


def _stage_one(found: StageOneMeasures) -> list[str]:
    silent = found.abstention
    figures = [found.outcomes.macro_accuracy, found.ece, found.reached, silent.recall, silent.false_rate]
    return [*map(figure, figures), figure(found.latency.p50_ms, 1)]


def _peer(name: str, *, peer: bool) -> str:
    return f"{name} (peer)" if peer else name


def _marked(rows: Sequence[Sequence[str | float | None]], free: Iterable[int]) -> list[list[str | Html]]:
    """Write a name and its figures as cells, the best of each column in bold, all of them where several are."""
    held = list(free)
    written = [[str(name), *(_written(value) for value in values)] for name, *values in rows]
    best: Mapping[int, float] = {
        column: max(values)
        for column in range(1, len(rows[0]) if rows else 0)
        if (values := [value for at in held if isinstance(value := rows[at][column], float)])
    }
    return [
        [
            element("b", cell) if at in held and column in best and cell == f"{best[column]:.3f}" else cell
            for column, cell in enumerate(cells)
        ]
        for at, cells in enumerate(written)
    ]


def _written(value: str | float | None) -> str:
    return value if isinstance(value, str) else figure(value)

"""``bench``: every strategy on labelled questions, the router's own choice beside them, and the peers."""

from __future__ import annotations

import logging
import shutil
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentic_retriever.cli.evaluation import number, show_problems, show_stage_one
from agentic_retriever.cli.progress import shown_steps
from agentic_retriever.cli.setup import load_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentic_retriever.cli.console import Console
    from agentic_retriever.config import RouterConfig
    from agentic_retriever.evaluation.benchmark_result import Benchmark, TargetResult
    from agentic_retriever.evaluation.options import BenchOptions
    from agentic_retriever.evaluation.regret import MeanChoice
    from agentic_retriever.evaluation.rows import Row
    from agentic_retriever.router import AgenticRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArguments:
    """What the command line asked for."""

    datasets: tuple[str, ...]
    options: BenchOptions
    keep: Path | None
    json_file: Path | None
    html_file: Path | None


def run_bench(console: Console, data_dir: Path | None, asked: BenchArguments) -> None:
    """Run the benchmark, write its files and show its tables."""
    from agentic_retriever.evaluation.harness import benchmark

    config = load_config(data_dir)
    # What falls back is counted in the result; every single warning on the terminal would only tear the progress bar.
    logging.getLogger("agentic_retriever").addHandler(logging.NullHandler())
    with _folder(asked) as folder, ExitStack() as stack:
        if folder is None:
            console.note("interrupted, this run cannot go on; with --json, --html or --keep it can")
        with shown_steps(console) as steps:
            result = benchmark(
                _opened(config, asked, stack), *asked.datasets, options=asked.options, folder=folder, watcher=steps
            )
        if asked.json_file is not None:
            result.to_json(asked.json_file)
        if asked.html_file is not None:
            result.to_html(asked.html_file)
    show_benchmark(console, result)


def bench_options(
    *,
    strategies: str | None,
    mode: str,
    vectors: Path | None,
    views: bool,
    limit: int | None,
    depth: int,
    seed: int,
    baseline: str | None,
    peers: bool,
    answers: bool,
) -> BenchOptions:
    """Make the options of a benchmark; names of strategies are separated by commas.

    Raises:
        EvaluationError: If a value is none of what is allowed.
    """
    from agentic_retriever.evaluation.options import BenchOptions

    named = None if strategies is None else tuple(name.strip() for name in strategies.split(",") if name.strip())
    return BenchOptions(
        strategies=named,
        mode=mode.replace("-", "_"),
        vectors=vectors,
        views=views,
        limit=limit,
        depth=depth,
        seed=seed,
        baseline=baseline,
        peers=peers,
        answers=answers,
    )


def show_benchmark(console: Console, result: Benchmark) -> None:
    """Write all tables."""
    for target in result.results.values():
        _show_target(console, target)
    if len(result.results) > 1:
        console.line()
        console.line("mean over the data sets", style="bold")
        means = result.means()
        measures = list(next(iter(means.values()), {}))
        console.table(["row", *measures], [[name, *map(number, found.values())] for name, found in means.items()])
        _show_choice(console, result.choice())
    if result.stage_one is not None:
        show_stage_one(console, result.stage_one)


def _show_target(console: Console, result: TargetResult) -> None:
    from agentic_retriever.evaluation.measures import MEASURES

    show_problems(console, result.problems)
    for note in result.notes:
        console.warn(note)
    for name, why in result.not_served.items():
        console.note(f"{name} did not take part: {why}")
    facts = result.facts
    console.line()
    console.line(
        f"{result.target}: {facts['documents']:,} documents, {facts['nodes']:,} nodes, {facts['queries']:,} "
        f"{'pseudo-queries' if result.pseudo else 'questions'}",
        style="bold",
    )
    head = ["row", f"{MEASURES[0]} [95 %]", *MEASURES[1:], "p50 ms", "p95 ms", "failed", "against baseline, p (Holm)"]
    console.table(head, [_row(result, row) for row in result.rows.values()])
    _show_routing(console, result)
    _show_answers(console, result)
    for row in result.rows.values():
        if row.failures:
            console.warn(f"{row.name} failed on {len(row.failures)} questions, first: {row.failures[0].error}")


def _row(result: TargetResult, row: Row) -> list[object]:
    from agentic_retriever.evaluation.measures import MEASURES

    low, high = row.intervals[MEASURES[0]]
    against = result.against
    one = None if against is None else against.rows.get(row.name)
    tested = "-" if one is None else f"{one.difference:+.3f}, {one.p_holm:.3g}"
    return [
        f"{row.name} (peer)" if row.peer else row.name,
        f"{row.mean():.3f} [{low:.3f}, {high:.3f}]",
        *(number(row.mean(name)) for name in MEASURES[1:]),
        number(row.percentile_ms(50), 1),
        number(row.percentile_ms(95), 1),
        len(row.failures),
        "baseline" if against is not None and against.baseline == row.name else tested,
    ]


def _show_routing(console: Console, result: TargetResult) -> None:
    found = result.routing
    if found is None:
        return
    low, high = found.regret_interval
    closed = "-" if found.gap_closed is None else f"{found.gap_closed:.0%}"
    console.line(
        f"choice of the strategy: best fixed {found.best_fixed} {found.best_fixed_mean:.3f}, "
        f"auto {found.auto_mean:.3f}, oracle {found.oracle_mean:.3f}; "
        f"auto closes {closed} of the gap; regret {found.mean_regret:.3f} "
        f"[{low:.3f}, {high:.3f}]; none better {found.accuracy:.0%}; cheapest within 0.02: {found.cheapest_good}"
    )


def _show_choice(console: Console, found: MeanChoice | None) -> None:
    if found is not None:
        closed = "-" if found.gap_closed is None else f"{found.gap_closed:.0%}"
        console.line(
            f"choice of the strategy: best fixed {found.best_fixed} {found.best_fixed_mean:.3f}, "
            f"auto {found.auto_mean:.3f}, oracle {found.oracle_mean:.3f}; auto closes {closed} of the gap"
        )


def _show_answers(console: Console, result: TargetResult) -> None:
    found = result.answers
    if found is None:
        return
    rows = [
        [name, f"{mean:.3f} [{found.intervals[name][0]:.3f}, {found.intervals[name][1]:.3f}]", found.counts[name],
         found.judged_by[name]]
        for name, mean in found.means.items()
    ]  # fmt: skip
    console.table(["answers", "mean [95 %]", "questions", "judged by"], rows)
    silent = found.abstention
    console.line(
        f"declined {silent.abstained} of {silent.asked} questions, {silent.right} of the {silent.out_of_scope} that "
        "nothing answers"
    )
    for note in found.notes:
        console.note(note)


def _opened(config: RouterConfig, asked: BenchArguments, stack: ExitStack) -> RouterConfig | AgenticRouter:
    """Open the data directory only where a data set may be the name of an index in it."""
    from agentic_retriever.indices import IndexStorage
    from agentic_retriever.router import AgenticRouter

    names = {name for name in asked.datasets if not Path(name).exists()}
    if not names & set(IndexStorage(config.data_dir).names()):
        return config
    return stack.enter_context(AgenticRouter(config))


@contextmanager
def _folder(asked: BenchArguments) -> Iterator[Path | None]:
    """Keep what was done beside the result until that is written; with ``--keep``, for good."""
    beside = asked.json_file or asked.html_file
    if asked.keep is not None or beside is None:
        yield asked.keep
        return
    folder = beside.with_name(f".{beside.name}.partial")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)

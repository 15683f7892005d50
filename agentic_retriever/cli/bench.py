"""``bench``: every strategy on labelled questions, the router's own choice beside them, and the peers."""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic_retriever.cli.console import load_config, opened_router, shown_steps
from agentic_retriever.errors import ConfigError
from agentic_retriever.schema import Complexity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agentic_retriever.cli.console import Console
    from agentic_retriever.config import RouterConfig
    from agentic_retriever.evaluation.datasets import Dataset, ProblemReport
    from agentic_retriever.evaluation.fusion_training import FusionTraining
    from agentic_retriever.evaluation.measures import Outcomes
    from agentic_retriever.evaluation.options import BenchOptions
    from agentic_retriever.evaluation.reliability import Reliability
    from agentic_retriever.evaluation.results import Benchmark, MeanChoice, Row, StageOneMeasures, TargetResult
    from agentic_retriever.evaluation.routing import RoutingBenchmark
    from agentic_retriever.evaluation.training import StrategyRun, TrainingResult
    from agentic_retriever.router import AgenticRouter


# ``bench-routing``: how well questions are routed, with the peers in the same table.

_SHOWN_CHARS = 70
_STAGE_ONE_ROWS: Mapping[str, Callable[[StageOneMeasures], str]] = {
    "accuracy": lambda one: number(one.outcomes.accuracy, 4),
    "macro accuracy": lambda one: number(one.outcomes.macro_accuracy, 4),
    "macro F1": lambda one: number(one.outcomes.macro_f1, 4),
    "index among those searched": lambda one: number(one.reached, 4),
    "calibration error": lambda one: number(one.ece, 4),
    "calibration error, macro": lambda one: number(one.macro_ece, 4),
    "abstention precision": lambda one: number(one.abstention.precision),
    "abstention recall": lambda one: number(one.abstention.recall),
    "abstained though answerable": lambda one: number(one.abstention.false_rate),
    "escalated to a model": lambda one: number(one.escalation_rate),
    "p50 ms": lambda one: number(one.latency.p50_ms, 2),
    "p95 ms": lambda one: number(one.latency.p95_ms, 2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingArguments:
    """What the command line asked for."""

    datasets: tuple[str, ...]
    vectors: Path | None
    descriptions: Path | None
    also: tuple[str, ...]
    complexity: tuple[str, ...]
    documents: int
    limit: int | None
    seed: int
    json_file: Path | None
    plot: Path | None


def run_bench_routing(console: Console, data_dir: Path | None, asked: RoutingArguments) -> None:
    """Measure the routing."""
    from agentic_retriever.evaluation.datasets import load_dataset
    from agentic_retriever.evaluation.journal import Journal
    from agentic_retriever.evaluation.reliability import check_plot, draw_reliability
    from agentic_retriever.evaluation.routing import (
        RoutingOptions,
        bench_routing,
        material_key,
        prepare,
        read_descriptions,
        stage_one_field,
        stage_two_field,
    )
    from agentic_retriever.routing import DomainTerms

    if asked.plot is not None:
        check_plot(asked.plot)
    options = RoutingOptions(
        vectors=asked.vectors,
        descriptions={} if asked.descriptions is None else read_descriptions(asked.descriptions),
        also=asked.also,
        most_documents=asked.documents,
        limit=asked.limit,
        seed=asked.seed,
        complexity=_complexities(asked.complexity),
    )
    datasets = [load_dataset(name) for name in asked.datasets]
    config = _fitting(load_config(data_dir), datasets)
    with opened_router(config) as router, shown_steps(console) as steps:
        material = prepare(datasets, router, options, watcher=steps)
        runners = stage_one_field(router, material)
        journal = None
        if asked.json_file is not None:
            path = asked.json_file.with_name(f".{asked.json_file.name}.partial")
            journal = Journal(path, material_key(material, config.to_dict()))
        result = bench_routing(
            material,
            runners,
            stage_two_field(router),
            domain_terms=DomainTerms.parse(config.domain_terms),
            journal=journal,
            watcher=steps,
        )
    if asked.json_file is not None:
        write_json(asked.json_file, result.to_dict())
    if journal is not None:
        journal.remove()
    measured = {name: one.reliability for name, one in result.stage_one.items() if one.reliability is not None}
    if asked.plot is not None:
        draw_reliability(measured, asked.plot)
    show_routing(console, result)


def show_routing(console: Console, result: RoutingBenchmark) -> None:
    """Write all tables."""
    show_problems(console, result.problems)
    _show_indexes(console, result)
    show_stage_one(console, result)
    first = next(iter(result.stage_one), "")
    if first:
        _show_confusion(console, f"confusion, {first}", result.stage_one[first].outcomes)
    for name, measures in result.stage_one.items():
        if measures.reliability is not None:
            _show_reliability(console, name, measures.reliability)
    for name, stage_two in result.stage_two.items():
        _show_outcomes(console, f"strategy, {name}", stage_two.outcomes)
    if result.complexity is not None:
        _show_outcomes(console, "complexity", result.complexity.outcomes)
    _show_remarks(console, result)


def _show_remarks(console: Console, result: RoutingBenchmark) -> None:
    for name, why in result.left_out.items():
        console.note(f"{name} was left out: {why}")
    for note in result.notes:
        console.note(note)
    for name, measures in result.stage_one.items():
        if measures.failures:
            console.warn(f"{name} failed on {len(measures.failures)} questions, first: {measures.failures[0].error}")


def show_problems(console: Console, problems: ProblemReport) -> None:
    """Warn of what was wrong with the data sets."""
    for line in problems.summary():
        console.warn(line)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a result in one step."""
    from agentic_retriever.json_files import write_atomically

    content = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False)
    write_atomically(path, (content + "\n").encode("utf-8", "surrogatepass"))


def number(value: float | None, digits: int = 3) -> str:
    """Write a figure, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def _fitting(config: RouterConfig, datasets: Sequence[Dataset]) -> RouterConfig:
    """Take the embedding model of the sample's vectors where the sample is measured, as the demonstration does."""
    from agentic_retriever.evaluation.routing import sample_indexes_of
    from agentic_retriever.indices import IndexStorage

    from_sample = sample_indexes_of(datasets, IndexStorage(config.data_dir).names())
    return config.with_changes(embedding_model="local") if from_sample else config


def _complexities(given: Sequence[str]) -> dict[str, Complexity]:
    allowed = {member.value: member for member in Complexity}
    found = {}
    for item in given:
        name, _, value = item.rpartition("=")
        if not name or value not in allowed:
            raise ConfigError(f"--complexity must be DATASET=simple or DATASET=complex, got {item[:80]!r}")
        found[name] = allowed[value]
    return found


def _heading(console: Console, text: str) -> None:
    console.line()
    console.line(text, style="bold")


def _show_indexes(console: Console, result: RoutingBenchmark) -> None:
    _heading(console, "indexes to choose from")
    rows = []
    for name, facts in result.indexes.items():
        described = result.descriptions[name]
        text = described.text if len(described.text) <= _SHOWN_CHARS else described.text[: _SHOWN_CHARS - 1] + "…"
        rows.append((name, facts["nodes"], facts["sampled"], facts["language"], described.origin, text))
    console.table(["index", "nodes", "sampled", "language", "description from", "description"], rows)


def show_stage_one(console: Console, result: RoutingBenchmark) -> None:
    """Write how well each way finds the right index."""
    asked = next((one.abstention.asked for one in result.stage_one.values()), 0)
    outside = next((one.abstention.out_of_scope for one in result.stage_one.values()), 0)
    _heading(console, f"stage one: {asked:,} questions, {outside:,} of them out of scope")
    ways = [name + (" (peer)" if one.peer else "") for name, one in result.stage_one.items()]
    made = list(result.stage_one.values())
    rows = [[what, *(figure(one) for one in made)] for what, figure in _STAGE_ONE_ROWS.items()]
    console.table(["measure", *ways], rows)
    _heading(console, "accuracy by index")
    tables = [one.outcomes.by_label() for one in made]
    indexes = list(dict.fromkeys(index for table in tables for index in table))
    console.table(["index", *ways], [[name, *(number(table[name]["recall"]) for table in tables)] for name in indexes])


def _show_reliability(console: Console, name: str, reliability: Reliability) -> None:
    _heading(console, f"reliability, {name}: expected calibration error {number(reliability.ece, 4)}")
    rows = [
        (f"{one.low:.2f}-{one.high:.2f}", one.count, number(one.confidence), number(one.accuracy))
        for one in reliability.bins
        if one.count
    ]
    console.table(["confidence", "questions", "mean confidence", "share right"], rows)


def _show_outcomes(console: Console, title: str, outcomes: Outcomes) -> None:
    _heading(console, title)
    console.line(
        f"{outcomes.total:,} questions: accuracy {number(outcomes.accuracy)}, "
        f"balanced accuracy {number(outcomes.macro_accuracy)}, macro F1 {number(outcomes.macro_f1)}"
    )
    _show_confusion(console, f"confusion, {title}", outcomes)


def _show_confusion(console: Console, title: str, outcomes: Outcomes) -> None:
    _heading(console, title)
    table = outcomes.confusion()
    rows = [[gold, *(table[gold].get(label, 0) for label in outcomes.labels)] for gold in table]
    console.table(["right \\ chosen", *outcomes.labels], rows)


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
    """Make the options of a benchmark; names of strategies are separated by commas."""
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


# ``train``: what an index learns from judged questions.


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainArguments:
    """What the command line asked for."""

    datasets: tuple[str, ...]
    index: str
    vectors: Path | None
    limit: int | None
    seed: int
    dry_run: bool
    json_file: Path | None


def run_train(console: Console, data_dir: Path | None, asked: TrainArguments) -> None:
    """Fit what an index can learn, and install what helps."""
    from agentic_retriever.evaluation.datasets import load_dataset
    from agentic_retriever.evaluation.training import TrainingOptions, train_strategies

    datasets = [load_dataset(name, with_corpus=False) for name in asked.datasets]
    options = TrainingOptions(vectors=asked.vectors, limit=asked.limit, seed=asked.seed, dry_run=asked.dry_run)
    with opened_router(load_config(data_dir)) as router, shown_steps(console) as steps:
        trained = train_strategies(datasets, router, asked.index, options, watcher=steps)
    if asked.json_file is not None:
        write_json(asked.json_file, trained.to_dict())
    show_training(console, trained)


def show_training(console: Console, result: TrainingResult) -> None:
    """Write what was measured, and what became of what was fitted."""
    show_problems(console, result.problems)
    console.line(f"index {result.index}, {result.queries:,} judged questions", style="bold")
    console.table(
        ["strategy", "nDCG@10", "p50 ms", "p95 ms", "failed", "fell back"],
        [_row_of_training(run) for run in result.runs],
    )
    for run in result.runs:
        if run.failures:
            console.warn(
                f"{run.strategy.value} failed on {len(run.failures)} questions, first: {run.failures[0].error}"
            )
    _show_fusion(console, result.fusion)
    console.line()
    for verdict in (result.fusion.verdict, result.verdict):
        console.line(verdict, style="bold")


def _show_fusion(console: Console, found: FusionTraining) -> None:
    if found.validation is None:
        return
    console.line()
    seen = found.validation
    console.line(f"weights of hybrid, {seen.folds}-fold cross-validation, {seen.repeats} times")
    rows = [
        ("fitted", number(seen.learned), ""),
        ("default", number(seen.default), _interval(seen.gain)),
        ("dense alone", number(seen.dense), _interval(seen.over_side) if seen.dense > seen.bm25 else ""),
        ("BM25 alone", number(seen.bm25), _interval(seen.over_side) if seen.dense <= seen.bm25 else ""),
    ]
    console.table(["weights", "nDCG@10", "fitted gains (95 % interval)"], rows)


def _interval(gain: tuple[float, float, float]) -> str:
    return f"{gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]"


def _row_of_training(run: StrategyRun) -> tuple[object, ...]:
    fell = ", ".join(f"{step} {count}" for step, count in run.degraded.items()) or "-"
    return (
        run.strategy.value,
        number(run.mean_quality),
        number(run.percentile_ms(50), 1),
        number(run.percentile_ms(95), 1),
        len(run.failures),
        fell,
    )

"""``bench-routing``: how well questions are routed, with the peers in the same table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentic_retriever.cli.progress import shown_steps
from agentic_retriever.cli.setup import load_config, opened_router
from agentic_retriever.errors import ConfigError
from agentic_retriever.schema import Complexity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from agentic_retriever.cli.console import Console
    from agentic_retriever.config import RouterConfig
    from agentic_retriever.evaluation.bench import RoutingBenchmark
    from agentic_retriever.evaluation.classification import Outcomes
    from agentic_retriever.evaluation.datasets import Dataset
    from agentic_retriever.evaluation.problems import ProblemReport
    from agentic_retriever.evaluation.reliability import Reliability
    from agentic_retriever.evaluation.results import StageOneMeasures

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
    from agentic_retriever.evaluation.bench import bench_routing, material_key
    from agentic_retriever.evaluation.contenders import stage_one_field, stage_two_field
    from agentic_retriever.evaluation.descriptions import read_descriptions
    from agentic_retriever.evaluation.journal import Journal
    from agentic_retriever.evaluation.loading import load_dataset
    from agentic_retriever.evaluation.material import RoutingOptions
    from agentic_retriever.evaluation.preparation import prepare
    from agentic_retriever.evaluation.reliability import check_plot, draw_reliability
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
    """Write a result in one step.

    Raises:
        StoreError: If the file cannot be written.
    """
    from agentic_retriever.json_files import write_atomically

    content = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False)
    write_atomically(path, (content + "\n").encode("utf-8", "surrogatepass"))


def number(value: float | None, digits: int = 3) -> str:
    """Write a figure, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def _fitting(config: RouterConfig, datasets: Sequence[Dataset]) -> RouterConfig:
    """Take the embedding model of the sample's vectors where the sample is measured, as the demonstration does."""
    from agentic_retriever.evaluation.preparation import sample_indexes_of
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

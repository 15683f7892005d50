"""``train``: what an index learns from judged questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentic_retriever.cli.evaluation import number, show_problems, write_json
from agentic_retriever.cli.progress import shown_steps
from agentic_retriever.cli.setup import load_config, opened_router

if TYPE_CHECKING:
    from pathlib import Path

    from agentic_retriever.cli.console import Console
    from agentic_retriever.evaluation.fusion_training import FusionTraining
    from agentic_retriever.evaluation.strategies import StrategyRun
    from agentic_retriever.evaluation.training import TrainingResult


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
    from agentic_retriever.evaluation.loading import load_dataset
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
        ["strategy", "nDCG@10", "p50 ms", "p95 ms", "failed", "fell back"], [_row(run) for run in result.runs]
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


def _row(run: StrategyRun) -> tuple[object, ...]:
    fell = ", ".join(f"{step} {count}" for step, count in run.degraded.items()) or "-"
    return (
        run.strategy.value,
        number(run.mean_quality),
        number(run.percentile_ms(50), 1),
        number(run.percentile_ms(95), 1),
        len(run.failures),
        fell,
    )

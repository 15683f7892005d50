"""Training an index on judged questions: weights of hybrid search, and what each strategy reaches with them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import StoreDamagedError
from agentic_retriever.evaluation.datasets import check_names
from agentic_retriever.evaluation.draw_benchmark import draw_training
from agentic_retriever.evaluation.fusion_training import FusionTraining, train_fusion
from agentic_retriever.evaluation.journal import Journal, fingerprint
from agentic_retriever.evaluation.judged import judged_queries
from agentic_retriever.evaluation.strategies import DEPTH, run_strategies
from agentic_retriever.evaluation.watching import SilentWatcher
from agentic_retriever.indices.measured import MeasuredStrategies, StrategyMeasure
from agentic_retriever.retrievers import FUSION_FILE, FusionModel, FusionTrainedOn, cards
from agentic_retriever.schema.markup import short_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agentic_retriever.evaluation.datasets import Dataset
    from agentic_retriever.evaluation.problems import ProblemReport
    from agentic_retriever.evaluation.strategies import JudgedQuery, StrategyRun
    from agentic_retriever.evaluation.watching import Watcher
    from agentic_retriever.indices import Index
    from agentic_retriever.router import AgenticRouter

JOURNAL_FILE: Final = "strategy_runs.json"
"""Beside the index while a training runs."""


def today_utc() -> str:
    """Return the date, ISO 8601."""
    return datetime.now(timezone.utc).date().isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How to train.

    Attributes:
        vectors: Folder with ``NAME.npz``, or one such file, for the questions; ``None`` embeds them.
        limit: Most questions of each data set, drawn by the seed; ``None`` takes all.
        seed: Of everything that is drawn.
        dry_run: Measure, but install nothing.
    """

    vectors: Path | None = None
    limit: int | None = None
    seed: int = 0
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """What a training found, and what became of it.

    Attributes:
        index: Name of the index.
        index_version: Its version.
        datasets: Facts of each data set.
        queries: Judged questions that were asked.
        runs: What every strategy did.
        fusion: The weights of hybrid search, and what became of them.
        verdict: One line: what became of the figures of the strategies.
        problems: What was wrong with the data sets.
        seed: Of everything that was drawn.
    """

    index: str
    index_version: int
    datasets: tuple[dict[str, Any], ...]
    queries: int
    runs: tuple[StrategyRun, ...]
    fusion: FusionTraining
    verdict: str
    problems: ProblemReport
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "format": 1,
            "index": self.index,
            "index_version": self.index_version,
            "datasets": [dict(facts) for facts in self.datasets],
            "queries": self.queries,
            "seed": self.seed,
            "strategies": {run.strategy.value: run.to_dict() for run in self.runs},
            "fusion": self.fusion.to_dict(),
            "verdict": self.verdict,
            "problems": self.problems.to_dict(),
        }

    def _repr_html_(self) -> str:
        """Draw the tables in Jupyter: escaped, no assets, colours of the theme."""
        return draw_training(self)

    _repr_pretty_ = short_text


def train_strategies(
    datasets: Sequence[Dataset],
    router: AgenticRouter,
    name: str,
    options: TrainingOptions,
    *,
    timer: Callable[[], float] = time.perf_counter,
    today: Callable[[], str] = today_utc,
    watcher: Watcher | None = None,
) -> TrainingResult:
    """Fit the weights of hybrid search of an index, install them if they help, and measure its strategies.

    What is measured of each strategy is kept beside the index in any case, save in a dry run. The strategies are
    measured with the weights that will be in force: fitted ones that help, else those that were there; a dry run tries
    such weights, too.

    Args:
        datasets: BEIR folders whose documents are those of the index, or questions files with ``doc_ids``.
        router: Holds the index.
        name: Name of the index.
        options: How.
        timer: Seconds, for latencies.
        today: Gives the date, ISO 8601.
        watcher: Hears how far it is.

    Returns:
        Everything that was found.

    Raises:
        EvaluationError: If no judgment is about a document of the index, or the vectors do not fit it.
        UnknownIndexError: If there is no such index.
        IndexingError: If it is an attached one, which has no folder to keep what was learned in.
        EmbeddingError: If the embedding model failed.
        StoreError: If the index cannot be read or written.
        ConfigError: If the extra ``bench`` is not installed.
    """
    check_names(datasets)
    index, watch = router.stored_index(name), watcher or SilentWatcher()
    chosen = [dataset.limited(options.limit, options.seed) for dataset in datasets]
    label = " + ".join(dataset.name for dataset in chosen)
    queries, problems = judged_queries(chosen, router, index, vectors=options.vectors, watcher=watch)
    if any(dataset.pseudo for dataset in chosen):
        fusion = FusionTraining.left_out("questions made of the documents' own words ask for BM25 alone on any index")
    else:
        trained_on = FusionTrainedOn(dataset=label, index=name, index_version=index.version, rows=0, date=today())
        fusion = train_fusion(
            router,
            index,
            queries,
            trained_on=trained_on,
            seed=options.seed,
            install=not options.dry_run,
            watcher=watch,
        )
    journal = Journal(index.folder / JOURNAL_FILE, _journal_key(router, index, queries, fusion))
    trial = None if fusion.installed else fusion.model
    runs = run_strategies(router, name, queries, weights=trial, journal=journal, timer=timer, watcher=watch)
    if not options.dry_run:
        MeasuredStrategies(
            strategies={
                run.strategy: StrategyMeasure(quality=run.mean_quality, p50_ms=run.percentile_ms(50)) for run in runs
            },
            dataset=label,
            index=name,
            index_version=index.version,
            queries=len(queries),
            measured_on=today(),
        ).save(index.folder)
    journal.remove()
    return TrainingResult(
        index=name,
        index_version=index.version,
        datasets=tuple(dataset.facts() for dataset in chosen),
        queries=len(queries),
        runs=runs,
        fusion=fusion,
        verdict=f"figures of {len(runs)} strategies {'not kept (dry run)' if options.dry_run else 'kept'}",
        problems=problems,
        seed=options.seed,
    )


def _journal_key(router: AgenticRouter, index: Index, queries: Sequence[JudgedQuery], fusion: FusionTraining) -> str:
    """Stand for all that the runs depend on."""
    asked = [(query.query_id, query.text, dict(query.relevance)) for query in queries]
    strategies = sorted(Counter(card.strategy.value for card in cards(index)))
    weights = _in_force(index) if fusion.model is None else fusion.model
    told = [weights.alpha, weights.slope, weights.pivot, weights.reach] if weights is not None else None
    return fingerprint([index.name, index.version, DEPTH, strategies, router.config.to_dict(), asked, told])


def _in_force(index: Index) -> FusionModel | None:
    try:
        return FusionModel.load(index.folder / FUSION_FILE)
    except StoreDamagedError:
        return None

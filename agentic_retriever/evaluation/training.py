"""Training an index on judged questions: weights of hybrid search, and what each strategy reaches with them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import StoreDamagedError
from agentic_retriever.evaluation.datasets import check_names
from agentic_retriever.evaluation.fusion_training import FusionTraining, train_fusion
from agentic_retriever.evaluation.journal import Journal, fingerprint
from agentic_retriever.evaluation.judged import judged_queries
from agentic_retriever.evaluation.strategies import DEPTH, StrategyRun, run_strategies
from agentic_retriever.evaluation.training_result import TrainingResult
from agentic_retriever.evaluation.watching import SilentWatcher
from agentic_retriever.indices.measured import MeasuredStrategies, StrategyMeasure
from agentic_retriever.retrievers import FUSION_FILE, FusionModel, FusionTrainedOn, cards

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from agentic_retriever.evaluation.datasets import Dataset
    from agentic_retriever.evaluation.strategies import JudgedQuery
    from agentic_retriever.evaluation.watching import Watcher
    from agentic_retriever.indices import Index
    from agentic_retriever.router import AgenticRouter

JOURNAL_FILE: Final = "strategy_runs.json"
"""Beside the index while a training runs."""

_OWN_WORDS: Final = "questions made of the documents' own words"


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
    queries, problems = judged_queries(chosen, router, index, vectors=options.vectors, watcher=watch)
    run = _Training(router, index, chosen, queries, options, today, watch)
    fusion = run.fusion()
    journal = Journal(index.folder / JOURNAL_FILE, run.key(fusion))
    trial = None if fusion.installed else fusion.model
    runs = run_strategies(router, name, queries, weights=trial, journal=journal, timer=timer, watcher=watch)
    if not options.dry_run:
        run.keep(runs)
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


class _Training:
    """The parts of one training that share what it is about."""

    def __init__(
        self,
        router: AgenticRouter,
        index: Index,
        datasets: Sequence[Dataset],
        queries: Sequence[JudgedQuery],
        options: TrainingOptions,
        today: Callable[[], str],
        watcher: Watcher,
    ) -> None:
        self._router = router
        self._index = index
        self._datasets = datasets
        self._queries = queries
        self._options = options
        self._today = today
        self._watcher = watcher
        self._pseudo = any(dataset.pseudo for dataset in datasets)
        self.label = " + ".join(dataset.name for dataset in datasets)

    def fusion(self) -> FusionTraining:
        """Fit the weights of hybrid search."""
        if self._pseudo:
            return FusionTraining.left_out(f"{_OWN_WORDS} ask for BM25 alone on any index")
        index = self._index
        return train_fusion(
            self._router,
            index,
            self._queries,
            trained_on=FusionTrainedOn(
                dataset=self.label, index=index.name, index_version=index.version, rows=0, date=self._today()
            ),
            seed=self._options.seed,
            install=not self._options.dry_run,
            watcher=self._watcher,
        )

    def keep(self, runs: Sequence[StrategyRun]) -> None:
        """Put what was measured of the strategies beside the index."""
        MeasuredStrategies(
            strategies={
                run.strategy: StrategyMeasure(quality=run.mean_quality, p50_ms=run.percentile_ms(50)) for run in runs
            },
            dataset=self.label,
            index=self._index.name,
            index_version=self._index.version,
            queries=len(self._queries),
            measured_on=self._today(),
        ).save(self._index.folder)

    def key(self, fusion: FusionTraining) -> str:
        """Stand for all that the runs and the answers depend on."""
        asked: list[tuple[str, str, Mapping[str, int]]] = [
            (query.query_id, query.text, dict(query.relevance)) for query in self._queries
        ]
        index, settings = self._index, self._router.config.to_dict()
        strategies = sorted(Counter(card.strategy.value for card in cards(index)))
        weights = _in_force(index) if fusion.model is None else fusion.model
        told = [weights.alpha, weights.slope, weights.pivot, weights.reach] if weights is not None else None
        return fingerprint([index.name, index.version, DEPTH, strategies, settings, asked, told])


def _in_force(index: Index) -> FusionModel | None:
    try:
        return FusionModel.load(index.folder / FUSION_FILE)
    except StoreDamagedError:
        return None

"""Training the strategy selector and the weights of hybrid search of an index on judged questions.

Every strategy is measured on the way.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.evaluation.datasets import check_names
from agentic_retriever.evaluation.fusion_training import FusionTraining, train_fusion
from agentic_retriever.evaluation.journal import Journal, fingerprint
from agentic_retriever.evaluation.judged import judged_queries
from agentic_retriever.evaluation.strategies import DEPTH, StrategyRun, run_strategies
from agentic_retriever.evaluation.watching import SilentWatcher
from agentic_retriever.indices.measured import MeasuredStrategies, StrategyMeasure
from agentic_retriever.retrievers import FusionTrainedOn, cards
from agentic_retriever.routing import (
    MODEL_FILE,
    DomainTerms,
    HeuristicSelector,
    TrainedOn,
    TrainingRow,
    assess_complexity,
    cross_validate,
    fit_strategy_model,
    probe_features,
    query_features,
)
from agentic_retriever.routing.training import MIN_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from agentic_retriever.evaluation.datasets import Dataset
    from agentic_retriever.evaluation.problems import ProblemReport
    from agentic_retriever.evaluation.strategies import JudgedQuery
    from agentic_retriever.evaluation.watching import Watcher
    from agentic_retriever.indices import Index
    from agentic_retriever.router import AgenticRouter
    from agentic_retriever.routing import CrossValidation, StrategyModel

JOURNAL_FILE: Final = "strategy_runs.json"
"""Beside the index while a training runs."""

_FOLDS: Final = 5
_ROWS_PER_FOLD: Final = 5


def _today() -> str:
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
        validation: What the model reaches on questions that it was not trained on; ``None`` when there were too few.
        model: The model, trained on all questions; ``None`` when there were too few.
        installed: Whether the model is beside the index now.
        fusion: The weights of hybrid search, and what became of them.
        verdict: One line: what was done and why.
        problems: What was wrong with the data sets.
        seed: Of everything that was drawn.
    """

    index: str
    index_version: int
    datasets: tuple[dict[str, Any], ...]
    queries: int
    runs: tuple[StrategyRun, ...]
    validation: CrossValidation | None
    model: StrategyModel | None
    installed: bool
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
            "validation": None if self.validation is None else self.validation.to_dict(),
            "model": None if self.model is None else self.model.to_dict(),
            "installed": self.installed,
            "fusion": self.fusion.to_dict(),
            "verdict": self.verdict,
            "problems": self.problems.to_dict(),
        }


def train_strategies(
    datasets: Sequence[Dataset],
    router: AgenticRouter,
    name: str,
    options: TrainingOptions,
    *,
    timer: Callable[[], float] = time.perf_counter,
    today: Callable[[], str] = _today,
    watcher: Watcher | None = None,
) -> TrainingResult:
    """Measure every strategy of an index, and install a selector and weights of hybrid search if they help.

    What is measured of each strategy is kept beside the index in any case, save in a dry run. The strategies are
    measured with the weights that were there before.

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
        EmbeddingError: If the embedding model failed.
        StoreError: If the index cannot be read or written.
        ConfigError: If the extra ``bench`` is not installed.
    """
    check_names(datasets)
    index, watch = router.index(name), watcher or SilentWatcher()
    chosen = [dataset.limited(options.limit, options.seed) for dataset in datasets]
    queries, problems = judged_queries(chosen, router, index, vectors=options.vectors, watcher=watch)
    journal = Journal(index.folder / JOURNAL_FILE, _key(router, index, queries))
    runs = run_strategies(router, name, queries, journal=journal, timer=timer, watcher=watch)
    terms = DomainTerms.parse(router.config.domain_terms)
    rows = training_rows(index, queries, runs, domain_terms=terms)
    label = " + ".join(dataset.name for dataset in chosen)
    validation, model = _fit(index, rows, label, options.seed, today)
    installed = validation is not None and model is not None and validation.helps and not options.dry_run
    if not options.dry_run:
        _keep(index, runs, label, len(queries), today)
        if installed and model is not None:
            model.save(index.folder / MODEL_FILE)
    fusion = _fit_fusion(chosen, router, index, queries, options, today, watch)
    journal.remove()
    return TrainingResult(
        index=name,
        index_version=index.version,
        datasets=tuple(dataset.facts() for dataset in chosen),
        queries=len(queries),
        runs=runs,
        validation=validation,
        model=model,
        installed=installed,
        fusion=fusion,
        verdict=_verdict(validation, len(queries), options, had_one=(index.folder / MODEL_FILE).exists()),
        problems=problems,
        seed=options.seed,
    )


def training_rows(
    index: Index,
    queries: Sequence[JudgedQuery],
    runs: Sequence[StrategyRun],
    *,
    domain_terms: DomainTerms | None = None,
) -> list[TrainingRow]:
    """Put the signals of every question beside what the strategies did on it.

    Args:
        index: The index that was searched.
        queries: The questions.
        runs: What every strategy did on them.
        domain_terms: Terms of the field, as they are set.

    Returns:
        One row per question, in their order.
    """
    profile = index.profile()
    rows = []
    for query in queries:
        _, score = assess_complexity(query.text)
        rows.append(
            TrainingRow(
                query_id=query.query_id,
                features={
                    **query_features(query.text, profile, score, domain_terms=domain_terms),
                    **probe_features(query.text, profile, query.vector),
                },
                quality={run.strategy: run.quality[query.query_id] for run in runs},
                latency_ms={run.strategy: run.latency_ms[query.query_id] for run in runs},
            )
        )
    return rows


def _fit(
    index: Index,
    rows: Sequence[TrainingRow],
    label: str,
    seed: int,
    today: Callable[[], str],
) -> tuple[CrossValidation | None, StrategyModel | None]:
    if len(rows) < MIN_ROWS:
        return None, None
    folds = min(_FOLDS, len(rows) // _ROWS_PER_FOLD)
    validation = cross_validate(rows, folds=folds, seed=seed, heuristic=HeuristicSelector())
    trained_on = TrainedOn(dataset=label, index=index.name, index_version=index.version, rows=0, date=today())
    return validation, fit_strategy_model(rows, trained_on=trained_on, seed=seed)


def _fit_fusion(
    datasets: Sequence[Dataset],
    router: AgenticRouter,
    index: Index,
    queries: Sequence[JudgedQuery],
    options: TrainingOptions,
    today: Callable[[], str],
    watcher: Watcher,
) -> FusionTraining:
    if any(dataset.pseudo for dataset in datasets):
        return FusionTraining.left_out("questions made of the documents' own words ask for BM25 alone on any index")
    label = " + ".join(dataset.name for dataset in datasets)
    return train_fusion(
        router,
        index,
        queries,
        trained_on=FusionTrainedOn(dataset=label, index=index.name, index_version=index.version, rows=0, date=today()),
        seed=options.seed,
        install=not options.dry_run,
        watcher=watcher,
    )


def _keep(index: Index, runs: Sequence[StrategyRun], label: str, queries: int, today: Callable[[], str]) -> None:
    MeasuredStrategies(
        strategies={
            run.strategy: StrategyMeasure(quality=run.mean_quality, p50_ms=run.percentile_ms(50)) for run in runs
        },
        dataset=label,
        index=index.name,
        index_version=index.version,
        queries=queries,
        measured_on=today(),
    ).save(index.folder)


def _verdict(validation: CrossValidation | None, queries: int, options: TrainingOptions, *, had_one: bool) -> str:
    if validation is None:
        return (
            f"not trained: {queries} judged questions are too few, {MIN_ROWS} are the least; the figures of the "
            f"strategies were {'not kept (dry run)' if options.dry_run else 'kept'}"
        )
    gains = _gain("the best fixed strategy", validation.gain, validation.gain_low, validation.gain_high)
    if validation.over_heuristic is not None:
        gains += " and " + _gain("the heuristic", *validation.over_heuristic)
    if not validation.helps:
        stays = "; the model that was there stays" if had_one else ""
        return f"not installed, since it does not help: {gains}{stays}"
    return f"{'would be installed, but this is a dry run' if options.dry_run else 'installed'}: {gains}"


def _gain(over: str, gain: float, low: float, high: float) -> str:
    return f"{gain:+.3f} nDCG@10 [{low:+.3f}, {high:+.3f}] over {over}"


def _key(router: AgenticRouter, index: Index, queries: Sequence[JudgedQuery]) -> str:
    """Stand for all that the runs depend on."""
    asked: list[tuple[str, str, Mapping[str, int]]] = [(q.query_id, q.text, dict(q.relevance)) for q in queries]
    strategies = sorted(Counter(card.strategy.value for card in cards(index)))
    return fingerprint([index.name, index.version, DEPTH, strategies, router.config.to_dict(), asked])

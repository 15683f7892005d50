"""Training an index on judged questions: weights of hybrid search, and what each strategy reaches with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from agentic_retriever.errors import EvaluationError, StoreDamagedError
from agentic_retriever.evaluation.contestants import Contestant, Found, fallen_back, run_contestants
from agentic_retriever.evaluation.datasets import Dataset, LabelledQuery, ProblemReport, check_names
from agentic_retriever.evaluation.fusion_training import FusionTraining, train_fusion
from agentic_retriever.evaluation.journal import Journal, SilentWatcher, Watcher, fingerprint
from agentic_retriever.evaluation.measures import MEASURES, failure_lines, measure_rankings
from agentic_retriever.evaluation.results import Row, rows_of
from agentic_retriever.evaluation.sections import Section, best_marked
from agentic_retriever.evaluation.vectors import Asked, Vector, given_vectors, with_vectors
from agentic_retriever.evaluation.views import build_views
from agentic_retriever.indices import Index, StoredIndex
from agentic_retriever.indices.measured import MeasuredStrategies, StrategyMeasure
from agentic_retriever.retrievers import (
    FUSION_FILE,
    AdapterSettings,
    FusionModel,
    FusionTrainedOn,
    RetrievalRequest,
    RetrieverAdapter,
    build_adapter,
    cards,
)
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import Strategy
from agentic_retriever.show import figure_text, render, short_text

DEPTH: Final = 30
"""Nodes fetched for a question, so that ten documents are found where several nodes belong to one."""

JOURNAL_FILE: Final = "strategy_runs.jsonl"
"""Beside the index while a training runs."""

_PSEUDO_WHY: Final = "questions made of the documents' own words ask for BM25 alone on any index"


def today_utc() -> str:
    """Return the date, ISO 8601."""
    return datetime.now(timezone.utc).date().isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How to train.

    Attributes:
        vectors: Folder with ``NAME.npz``, or one such file, for the questions; ``None`` embeds them.
        limit: Most questions of each data set, drawn by the seed; ``None`` takes all.
        seed: What is drawn by chance follows from it.
        dry_run: Whether nothing is kept.
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
        datasets: Facts of the data sets.
        queries: How many questions were asked.
        runs: What each strategy did.
        fusion: What fitting the weights of hybrid search found.
        verdict: What became of the figures of the strategies.
        problems: What was wrong in the data sets.
        seed: What was drawn by chance follows from it.
    """

    index: str
    index_version: int
    datasets: tuple[dict[str, Any], ...]
    queries: int
    runs: tuple[Row, ...]
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
            "strategies": {run.name: _run_to_dict(run) for run in self.runs},
            "fusion": self.fusion.to_dict(),
            "verdict": self.verdict,
            "problems": self.problems.to_dict(),
        }

    @property
    def warnings(self) -> list[str]:
        """What was wrong with the data or failed."""
        return [*self.problems.summary(), *failure_lines({run.name: run for run in self.runs})]

    def tables(self) -> list[Section]:
        """Return what was measured, and what became of what was fitted."""
        means = best_marked([[run.mean()] for run in self.runs], [True for _ in self.runs])
        rows = []
        for run, figures in zip(self.runs, means, strict=True):
            fell = ", ".join(f"{step} {count}" for step, count in run.degraded.items()) or "-"
            times = [figure_text(run.percentile_ms(at), 1) for at in (50, 95)]
            rows.append([run.name, *figures, *times, len(run.failures), fell])
        title = f"index {self.index}, {self.queries:,} judged questions"
        headers = ["strategy", MEASURES[0], "p50 ms", "p95 ms", "failed", "fell back"]
        verdicts = [self.fusion.verdict, self.verdict]
        return [Section(title, headers, rows), *self.fusion.tables(), Section("what became of it", lines=verdicts)]

    def _repr_html_(self) -> str:
        """Draw the tables in Jupyter: escaped, no assets, colours of the theme."""
        return render("sections.html", parts=[(self.tables(), self.warnings, [])])

    _repr_pretty_ = short_text


def _run_to_dict(run: Row) -> dict[str, Any]:
    return {
        "ndcg@10": run.mean(),
        "p50_ms": run.percentile_ms(50),
        "p95_ms": run.percentile_ms(95),
        "degraded": run.degraded,
        "failures": [failure.to_dict() for failure in run.failures],
        "quality": {query: values[MEASURES[0]] for query, values in run.quality.items()},
        "latency_ms": run.latency_ms,
    }


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
        datasets: Judged questions about documents of the index.
        router: The router that has the index.
        name: The index.
        options: How to train.
        timer: Returns seconds.
        today: Returns the date that is written beside what is kept.
        watcher: Hears how far it is.

    Returns:
        What was found, and what became of it.

    Raises:
        EvaluationError: If no question can be asked of the index.
        UnknownIndexError: If there is no such index.
    """
    check_names(datasets)
    index, watch = router.stored_index(name), watcher or SilentWatcher()
    chosen = [dataset.limited(options.limit, options.seed) for dataset in datasets]
    asked, problems = judged_queries(chosen, router, index, place=options.vectors, watcher=watch)
    label = " + ".join(dataset.name for dataset in chosen)
    if any(dataset.pseudo for dataset in chosen):
        fusion = FusionTraining.left_out(_PSEUDO_WHY)
    else:
        trained_on = FusionTrainedOn(dataset=label, index=name, index_version=index.version, rows=0, date=today())
        install = not options.dry_run
        fusion = train_fusion(
            router, index, asked, trained_on=trained_on, seed=options.seed, install=install, watcher=watch
        )
    trial = None if fusion.installed else fusion.model
    with Journal(index.folder / JOURNAL_FILE, _journal_key(router, index, asked, fusion)) as journal:
        runs = run_strategies(router, name, asked, weights=trial, journal=journal, timer=timer, watcher=watch)
    if not options.dry_run:
        measures = {
            Strategy(run.name): StrategyMeasure(quality=run.mean(), p50_ms=run.percentile_ms(50)) for run in runs
        }
        MeasuredStrategies(
            strategies=measures,
            dataset=label,
            index=name,
            index_version=index.version,
            queries=len(asked.queries),
            measured_on=today(),
        ).save(index.folder)
    journal.remove()
    return TrainingResult(
        index=name,
        index_version=index.version,
        datasets=tuple(dataset.facts() for dataset in chosen),
        queries=len(asked.queries),
        runs=runs,
        fusion=fusion,
        verdict=f"figures of {len(runs)} strategies {'not kept (dry run)' if options.dry_run else 'kept'}",
        problems=problems,
        seed=options.seed,
    )


def _journal_key(router: AgenticRouter, index: StoredIndex, asked: Asked, fusion: FusionTraining) -> str:
    """Stand for all that the runs depend on."""
    questions = [(query.query_id, query.text, dict(query.relevance)) for query in asked.queries]
    strategies = sorted(card.strategy.value for card in cards(index))
    try:
        weights = fusion.model or FusionModel.load(index.folder / FUSION_FILE)
    except StoreDamagedError:
        weights = None
    in_force = None if weights is None else [weights.alpha, weights.slope, weights.pivot, weights.reach]
    return fingerprint([index.name, index.version, DEPTH, strategies, router.config.to_dict(), questions, in_force])


def judged_queries(
    datasets: Sequence[Dataset],
    router: AgenticRouter,
    index: StoredIndex,
    *,
    place: Path | None = None,
    watcher: Watcher | None = None,
) -> tuple[Asked, ProblemReport]:
    """Gather the questions whose judgments are about documents of an index."""
    watch, model = watcher or SilentWatcher(), router.resources.embedding()
    reports = [dataset.problems for dataset in datasets]
    judged: list[LabelledQuery] = []
    vectors: dict[str, Vector] = {}
    for dataset in datasets:
        held, problems = dataset.about(index)
        known = given_vectors(replace(dataset, documents=()), place, model.base)
        if known is not None and not any(query.query_id in known.queries for query in dataset.queries):
            raise EvaluationError(f"{known.origin} has a vector of no question of {dataset.path}; check the ids in it")
        reports += [problems] if known is None else [problems, known.problems]
        watch.begin(f"questions of {dataset.name}", len(held))
        asked = with_vectors(held, known, model.embed_query, timer=time.perf_counter, on_progress=watch.advance)
        for query in asked.queries:
            query_id = f"{dataset.name}/{query.query_id}"
            judged.append(replace(query, query_id=query_id))
            vectors[query_id] = asked.vectors[query.query_id]
    report = ProblemReport.merged(reports)
    if not judged:
        lines = "; ".join(report.summary()[:3])
        raise EvaluationError(
            f"no question can be asked of index {index.name!r}: no judgment is about a document of it ({lines}); "
            "the ids of documents must be those of the index (agentic-retriever index show NAME)"
        )
    return Asked(tuple(judged), vectors), report


def run_strategies(
    router: AgenticRouter,
    name: str,
    asked: Asked,
    *,
    journal: Journal,
    weights: FusionModel | None = None,
    timer: Callable[[], float] = time.perf_counter,
    watcher: Watcher | None = None,
) -> tuple[Row, ...]:
    """Search with every strategy that an index serves; one after the other, warm."""
    index, watch = router.index(name), watcher or SilentWatcher()
    if not asked.queries or not index.count():
        what = "no judged question to run" if index.count() else f"index {name!r} is empty"
        raise EvaluationError(f"{what}; name a data set whose judgments are about documents of the index")
    measure_rankings({}, {})  # a missing extra shows now, not when the work is done
    strategies = [card.strategy for card in cards(index)]
    build_views(index, strategies, watch)
    contestants = [_contestant(router, index, strategy, asked.vectors, weights) for strategy in strategies]
    shares = {contestant.name: asked.queries for contestant in contestants}
    run_contestants(contestants, shares, journal, timer=timer, watcher=watch)
    return tuple(rows_of(contestants, shares, journal, seed=0).values())


def _contestant(
    router: AgenticRouter,
    index: Index,
    strategy: Strategy,
    vectors: Mapping[str, Vector],
    weights: FusionModel | None,
) -> Contestant:
    """Make a contestant of one strategy alone, with the router's weights or others."""
    adapter = _adapter(router, index, strategy, weights)
    embedded = router.resources.compares(index)  # an index with a model of its own embeds the questions itself

    def ask(query: LabelledQuery) -> Found:
        vector = tuple(vectors[query.query_id].tolist()) if embedded else None
        result = adapter.search(RetrievalRequest(query.text, DEPTH, None, vector))
        return Found(result.nodes, {"degraded": fallen_back(result.degraded)})

    return Contestant(name=strategy.value, ask=ask)


def _adapter(router: AgenticRouter, index: Index, strategy: Strategy, weights: FusionModel | None) -> RetrieverAdapter:
    if weights is None:
        return router.resources.adapter(index, strategy)
    settings = AdapterSettings.from_config(router.config, router.resources.workers(), model=router.resources.model)
    return build_adapter(strategy, index, replace(settings, weights=weights))

"""Training an index on judged questions: weights of hybrid search, and what each strategy reaches with them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agentic_retriever.errors import EvaluationError, StoreDamagedError
from agentic_retriever.evaluation.datasets import DatasetKind, ProblemKind, ProblemLog, ProblemReport, check_names
from agentic_retriever.evaluation.fusion_training import FusionTraining, train_fusion
from agentic_retriever.evaluation.journal import Journal, SilentWatcher, fingerprint
from agentic_retriever.evaluation.measures import MEASURES, fold_to_documents, ndcg_by_query
from agentic_retriever.evaluation.results import Failure, told
from agentic_retriever.evaluation.vectors import SAME_MODEL, load_vectors, vectors_file
from agentic_retriever.indices.measured import MeasuredStrategies, StrategyMeasure
from agentic_retriever.retrievers import (
    FUSION_FILE,
    AdapterSettings,
    FusionModel,
    FusionTrainedOn,
    RetrievalRequest,
    build_adapter,
    cards,
)
from agentic_retriever.schema import Strategy, View, frozen
from agentic_retriever.show import render, short_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from agentic_retriever.evaluation.datasets import Dataset, LabelledQuery
    from agentic_retriever.evaluation.journal import Watcher
    from agentic_retriever.evaluation.vectors import KnownVectors, Vector
    from agentic_retriever.indices import Index, StoredIndex
    from agentic_retriever.retrievers import RetrieverAdapter
    from agentic_retriever.router import AgenticRouter


# Running every strategy of an index over judged questions.

DEPTH: Final = 30
"""Nodes fetched for a question, so that ten documents are found where several nodes belong to one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedQuery:
    """A question with its judgments."""

    query_id: str
    text: str
    vector: Vector  # The embedded question, (dimension,)
    relevance: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRun:
    """What one strategy did on every question."""

    strategy: Strategy
    quality: Mapping[str, float]
    latency_ms: Mapping[str, float]  # Milliseconds by query id, the embedding of the question excluded
    degraded: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()

    def __post_init__(self) -> None:
        for name in ("quality", "latency_ms", "degraded"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    @property
    def mean_quality(self) -> float:
        """Mean nDCG@10, in [0, 1]."""
        return float(np.mean(list(self.quality.values())))

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the latencies, in milliseconds."""
        return float(np.percentile(list(self.latency_ms.values()), percent))

    def summary(self) -> dict[str, Any]:
        """Return the figures without those of each question, as plain JSON types."""
        return {
            "ndcg@10": self.mean_quality,
            "p50_ms": self.percentile_ms(50),
            "p95_ms": self.percentile_ms(95),
            "degraded": dict(self.degraded),
            "failures": [failure.to_dict() for failure in self.failures],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {**self.summary(), "quality": dict(self.quality), "latency_ms": dict(self.latency_ms)}

    @classmethod
    def from_dict(cls, strategy: Strategy, data: Mapping[str, Any]) -> StrategyRun:
        """Read what ``to_dict`` returned."""
        return cls(
            strategy=strategy,
            quality=data["quality"],
            latency_ms=data["latency_ms"],
            degraded=data["degraded"],
            failures=tuple(Failure(**failure) for failure in data["failures"]),
        )


def run_strategies(
    router: AgenticRouter,
    name: str,
    queries: Sequence[JudgedQuery],
    *,
    weights: FusionModel | None = None,
    journal: Journal | None = None,
    timer: Callable[[], float] = time.perf_counter,
    watcher: Watcher | None = None,
) -> tuple[StrategyRun, ...]:
    """Search with every strategy that an index serves; one after the other, warm."""
    index, watch = router.index(name), watcher or SilentWatcher()
    if not queries or not index.count():
        what = "no judged question to run" if index.count() else f"index {name!r} is empty"
        raise EvaluationError(f"{what}; name a data set whose judgments are about documents of the index")
    ndcg_by_query({}, {})  # a missing extra shows now, not when the work is done
    build_served_views(index)
    done = {} if journal is None else journal.parts
    runs = []
    for card in cards(index):
        known = _known_run(card.strategy, done.get(card.strategy.value), queries)
        watch.begin(card.strategy.value, len(queries))
        if known is not None:
            runs.append(known)
            watch.advance(len(queries))
            continue
        adapter = _adapter(router, index, card.strategy, weights)
        # An index with a model of its own embeds the questions itself.
        embedded = router.resources.compares(index)
        run = _run(adapter, card.strategy, queries, timer, watch, embedded=embedded)
        runs.append(run)
        if journal is not None:
            journal.keep(card.strategy.value, run.to_dict())
    return tuple(runs)


def _adapter(router: AgenticRouter, index: Index, strategy: Strategy, weights: FusionModel | None) -> RetrieverAdapter:
    """Return the router's adapter, or one that tries other weights."""
    if weights is None:
        return router.resources.adapter(index, strategy)
    settings = AdapterSettings.from_config(router.config, router.resources.workers(), model=router.resources.model)
    return build_adapter(strategy, index, replace(settings, weights=weights))


def build_served_views(index: Index) -> None:
    """Build what the strategies that are offered need, so that no first question pays for it or falls back.

    Summaries are never written by a model here.
    """
    if View.KEYWORD in index.views:
        index.keyword()
    if index.views & {View.HIERARCHY, View.SUMMARY}:
        index.build_views()


def _known_run(strategy: Strategy, data: Any, queries: Sequence[JudgedQuery]) -> StrategyRun | None:  # noqa: ANN401 - from a file
    """Read a run of an earlier, interrupted measurement; one that does not fit the questions counts as none."""
    try:
        run = StrategyRun.from_dict(strategy, data)
    except (KeyError, TypeError, AttributeError):
        return None
    wanted = {query.query_id for query in queries}
    return run if set(run.quality) == wanted == set(run.latency_ms) else None


def _run(
    adapter: RetrieverAdapter,
    strategy: Strategy,
    queries: Sequence[JudgedQuery],
    timer: Callable[[], float],
    watch: Watcher,
    *,
    embedded: bool = True,
) -> StrategyRun:
    rankings: dict[str, list[str]] = {}
    spent: dict[str, float] = {}
    degraded: Counter[str] = Counter()
    failures: list[Failure] = []
    # The first question is asked twice: once to fill what the first search fills.
    for at, query in enumerate((queries[0], *queries)):
        request = RetrievalRequest(query.text, DEPTH, None, tuple(query.vector.tolist()) if embedded else None)
        start = timer()
        try:
            result = adapter.search(request)
        except Exception as err:  # noqa: BLE001 - the seam to any strategy; one question must not end the run
            rankings[query.query_id] = []
            if at:
                failures.append(Failure(query_id=query.query_id, error=told(err)))
        else:
            rankings[query.query_id] = fold_to_documents(result.nodes)
            if at:
                degraded.update({lost.step for lost in result.degraded})
        spent[query.query_id] = (timer() - start) * 1000
        watch.advance(min(at, 1))
    quality = ndcg_by_query({query.query_id: query.relevance for query in queries}, rankings)
    return StrategyRun(
        strategy=strategy,
        quality=quality,
        latency_ms=spent,
        degraded=dict(sorted(degraded.items())),
        failures=tuple(failures),
    )


# Judged questions of one index.


def judged_queries(
    datasets: Sequence[Dataset],
    router: AgenticRouter,
    index: StoredIndex,
    *,
    vectors: Path | None = None,
    watcher: Watcher | None = None,
) -> tuple[list[JudgedQuery], ProblemReport]:
    """Gather the questions whose judgments are about documents of an index, and embed them."""
    watch = watcher or SilentWatcher()
    held = set(index.doc_ids())
    log = ProblemLog()
    reports = [dataset.problems for dataset in datasets]
    judged: list[JudgedQuery] = []
    for dataset in datasets:
        known = _known(dataset, router, index, vectors)
        reports += [known.problems] if known is not None else []
        kept = [(query, _held(query, held, dataset, log)) for query in _of_index(dataset, index.name)]
        asked = [(query, relevance) for query, relevance in kept if relevance]
        watch.begin(f"questions of {dataset.name}", len(asked))
        for query, relevance in asked:
            if known is not None and query.query_id not in known.queries:
                continue
            vector = (
                router.resources.embedding().embed_query(query.text) if known is None else known.queries[query.query_id]
            )
            judged.append(
                JudgedQuery(
                    query_id=f"{dataset.name}/{query.query_id}", text=query.text, vector=vector, relevance=relevance
                )
            )
            watch.advance(1)
    report = ProblemReport.merged([*reports, log.report()])
    if not judged:
        told = "; ".join(report.summary()[:3])
        raise EvaluationError(
            f"no question can be asked of index {index.name!r}: no judgment is about a document of it ({told}); "
            "the ids of documents must be those of the index (agentic-retriever index show NAME)"
        )
    return judged, report


def _of_index(dataset: Dataset, name: str) -> list[LabelledQuery]:
    """Leave out questions of a questions file that belong to other indexes."""
    if dataset.kind is DatasetKind.BEIR:
        return list(dataset.queries)
    return [query for query in dataset.queries if query.index in {None, name} and query.answerable]


def _held(query: LabelledQuery, held: set[str], dataset: Dataset, log: ProblemLog) -> dict[str, int]:
    """Keep the judgments of documents that the index has; none when no relevant one is left."""
    unknown = [doc_id for doc_id in query.relevance if doc_id not in held]
    for doc_id in unknown:
        log.add(ProblemKind.UNKNOWN_DOCUMENT, dataset.path, f"the index has no document {doc_id!r}")
    kept = {doc_id: grade for doc_id, grade in query.relevance.items() if doc_id in held}
    if any(grade > 0 for grade in kept.values()):
        return kept
    log.add(ProblemKind.UNJUDGED_QUERY, dataset.path, f"no relevant document of {query.query_id!r} is in the index")
    return {}


def _known(dataset: Dataset, router: AgenticRouter, index: StoredIndex, vectors: Path | None) -> KnownVectors | None:
    """Read the given vectors of the questions and see that they are of the index's model."""
    if vectors is None:
        return None
    path = vectors_file(vectors, dataset.name)
    known = load_vectors(path, replace(dataset, documents=()))
    query = next((query for query in dataset.queries if query.query_id in known.queries), None)
    if query is None:
        raise EvaluationError(f"{path} has a vector of no question of {dataset.path}; check the ids in it")
    vector, expected = known.queries[query.query_id], router.resources.embedding().embed_query(query.text)
    if vector.shape != expected.shape or float(vector @ expected) < SAME_MODEL:
        raise EvaluationError(
            f"the vectors in {path} do not come from {index.manifest.embedding}, the model of index {index.name!r}; "
            "leave --vectors out to have the questions embedded"
        )
    return known


JOURNAL_FILE: Final = "strategy_runs.json"
"""Beside the index while a training runs."""


def today_utc() -> str:
    """Return the date, ISO 8601."""
    return datetime.now(timezone.utc).date().isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How to train."""

    vectors: Path | None = None  # Folder with NAME.npz, or one such file, for the questions; None embeds them
    limit: int | None = None  # Most questions of each data set, drawn by the seed; None takes all
    seed: int = 0
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """What a training found, and what became of it."""

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
        return render("training.html", result=self, measure=MEASURES[0])

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


def _journal_key(
    router: AgenticRouter, index: StoredIndex, queries: Sequence[JudgedQuery], fusion: FusionTraining
) -> str:
    """Stand for all that the runs depend on."""
    asked = [(query.query_id, query.text, dict(query.relevance)) for query in queries]
    strategies = sorted(Counter(card.strategy.value for card in cards(index)))
    weights = _in_force(index) if fusion.model is None else fusion.model
    told = [weights.alpha, weights.slope, weights.pivot, weights.reach] if weights is not None else None
    return fingerprint([index.name, index.version, DEPTH, strategies, router.config.to_dict(), asked, told])


def _in_force(index: StoredIndex) -> FusionModel | None:
    try:
        return FusionModel.load(index.folder / FUSION_FILE)
    except StoreDamagedError:
        return None

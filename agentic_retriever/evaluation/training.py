"""Training an index on judged questions: weights of hybrid search, and what each strategy reaches with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from agentic_retriever.errors import EvaluationError, StoreDamagedError
from agentic_retriever.evaluation import measures, peers
from agentic_retriever.evaluation.datasets import (
    Asked,
    Dataset,
    LabelledQuery,
    ProblemReport,
    Vector,
    check_names,
    given_vectors,
    with_vectors,
)
from agentic_retriever.evaluation.measures import MEASURES, Row
from agentic_retriever.indices import Index, StoredIndex
from agentic_retriever.indices.derived import SILENT, Watcher
from agentic_retriever.indices.profile import MeasuredStrategies, StrategyMeasure
from agentic_retriever.retrievers import (
    DEFAULT_FUSION,
    FUSION_FILE,
    Fusion,
    FusionModel,
    HybridRetriever,
    RetrievalRequest,
    RetrieverAdapter,
    build_adapter,
    cards,
)
from agentic_retriever.retrievers.base import fetch_nodes
from agentic_retriever.retrievers.hybrid import CALIBRATED_DEPTH, FusionTrainedOn, SideLists
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import Record, Strategy
from agentic_retriever.show import Section, figure_text, render, short_text

DEPTH: Final = 30  # nodes fetched for a question, so that ten documents are found where several nodes belong to one
JOURNAL_FILE: Final = "strategy_runs.jsonl"  # beside the index while a training runs
_LEFT_OUT: Final = "weights of hybrid not fitted: "
_PSEUDO_WHY: Final = "questions made of the documents' own words ask for BM25 alone on any index"


def today_utc() -> str:
    return datetime.now(timezone.utc).date().isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    vectors: Path | None = None  # Folder with NAME.npz, or one such file, for the questions; None embeds them
    limit: int | None = None  # Most questions of each data set, drawn by the seed; None takes all
    seed: int = 0  # What is drawn by chance follows from it
    dry_run: bool = False  # Whether nothing is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult(Record):
    index: str
    index_version: int
    datasets: tuple[dict[str, Any], ...]
    queries: int
    runs: tuple[Row, ...]
    fusion: FusionTraining
    verdict: str  # what became of the figures of the strategies
    problems: ProblemReport
    seed: int

    def to_dict(self) -> dict[str, Any]:
        told = Record.to_dict(self)
        strategies = {
            run.name: {
                "ndcg@10": run.mean(),
                "p50_ms": run.percentile_ms(50),
                "p95_ms": run.percentile_ms(95),
                "degraded": run.degraded,
                "failures": [failure.to_dict() for failure in run.failures],
                "quality": {query: values[MEASURES[0]] for query, values in run.quality.items()},
                "latency_ms": run.latency_ms,
            }
            for run in told.pop("runs")
        }
        return {"format": 1, **told, "strategies": strategies}

    @property
    def warnings(self) -> list[str]:
        return [*self.problems.summary(), *measures.failure_lines({run.name: run.failures for run in self.runs})]

    def tables(self) -> list[Section]:
        means = measures.best_marked([[run.mean()] for run in self.runs], [True for _ in self.runs])
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
        return render("sections.html", parts=[(self.tables(), self.warnings, [])])

    _repr_pretty_ = short_text


def train_strategies(
    datasets: Sequence[Dataset],
    router: AgenticRouter,
    name: str,
    options: TrainingOptions,
    *,
    timer: Callable[[], float] = time.perf_counter,
    today: Callable[[], str] = today_utc,
    watcher: Watcher = SILENT,
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
    index = router.resources.stored(name, to_change=True)
    chosen = [dataset.limited(options.limit, options.seed) for dataset in datasets]
    asked, problems = judged_queries(chosen, router, index, place=options.vectors, watcher=watcher)
    label, install = " + ".join(dataset.name for dataset in chosen), not options.dry_run
    if any(dataset.pseudo for dataset in chosen):
        fusion = FusionTraining(verdict=_LEFT_OUT + _PSEUDO_WHY)
    else:
        about = FusionTrainedOn(dataset=label, index=name, index_version=index.version, rows=0, date=today())
        fusion = train_fusion(
            router, index, asked, trained_on=about, seed=options.seed, install=install, watcher=watcher
        )
    trial = None if fusion.installed else fusion.model
    with peers.Journal(index.folder / JOURNAL_FILE, _journal_key(router, index, asked, fusion)) as journal:
        run = peers.Run(journal=journal, timer=timer, watcher=watcher)
        runs = run_strategies(router, name, asked, run, weights=trial)
    if install:
        reached = {
            Strategy(run.name): StrategyMeasure(quality=run.mean(), p50_ms=run.percentile_ms(50)) for run in runs
        }
        MeasuredStrategies(
            strategies=reached, dataset=label, index=name, index_version=index.version, queries=len(asked.queries),
            measured_on=today(),
        ).save(index.folder)  # fmt: skip
    journal.remove()
    return TrainingResult(
        index=name,
        index_version=index.version,
        datasets=tuple(dataset.facts() for dataset in chosen),
        queries=len(asked.queries),
        runs=runs,
        fusion=fusion,
        verdict=f"figures of {len(runs)} strategies {'kept' if install else 'not kept (dry run)'}",
        problems=problems,
        seed=options.seed,
    )


def _journal_key(router: AgenticRouter, index: StoredIndex, asked: Asked, fusion: FusionTraining) -> str:
    questions = [(query.query_id, query.text, dict(query.relevance)) for query in asked.queries]
    strategies = sorted(card.strategy.value for card in cards(index))
    try:
        weights = fusion.model or FusionModel.load(index.folder / FUSION_FILE)
    except StoreDamagedError:
        weights = None
    in_force = None if weights is None else [weights.alpha, weights.slope, weights.pivot, weights.reach]
    settings = router.config.to_dict()
    return peers.fingerprint([index.name, index.version, DEPTH, strategies, settings, questions, in_force])


def judged_queries(
    datasets: Sequence[Dataset],
    router: AgenticRouter,
    index: StoredIndex,
    *,
    place: Path | None = None,
    watcher: Watcher = SILENT,
) -> tuple[Asked, ProblemReport]:
    """Gather the questions whose judgments are about documents of an index."""
    model = router.resources.embedding()
    reports = [dataset.problems for dataset in datasets]
    judged: list[LabelledQuery] = []
    vectors: dict[str, Vector] = {}
    for dataset in datasets:
        held, problems = dataset.about(index)
        known = given_vectors(replace(dataset, documents=()), place, model.base)
        if known.origin and not any(query.query_id in known.queries for query in dataset.queries):
            raise EvaluationError(f"{known.origin} has a vector of no question of {dataset.path}; check the ids in it")
        reports += [problems, known.problems]
        asked = with_vectors(
            held, known, model.embed_query, about=dataset.name, timer=time.perf_counter, watcher=watcher
        )
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
    router: AgenticRouter, name: str, asked: Asked, run: peers.Run, *, weights: FusionModel | None = None
) -> tuple[Row, ...]:
    """Search with every strategy that an index serves; one after the other, warm."""
    index = router.index(name)
    measures.measure_rankings({}, {})  # a missing extra shows now, not when the work is done
    strategies = [card.strategy for card in cards(index)]
    peers.build_views(index, strategies, run.watcher)
    contestants = [_contestant(router, index, strategy, asked.vectors, weights) for strategy in strategies]
    return tuple(one.run(asked.queries, run, seed=0) for one in contestants)


def _contestant(
    router: AgenticRouter, index: Index, strategy: Strategy, vectors: Mapping[str, Vector], weights: FusionModel | None
) -> peers.Contestant:
    resources = router.resources
    adapter: RetrieverAdapter = resources.adapter(index, strategy)
    if weights is not None:
        adapter = build_adapter(strategy, index, replace(resources.adapter_settings(), dense_weight=weights.weight))
    embedded = resources.compares(index)  # an index with a model of its own embeds the questions itself

    def ask(query: LabelledQuery) -> peers.Found:
        vector = tuple(vectors[query.query_id].tolist()) if embedded else None
        result = adapter.search(RetrievalRequest(query.text, DEPTH, None, vector))
        return peers.Found(result.nodes, {"degraded": peers.fallen_back(result.degraded)})

    return peers.Contestant(name=strategy.value, ask=ask)


# Fitting how an index weighs the two sides of hybrid search, on questions that people have judged.
# Questions made of the documents' own words are of no use here: docs/training.md has what they cost.

Array = npt.NDArray[np.float64]
Gain = tuple[float, float, float]  # mean, and both ends of its 95 % interval

MIN_QUESTIONS: Final = 20
# nDCG@10 that the interval of the gain over the default may reach below 0 for weights that are installed
_LARGEST_LOSS: Final = 0.01
_WORDS_ONLY: Final = FusionModel(alpha=0.0, slope=0.0, reach=0.0)
_DENSE_ONLY: Final = FusionModel(alpha=1.0, slope=0.0, reach=0.0)
_STEPS: Final = tuple(round(at / 10, 1) for at in range(11))
_STEEPER: Final = FusionModel(slope=2 * DEFAULT_FUSION.slope, reach=0.3)
_FOLDS: Final = 5
_REPEATS: Final = 5
_TIES: Final = 1e-9
_SLOPED: Final = [replace(model, alpha=alpha) for model in (DEFAULT_FUSION, _STEEPER) for alpha in _STEPS[1:-1]]
_LEVEL: Final = [replace(_WORDS_ONLY, alpha=alpha) for alpha in _STEPS]
# All weights that are tried: the default first, then by how far they are from it.
CANDIDATES: Final = tuple(sorted([*_SLOPED, *_LEVEL], key=lambda model: abs(model.alpha - DEFAULT_FUSION.alpha)))
WORDS, DENSE = CANDIDATES.index(_WORDS_ONLY), CANDIDATES.index(_DENSE_ONLY)  # columns of one side alone


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionValidation(Record):
    """Means of nDCG@10 on questions not fitted on; the last three with its 95 % interval by a paired bootstrap."""

    rows: int
    folds: int
    repeats: int  # how often the questions were cut into folds anew; all figures are means over that
    learned: float  # of the weights fitted on the other folds
    default: float
    dense: float
    bm25: float
    gain: Gain  # learned less default
    over_side: Gain  # learned less the better side, which is chosen in hindsight
    side_gain: Gain  # the better side less default

    @property
    def helps(self) -> bool:
        return _helps(self.gain) and self.over_side[0] >= -_TIES

    @property
    def side_helps(self) -> bool:
        return _helps(self.side_gain)

    def to_dict(self) -> dict[str, Any]:
        return {**Record.to_dict(self), "helps": self.helps, "side_helps": self.side_helps}


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionTraining(Record):
    validation: FusionValidation | None = None  # none when there were too few questions, or no person judged them
    model: FusionModel | None = None  # what was installed, or would have been in a dry run
    installed: bool = False
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        return {**Record.to_dict(self), "model": None if self.model is None else self.model.to_dict()}

    def tables(self) -> list[Section]:
        seen = self.validation
        if seen is None:
            return []
        over, dense_is_better = _gain_text(seen.over_side), seen.dense > seen.bm25
        rows = [
            ("fitted", figure_text(seen.learned), ""),
            ("default", figure_text(seen.default), _gain_text(seen.gain)),
            ("dense alone", figure_text(seen.dense), over if dense_is_better else ""),
            ("BM25 alone", figure_text(seen.bm25), "" if dense_is_better else over),
        ]
        title = f"weights of hybrid, {seen.folds}-fold cross-validation, {seen.repeats} times"
        return [Section(title, ["weights", "nDCG@10", "fitted gains (95 % interval)"], rows)]


def train_fusion(
    router: AgenticRouter,
    index: StoredIndex,
    asked: Asked,
    *,
    trained_on: FusionTrainedOn,
    seed: int = 0,
    install: bool = True,
    watcher: Watcher = SILENT,
) -> FusionTraining:
    """Fit the weights of hybrid search on an index, and install them, or the better side alone, if that helps."""
    hybrid, count = router.resources.adapter(index, Strategy.HYBRID), len(asked.queries)
    if count < MIN_QUESTIONS:
        few = f"{count} judged questions are too few, {MIN_QUESTIONS} are the least"
        return FusionTraining(verdict=_LEFT_OUT + few)
    if not isinstance(hybrid, HybridRetriever):
        return FusionTraining(verdict=f"{_LEFT_OUT}{type(hybrid).__name__} is registered for hybrid search")
    quality = fusion_table(index, hybrid, asked, watcher=watcher)
    validation = validate_fusion(quality, seed=seed)
    path, used = index.folder / FUSION_FILE, router.config.fusion == Fusion.CALIBRATED.value
    had_one, model = path.exists(), None
    if validation.helps or validation.side_helps:
        column = choose_weights(quality) if validation.helps else better_side(quality)
        model = replace(CANDIDATES[column], trained_on=replace(trained_on, rows=count))
    installed = model is not None and install
    if model is not None and installed:
        model.save(path)
    verdict = _verdict(validation, model, install=install, used=used, had_one=had_one)
    return FusionTraining(validation=validation, model=model, installed=installed, verdict=verdict)


def fusion_table(index: Index, hybrid: HybridRetriever, asked: Asked, *, watcher: Watcher = SILENT) -> Array:
    """Search both sides for every question once and merge them by every candidate: nDCG@10, (questions, candidates)."""
    sides: dict[str, SideLists] = {}
    documents: dict[str, str] = {}
    watcher.begin("weights of hybrid", len(asked.queries))
    for query in asked.queries:
        request = RetrievalRequest(query.text, CALIBRATED_DEPTH, None, tuple(asked.vectors[query.query_id].tolist()))
        sides[query.query_id] = hybrid.search_sides(request)
        unknown = {i for entries in sides[query.query_id].lists.values() for i, _score in entries} - documents.keys()
        nodes = fetch_nodes(index, sorted(unknown))
        documents.update((node_id, str(nodes[node_id].ref_doc_id or node_id)) for node_id in unknown & nodes.keys())
        watcher.advance(1)
    grades = {query.query_id: query.relevance for query in asked.queries}
    columns = []
    for model in CANDIDATES:
        found = {query_id: _document_ranking(one, model, documents) for query_id, one in sides.items()}
        columns.append(list(measures.ndcg_by_query(grades, found).values()))
    quality: Array = np.array(columns).T
    return quality


def _document_ranking(found: SideLists, model: FusionModel, documents: Mapping[str, str]) -> list[str]:
    """Rank documents by their best node, as the strategy would return them."""
    lists = list(found.lists.values())
    ranking = [(i, 0.0) for entries in lists for i, _score in entries]
    if len(lists) > 1:
        ranking = found.merged(model.weight(found.excess))
    # Nodes that were deleted meanwhile are left out, as in a search.
    return list(dict.fromkeys(documents[node_id] for node_id, _score in ranking if node_id in documents))


def choose_weights(quality: Array) -> int:
    """Return the column nearest to the default within one standard error of the best (L. Breiman et al., 1984)."""
    means = quality.mean(axis=0)
    losses = quality[:, [int(means.argmax())]] - quality
    errors = losses.std(axis=0, ddof=1) / np.sqrt(len(quality))
    near = (losses.mean(axis=0) <= errors + _TIES) & (means >= means[[WORDS, DENSE]].max() - _TIES)
    return int(near.argmax())  # the first, for the best one is always among them


def better_side(quality: Array) -> int:
    """Return the column of the better side alone; BM25 of equals."""
    means = quality.mean(axis=0)
    return WORDS if means[WORDS] >= means[DENSE] else DENSE


def validate_fusion(quality: Array, *, seed: int = 0) -> FusionValidation:
    """Fit on all folds but one and measure on that one, in turn; the same seed gives the same figures."""
    generator, rows = np.random.default_rng(seed), len(quality)
    folds, learned = min(_FOLDS, rows // 5), np.zeros(rows)
    for _ in range(_REPEATS):
        for part in np.array_split(generator.permutation(rows), folds):
            others = np.setdiff1d(np.arange(rows), part)
            learned[part] += quality[part, choose_weights(quality[others])] / _REPEATS
    default, words, dense, side = (quality[:, at] for at in (0, WORDS, DENSE, better_side(quality)))
    return FusionValidation(
        rows=rows,
        folds=folds,
        repeats=_REPEATS,
        learned=float(learned.mean()),
        default=float(default.mean()),
        dense=float(dense.mean()),
        bm25=float(words.mean()),
        gain=_interval(learned - default, seed),
        over_side=_interval(learned - side, seed),
        side_gain=_interval(side - default, seed),
    )


def _helps(gain: Gain) -> bool:
    return gain[0] > _TIES and gain[1] >= -_LARGEST_LOSS


def _interval(gains: Array, seed: int) -> Gain:
    """Mean of the gains, and the ends of its 95 % interval by a bootstrap over questions."""
    gains = np.round(gains, 12) + 0.0  # means of equal numbers may differ in the last digit, or be -0.0
    return float(gains.mean()), *measures.bootstrap_interval(gains.tolist(), seed=seed)


def _verdict(
    validation: FusionValidation, model: FusionModel | None, *, install: bool, used: bool, had_one: bool
) -> str:
    side = _gain_text(validation.over_side)
    gain = f"{_gain_text(validation.gain)} nDCG@10 over the default and {side} over the better side"
    if model is None:
        stays = "; the weights that were there stay" if had_one else ""
        return f"weights of hybrid not installed, since they do not help: {gain}{stays}"
    what = f"weights of hybrid (dense side {model.alpha:g})"
    if not validation.helps:
        what = "BM25 alone as hybrid" if model.alpha < DEFAULT_FUSION.alpha else "dense search alone as hybrid"
        gain = f"{_gain_text(validation.side_gain)} nDCG@10 over the default, and no mixture is better"
    done = "installed" if install else "would be installed, but this is a dry run"
    return f"{what} {done}: {gain}{'' if used else '; counts once the setting fusion is calibrated'}"


def _gain_text(gain: Gain) -> str:
    return f"{gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]"

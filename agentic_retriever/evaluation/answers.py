"""Measuring answers: what they cite, when they abstain, and how far they agree with right ones."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agentic_retriever.evaluation.answer_text import answer_f1, exact_match
from agentic_retriever.evaluation.choices import told
from agentic_retriever.evaluation.reliability import measure_reliability
from agentic_retriever.evaluation.results import Abstention, Failure
from agentic_retriever.evaluation.rows import percentile, stage_percentiles
from agentic_retriever.evaluation.statistics import bootstrap_interval
from agentic_retriever.schema import ConfidenceLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentic_retriever.evaluation.datasets import LabelledQuery
    from agentic_retriever.evaluation.judging import Judge
    from agentic_retriever.evaluation.run_log import RunLog
    from agentic_retriever.evaluation.watching import Watcher
    from agentic_retriever.router import AgenticRouter
    from agentic_retriever.schema import Answer

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
    """How the answers to the questions of one index did.

    Attributes:
        asked: Questions in all, those that nothing answers included.
        means: Mean of each measure over the questions that have it.
        counts: How many questions have it.
        intervals: 95 % bootstrap interval of each mean.
        judged_by: What each measure was judged by.
        abstention: Whether it abstained rightly.
        reliability: Confidence of answers against whether what they cite is relevant.
        tiers: How often each model tier wrote the answer.
        records: What was answered, by question.
        notes: What a reader must know.
    """

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
    """Answer every question with the router's own choice of strategy; the log takes each answer.

    Args:
        router: Holds the index.
        index: Name of the index.
        queries: The questions.
        log: Keeps the answers; what it has is not asked again.
        judge: A model that judges the answers.
        timer: Seconds.
        watcher: Hears how far it is.

    Raises:
        StoreError: If the log cannot be written.
    """
    done = {one["query"] for one in log.records if one.get("kind") == ANSWER and not one.get("error")}
    watcher.begin(f"answers, {index}", len(queries))
    for query in queries:
        if query.query_id not in done:
            log.append(_answered(router, index, query, judge, timer))
        watcher.advance(1)


def measure_answers(
    queries: Sequence[LabelledQuery], records: Mapping[str, Mapping[str, Any]], *, seed: int, judge: str = ""
) -> AnswerMeasures:
    """Measure answers.

    Args:
        queries: The questions that were asked.
        records: Their answers, by question.
        seed: Of the intervals.
        judge: Name of the model that judged; ``""`` for none.

    Returns:
        The measures; a question that failed counts as answered without a citation.
    """
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

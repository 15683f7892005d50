"""Measuring answers: what they cite, when they abstain, how far they agree with right ones, and what a model thinks."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.evaluation import FaithfulnessEvaluator, RelevancyEvaluator
from llama_index.core.llms.custom import CustomLLM

from agentic_retriever.evaluation import measures
from agentic_retriever.evaluation.datasets import LabelledQuery
from agentic_retriever.evaluation.peers import Run, fallen_back, spent
from agentic_retriever.llm import ModelClient
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import Answer, ConfidenceLevel, Record

ANSWER: Final = "answer"  # kind of the record of an answer, and its row
MOST_CONTEXTS: Final = 5  # nodes whose relevance is judged, from the best down; each costs a call
_JUDGED_BY: Final = {
    "citation_precision": "gold documents",
    "citation_recall": "gold documents",
    "answer_f1": "gold answers",
    "exact_match": "gold answers",
    "abstention": "labels of the questions",
}
_BY_MODEL: Final = {"faithfulness": "faithful", "context_precision": "context_precision"}
_NO_JUDGE: Final = "no language model is configured, so faithfulness and context precision were not judged"


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

    def to_dict(self) -> dict[str, Any]:
        told = self.fields_to_dict()
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

    def table(self) -> measures.Section:
        rows = [
            [
                name,
                f"{mean:.3f} {measures.interval_text(self.intervals[name])}",
                self.counts[name],
                self.judged_by[name],
            ]
            for name, mean in self.means.items()
        ]
        silent = self.abstention
        line = (
            f"declined {silent.abstained} of {silent.asked} questions, {silent.right} of the {silent.out_of_scope} "
            "that nothing answers"
        )
        return measures.Section("answers", ["answers", "mean [95 %]", "questions", "judged by"], rows, lines=[line])


def measure_answers(
    router: AgenticRouter, index: str, queries: Sequence[LabelledQuery], run: Run, *, seed: int
) -> AnswerMeasures:
    """Answer every question with the router's own choice of strategy, and measure the answers."""
    client = router.resources.model
    judge = None if client is None else Judge(client)

    def facts(query: LabelledQuery, answer: Answer | None) -> dict[str, Any]:
        found = {"cited": [], "confidence": 0.0, **({} if answer is None else _facts(answer))}
        if judge is not None and answer is not None and answer.nodes:
            found |= judge.judge(query.text, answer.text, [one.node.get_content() for one in answer.nodes])
        return found

    records = run.ask(
        (ANSWER, ANSWER), queries, lambda query: router.query(query.text, index=index), facts, what=f"answers, {index}"
    )
    values: dict[str, list[float]] = {}
    for query in queries:
        for name, value in _values(query, records[query.query_id]).items():
            values.setdefault(name, []).append(value)
    known = {**_JUDGED_BY, **({} if judge is None else dict.fromkeys(_BY_MODEL, f"model {judge.name}"))}
    cited = [(query, records[query.query_id]) for query in queries if records[query.query_id]["cited"]]
    silent = {i for i, record in records.items() if record.get("level") == ConfidenceLevel.NOT_FOUND.value}
    outside = {query.query_id for query in queries if not query.answerable}
    return AnswerMeasures(
        means={name: float(np.mean(found)) for name, found in values.items()},
        counts={name: len(found) for name, found in values.items()},
        intervals={name: measures.bootstrap_interval(found, seed=seed) for name, found in values.items()},
        judged_by={name: known[name] for name in [*values, "abstention"]},
        abstention=measures.Abstention(
            asked=len(queries), out_of_scope=len(outside), abstained=len(silent), right=len(silent & outside)
        ),
        reliability=measures.measure_reliability(
            measures.clamped(record["confidence"] for _, record in cited),
            [_relevant(query, record) > 0 for query, record in cited],
            bins=10,
        )
        if cited
        else None,
        records=records,
        notes=() if judge is not None else (_NO_JUDGE,),
    )


def _facts(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "cited": list(dict.fromkeys(citation.doc_id for citation in answer.citations)),
        "confidence": answer.confidence.score,
        "level": answer.confidence.level.value,
        "strategy": answer.route.strategy.name,
        "tier": answer.tier.value,
        "cached": answer.cached,
        "stages": dict(answer.timings_ms),
        "degraded": fallen_back(answer.degraded),
        **spent(answer.usage),
    }


def _values(query: LabelledQuery, record: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    gold = [doc_id for doc_id, grade in query.relevance.items() if grade > 0]
    if query.answerable and gold:
        hits = _relevant(query, record)
        found["citation_recall"] = hits / len(gold)
        if record["cited"]:
            found["citation_precision"] = hits / len(record["cited"])
    if query.answerable and query.answer:
        text = str(record.get("text", ""))
        found["answer_f1"] = measures.answer_f1(text, query.answer)
        found["exact_match"] = float(measures.exact_match(text, query.answer))
    judged = {name: record[fact] for name, fact in _BY_MODEL.items() if record.get(fact) is not None}
    return found | {name: float(value) for name, value in judged.items()}


def _relevant(query: LabelledQuery, record: Mapping[str, Any]) -> int:
    return sum(query.relevance.get(doc_id, 0) > 0 for doc_id in record["cited"])


# Having answers judged by a language model, through LlamaIndex's evaluators.


class JudgeLLM(CustomLLM):
    """The router's own model as a LlamaIndex LLM, with its tiers, retries and breakers."""

    model_name: str = "judge"
    _client: Any = PrivateAttr()

    def __init__(self, client: ModelClient) -> None:
        super().__init__(model_name=client.model)
        self._client = client

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name=self.model_name, context_window=self._client.context_tokens, num_output=256)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: object) -> CompletionResponse:  # noqa: ARG002
        return CompletionResponse(text=self._client.complete(prompt).text)

    def stream_complete(
        self,
        prompt: str,
        formatted: bool = False,  # noqa: ARG002 - LlamaIndex's signature
        **kwargs: object,  # noqa: ARG002 - LlamaIndex's signature
    ) -> Generator[CompletionResponse, None, None]:
        yield self.complete(prompt)


class Judge:
    """Judges answers by a model: whether they follow from their sources, and whether these are about the question."""

    def __init__(self, client: ModelClient) -> None:
        model = JudgeLLM(client)
        self.name = model.model_name
        self._faithful = FaithfulnessEvaluator(llm=model)
        self._relevant = RelevancyEvaluator(llm=model)

    def judge(self, query: str, answer: str, contexts: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {"judge": self.name, "judge_error": ""}

        # In a thread without an event loop: the evaluators start one, which Jupyter's would forbid.
        def about(context: str) -> bool:
            result = pool.submit(self._relevant.evaluate, query=query, response=answer, contexts=[context]).result()
            return bool(result.passing)

        try:
            with ThreadPoolExecutor(1) as pool:
                faithful = pool.submit(self._faithful.evaluate, query=query, response=answer, contexts=list(contexts))
                found["faithful"] = float(faithful.result().score or 0.0)
                found["context_precision"] = average_precision([about(one) for one in contexts[:MOST_CONTEXTS]])
        except Exception as err:  # noqa: BLE001 - the seam to LlamaIndex's evaluators; an unjudged answer is counted
            found["judge_error"] = measures.error_text(err)
        return found


def average_precision(verdicts: Sequence[bool]) -> float:
    """Return the mean of the precision at every relevant place, in [0, 1]; 0 without any."""
    right, total = 0, 0.0
    for at, relevant in enumerate(verdicts, start=1):
        if relevant:
            right += 1
            total += right / at
    return total / right if right else 0.0

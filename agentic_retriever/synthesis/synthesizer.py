"""From nodes to an answer that can be checked, or an honest "not found"."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from llama_index.core.schema import NodeWithScore

from agentic_retriever.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    LLMError,
    StreamBrokenError,
    SynthesisError,
)
from agentic_retriever.llm import LLMReply, ModelClient, TierNeeds, spent_on
from agentic_retriever.llm.prompts import not_found
from agentic_retriever.schema import Attempt, Complexity, Confidence, Degradation, SentenceCheck, Tier, TierUsage, Usage
from agentic_retriever.synthesis.confidence import confidence_score
from agentic_retriever.synthesis.context import MAX_PASSAGES, ContextPassage, assemble
from agentic_retriever.synthesis.extractive import Extraction, ExtractiveSynthesizer, quoted_checks
from agentic_retriever.synthesis.gate import is_answerable, is_written
from agentic_retriever.synthesis.question import coverage
from agentic_retriever.synthesis.values import Evidence, Limits, StreamControl, Synthesis
from agentic_retriever.synthesis.writing import ForeignModel, ForeignSynthesizer, LLMAnswer, LLMSynthesizer, drained
from agentic_retriever.text import Tokenizer, detect_language

MAX_READ_CHARS: Final = 200_000
"""Most text that the extractor reads, in characters; lower-ranked nodes are left out."""

_FAILURES: Final = (LLMError, DeadlineExceededError, SynthesisError)

IndexOf = Callable[[str], str] | Mapping[str, str] | None
"""What gives the name of the index of a node, or their names by node id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One question with what is known of it."""

    query: str
    language: str
    evidence: Evidence
    index_of: Callable[[str], str]
    passages: tuple[ContextPassage, ...]
    nodes: int
    extraction: Extraction
    complexity: Complexity

    def score(self, *, coverage: float, support: float) -> float:
        """Return the confidence in an answer."""
        features = self.extraction.features(unknown_share=self.evidence.unknown_share)
        return confidence_score(
            coverage=coverage, relevance=self.evidence.relevance, support=support, features=features
        )


class Synthesizer:
    """Answers by a model where there is one, else by extraction, and says so when the nodes do not answer."""

    def __init__(
        self,
        extractive: ExtractiveSynthesizer,
        llm: LLMSynthesizer | ForeignSynthesizer | None = None,
        *,
        answer_threshold: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._extractive = extractive
        self._llm = llm
        self._threshold = answer_threshold
        self._clock = clock

    def synthesize(
        self,
        query: str,
        nodes: Sequence[NodeWithScore],
        *,
        complexity: Complexity = Complexity.SIMPLE,
        language: str | None = None,
        evidence: Evidence | None = None,
        limits: Limits | None = None,
        index_of: IndexOf = None,
    ) -> Synthesis:
        """Answer a question from nodes."""
        task = self._task(query, nodes, complexity, language, evidence or Evidence(), index_of)
        return drained(self._answer(task, limits or Limits(), in_pieces=False))

    def stream(
        self,
        query: str,
        nodes: Sequence[NodeWithScore],
        *,
        complexity: Complexity = Complexity.SIMPLE,
        language: str | None = None,
        evidence: Evidence | None = None,
        limits: Limits | None = None,
        index_of: IndexOf = None,
    ) -> Generator[str, None, Synthesis]:
        """Answer piece by piece; arguments and result as :meth:`synthesize`."""
        task = self._task(query, nodes, complexity, language, evidence or Evidence(), index_of)
        return (yield from self._answer(task, limits or Limits(), in_pieces=True))

    def _task(
        self,
        query: str,
        nodes: Sequence[NodeWithScore],
        complexity: Complexity,
        language: str | None,
        evidence: Evidence,
        index_of: IndexOf,
    ) -> _Task:
        names: Mapping[str, str] = {} if index_of is None or callable(index_of) else index_of
        named = index_of if callable(index_of) else lambda node_id: names.get(node_id, "")
        language = language or detect_language(query)
        passages = assemble(nodes, max_chars=MAX_READ_CHARS)
        extraction = self._extractive.extract(
            query,
            passages,
            language=language,
            complexity=complexity,
            query_vector=evidence.query_vector,
            index_of=named,
        )
        return _Task(
            query=query,
            language=language,
            evidence=evidence,
            index_of=named,
            passages=passages,
            nodes=len(nodes),
            extraction=extraction,
            complexity=complexity,
        )

    def _answer(self, task: _Task, limits: Limits, *, in_pieces: bool) -> Generator[str, None, Synthesis]:
        done = self._without_model(task, limits)
        if done is not None or self._llm is None:
            done = done or _extracted(task)
            yield done.text
            return done
        most = MAX_PASSAGES[task.complexity] if limits.max_passages is None else limits.max_passages
        passages = assemble([p.node for p in task.passages], max_chars=limits.max_chars, max_passages=most)
        started = self._clock()
        try:
            answer = yield from self._llm.write(
                task.query,
                passages,
                language=task.language,
                timeout_s=limits.timeout_s,
                needs=TierNeeds(
                    complexity=task.complexity,
                    context_chars=sum(len(passage.text) for passage in passages),
                    force_cloud=limits.force_cloud,
                    budget=limits.budget,
                ),
                index_of=task.index_of,
                control=(limits.control or StreamControl()) if in_pieces else None,
            )
        except StreamBrokenError:
            raise
        except _FAILURES as err:
            usage = _usage_of_failure(self._llm.client, err)
            done = _extracted(task, failure=err, usage=usage, llm_ms=self._since(started))
            yield done.text
            return done
        done = _answered(task, answer, self._since(started))
        if done.tier is Tier.NONE:
            yield done.text
        return done

    def _without_model(self, task: _Task, limits: Limits) -> Synthesis | None:
        """Answer what needs no model: nothing found, or no model to ask."""
        extraction = task.extraction
        asks_model = self._llm is not None and limits.budget.may_ask
        if asks_model:
            score = task.score(coverage=extraction.reachable, support=1.0)
        else:
            score = task.score(coverage=extraction.coverage, support=extraction.support)
        if not is_answerable(extraction.text, score, threshold=self._threshold, asks_model=asks_model):
            return _nothing_found(task, score if extraction.text else 0.0)
        return None if asks_model else _extracted(task)

    def _since(self, started: float) -> float:
        return (self._clock() - started) * 1_000


# --- the ways in which synthesis ends: nothing found, an extract, or an answer by a model ----------------------------


def _nothing_found(
    task: _Task,
    score: float,
    reply: LLMReply | None = None,
    llm_ms: float = 0.0,
    checks: tuple[SentenceCheck, ...] = (),
) -> Synthesis:
    return Synthesis(
        text=not_found(task.language),
        tier=Tier.NONE,
        usage=Usage() if reply is None else Usage(reply.spent),
        confidence=Confidence.of(score),
        degraded=task.extraction.degraded,
        llm_ms=llm_ms,
        language=task.language,
        checks=checks,
        attempts=() if reply is None else reply.attempts,
    )


def _extracted(
    task: _Task, *, failure: Exception | None = None, usage: Usage | None = None, llm_ms: float = 0.0
) -> Synthesis:
    """Answer with the sentences that were found, the failure of the model noted where there was one."""
    found = task.extraction
    fallback = Degradation(step="synthesis.llm", reason=str(failure), fallback="extractive")
    attempts: tuple[Attempt, ...] = tuple(getattr(failure, "attempts", ()))
    return Synthesis(
        text=found.text,
        citations=found.citations,
        tier=Tier.EXTRACTIVE,
        usage=usage or Usage(),
        confidence=Confidence.of(task.score(coverage=found.coverage, support=found.support)),
        degraded=(*found.degraded, *((fallback,) if failure else ())),
        llm_ms=llm_ms,
        language=task.language,
        checks=quoted_checks(found.text, found.citations),
        attempts=attempts,
    )


def _answered(task: _Task, answer: LLMAnswer, llm_ms: float) -> Synthesis:
    """Put what a model answered together with what is known of it."""
    reply, cited = answer.reply, answer.cited
    if cited is None or not is_written(cited.text):
        checks = () if cited is None else cited.checks
        return _nothing_found(task, 0.0, reply, llm_ms, checks)  # below every threshold for answering
    quotes = "\n".join(f"{c.title}\n{c.section}\n{c.quote}" for c in cited.citations)
    covered = coverage(task.extraction.weights, frozenset(Tokenizer(task.language).tokens(quotes)))
    return Synthesis(
        text=cited.text,
        citations=cited.citations,
        tier=reply.tier,
        usage=Usage(reply.spent),
        confidence=Confidence.of(task.score(coverage=covered, support=cited.support)),
        degraded=(*task.extraction.degraded, *_degraded(reply)),
        llm_ms=llm_ms,
        language=task.language,
        nodes_left_out=task.nodes - answer.passages,
        checks=cited.checks,
        attempts=reply.attempts,
    )


def _degraded(reply: LLMReply) -> list[Degradation]:
    found: list[Degradation] = []
    failed = [attempt for attempt in reply.attempts if attempt.failure is not None]
    if failed:
        why, instead = "; ".join(map(str, failed)), f"{reply.tier.value} model {reply.model}"
        found.append(Degradation(step="synthesis.tier", reason=why, fallback=instead))
    if reply.truncated:
        why = "the answer was cut off: output limit, filter, or a stream without an end"
        found.append(Degradation(step="synthesis.llm", reason=why, fallback="truncated answer"))
    if reply.prompt_cut:
        why = "the server cut the prompt to its window"
        found.append(Degradation(step="synthesis.prompt", reason=why, fallback="what it read"))
    return found


def _usage_of_failure(client: ModelClient | ForeignModel, err: Exception) -> Usage:
    """Return the accounts of a call that brought nothing."""
    attempts = getattr(err, "attempts", None)
    if attempts is not None:
        return Usage(spent_on(attempts))
    if isinstance(err, BudgetExceededError):
        return Usage()
    lost = TierUsage(tier=client.tier, model=client.model, calls=1, prompt_tokens=0, completion_tokens=0, usd=0.0)
    return Usage.of([lost])

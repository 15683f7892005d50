"""From nodes to an answer that can be checked, or an honest "not found"."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from agentic_retriever.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    LLMError,
    StreamBrokenError,
    SynthesisError,
)
from agentic_retriever.llm import TierNeeds, spent_on
from agentic_retriever.llm.prompts import not_found
from agentic_retriever.schema import Complexity, Confidence, Degradation, Tier, TierUsage, Usage
from agentic_retriever.synthesis.confidence import confidence_score
from agentic_retriever.synthesis.context import MAX_PASSAGES, assemble
from agentic_retriever.synthesis.extractive import quoted_checks
from agentic_retriever.synthesis.gate import is_answerable, is_written
from agentic_retriever.synthesis.terms import coverage
from agentic_retriever.synthesis.values import Evidence, Limits, Synthesis
from agentic_retriever.text import Tokenizer, detect_language

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from llama_index.core.schema import NodeWithScore

    from agentic_retriever.llm import LLMReply
    from agentic_retriever.schema import Attempt, SentenceCheck
    from agentic_retriever.synthesis.context import ContextPassage
    from agentic_retriever.synthesis.extractive import Extraction, ExtractiveSynthesizer
    from agentic_retriever.synthesis.writing import ForeignSynthesizer, LLMAnswer, LLMSynthesizer


# The ways in which synthesis ends: an answer by a model, an extract, or nothing found.


class NamedModel(Protocol):
    """A model as the accounts know it."""

    @property
    def tier(self) -> Tier:
        """The tier that is asked first."""

    @property
    def model(self) -> str:
        """Name of the model that is asked first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One question with what is known of it."""

    query: str
    language: str
    evidence: Evidence
    index_of: Callable[[str], str]
    passages: tuple[ContextPassage, ...]
    nodes: int
    extraction: Extraction
    complexity: Complexity


def score_of(task: Task, *, coverage: float, support: float) -> float:
    """Return the confidence in an answer."""
    features = task.extraction.features(unknown_share=task.evidence.unknown_share)
    return confidence_score(coverage=coverage, relevance=task.evidence.relevance, support=support, features=features)


def lookup(index_of: Callable[[str], str] | Mapping[str, str] | None) -> Callable[[str], str]:
    """Return what gives the name of the index of a node; ``""`` where it is not known."""
    if index_of is None:
        return lambda _node_id: ""
    if callable(index_of):
        return index_of
    names = index_of
    return lambda node_id: names.get(node_id, "")


def usage_of_reply(reply: LLMReply) -> Usage:
    """Return the accounts of a reply, those of the models that failed before it included."""
    if reply.attempts:
        return Usage(spent_on(reply.attempts))
    return Usage.of([_single(reply.tier, reply.model, reply.prompt_tokens, reply.completion_tokens, reply.usd)])


def usage_of_failure(client: NamedModel, err: Exception) -> Usage:
    """Return the accounts of a call that brought nothing."""
    attempts = getattr(err, "attempts", None)
    if attempts is not None:
        return Usage(spent_on(attempts))
    return (
        Usage() if isinstance(err, BudgetExceededError) else Usage.of([_single(client.tier, client.model, 0, 0, 0.0)])
    )


def _single(tier: Tier, model: str, prompt_tokens: int, completion_tokens: int, usd: float) -> TierUsage:
    return TierUsage(
        tier=tier,
        model=model,
        calls=1,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        usd=usd,
    )


def nothing_found(
    task: Task,
    score: float,
    usage: Usage | None = None,
    llm_ms: float = 0.0,
    checks: tuple[SentenceCheck, ...] = (),
    attempts: tuple[Attempt, ...] = (),
) -> Synthesis:
    """Say that nothing was found."""
    return Synthesis(
        text=not_found(task.language),
        citations=(),
        tier=Tier.NONE,
        usage=usage or Usage(),
        confidence=Confidence.of(score),
        degraded=task.extraction.degraded,
        llm_ms=llm_ms,
        language=task.language,
        checks=checks,
        attempts=attempts,
    )


def extracted(
    task: Task, *, failure: Exception | None = None, usage: Usage | None = None, llm_ms: float = 0.0
) -> Synthesis:
    """Answer with the sentences that were found, the failure of the model noted where there was one."""
    found = task.extraction
    fallback = Degradation(step="synthesis.llm", reason=str(failure), fallback="extractive")
    score = score_of(task, coverage=found.coverage, support=found.support)
    return Synthesis(
        text=found.text,
        citations=found.citations,
        tier=Tier.EXTRACTIVE,
        usage=usage or Usage(),
        confidence=Confidence.of(score),
        degraded=(*found.degraded, *((fallback,) if failure else ())),
        llm_ms=llm_ms,
        language=task.language,
        checks=quoted_checks(found.text, found.citations),
        attempts=tuple(getattr(failure, "attempts", ())),
    )


def answered(task: Task, answer: LLMAnswer, llm_ms: float) -> Synthesis:
    """Put what a model answered together with what is known of it."""
    reply = answer.reply
    usage = usage_of_reply(reply)
    if answer.cited is None or not is_written(answer.cited.text):
        checks = () if answer.cited is None else answer.cited.checks
        return nothing_found(task, 0.0, usage, llm_ms, checks, reply.attempts)  # below every threshold for answering
    quotes = "\n".join(f"{c.title}\n{c.section}\n{c.quote}" for c in answer.cited.citations)
    covered = coverage(task.extraction.weights, frozenset(Tokenizer(task.language).tokens(quotes)))
    score = score_of(task, coverage=covered, support=answer.cited.support)
    degraded = list(task.extraction.degraded)
    failed = [attempt for attempt in reply.attempts if attempt.failure is not None]
    if failed:
        why = "; ".join(map(str, failed))
        degraded.append(
            Degradation(step="synthesis.tier", reason=why, fallback=f"{reply.tier.value} model {reply.model}")
        )
    if reply.truncated:
        why = "the answer was cut off: output limit, filter, or a stream without an end"
        degraded.append(Degradation(step="synthesis.llm", reason=why, fallback="truncated answer"))
    if reply.prompt_cut:
        why = "the server cut the prompt to its window"
        degraded.append(Degradation(step="synthesis.prompt", reason=why, fallback="what it read"))
    return Synthesis(
        text=answer.cited.text,
        citations=answer.cited.citations,
        tier=reply.tier,
        usage=usage,
        confidence=Confidence.of(score),
        degraded=tuple(degraded),
        llm_ms=llm_ms,
        language=task.language,
        nodes_left_out=task.nodes - answer.passages,
        checks=answer.cited.checks,
        attempts=reply.attempts,
    )


MAX_READ_CHARS: Final = 200_000
"""Most text that the extractor reads, in characters; lower-ranked nodes are left out."""

_FAILURES: Final = (LLMError, DeadlineExceededError, SynthesisError)


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
        index_of: Callable[[str], str] | Mapping[str, str] | None = None,
    ) -> Synthesis:
        """Answer a question from nodes."""
        limits = limits or Limits()
        task = self._task(query, nodes, complexity, language, evidence, index_of)
        settled = self._settled(task, limits)
        if settled is not None or self._llm is None:
            return settled or extracted(task)
        llm, passages, started = self._llm, self._passages(task, limits), self._clock()
        try:
            answer = llm.answer(
                task.query,
                passages,
                language=task.language,
                timeout_s=limits.timeout_s,
                needs=_needs(task, passages, limits),
                index_of=task.index_of,
            )
        except _FAILURES as err:
            return extracted(task, failure=err, usage=usage_of_failure(llm.client, err), llm_ms=self._since(started))
        return answered(task, answer, self._since(started))

    def stream(
        self,
        query: str,
        nodes: Sequence[NodeWithScore],
        *,
        complexity: Complexity = Complexity.SIMPLE,
        language: str | None = None,
        evidence: Evidence | None = None,
        limits: Limits | None = None,
        index_of: Callable[[str], str] | Mapping[str, str] | None = None,
    ) -> Generator[str, None, Synthesis]:
        """Answer piece by piece; arguments and result as :meth:`synthesize`."""
        limits = limits or Limits()
        task = self._task(query, nodes, complexity, language, evidence, index_of)
        done = self._settled(task, limits)
        if done is not None or self._llm is None:
            done = done or extracted(task)
            yield done.text
            return done
        llm, passages, started = self._llm, self._passages(task, limits), self._clock()
        try:
            answer = yield from llm.stream(
                task.query,
                passages,
                language=task.language,
                timeout_s=limits.timeout_s,
                needs=_needs(task, passages, limits),
                index_of=task.index_of,
                control=limits.control,
            )
        except StreamBrokenError:
            raise
        except _FAILURES as err:
            done = extracted(task, failure=err, usage=usage_of_failure(llm.client, err), llm_ms=self._since(started))
            yield done.text
            return done
        done = answered(task, answer, self._since(started))
        if done.tier is Tier.NONE:
            yield done.text
        return done

    def _task(
        self,
        query: str,
        nodes: Sequence[NodeWithScore],
        complexity: Complexity,
        language: str | None,
        evidence: Evidence | None,
        index_of: Callable[[str], str] | Mapping[str, str] | None,
    ) -> Task:
        evidence = evidence or Evidence()
        language = language or detect_language(query)
        named = lookup(index_of)
        passages = assemble(nodes, max_chars=MAX_READ_CHARS)
        extraction = self._extractive.extract(
            query,
            passages,
            language=language,
            complexity=complexity,
            query_vector=evidence.query_vector,
            index_of=named,
        )
        return Task(
            query=query,
            language=language,
            evidence=evidence,
            index_of=named,
            passages=passages,
            nodes=len(nodes),
            extraction=extraction,
            complexity=complexity,
        )

    def _settled(self, task: Task, limits: Limits) -> Synthesis | None:
        """Settle what needs no model: nothing found, or no model to ask."""
        extraction = task.extraction
        wants_model = self._llm is not None and limits.budget.may_ask
        reach = extraction.reachable if wants_model else extraction.coverage
        support = 1.0 if wants_model else extraction.support
        score = score_of(task, coverage=reach, support=support)
        if not is_answerable(extraction.text, score, threshold=self._threshold, asks_model=wants_model):
            return nothing_found(task, score if extraction.text else 0.0)
        return None if wants_model else extracted(task)

    def _passages(self, task: Task, limits: Limits) -> tuple[ContextPassage, ...]:
        """Choose what a model reads."""
        most = MAX_PASSAGES[task.complexity] if limits.max_passages is None else limits.max_passages
        return assemble([p.node for p in task.passages], max_chars=limits.max_chars, max_passages=most)

    def _since(self, started: float) -> float:
        return (self._clock() - started) * 1_000


def _needs(task: Task, passages: Sequence[ContextPassage], limits: Limits) -> TierNeeds:
    return TierNeeds(
        complexity=task.complexity,
        context_chars=sum(len(passage.text) for passage in passages),
        force_cloud=limits.force_cloud,
        budget=limits.budget,
    )

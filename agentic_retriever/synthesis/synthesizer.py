"""From nodes to an answer that can be checked, or an honest "not found"."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentic_retriever.errors import DeadlineExceededError, LLMError, SynthesisError
from agentic_retriever.prompts import not_found
from agentic_retriever.schema import Complexity, Confidence, Degradation, Tier, TierUsage, Usage
from agentic_retriever.synthesis.confidence import confidence_score
from agentic_retriever.synthesis.context import assemble
from agentic_retriever.synthesis.terms import coverage
from agentic_retriever.text import Tokenizer, detect_language

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llama_index.core.schema import NodeWithScore
    from numpy.typing import NDArray

    from agentic_retriever.llm import LLMReply
    from agentic_retriever.schema import Citation
    from agentic_retriever.synthesis.context import ContextPassage
    from agentic_retriever.synthesis.extractive import Extraction, ExtractiveSynthesizer
    from agentic_retriever.synthesis.llm_answer import LLMAnswer, LLMSynthesizer

MAX_READ_CHARS = 200_000
"""Most text that the extractor reads, in characters; lower-ranked nodes are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What retrieval knows about the question besides the nodes.

    Attributes:
        relevance: How near the dense retriever found the question to the nodes, in [0, 1], or ``None`` if unknown.
        query_vector: The question's vector, shape ``(dim,)``, for rescoring sentences, or ``None``.
    """

    relevance: float | None = None
    query_vector: Sequence[float] | NDArray[Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one answer may use.

    Attributes:
        max_chars: Most source text in a prompt, in characters.
        max_llm_calls: Model calls, or ``None`` for as many as it takes; 0 means the extractive answer.
        timeout_s: Seconds left for the model, or ``None`` for its own limit.
    """

    max_chars: int = 8_000
    max_llm_calls: int | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """An answer before the router puts its record around it.

    Attributes:
        text: The answer with its ``[n]`` markers, or a message that nothing was found.
        citations: One for each number.
        tier: Who wrote it; ``NONE`` for the message.
        usage: Model calls made, failed ones included (their tokens are not known and count 0).
        confidence: Score and level.
        degraded: What fell back, and why.
        llm_ms: Milliseconds spent on the model.
        language: ISO 639-1 code of the question.
        nodes_left_out: Nodes that the model did not get to read, for lack of room in its prompt; 0 for an extract.
    """

    text: str
    citations: tuple[Citation, ...]
    tier: Tier
    usage: Usage
    confidence: Confidence
    degraded: tuple[Degradation, ...]
    llm_ms: float
    language: str
    nodes_left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    query: str
    language: str
    evidence: Evidence
    index_of: Callable[[str], str]
    passages: tuple[ContextPassage, ...]
    extraction: Extraction


class Synthesizer:
    """Answers by a model where there is one, else by extraction, and says so when the nodes do not answer.

    Args:
        extractive: Writes the answer without a model, and judges what the nodes hold before one is asked.
        llm: Writes the answer by a model, or ``None``.
        answer_threshold: Confidence in [0, 1] below which no model is asked and nothing is answered.
        clock: Seconds that only grow, for timings.
    """

    def __init__(
        self,
        extractive: ExtractiveSynthesizer,
        llm: LLMSynthesizer | None = None,
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
        """Answer a question from nodes.

        Args:
            query: The question.
            nodes: Best first.
            complexity: A complex question gets a longer extract.
            language: ISO 639-1 code of the question, or ``None`` to detect it.
            evidence: What else retrieval knows.
            limits: What the answer may use.
            index_of: Name of the index by node id, as a function or a mapping.

        Returns:
            The answer; never an error, whatever the query, the nodes and the model.
        """
        limits = limits or Limits()
        evidence = evidence or Evidence()
        language = language or detect_language(query)
        lookup = _lookup(index_of)
        passages = assemble(nodes, max_chars=MAX_READ_CHARS)
        extraction = self._extractive.extract(
            query,
            passages,
            language=language,
            complexity=complexity,
            query_vector=evidence.query_vector,
            index_of=lookup,
        )
        task = _Task(
            query=query,
            language=language,
            evidence=evidence,
            index_of=lookup,
            passages=passages,
            extraction=extraction,
        )
        wants_model = self._llm is not None and limits.max_llm_calls != 0
        reach = extraction.reachable if wants_model else extraction.coverage
        support = 1.0 if wants_model else extraction.support
        score = confidence_score(coverage=reach, relevance=evidence.relevance, support=support)
        if not extraction.text or score < self._threshold:
            return _nothing(task, score if extraction.text else 0.0)
        if self._llm is None or not wants_model:
            return _extracted(task)
        return self._by_model(self._llm, task, limits)

    def _by_model(self, llm: LLMSynthesizer, task: _Task, limits: Limits) -> Synthesis:
        nodes = [p.node for p in task.passages]
        passages = assemble(nodes, max_chars=limits.max_chars)
        started = self._clock()
        try:
            answer = llm.answer(
                task.query,
                passages,
                language=task.language,
                timeout_s=limits.timeout_s,
                index_of=task.index_of,
            )
        except (LLMError, DeadlineExceededError, SynthesisError) as err:
            spent_ms = (self._clock() - started) * 1_000
            usage = _usage(llm.client.tier, llm.client.model, None)
            return _extracted(task, failure=err, usage=usage, llm_ms=spent_ms)
        return _answered(task, answer, passages, (self._clock() - started) * 1_000)


def _lookup(index_of: Callable[[str], str] | Mapping[str, str] | None) -> Callable[[str], str]:
    if index_of is None:
        return lambda _node_id: ""
    if callable(index_of):
        return index_of
    names = index_of
    return lambda node_id: names.get(node_id, "")


def _usage(tier: Tier, model: str, reply: LLMReply | None) -> Usage:
    return Usage(
        (
            TierUsage(
                tier=tier,
                model=model,
                calls=1,
                prompt_tokens=reply.prompt_tokens if reply else 0,
                completion_tokens=reply.completion_tokens if reply else 0,
            ),
        )
    )


def _nothing(task: _Task, score: float, usage: Usage | None = None, llm_ms: float = 0.0) -> Synthesis:
    return Synthesis(
        text=not_found(task.language),
        citations=(),
        tier=Tier.NONE,
        usage=usage or Usage(),
        confidence=Confidence.of(score),
        degraded=task.extraction.degraded,
        llm_ms=llm_ms,
        language=task.language,
    )


def _extracted(
    task: _Task, *, failure: Exception | None = None, usage: Usage | None = None, llm_ms: float = 0.0
) -> Synthesis:
    found = task.extraction
    fallback = Degradation(step="synthesis.llm", reason=str(failure), fallback="extractive")
    score = confidence_score(coverage=found.coverage, relevance=task.evidence.relevance, support=found.support)
    return Synthesis(
        text=found.text,
        citations=found.citations,
        tier=Tier.EXTRACTIVE,
        usage=usage or Usage(),
        confidence=Confidence.of(score),
        degraded=(*found.degraded, *((fallback,) if failure else ())),
        llm_ms=llm_ms,
        language=task.language,
    )


def _answered(task: _Task, answer: LLMAnswer, passages: Sequence[ContextPassage], llm_ms: float) -> Synthesis:
    reply = answer.reply
    usage = _usage(reply.tier, reply.model, reply)
    if answer.cited is None:
        # The model has read the passages and says that they do not answer: below every threshold for answering.
        return _nothing(task, 0.0, usage, llm_ms)
    quotes = "\n".join(f"{c.title}\n{c.section}\n{c.quote}" for c in answer.cited.citations)
    score = confidence_score(
        coverage=coverage(task.extraction.weights, frozenset(Tokenizer(task.language).tokens(quotes))),
        relevance=task.evidence.relevance,
        support=answer.cited.support,
    )
    cut = Degradation(step="synthesis.llm", reason="the model reached its output limit", fallback="truncated answer")
    return Synthesis(
        text=answer.cited.text,
        citations=answer.cited.citations,
        tier=reply.tier,
        usage=usage,
        confidence=Confidence.of(score),
        degraded=(*task.extraction.degraded, *((cut,) if reply.truncated else ())),
        llm_ms=llm_ms,
        language=task.language,
        nodes_left_out=len(task.passages) - len(passages),
    )

"""From nodes to an answer that can be checked, or an honest "not found"."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import DeadlineExceededError, LLMError, StreamBrokenError, SynthesisError
from agentic_retriever.llm import TierNeeds
from agentic_retriever.schema import Complexity, Tier
from agentic_retriever.synthesis.context import MAX_PASSAGES, assemble
from agentic_retriever.synthesis.outcomes import (
    Task,
    answered,
    extracted,
    lookup,
    nothing_found,
    score_of,
    usage_of_failure,
)
from agentic_retriever.synthesis.values import Evidence, Limits, Synthesis
from agentic_retriever.text import detect_language

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from llama_index.core.schema import NodeWithScore

    from agentic_retriever.synthesis.context import ContextPassage
    from agentic_retriever.synthesis.extractive import ExtractiveSynthesizer
    from agentic_retriever.synthesis.foreign import ForeignSynthesizer
    from agentic_retriever.synthesis.llm_answer import LLMSynthesizer

MAX_READ_CHARS: Final = 200_000
"""Most text that the extractor reads, in characters; lower-ranked nodes are left out."""

# Share of the threshold from which a model is asked.
_MODEL_FROM = 0.9

_FAILURES: Final = (LLMError, DeadlineExceededError, SynthesisError)


class Synthesizer:
    """Answers by a model where there is one, else by extraction, and says so when the nodes do not answer.

    Args:
        extractive: Writes the answer without a model, and judges what the nodes hold before one is asked.
        llm: Writes the answer by a model, ours or a LlamaIndex response synthesizer; or ``None``.
        answer_threshold: Confidence in [0, 1] below which nothing is extracted; a model is asked from 0.6 of it on,
            since it reads the passages itself and may say that they do not answer.
        clock: Seconds that only grow, for timings.
    """

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
        """Answer piece by piece; arguments and result as :meth:`synthesize`.

        Yields:
            Pieces of the answer with its citations. An extract comes as one piece.

        Raises:
            StreamBrokenError: If a model's reply broke off after its first words were shown; ``text`` is what came.
        """
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
        wants_model = self._llm is not None and limits.max_llm_calls != 0
        reach = extraction.reachable if wants_model else extraction.coverage
        support = 1.0 if wants_model else extraction.support
        score = score_of(task, coverage=reach, support=support)
        least = self._threshold * (_MODEL_FROM if wants_model else 1.0)
        if not extraction.text or score < least:
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
        max_usd=limits.max_usd,
        max_calls=limits.max_llm_calls,
    )

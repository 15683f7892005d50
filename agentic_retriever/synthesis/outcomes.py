"""The ways in which synthesis ends: an answer by a model, an extract, or nothing found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentic_retriever.errors import BudgetExceededError
from agentic_retriever.llm import spent_on
from agentic_retriever.prompts import not_found
from agentic_retriever.schema import Complexity, Confidence, Degradation, Tier, TierUsage, Usage
from agentic_retriever.synthesis.confidence import confidence_score
from agentic_retriever.synthesis.quotes import quoted_checks
from agentic_retriever.synthesis.terms import coverage
from agentic_retriever.synthesis.values import Evidence, Synthesis
from agentic_retriever.text import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentic_retriever.llm import LLMReply
    from agentic_retriever.schema import Attempt, SentenceCheck
    from agentic_retriever.synthesis.context import ContextPassage
    from agentic_retriever.synthesis.extractive import Extraction
    from agentic_retriever.synthesis.llm_answer import LLMAnswer


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
    """Return the confidence in an answer.

    Args:
        task: The question with what is known of it.
        coverage: Weighted share of the question's terms found in the cited text, in [0, 1].
        support: Mean score of the citations over the sentences of the answer, in [0, 1].
    """
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
    if answer.cited is None:
        # The model has read the passages and says that they do not answer: below every threshold for answering.
        return nothing_found(task, 0.0, usage, llm_ms, attempts=reply.attempts)
    if not answer.cited.text:
        # Every sentence was left out, for the passages do not support it.
        return nothing_found(task, 0.0, usage, llm_ms, answer.cited.checks, reply.attempts)
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

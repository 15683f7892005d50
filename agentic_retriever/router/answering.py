"""The last hop: nodes to an answer, and the key under which it is cached."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from agentic_retriever.cache import cache_key
from agentic_retriever.filters import normalise
from agentic_retriever.indices.node_text import embedded_text
from agentic_retriever.prompts import VERSION
from agentic_retriever.router.judging import relevance, search_profile, unknown_words
from agentic_retriever.router.spans import SYNTHESIZE, traced, traced_stream
from agentic_retriever.routing import support_of
from agentic_retriever.schema import Answer, Degradation, Retrieval, Tier, Usage
from agentic_retriever.synthesis import Evidence, Limits
from agentic_retriever.text import detect_language, normalise_query

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from agentic_retriever.embeddings.model import Vector
    from agentic_retriever.indices import IndexProfile, RoutedIndex
    from agentic_retriever.router.questions import Question
    from agentic_retriever.router.resources import Resources
    from agentic_retriever.router.spending import Spending
    from agentic_retriever.schema import Budget
    from agentic_retriever.synthesis import StreamControl, Synthesis, Synthesizer

T = TypeVar("T")

#: What a model leaves of the time, as a share and at most in seconds: when all fail, the extract has to come in time,
#: also for those who wait for the same answer.
_RESERVE_SHARE, _RESERVE_S = 0.1, 0.25


_JUDGED: Final = 10


class AnswerStage:
    """Writes the answer from what was retrieved."""

    def __init__(self, resources: Resources, synthesizer: Synthesizer) -> None:
        self._resources = resources
        self._synthesizer = synthesizer

    @traced(SYNTHESIZE)
    def run(
        self,
        retrieval: Retrieval,
        origin: Mapping[str, str],
        spending: Spending,
        *,
        query_vector: Vector | None,
        force_cloud: bool,
    ) -> Answer:
        """Answer; never raises for want of a model."""
        limits = self._limits(spending, force_cloud=force_cloud)
        with spending.clock.step("synthesis"):
            retrieval, believed = self._judged(retrieval, query_vector)
            write = self._synthesizer.synthesize
            done = self._ask(write, retrieval, origin, query_vector, limits, believed=believed)
        return _finished(retrieval, done, spending, force_cloud=force_cloud)

    @traced_stream(SYNTHESIZE)
    def stream(
        self,
        retrieval: Retrieval,
        origin: Mapping[str, str],
        spending: Spending,
        *,
        query_vector: Vector | None,
        force_cloud: bool,
        control: StreamControl,
    ) -> Generator[str, None, Answer]:
        """Answer piece by piece, otherwise as :meth:`run`.

        Raises:
            StreamBrokenError: If the model's reply broke off after its first words were shown.
        """
        limits = self._limits(spending, force_cloud=force_cloud, control=control)
        with spending.clock.step("synthesis"):
            retrieval, believed = self._judged(retrieval, query_vector)
            write = self._synthesizer.stream
            done = yield from self._ask(write, retrieval, origin, query_vector, limits, believed=believed)
        return _finished(retrieval, done, spending, force_cloud=force_cloud)

    def _ask(
        self,
        ask: Callable[..., T],
        retrieval: Retrieval,
        origin: Mapping[str, str],
        query_vector: Vector | None,
        limits: Limits,
        *,
        believed: bool,
    ) -> T:
        decision, profile = retrieval.route, self._profile(retrieval)
        return ask(
            decision.query,
            retrieval.nodes if believed else (),
            complexity=decision.complexity,
            language=detect_language(decision.query),
            evidence=Evidence(
                relevance=relevance(retrieval.nodes, search_profile(self._resources.index(retrieval.indexes[0]))),
                query_vector=query_vector,
                unknown_share=unknown_words(decision.query, profile),
            ),
            limits=limits,
            index_of=origin,
        )

    def _limits(self, spending: Spending, *, force_cloud: bool, control: StreamControl | None = None) -> Limits:
        config, allowance = self._resources.config, spending.allowance("writing the answer")
        return Limits(
            max_chars=config.llm_context_chars,
            max_passages=config.context_passages or None,
            max_llm_calls=allowance.llm_calls,
            max_usd=allowance.usd,
            force_cloud=force_cloud,
            timeout_s=_less_reserve(allowance.timeout_s),
            control=control,
        )

    def _judged(self, retrieval: Retrieval, query_vector: Vector | None) -> tuple[Retrieval, bool]:
        """Tell whether the passages seem to hold an answer, and say so where they do not."""
        least = self._resources.config.support_below
        if not retrieval.nodes or least <= 0:
            return retrieval, True
        texts = [embedded_text(found.node) for found in retrieval.nodes[:_JUDGED]]
        support = support_of(retrieval.route.query, self._profile(retrieval), texts, query_vector=query_vector)
        if support.probability >= least:
            return retrieval, True
        said = f"the passages found hardly answer this (probability {support.probability:.2f})"
        return replace(retrieval, understood=(*retrieval.understood, said)), False

    def _profile(self, retrieval: Retrieval) -> IndexProfile:
        return self._resources.index(retrieval.indexes[0]).profile()


def _less_reserve(left_s: float | None) -> float | None:
    return None if left_s is None else left_s - min(_RESERVE_S, _RESERVE_SHARE * left_s)


def _finished(retrieval: Retrieval, done: Synthesis, spending: Spending, *, force_cloud: bool) -> Answer:
    """Put the record of the query around what was written."""
    clock = spending.clock
    clock.add("llm", done.llm_ms)
    degraded = (*retrieval.degraded, *done.degraded)
    if force_cloud and done.tier is not Tier.CLOUD:
        missing = Degradation(
            step="synthesis.cloud",
            reason="no cloud model answered; see the attempts, or set llm_cloud to openrouter:MODEL if there is none",
            fallback=done.tier.value,
        )
        degraded = (*degraded, missing)
    return Answer(
        text=done.text,
        citations=done.citations,
        confidence=done.confidence,
        route=retrieval.route,
        nodes=retrieval.nodes,
        usage=Usage.of((*retrieval.usage.tiers, *done.usage.tiers)),
        timings_ms={"embedding": 0.0, "rerank": 0.0, **clock.timings_ms()},
        tier=done.tier,
        cached=False,
        degraded=degraded,
        query_id="",
        understood=retrieval.understood,
        tried=retrieval.tried,
        checks=done.checks,
        attempts=done.attempts,
        nodes_left_out=done.nodes_left_out,
    )


def answer_key(resources: Resources, question: Question, *, llm: str, budget: Budget | None, force_cloud: bool) -> str:
    """Return the cache key of a question: all that its answer depends on."""
    return cache_key(
        query=normalise_query(question.query),
        index=question.index,
        strategy=question.strategy.value if question.strategy else None,
        filters=normalise(question.filters),
        top_k=[question.top_k, question.top_k_given],
        # With the time of creation, as an index that is removed and made again counts its versions from the start.
        versions={
            index.name: [index.created, index.version, *resources.stamps.of(index)]
            for index in _concerned(resources, question)
        },
        embedding=resources.embedding().name,
        llm=llm,
        prompts=VERSION,
        config=resources.config_key,
        budget=None if budget is None else [budget.max_llm_calls, budget.max_usd],
        force_cloud=force_cloud,
    )


def _concerned(resources: Resources, question: Question) -> list[RoutedIndex]:
    """Return the indexes that the answer may come from."""
    return resources.usable()[0] if question.index is None else [resources.index(question.index)]

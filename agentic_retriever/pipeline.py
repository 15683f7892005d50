"""One query's way through the hops: cache, route, retrieve, answer."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.instrumentation.events.query import QueryEndEvent, QueryStartEvent
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent, SynthesizeStartEvent
from llama_index.core.schema import ImageNode, IndexNode, NodeWithScore, TextNode
from pydantic import JsonValue, TypeAdapter, ValidationError
from typing_extensions import Self

from agentic_retriever.bridge import as_response
from agentic_retriever.cache import WarmOutcome, cache_key
from agentic_retriever.errors import (
    AgenticRetrieverError,
    AllModelsFailedError,
    BudgetExceededError,
    DeadlineExceededError,
    InvalidQueryError,
    NoEligibleStrategyError,
    OutOfScopeError,
    RetrievalError,
    RoutingError,
    UnknownIndexError,
    UnknownStrategyError,
    unknown_name,
)
from agentic_retriever.filters import normalise
from agentic_retriever.indices.profile import MAX_TERMS
from agentic_retriever.llm import AsyncPieces, TierNeeds, spent_on
from agentic_retriever.llm.prompts import VERSION
from agentic_retriever.retrievers import REGISTRY, RetrievalRequest, cards, run_sides, source_scores
from agentic_retriever.retrievers.base import UNCHANGING, copies_plainly, made_model
from agentic_retriever.retrievers.postprocess import (
    EXPANDED_KEY,
    NodePostprocessors,
    PostprocessSettings,
    PostprocessTools,
    make_reranker,
    postprocess,
    section_neighbours,
    store_vectors,
)
from agentic_retriever.retrievers.registry import check_served
from agentic_retriever.retrievers.rerank import LLMReranker
from agentic_retriever.routing import DomainTerms, assess_complexity, complexity_reasons, query_features, support_of
from agentic_retriever.schema import (
    NO_LIMITS,
    Answer,
    Degradation,
    Retrieval,
    RouteDecision,
    Selection,
    Strategy,
    Tier,
    TierUsage,
    Tried,
    Usage,
    View,
)
from agentic_retriever.stores.node_text import embedded_text
from agentic_retriever.synthesis import Evidence, Limits, StreamControl, unknown_share
from agentic_retriever.text import detect_language, normalise_query
from agentic_retriever.threads import DeadlineCaller
from agentic_retriever.tracing import RouteDecisionEvent, Span, Stage, is_watched, span, traced

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    import numpy.typing as npt
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters
    from llama_index_instrumentation.base import BaseEvent

    from agentic_retriever.cache import SingleFlightCache
    from agentic_retriever.embeddings.model import Vector
    from agentic_retriever.indices import Index, IndexProfile
    from agentic_retriever.indices.measured import MeasuredStrategies
    from agentic_retriever.llm import LLMReply, ModelClient, TieredClient
    from agentic_retriever.querylog import QueryLog
    from agentic_retriever.resources import Resources
    from agentic_retriever.retrievers import RetrieverAdapter, SearchResult
    from agentic_retriever.retrievers.postprocess import Neighbours
    from agentic_retriever.routing import IndexClassifier, StrategySelector
    from agentic_retriever.schema import Budget, StrategyCard
    from agentic_retriever.synthesis import Synthesis, Synthesizer
    from agentic_retriever.threads import Workers


# One clock for a query: what each step took, and what is left of its time.


class QueryClock:
    """Counts milliseconds by step, and seconds down to the deadline."""

    def __init__(self, limit_s: float, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._start = timer()
        self._limit_s = limit_s
        self._steps: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a step."""
        start = self._timer()
        try:
            yield
        finally:
            self._steps[name] = self._steps.get(name, 0.0) + (self._timer() - start) * 1000

    def add(self, name: str, milliseconds: float) -> None:
        """Add time that was measured elsewhere to a step."""
        self._steps[name] = self._steps.get(name, 0.0) + milliseconds

    def left_s(self, doing: str) -> float:
        """Return the seconds that are left."""
        left = self.remaining_s()
        if left <= 0:
            raise DeadlineExceededError(
                f"the time for this query ({self._limit_s:.1f} s) ran out before {doing}; allow more or ask less"
            )
        return left

    def remaining_s(self) -> float:
        """Return the seconds that are left; 0 or less when the time is up."""
        return self._limit_s - (self._timer() - self._start)

    def elapsed_ms(self) -> float:
        """Return the milliseconds since the query began."""
        return (self._timer() - self._start) * 1000

    def stop(self) -> None:
        """Let no time be left: nobody wants the result any more, so the next step is the end."""
        self._limit_s = 0.0

    def timings_ms(self) -> dict[str, float]:
        """Return milliseconds by step, with ``total``."""
        return {**self._steps, "total": self.elapsed_ms()}


# What one query may spend on models, and what it has spent.


class Spending:
    """The accounts of one query: what its budget was, and what is left of it; safe to use from several threads."""

    def __init__(self, budget: Budget | None, clock: QueryClock) -> None:
        self.clock = clock
        self._budget = budget or NO_LIMITS
        self._lock = threading.Lock()
        self._spent: list[TierUsage] = []

    def left_ms(self) -> float | None:
        """Return the milliseconds that the caller's budget leaves, or ``None`` if it names none."""
        return None if self._budget.max_ms is None else 1000 * self.clock.left_s("choosing the strategy")

    @property
    def usage(self) -> Usage:
        """What was spent so far."""
        with self._lock:
            return Usage.of(self._spent)

    def add(self, spent: Sequence[TierUsage]) -> None:
        """Enter what a step spent."""
        with self._lock:
            self._spent.extend(spent)

    def left(self, doing: str) -> Budget:
        """Return what is left; ``DeadlineExceededError`` if no time is left for what is named."""
        return self._budget.left(self.usage, 1000 * self.clock.left_s(doing))

    def refuse(self) -> BudgetExceededError:
        """Return the error for a model call that the budget forbids."""
        return BudgetExceededError(f"the budget allows no further model call ({self._budget}); allow more")


class MeteredModel:
    """A model whose calls are counted in the accounts of one query, and refused when the budget forbids them."""

    def __init__(self, client: ModelClient, spending: Spending) -> None:
        self._client = client
        self._spending = spending

    @property
    def tier(self) -> Tier:
        """The tier that is asked first."""
        return self._client.tier

    @property
    def model(self) -> str:
        """Name of the model that is asked first."""
        return self._client.model

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer together that the model holds."""
        return self._client.context_tokens

    def complete(self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None) -> LLMReply:
        """Answer a prompt within a total time."""
        left = self._spending.left("asking the model")
        if not left.may_ask:
            raise self._spending.refuse()
        limit = left.timeout_s if timeout_s is None or left.timeout_s is None else min(left.timeout_s, timeout_s)
        needs = needs or TierNeeds()
        needs = replace(needs, budget=needs.budget.within(left))
        try:
            reply = self._client.complete(prompt, timeout_s=limit, needs=needs)
        except AllModelsFailedError as err:
            self._spending.add(spent_on(err.attempts))
            raise
        self._spending.add(spent_on(reply.attempts))
        return reply


# How well what was retrieved fits the question, without a model.

# The sources of strategies whose scores are cosines with a node of the index.
_COSINES = ("dense", "leaf", "chunk")

# Fixed on the sample questions against questions of other collections asked of the sample: 95 % of the answerable ones
# stand above a z of 0, 95 % of the others below 0.4.
_STEEPNESS = 2.0
_TURN = -0.3


def relevance(nodes: Sequence[NodeWithScore], profile: IndexProfile) -> float | None:
    """Turn the best cosine into [0, 1] by how far it stands above what unrelated texts of the index reach."""
    known = [cosine for node in nodes if (cosine := node_cosine(node)) is not None]
    if not known:
        return None
    z = (max(known) - profile.background_mean) / profile.background_std
    return 1 / (1 + math.exp(-_STEEPNESS * (z - _TURN)))


def search_profile(index: Index) -> IndexProfile:
    """Return the profile of an index with the background of the cosines that its searches give."""
    return index.search_profile() or index.profile()


def unknown_words(query: str, profile: IndexProfile) -> float | None:
    """Return the share of a question's words that an index lacks, in [0, 1]."""
    if not profile.whole or len(profile.document_frequency) >= MAX_TERMS:
        return None
    return unknown_share(query, profile.document_frequency, language=profile.language)


def node_cosine(node: NodeWithScore) -> float | None:
    """Return the cosine by which a node was found, or ``None`` when it was found by words alone."""
    scores = source_scores(node.node)
    return max((scores[source] for source in _COSINES if source in scores), default=None)


def cosines(
    resources: Resources, found: Mapping[str, Sequence[NodeWithScore]], query_vector: Vector | None
) -> dict[str, float]:
    """Return the cosine of each node with the question."""
    known: dict[str, float] = {}
    for name, nodes in found.items():
        if not resources.compares(resources.index(name)):
            continue  # cosines of another model
        told = {node.node.node_id: node_cosine(node) for node in nodes}
        known |= {node_id: cosine for node_id, cosine in told.items() if cosine is not None}
        missing = [node_id for node_id, cosine in told.items() if cosine is None]
        if missing and query_vector is not None:
            vectors = store_vectors(resources.index(name))(missing)
            known |= {node_id: float(np.dot(np.asarray(v), query_vector)) for node_id, v in vectors.items()}
    return known


# The stages of a query as LlamaIndex spans, with LlamaIndex's events where they fit; see ``tracing``.
#
# ::
#
#     AgenticRouter.query                  QueryStartEvent, QueryEndEvent
#     ├── AgenticRouter.route              RouteDecisionEvent
#     ├── AgenticRouter.search             RetrievalStartEvent, RetrievalEndEvent
#     │   ├── VectorRetriever.search ...     one for each strategy that was run, on each index
#     │   └── AgenticRouter.refine         ReRankStartEvent, ReRankEndEvent where there is a reranker
#     └── AgenticRouter.synthesize         SynthesizeStartEvent, SynthesizeEndEvent
#
# ``AgenticRouter.retrieve`` stands above route and search where only nodes are asked for. An answer from the cache has
# the first one alone.


T = TypeVar("T")


def adapter_search(adapter: RetrieverAdapter, index: str, request: RetrievalRequest) -> SearchResult:
    """Search with a strategy, inside a span while somebody watches."""
    if not is_watched():
        return adapter.search(request)
    inputs = {"query": request.query, "index": index, "top_k": request.top_k}
    with span(Span(f"{type(adapter).__name__}.search", inputs, adapter)) as opened:
        result = adapter.search(request)
        opened.result = list(result.nodes)
        return result


def _question(_self: object, question: Question, *_rest: object) -> dict[str, object]:
    pins = {
        "index": question.index,
        "strategy": None if question.strategy is None else question.strategy.value,
        "top_k": question.top_k if question.top_k_given else None,
    }
    return {"query": question.query, **{name: value for name, value in pins.items() if value is not None}}


def _routed(routed: Routed, *_args: object) -> tuple[object, BaseEvent]:
    record = routed.decision.to_dict()
    return record, RouteDecisionEvent(decision=record)


def _search_ends(
    found: tuple[Retrieval, dict[str, str]], _self: object, question: Question, *_rest: object
) -> tuple[object, BaseEvent]:
    nodes = list(found[0].nodes)
    return nodes, RetrievalEndEvent(str_or_query_bundle=question.query, nodes=nodes)


def _refine_begins(
    refiner: Refiner, question: Question, nodes: Sequence[NodeWithScore], _origin: object, kept: int, *_rest: object
) -> BaseEvent | None:
    if refiner.reranker == "none":
        return None
    return ReRankStartEvent(query=question.query, nodes=list(nodes), top_n=kept, model_name=refiner.reranker)


def _refine_ends(
    refined: tuple[list[NodeWithScore], tuple[Degradation, ...]], refiner: Refiner, *_rest: object
) -> tuple[object, BaseEvent | None]:
    nodes = list(refined[0])
    return nodes, None if refiner.reranker == "none" else ReRankEndEvent(nodes=nodes)


def _retrieval(_self: object, retrieval: Retrieval, *_rest: object) -> dict[str, object]:
    return {"query": retrieval.route.query, "nodes": [scored.node.node_id for scored in retrieval.nodes]}


def _synthesis_ends(answer: Answer, _self: object, retrieval: Retrieval, *_rest: object) -> tuple[object, BaseEvent]:
    response = as_response(answer)
    return response, SynthesizeEndEvent(query=retrieval.route.query, response=response)


def _query_ends(answer: Answer, _self: object, question: Question, *_rest: object) -> tuple[object, BaseEvent]:
    response = as_response(answer)
    return response, QueryEndEvent(query=question.query, response=response)


QUERY: Final = Stage(
    "AgenticRouter.query",
    _question,
    lambda _self, question, *_: QueryStartEvent(query=question.query),
    _query_ends,
)
RETRIEVE: Final = Stage(
    "AgenticRouter.retrieve", _question, lambda *_: None, lambda retrieval, *_: (list(retrieval.nodes), None)
)
ROUTE: Final = Stage("AgenticRouter.route", _question, lambda *_: None, _routed)
SEARCH: Final = Stage(
    "AgenticRouter.search",
    _question,
    lambda _self, question, *_: RetrievalStartEvent(str_or_query_bundle=question.query),
    _search_ends,
)
REFINE: Final = Stage("AgenticRouter.refine", _question, _refine_begins, _refine_ends)
SYNTHESIZE: Final = Stage(
    "AgenticRouter.synthesize",
    _retrieval,
    lambda _self, retrieval, *_: SynthesizeStartEvent(query=retrieval.route.query),
    _synthesis_ends,
)


# The last hop: nodes to an answer, and the key under which it is cached.

#: What a model leaves of the time, as a share and at most in seconds: when all fail, the extract has to come in time,
#: also for those who wait for the same answer.
_RESERVE_SHARE, _RESERVE_S = 0.1, 0.25


_JUDGED: Final = 10
SUPPORT_BELOW: Final = 0.3
"""Nothing is answered from passages that hold an answer with less probability."""


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

    @traced(SYNTHESIZE)
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
        """Answer piece by piece, otherwise as :meth:`run`."""
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
        config, allowance = self._resources.config, spending.left("writing the answer")
        return Limits(
            max_chars=config.llm_context_chars,
            budget=allowance,
            force_cloud=force_cloud,
            timeout_s=_less_reserve(allowance.timeout_s),
            control=control,
        )

    def _judged(self, retrieval: Retrieval, query_vector: Vector | None) -> tuple[Retrieval, bool]:
        """Tell whether the passages seem to hold an answer, and say so where they do not."""
        if not retrieval.nodes:
            return retrieval, True
        texts = [embedded_text(found.node) for found in retrieval.nodes[:_JUDGED]]
        support = support_of(retrieval.route.query, self._profile(retrieval), texts, query_vector=query_vector)
        if support.probability >= SUPPORT_BELOW:
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


def _concerned(resources: Resources, question: Question) -> list[Index]:
    """Return the indexes that the answer may come from."""
    return resources.usable()[0] if question.index is None else [resources.index(question.index)]


# Nodes in the answer cache: copied for each caller, so that what one does with them reaches nobody else.
#
# Copying a node with all that hangs on it takes ten times as long as all else of a hit, if every value has to be
# looked
# at. What is kept never changes, so it is looked at once, and what has to be copied is remembered.

Maker: TypeAlias = "Callable[[], Any]"


class KeptNodes(tuple[NodeWithScore, ...]):  # noqa: SLOT001 - a tuple with an attribute cannot have slots
    """Nodes that nobody changes any more: a tuple that makes copies of its nodes fast."""

    _makers: list[Maker] | None = None

    def copies(self) -> tuple[NodeWithScore, ...]:
        """Copy the nodes: lists, mappings and models in them to the bottom; texts and numbers are shared."""
        makers = self._makers
        if makers is None:
            # Two threads may both get here, with the same result.
            makers = self._makers = [_maker_of_model(node) for node in self]
        return tuple([make() for make in makers])


def kept(nodes: Iterable[NodeWithScore]) -> KeptNodes:
    """Return the nodes as what is kept; from now on nobody may change them."""
    return nodes if isinstance(nodes, KeptNodes) else KeptNodes(nodes)


def _maker(value: Any) -> Maker | None:  # noqa: ANN401 - any value that metadata holds
    """Return what copies a value, or ``None`` for one that need not be copied."""
    kind = type(value)
    if kind in UNCHANGING or isinstance(value, Enum):
        return None
    if kind is dict:
        changing = _changing(value.items())
        return partial(_copied_parts, value, changing) if changing else value.copy
    if kind is list:
        changing = _changing(enumerate(value))
        return partial(_copied_parts, value, changing) if changing else value.copy
    return _maker_of_model(value) if isinstance(value, BaseModel) else partial(copy.deepcopy, value)


def _maker_of_model(model: BaseModel) -> Maker:
    """Return what copies a model as pydantic would, without its checks, which cost most of the time."""
    kind = type(model)
    if not copies_plainly(kind):
        return partial(copy.deepcopy, model)
    fields, fields_set = model.__dict__, model.__pydantic_fields_set__
    changing = _changing(fields.items())
    extra, private = _maker(model.__pydantic_extra__), _maker(model.__pydantic_private__)

    def make() -> BaseModel:
        made: BaseModel = made_model(
            kind, _copied_parts(fields, changing), fields_set.copy(), extra and extra(), private and private()
        )
        return made

    return make


def _changing(items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Maker]]:
    return [(place, make) for place, value in items if (make := _maker(value)) is not None]


def _copied_parts(values: Any, changing: list[tuple[Any, Maker]]) -> Any:  # noqa: ANN401 - a dict or a list
    made = values.copy()
    for place, make in changing:
        made[place] = make()
    return made


# What the answer cache does with answers: which it keeps, and what it hands out.

MAX_CHARS: Final = 2_000_000
"""Answers with more text than this in their nodes are not kept, so that 500 of them cannot fill the memory."""


def worth_keeping(answer: Answer) -> bool:
    """Keep what would be answered alike next time: nothing degraded, found out of bounds, or huge."""
    if answer.degraded or answer.tier is Tier.NONE:
        return False
    return sum(len(getattr(scored.node, "text", "")) for scored in answer.nodes) <= MAX_CHARS


def kept_answer(answer: Answer) -> Answer:
    """Return an answer as the cache keeps it; from now on nobody may change its nodes."""
    return replace(answer, nodes=kept(answer.nodes))


def copied_answer(answer: Answer) -> Answer:
    """Copy an answer as far as callers can change it, so that the cached one stays as it was.

    Lists, mappings and models in the nodes are copied to the bottom; texts and numbers are shared.
    """
    return replace(answer, nodes=kept(answer.nodes).copies())


def warm_outcome(answer: Answer) -> WarmOutcome:
    """Tell what became of an answer that was asked for beforehand."""
    if answer.cached:
        return WarmOutcome.CACHED
    return WarmOutcome.STORED if worth_keeping(answer) else WarmOutcome.NOT_KEPT


_WAITING = "waiting for the answer"


@dataclass(frozen=True, slots=True)
class Stages:
    """The hops of a query."""

    route: RouteStage
    retrieve: RetrieveStage
    answer: AnswerStage


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One question under way."""

    question: Question
    budget: Budget | None
    force_cloud: bool
    spending: Spending
    compute: Callable[[], Answer]

    def compute_kept(self) -> Answer:
        """Make the answer as the cache keeps it."""
        return kept_answer(self.compute())


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What every query uses besides the stages."""

    cache: SingleFlightCache[Answer]
    recorder: Recorder
    llm: str
    timer: Callable[[], float]  # Monotonic time in seconds
    new_id: Callable[[], str]


class Pipeline:
    """Takes questions through the stages; safe to use from many threads."""

    def __init__(self, resources: Resources, stages: Stages, services: Services, *, repeatable: bool) -> None:
        self._resources = resources
        self._stages = stages
        self._services = services
        self._repeatable = repeatable

    def limit_s(self, budget: Budget | None) -> float:
        """Return the seconds that a query may take."""
        deadline_s = self._resources.config.deadline_s
        return deadline_s if budget is None or budget.max_ms is None else min(deadline_s, budget.max_ms / 1000)

    def route(
        self, question: Question, budget: Budget | None = None, *, recorded: RouteDecision | None = None
    ) -> RouteDecision:
        """Decide; with ``recorded``, as then where chance or a model decided."""
        return self._stages.route.run(question, self._spending(budget), recorded=recorded).decision

    @traced(RETRIEVE)
    def retrieve(self, question: Question, budget: Budget | None) -> Retrieval:
        """Decide and fetch."""
        spending = self._spending(budget)
        routed = self._stages.route.run(question, spending)
        return self._stages.retrieve.run(question, routed, spending)[0]

    @traced(QUERY)
    def answer(self, question: Question, budget: Budget | None, *, force_cloud: bool) -> Answer:
        """Decide, fetch and answer, or return the answer from the cache."""
        call = self._call(question, budget, force_cloud=force_cloud)
        with self._failures(call):
            if not self._caches(question):
                return self._handed_out(call, call.compute(), cached=False)
            answer, cached = self._services.cache.get_or_compute(
                self._key(call), call.compute_kept, keep=worth_keeping, timeout_s=call.spending.clock.left_s(_WAITING)
            )
            return self._handed_out(call, answer, cached=cached)

    @traced(QUERY)
    async def aanswer(
        self, question: Question, budget: Budget | None, *, force_cloud: bool, workers: Workers
    ) -> Answer:
        """Do as :meth:`answer`; whoever waits for an answer that is being made holds no thread."""
        call = self._call(question, budget, force_cloud=force_cloud)
        with self._failures(call):
            if not self._caches(question):
                try:
                    return self._handed_out(call, await workers.run(call.compute), cached=False)
                except asyncio.CancelledError:
                    call.spending.clock.stop()
                    raise
            answer, cached = await self._services.cache.aget_or_compute(
                await workers.run(self._key, call),
                call.compute_kept,
                submit=workers.submit,
                keep=worth_keeping,
                timeout_s=call.spending.clock.left_s(_WAITING),
                unwanted=call.spending.clock.stop,
            )
            return self._handed_out(call, answer, cached=cached)

    @traced(QUERY)
    def stream(
        self, question: Question, budget: Budget | None, control: StreamControl, *, force_cloud: bool
    ) -> Generator[str, None, Answer]:
        """Do as :meth:`answer`, piece by piece; a cached answer is one piece."""
        call = self._call(question, budget, force_cloud=force_cloud)
        cache = self._services.cache
        with self._failures(call):
            key, epoch = self._key(call), cache.epoch
            known = cache.peek(key) if self._caches(question) else None
            if known is not None:
                control.found(known.nodes, known.route)
                yield known.text
                return self._handed_out(call, known, cached=True)
            routed = self._stages.route.run(question, call.spending)
            retrieval, origin = self._stages.retrieve.run(question, routed, call.spending)
            # Copies, as the caller has them while the answer is still written from these.
            control.found(kept(retrieval.nodes).copies(), retrieval.route)
            answer = yield from self._stages.answer.stream(
                retrieval,
                origin,
                call.spending,
                query_vector=routed.query_vector,
                force_cloud=force_cloud,
                control=control,
            )
            if self._caches(question) and worth_keeping(answer):
                # A copy, as the caller has this one.
                cache.put(key, kept_answer(copied_answer(answer)), epoch=epoch)
            return self._handed_out(call, answer, cached=False)

    @contextmanager
    def _failures(self, call: _Call) -> Iterator[None]:
        """Record what ends the query early."""
        try:
            yield
        except Exception as err:  # whatever it is belongs in the history; it is raised again
            self._services.recorder.failed(call.question.query, err, call.spending.clock, self._services.new_id())
            raise

    def _call(self, question: Question, budget: Budget | None, *, force_cloud: bool) -> _Call:
        spending = self._spending(budget)
        return _Call(
            question=question,
            budget=budget,
            force_cloud=force_cloud,
            spending=spending,
            compute=lambda: self._computed(question, spending, force_cloud=force_cloud),
        )

    def _caches(self, question: Question) -> bool:
        return self._repeatable or question.strategy is not None

    def _key(self, call: _Call) -> str:
        # The versions are part of the key, so changes are looked for first.
        self._resources.attached.catch_up(call.question.index, call.spending.clock.remaining_s() / 2)
        return answer_key(
            self._resources, call.question, llm=self._services.llm, budget=call.budget, force_cloud=call.force_cloud
        )

    def _handed_out(self, call: _Call, answer: Answer, *, cached: bool) -> Answer:
        timings = call.spending.clock.timings_ms() if cached else answer.timings_ms
        done = replace(answer, cached=cached, timings_ms=timings, query_id=self._services.new_id())
        self._services.recorder.answered(done)
        return done

    def _computed(self, question: Question, spending: Spending, *, force_cloud: bool) -> Answer:
        routed = self._stages.route.run(question, spending)
        retrieval, origin = self._stages.retrieve.run(question, routed, spending)
        return self._stages.answer.run(
            retrieval, origin, spending, query_vector=routed.query_vector, force_cloud=force_cloud
        )

    def _spending(self, budget: Budget | None) -> Spending:
        return Spending(budget, QueryClock(self.limit_s(budget), self._services.timer))


# One question with what its caller fixed, and what routing made of it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question with what its caller fixed."""

    query: str
    top_k: int
    index: str | None = None
    strategy: Strategy | None = None
    filters: MetadataFilters | None = None
    top_k_given: bool = False


@dataclass(frozen=True, slots=True)
class Routed:
    """A decision, the strategies to try in order, and the vector that was computed for it."""

    decision: RouteDecision
    order: tuple[Strategy, ...]
    query_vector: Vector | None


def pinned_strategy(name: str | Strategy | None) -> Strategy | None:
    """Return the strategy that a caller named."""
    if name is None:
        return None
    known = [strategy.value for strategy in REGISTRY]
    value = name.value if isinstance(name, Strategy) else str(name)
    if value not in known:
        raise UnknownStrategyError(unknown_name("strategy", value, known))
    return Strategy(value)


# Which strategies stage two may choose from: those that the index serves and that fit the time.

_MISSING = {
    View.SUMMARY: "the index has no summaries; build them with: agentic-retriever index build NAME",
    View.HIERARCHY: "the index has no leaves; build them with: agentic-retriever index build NAME",
}


def offer(
    index: Index, measured: MeasuredStrategies | None, *, left_ms: float | None
) -> tuple[tuple[StrategyCard, ...], dict[str, str]]:
    """List the strategies to choose from.

    A strategy whose typical latency does not fit what the caller's budget leaves is withheld; the fastest one never is.
    """
    served = cards(index, measured=measured)
    missing = {} if index.is_attached else _MISSING
    names = {card.strategy for card in served}
    withheld = {
        strategy.value: next((missing[view] for view in spec.needs if view in missing), "the index cannot serve it")
        for strategy, spec in REGISTRY.items()
        if strategy not in names
    }
    if left_ms is None or not served:
        return served, withheld
    fastest = min(served, key=lambda card: card.typical_ms)
    fitting = tuple(card for card in served if card.typical_ms <= left_ms or card is fastest)
    withheld |= {
        card.strategy.value: f"takes about {card.typical_ms:.0f} ms, the budget leaves {left_ms:.0f} ms"
        for card in served
        if card not in fitting
    }
    return fitting, withheld


# The first hops of a query: which index, which strategy, how hard.


class RouteStage:
    """Chooses the index and the strategy."""

    def __init__(self, resources: Resources, classifier: IndexClassifier, selector: StrategySelector) -> None:
        self._resources = resources
        self._classifier = classifier
        self._selector = selector
        self._terms = DomainTerms.parse(resources.config.domain_terms)

    @traced(ROUTE)
    def run(self, question: Question, spending: Spending, *, recorded: RouteDecision | None = None) -> Routed:
        """Decide."""
        names = self._known(question)
        clock = spending.clock
        degraded: list[Degradation] = []
        vector = self._embed(question, spending, degraded)
        with clock.step("routing"):
            degraded.extend(self._resources.attached.catch_up(question.index, clock.remaining_s() / 2))
            index, versions = self._stage_one(question, names, vector, degraded, spending, recorded)
            chosen = self._resources.index(index.name)
            complexity, score = assess_complexity(question.query)
            features = query_features(question.query, chosen.profile(), score, domain_terms=self._terms)
            strategy, withheld = self._stage_two(question, chosen, features, spending, recorded)
        decision = RouteDecision(
            query=question.query,
            index=index,
            strategy=strategy,
            complexity=complexity,
            complexity_score=score,
            complexity_reasons=complexity_reasons(question.query),
            features=features,
            timings_ms=clock.timings_ms(),
            degraded=(*degraded, *index.degraded, *strategy.degraded),
            withheld=withheld,
            versions=versions,
        )
        return Routed(decision, _order(question, strategy), vector)

    def _known(self, question: Question) -> list[str]:
        names = self._resources.names()
        if question.index is not None and question.index not in names:
            raise UnknownIndexError(unknown_name("index", question.index, names))
        if not names:
            raise RoutingError(
                f"there is no index in {self._resources.config.data_dir}; add one with add_index() "
                "or: agentic-retriever index add NAME PATH"
            )
        return list(names)

    def _embed(self, question: Question, spending: Spending, degraded: list[Degradation]) -> Vector | None:
        """Embed the question once for routing and retrieval; without a vector both go on lexically."""
        clock = spending.clock
        with clock.step("embedding"):
            try:
                # Half of the time at most, so that a search by words can still follow.
                limit = clock.left_s("embedding the question") / 2
                return self._resources.embedding().embed_query(question.query, timeout_s=limit)
            except AgenticRetrieverError as err:
                if question.strategy is Strategy.VECTOR:
                    raise
                degraded.append(Degradation(step="embedding", reason=str(err), fallback="words only"))
                return None

    def _stage_one(
        self,
        question: Question,
        names: Sequence[str],
        vector: Vector | None,
        degraded: list[Degradation],
        spending: Spending,
        recorded: RouteDecision | None,
    ) -> tuple[Selection, dict[str, int]]:
        if question.index is not None:
            return _settled(question.index, "pinned", "the caller named it"), self._versions([question.index])
        if len(names) == 1:
            return _settled(names[0], "only", "it is the only index"), self._versions(names)
        indexes, lost = self._resources.usable()
        degraded.extend(lost)
        versions = {index.name: index.version for index in indexes}
        if recorded is not None and _unrepeatable(recorded.index) and set(recorded.index.names) <= set(versions):
            return recorded.index, versions
        selection = self._classifier.classify(
            question.query,
            [index.profile() for index in indexes],
            query_vector=vector,
            allowance=spending.left("choosing the index"),
        )
        spending.add(selection.spent)
        return self._settle_scope(selection, indexes), versions

    def _settle_scope(self, selection: Selection, indexes: Sequence[Index]) -> Selection:
        """Apply the setting ``on_abstain`` to a question that seems to be about nothing in the indexes."""
        config = self._resources.config
        if not selection.abstained or config.on_abstain in {"answer", "decline"}:
            return selection
        if config.on_abstain == "raise":
            raise OutOfScopeError(
                f"the question seems to be about none of the {len(indexes)} indexes ({selection.reason}); "
                "ask something else, name an index, or set on_abstain to answer, all, default or decline"
            )
        if config.on_abstain == "default":
            known = [index.name for index in indexes]
            if config.default_index not in known:
                raise UnknownIndexError(unknown_name("index in the setting default_index", config.default_index, known))
            reason = f"out of scope, so the default index; {selection.reason}"
            return replace(selection, name=config.default_index, names=(config.default_index,), reason=reason)
        filled = {index.name for index in indexes if index.count() > 0}
        names = tuple(name for name in selection.scores if name in filled or name == selection.name)
        return replace(selection, names=names, reason=f"out of scope, so all indexes; {selection.reason}")

    def _stage_two(
        self,
        question: Question,
        index: Index,
        features: Mapping[str, float],
        spending: Spending,
        recorded: RouteDecision | None,
    ) -> tuple[Selection, dict[str, str]]:
        if question.strategy is not None:
            check_served(question.strategy, index)
            return _settled(question.strategy.value, "pinned", "the caller named it"), {}
        trained = self._resources.trained(index)
        offered, withheld = offer(index, trained.measured, left_ms=spending.left_ms())
        if not offered:
            raise NoEligibleStrategyError(f"index {index.name!r} serves no registered strategy")
        names = {card.strategy.value for card in offered}
        if recorded is not None and _unrepeatable(recorded.strategy) and recorded.strategy.name in names:
            return recorded.strategy, withheld
        selection = self._selector.select(
            question.query, offered, features=features, allowance=spending.left("choosing the strategy")
        )
        spending.add(selection.spent)
        return replace(selection, degraded=(*trained.degraded, *selection.degraded)), withheld

    def _versions(self, names: Sequence[str]) -> dict[str, int]:
        return {name: self._resources.index(name).version for name in names}


def _order(question: Question, strategy: Selection) -> tuple[Strategy, ...]:
    others = () if question.strategy else tuple(name for name in strategy.scores if name != strategy.name)
    return tuple(Strategy(name) for name in (strategy.name, *others))


def _unrepeatable(selection: Selection) -> bool:
    """Tell whether a choice would come out otherwise next time although nothing changed."""
    return selection.escalated or selection.mode in {"llm", "round_robin"}


def _settled(name: str, mode: str, reason: str) -> Selection:
    return Selection(name=name, confidence=1.0, scores={name: 1.0}, margin=1.0, reason=reason, mode=mode)


# One list of nodes from several indexes, by scores that can be compared.

INDEX_SHARE: Final = 0.4
"""How much a good index lifts its nodes: the weight of the collection in CORI's merging."""


def merge_indexes(
    results: Mapping[str, SearchResult],
    index_scores: Mapping[str, float],
    *,
    cosines: Mapping[str, float],
    top_k: int,
) -> tuple[list[NodeWithScore], dict[str, str]]:
    """Merge the results of several indexes.

    Scores of different indexes do not compare: a fusion depends on its list, BM25 on its collection. Cosines with the
    question do, since all indexes share one embedding model. So the nodes of each index keep the order that their
    strategy gave them, the n-th of them counts as near as the n-th largest cosine of its list, and all are merged as
    in CORI: ``(D + 0.4 D C) / 1.4`` with node scores D and index scores C brought to [0, 1] (J. Callan, Z. Lu and
    W. B. Croft, "Searching Distributed Collections with Inference Networks", SIGIR 1995).
    """
    if len(results) == 1:
        name, result = next(iter(results.items()))
        return list(result.nodes[:top_k]), {n.node.node_id: name for n in result.nodes}
    comparable = all(node.node.node_id in cosines for result in results.values() for node in result.nodes)
    levels = {
        name: _levels(result.nodes, cosines) if comparable else _relative(result.nodes)
        for name, result in results.items()
    }
    node_scores = _unit_range([level for row in levels.values() for level in row])
    shares = dict(zip(results, _unit_range([index_scores.get(name, 0.0) for name in results]), strict=True))
    merged: dict[str, tuple[float, str, NodeWithScore]] = {}
    at = 0
    for name, result in results.items():
        for node in result.nodes:
            score = node_scores[at] * (1 + INDEX_SHARE * shares[name]) / (1 + INDEX_SHARE)
            at += 1
            known = merged.get(node.node.node_id)
            if known is None or score > known[0]:
                merged[node.node.node_id] = (score, name, node)
    ordered = sorted(merged.items(), key=lambda item: (-item[1][0], item[0]))[:top_k]
    nodes = [NodeWithScore(node=node.node, score=score) for _, (score, _, node) in ordered]
    return nodes, {node_id: name for node_id, (_, name, _) in ordered}


def _levels(nodes: Sequence[NodeWithScore], cosines: Mapping[str, float]) -> list[float]:
    """Cosines of a list from the largest down, so that the strategy's order stays."""
    return sorted((cosines[node.node.node_id] for node in nodes), reverse=True)


def _relative(nodes: Sequence[NodeWithScore]) -> list[float]:
    top = max((node.score or 0.0 for node in nodes), default=0.0)
    return [max(0.0, node.score or 0.0) / top if top > 0 else 0.0 for node in nodes]


def _unit_range(values: Sequence[float]) -> list[float]:
    """Bring values to [0, 1]; equal ones to 1."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [(value - low) / (high - low) if high > low else 1.0 for value in values]


# The hop from a decision to nodes: the chosen strategy, and the next ones when it fails or finds little.

logger = logging.getLogger(__name__)

MAX_RETRIES: Final = 2
RETRY_BELOW: Final = 0.5
"""The next strategy is tried when what was found fits the question less than this."""
"""Further strategies that a search with little to show for it may try."""

# A further strategy is tried when the time left is that many times what the last one took.
_TIME_FACTOR: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    strategy: Strategy
    nodes: list[NodeWithScore]
    origin: dict[str, str]
    confidence: float | None
    degraded: tuple[Degradation, ...]
    understood: tuple[str, ...]
    ms: float

    @property
    def rank(self) -> float:
        """What a choice among several searches goes by; an unknown confidence counts as middling.

        What satisfies the conditions that the question states fits by these, however near its wording lies. A search
        for such conditions that found none in the question is dense search alone, and any other strategy goes before.
        """
        if not self.nodes:
            return -1.0
        if self.strategy is Strategy.METADATA and not (self.understood and self.degraded):
            return 1.0 if self.understood else 0.0
        return 0.5 if self.confidence is None else self.confidence


@dataclass(slots=True)
class _Search:
    """What happened so far."""

    found: list[_Found] = field(default_factory=list)
    causes: dict[str, BaseException] = field(default_factory=dict)
    degraded: list[Degradation] = field(default_factory=list)


class RetrieveStage:
    """Runs the chosen strategy on the chosen indexes, and the next one when it fails or finds nothing near."""

    def __init__(self, resources: Resources, refiner: Refiner, model: ModelClient | None) -> None:
        self._resources = resources
        self._refiner = refiner
        self._model = model
        self._caller = DeadlineCaller("retrieval", max_calls=4 * resources.config.workers)

    @traced(SEARCH)
    def run(self, question: Question, routed: Routed, spending: Spending) -> tuple[Retrieval, dict[str, str]]:
        """Retrieve."""
        decision = routed.decision
        if decision.index.abstained and self._resources.config.on_abstain == "decline":
            return self._declined(routed, spending), {}
        kept = self._refiner.kept(question, decision.complexity_score)
        fetched = self._refiner.fetched(kept)
        search = _Search(degraded=list(decision.degraded))
        for position, strategy in enumerate(routed.order):
            try:
                search.found.append(self._attempt(question, routed, strategy, spending, top_k=fetched))
            except (DeadlineExceededError, InvalidQueryError):
                if search.found:
                    break
                raise
            except Exception as err:  # strategies may be foreign code; what failed is told, and the next one is tried
                logger.debug("strategy %s failed", strategy.value, exc_info=err)
                search.causes[strategy.value] = err
                following = routed.order[position + 1].value if position + 1 < len(routed.order) else "none"
                lost = Degradation(step=f"retrieval.{strategy.value}", reason=_reason(err), fallback=following)
                search.degraded.append(lost)
                continue
            if not self._worth_another(search.found, spending):
                break
        if not search.found:
            raise _all_failed(decision.index.name, search.causes)
        return self._finished(question, routed, search, kept, spending)

    def _attempt(
        self, question: Question, routed: Routed, strategy: Strategy, spending: Spending, *, top_k: int
    ) -> _Found:
        clock, decision = spending.clock, routed.decision
        before = clock.elapsed_ms()
        with clock.step("retrieval"):
            results, lost = self._search(question, routed, strategy, spending, top_k=top_k)
            by_index = {name: result.nodes for name, result in results.items()}
            near = cosines(self._resources, by_index, routed.query_vector) if len(results) > 1 else {}
            nodes, origin = merge_indexes(results, decision.index.scores, cosines=near, top_k=top_k)
        profile = search_profile(self._resources.index(decision.index.name))
        return _Found(
            strategy=strategy,
            nodes=nodes,
            origin=origin,
            confidence=relevance(nodes, profile),
            degraded=(*lost, *(step for result in results.values() for step in result.degraded)),
            understood=tuple(dict.fromkeys(said for result in results.values() for said in result.understood)),
            ms=clock.elapsed_ms() - before,
        )

    def _search(
        self, question: Question, routed: Routed, strategy: Strategy, spending: Spending, *, top_k: int
    ) -> tuple[dict[str, SearchResult], list[Degradation]]:
        """Search all chosen indexes side by side; one that fails is left out as long as another answers."""
        names = routed.decision.index.names
        searches = {name: partial(self._one, question, routed, strategy, spending, name, top_k) for name in names}
        if len(searches) == 1:
            return {names[0]: searches[names[0]]()}, []
        results, errors = run_sides(
            self._resources.workers(), searches, timeout_s=lambda: spending.clock.left_s("searching")
        )
        if not results:
            raise errors[names[0]]
        lost = [
            Degradation(step=f"index.{n}", reason=_reason(e), fallback="the other indexes") for n, e in errors.items()
        ]
        return results, lost

    def _one(
        self, question: Question, routed: Routed, strategy: Strategy, spending: Spending, name: str, top_k: int
    ) -> SearchResult:
        index = self._resources.index(name)
        # An index with a model of its own embeds the question itself.
        vector = routed.query_vector if self._resources.compares(index) else None
        left = spending.clock.left_s(f"searching index {name!r}")
        request = RetrievalRequest(
            query=question.query,
            top_k=top_k,
            filters=question.filters,
            query_vector=None if vector is None else tuple(vector.tolist()),
            timeout_s=left,
            model=None if self._model is None else MeteredModel(self._model, spending),
        )
        adapter = self._resources.adapter(index, strategy)
        search = partial(adapter_search, adapter, name, request)
        # A thread costs more than a search, so only those that may overrun get one.
        ends = adapter.keeps_deadlines and not index.may_hang
        return search() if ends else self._caller.call(search, left)

    def _worth_another(self, found: list[_Found], spending: Spending) -> bool:
        """Tell whether the next strategy should be tried: little found so far, and time enough."""
        last = found[-1]
        if len(found) > MAX_RETRIES or max(one.rank for one in found) >= RETRY_BELOW:
            return False
        return spending.clock.remaining_s() * 1000 > _TIME_FACTOR * last.ms

    def _finished(
        self, question: Question, routed: Routed, search: _Search, kept: int, spending: Spending
    ) -> tuple[Retrieval, dict[str, str]]:
        best = max(search.found, key=lambda one: one.rank)  # the first of equals
        metered = None if self._model is None else MeteredModel(self._model, spending)
        nodes, failed = self._refiner.run(question, best.nodes, best.origin, kept, spending.clock, metered)
        retrieval = Retrieval(
            nodes=tuple(nodes),
            strategy=best.strategy,
            indexes=routed.decision.index.names,
            route=routed.decision,
            degraded=(*search.degraded, *best.degraded, *failed),
            understood=best.understood,
            timings_ms=spending.clock.timings_ms(),
            tried=tuple(
                Tried(strategy=one.strategy, confidence=one.confidence, nodes=len(one.nodes), ms=one.ms)
                for one in search.found
            ),
            usage=spending.usage,
        )
        return retrieval, best.origin

    def _declined(self, routed: Routed, spending: Spending) -> Retrieval:
        return Retrieval(
            nodes=(),
            strategy=routed.order[0],
            indexes=routed.decision.index.names,
            route=routed.decision,
            degraded=routed.decision.degraded,
            timings_ms=spending.clock.timings_ms(),
            usage=spending.usage,
        )


def _all_failed(index: str, causes: dict[str, BaseException]) -> RetrievalError:
    listed = "; ".join(f"{name}: {_reason(err)}" for name, err in causes.items())
    error = RetrievalError(f"every strategy failed on index {index!r} ({listed})", causes)
    error.__cause__ = next(iter(causes.values()), None)
    return error


def _reason(err: BaseException) -> str:
    """Say what happened in one line; the text of a foreign error may hold anything, so only its type is told."""
    return str(err) if isinstance(err, AgenticRetrieverError) else type(err).__name__


# Between retrieval and the answer: how many nodes to fetch, and what is done with them.


class Refiner:
    """Boosts, reranks, diversifies, cuts and expands what was retrieved, as the settings ask."""

    def __init__(
        self, resources: Resources, client: ModelClient | None, postprocessors: Sequence[BaseNodePostprocessor] = ()
    ) -> None:
        self._resources = resources
        self._settings = PostprocessSettings.from_config(resources.config)
        self._reranker = make_reranker(resources.config, client)
        self._asks_model = resources.config.reranker == "llm"
        self._postprocessors = NodePostprocessors(postprocessors)

    @property
    def reranker(self) -> str:
        """The reranker as the settings name it; ``none`` for none."""
        return self._resources.config.reranker

    def kept(self, question: Question, complexity_score: float) -> int:
        """Return how many nodes the answer gets; a number that the caller gave is never changed."""
        if question.top_k_given:
            return question.top_k
        return self._settings.final_top_k(question.top_k, complexity_score)

    def fetched(self, kept: int) -> int:
        """Return how many nodes to retrieve so that so many can be kept."""
        return self._settings.candidates(kept, reranks=self._reranker is not None)

    @traced(REFINE)
    def run(
        self,
        question: Question,
        nodes: Sequence[NodeWithScore],
        origin: dict[str, str],
        kept: int,
        clock: QueryClock,
        model: ModelClient | None = None,
    ) -> tuple[list[NodeWithScore], tuple[Degradation, ...]]:
        """Refine the nodes; ``origin`` learns the index of those that are added."""
        readers: dict[str, Neighbours] = {}

        def neighbours(node: BaseNode) -> Sequence[BaseNode]:
            name = origin[node.node_id]
            if name not in readers:
                index, width = self._resources.index(name), self._settings.neighbours
                readers[name] = section_neighbours(index, width=width, filters=question.filters)
            return readers[name](node)

        with clock.step("rerank"):
            refined, lost = postprocess(
                question.query,
                nodes,
                self._settings,
                PostprocessTools(
                    reranker=LLMReranker(model) if self._asks_model and model is not None else self._reranker,
                    vectors=lambda node_ids: self._vectors(node_ids, origin),
                    neighbours=neighbours,
                ),
                top_k=kept,
                timeout_s=clock.left_s("refining what was found"),
            )
            if self._postprocessors:
                # Half of the time at most, so that an answer can still follow.
                refined, failed = self._postprocessors.run(
                    question.query,
                    refined,
                    filters=question.filters,
                    timeout_s=clock.left_s("postprocessing what was found") / 2,
                )
                lost = (*lost, *failed)
        for entry in refined:
            hit = entry.node.metadata.get(EXPANDED_KEY)
            if hit in origin:
                origin.setdefault(entry.node.node_id, origin[hit])
        return refined, lost

    def _vectors(self, node_ids: Sequence[str], origin: Mapping[str, str]) -> Mapping[str, npt.ArrayLike]:
        found: dict[str, npt.ArrayLike] = {}
        for name in dict.fromkeys(origin[node_id] for node_id in node_ids if node_id in origin):
            mine = [node_id for node_id in node_ids if origin.get(node_id) == name]
            index = self._resources.index(name)
            if len(mine) == len(node_ids) or self._resources.compares(index):  # else they are of different models
                found.update(store_vectors(index)(mine))
        return found


# Every query into the history, without getting in its way.


class Recorder:
    """Hands queries to the history, if there is one; never raises and never waits."""

    def __init__(self, log: QueryLog | None, client: TieredClient | None) -> None:
        self._log = log
        self._client = client

    def answered(self, answer: Answer) -> None:
        """Record an answer."""
        if self._log is None:
            return
        # A cached answer cost nothing, whoever might have written it.
        asked = None if answer.cached else self._client
        cloud_usd = None if asked is None else asked.costs(answer.usage.tiers).cloud_only_usd
        self._log.record_answer(answer, cloud_only_usd=cloud_usd)

    def failed(self, query: str, err: BaseException, clock: QueryClock, query_id: str) -> None:
        """Record a query that ended in an error."""
        if self._log is not None:
            self._log.record_answer(None, error=err, query=query, query_id=query_id, timings_ms=clock.timings_ms())


# Answers that are shown while they are written.


class AnswerStream:
    """The pieces of an answer as they come; afterwards ``answer`` holds the whole.

    Routing and retrieval happen when the first piece is wanted. The pieces carry the citations that the finished answer
    has; should the two ever differ, the finished answer counts. A stream that is closed, left by ``with`` or forgotten
    ends its model call at once.

    Example:
        >>> with router.stream("How many days of leave do I have?") as stream:
        ...     for piece in stream:
        ...         print(piece, end="")
        >>> print(stream.answer.citations)
    """

    def __init__(self, run: Callable[[StreamControl], Generator[str, None, Answer]]) -> None:
        self.text = ""
        self.answer: Answer | None = None
        self._control = StreamControl()
        self._pieces = run(self._control)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        if self._control.cancelled:
            raise StopIteration
        try:
            piece = next(self._pieces)
        except StopIteration as end:
            if end.value is not None:
                self.answer = end.value
            raise StopIteration from None
        self.text += piece
        return piece

    @property
    def nodes(self) -> Sequence[NodeWithScore]:
        """What was retrieved, best first; empty before the first piece."""
        return self._control.nodes

    @property
    def route(self) -> RouteDecision | None:
        """The decision; ``None`` before the first piece."""
        return self._control.route

    def finish(self) -> Answer | None:
        """Read the rest and return the finished answer; ``None`` if the stream was closed before."""
        for _ in self:
            pass
        return self.answer

    def close(self) -> None:
        """Give the answer up; harmless at any time, more than once and from any thread."""
        self._control.cancel()
        try:
            self._pieces.close()
        except ValueError:  # another thread waits in it, and has just been woken
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncAnswerStream(AsyncPieces):
    """The twin of :class:`AnswerStream` for ``async for`` and ``async with``; the event loop is never blocked."""

    def __init__(self, stream: AnswerStream, caller: DeadlineCaller) -> None:
        super().__init__(stream, caller)
        self._answers = stream

    @property
    def answer(self) -> Answer | None:
        """The finished answer, once the stream has ended by itself."""
        return self._answers.answer

    @property
    def nodes(self) -> Sequence[NodeWithScore]:
        """What was retrieved, best first; empty before the first piece."""
        return self._answers.nodes

    @property
    def route(self) -> RouteDecision | None:
        """The decision; ``None`` before the first piece."""
        return self._answers.route


# Answers as JSON and back, whole: nodes with their texts and metadata, the decision and everything that was spent.

FORMAT = 2
"""Changes when answers of before can no longer be read; they then count as not there."""

#: Only these classes are made from what a shared store holds.
_NODE_CLASSES: dict[str, type[TextNode]] = {kind.class_name(): kind for kind in (TextNode, IndexNode, ImageNode)}
_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)


class AnswerCodec:
    """Writes and reads answers; ``decode(encode(answer))`` equals the answer."""

    def encode(self, value: Answer) -> bytes:
        """Write an answer as JSON in UTF-8."""
        row = {
            "format": FORMAT,
            **value.to_dict(),
            # Two models of one tier are one in the totals of an answer, and two here.
            "usage": {"tiers": [usage.to_dict() for usage in value.usage.tiers]},
            "nodes": [_written(node) for node in value.nodes],
        }
        try:
            text = json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return text.encode("utf-8")
        except UnicodeEncodeError:  # a lone surrogate has no UTF-8, and JSON's escapes have a form for it
            return json.dumps(row, allow_nan=False, separators=(",", ":")).encode("ascii")
        except (TypeError, RecursionError) as err:
            message = f"the answer has no JSON form ({type(err).__name__})"
            raise ValueError(message) from err

    def decode(self, data: bytes) -> Answer:
        """Read an answer again."""
        try:
            row = json.loads(data)
            if row["format"] != FORMAT:
                message = f"the answer has format {str(row['format'])[:20]!r}, this version reads {FORMAT}"
                raise ValueError(message)
            return replace(Answer.from_dict({**row, "nodes": ()}), nodes=kept(_node(node) for node in row["nodes"]))
        except (LookupError, TypeError, AttributeError, RecursionError, ValidationError, AgenticRetrieverError) as err:
            message = f"these bytes are no answer ({type(err).__name__})"
            raise ValueError(message) from err


def _written(scored: NodeWithScore) -> dict[str, Any]:
    node = scored.node
    kind = node.class_name()
    if _NODE_CLASSES.get(kind) is not type(node):
        message = f"a node of class {type(node).__name__} has no JSON form here"
        raise ValueError(message)
    if isinstance(node, IndexNode) and node.obj is not None:
        message = "an index node that carries an object has no JSON form"
        raise ValueError(message)
    # mode="python" keeps what JSON has no word for, so that it is refused instead of quietly becoming something else.
    content = node.model_dump(mode="python", exclude_defaults=True)
    try:
        return {"class": kind, "id": node.node_id, "score": scored.score, "node": _JSON.validate_python(content)}
    except ValidationError as err:
        message = f"something in a node has no JSON form: {err.errors(include_url=False)[0]['msg']}"
        raise ValueError(message) from err


def _node(row: Mapping[str, Any]) -> NodeWithScore:
    kind = _NODE_CLASSES[row["class"]]
    content = {name: value for name, value in row["node"].items() if name != "class_name"}
    return NodeWithScore(node=kind(**{**content, "id_": row["id"]}), score=row["score"])

"""A question's way, step by step: answered, from the cache or computed; routed, retrieved, refined, written.

Each step is a LlamaIndex span, with LlamaIndex's events where they fit::

    AgenticRouter.query                  QueryStartEvent, QueryEndEvent
    ├── AgenticRouter.route              RouteDecisionEvent
    ├── AgenticRouter.search             RetrievalStartEvent, RetrievalEndEvent
    │   ├── VectorRetriever.search ...     one for each strategy that was run, on each index
    │   └── AgenticRouter.refine         ReRankStartEvent, ReRankEndEvent where there is a reranker
    └── AgenticRouter.synthesize         SynthesizeStartEvent, SynthesizeEndEvent

``AgenticRouter.retrieve`` stands above route and search where only nodes are asked for. An answer from the cache has
the first one alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from llama_index.core.instrumentation.events.query import QueryEndEvent, QueryStartEvent
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent, SynthesizeStartEvent
from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.vector_stores.types import MetadataFilters

from agentic_retriever.cache import SingleFlightCache, cache_key
from agentic_retriever.errors import (
    AgenticRetrieverError,
    DeadlineExceededError,
    InvalidQueryError,
    NoEligibleStrategyError,
    OutOfScopeError,
    RetrievalError,
    RoutingError,
    UnknownIndexError,
    unknown_name,
)
from agentic_retriever.filters import normalise
from agentic_retriever.indices import Index, IndexProfile
from agentic_retriever.indices.profile import MAX_TERMS, MeasuredStrategies
from agentic_retriever.llm import TieredClient
from agentic_retriever.llm.prompts import VERSION
from agentic_retriever.pipeline.answers import as_response, copied_answer, kept_answer, worth_keeping
from agentic_retriever.pipeline.nearness import merge_indexes, relevance
from agentic_retriever.pipeline.spending import MeteredModel, Spending
from agentic_retriever.querylog import QueryLog
from agentic_retriever.resources import Resources
from agentic_retriever.retrievers import REGISTRY, RetrievalRequest, SearchResult, cards, run_sides
from agentic_retriever.retrievers.base import KeptNodes
from agentic_retriever.retrievers.refining import (
    EXPANDED_KEY,
    Neighbours,
    NodePostprocessors,
    Refining,
    section_neighbours,
    store_vectors,
)
from agentic_retriever.retrievers.registry import check_served
from agentic_retriever.routing import (
    DomainTerms,
    IndexClassifier,
    StrategySelector,
    assess_complexity,
    complexity_reasons,
    query_features,
    support_of,
)
from agentic_retriever.schema import (
    Answer,
    Budget,
    Degradation,
    Retrieval,
    RouteDecision,
    Selection,
    Strategy,
    StrategyCard,
    Tier,
    Tried,
    Usage,
    View,
)
from agentic_retriever.stores.points import embedded_text
from agentic_retriever.synthesis import Evidence, Limits, StreamControl, Synthesis, Synthesizer, unknown_share
from agentic_retriever.synthesis.confidence import MAX_JUDGED, why_not_read
from agentic_retriever.text import detect_language, normalise_query
from agentic_retriever.threads import DeadlineCaller, Workers
from agentic_retriever.tracing import RouteDecisionEvent, Span, span

if TYPE_CHECKING:
    import numpy.typing as npt

    from agentic_retriever.embeddings.model import Vector

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_RETRIES: Final = 2
"""Further strategies that a search with little to show for it may try."""

RETRY_BELOW: Final = 0.5
"""The next strategy is tried when what was found fits the question less than this."""

# A further strategy is tried when the time left is that many times what the last one took.
_TIME_FACTOR: Final = 2.0

# What a model leaves of the time, as a share and at most in seconds: when all fail, the extract has to come in time,
# also for those who wait for the same answer.
_RESERVE_SHARE, _RESERVE_S = 0.1, 0.25

_WAITING: Final = "waiting for the answer"

_MISSING: Final = {
    View.SUMMARY: "the index has no summaries; build them with: agentic-retriever index build NAME",
    View.HIERARCHY: "the index has no leaves; build them with: agentic-retriever index build NAME",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question with what its caller fixed."""

    query: str
    top_k: int
    top_k_given: bool = False
    index: str | None = None
    strategy: Strategy | None = None
    filters: MetadataFilters | None = None
    budget: Budget | None = None
    force_cloud: bool = False

    def shown(self) -> dict[str, object]:
        """Return what handlers of spans see of it."""
        pins = {
            "index": self.index,
            "strategy": None if self.strategy is None else self.strategy.value,
            "top_k": self.top_k if self.top_k_given else None,
        }
        return {"query": self.query, **{name: value for name, value in pins.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class Routed:
    """A question that was routed: the strategies to try in order, and the vector that was computed for it."""

    question: Question
    spending: Spending
    decision: RouteDecision
    order: tuple[Strategy, ...]
    vector: Vector | None
    origin: dict[str, str] = field(default_factory=dict)  # the index of each node by its id, once retrieval has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class _Find:
    """What one strategy found."""

    strategy: Strategy
    nodes: Sequence[NodeWithScore] = ()
    origin: dict[str, str] = field(default_factory=dict)
    confidence: float | None = None
    degraded: tuple[Degradation, ...] = ()
    understood: tuple[str, ...] = ()
    ms: float = 0.0

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


class Pipeline:
    """Takes questions through the steps, in the order in which they stand here; safe to use from many threads."""

    def __init__(  # noqa: PLR0913 - all that a query needs, by keyword
        self,
        resources: Resources,
        *,
        classifier: IndexClassifier,
        selector: StrategySelector,
        synthesizer: Synthesizer,
        client: TieredClient | None,
        postprocessors: NodePostprocessors,
        cache: SingleFlightCache[Answer],
        log: QueryLog | None,
        writers: str,
        timer: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        config = resources.config
        self._resources, self._config = resources, config
        self._classifier, self._selector, self._synthesizer = classifier, selector, synthesizer
        self._client = client
        self._cache = cache
        self._log = log
        self._writers = writers
        self._timer = timer
        self._new_id = new_id
        self._domain_terms = DomainTerms.parse(config.domain_terms)
        self._refining = Refining(config, client)
        self._postprocessors = postprocessors
        self._caller = DeadlineCaller("retrieval", max_calls=4 * config.workers)

    # -- Answered, or only routed, or only retrieved

    def answer(self, question: Question) -> Answer:
        """Answer a question, or return its answer from the cache."""
        spending = self._spending(question)
        with self._query(question, spending) as traced:
            if not self._caches(question):
                return self._hand_out(question, spending, self._compute(question, spending), traced, cached=False)
            answer, cached = self._cache.get_or_compute(
                self._key(question, spending),
                partial(self._compute, question, spending),
                keep=worth_keeping,
                timeout_s=spending.left_s(_WAITING),
            )
            return self._hand_out(question, spending, answer, traced, cached=cached)

    async def aanswer(self, question: Question, workers: Workers) -> Answer:
        """Do as :meth:`answer`; whoever waits for an answer that is being made holds no thread."""
        spending = self._spending(question)
        with self._query(question, spending) as traced:
            if not self._caches(question):
                try:
                    answer = await workers.run(self._compute, question, spending)
                except asyncio.CancelledError:
                    spending.stop()
                    raise
                return self._hand_out(question, spending, answer, traced, cached=False)
            answer, cached = await self._cache.aget_or_compute(
                await workers.run(self._key, question, spending),
                partial(self._compute, question, spending),
                submit=workers.submit,
                keep=worth_keeping,
                timeout_s=spending.left_s(_WAITING),
                unwanted=spending.stop,
            )
            return self._hand_out(question, spending, answer, traced, cached=cached)

    def stream(self, question: Question, control: StreamControl) -> Generator[str, None, Answer]:
        """Do as :meth:`answer`, piece by piece, to be run in a context of its own; a cached answer is one piece."""
        spending = self._spending(question)
        with self._query(question, spending) as traced:
            key, epoch = self._key(question, spending), self._cache.epoch
            cached = self._cache.peek(key) if self._caches(question) else None
            if cached is not None:
                control.found(cached.nodes, cached.route)
                yield cached.text
                return self._hand_out(question, spending, cached, traced, cached=True)
            routed = self._route(question, spending)
            retrieval = self._retrieve(routed)
            # Copies, as the caller has them while the answer is still written from these.
            control.found(KeptNodes.of(retrieval.nodes).copies(), retrieval.route)
            answer = yield from self._write_stream(routed, retrieval, control)
            if self._caches(question) and worth_keeping(answer):
                # A copy, as the caller has this one.
                self._cache.put(key, kept_answer(copied_answer(answer)), epoch=epoch)
            return self._hand_out(question, spending, answer, traced, cached=False)

    def route(self, question: Question, *, recorded: RouteDecision | None = None) -> RouteDecision:
        """Decide; with ``recorded``, as then where chance or a model decided."""
        return self._route(question, self._spending(question), recorded).decision

    def retrieve(self, question: Question) -> Retrieval:
        """Decide and fetch."""
        with span("AgenticRouter.retrieve", question.shown) as traced:
            retrieval = self._retrieve(self._route(question, self._spending(question)))
            if traced is not None:
                traced.finish(list(retrieval.nodes))
            return retrieval

    def limit_s(self, budget: Budget | None) -> float:
        """Return the seconds that a query may take."""
        deadline_s = self._config.deadline_s
        return deadline_s if budget is None or budget.max_ms is None else min(deadline_s, budget.max_ms / 1000)

    def _spending(self, question: Question) -> Spending:
        return Spending(question.budget, self.limit_s(question.budget), self._timer)

    @contextmanager
    def _query(self, question: Question, spending: Spending) -> Iterator[Span | None]:
        """Open the span of a query, and record what ends it early."""
        try:
            begins = partial(QueryStartEvent, query=question.query)
            with span("AgenticRouter.query", question.shown, begins) as traced:
                yield traced
        except Exception as err:  # whatever it is belongs in the history; it is raised again
            if self._log is not None:
                query_id, timings = self._new_id(), spending.timings_ms()
                self._log.record_answer(None, error=err, query=question.query, query_id=query_id, timings_ms=timings)
            raise

    def _hand_out(
        self, question: Question, spending: Spending, answer: Answer, traced: Span | None, *, cached: bool
    ) -> Answer:
        """Give an answer its number, and tell the history and whoever watches."""
        timings = spending.timings_ms() if cached else answer.timings_ms
        done = replace(answer, cached=cached, timings_ms=timings, query_id=self._new_id())
        if self._log is not None:
            # A cached answer cost nothing, whoever might have written it.
            asked = None if cached else self._client
            usd = None if asked is None else asked.costs(done.usage.tiers).cloud_only_usd
            self._log.record_answer(done, cloud_only_usd=usd)
        if traced is not None:
            response = as_response(done)
            traced.finish(response, QueryEndEvent(query=question.query, response=response))
        return done

    # -- Cached or computed

    def _caches(self, question: Question) -> bool:
        return self._selector.mode != "round_robin" or question.strategy is not None

    def _key(self, question: Question, spending: Spending) -> str:
        # The versions are part of the key, so changes are looked for first.
        self._resources.attached.catch_up(question.index, spending.remaining_s() / 2)
        return answer_key(self._resources, question, self._writers)

    def _compute(self, question: Question, spending: Spending) -> Answer:
        routed = self._route(question, spending)
        return kept_answer(self._write(routed, self._retrieve(routed)))

    # -- Routed

    def _route(self, question: Question, spending: Spending, recorded: RouteDecision | None = None) -> Routed:
        """Choose the index and the strategy."""
        with span("AgenticRouter.route", question.shown) as traced:
            names = self._known_indexes(question)
            degraded: list[Degradation] = []
            vector = self._embed(question, spending, degraded)
            with spending.step("routing"):
                degraded.extend(self._resources.attached.catch_up(question.index, spending.remaining_s() / 2))
                index, versions = self._choose_index(question, spending, names, vector, degraded, recorded)
                chosen = self._resources.index(index.name)
                complexity, score = assess_complexity(question.query)
                features = query_features(question.query, chosen.profile(), score, domain_terms=self._domain_terms)
                strategy, withheld = self._choose_strategy(question, spending, chosen, features, recorded)
            decision = RouteDecision(
                query=question.query,
                index=index,
                strategy=strategy,
                complexity=complexity,
                complexity_score=score,
                complexity_reasons=complexity_reasons(question.query),
                features=features,
                timings_ms=spending.timings_ms(),
                degraded=(*degraded, *index.degraded, *strategy.degraded),
                withheld=withheld,
                versions=versions,
            )
            if traced is not None:
                record = decision.to_dict()
                traced.finish(record, RouteDecisionEvent(decision=record))
            others = () if question.strategy else tuple(name for name in strategy.scores if name != strategy.name)
            order = tuple(Strategy(name) for name in (strategy.name, *others))
            return Routed(question, spending, decision, order, vector)

    def _known_indexes(self, question: Question) -> list[str]:
        names = self._resources.names()
        if question.index is not None and question.index not in names:
            raise UnknownIndexError(unknown_name("index", question.index, names))
        if not names:
            raise RoutingError(
                f"there is no index in {self._config.data_dir}; add one with add_index() "
                "or: agentic-retriever index add NAME PATH"
            )
        return names

    def _embed(self, question: Question, spending: Spending, degraded: list[Degradation]) -> Vector | None:
        """Embed the question once for routing and retrieval; without a vector both go on lexically."""
        with spending.step("embedding"):
            try:
                # Half of the time at most, so that a search by words can still follow.
                limit = spending.left_s("embedding the question") / 2
                return self._resources.embedding().embed_query(question.query, timeout_s=limit)
            except AgenticRetrieverError as err:
                if question.strategy is Strategy.VECTOR:
                    raise
                degraded.append(Degradation(step="embedding", reason=str(err), fallback="words only"))
                return None

    def _choose_index(
        self,
        question: Question,
        spending: Spending,
        names: Sequence[str],
        vector: Vector | None,
        degraded: list[Degradation],
        recorded: RouteDecision | None,
    ) -> tuple[Selection, dict[str, int]]:
        """Run stage one where there is a choice; return also the versions of the indexes that it saw."""
        only = question.index or (names[0] if len(names) == 1 else None)
        if only is not None:
            mode, why = ("pinned", "the caller named it") if question.index else ("only", "it is the only index")
            return _sure(only, mode, why), {only: self._resources.index(only).version}
        indexes, lost = self._resources.usable()
        degraded.extend(lost)
        versions = {index.name: index.version for index in indexes}
        if recorded is not None and _by_chance(recorded.index) and set(recorded.index.names) <= set(versions):
            return recorded.index, versions
        selection = self._classifier.classify(
            question.query,
            [index.profile() for index in indexes],
            query_vector=vector,
            allowance=spending.left("choosing the index"),
        )
        spending.add(selection.spent)
        return self._apply_on_abstain(selection, indexes), versions

    def _apply_on_abstain(self, selection: Selection, indexes: Sequence[Index]) -> Selection:
        """Apply the setting ``on_abstain`` to a question that seems to be about nothing in the indexes."""
        policy, default = self._config.on_abstain, self._config.default_index
        if not selection.abstained or policy in {"answer", "decline"}:
            return selection
        if policy == "raise":
            raise OutOfScopeError(
                f"the question seems to be about none of the {len(indexes)} indexes ({selection.reason}); "
                "ask something else, name an index, or set on_abstain to answer, all, default or decline"
            )
        if policy == "default":
            known = [index.name for index in indexes]
            if default not in known:
                raise UnknownIndexError(unknown_name("index in the setting default_index", default, known))
            reason = f"out of scope, so the default index; {selection.reason}"
            return replace(selection, name=default, names=(default,), reason=reason)
        filled = {index.name for index in indexes if index.count() > 0}
        names = tuple(name for name in selection.scores if name in filled or name == selection.name)
        return replace(selection, names=names, reason=f"out of scope, so all indexes; {selection.reason}")

    def _choose_strategy(
        self,
        question: Question,
        spending: Spending,
        index: Index,
        features: Mapping[str, float],
        recorded: RouteDecision | None,
    ) -> tuple[Selection, dict[str, str]]:
        """Run stage two where the caller named no strategy; return also what was not offered to it, and why."""
        if question.strategy is not None:
            check_served(question.strategy, index)
            return _sure(question.strategy.value, "pinned", "the caller named it"), {}
        measured, lost = self._resources.measured(index)
        offered, withheld = offer(index, measured, left_ms=spending.budget_ms())
        if not offered:
            raise NoEligibleStrategyError(f"index {index.name!r} serves no registered strategy")
        names = {card.strategy.value for card in offered}
        if recorded is not None and _by_chance(recorded.strategy) and recorded.strategy.name in names:
            return recorded.strategy, withheld
        selection = self._selector.select(
            question.query, offered, features=features, allowance=spending.left("choosing the strategy")
        )
        spending.add(selection.spent)
        return replace(selection, degraded=(*lost, *selection.degraded)), withheld

    # -- Retrieved

    def _retrieve(self, routed: Routed) -> Retrieval:
        """Run the chosen strategy, and the next one when it fails or finds nothing near; refine the best find."""
        question, decision = routed.question, routed.decision
        finds: list[_Find] = []
        failures: dict[str, BaseException] = {}
        begins = partial(RetrievalStartEvent, str_or_query_bundle=question.query)
        with span("AgenticRouter.search", question.shown, begins) as traced:
            for strategy in () if self._declines(decision) else routed.order:
                try:
                    finds.append(self._attempt(routed, strategy))
                except (DeadlineExceededError, InvalidQueryError):
                    if not finds:
                        raise
                    break
                except Exception as err:  # strategies may be foreign code; what failed is told, and the next one tried
                    logger.debug("strategy %s failed", strategy.value, exc_info=err)
                    failures[strategy.value] = err
                    continue
                if not self._worth_another(finds, routed.spending):
                    break
            if failures and not finds:
                raise _all_failed(decision.index.name, failures)
            retrieval = self._refined(routed, finds, failures)
            if traced is not None:
                nodes = list(retrieval.nodes)
                traced.finish(nodes, RetrievalEndEvent(str_or_query_bundle=question.query, nodes=nodes))
            return retrieval

    def _declines(self, decision: RouteDecision) -> bool:
        return decision.index.abstained and self._config.on_abstain == "decline"

    def _attempt(self, routed: Routed, strategy: Strategy) -> _Find:
        """Search all chosen indexes side by side; one that fails is left out as long as another answers."""
        spending, chosen = routed.spending, routed.decision.index
        top_k = self._refining.candidates(self._kept(routed))
        searches = {name: partial(self._search, routed, strategy, name, top_k) for name in chosen.names}
        before = spending.elapsed_ms()
        with spending.step("retrieval"):
            errors: dict[str, AgenticRetrieverError] = {}
            if len(searches) == 1:
                results = {chosen.name: searches[chosen.name]()}
            else:
                left = partial(spending.left_s, "searching")
                results, errors = run_sides(self._resources.workers(), searches, timeout_s=left)
            if not results:
                raise errors[chosen.name]
            nodes, origin = merge_indexes(
                self._resources, results, chosen.scores, query_vector=routed.vector, top_k=top_k
            )
        lost = [
            Degradation(step=f"index.{name}", reason=_reason(err), fallback="the other indexes")
            for name, err in errors.items()
        ]
        index = self._resources.index(chosen.name)
        return _Find(
            strategy=strategy,
            nodes=nodes,
            origin=origin,
            confidence=relevance(nodes, index.search_profile() or index.profile()),
            degraded=(*lost, *(step for result in results.values() for step in result.degraded)),
            understood=tuple(dict.fromkeys(line for result in results.values() for line in result.understood)),
            ms=spending.elapsed_ms() - before,
        )

    def _search(self, routed: Routed, strategy: Strategy, name: str, top_k: int) -> SearchResult:
        """Search one index."""
        index = self._resources.index(name)
        # An index with a model of its own embeds the question itself.
        vector = routed.vector if self._resources.compares(index) else None
        left = routed.spending.left_s(f"searching index {name!r}")
        request = RetrievalRequest(
            query=routed.question.query,
            top_k=top_k,
            filters=routed.question.filters,
            query_vector=None if vector is None else tuple(vector.tolist()),
            timeout_s=left,
            model=self._metered(routed),
        )
        adapter = self._resources.adapter(index, strategy)
        # A thread costs more than a search, so only those that may overrun get one.
        ends = adapter.keeps_deadlines and not index.may_hang
        inputs = {"query": request.query, "index": name, "top_k": top_k}
        with span(f"{type(adapter).__name__}.search", lambda: inputs, instance=adapter) as traced:
            result = adapter.search(request) if ends else self._caller.call(partial(adapter.search, request), left)
            if traced is not None:
                traced.finish(list(result.nodes))
            return result

    def _metered(self, routed: Routed) -> MeteredModel | None:
        return None if self._client is None else MeteredModel(self._client, routed.spending)

    def _worth_another(self, finds: list[_Find], spending: Spending) -> bool:
        """Tell whether the next strategy should be tried: little found so far, and time enough."""
        if len(finds) > MAX_RETRIES or max(one.rank for one in finds) >= RETRY_BELOW:
            return False
        return spending.remaining_s() * 1000 > _TIME_FACTOR * finds[-1].ms

    # -- Refined

    def _refined(self, routed: Routed, finds: Sequence[_Find], failures: Mapping[str, BaseException]) -> Retrieval:
        """Put the record of the search around the best find; without any, nothing was searched."""
        best = max(finds, key=lambda one: one.rank, default=_Find(strategy=routed.order[0]))  # the first of equals
        nodes, lost = self._refine(routed, best) if finds else ((), ())
        routed.origin.update(best.origin)
        names = [strategy.value for strategy in routed.order]
        following = dict(zip(names, [*names[1:], "none"], strict=True))
        failed = (
            Degradation(step=f"retrieval.{name}", reason=_reason(err), fallback=following[name])
            for name, err in failures.items()
        )
        return Retrieval(
            nodes=tuple(nodes),
            strategy=best.strategy,
            indexes=routed.decision.index.names,
            route=routed.decision,
            degraded=(*routed.decision.degraded, *failed, *best.degraded, *lost),
            understood=best.understood,
            timings_ms=routed.spending.timings_ms(),
            tried=tuple(
                Tried(strategy=one.strategy, confidence=one.confidence, nodes=len(one.nodes), ms=one.ms)
                for one in finds
            ),
            usage=routed.spending.usage,
        )

    def _refine(self, routed: Routed, find: _Find) -> tuple[Sequence[NodeWithScore], tuple[Degradation, ...]]:
        """Boost, rerank, diversify, cut and expand, as the settings ask; ``find.origin`` learns of added nodes."""
        question, reranker = routed.question, self._config.reranker
        with span("AgenticRouter.refine", question.shown, partial(self._refine_begins, routed, find)) as traced:
            with routed.spending.step("rerank"):
                nodes, lost = self._postprocess(routed, find)
            for entry in nodes:
                hit = entry.node.metadata.get(EXPANDED_KEY)
                if hit in find.origin:
                    find.origin.setdefault(entry.node.node_id, find.origin[hit])
            if traced is not None:
                traced.finish(nodes, None if reranker == "none" else ReRankEndEvent(nodes=nodes))
            return nodes, lost

    def _refine_begins(self, routed: Routed, find: _Find) -> ReRankStartEvent | None:
        name, query = self._config.reranker, routed.question.query
        if name == "none":
            return None
        return ReRankStartEvent(query=query, nodes=list(find.nodes), top_n=self._kept(routed), model_name=name)

    def _postprocess(self, routed: Routed, find: _Find) -> tuple[list[NodeWithScore], tuple[Degradation, ...]]:
        question, spending = routed.question, routed.spending
        nodes, lost = self._refining.run(
            question.query,
            find.nodes,
            top_k=self._kept(routed),
            timeout_s=spending.left_s("refining what was found"),
            vectors=partial(self._vectors, find.origin),
            neighbours=self._neighbours(question, find.origin),
            model=self._metered(routed),
        )
        if not self._postprocessors:
            return nodes, lost
        # Half of the time at most, so that an answer can still follow.
        limit = spending.left_s("postprocessing what was found") / 2
        nodes, failed = self._postprocessors.run(question.query, nodes, filters=question.filters, timeout_s=limit)
        return nodes, (*lost, *failed)

    def _kept(self, routed: Routed) -> int:
        """Return how many nodes the answer gets; a number that the caller gave is never changed."""
        top_k = routed.question.top_k
        if routed.question.top_k_given:
            return top_k
        return self._refining.final_top_k(top_k, routed.decision.complexity_score)

    def _vectors(self, origin: Mapping[str, str], node_ids: Sequence[str]) -> Mapping[str, npt.ArrayLike]:
        found: dict[str, npt.ArrayLike] = {}
        for name in dict.fromkeys(origin[node_id] for node_id in node_ids if node_id in origin):
            mine = [node_id for node_id in node_ids if origin.get(node_id) == name]
            index = self._resources.index(name)
            if len(mine) == len(node_ids) or self._resources.compares(index):  # else they are of different models
                found.update(store_vectors(index)(mine))
        return found

    def _neighbours(self, question: Question, origin: Mapping[str, str]) -> Neighbours:
        readers: dict[str, Neighbours] = {}

        def read(node: BaseNode) -> Sequence[BaseNode]:
            name = origin[node.node_id]
            if name not in readers:
                index, width = self._resources.index(name), self._config.expand_neighbours
                readers[name] = section_neighbours(index, width=width, filters=question.filters)
            return readers[name](node)

        return read

    # -- Written

    def _write(self, routed: Routed, retrieval: Retrieval) -> Answer:
        """Answer; never raises for want of a model."""
        with _synthesis_span(retrieval) as traced:
            with routed.spending.step("synthesis"):
                write, doubt = self._writing(self._synthesizer.synthesize, routed, retrieval, self._limits(routed))
                done = write()
            return self._written(routed, retrieval, done, doubt, traced)

    def _write_stream(
        self, routed: Routed, retrieval: Retrieval, control: StreamControl
    ) -> Generator[str, None, Answer]:
        """Answer piece by piece, otherwise as :meth:`_write`."""
        with _synthesis_span(retrieval) as traced:
            with routed.spending.step("synthesis"):
                limits = replace(self._limits(routed), control=control)
                write, doubt = self._writing(self._synthesizer.stream, routed, retrieval, limits)
                done = yield from write()
            return self._written(routed, retrieval, done, doubt, traced)

    def _writing(
        self, write: Callable[..., T], routed: Routed, retrieval: Retrieval, limits: Limits
    ) -> tuple[Callable[[], T], str]:
        """Return the call that writes an answer, and why it gets nothing to read, or ``""``."""
        decision, index = retrieval.route, self._resources.index(retrieval.indexes[0])
        profile = index.profile()
        doubt = self._why_not_read(routed, retrieval, profile)
        call = partial(
            write,
            decision.query,
            () if doubt else retrieval.nodes,
            complexity=decision.complexity,
            language=detect_language(decision.query),
            evidence=Evidence(
                relevance=relevance(retrieval.nodes, index.search_profile() or profile),
                query_vector=routed.vector,
                unknown_share=_unknown_words(decision.query, profile),
            ),
            limits=limits,
            index_of=routed.origin,
        )
        return call, doubt

    def _why_not_read(self, routed: Routed, retrieval: Retrieval, profile: IndexProfile) -> str:
        if not retrieval.nodes:
            return ""
        texts = [embedded_text(found.node) for found in retrieval.nodes[:MAX_JUDGED]]
        support = support_of(routed.question.query, profile, texts, query_vector=routed.vector)
        return why_not_read(support.probability)

    def _limits(self, routed: Routed) -> Limits:
        left = routed.spending.left("writing the answer")
        timeout_s = left.timeout_s
        return Limits(
            max_chars=self._config.llm_context_chars,
            budget=left,
            force_cloud=routed.question.force_cloud,
            timeout_s=None if timeout_s is None else timeout_s - min(_RESERVE_S, _RESERVE_SHARE * timeout_s),
        )

    def _written(
        self, routed: Routed, retrieval: Retrieval, done: Synthesis, doubt: str, traced: Span | None
    ) -> Answer:
        """Put the record of the query around what was written."""
        spending = routed.spending
        spending.add_ms("llm", done.llm_ms)
        degraded = (*retrieval.degraded, *done.degraded)
        if routed.question.force_cloud and done.tier is not Tier.CLOUD:
            reason = "no cloud model answered; see the attempts, or set llm_cloud to openrouter:MODEL if there is none"
            degraded = (*degraded, Degradation(step="synthesis.cloud", reason=reason, fallback=done.tier.value))
        answer = Answer(
            text=done.text,
            citations=done.citations,
            confidence=done.confidence,
            route=retrieval.route,
            nodes=retrieval.nodes,
            usage=Usage.of((*retrieval.usage.tiers, *done.usage.tiers)),
            timings_ms={"embedding": 0.0, "rerank": 0.0, **spending.timings_ms()},
            tier=done.tier,
            cached=False,
            degraded=degraded,
            query_id="",
            understood=(*retrieval.understood, doubt) if doubt else retrieval.understood,
            tried=retrieval.tried,
            checks=done.checks,
            attempts=done.attempts,
            nodes_left_out=done.nodes_left_out,
        )
        if traced is not None:
            response = as_response(answer)
            traced.finish(response, SynthesizeEndEvent(query=answer.route.query, response=response))
        return answer


def answer_key(resources: Resources, question: Question, writers: str) -> str:
    """Return the cache key of a question: all that its answer depends on."""
    budget = question.budget
    concerned = resources.usable()[0] if question.index is None else [resources.index(question.index)]
    return cache_key(
        query=normalise_query(question.query),
        index=question.index,
        strategy=question.strategy.value if question.strategy else None,
        filters=normalise(question.filters),
        top_k=[question.top_k, question.top_k_given],
        # With the time of creation, as an index that is removed and made again counts its versions from the start.
        versions={index.name: [index.created, index.version, *resources.training.stamp(index)] for index in concerned},
        embedding=resources.embedding().name,
        llm=writers,
        prompts=VERSION,
        config=resources.config_key,
        budget=None if budget is None else [budget.max_llm_calls, budget.max_usd],
        force_cloud=question.force_cloud,
    )


def offer(
    index: Index, measured: MeasuredStrategies | None, *, left_ms: float | None
) -> tuple[tuple[StrategyCard, ...], dict[str, str]]:
    """List the strategies that stage two may choose from, and why it may not choose the others.

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


def _sure(name: str, mode: str, reason: str) -> Selection:
    return Selection(name=name, confidence=1.0, scores={name: 1.0}, margin=1.0, reason=reason, mode=mode)


def _by_chance(selection: Selection) -> bool:
    """Tell whether a choice would come out otherwise next time although nothing changed."""
    return selection.escalated or selection.mode in {"llm", "round_robin"}


def _unknown_words(query: str, profile: IndexProfile) -> float | None:
    """Return the share of a question's words that an index lacks, in [0, 1]."""
    if not profile.whole or len(profile.document_frequency) >= MAX_TERMS:
        return None
    return unknown_share(query, profile.document_frequency, language=profile.language)


def _all_failed(index: str, causes: Mapping[str, BaseException]) -> RetrievalError:
    listed = "; ".join(f"{name}: {_reason(err)}" for name, err in causes.items())
    error = RetrievalError(f"every strategy failed on index {index!r} ({listed})", dict(causes))
    error.__cause__ = next(iter(causes.values()), None)
    return error


def _reason(err: BaseException) -> str:
    """Say what happened in one line; the text of a foreign error may hold anything, so only its type is told."""
    return str(err) if isinstance(err, AgenticRetrieverError) else type(err).__name__


@contextmanager
def _synthesis_span(retrieval: Retrieval) -> Iterator[Span | None]:
    query = retrieval.route.query

    def inputs() -> dict[str, object]:
        return {"query": query, "nodes": [scored.node.node_id for scored in retrieval.nodes]}

    with span("AgenticRouter.synthesize", inputs, partial(SynthesizeStartEvent, query=query)) as traced:
        yield traced

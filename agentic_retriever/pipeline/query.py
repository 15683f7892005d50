"""A question's way, step by step: answered, from the cache or computed; routed, retrieved, refined, written."""

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from typing import Any, Final, NamedTuple, TypedDict

import numpy.typing as npt
from llama_index.core.instrumentation.events.query import QueryEndEvent, QueryStartEvent
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent, SynthesizeStartEvent
from llama_index.core.schema import NodeWithScore
from llama_index.core.vector_stores.types import MetadataFilters

from agentic_retriever import errors, retrievers, routing, schema
from agentic_retriever.cache import SingleFlightCache, cache_key
from agentic_retriever.catalog.history import QueryLog
from agentic_retriever.embeddings.model import Vector, embedding_time_s
from agentic_retriever.filters import check_filters, normalise
from agentic_retriever.indices import Index
from agentic_retriever.indices.profile import MeasuredStrategies
from agentic_retriever.llm import result_of
from agentic_retriever.llm.prompts import VERSION
from agentic_retriever.pipeline.answers import as_response, worth_keeping
from agentic_retriever.pipeline.conversations import Conversations, checked_turns, meaning, nearness
from agentic_retriever.pipeline.cosines import merge_indexes, node_cosine, relevance
from agentic_retriever.pipeline.spending import MeteredModel, Spending
from agentic_retriever.resources import Resources, left_out, measured, training_stamp
from agentic_retriever.retrievers import base, refining
from agentic_retriever.synthesis import Evidence, Limits, StreamControl, Synthesis, Synthesizer, Task
from agentic_retriever.text import detect_language, normalise_query
from agentic_retriever.threads import DeadlineCaller, Workers, usable_cores
from agentic_retriever.tracing import RouteDecisionEvent, Span, span
from agentic_retriever.understanding.follow_ups import leans
from agentic_retriever.understanding.references import asked_parts
from agentic_retriever.understanding.understanding import Understood, understand

logger = logging.getLogger(__name__)

MAX_RETRIES: Final = 2  # further strategies that are tried where a search found nothing that was asked for
MAX_READ: Final = 200  # characters of a question that strategies read for the choice; longer ones tell a story
_TIME_FACTOR: Final = 2.0  # and only when the time left is that many times what the last one took

# What the second index needs to be searched and to answer where the first has no answer: chosen on 20 indexes.
_SECOND_FROM: Final = 0.2  # probability that the question is about it
_SURE: Final = 0.75  # confidence in what it says
MAX_VAGUE: Final = 0.5  # confidence in the answer to a question without a subject

_MISSING: Final = {
    schema.View.KEYWORD: "the index has no words yet; build them with: agentic-retriever index build NAME",
    schema.View.METADATA: "the index has no values yet; build them with: agentic-retriever index build NAME",
    schema.View.SUMMARY: "the index has no summaries; build them with: agentic-retriever index build NAME",
    schema.View.HIERARCHY: "the index has no leaves; build them with: agentic-retriever index build NAME",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question with what its caller fixed; what is ``None`` is decided here."""

    query: str
    top_k: int | None = None
    index: str | tuple[str, ...] | None = None  # several: one or more of these is chosen
    strategy: schema.Strategy | None = None
    filters: MetadataFilters | None = None
    budget: schema.Budget | None = None
    force_cloud: bool = False
    asked: str = ""  # as it was typed, where ``query`` is what that meant in a conversation
    turns: tuple[schema.Turn, ...] = ()  # what was said before it, instead of what is remembered
    conversation_id: str = ""
    user_id: str = ""

    @property
    def asker(self) -> dict[str, str]:
        """Return what the history keeps of who asked."""
        return {"user_id": self.user_id, "conversation_id": self.conversation_id}

    def shown(self) -> dict[str, object]:
        """Return what handlers of spans see of it."""
        pins = {"index": self.index, "strategy": self.strategy and self.strategy.value, "top_k": self.top_k}
        return {"query": self.query, **{name: value for name, value in pins.items() if value is not None}}


class Pins(TypedDict, total=False):
    """What a question is asked with besides its text; what is ``None`` or missing the router decides."""

    index: str | Sequence[str] | None
    strategy: str | schema.Strategy | None
    filters: MetadataFilters | None
    top_k: int | None
    budget: schema.Budget | None
    turns: Sequence[schema.Turn]
    conversation_id: str
    user_id: str


def checked_pins(pins: Pins) -> dict[str, Any]:
    """Return the pins with the strategy itself for its name; an error names what cannot be used."""
    check_filters(pins.get("filters"))
    strategy, top_k = pins.get("strategy"), pins.get("top_k")
    if top_k is not None:
        schema.check_top_k(top_k)
    strategy = None if strategy is None else retrievers.spec_of(strategy).strategy
    turns = checked_turns(pins.get("turns", ()), pins.get("conversation_id", ""), pins.get("user_id", ""))
    return {**pins, "index": checked_index(pins.get("index")), "strategy": strategy, "turns": turns}


def checked_index(given: object) -> str | tuple[str, ...] | None:
    """Return a pinned index, or several in order of their names; one that is listed alone is as if it were named."""
    if given is None or isinstance(given, str):
        return given
    names = sorted(set(given)) if isinstance(given, (list, tuple)) and all(isinstance(n, str) for n in given) else []
    if not names:
        raise errors.InvalidQueryError(
            f"index must be the name of an index or a list of at least one name, got {str(given)[:40]!r}"
        )
    return names[0] if len(names) == 1 else tuple(names)


def pinned_names(index: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    return (index,) if isinstance(index, str) else index


@dataclass(slots=True, kw_only=True)
class _Run:
    """One question under way: each step reads what those before it left here."""

    question: Question
    spending: Spending
    recorded: schema.RouteDecision | None = None  # a decision to follow where chance or a model made it
    vague: bool | None = None  # whether it has no subject, not even in its conversation; unknown before it was read
    degraded: list[schema.Degradation] = field(default_factory=list)  # while routing
    vector: Vector | None = None
    forms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # terms of the question with their other forms
    lifting: tuple[str, ...] = ()  # words that lift passages
    decision: schema.RouteDecision = field(init=False, repr=False)  # there only once it was routed
    read: dict[str, Understood] = field(default_factory=dict)  # the conditions that it states, by index
    order: tuple[schema.Strategy, ...] = ()  # the strategies to try
    origin: Mapping[str, str] = field(default_factory=dict)  # index of each node by its id, after retrieval
    settled: tuple[str, ...] = ()  # the words of the question that conditions said

    @property
    def other_forms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(self.forms.values())))

    @property
    def understood(self) -> tuple[str, ...]:
        """What the terms of the field made of the question, in words."""
        expanded = (f"{term} = {', '.join(others)}" for term, others in self.forms.items() if others)
        return (*expanded, *([f"lifted by: {', '.join(self.lifting)}"] if self.lifting else ()))


class _Reading(NamedTuple):
    run: _Run
    retrieval: schema.Retrieval
    task: Task


@dataclass(frozen=True, slots=True)
class _Find:
    """What one strategy found, and the index of each node by its id."""

    tried: schema.Tried
    result: retrievers.SearchResult = field(default_factory=retrievers.SearchResult)
    origin: dict[str, str] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """What a choice among several searches goes by, which no strategy can raise: not how near something is."""
        if not self.result.nodes:
            return 0
        return 1 if self.tried.strategy is schema.Strategy.METADATA and not self.result.understood else 2


@dataclass(kw_only=True, eq=False, repr=False)
class Pipeline:
    """Takes questions through the steps, in the order in which they stand here; safe to use from many threads."""

    resources: Resources
    classifier: routing.IndexClassifier
    selector: routing.StrategySelector
    synthesizer: Synthesizer
    postprocessors: refining.NodePostprocessors
    cache: SingleFlightCache[schema.Answer]
    log: QueryLog | None
    writers: str  # what answers depend on besides settings and indexes
    timer: Callable[[], float]
    new_id: Callable[[], str]

    def __post_init__(self) -> None:
        self._config = config = self.resources.config
        self._domain_terms = routing.DomainTerms.parse(config.domain_terms)
        self._refining = refining.Refining(config, self.resources.model)
        self._caller = DeadlineCaller("retrieval", max_calls=4 * config.workers)
        self._turns = threading.Semaphore(usable_cores())
        self.conversations = Conversations(self.timer, self.log)

    # -- Answered, or only routed, or only retrieved

    def answer(self, question: Question) -> schema.Answer:
        """Answer a question, or return its answer from the cache."""
        run = self._begin(question)
        with self._query(run) as traced:
            if not self._caches(question):
                return self._hand_out(run, self._compute(run), traced, cached=False)
            key, compute = self._key(run), partial(self._compute, run)
            waiting_s = run.spending.waiting_s()
            answer, cached = self.cache.get_or_compute(key, compute, keep=worth_keeping, timeout_s=waiting_s)
            return self._hand_out(run, answer, traced, cached=cached)

    async def aanswer(self, question: Question, workers: Workers) -> schema.Answer:
        """Do as :meth:`answer`; whoever waits for an answer that is being made holds no thread."""
        run = self._begin(question)
        with self._query(run) as traced:
            if not self._caches(question):
                try:
                    answer = await workers.run(self._compute, run)
                except asyncio.CancelledError:
                    run.spending.stop()
                    raise
                return self._hand_out(run, answer, traced, cached=False)
            answer, cached = await self.cache.aget_or_compute(
                await workers.run(self._key, run),
                partial(self._compute, run),
                submit=workers.submit,
                keep=worth_keeping,
                timeout_s=run.spending.waiting_s(),
                unwanted=run.spending.stop,
            )
            return self._hand_out(run, answer, traced, cached=cached)

    def stream(self, question: Question, control: StreamControl) -> Generator[str, None, schema.Answer]:
        """Do as :meth:`answer`, piece by piece, to be run in a context of its own; a cached answer is one piece."""
        run = self._begin(question)
        with self._query(run) as traced:
            with self._turn(run):
                key, epoch = self._key(run), self.cache.epoch
                cached = self.cache.peek(key) if self._caches(question) else None
                if cached is None:
                    self._route(run)
                    reading = self._second(self._read(run, self._retrieve(run), control))
            if cached is not None:
                control.found(cached.nodes, cached.route)
                yield cached.text
                return self._hand_out(run, cached, traced, cached=True)
            # Copies, as the caller has them while the answer is still written from these.
            control.found(base.copied_nodes(reading.retrieval.nodes), reading.retrieval.route)
            answer = yield from self._write(reading, in_pieces=True)
            if self._caches(question) and worth_keeping(answer):
                self.cache.put(key, answer, epoch=epoch)
            return self._hand_out(run, answer, traced, cached=False)

    def route(self, question: Question, *, recorded: schema.RouteDecision | None = None) -> schema.RouteDecision:
        """Decide; with ``recorded``, as then where chance or a model decided."""
        return self._route(self._begin(question, recorded))

    def retrieve(self, question: Question) -> schema.Retrieval:
        """Decide and fetch."""
        with span("AgenticRouter.retrieve", question.shown) as traced:
            run = self._begin(question)
            run.spending.extract_s = 0.0  # nothing is extracted
            with self._turn(run):
                self._route(run)
                retrieval = self._retrieve(run)
            if traced is not None:
                traced.finish(list(retrieval.nodes))
            return retrieval

    def limit_s(self, budget: schema.Budget | None) -> float:
        """Return the seconds that a query may take."""
        deadline_s = self._config.deadline_s
        return deadline_s if budget is None or budget.max_ms is None else min(deadline_s, budget.max_ms / 1000)

    def _begin(self, question: Question, recorded: schema.RouteDecision | None = None) -> _Run:
        self.resources.check_open()
        spending = Spending(question.budget, self.limit_s(question.budget), self.timer)
        return _Run(question=question, spending=spending, recorded=recorded)

    def _understand(self, run: _Run) -> None:
        """Write a follow-up out, once; from then on the question is what it means."""
        if run.vague is not None:
            return
        asked, spending = run.question, run.spending
        if not asked.asked:
            known = asked.turns or self.conversations.turns(**asked.asker)
            kept, near = partial(self.conversations.kept, **asked.asker), nearness(self.resources.embedding, spending)
            with spending.step("routing"):
                meant = meaning(asked.query, known, kept=kept, model=self._metered(run), spending=spending, near=near)
            run.degraded += meant.degraded
            if meant.query != asked.query:
                run.question = replace(asked, query=meant.query, asked=asked.query)
        run.vague = not run.question.asked and leans(run.question.query, "")
        terms, query = self._domain_terms, run.question.query
        run.forms, run.lifting = terms.expanded(query), terms.lifting(query)

    @contextmanager
    def _query(self, run: _Run) -> Iterator[Span | None]:
        """Open the span of a query, and record what ends it early."""
        query = run.question.query
        try:
            with span("AgenticRouter.query", run.question.shown, partial(QueryStartEvent, query=query)) as traced:
                yield traced
        except Exception as err:  # whatever it is belongs in the history; it is raised again
            if self.log is not None:
                query_id, timings = self.new_id(), run.spending.timings_ms()
                known: dict[str, Any] = {"query_id": query_id, "timings_ms": timings, "asker": run.question.asker}
                self.log.record_answer(None, error=err, query=query, **known)
            raise

    def _hand_out(self, run: _Run, answer: schema.Answer, traced: Span | None, *, cached: bool) -> schema.Answer:
        """Give an answer its number, and tell the history and whoever watches."""
        timings = run.spending.timings_ms() if cached else answer.timings_ms
        question, route = run.question, answer.route
        if question.asked or route.understood_as:  # a cached answer may have been asked for in other words
            meant = question.query if question.asked else ""
            route = replace(route, query=question.asked or question.query, understood_as=meant)
        done = replace(answer, cached=cached, timings_ms=timings, query_id=self.new_id(), route=route)
        if question.conversation_id:
            said = schema.Turn(query=route.query, answer=done.text, understood_as=question.query)
            self.conversations.add(said, **question.asker)
        if self.log is not None:
            # A cached answer cost nothing, whoever might have written it.
            asked = None if cached else self.resources.model
            usd = None if asked is None else asked.costs(done.usage.tiers).cloud_only_usd
            self.log.record_answer(done, cloud_only_usd=usd, asker=run.question.asker)
        if traced is not None:
            response = as_response(done)
            traced.finish(response, QueryEndEvent(query=run.question.query, response=response))
        return done

    # -- Cached or computed

    def _caches(self, question: Question) -> bool:
        return self.selector.mode != "round_robin" or question.strategy is not None

    def _key(self, run: _Run) -> str:
        """Return the cache key of a question: all that its answer depends on."""
        if run.question.turns or run.question.conversation_id:  # elsewhere it means what it says
            self._understand(run)
        question, resources = run.question, self.resources
        resources.storage.indexes.read_anew()
        budget = question.budget
        # The versions are part of the key, so changes are looked for first.
        pinned = pinned_names(question.index)
        resources.attached.catch_up(pinned, run.spending.remaining_s() / 2)
        concerned = resources.usable()[0] if pinned is None else [resources.index(name) for name in pinned]
        return cache_key(
            query=normalise_query(question.query),
            index=question.index,
            strategy=question.strategy.value if question.strategy else None,
            filters=normalise(question.filters),
            top_k=question.top_k,
            # With the time of creation, as an index that is removed and made again counts its versions from the start.
            versions={one.name: [one.created, one.version, *training_stamp(one)] for one in concerned},
            embedding=resources.embedding().name,
            llm=self.writers,
            prompts=VERSION,
            config=resources.config_key,
            terms=repr(self._domain_terms),  # which may have been read from a file
            budget=None if budget is None else [budget.max_llm_calls, budget.max_usd],
            force_cloud=question.force_cloud,
        )

    def _compute(self, run: _Run) -> schema.Answer:
        with self._turn(run):
            self._route(run)
            reading = self._second(self._read(run, self._retrieve(run)))
        return result_of(self._write(reading))

    @contextmanager
    def _turn(self, run: _Run) -> Iterator[None]:
        """Let few queries compute at a time, for the event loop's sake; wait for that a tenth of the time at most."""
        held = self._turns.acquire(timeout=run.spending.remaining_s() / 10)
        try:
            yield
        finally:
            if held:
                self._turns.release()

    # -- Routed

    def _route(self, run: _Run) -> schema.RouteDecision:
        self._understand(run)
        question, spending = run.question, run.spending
        with span("AgenticRouter.route", question.shown) as traced:
            self.resources.storage.indexes.read_anew()
            only = self._only_index(question)
            run.vector = self._embed(run)
            with spending.step("routing"):
                pinned = pinned_names(question.index)
                run.degraded += self.resources.attached.catch_up(pinned, spending.remaining_s() / 2)
                chosen = self._choose_index(run, only)
            decision = self._decide(run, *chosen)
            if traced is not None:
                record = decision.to_dict()
                traced.finish(record, RouteDecisionEvent(decision=record))
            return decision

    def _decide(self, run: _Run, index: schema.Selection, versions: Mapping[str, int]) -> schema.RouteDecision:
        """Choose the strategy for an index, which makes the decision."""
        question, spending = run.question, run.spending
        with spending.step("routing"):
            chosen = self.resources.index(index.name)
            complexity, score = routing.assess_complexity(question.query)
            features = self._features(run, chosen, score) if question.strategy is None else {}
            strategy, withheld = self._choose_strategy(run, chosen, features)
        run.order = tuple(map(schema.Strategy, dict.fromkeys((strategy.name, *strategy.scores))))
        run.decision = schema.RouteDecision(
            query=question.asked or question.query,
            understood_as=question.query if question.asked else "",
            index=index,
            strategy=strategy,
            complexity=complexity,
            complexity_score=score,
            complexity_reasons=routing.complexity_reasons(question.query),
            features=features,
            timings_ms=spending.timings_ms(),
            degraded=(*run.degraded, *index.degraded, *strategy.degraded),
            withheld=withheld,
            versions=versions,
            among=() if isinstance(question.index, str) else question.index or (),
        )
        return run.decision

    def _features(self, run: _Run, index: Index, score: float) -> Mapping[str, float]:
        """Return the signals; what strategies read counts, too: the question's parts, conditions, the title it is."""
        query, profile = run.question.query, index.profile()
        features = routing.query_features(query, profile, score, domain_terms=self._domain_terms)
        if len(query) > MAX_READ:
            return {**features, "several_questions": 0.0, "comparison": 0.0}
        read = {"several_questions": 1.0} if retrievers.split_question(query, by_names=False) else {}
        read |= {} if run.vector is None else routing.read_form(query, run.vector, self.resources.embedding().name)
        read |= {"titled": 1.0} if index.has_prefilter and base.asks_for_part(index, query) else {}
        if index.has_prefilter:
            with suppress(errors.StoreError):  # before the values are built, the strategy is not offered
                if (known := index.fields()).fields:
                    found = run.read[index.name] = understand(query, known)
                    stated, rest = retrievers.stated(query, found), found.unread(query)
                    read |= {"metadata_values": stated}
                    if not asked_parts(rest):  # "5.13" may be a value
                        read |= {"numbered": 0.0}
                    if stated >= retrievers.CLEAR and base.asks_for_part(
                        index, rest
                    ):  # "TITLE, VALUE": not the title alone
                        read |= {"titled": 0.0}
        return {**features, **read}

    def _only_index(self, question: Question) -> str | None:
        """Return the index that needs no choice: the only one that the caller named, or that there is."""
        names = self.resources.names()
        for name in pinned_names(question.index) or ():
            if name not in names:
                raise errors.UnknownIndexError(errors.unknown_name("index", name, names))
        if not names:
            raise errors.RoutingError(
                f"there is no index in {self._config.data_dir}; add one with add_index() "
                "or: agentic-retriever index add NAME PATH"
            )
        return question.index if isinstance(question.index, str) else names[0] if len(names) == 1 else None

    def _embed(self, run: _Run) -> Vector | None:
        """Embed the question once for routing and retrieval; without a vector both go on lexically."""
        with run.spending.step("embedding"):
            try:
                model = self.resources.embedding()
                limit = embedding_time_s(run.spending.left_s("embedding the question"), model)
                return model.embed_query(base.expanded_text(run.question.query, run.other_forms), timeout_s=limit)
            except errors.AgenticRetrieverError as err:
                run.degraded.append(schema.Degradation(step="embedding", reason=str(err), fallback="words only"))
                return None

    def _choose_index(self, run: _Run, only: str | None) -> tuple[schema.Selection, dict[str, int]]:
        """Run stage one where there is a choice; return also the versions of the indexes that it saw."""
        if only is not None:
            mode, why = ("pinned", "the caller named it") if run.question.index else ("only", "it is the only index")
            return _sure(only, mode, why), {only: self.resources.index(only).version}
        indexes, lost = self.resources.usable(pinned_names(run.question.index))
        run.degraded += lost
        versions = {index.name: index.version for index in indexes}
        then = run.recorded.index if run.recorded else None
        if then is not None and _by_chance(then) and set(then.names) <= set(versions):
            return then, versions
        selection = self.classifier.classify(
            run.question.query,
            [index.profile() for index in indexes],
            query_vector=run.vector,
            allowance=run.spending.choosing("choosing the index"),
        )
        run.spending.add(selection.spent)
        return self._apply_on_abstain(selection, indexes), versions

    def _apply_on_abstain(self, selection: schema.Selection, indexes: Sequence[Index]) -> schema.Selection:
        """Apply the setting ``on_abstain`` to a question that seems to be about nothing in the indexes."""
        policy, _, default = self._config.on_abstain.partition(":")
        if not selection.abstained or policy == "answer":
            return selection
        if policy == "raise":
            raise errors.OutOfScopeError(
                f"the question seems to be about none of the {len(indexes)} indexes ({selection.reason}); "
                "ask something else, name an index, or set on_abstain to answer, all or default:NAME"
            )
        if policy == "default":
            known = [index.name for index in indexes]
            if default not in known:
                raise errors.UnknownIndexError(errors.unknown_name("index in the setting on_abstain", default, known))
            reason = f"out of scope, so the default index; {selection.reason}"
            return replace(selection, name=default, names=(default,), reason=reason)
        filled = {index.name for index in indexes if index.count() > 0}
        names = tuple(name for name in selection.scores if name in filled or name == selection.name)
        return replace(selection, names=names, reason=f"out of scope, so all indexes; {selection.reason}")

    def _choose_strategy(
        self, run: _Run, index: Index, features: Mapping[str, float]
    ) -> tuple[schema.Selection, dict[str, str]]:
        """Run stage two where the caller named no strategy; return also what was not offered to it, and why."""
        pinned, spending = run.question.strategy, run.spending
        if pinned is not None:
            retrievers.check_served(pinned, index)
            return _sure(pinned.value, "pinned", "the caller named it"), {}
        figures, lost = measured(index)
        # A caller's budget alone withholds strategies, never the deadline of the settings.
        left_ms = None if spending.budget.max_ms is None else 1000 * spending.left_s("choosing the strategy")
        offered, withheld = offer(index, figures, left_ms=left_ms)
        if not offered:
            raise errors.NoEligibleStrategyError(f"index {index.name!r} serves no registered strategy")
        then = run.recorded.strategy if run.recorded else None
        if then is not None and _by_chance(then) and then.name in {card.strategy.value for card in offered}:
            return then, withheld
        allowance = spending.choosing("choosing the strategy")
        selection = self.selector.select(run.question.query, offered, features=features, allowance=allowance)
        spending.add(selection.spent)
        return replace(selection, degraded=(*lost, *selection.degraded)) if lost else selection, withheld

    # -- Retrieved

    def _retrieve(self, run: _Run) -> schema.Retrieval:
        """Run the chosen strategy, and the next one when it fails or finds nothing asked for; refine the best find."""
        question, index = run.question, run.decision.index
        finds: list[_Find] = []
        failures: dict[str, BaseException] = {}
        begins = partial(RetrievalStartEvent, str_or_query_bundle=question.query)
        with span("AgenticRouter.search", question.shown, begins) as traced:
            for strategy in run.order:
                try:
                    finds.append(self._attempt(run, strategy))
                except (errors.DeadlineExceededError, errors.InvalidQueryError):
                    if not finds:
                        raise
                    break
                except Exception as err:  # strategies may be foreign code; what failed is told, and the next one tried
                    logger.debug("strategy %s failed", strategy.value, exc_info=err)
                    failures[strategy.value] = err
                    continue
                if index.abstained or not self._worth_another(finds, run.spending):
                    break
            if failures and not finds:
                listed = "; ".join(f"{name}: {_reason(err)}" for name, err in failures.items())
                message = f"every strategy failed on index {index.name!r} ({listed})"
                raise errors.RetrievalError(message, failures) from next(iter(failures.values()))
            retrieval = self._refined(run, finds, failures)
            if traced is not None:
                nodes = list(retrieval.nodes)
                traced.finish(nodes, RetrievalEndEvent(str_or_query_bundle=question.query, nodes=nodes))
            return retrieval

    def _attempt(self, run: _Run, strategy: schema.Strategy) -> _Find:
        """Search all chosen indexes side by side; one that fails is left out as long as another answers."""
        spending, chosen = run.spending, run.decision.index
        top_k = self._refining.candidates(self._kept(run), lifts=bool(run.lifting))
        searches = {name: partial(self._search, run, strategy, name, top_k) for name in chosen.names}
        before = spending.remaining_s()
        failed: dict[str, errors.AgenticRetrieverError] = {}
        with spending.step("retrieval"):
            if len(searches) == 1:
                results = {chosen.name: searches[chosen.name]()}
            else:
                left = partial(spending.search_s, "searching")
                results, failed = base.run_sides(self.resources.workers, searches, timeout_s=left)
            if not results:
                raise failed[chosen.name]
            nodes, origin = merge_indexes(self.resources, results, chosen.scores, query_vector=run.vector, top_k=top_k)
        result = retrievers.SearchResult(
            nodes,
            degraded=(*left_out(failed), *(step for result in results.values() for step in result.degraded)),
            understood=tuple(dict.fromkeys(line for result in results.values() for line in result.understood)),
            settled=next(iter(results.values())).settled if len(results) == 1 else (),
        )
        index = self.resources.index(chosen.name)
        profile = index.search_profile() or index.profile()
        ms = (before - spending.remaining_s()) * 1000
        tried = schema.Tried(strategy=strategy, confidence=relevance(nodes, profile), nodes=len(nodes), ms=ms)
        return _Find(tried, result, origin)

    def _search(self, run: _Run, strategy: schema.Strategy, name: str, top_k: int) -> retrievers.SearchResult:
        index = self.resources.index(name)
        # An index with a model of its own embeds the question itself.
        compares = self.resources.compares(index)
        vector = run.vector if compares else None
        left = run.spending.search_s(f"searching index {name!r}")
        request = retrievers.RetrievalRequest(
            query=run.question.query,
            top_k=top_k,
            filters=run.question.filters,
            query_vector=None if vector is None else tuple(vector.tolist()),
            timeout_s=left,
            model=self._metered(run),
            words_only=compares and vector is None,
            by_number=run.question.strategy is None,
            forms=run.other_forms,
            read=run.read.get(name),
        )
        adapter = self.resources.adapter(index, strategy)
        # A thread costs more than a search, so only those that may overrun get one.
        ends = adapter.keeps_deadlines and not index.may_hang
        inputs = {"query": request.query, "index": name, "top_k": top_k}
        with span(f"{type(adapter).__name__}.search", lambda: inputs, instance=adapter) as traced:
            result = adapter.search(request) if ends else self._caller.call(partial(adapter.search, request), left)
            if traced is not None:
                traced.finish(list(result.nodes))
            return result

    def _metered(self, run: _Run) -> MeteredModel | None:
        return None if self.resources.model is None else MeteredModel(self.resources.model, run.spending)

    def _worth_another(self, finds: list[_Find], spending: Spending) -> bool:
        """Tell whether the next strategy should be tried: nothing asked for found so far, and time enough."""
        if len(finds) > MAX_RETRIES or finds[-1].rank == 2:
            return False
        return spending.remaining_s() * 1000 > _TIME_FACTOR * finds[-1].tried.ms

    # -- Refined

    def _refined(self, run: _Run, finds: Sequence[_Find], failures: Mapping[str, BaseException]) -> schema.Retrieval:
        """Put the record of the search around the best find."""
        best = max(finds, key=lambda one: one.rank)  # the first of equals
        run.origin, run.settled = best.origin, best.result.settled
        nodes, lost = self._refine(run, best)
        names = [strategy.value for strategy in run.order]
        following = dict(zip(names, [*names[1:], "none"], strict=True))
        failed = (
            schema.Degradation(step=f"retrieval.{name}", reason=_reason(err), fallback=following[name])
            for name, err in failures.items()
        )
        return schema.Retrieval(
            nodes=tuple(nodes),
            strategy=best.tried.strategy,
            indexes=run.decision.index.names,
            route=run.decision,
            degraded=(*run.decision.degraded, *failed, *best.result.degraded, *lost),
            understood=(*run.understood, *best.result.understood),
            timings_ms=run.spending.timings_ms(),
            tried=tuple(one.tried for one in finds),
            usage=run.spending.usage,
        )

    def _refine(self, run: _Run, find: _Find) -> tuple[Sequence[NodeWithScore], tuple[schema.Degradation, ...]]:
        """Lift, rerank, diversify, cut and expand, as the settings ask; ``find.origin`` learns of added nodes."""
        question, spending, name, top_k = run.question, run.spending, self._config.reranker, self._kept(run)
        given = refining.lift(find.result.nodes, run.lifting)
        begins = partial(ReRankStartEvent, query=question.query, nodes=given, top_n=top_k, model_name=name)

        @cache
        def reader(index: str) -> refining.Neighbours:
            width = self._config.expand_neighbours
            return refining.section_neighbours(self.resources.index(index), width=width, filters=question.filters)

        with span("AgenticRouter.refine", question.shown, None if name == "none" else begins) as traced:
            with spending.step("rerank"):
                nodes, lost = self._refining.run(
                    question.query,
                    given,
                    top_k=top_k,
                    timeout_s=spending.search_s("refining what was found"),
                    vectors=partial(self._vectors, run),
                    neighbours=lambda node: reader(run.origin[node.node_id])(node),
                    model=self._metered(run),
                )
                if self.postprocessors:
                    limit = spending.search_s("postprocessing what was found") / 2
                    done = self.postprocessors.run(question.query, nodes, filters=question.filters, timeout_s=limit)
                    nodes, lost = done[0], (*lost, *done[1])
            for entry in nodes:
                hit = base.details(entry).get(refining.EXPANDED_KEY)
                if hit in find.origin:
                    find.origin.setdefault(entry.node.node_id, find.origin[hit])
            if traced is not None:
                traced.finish(nodes, None if name == "none" else ReRankEndEvent(nodes=nodes))
            return nodes, lost

    def _kept(self, run: _Run) -> int:
        """Return how many nodes the answer gets; a number that the caller gave is never changed."""
        if run.question.top_k is not None:
            return run.question.top_k
        return self._refining.final_top_k(self._config.top_k, run.decision.complexity_score)

    def _vectors(self, run: _Run, node_ids: Sequence[str]) -> Mapping[str, npt.ArrayLike]:
        found: dict[str, npt.ArrayLike] = {}
        for name in dict.fromkeys(run.origin[node_id] for node_id in node_ids if node_id in run.origin):
            mine = [node_id for node_id in node_ids if run.origin.get(node_id) == name]
            index = self.resources.index(name)
            if len(mine) == len(node_ids) or self.resources.compares(index):  # else they are of different models
                found.update(refining.store_vectors(index, mine))
        return found

    # -- Written

    def _read(self, run: _Run, retrieval: schema.Retrieval, control: StreamControl | None = None) -> _Reading:
        """Read what was found, and see whether it answers."""
        with run.spending.step("synthesis"):
            task = self.synthesizer.read(
                run.question.query,
                retrieval.nodes,
                complexity=run.decision.complexity,
                language=detect_language(run.question.query),
                evidence=self._evidence(run, retrieval, self.resources.index(retrieval.indexes[0])),
                limits=self._limits(run, control),
                index_of=run.origin,
            )
        return _Reading(run, retrieval, task)

    def _second(self, first: _Reading) -> _Reading:
        """Read the index that comes second where the first does not answer; what it says counts if that is sure."""
        run, chosen = first.run, first.run.decision.index
        share, name = max(((p, other) for other, p in chosen.scores.items() if other != chosen.name), default=(0.0, ""))
        is_late = run.spending.remaining_s() < self.limit_s(run.question.budget) / 2
        if not first.task.declined or share < _SECOND_FROM or is_late:
            return first
        again, reason = copy(run), f"{chosen.name} has no answer; {chosen.reason}"
        second = replace(chosen, name=name, names=(name,), confidence=share, margin=0.0, abstained=False, reason=reason)
        with suppress(errors.AgenticRetrieverError):  # where it cannot be asked, the first has the last word
            self._decide(again, second, run.decision.versions)
            reading = self._read(again, self._retrieve(again), first.task.limits.control)
            if not reading.task.declined and reading.task.extract_confidence.score >= _SURE:
                return reading
        return first

    def _write(self, reading: _Reading, *, in_pieces: bool = False) -> Generator[str, None, schema.Answer]:
        """Answer, piece by piece or at once; never raises for want of a model."""
        run, retrieval, task = reading
        query, nodes = run.question.query, [scored.node.node_id for scored in retrieval.nodes]
        begins = partial(SynthesizeStartEvent, query=query)
        with span("AgenticRouter.synthesize", lambda: {"query": query, "nodes": nodes}, begins) as traced:
            with run.spending.step("synthesis"):
                pieces = self.synthesizer.write(task, in_pieces=in_pieces)
                done = (yield from pieces) if in_pieces else result_of(pieces)
            answer = self._written(run, retrieval, done)
            if traced is not None:
                response = as_response(answer)
                traced.finish(response, SynthesizeEndEvent(query=query, response=response))
            return answer

    def _evidence(self, run: _Run, retrieval: schema.Retrieval, index: Index) -> Evidence:
        found = {node.node.node_id: node_cosine(node) for node in retrieval.nodes}
        scores = {node.node.node_id: retrievers.source_scores(node).get(base.BM25) for node in retrieval.nodes}
        looked_up = [node.node.node_id for node in retrieval.nodes if base.NUMBERED in retrievers.source_scores(node)]
        compares = run.vector is not None and self.resources.compares(index)
        return Evidence(
            query_vector=run.vector,
            profile=index.search_profile() or index.profile(),
            unrelated=self.resources.unrelated(run.question.query, run.spending.remaining_s()) if compares else None,
            cosines={node_id: cosine for node_id, cosine in found.items() if cosine is not None},
            by_words={node_id: score for node_id, score in scores.items() if score is not None},
            looked_up=frozenset(looked_up),
            settled=run.settled,
            expanded=tuple(run.forms),
        )

    def _limits(self, run: _Run, control: StreamControl | None) -> Limits:
        return Limits(
            max_chars=self._config.llm_context_chars,
            budget=run.spending.left("writing the answer"),
            force_cloud=run.question.force_cloud,
            timeout_s=run.spending.writing_s(),
            control=control,
        )

    def _written(self, run: _Run, retrieval: schema.Retrieval, done: Synthesis) -> schema.Answer:
        """Put the record of the query around what was written."""
        run.spending.add_ms("llm", done.llm_ms)
        degraded = (*retrieval.degraded, *done.degraded)
        if run.question.force_cloud and done.tier is not schema.Tier.CLOUD:
            reason = "no cloud model answered; see the attempts, or set llm_cloud to openrouter:MODEL if there is none"
            degraded = (*degraded, schema.Degradation(step="synthesis.cloud", reason=reason, fallback=done.tier.value))
        found = {one.node.node_id: one for one in retrieval.nodes}
        return schema.Answer(
            text=done.text,
            citations=tuple(_with_scores(one, found) for one in done.citations),
            confidence=done.confidence.at_most(MAX_VAGUE) if run.vague else done.confidence,
            route=retrieval.route,
            nodes=retrieval.nodes,
            usage=schema.Usage.of((*retrieval.usage.tiers, *done.usage.tiers)),
            timings_ms={"embedding": 0.0, "rerank": 0.0, **run.spending.timings_ms()},
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


def offer(
    index: Index, figures: MeasuredStrategies | None, *, left_ms: float | None
) -> tuple[tuple[schema.StrategyCard, ...], dict[str, str]]:
    """List the strategies that stage two may choose from, and why not the others; the fastest is always among them."""
    served = retrievers.cards(index, measured=figures)
    missing = {} if index.is_attached else _MISSING
    names = {card.strategy for card in served}
    withheld = {
        strategy.value: next((missing[view] for view in spec.needs if view in missing), "the index cannot serve it")
        for strategy, spec in retrievers.REGISTRY.items()
        if strategy not in names
    }
    left_ms = math.inf if left_ms is None else left_ms
    fastest = min(served, key=lambda card: card.typical_ms, default=None)
    slow = [card for card in served if card.typical_ms > left_ms and card is not fastest]
    for card in slow:
        withheld[card.strategy.value] = f"takes about {card.typical_ms:.0f} ms, the budget leaves {left_ms:.0f} ms"
    return tuple(card for card in served if card not in slow), withheld


def _sure(name: str, mode: str, reason: str) -> schema.Selection:
    return schema.Selection(name=name, confidence=1.0, scores={name: 1.0}, margin=1.0, reason=reason, mode=mode)


def _by_chance(selection: schema.Selection) -> bool:
    """Tell whether a choice would come out otherwise next time although nothing changed."""
    return selection.escalated or selection.mode in {"llm", "round_robin"}


def _reason(err: BaseException) -> str:
    """Say what happened in one line; the text of a foreign error may hold anything, so only its type is told."""
    return str(err) if isinstance(err, errors.AgenticRetrieverError) else type(err).__name__


def _with_scores(citation: schema.Citation, found: Mapping[str, NodeWithScore]) -> schema.Citation:
    node = found.get(citation.node_id)
    if node is None:  # what a caller's own synthesizer made
        return citation
    final = {} if node.score is None else {"final": node.score}
    return replace(citation, scores={**retrievers.source_scores(node), **final})

"""One query's way through the hops: cache, route, retrieve, answer."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentic_retriever.router.answer_values import copied_answer, kept_answer, worth_keeping
from agentic_retriever.router.answering import answer_key
from agentic_retriever.router.kept_nodes import kept
from agentic_retriever.router.spans import QUERY, RETRIEVE, traced, traced_stream, traced_task
from agentic_retriever.router.spending import Spending
from agentic_retriever.router.timing import QueryClock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from agentic_retriever.cache import SingleFlightCache
    from agentic_retriever.router.answering import AnswerStage
    from agentic_retriever.router.questions import Question
    from agentic_retriever.router.recording import Recorder
    from agentic_retriever.router.resources import Resources
    from agentic_retriever.router.retrieve_stage import RetrieveStage
    from agentic_retriever.router.route_stage import RouteStage
    from agentic_retriever.schema import Answer, Budget, Retrieval, RouteDecision
    from agentic_retriever.synthesis import StreamControl
    from agentic_retriever.threads import Workers

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
    """What every query uses besides the stages.

    Attributes:
        cache: The answer cache.
        recorder: The way into the history.
        llm: Names of the models that write answers, for the cache key.
        timer: Monotonic time in seconds.
        new_id: Makes query ids.
    """

    cache: SingleFlightCache[Answer]
    recorder: Recorder
    llm: str
    timer: Callable[[], float]
    new_id: Callable[[], str]


class Pipeline:
    """Takes questions through the stages; safe to use from many threads.

    Args:
        resources: Settings and indexes.
        stages: The hops.
        services: Cache, history, time and ids.
        repeatable: Whether the same question gets the same strategy; answers are cached only then.
    """

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

    @traced_task(QUERY)
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

    @traced_stream(QUERY)
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

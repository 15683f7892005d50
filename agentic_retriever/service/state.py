"""One running service: its router, keys, figures and threads, and the one way by which every handler asks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, Protocol

from fastapi import Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import Scope

from agentic_retriever.cache import read_questions
from agentic_retriever.catalog.address import Address
from agentic_retriever.catalog.database import Database
from agentic_retriever.errors import AgenticRetrieverError, ConfigError
from agentic_retriever.pipeline.answers import AsyncAnswerStream
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import Answer
from agentic_retriever.service.keys import KeyRing, KeyTable
from agentic_retriever.service.responses import AnswerWriter
from agentic_retriever.service.settings import ServiceSettings
from agentic_retriever.threads import Workers

logger = logging.getLogger(__name__)


_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _HasStatus(Protocol):
    status: int


class Metrics:
    """Counts what the service does."""

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self._timer = timer
        self.registry = CollectorRegistry()
        common: dict[str, Any] = {"registry": self.registry, "namespace": "agentic_retriever"}
        self._requests = Counter("http_requests", "Requests", ["method", "route", "status"], **common)
        self._times = Histogram("http_seconds", "Time of requests", ["route"], buckets=_SECONDS, **common)
        self._under_way = Gauge("http_under_way", "Requests under way", **common)
        self._queries = Counter("queries", "Questions", ["index", "strategy", "tier", "outcome"], **common)
        self._stages = Histogram("stage_seconds", "Time of a stage", ["stage"], buckets=_SECONDS, **common)
        self._tokens = Counter("tokens", "Tokens of models", ["tier", "model", "kind"], **common)
        self._usd = Counter("usd", "Money for models", ["tier", "model"], **common)
        self.state = Gauge("state", "Cache, queue and breakers now", ["part", "name"], **common)

    @contextmanager
    def request(self, scope: Scope, answer: _HasStatus) -> Iterator[None]:
        """Count a request and its time, by the route that took it: paths hold ids."""
        started = self._timer()
        self._under_way.inc()
        try:
            yield
        finally:
            self._under_way.dec()
            route = getattr(scope.get("route"), "path", None) or "none"
            self._requests.labels(scope["method"], route, str(answer.status)).inc()
            self._times.labels(route).observe(self._timer() - started)

    def answered(self, answer: Answer) -> None:
        """Count a question that was answered."""
        route = answer.route
        outcome = "cached" if answer.cached else answer.confidence.level.value
        self._queries.labels("+".join(route.index.names), route.strategy.name, answer.tier.value, outcome).inc()
        for stage, ms in answer.timings_ms.items():
            self._stages.labels(stage).observe(ms / 1000)
        for used in () if answer.cached else answer.usage.tiers:
            self._tokens.labels(used.tier.value, used.model, "prompt").inc(used.prompt_tokens)
            self._tokens.labels(used.tier.value, used.model, "completion").inc(used.completion_tokens)
            self._usd.labels(used.tier.value, used.model).inc(used.usd)

    def failed(self, error: BaseException) -> None:
        """Count a question that was not answered."""
        self._queries.labels("", "", "", type(error).__name__).inc()


class Service:
    """What handlers share; made by ``create_app``, found by :func:`service_of`."""

    def __init__(self, router: AgenticRouter, settings: ServiceSettings) -> None:
        self.router, self.settings = router, settings
        self.metrics = Metrics()
        self.workers = Workers(settings.threads, "agentic-service", at_once=True)
        self.run = self.workers.run  # calls what blocks
        self.database = Database(Address.from_config(router.config))
        self.keys = KeyRing(KeyTable(self.database), self.workers)
        self.keys.load()
        self.write = AnswerWriter().write
        self.ending = asyncio.Event()  # set when the service is to end: who watches lets go
        self._warming, problems = ((), ()) if settings.warm is None else read_questions(settings.warm)
        for problem in problems:
            logger.warning("%s", problem)
        self.is_warm = not self._warming
        if not settings.is_local and self.keys.is_empty:
            raise ConfigError(
                f"{settings.host} can be reached by others, so the service needs keys: make one with "
                "'agentic-retriever keys create NAME', or listen on 127.0.0.1"
            )

    @property
    def is_open(self) -> bool:
        """Whether everybody on this machine may do everything, as no key was ever made."""
        return self.settings.is_local and self.keys.is_empty

    async def warm_up(self) -> None:
        """Ask the questions that are to be answered from the cache, one after the other, until the service ends."""
        for question in self._warming:
            if self.ending.is_set():
                return
            with suppress(AgenticRetrieverError):  # who asks it will hear what is wrong
                await self.router.aquery(question)
        self.is_warm = True

    def close(self) -> None:
        """Let go of what is the service's own; the router is not."""
        self.workers.close(wait=False)
        self.database.close()

    async def ends_within(self, seconds: float) -> bool:
        """Wait so long, or until the service ends; tell whether it does."""
        try:
            await asyncio.wait_for(self.ending.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    async def query(self, query: str, **wanted: Any) -> Answer:  # noqa: ANN401 - those of AgenticRouter.aquery
        """Answer a question as ``router.aquery``, and count it."""
        try:
            answer = await self.router.aquery(query, **wanted)
        except Exception as err:
            self.metrics.failed(err)
            raise
        self.metrics.answered(answer)
        return answer

    @asynccontextmanager
    async def stream(self, query: str, **wanted: Any) -> AsyncIterator[AsyncAnswerStream]:  # noqa: ANN401 - likewise
        """Answer piece by piece as ``router.astream``, and count it; who leaves the block gives the answer up."""
        async with self.router.astream(query, **wanted) as pieces:
            try:
                yield pieces
            except Exception as err:
                self.metrics.failed(err)
                raise
            if pieces.answer is not None:
                self.metrics.answered(pieces.answer)


def service_of(request: Request) -> Service:
    """Return the service that a request came to, as a dependency."""
    found = request.app.state.service
    assert isinstance(found, Service)  # noqa: S101 - create_app puts it there
    return found

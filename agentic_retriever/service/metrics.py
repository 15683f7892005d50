"""Figures for Prometheus: of each service its own registry, so that several live in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from agentic_retriever.schema import Answer

if TYPE_CHECKING:
    from starlette.types import Scope

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _HasStatus(Protocol):
    status: int


class Metrics:
    """Counts what the service does."""

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self._timer = timer
        self.registry = registry = CollectorRegistry()
        common: dict[str, Any] = {"registry": registry, "namespace": "agentic_retriever"}
        self._requests = Counter("http_requests", "Requests", ["method", "route", "status"], **common)
        self._times = Histogram("http_seconds", "Time of requests", ["route"], buckets=_SECONDS, **common)
        self._under_way = Gauge("http_under_way", "Requests under way", **common)
        self._queries = Counter("queries", "Questions", ["index", "strategy", "tier", "outcome"], **common)
        self._stages = Histogram("stage_seconds", "Time of a stage", ["stage"], buckets=_SECONDS, **common)
        self._tokens = Counter("tokens", "Tokens of models", ["tier", "model", "kind"], **common)
        self._usd = Counter("usd", "Money for models", ["tier", "model"], **common)
        self._state = Gauge("state", "Cache, queue and breakers now", ["part", "name"], **common)

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

    def set_state(self, part: str, name: str, value: float) -> None:
        """Take down how something is now."""
        self._state.labels(part, name).set(value)

    def forget_state(self, part: str) -> None:
        """Forget how a part was."""
        self._state.remove_by_labels({"part": part})

    def text(self) -> bytes:
        """Return all figures in Prometheus' format."""
        return generate_latest(self.registry)

"""What the history keeps of one query."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentic_retriever.schema import Degradation, Tier, TierUsage, frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from agentic_retriever.schema import Answer, RouteDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One query as the history keeps it; made by :func:`entry_of`, read back by ``QueryLog.recent``.

    Attributes:
        query: The question, ``""`` where it is not kept. Not part of the ``repr``.
        query_id: The id of the answer, ``""`` when there was none.
        entry_id: Unique in the history; ``""`` until it is recorded.
        recorded_at: When it was recorded, in UTC; ``None`` until then.
        query_hash: What stands for the question where it is kept hashed, else ``""``.
        complexity: ``simple`` or ``complex``; ``""`` when the query failed before that was known. The same holds for
            the other names of the route.
        complexity_score: In [0, 1].
        index: The first choice of stage one.
        indexes: All that stage one chose.
        index_mode: How it chose.
        index_confidence: In [0, 1].
        strategy: The choice of stage two.
        strategy_mode: How it chose.
        strategy_confidence: In [0, 1].
        tier: Who wrote the answer; ``""`` when there was none.
        cached: Whether the answer came from the cache.
        timings_ms: Milliseconds by step, with ``total``.
        spent: What each model tier was asked; empty for a cached answer, which asked nobody.
        cloud_only_usd: What the query would have cost had every model call gone to the cloud; ``None`` when unknown.
        citations: How many there were.
        confidence: In [0, 1]; ``None`` when there was no answer.
        confidence_level: ``high``, ``needs_review`` or ``not_found``; ``""`` when there was no answer.
        degraded: What fell back, and why.
        error: The kind of the error that ended the query, such as ``"DeadlineExceededError"``; ``""`` for none.
    """

    query: str = field(default="", repr=False)
    query_id: str = ""
    entry_id: str = ""
    recorded_at: datetime | None = None
    query_hash: str = ""
    complexity: str = ""
    complexity_score: float | None = None
    index: str = ""
    indexes: tuple[str, ...] = ()
    index_mode: str = ""
    index_confidence: float | None = None
    strategy: str = ""
    strategy_mode: str = ""
    strategy_confidence: float | None = None
    tier: str = ""
    cached: bool = False
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    spent: tuple[TierUsage, ...] = ()
    cloud_only_usd: float | None = None
    citations: int = 0
    confidence: float | None = None
    confidence_level: str = ""
    degraded: tuple[Degradation, ...] = ()
    error: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "timings_ms", frozen(self.timings_ms))

    @property
    def llm_calls(self) -> int:
        """Model calls of all tiers."""
        return sum(used.calls for used in self.spent)

    @property
    def cloud_calls(self) -> int:
        """Model calls of the cloud tier; at least 1 when it wrote the answer."""
        counted = sum(used.calls for used in self.spent if used.tier is Tier.CLOUD)
        return max(counted, int(self.tier == Tier.CLOUD.value and not self.cached))

    @property
    def prompt_tokens(self) -> int:
        """Tokens sent to models."""
        return sum(used.prompt_tokens for used in self.spent)

    @property
    def completion_tokens(self) -> int:
        """Tokens that models wrote."""
        return sum(used.completion_tokens for used in self.spent)

    @property
    def usd(self) -> float:
        """Money spent on models."""
        return math.fsum(used.usd for used in self.spent)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "recorded_at": None if self.recorded_at is None else self.recorded_at.isoformat(),
            "indexes": list(self.indexes),
            "timings_ms": dict(self.timings_ms),
            "spent": [used.to_dict() for used in self.spent],
            "degraded": [lost.to_dict() for lost in self.degraded],
            "llm_calls": self.llm_calls,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "usd": self.usd,
        }


def entry_of(
    answer: Answer | None,
    *,
    error: BaseException | None = None,
    query: str = "",
    query_id: str = "",
    route: RouteDecision | None = None,
    timings_ms: Mapping[str, float] | None = None,
    cloud_only_usd: float | None = None,
) -> LogEntry:
    """Make the entry of one query.

    Args:
        answer: The answer, or ``None`` when the query failed; the arguments below then say what is known of it.
        error: What ended the query. Only the name of its class is kept.
        query: The question; by default that of the route.
        query_id: Id of the query; by default that of the answer.
        route: The decision; by default that of the answer.
        timings_ms: Milliseconds by step; by default those of the answer.
        cloud_only_usd: What the query would have cost had every model call gone to the cloud, in USD.

    Returns:
        The entry. Numbers that are not finite are left out.
    """
    route = answer.route if route is None and answer is not None else route
    timings = (answer.timings_ms if answer is not None else {}) if timings_ms is None else timings_ms
    return LogEntry(
        query=query or ("" if route is None else route.query),
        query_id=query_id or ("" if answer is None else answer.query_id),
        timings_ms={step: float(ms) for step, ms in timings.items() if math.isfinite(ms)},
        cloud_only_usd=_finite(cloud_only_usd),
        error="" if error is None else type(error).__name__,
        **_of_route(route),
        **_of_answer(answer, () if route is None else route.degraded),
    )


def _of_route(route: RouteDecision | None) -> dict[str, Any]:
    if route is None:
        return {}
    return {
        "complexity": route.complexity.value,
        "complexity_score": _finite(route.complexity_score),
        "index": route.index.name,
        "indexes": tuple(route.index.names),
        "index_mode": route.index.mode,
        "index_confidence": _finite(route.index.confidence),
        "strategy": route.strategy.name,
        "strategy_mode": route.strategy.mode,
        "strategy_confidence": _finite(route.strategy.confidence),
    }


def _of_answer(answer: Answer | None, lost_in_routing: Iterable[Degradation]) -> dict[str, Any]:
    if answer is None:
        return {"degraded": tuple(lost_in_routing)}
    return {
        "tier": answer.tier.value,
        "cached": answer.cached,
        # A cached answer still carries what its first computation cost; this query paid nothing.
        "spent": () if answer.cached else tuple(answer.usage.tiers),
        "citations": len(answer.citations),
        "confidence": _finite(answer.confidence.score),
        "confidence_level": answer.confidence.level.value,
        "degraded": tuple(answer.degraded),
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)

"""The decision record of one query: what was chosen, what was weighed, and how two records differ."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentic_retriever.errors import RoutingError
from agentic_retriever.schema.draw_route import draw_decision, draw_diff
from agentic_retriever.schema.markup import short_text
from agentic_retriever.schema.routing import Complexity, Degradation, Selection, frozen
from agentic_retriever.schema.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FORMAT = 1
"""Changes when records of before can no longer be read."""

_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteDecision:
    """Which index and strategy a query goes to, with everything that was weighed.

    Attributes:
        query: The question as it was asked.
        index: Stage one.
        strategy: Stage two.
        complexity: Simple or complex.
        complexity_score: In [0, 1].
        complexity_reasons: What spoke for it, one short name each.
        features: The signals that stage two saw, by name.
        timings_ms: Milliseconds by step (``embedding``, ``routing``, ``total``).
        degraded: Steps of routing that fell back, those of both stages included.
        withheld: Strategies that were not offered, and why.
        versions: Version of each index that stage one saw, by its name.
    """

    query: str
    index: Selection
    strategy: Selection
    complexity: Complexity
    complexity_score: float
    complexity_reasons: tuple[str, ...] = ()
    features: Mapping[str, float] = field(default_factory=dict)
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    degraded: tuple[Degradation, ...] = ()
    withheld: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("features", "timings_ms", "withheld", "versions"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    @property
    def usage(self) -> Usage:
        """What routing spent on models."""
        return Usage.of((*self.index.spent, *self.strategy.spent))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types: the choices flat, the whole of both stages below ``stages``."""
        return {
            "format": FORMAT,
            "query": self.query,
            "index": self.index.name,
            "indexes": list(self.index.names),
            "index_scores": dict(self.index.scores),
            "index_confidence": self.index.confidence,
            "strategy": self.strategy.name,
            "strategy_scores": dict(self.strategy.scores),
            "strategy_confidence": self.strategy.confidence,
            "complexity": self.complexity.value,
            "complexity_score": self.complexity_score,
            "complexity_reasons": list(self.complexity_reasons),
            "stages": {"index": self.index.to_dict(), "strategy": self.strategy.to_dict()},
            "features": dict(self.features),
            "timings_ms": dict(self.timings_ms),
            "degraded": [d.to_dict() for d in self.degraded],
            "withheld": dict(self.withheld),
            "versions": dict(self.versions),
            "usage": self.usage.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RouteDecision:
        """Read a record that :meth:`to_dict` wrote.

        Args:
            data: The record, as decoded JSON.

        Raises:
            RoutingError: If it is no such record.
        """
        try:
            if data["format"] != FORMAT:
                raise RoutingError(f"the decision record has format {data['format']!r}, this version reads {FORMAT}")
            return cls(
                query=str(data["query"]),
                index=Selection.from_dict(data["stages"]["index"]),
                strategy=Selection.from_dict(data["stages"]["strategy"]),
                complexity=Complexity(data["complexity"]),
                complexity_score=float(data["complexity_score"]),
                complexity_reasons=tuple(str(reason) for reason in data["complexity_reasons"]),
                features={str(name): float(value) for name, value in data["features"].items()},
                timings_ms={str(name): float(value) for name, value in data["timings_ms"].items()},
                degraded=tuple(Degradation.from_dict(lost) for lost in data["degraded"]),
                withheld={str(name): str(why) for name, why in data["withheld"].items()},
                versions={str(name): int(version) for name, version in data["versions"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise RoutingError(
                f"this is no decision record ({type(err).__name__}: {str(err)[:80]}); pass what "
                "RouteDecision.to_dict() returned"
            ) from err

    def diff(self, other: RouteDecision) -> RouteDiff:
        """Tell in what another decision differs from this one; times and money are left out.

        Args:
            other: The later decision.
        """
        return RouteDiff(tuple(_differences(_comparable(self), _comparable(other), "")))

    def _repr_html_(self) -> str:
        """Draw the decision in Jupyter: escaped, no assets, colours of the theme."""
        return draw_decision(self)

    _repr_pretty_ = short_text


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs between two decisions.

    Attributes:
        path: Where, such as ``"index.scores.handbook"``.
        before: In the first, ``None`` where it is not there.
        after: In the second, likewise.
    """

    path: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.before)} -> {_shown(self.after)}"


@dataclass(frozen=True, slots=True)
class RouteDiff:
    """What changed between two decisions; false when nothing did.

    Attributes:
        differences: In the order of the record, the choices themselves first.
    """

    differences: tuple[Difference, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.differences)

    def __str__(self) -> str:
        return "\n".join(str(one) for one in self.differences) or "no difference"

    @property
    def same_choice(self) -> bool:
        """Whether indexes, strategy and complexity are the same, whatever the figures behind them."""
        choices = {"index.names", "index.abstained", "strategy.name", "complexity"}
        return not any(one.path in choices for one in self.differences)

    def to_dict(self) -> list[dict[str, object]]:
        """Return plain JSON types."""
        return [{"path": one.path, "before": one.before, "after": one.after} for one in self.differences]

    def _repr_html_(self) -> str:
        """Draw the differences in Jupyter: escaped, no assets, colours of the theme."""
        return draw_diff(self)

    _repr_pretty_ = short_text


def _comparable(decision: RouteDecision) -> dict[str, Any]:
    record = decision.to_dict()
    index, strategy = (
        {key: value for key, value in record["stages"][stage].items() if key != "spent"}
        for stage in ("index", "strategy")
    )
    kept = ("complexity", "complexity_score", "complexity_reasons", "features", "withheld", "versions", "degraded")
    return {"query": record["query"], "index": index, "strategy": strategy, **{name: record[name] for name in kept}}


def _differences(before: object, after: object, path: str) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            yield from _differences(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
    elif not _same(before, after):
        yield Difference(path, before, after)


def _same(before: object, after: object) -> bool:
    numbers = (int, float)
    if isinstance(before, numbers) and isinstance(after, numbers):
        return math.isclose(before, after, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return before == after


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.3f}" if isinstance(value, float) else str(value)

"""What a history shows over a period."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from typing_extensions import Self

from agentic_retriever.schema import Record, frozen
from agentic_retriever.show import Cell, Table, render, short_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency(Record):
    """How long one step took, in milliseconds.

    Percentiles are nearest-rank: ``p95_ms`` is the smallest of the measured times that at least 95 % do not exceed.
    """

    count: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    max_ms: float

    @classmethod
    def of(cls, ordered_ms: Sequence[float]) -> Self:
        """Measure times in ascending order; there must be one at least."""
        count = len(ordered_ms)
        return cls(
            count=count,
            mean_ms=math.fsum(ordered_ms) / count,
            p50_ms=nearest_rank(ordered_ms, 50),
            p95_ms=nearest_rank(ordered_ms, 95),
            max_ms=ordered_ms[-1],
        )


def nearest_rank(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least ``percent`` of the values do not exceed."""
    # In whole numbers: 0.95 * 20 is a little more than 19.
    return ordered[(len(ordered) * percent + 99) // 100 - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteCount(Record):
    """How many queries went one way; index and strategy are ``""`` for those that failed before routing."""

    index: str
    strategy: str
    queries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Analytics(Record):
    """Counts, times and money over a period."""

    since: datetime | None = None  # Start of the period, included; None for the beginning of the history
    until: datetime | None = None  # End of the period, excluded; None for now
    first_at: datetime | None = None
    last_at: datetime | None = None
    queries: int = 0
    answered: int = 0
    simple: int = 0
    complex: int = 0
    cached: int = 0
    degraded: int = 0
    llm_calls: int = 0
    prompt_tokens: int = 0  # Tokens sent to models
    completion_tokens: int = 0  # Tokens that models wrote
    usd: float = 0.0
    cloud_only_usd: float | None = None
    compared_usd: float | None = None
    local: int = 0
    mean_confidence: float | None = None  # Mean confidence of the answers in [0, 1], None without any
    confidence_levels: Mapping[str, int] = field(default_factory=dict)
    latency_ms: Mapping[str, Latency] = field(default_factory=dict)
    timed: int = 0
    routes: tuple[RouteCount, ...] = ()
    tiers: Mapping[str, int] = field(default_factory=dict)
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("confidence_levels", "latency_ms", "tiers", "fallbacks", "errors"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    @property
    def failed(self) -> int:
        """Queries that ended with an error."""
        return sum(self.errors.values())

    @property
    def cache_hit_rate(self) -> float | None:
        """Share of the queries without error that came from the cache, in [0, 1]; ``None`` without any."""
        return _share(self.cached, self.queries - self.failed)

    @property
    def local_share(self) -> float | None:
        """Share of the answered queries for which no cloud model was asked, in [0, 1]; ``None`` without any."""
        return _share(self.local, self.answered)

    @property
    def saved_usd(self) -> float | None:
        """What was saved against sending every model call to the cloud; ``None`` if that is known for no query."""
        if self.cloud_only_usd is None or self.compared_usd is None:
            return None
        return self.cloud_only_usd - self.compared_usd

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        fields = self.fields_to_dict()
        return {
            **{name: value.isoformat() if isinstance(value, datetime) else value for name, value in fields.items()},
            "failed": self.failed,
            "cache_hit_rate": self.cache_hit_rate,
            "local_share": self.local_share,
            "saved_usd": self.saved_usd,
        }

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Return what there is to show: title, headers and rows of each table that is not empty."""
        found: list[tuple[str, list[str], list[list[str]]]] = [
            ("queries", ["what", "value"], self._totals()),
            (
                "latency",
                ["step", "queries", "mean ms", "p50 ms", "p95 ms", "max ms"],
                [
                    [step, f"{t.count:,}", *(f"{ms:,.1f}" for ms in (t.mean_ms, t.p50_ms, t.p95_ms, t.max_ms))]
                    for step, t in self.latency_ms.items()
                ],
            ),
            (
                "routes",
                ["index", "strategy", "queries"],
                [[r.index or "none", r.strategy or "none", f"{r.queries:,}"] for r in self.routes],
            ),
            ("tiers", ["tier", "answers"], _counts(self.tiers)),
            ("confidence", ["level", "answers"], _counts(self.confidence_levels)),
            ("fallbacks", ["step", "queries"], _counts(self.fallbacks)),
            ("errors", ["kind", "queries"], _counts(self.errors)),
        ]
        return [table for table in found if table[2]]

    def _totals(self) -> list[list[str]]:
        rows = [
            ["period", f"{_day(self.since or self.first_at)} to {_day(self.until or self.last_at)}"],
            ["queries", f"{self.queries:,}"],
            ["answered", f"{self.answered:,}"],
            ["simple", f"{self.simple:,}"],
            ["complex", f"{self.complex:,}"],
            ["cache hit rate", _percent(self.cache_hit_rate)],
            ["degraded", f"{self.degraded:,}"],
            ["failed", f"{self.failed:,}"],
            ["mean confidence", "none" if self.mean_confidence is None else f"{self.mean_confidence:.2f}"],
            ["model calls", f"{self.llm_calls:,}"],
            ["tokens in, out", f"{self.prompt_tokens:,}, {self.completion_tokens:,}"],
            ["usd", f"{self.usd:.4f}"],
            ["local share", _percent(self.local_share)],
        ]
        if self.saved_usd is not None:
            rows.append(["saved usd against cloud only", f"{self.saved_usd:.4f} of {self.cloud_only_usd:.4f}"])
        return rows

    def _repr_html_(self) -> str:
        """Draw the tables in Jupyter: escaped, no assets, colours inherited from the theme."""
        return render("tables.html", tables=[self._table(*one) for one in self.tables()])

    _repr_pretty_ = short_text

    def _table(self, title: str, headers: list[str], rows: list[list[str]]) -> Table:
        """Return one table as it is drawn; counts by name get a bar each."""
        names = 2 if title == "routes" else 1
        if title in {"queries", "latency"}:
            return Table(headers, rows, title, names)
        most = max(self.queries, 1)
        shares = [int(row[-1].replace(",", "")) / most for row in rows]
        barred = [[*row, Cell(f"{share:.0%}", share=share)] for row, share in zip(rows, shares, strict=True)]
        return Table([*headers, ""], barred, title, names)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.1%}"


def _day(moment: datetime | None) -> str:
    return "now" if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def _counts(counts: Mapping[str, int]) -> list[list[str]]:
    return [[name, f"{count:,}"] for name, count in counts.items()]

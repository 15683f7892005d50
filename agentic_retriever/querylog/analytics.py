"""What a history shows over a period."""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from agentic_retriever.querylog.records import QUERIES, STEPS, UtcTime
from agentic_retriever.schema import Complexity, Tier, frozen
from agentic_retriever.show import Cell, Table, render, short_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy.sql.elements import ColumnElement


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long one step took, in milliseconds.

    Percentiles are nearest-rank: ``p95_ms`` is the smallest of the measured times that at least 95 % do not exceed.
    """

    count: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    max_ms: float

    @classmethod
    def of(cls, ordered_ms: Sequence[float]) -> Latency:
        """Measure times in ascending order; there must be one at least."""
        count = len(ordered_ms)
        return cls(
            count=count,
            mean_ms=math.fsum(ordered_ms) / count,
            p50_ms=nearest_rank(ordered_ms, 50),
            p95_ms=nearest_rank(ordered_ms, 95),
            max_ms=ordered_ms[-1],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {name: getattr(self, name) for name in self.__slots__}


def nearest_rank(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least ``percent`` of the values do not exceed."""
    # In whole numbers: 0.95 * 20 is a little more than 19.
    return ordered[(len(ordered) * percent + 99) // 100 - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteCount:
    """How many queries went one way; index and strategy are ``""`` for those that failed before routing."""

    index: str
    strategy: str
    queries: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Analytics:
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
        moments = ("since", "until", "first_at", "last_at")
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            **{name: _iso(getattr(self, name)) for name in moments},
            **{name: dict(getattr(self, name)) for name in ("confidence_levels", "tiers", "fallbacks", "errors")},
            "latency_ms": {step: latency.to_dict() for step, latency in self.latency_ms.items()},
            "routes": [route.to_dict() for route in self.routes],
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


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _counts(counts: Mapping[str, int]) -> list[list[str]]:
    return [[name, f"{count:,}"] for name, count in counts.items()]


# Analytics out of the database: counted by SQL that every database speaks, percentiles exactly in Python.

#: Times are taken from this many queries at most, the newest: 8 MB of memory a step.
MAX_TIMED_ROWS: Final = 1_000_000
_FETCHED_AT_ONCE: Final = 10_000

_C = QUERIES.c
_NO_ERROR = _C.error == ""
_ANSWERED = sa.and_(_NO_ERROR, _C.tier.not_in(["", Tier.NONE.value]))
_COMPARED = _C.cloud_only_usd.is_not(None)


def measure(connection: sa.Connection, *, since: datetime | None, until: datetime | None) -> Analytics:
    """Measure a period."""
    where = [_C.recorded_at >= since] if since is not None else []
    where += [_C.recorded_at < until] if until is not None else []
    totals = connection.execute(_totals().where(*where)).one()._asdict()
    if not totals["queries"]:
        return Analytics(since=since, until=until)
    routes = connection.execute(
        sa.select(_C.index_name, _C.strategy, sa.func.count()).where(*where).group_by(_C.index_name, _C.strategy)
    ).all()
    timed, latency = _latency(connection, where)
    return Analytics(
        since=since,
        until=until,
        **_plain(totals),
        timed=timed,
        latency_ms=latency,
        routes=tuple(
            RouteCount(index=index, strategy=strategy, queries=count)
            for index, strategy, count in sorted(routes, key=lambda row: (-row[2], row[0], row[1]))
        ),
        tiers=_counted(connection, _C.tier, where),
        confidence_levels=_counted(connection, _C.confidence_level, where),
        errors=_counted(connection, _C.error, where),
        fallbacks=_fallbacks(connection, where),
    )


def _totals() -> sa.Select[Any]:
    def count_if(condition: ColumnElement[bool]) -> ColumnElement[Any]:
        return sa.func.sum(sa.case((condition, 1), else_=0))

    return sa.select(
        sa.func.count().label("queries"),
        sa.func.min(_C.recorded_at, type_=UtcTime).label("first_at"),
        sa.func.max(_C.recorded_at, type_=UtcTime).label("last_at"),
        count_if(_ANSWERED).label("answered"),
        count_if(_C.complexity == Complexity.SIMPLE.value).label("simple"),
        count_if(_C.complexity == Complexity.COMPLEX.value).label("complex"),
        count_if(sa.and_(_C.cached, _NO_ERROR)).label("cached"),
        count_if(_C.degraded_steps.is_not(None)).label("degraded"),
        count_if(sa.and_(_ANSWERED, _C.cloud_calls == 0)).label("local"),
        sa.func.sum(_C.llm_calls).label("llm_calls"),
        sa.func.sum(_C.prompt_tokens).label("prompt_tokens"),
        sa.func.sum(_C.completion_tokens).label("completion_tokens"),
        sa.func.sum(_C.usd).label("usd"),
        sa.func.sum(_C.cloud_only_usd).label("cloud_only_usd"),
        sa.func.sum(sa.case((_COMPARED, _C.usd))).label("compared_usd"),
        sa.func.avg(_C.confidence).label("mean_confidence"),
    )


_MOMENTS = ("first_at", "last_at")
_NUMBERS = ("usd", "cloud_only_usd", "compared_usd", "mean_confidence")


def _plain(totals: Mapping[str, Any]) -> dict[str, Any]:
    """Bring sums to int and float; PostgreSQL returns decimals."""
    plain: dict[str, Any] = {name: totals[name] for name in _MOMENTS}
    for name, value in totals.items():
        if name in _NUMBERS:
            plain[name] = None if value is None else float(value)
        elif name not in _MOMENTS:
            plain[name] = int(value)
    return plain


def _counted(
    connection: sa.Connection, column: ColumnElement[str], where: Iterable[ColumnElement[bool]]
) -> dict[str, int]:
    """Count rows by a column, leaving out empty values, the most frequent first."""
    rows = connection.execute(sa.select(column, sa.func.count()).where(column != "", *where).group_by(column))
    return _most_frequent_first({row[0]: row[1] for row in rows})


def _fallbacks(connection: sa.Connection, where: Iterable[ColumnElement[bool]]) -> dict[str, int]:
    rows = connection.execute(
        sa.select(_C.degraded_steps, sa.func.count())
        .where(_C.degraded_steps.is_not(None), *where)
        .group_by(_C.degraded_steps)
    )
    counts: Counter[str] = Counter()
    for steps, count in rows:
        counts.update(dict.fromkeys(json.loads(steps), count))
    return _most_frequent_first(counts)


def _most_frequent_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _latency(connection: sa.Connection, where: Iterable[ColumnElement[bool]]) -> tuple[int, dict[str, Latency]]:
    """Read the times of the newest queries in one pass, and measure each step."""
    columns = [_C[f"{step}_ms"] for step in STEPS]
    chosen = sa.select(*columns, _C.cached, _C.other_ms).where(*where).order_by(_C.id.desc()).limit(MAX_TIMED_ROWS)
    times: dict[str, array[float]] = {step: array("d") for step in ("total", "uncached", *STEPS[1:])}
    rows = 0
    # In parts, so that a server sends what is worked on next, not a million rows at once.
    for row in connection.execution_options(yield_per=_FETCHED_AT_ONCE).execute(chosen):
        rows += 1
        for step, ms in zip(STEPS, row, strict=False):
            if ms is not None:
                times[step].append(ms)
        *_, cached, other = row
        if row[0] is not None and not cached:
            times["uncached"].append(row[0])
        for step, ms in json.loads(other).items() if other else ():
            times.setdefault(step, array("d")).append(ms)
    if len(times["uncached"]) == len(times["total"]):
        del times["uncached"]
    return rows, {step: Latency.of(sorted(found)) for step, found in times.items() if found}

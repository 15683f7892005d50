"""Analytics out of the database: counted by SQL that every database speaks, percentiles exactly in Python."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from agentic_retriever.querylog.analytics import Analytics, Latency, RouteCount
from agentic_retriever.querylog.tables import QUERIES, STEPS, UtcTime
from agentic_retriever.schema import Complexity, Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from sqlalchemy.sql.elements import ColumnElement

#: Times are taken from this many queries at most, the newest: 8 MB of memory a step.
MAX_TIMED_ROWS: Final = 1_000_000
_FETCHED_AT_ONCE: Final = 10_000

_C = QUERIES.c
_NO_ERROR = _C.error == ""
_ANSWERED = sa.and_(_NO_ERROR, _C.tier.not_in(["", Tier.NONE.value]))
_COMPARED = _C.cloud_only_usd.is_not(None)


def measure(connection: sa.Connection, *, since: datetime | None, until: datetime | None) -> Analytics:
    """Measure a period.

    Args:
        connection: A transaction that sees one state of the history throughout.
        since: Start, included.
        until: End, excluded.
    """
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

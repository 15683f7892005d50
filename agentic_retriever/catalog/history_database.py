"""The history in the catalog: writing, pruning, reading and counting."""

import hashlib
import hmac
import logging
import re
import threading
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.sql.elements import ColumnElement

from agentic_retriever.catalog.address import Address
from agentic_retriever.catalog.database import DATA_ERRORS, SALT_BYTES, Database, discard, put_rows
from agentic_retriever.catalog.records import Analytics, CitedNode, Feedback, Latency, LogEntry, RouteCount, utc_now
from agentic_retriever.catalog.tables import FEEDBACK, META, QUERIES, QUERY_CITATIONS, STEPS, UtcTime
from agentic_retriever.errors import QueryLogError, StoreError, UnknownQueryError
from agentic_retriever.schema import Complexity, Tier

logger = logging.getLogger(__name__)

MAX_TEXT_CHARS: Final = 4_000  # longer questions are cut, so that one cannot fill the disk
MAX_ANSWER_CHARS: Final = 16_000
_MAX_NAME_CHARS: Final = 400
# What PostgreSQL refuses in a text: NUL, and halves of surrogate pairs, which SQLite's driver refuses as well.
_UNSTORABLE_RE: Final = re.compile("[\x00\ud800-\udfff]")


def hash_of(query: str, salt: bytes) -> str:
    """Return the keyed hash (HMAC-SHA-256, RFC 2104) of a question without its case and spaces."""
    plain = " ".join(unicodedata.normalize("NFKC", query).casefold().split())
    return hmac.new(salt, plain.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _row(entry: LogEntry, *, text: str, salt: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {name: _storable(value) for name, value in entry.to_dict().items()}
    row |= entry.totals() | {
        "cloud_calls": entry.cloud_calls,
        "query": _storable(entry.query, MAX_TEXT_CHARS) if text == "plain" else None,
        "understood_as": _storable(entry.understood_as, MAX_TEXT_CHARS) if text == "plain" else "",
        "query_hash": hash_of(entry.query, salt) if text == "hashed" and entry.query else None,
        "degraded_steps": sorted({lost["step"] for lost in row["degraded"]}) or None,
    }
    if text != "plain":  # reasons may quote the question
        row["degraded"] = [{"step": lost["step"], "reason": "", "fallback": ""} for lost in row["degraded"]]
    row["answer_text"] = _storable(entry.answer_text, MAX_ANSWER_CHARS) if text == "plain" else None
    for apart in ("cited", "feedback"):  # in tables of their own
        del row[apart]
    timings = row.pop("timings_ms")
    row |= {f"{step}_ms": timings.pop(step, None) for step in STEPS}
    return row | {"other_ms": timings or None, "spent": row["spent"] or None, "degraded": row["degraded"] or None}


def _cited_rows(entry: LogEntry) -> list[dict[str, Any]]:
    rows = [{name: _storable(getattr(one, name)) for name in CitedNode.__slots__} for one in entry.cited]
    given = {"entry_id": entry.entry_id}
    return [{**given, **row, "index_name": row.pop("index"), "scores": dict(row["scores"])} for row in rows]


def _entry(row: Mapping[str, Any]) -> LogEntry:
    """Return the entry that a row was made of, as far as it was kept."""
    timings = {step: row[f"{step}_ms"] for step in STEPS if row[f"{step}_ms"] is not None}
    kept = {name: row[name] for name in LogEntry.__slots__ if row.get(name) is not None}
    return LogEntry.from_dict({**kept, "timings_ms": {**timings, **(row["other_ms"] or {})}})


def _storable(value: Any, limit: int = _MAX_NAME_CHARS) -> Any:  # noqa: ANN401 - any field of an entry
    if isinstance(value, str):
        return _UNSTORABLE_RE.sub("\ufffd", value[:limit])
    if isinstance(value, list):
        return [_storable(inner) for inner in value]
    return {name: _storable(inner) for name, inner in value.items()} if isinstance(value, dict) else value


# What only the entry at hand is to blame for; anything else concerns the whole database.
_REFUSED: Final = (*DATA_ERRORS, exc.StatementError, ValueError, TypeError, ArithmeticError)
_SALT: Final = sa.select(META.c.value).where(META.c.name == "salt")
_CITED: Final = QUERY_CITATIONS.c
_CITED_NAMES: Final = ("number", "index_name", "doc_id", "node_id", "title", "section", "score", "scores")
_PRUNED_EVERY: Final = 1_000  # entries (or a tenth of what is kept), since pruning costs a scan of an index
_PRUNED_AT_ONCE: Final = 2_000  # in one transaction, so that other writers never wait long
_CHECKED_WHOLE_BYTES: Final = 64_000_000


@dataclass(eq=False)
class HistoryDatabase:
    """The history in one catalog, kept within its limits. Its methods raise :class:`QueryLogError` alone."""

    address: Address
    text: str
    retention_days: float | None = None
    max_rows: int | None = None
    clock: Callable[[], datetime] = utc_now
    before: Path | None = None  # the file of an earlier version, which is taken over

    def __post_init__(self) -> None:
        self._taking = threading.Lock()
        self._every = _PRUNED_EVERY if self.max_rows is None else max(1, min(_PRUNED_EVERY, self.max_rows // 10))
        # The first batch prunes, so that processes that live for one query keep to the limits, too.
        self._since_pruned = self._every
        self._database = Database(self.address, is_log=True)

    def write(self, entries: Sequence[LogEntry]) -> int:
        """Add entries, prune when it is time, and return how many were added."""
        try:
            kept = self._write(entries)
        except _REFUSED:
            kept = self._write_each(entries)  # one entry is to blame; which one shows when each goes alone
        self._since_pruned += len(entries)
        if self._since_pruned >= self._every:
            self._since_pruned = 0
            try:
                self.prune()
            except QueryLogError as err:  # the entries are written; a later batch tries again
                logger.debug("the query history was not pruned: %s", err)
        return kept

    def _write_each(self, entries: Sequence[LogEntry]) -> int:
        kept = 0
        for entry in entries:
            try:
                with suppress(*_REFUSED):
                    kept += self._write([entry])
            except QueryLogError:  # noqa: PERF203 - which entry fails is the point of going one by one
                if kept == 0:
                    raise
                return kept  # what is written must count as written, so the rest is given up
        return kept

    def _write(self, entries: Sequence[LogEntry]) -> int:
        with self._writing() as (connection, salt):
            # An entry may be there already: the confirmation of an earlier try was lost.
            put_rows(connection, QUERIES, [_row(e, text=self.text, salt=salt) for e in entries])
            put_rows(connection, QUERY_CITATIONS, [row for entry in entries for row in _cited_rows(entry)])
        return len(entries)

    def prune(self) -> None:
        """Remove what is too old, and the oldest above the number of rows."""
        if self.retention_days is not None:
            self._remove(QUERIES.c.recorded_at < self.clock() - timedelta(days=self.retention_days))
        if self.max_rows is not None:
            newest = sa.select(QUERIES.c.id).order_by(QUERIES.c.id.desc()).offset(self.max_rows).limit(1)
            with self.reading() as connection:
                bound = None if connection is None else connection.execute(newest).scalar()
            if bound is not None:
                self._remove(QUERIES.c.id <= bound)

    def _remove(self, condition: sa.ColumnElement[bool]) -> None:
        some = sa.select(QUERIES.c.id).where(condition).order_by(QUERIES.c.id).limit(_PRUNED_AT_ONCE)
        count = _PRUNED_AT_ONCE
        while count == _PRUNED_AT_ONCE:
            with self._writing() as (connection, _):
                count = connection.execute(sa.delete(QUERIES).where(QUERIES.c.id.in_(some))).rowcount

    def entries(self, limit: int, offset: int, conditions: Mapping[str, str]) -> list[LogEntry]:
        """Return the newest entries first, as far as they are kept, without citations and feedback."""
        with self.reading() as connection:
            if connection is None:
                return []
            columns = (column.label(column.key) for column in QUERIES.c)
            wanted = sa.select(*columns).where(*(QUERIES.c[name] == value for name, value in conditions.items()))
            rows = connection.execute(wanted.order_by(QUERIES.c.id.desc()).limit(limit).offset(offset))
            return [_entry(row._asdict()) for row in rows]

    def entry(self, query_id: str) -> LogEntry:
        """Return one entry with its citations and feedback."""
        found = self.entries(1, 0, {"query_id": query_id}) if query_id else []
        if not found:
            raise UnknownQueryError(
                f"the history has no query {query_id[:80]!r}; it keeps what Answer.query_id names, for as long as "
                "query_log_retention_days says"
            )
        cited = sa.select(*(_CITED[name].label("index" if name == "index_name" else name) for name in _CITED_NAMES))
        given = sa.select(*(FEEDBACK.c[name] for name in Feedback.__slots__)).order_by(FEEDBACK.c.id)
        with self._database.reading() as connection:
            mine = connection.execute(cited.where(_CITED.entry_id == found[0].entry_id).order_by(_CITED.number))
            told = connection.execute(given.where(FEEDBACK.c.entry_id == found[0].entry_id))
            return replace(
                found[0],
                cited=tuple(CitedNode(**row) for row in mine.mappings()),
                feedback=tuple(Feedback(**row) for row in told.mappings()),
            )

    def add_feedback(self, query_id: str, given: Feedback) -> None:
        entry = self.entry(query_id)
        row = {name: getattr(given, name) for name in Feedback.__slots__}
        row |= {name: _storable(row[name], MAX_TEXT_CHARS) for name in ("comment", "user_id")}
        with self._writing() as (connection, _):
            connection.execute(sa.insert(FEEDBACK).values(entry_id=entry.entry_id, **row))

    def analytics(self, since: datetime | None, until: datetime | None) -> Analytics:
        with self.reading() as connection:
            none = Analytics(since=since, until=until)
            return none if connection is None else _measure(connection, since=since, until=until)

    def check(self) -> str:
        """Say what is there, after looking at its structure and whether it can be written."""
        with self.reading() as connection:
            counted = sa.select(sa.func.count(), sa.func.min(QUERIES.c.recorded_at, type_=UtcTime))
            count, first = (0, None) if connection is None else connection.execute(counted).one()
            path = self.address.path
            if connection is not None and path is not None and path.stat().st_size <= _CHECKED_WHOLE_BYTES:
                found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                if found != "ok":
                    raise QueryLogError(f"{self._database.what} is damaged; see the catalog")
        if connection is not None:
            with self._writing() as (connection, _):  # only to see that it may be written
                connection.execute(sa.update(META).values(value=META.c.value))
        if first is None:
            return f"{self.address}, made with the first query"
        return f"{self.address}, {count:,} queries since {first:%Y-%m-%d}"

    @contextmanager
    def reading(self) -> Iterator[sa.Connection | None]:
        """Open a reading transaction; ``None`` if nothing was written yet."""
        self._take_over()
        if not self._database.exists:
            yield None
            return
        with self._database.reading() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[tuple[sa.Connection, bytes]]:
        self._take_over()
        with self._database.writing() as connection:
            yield connection, self._salt(connection)

    def _salt(self, connection: sa.Connection) -> bytes:
        with suppress(ValueError):
            salt = bytes.fromhex(connection.execute(_SALT).scalar() or "")
            if len(salt) >= SALT_BYTES:
                return salt
        raise QueryLogError(f"{self._database.what} is damaged: it has no salt; move it away")

    def _take_over(self) -> None:
        """Bring in the history of an earlier version, page by page; one that was cut off goes on the next time."""
        with self._taking:  # whoever reads meanwhile waits
            if self.before is not None and self.before.exists():
                self._take(self.before)
            self.before = None

    def _take(self, file: Path) -> None:
        old, last = Database(Address(path=file), is_log=True), 0
        some = sa.select(*(column.label(column.key) for column in QUERIES.c)).order_by(QUERIES.c.id)
        try:
            while True:
                with old.reading() as connection:
                    rows = connection.execute(some.where(QUERIES.c.id > last).limit(_PRUNED_AT_ONCE))
                    page, salt = [row._asdict() for row in rows], connection.execute(_SALT).scalar()
                if not page:
                    break
                last = page[-1]["id"]
                with self._database.writing() as connection:
                    if connection.execute(sa.select(QUERIES.c.id).limit(1)).first() is None:
                        connection.execute(sa.update(META).where(META.c.name == "salt").values(value=salt))
                    put_rows(connection, QUERIES, [{k: v for k, v in row.items() if k != "id"} for row in page])
            old.close()
            discard(file)
        except StoreError as err:  # the new history goes on without it
            logger.warning("the query history of before, %s, is not taken over: %s", file, err)


# Analytics: counted by SQL that every database speaks, percentiles exactly in Python

MAX_TIMED_ROWS: Final = 1_000_000  # times are taken from the newest queries: 8 MB of memory a step
_FETCHED_AT_ONCE: Final = 10_000

_C = QUERIES.c
_NO_ERROR = _C.error == ""
_ANSWERED = sa.and_(_NO_ERROR, _C.tier.not_in(["", Tier.NONE.value]))
_COMPARED = _C.cloud_only_usd.is_not(None)


def _measure(connection: sa.Connection, *, since: datetime | None, until: datetime | None) -> Analytics:
    where = [_C.recorded_at >= since] if since is not None else []
    where += [_C.recorded_at < until] if until is not None else []
    totals = connection.execute(_totals().where(*where)).one()._asdict()
    if not totals["queries"]:
        return Analytics(since=since, until=until)
    routes = _counted(connection, where, _C["index"], _C.strategy)
    ordered = sorted(routes, key=lambda row: (-row[2], row[0], row[1]))
    fallbacks: Counter[str] = Counter()
    for steps, count in _counted(connection, [*where, _C.degraded_steps.is_not(None)], _C.degraded_steps):
        fallbacks.update(dict.fromkeys(steps, count))
    by_name: dict[str, Any] = {"fallbacks": _most_frequent_first(fallbacks.items())}
    for name, column in {"tiers": _C.tier, "confidence_levels": _C.confidence_level, "errors": _C.error}.items():
        by_name[name] = _most_frequent_first(_counted(connection, [*where, column != ""], column))
    timed, latency = _latency(connection, where)
    return Analytics(
        since=since,
        until=until,
        **totals,
        timed=timed,
        latency_ms=latency,
        routes=tuple(RouteCount(index=index, strategy=strategy, queries=n) for index, strategy, n in ordered),
        **by_name,
    )


def _totals() -> Any:  # noqa: ANN401 - a select of sixteen columns
    # With types, since PostgreSQL sums to decimals.
    def total(column: ColumnElement[Any]) -> ColumnElement[int]:
        return sa.cast(sa.func.sum(column), sa.BigInteger)

    def count_if(condition: ColumnElement[bool]) -> ColumnElement[int]:
        return total(sa.case((condition, 1), else_=0))

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
        *(total(_C[name]).label(name) for name in ("llm_calls", "prompt_tokens", "completion_tokens")),
        *(sa.func.sum(_C[name], type_=sa.Double).label(name) for name in ("usd", "cloud_only_usd")),
        sa.func.sum(sa.case((_COMPARED, _C.usd)), type_=sa.Double).label("compared_usd"),
        sa.func.avg(_C.confidence, type_=sa.Double).label("mean_confidence"),
    )


def _counted(
    connection: sa.Connection, where: Iterable[ColumnElement[bool]], *columns: ColumnElement[Any]
) -> Sequence[Any]:
    return connection.execute(sa.select(*columns, sa.func.count()).where(*where).group_by(*columns)).all()


def _most_frequent_first(counts: Iterable[Any]) -> dict[str, int]:
    return dict(sorted(counts, key=lambda item: (-item[1], item[0])))


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
        for step, ms in (other or {}).items():
            times.setdefault(step, array("d")).append(ms)
    if len(times["uncached"]) == len(times["total"]):
        del times["uncached"]
    return rows, {step: Latency.of(sorted(found)) for step, found in times.items() if found}

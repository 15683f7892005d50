"""The history in its database: tables, connections, writing, pruning, reading and counting; loads SQLAlchemy."""

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import sqlite3
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import TypeDecorator

from agentic_retriever.errors import QueryLogError
from agentic_retriever.querylog.records import Address, Analytics, Latency, LogEntry, RouteCount
from agentic_retriever.schema import Complexity, Tier

logger = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 1  # raised by one whenever a column changes its meaning; columns are never reused
MAX_TEXT_CHARS: Final = 4_000  # longer questions are cut, so that one cannot fill the disk
_MAX_NAME_CHARS: Final = 400
# The steps that every version times have a column each; any other is kept in ``other_ms``.
STEPS: Final = ("total", "routing", "embedding", "retrieval", "rerank", "synthesis", "llm")
COUNTS: Final = ("llm_calls", "cloud_calls", "prompt_tokens", "completion_tokens")
# What PostgreSQL refuses in a text: NUL, and halves of surrogate pairs, which SQLite's driver refuses as well.
_UNSTORABLE_RE: Final = re.compile("[\x00\ud800-\udfff]")


class UtcTime(TypeDecorator[datetime]):
    """A moment in UTC, aware in Python on every database; SQLite keeps it without its zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        utc = value and value.astimezone(timezone.utc)
        return utc and utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        zoned = value and value.replace(tzinfo=timezone.utc) if dialect.name == "sqlite" else value
        return zoned and zoned.astimezone(timezone.utc)


class JsonText(TypeDecorator[Any]):
    """A list or a mapping as compact JSON in a text, which both databases can count equal ones of."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: object, dialect: Dialect) -> str | None:  # noqa: ARG002 - its signature
        return None if value is None else json.dumps(value, ensure_ascii=True, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> object:  # noqa: ARG002 - its signature
        return None if value is None else json.loads(value)


METADATA: Final = sa.MetaData()
META: Final = sa.Table(
    "agentic_retriever_meta",
    METADATA,
    sa.Column("name", sa.String(40), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

_TEXTS: Final = (
    "query_id", "complexity", "index_mode", "strategy", "strategy_mode", "tier", "confidence_level", "error",
)  # fmt: skip
_FIGURES: Final = ("complexity_score", "index_confidence", "strategy_confidence", "confidence", "cloud_only_usd")

# The key of a column is the attribute of LogEntry that it holds.
QUERIES: Final = sa.Table(
    "agentic_retriever_queries",
    METADATA,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    # Given before the row is written, so that writing it again after a lost confirmation is noticed.
    sa.Column("entry_id", sa.String(32), nullable=False, unique=True),
    sa.Column("recorded_at", UtcTime, nullable=False, index=True),
    sa.Column("query_text", sa.Text, key="query"),
    sa.Column("query_hash", sa.String(64)),
    sa.Column("index_name", sa.Text, key="index", nullable=False),
    sa.Column("index_names", JsonText, key="indexes", nullable=False),
    *(sa.Column(name, sa.Text, nullable=False) for name in _TEXTS),
    *(sa.Column(name, sa.Double) for name in (*_FIGURES, *(f"{step}_ms" for step in STEPS))),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in (*COUNTS, "citations")),
    sa.Column("usd", sa.Double, nullable=False),
    sa.Column("cached", sa.Boolean, nullable=False),
    # The steps alone, so that the database can count equal ones; and each with its reason and fallback.
    *(sa.Column(name, JsonText) for name in ("degraded_steps", "degraded", "spent", "other_ms")),
)


def hash_of(query: str, salt: bytes) -> str:
    """Return what stands for a question: 64 hexadecimal digits, alike for spellings that differ in case or spaces.

    The hash is keyed (HMAC-SHA-256, RFC 2104), so the same question has another hash in every database.
    """
    plain = " ".join(unicodedata.normalize("NFKC", query).casefold().split())
    return hmac.new(salt, plain.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _row(entry: LogEntry, *, text: str, salt: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {name: _storable(value) for name, value in entry.to_dict().items()}
    row |= entry.totals() | {
        "cloud_calls": entry.cloud_calls,
        "query": _storable(entry.query, MAX_TEXT_CHARS) if text == "plain" else None,
        "query_hash": hash_of(entry.query, salt) if text == "hashed" and entry.query else None,
        "degraded_steps": sorted({lost["step"] for lost in row["degraded"]}) or None,
    }
    if text != "plain":  # reasons may quote the question
        row["degraded"] = [{"step": lost["step"], "reason": "", "fallback": ""} for lost in row["degraded"]]
    timings = row.pop("timings_ms")
    row |= {f"{step}_ms": timings.pop(step, None) for step in STEPS}
    return row | {"other_ms": timings or None, "spent": row["spent"] or None, "degraded": row["degraded"] or None}


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


# Connections: short waits, one for each piece of work.

CONNECT_TIMEOUT_S: Final = 2
BUSY_TIMEOUT_S: Final = 2.0
WRITE_TIMEOUT_MS: Final = 5_000
READ_TIMEOUT_MS: Final = 60_000


def _make_engine(address: Address) -> sa.Engine:
    """Make the engine of a place; nothing is opened yet.

    Every piece of work opens its own connection (``NullPool``): a file that was deleted or a server that was restarted
    is noticed at once, no connection is left to a forked child, and an idle process holds none.
    """
    given: dict[str, Any] = {"poolclass": NullPool, "hide_parameters": True}
    if address.path is not None:
        url = sa.URL.create("sqlite", database=str(address.path))
        engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, **given)
        event.listen(engine, "connect", _set_up_sqlite)
        return engine
    limits = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "tcp_user_timeout": 10_000,  # milliseconds until a peer that fell silent counts as gone
        "application_name": "agentic-retriever",
    }
    try:
        url = sa.make_url(address.url.reveal())
        # What the URL says itself wins. No prepared statements: poolers that share connections do not know them.
        options = {name: value for name, value in limits.items() if name not in url.query} | {"prepare_threshold": None}
        return sa.create_engine(url, connect_args=options, **given)
    except ImportError as err:
        raise QueryLogError(
            "the query history on PostgreSQL needs psycopg; install it with: pip install 'agentic-retriever[postgres]'"
        ) from err
    except (exc.ArgumentError, ValueError):
        # No cause: what SQLAlchemy says may repeat the URL, and with it the password.
        raise QueryLogError("the URL of the query history is not one that SQLAlchemy can read") from None


def _set_up_sqlite(connection: Any, _record: object) -> None:  # noqa: ANN401 - a DBAPI connection
    # The driver shall not open transactions by itself, so that _transaction can say which kind.
    connection.isolation_level = None
    try:
        with closing(connection.cursor()) as cursor:
            if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                # A file that is busy or only readable stays in its mode, which works as well, only slower.
                with suppress(sqlite3.OperationalError):
                    cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=NORMAL")
            cursor.execute("PRAGMA secure_delete=ON")  # a question that retention removed is not left in the file
    except BaseException:
        connection.close()  # SQLAlchemy does not know it yet
        raise


@contextmanager
def _transaction(engine: sa.Engine, *, writes: bool) -> Iterator[sa.Connection]:
    """Open a connection and a transaction on it, and close both."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            # A deferred transaction that turns into a writing one fails at once instead of waiting for other processes.
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
        else:
            if not writes:
                connection.execution_options(isolation_level="REPEATABLE READ")
            # Set in each transaction, not at connection: poolers refuse start-up options they do not know.
            timeout_ms = WRITE_TIMEOUT_MS if writes else READ_TIMEOUT_MS
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {timeout_ms}")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
        yield connection
        connection.commit()


# Errors of the database, told without parameters and secrets.

_ADVICE: Final = {
    "malformed|not a database": "the file is damaged; move it away and a new one is made",
    "locked": "another program holds it; wait or end that program",
    "readonly|read-only|unable to open": "check its permissions",
    "full": "make room",
}
_MAX_REASON_CHARS: Final = 160
_DATA_ERRORS: Final = (exc.DataError, exc.IntegrityError)
# What only the entry at hand is to blame for; anything else concerns the whole database.
_REFUSED: Final = (*_DATA_ERRORS, exc.StatementError, ValueError, TypeError, ArithmeticError)


@contextmanager
def _mapped(address: Address) -> Iterator[None]:
    """Turn what the database raises into an error of ours, unless one row is to blame."""
    try:
        yield
    except _DATA_ERRORS:
        raise
    except (exc.SQLAlchemyError, OSError) as err:
        if isinstance(err, exc.StatementError) and not isinstance(err, exc.DBAPIError):
            raise  # a value that no column can take
        # Only the first line, and no cause into which a driver put a secret of the URL.
        cause = err if address.redacted(str(err)) == str(err) else None
        origin = err.orig if isinstance(err, exc.DBAPIError) and err.orig is not None else err
        kind, code = type(origin).__name__, getattr(origin, "sqlstate", None)
        said = str(origin).strip().splitlines() if isinstance(err, (exc.DBAPIError, OSError)) else []
        reason = ": ".join([f"{kind} {code}" if code else kind, *(line[:_MAX_REASON_CHARS] for line in said[:1])])
        other = "check the server and the URL" if address.path is None else "check the folder and its permissions"
        advice = next((advice for pattern, advice in _ADVICE.items() if re.search(pattern, reason)), other)
        raise QueryLogError(f"query history {address}: {address.redacted(reason)}; {advice}") from cause


_PRUNED_EVERY: Final = 1_000  # entries (or a tenth of what is kept), since pruning costs a scan of an index
_PRUNED_AT_ONCE: Final = 2_000  # in one transaction, so that other writers never wait long
# Any number, but always the same: processes that make the tables at the same time queue up for it.
_ADVISORY_LOCK: Final = 4_137_902_261
_SALT_BYTES: Final = 32
_CHECKED_WHOLE_BYTES: Final = 64_000_000


class Database:
    """The tables of one history, kept within its limits. Its methods raise :class:`QueryLogError` alone.

    There are no locks: what two threads make at the same time is made twice, and either will do.
    """

    def __init__(
        self,
        address: Address,
        *,
        text: str,
        retention_days: float | None = None,
        max_rows: int | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self.address = address
        self._text = text
        self._retention_days = retention_days
        self._max_rows = max_rows
        self._clock = clock
        self._every = _PRUNED_EVERY if max_rows is None else max(1, min(_PRUNED_EVERY, max_rows // 10))
        # The first batch prunes, so that processes that live for one query keep to the limits, too.
        self._since_pruned = self._every
        self._engine = _make_engine(address)
        self._folder_made = False

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
            insert = sqlite.insert(QUERIES) if self.address.path is not None else postgresql.insert(QUERIES)
            # An entry may be there already: the confirmation of an earlier try was lost.
            once = insert.on_conflict_do_nothing(index_elements=[QUERIES.c.entry_id])
            connection.execute(once, [_row(e, text=self._text, salt=salt) for e in entries])
        return len(entries)

    def prune(self) -> None:
        """Remove what is too old, and the oldest above the number of rows."""
        if self._retention_days is not None:
            self._remove(QUERIES.c.recorded_at < self._clock() - timedelta(days=self._retention_days))
        if self._max_rows is not None:
            newest = sa.select(QUERIES.c.id).order_by(QUERIES.c.id.desc()).offset(self._max_rows).limit(1)
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

    def recent(self, count: int) -> tuple[LogEntry, ...]:
        with self.reading() as connection:
            if connection is None:
                return ()
            columns = (column.label(column.key) for column in QUERIES.c)
            rows = connection.execute(sa.select(*columns).order_by(QUERIES.c.id.desc()).limit(count))
            return tuple(_entry(row._asdict()) for row in rows)

    def analytics(self, since: datetime | None, until: datetime | None) -> Analytics:
        with self.reading() as connection:
            none = Analytics(since=since, until=until)
            return none if connection is None else _measure(connection, since=since, until=until)

    def check(self) -> str:
        """Say what is there, after looking at its structure and whether it can be written."""
        with self.reading() as connection:
            if connection is None:
                return f"{self.address}, made with the first query"
            path = self.address.path
            if path is not None and path.stat().st_size <= _CHECKED_WHOLE_BYTES:
                found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                if found != "ok":
                    raise QueryLogError(f"query history {self.address} is damaged; move it away and a new one is made")
            counted = sa.select(sa.func.count(), sa.func.min(QUERIES.c.recorded_at, type_=UtcTime))
            count, first = connection.execute(counted).one()
        with self._writing() as (connection, _):  # only to see that it may be written
            connection.execute(sa.update(META).values(value=META.c.value))
        since = f" since {first:%Y-%m-%d}" if first is not None else ""
        return f"{self.address}, {count:,} queries{since}"

    @contextmanager
    def reading(self) -> Iterator[sa.Connection | None]:
        """Open a reading transaction; ``None`` if no history was written yet."""
        if self.address.path is not None and not self.address.path.exists():
            yield None
            return
        with _mapped(self.address), _transaction(self._engine, writes=False) as connection:
            yield connection if self._facts(connection) else None

    @contextmanager
    def _writing(self) -> Iterator[tuple[sa.Connection, bytes]]:
        """Open a writing transaction on tables that are there, made anew if they are of an older version.

        The history is a log, not a record that others rely on.
        """
        with _mapped(self.address):
            path = self.address.path
            if path is not None:  # an empty SQLite file that only its owner may read, if there is none
                if not self._folder_made:  # only once: a folder that is removed later is gone on purpose
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self._folder_made = True
                with suppress(FileExistsError):
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            with _transaction(self._engine, writes=True) as connection:
                facts = self._facts(connection)
                if not facts and path is None:
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
                    facts = self._facts(connection)  # another process may have been faster
                if not facts:
                    METADATA.drop_all(connection)
                    METADATA.create_all(connection)
                    facts = {"schema": str(SCHEMA_VERSION), "salt": secrets.token_hex(_SALT_BYTES)}
                    connection.execute(sa.insert(META), [{"name": n, "value": value} for n, value in facts.items()])
                yield connection, self._salt(facts)

    def _facts(self, connection: sa.Connection) -> dict[str, str]:
        """Return what is kept of the tables themselves; nothing if there are none of this version."""
        if not sa.inspect(connection).has_table(META.name):
            return {}
        facts = {row.name: row.value for row in connection.execute(sa.select(META))}
        version = facts.get("schema", "")
        if not version.isdigit():
            raise QueryLogError(f"query history {self.address} is damaged: it has no version; move it away")
        if int(version) > SCHEMA_VERSION:
            raise QueryLogError(
                f"query history {self.address} has schema {int(version)}, this version reads up to {SCHEMA_VERSION}; "
                "install a newer agentic-retriever, or set query_log to another place"
            )
        return facts if int(version) == SCHEMA_VERSION else {}

    def _salt(self, facts: Mapping[str, str]) -> bytes:
        with suppress(KeyError, ValueError):
            salt = bytes.fromhex(facts["salt"])
            if len(salt) >= _SALT_BYTES:
                return salt
        raise QueryLogError(f"query history {self.address} is damaged: it has no salt; move it away")


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

"""The history in its database: made when first written, checked for its version, pruned, read."""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.pool import NullPool

from agentic_retriever.config.values import Secret
from agentic_retriever.errors import ConfigError, QueryLogError
from agentic_retriever.querylog.records import META, METADATA, QUERIES, SCHEMA_VERSION, entry_from, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from agentic_retriever.querylog.records import LogEntry


# Connections to the database of the history: short waits, one connection for each piece of work, typed errors.

CONNECT_TIMEOUT_S: Final = 2
BUSY_TIMEOUT_S: Final = 2.0
WRITE_TIMEOUT_MS: Final = 5_000
READ_TIMEOUT_MS: Final = 60_000
_MAX_REASON_CHARS: Final = 160
#: What only one row is to blame for; anything else concerns the whole database.
DATA_ERRORS: Final = (exc.DataError, exc.IntegrityError)


def make_engine(address: Address) -> sa.Engine:
    """Make the engine of a place; nothing is opened yet.

    Every piece of work opens its own connection (``NullPool``): a file that was deleted or a server that was restarted
    is noticed at once, no connection is left to a forked child, and an idle process holds none.
    """
    if address.path is not None:
        url = sa.URL.create("sqlite", database=str(address.path))
        engine = sa.create_engine(
            url, poolclass=NullPool, hide_parameters=True, connect_args={"timeout": BUSY_TIMEOUT_S}
        )
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        url = sa.make_url(address.url.reveal())
        engine = sa.create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=_server_options(url))
    except ImportError as err:
        raise QueryLogError(
            "the query history on PostgreSQL needs psycopg; install it with: pip install 'agentic-retriever[postgres]'"
        ) from err
    except (exc.ArgumentError, ValueError):
        # No cause: what SQLAlchemy says may repeat the URL, and with it the password.
        raise QueryLogError("the URL of the query history is not one that SQLAlchemy can read") from None
    event.listen(engine, "begin", _begin_postgres)
    return engine


def _server_options(url: sa.URL) -> dict[str, Any]:
    """Return limits for the connection; what the URL says itself wins."""
    wanted: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "tcp_user_timeout": 10_000,  # milliseconds until a peer that fell silent counts as gone
        "application_name": "agentic-retriever",
    }
    # No prepared statements: poolers that share connections between clients do not know them.
    return {name: value for name, value in wanted.items() if name not in url.query} | {"prepare_threshold": None}


def _set_up_sqlite(connection: Any, _record: object) -> None:  # noqa: ANN401 - a DBAPI connection
    # The driver shall not open transactions by itself, so that _begin_sqlite can say which kind.
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


def _begin_sqlite(connection: sa.Connection) -> None:
    # A deferred transaction that turns into a writing one fails at once instead of waiting for other processes.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _begin_postgres(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    # Set in each transaction, not at connection: poolers refuse start-up options they do not know.
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {WRITE_TIMEOUT_MS if writes else READ_TIMEOUT_MS}")
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(BUSY_TIMEOUT_S * 1000)}")


@contextmanager
def transaction(engine: sa.Engine, *, writes: bool) -> Iterator[sa.Connection]:
    """Open a connection and a transaction on it, and close both."""
    with engine.connect() as plain:
        options: dict[str, Any] = {"writes": writes}
        if not writes and engine.dialect.name == "postgresql":
            options["isolation_level"] = "REPEATABLE READ"
        connection = plain.execution_options(**options)
        with connection.begin():
            yield connection


def make_file(address: Address) -> None:
    """Make an empty SQLite file that only its owner may read, if there is none."""
    if address.path is None or address.path.exists():
        return
    try:
        os.close(os.open(address.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:  # another process was faster
        return


def typed(address: Address, err: Exception) -> QueryLogError:
    """Turn what the database raised into an error of ours, without parameters and secrets."""
    if isinstance(err, QueryLogError):
        return err
    origin = err.orig if isinstance(err, exc.DBAPIError) and err.orig is not None else err
    first = next(iter(str(origin).strip().splitlines()), "")
    code = getattr(origin, "sqlstate", None)
    # What an error says that names values, such as one of a constraint, is not repeated.
    said = first[:_MAX_REASON_CHARS] if _is_harmless(err) else ""
    reason = ": ".join(part for part in (type(origin).__name__ + (f" {code}" if code else ""), said) if part)
    return QueryLogError(f"query history {address}: {address.redacted(reason)}; {_advice(address, reason)}")


def shown_cause(address: Address, err: Exception) -> Exception | None:
    """Return an error as the cause of a typed one, unless a driver put a secret of the URL into it."""
    return err if address.redacted(str(err)) == str(err) else None


def _is_harmless(err: Exception) -> bool:
    return isinstance(err, (exc.DBAPIError, OSError)) and not isinstance(err, DATA_ERRORS)


def _advice(address: Address, reason: str) -> str:
    if "malformed" in reason or "not a database" in reason:
        return "the file is damaged; move it away and a new one is made"
    if "locked" in reason:
        return "another program holds it; wait or end that program"
    if "readonly" in reason or "read-only" in reason or "unable to open" in reason:
        return "check its permissions"
    if "full" in reason:
        return "make room"
    return "check the folder and its permissions" if address.path is not None else "check the server and the URL"


# Deleted in one transaction, so that other writers never wait long.
_PRUNED_AT_ONCE: Final = 2_000
# Any number, but always the same: processes that make the tables at the same time queue up for it.
_ADVISORY_LOCK: Final = 4_137_902_261
# What only the entry at hand is to blame for; errors of the connection are mapped before.
_REFUSED: Final = (*DATA_ERRORS, exc.StatementError, ValueError, TypeError, ArithmeticError)
_SALT_BYTES: Final = 32
_CHECKED_WHOLE_BYTES: Final = 64_000_000


class Database:
    """The tables of one history. Its methods raise :class:`QueryLogError` alone."""

    def __init__(self, address: Address, *, text: str) -> None:
        self.address = address
        self._text = text
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the engine of the parent process; there is nothing to close, since no connection is kept."""
        self._lock = threading.Lock()
        self._engine: sa.Engine | None = None
        self._opened = False

    def write(self, entries: Sequence[LogEntry]) -> int:
        """Add entries."""
        try:
            return self._write(entries)
        except _REFUSED:
            # One entry is to blame; which one shows when each goes alone.
            return self._write_each(entries)

    def _write_each(self, entries: Sequence[LogEntry]) -> int:
        kept = 0
        for entry in entries:
            try:
                kept += self._write_one(entry)
            except QueryLogError:  # noqa: PERF203 - which entry fails is the point of going one by one
                if kept == 0:
                    raise
                return kept  # what is written must count as written, so the rest is given up
        return kept

    def _write_one(self, entry: LogEntry) -> int:
        try:
            return self._write([entry])
        except exc.IntegrityError:
            with self.reading() as connection:
                if connection is None:
                    return 0
                # It may be there already: the confirmation of an earlier try was lost.
                same = sa.select(sa.func.count()).where(QUERIES.c.entry_id == entry.entry_id)
                return int(connection.execute(same).scalar_one())
        except _REFUSED:
            return 0

    def _write(self, entries: Sequence[LogEntry]) -> int:
        with self.writing() as connection:
            salt = self._prepared(connection)
            connection.execute(sa.insert(QUERIES), [row_of(e, text=self._text, salt=salt) for e in entries])
        return len(entries)

    def prune(self, *, before: datetime | None, max_rows: int | None) -> int:
        """Remove what is older than a moment, and the oldest above a number of rows."""
        removed = 0
        if before is not None:
            removed += self._remove(QUERIES.c.recorded_at < before)
        if max_rows is not None:
            newest = sa.select(QUERIES.c.id).order_by(QUERIES.c.id.desc()).offset(max_rows).limit(1)
            with self.reading() as connection:
                bound = None if connection is None else connection.execute(newest).scalar()
            if bound is not None:
                removed += self._remove(QUERIES.c.id <= bound)
        return removed

    def _remove(self, condition: sa.ColumnElement[bool]) -> int:
        some = sa.select(QUERIES.c.id).where(condition).order_by(QUERIES.c.id).limit(_PRUNED_AT_ONCE)
        removed = 0
        while True:
            with self.writing() as connection:
                self._prepared(connection)
                count = connection.execute(sa.delete(QUERIES).where(QUERIES.c.id.in_(some))).rowcount
            removed += count
            if count < _PRUNED_AT_ONCE:
                return removed

    def recent(self, count: int) -> tuple[LogEntry, ...]:
        """Return the newest entries, the newest first."""
        with self.reading() as connection:
            if connection is None:
                return ()
            rows = connection.execute(sa.select(QUERIES).order_by(QUERIES.c.id.desc()).limit(count))
            return tuple(entry_from(row._asdict()) for row in rows)

    def check(self) -> str:
        """Say what is there, after looking at its structure and whether it can be written."""
        with self.reading() as connection:
            if connection is None:
                return f"{self.address}, made with the first query"
            if self._is_file_to_check_whole():
                found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                if found != "ok":
                    raise QueryLogError(f"query history {self.address} is damaged; move it away and a new one is made")
            counted = sa.select(sa.func.count(), sa.func.min(QUERIES.c.recorded_at, type_=QUERIES.c.recorded_at.type))
            count, first = connection.execute(counted).one()
        with self.writing() as connection:  # only to see that it may be written
            self._prepared(connection)
            with connection.begin_nested() as probe:
                connection.execute(sa.update(META).values(value=META.c.value).where(META.c.name == "schema"))
                probe.rollback()
        since = f" since {first:%Y-%m-%d}" if first is not None else ""
        return f"{self.address}, {count:,} queries{since}"

    def _is_file_to_check_whole(self) -> bool:
        path = self.address.path
        return path is not None and path.stat().st_size <= _CHECKED_WHOLE_BYTES

    @contextmanager
    def reading(self) -> Iterator[sa.Connection | None]:
        """Open a reading transaction; ``None`` if no history was written yet."""
        if self.address.path is not None and not self.address.path.exists():
            yield None
            return
        with self._mapped(), transaction(self._made_engine(), writes=False) as connection:
            if sa.inspect(connection).has_table(META.name):
                version = self._facts(connection).get("schema", "")
                yield connection if self._is_current(version) else None
            else:
                yield None

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Open a writing transaction."""
        with self._mapped():
            self._make_place()
            with transaction(self._made_engine(), writes=True) as connection:
                yield connection

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except DATA_ERRORS:
            raise
        except exc.DBAPIError as err:
            raise typed(self.address, err) from shown_cause(self.address, err)
        except exc.StatementError:  # a value that no column can take
            raise
        except (exc.SQLAlchemyError, OSError) as err:
            raise typed(self.address, err) from shown_cause(self.address, err)

    def _make_place(self) -> None:
        path = self.address.path
        if path is None:
            return
        if not self._opened:
            # Only once: a folder that is removed later is gone on purpose.
            path.parent.mkdir(parents=True, exist_ok=True)
            self._opened = True
        make_file(self.address)

    def _made_engine(self) -> sa.Engine:
        with self._lock:
            if self._engine is None:
                self._engine = make_engine(self.address)
            return self._engine

    def _prepared(self, connection: sa.Connection) -> bytes:
        """Make the tables if there are none, and return the salt.

        Tables of an older version are dropped and made anew: the history is a log, not a record that others rely on.
        """
        if not sa.inspect(connection).has_table(META.name):
            return self._make_tables(connection)
        facts = self._facts(connection)
        if self._is_current(facts.get("schema", "")):
            return self._salt(facts)
        METADATA.drop_all(connection)
        return self._make_tables(connection)

    def _make_tables(self, connection: sa.Connection) -> bytes:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        METADATA.create_all(connection)
        facts = self._facts(connection)
        if not facts:  # else another process was faster
            facts = {"schema": str(SCHEMA_VERSION), "salt": secrets.token_hex(_SALT_BYTES)}
            connection.execute(sa.insert(META), [{"name": name, "value": value} for name, value in facts.items()])
        return self._salt(facts)

    def _salt(self, facts: dict[str, str]) -> bytes:
        try:
            salt = bytes.fromhex(facts["salt"])
        except (KeyError, ValueError):
            salt = b""
        if len(salt) < _SALT_BYTES:
            raise QueryLogError(f"query history {self.address} is damaged: it has no salt; move it away")
        return salt

    @staticmethod
    def _facts(connection: sa.Connection) -> dict[str, str]:
        return {row.name: row.value for row in connection.execute(sa.select(META))}

    def _is_current(self, version: str) -> bool:
        """Tell whether a schema is this one; an older one is not."""
        if not version.isdigit():
            raise QueryLogError(f"query history {self.address} is damaged: it has no version; move it away")
        if int(version) > SCHEMA_VERSION:
            raise QueryLogError(
                f"query history {self.address} has schema {int(version)}, this version reads up to {SCHEMA_VERSION}; "
                "install a newer agentic-retriever, or set query_log to another place"
            )
        return int(version) == SCHEMA_VERSION


# Where a history is kept: a SQLite file, or a PostgreSQL database by its URL. Shown without its secrets.

_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")
_ALLOWED = "use a file, sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The place of a history."""

    path: Path | None = None  # The SQLite file, or None for a server
    url: Secret = field(default_factory=Secret)
    secrets: tuple[Secret, ...] = ()

    def __str__(self) -> str:
        if self.path is not None:
            return str(self.path)
        parts = urlsplit(self.url.reveal())
        port = f":{parts.port}" if parts.port else ""
        return f"postgresql://{parts.hostname or 'localhost'}{port}{parts.path}"

    def redacted(self, text: str) -> str:
        """Return a text with every secret of the URL starred out."""
        for secret in self.secrets:
            text = text.replace(secret.reveal(), "********")
        return text


def address_of(place: str | Path | Secret) -> Address:
    """Read where a history is to be kept."""
    if isinstance(place, Path):
        return Address(path=place)
    text = place.reveal() if isinstance(place, Secret) else place
    scheme, separator, rest = text.partition("://")
    if not separator:
        if not text.strip() or ":" in text or "@" in text:
            raise ConfigError(f"the place of the query history is neither a file nor a URL; {_ALLOWED}")
        return Address(path=Path(text))
    if scheme.lower() == "sqlite":
        return Address(path=_sqlite_file(rest))
    if scheme.lower() not in _POSTGRES:
        known = scheme.lower() if scheme.replace("+", "").isalnum() and len(scheme) <= 30 else "of this kind"
        raise ConfigError(f"the query history cannot be kept in a database {known}; {_ALLOWED}")
    return _server(rest)


def _sqlite_file(rest: str) -> Path:
    if not rest.startswith("/") or rest in {"/", "/:memory:"} or "?" in rest:
        raise ConfigError("the query history needs a SQLite file, without options; write sqlite:///FILE")
    return Path(rest[1:])


def _server(rest: str) -> Address:
    url = f"postgresql+psycopg://{rest}"
    try:
        parts = urlsplit(url)
        # An unescaped @, / or : of a password would end up in the host, the port or the database, which are shown.
        misread = "@" in parts.path or "@" in parts.query or "@" in parts.netloc.rpartition("@")[0]
        hosted = parts.port is None or parts.port > 0
    except ValueError:
        misread, hosted = True, False
    if misread or not hosted or "#" in rest:
        # No cause: what urlsplit says repeats parts of the URL.
        raise ConfigError(
            "the URL of the query history cannot be read; percent-encode special characters of the password, "
            "such as %40 for @ and %2F for /"
        ) from None
    options = [pair.partition("=") for pair in parts.query.split("&")]
    raw = [parts.password or "", *(value for name, _, value in options if "pass" in name.lower())]
    secrets = {spelling for text in raw for spelling in (text, unquote(text)) if spelling}
    # The longest first, so that one that is part of another does not spoil it.
    ordered = sorted(secrets, key=lambda text: (-len(text), text))
    return Address(url=Secret(url), secrets=tuple(Secret(text) for text in ordered))


# Entries on their way to the database: what a query leaves to the thread that writes.


class Waiting(NamedTuple):
    """An entry, and what it is to be recorded with."""

    entry: LogEntry
    recorded_at: datetime
    entry_id: str

    def stamped(self) -> LogEntry:
        """Return the entry with its time and id."""
        return replace(self.entry, recorded_at=self.recorded_at, entry_id=self.entry_id)


class EntryIds:
    """Ids of 32 hexadecimal characters that no other log and no other process gives; safe to use from many threads.

    Half of each is drawn once for the log and half is counted, as a query must not wait for the system to draw it.
    """

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Draw anew in a child process, which would count on from where its parent is."""
        self._ids = map(f"{secrets.token_hex(8)}{{:016x}}".format, count())

    def next(self) -> str:
        """Return the next id."""
        return next(self._ids)

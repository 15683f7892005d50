"""Connections to the database of the history: short waits, one connection for each piece of work, typed errors."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.pool import NullPool

from agentic_retriever.errors import QueryLogError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentic_retriever.querylog.address import Address

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

    Args:
        address: The place.

    Raises:
        QueryLogError: If the driver of PostgreSQL is missing or the URL is not one.
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
    """Open a connection and a transaction on it, and close both.

    Args:
        engine: The engine.
        writes: Whether it will write. One that only reads sees one state of the database throughout.
    """
    with engine.connect() as plain:
        options: dict[str, Any] = {"writes": writes}
        if not writes and engine.dialect.name == "postgresql":
            options["isolation_level"] = "REPEATABLE READ"
        connection = plain.execution_options(**options)
        with connection.begin():
            yield connection


def make_file(address: Address) -> None:
    """Make an empty SQLite file that only its owner may read, if there is none.

    Raises:
        OSError: If that cannot be done.
    """
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

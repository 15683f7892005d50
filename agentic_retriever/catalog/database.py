"""The database of a catalog: connections, its structure and the migrations to it, transactions, errors."""

import os
import re
import secrets
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.pool import NullPool, QueuePool

from agentic_retriever import errors
from agentic_retriever.catalog.address import Address
from agentic_retriever.catalog.tables import META, METADATA, QUERIES, REVISION, VERSION_TABLE

CONNECT_TIMEOUT_S: Final = 2
BUSY_TIMEOUT_S: Final = 5.0
WRITE_TIMEOUT_MS: Final = 30_000
LOG_BUSY_TIMEOUT_S: Final = 2.0
LOG_WRITE_TIMEOUT_MS: Final = 5_000
READ_TIMEOUT_MS: Final = 60_000
SALT_BYTES: Final = 32
# Any number, but always the same: processes that make or change the tables at the same time queue up for it.
_ADVISORY_LOCK: Final = 4_137_902_261
_MIGRATIONS: Final = Path(__file__).with_name("migrations")
_REVISION: Final = sa.Table(VERSION_TABLE, sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True))

_ADVICE: Final = {
    "malformed|not a database": "it is damaged; move it away and add the sources of its indexes again (vectors of "
    "unchanged text are still in the embedding cache)",
    "locked": "another program holds it; wait or end that program",
    "readonly|read-only|unable to open": "check its permissions",
    "full": "make room",
}
_MAX_REASON_CHARS: Final = 160
DATA_ERRORS: Final = (exc.DataError, exc.IntegrityError)


class Database:
    """One database with the tables of a catalog, made or brought up to date with its first use; thread-safe.

    What a catalog confirmed survives a power cut; the history (``is_log``) may lose its last moments and waits briefly.
    """

    def __init__(self, address: Address, *, is_log: bool = False) -> None:
        self.address = address
        self.is_log = is_log
        self.what = f"query history {address}" if is_log else f"catalog {address}"
        self._busy_timeout_s = LOG_BUSY_TIMEOUT_S if is_log else BUSY_TIMEOUT_S
        self._lock = threading.RLock()
        self._engine: sa.Engine | None = None
        self._watcher: sqlite3.Connection | None = None
        self._is_ready = self._folder_made = False
        self._pid = os.getpid()
        _DATABASES.add(self)

    @property
    def exists(self) -> bool:
        """Whether there may be something in it; a file that is not there is only made by writing."""
        return self.address.path is None or self.address.path.exists()

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """Open a transaction that sees one state of everything."""
        return self._transaction(writes=False)

    def writing(self) -> AbstractContextManager[sa.Connection]:
        """Open a transaction that is whole or not at all; on SQLite there is one at a time."""
        return self._transaction(writes=True)

    @contextmanager
    def locked(self, *keys: int, shared: int | None, timeout_s: float) -> Iterator[None]:
        """Hold locks of a server that no transaction ends, one of them ``shared`` with others; safe from deadlock."""
        wanted = [] if shared is None else [f"pg_advisory_lock_shared({shared})"]
        wanted += [f"pg_advisory_lock({key})" for key in sorted(set(keys))]
        with ExitStack() as held:
            with self._mapped():
                connection = held.enter_context(self.engine().connect())
                connection.execution_options(isolation_level="AUTOCOMMIT")
                held.callback(self._unlock, connection)
                connection.exec_driver_sql(f"SET lock_timeout = {int(timeout_s * 1000)}")
                for lock in wanted:
                    connection.exec_driver_sql(f"SELECT {lock}")
            yield

    @staticmethod
    def _unlock(connection: sa.Connection) -> None:
        with suppress(exc.DBAPIError):  # a connection that is lost holds none
            connection.exec_driver_sql("SELECT pg_advisory_unlock_all()")
            connection.exec_driver_sql("RESET lock_timeout")

    def notices(self, channel: str, timeout_s: float) -> Iterator[None]:
        """Yield whenever a server says that something was announced on a channel, and after so many seconds anyway."""
        with self._mapped(), self.engine().connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()  # nobody else is to be told what it hears
            connection.exec_driver_sql(f"LISTEN {channel}")
            driver: Any = connection.connection.dbapi_connection
            while True:
                for _ in driver.notifies(timeout=timeout_s, stop_after=1):
                    pass
                yield

    def file_version(self) -> object:
        """Return what is another one whenever the file has changed; ``None`` for a server, which does not tell."""
        if self.address.path is None:
            return None
        with self._mapped(), self._lock:
            self.engine()
            if self._watcher is None:
                self._watcher = sqlite3.connect(self.address.path, check_same_thread=False, isolation_level=None)
            try:
                return self._watcher.execute("PRAGMA data_version").fetchone()
            except sqlite3.DatabaseError as err:
                raise exc.DatabaseError("PRAGMA data_version", (), err) from err

    def close(self) -> None:
        """Close the connections; a later use opens others."""
        with self._lock:
            self._is_ready = False
            engine, watcher, self._engine, self._watcher = self._engine, self._watcher, None, None
            if engine is not None and self._pid == os.getpid():
                engine.dispose()
            if watcher is not None and self._pid == os.getpid():
                watcher.close()

    def engine(self) -> sa.Engine:
        """Return what connections are made by; calls nobody."""
        if self._pid != os.getpid():
            raise errors.StoreClosedError(f"{self.what} was opened before a fork; open it after forking")
        with self._lock:
            if self._engine is None:
                self._engine = self._make_engine()
            return self._engine

    def forget_connections(self) -> None:
        """In a forked child: leave the connections to the parent, whose they are."""
        if self._engine is not None:
            self._engine.dispose(close=False)

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[sa.Connection]:
        with self._mapped():
            engine = self.engine()
            path = self.address.path
            if not self._is_ready or (self.is_log and path is not None and not path.exists()):
                self._make_ready(engine)
            with self._turn(writes=writes), engine.connect() as connection:
                self._begin(connection, writes=writes)
                yield connection
                connection.commit()

    @contextmanager
    def _turn(self, *, writes: bool) -> Iterator[None]:
        """Let those who write to one file take turns: SQLite lets a busy history starve the others."""
        lock = _turns(str(self.address.path)) if writes and self.address.path is not None else None
        held = lock is not None and lock.acquire(timeout=BUSY_TIMEOUT_S)
        try:
            yield
        finally:
            if lock is not None and held:
                lock.release()

    def _begin(self, connection: sa.Connection, *, writes: bool) -> None:
        if self.address.path is not None:
            # A deferred transaction that turns into a writing one fails at once instead of waiting for other processes.
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
            return
        if not writes:
            connection.execution_options(isolation_level="REPEATABLE READ")
        # Set in each transaction, not at connection: poolers refuse start-up options they do not know.
        timeout_ms = (LOG_WRITE_TIMEOUT_MS if self.is_log else WRITE_TIMEOUT_MS) if writes else READ_TIMEOUT_MS
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {timeout_ms}")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(self._busy_timeout_s * 1000)}")

    # -- Connections

    def _make_engine(self) -> sa.Engine:
        path = self.address.path
        given: dict[str, Any] = {"hide_parameters": True, "poolclass": NullPool}
        if not self.is_log:
            # A connection that a restarted server has dropped is noticed before it is used.
            given |= {"poolclass": QueuePool, "pool_size": 4, "max_overflow": 60, "pool_pre_ping": path is None}
        if path is not None:
            url = sa.URL.create("sqlite", database=str(path))
            options: dict[str, Any] = {"timeout": self._busy_timeout_s, "check_same_thread": False}
            engine = sa.create_engine(url, connect_args=options, **given)
            event.listen(engine, "connect", self._set_up_sqlite)
            return engine
        limits = {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "tcp_user_timeout": 10_000,  # milliseconds until a peer that fell silent counts as gone
            "application_name": "agentic-retriever",
        }
        try:
            url = sa.make_url(self.address.url.reveal())
            # What the URL says itself wins. No prepared statements: poolers that share connections do not know them.
            options = {name: value for name, value in limits.items() if name not in url.query}
            return sa.create_engine(url, connect_args=options | {"prepare_threshold": None}, **given)
        except ImportError as err:
            install = "install it with: pip install 'agentic-retriever[postgres]'"
            raise self._error(f"a catalog on PostgreSQL needs psycopg; {install}") from err
        except (exc.ArgumentError, ValueError):
            # No cause: what SQLAlchemy says may repeat the URL, and with it the password.
            raise self._error("database_url is not one that SQLAlchemy can read") from None

    def _set_up_sqlite(self, connection: Any, _record: object) -> None:  # noqa: ANN401 - a DBAPI connection
        # The driver shall not open transactions by itself, so that _begin can say which kind.
        connection.isolation_level = None
        try:
            with closing(connection.cursor()) as cursor:
                if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                    # A file that is busy or only readable stays in its mode, which works as well, only slower.
                    with suppress(sqlite3.OperationalError):
                        cursor.execute("PRAGMA journal_mode=WAL")
                cursor.execute(f"PRAGMA synchronous={'NORMAL' if self.is_log else 'FULL'}")
                cursor.execute("PRAGMA foreign_keys=ON")
                if self.is_log:  # a question that retention removed is not left in the file
                    cursor.execute("PRAGMA secure_delete=ON")
        except BaseException:
            connection.close()  # SQLAlchemy does not know it yet
            raise

    # -- Structure

    def _make_ready(self, engine: sa.Engine) -> None:
        """Make the tables, or bring those of an earlier version up to date."""
        path = self.address.path
        if path is not None:  # an empty file that only its owner may read, if there is none
            if not self._folder_made:  # only once: a folder that is removed later is gone on purpose
                path.parent.mkdir(parents=True, exist_ok=True)
                self._folder_made = True
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with engine.connect() as connection:
            self._begin(connection, writes=False)
            found = self._revision(connection)
        if found != REVISION:
            with engine.connect() as connection:
                self._begin(connection, writes=True)
                if path is None:
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
                self._upgrade(connection, self._revision(connection))  # another process may have been faster
                connection.commit()
        self._is_ready = True

    def _revision(self, connection: sa.Connection) -> str:
        """Return the newest migration that was applied; empty for a new database."""
        tables = sa.inspect(connection)
        if not tables.has_table(VERSION_TABLE):
            return "0001" if tables.has_table(QUERIES.name) else ""  # a history of before there was a catalog
        found = connection.execute(sa.select(_REVISION.c.version_num)).scalar()
        if not found:
            raise self._error(f"{self.what} is damaged: it has no revision; move it away")
        return str(found)

    def _upgrade(self, connection: sa.Connection, found: str) -> None:
        if found > REVISION:
            raise self._error(
                f"{self.what} has structure {found}, this version knows up to {REVISION}; install a newer "
                "agentic-retriever"
            )
        if not found:  # alike, without Alembic, which takes half a second to load
            METADATA.create_all(connection)
        if not found or not sa.inspect(connection).has_table(VERSION_TABLE):
            _REVISION.create(connection)
            connection.execute(sa.insert(_REVISION).values(version_num=found or REVISION))
        if found and found < REVISION:
            from alembic import command  # noqa: PLC0415 - see above
            from alembic.config import Config  # noqa: PLC0415 - see above

            config = Config(attributes={"connection": connection})
            config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
            command.upgrade(config, "head")
        if connection.execute(sa.select(META.c.value).where(META.c.name == "salt")).scalar() is None:
            connection.execute(sa.insert(META).values(name="salt", value=secrets.token_hex(SALT_BYTES)))

    # -- Errors, told without parameters and secrets

    def _error(self, what: str) -> errors.StoreError:
        return (errors.QueryLogError if self.is_log else errors.StoreError)(what)

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        """Turn what the database raises into an error of ours, unless one row of a history is to blame."""
        try:
            yield
        except (exc.SQLAlchemyError, OSError) as err:
            if self.is_log and isinstance(err, DATA_ERRORS):
                raise
            if isinstance(err, exc.StatementError) and not isinstance(err, exc.DBAPIError):
                raise  # a value that no column can take
            # Only the first line, and no cause into which a driver put a secret of the URL.
            cause = err if self.address.redacted(str(err)) == str(err) else None
            raise self._mapped_error(err) from cause

    def _mapped_error(self, err: Exception) -> errors.StoreError:
        origin = err.orig if isinstance(err, exc.DBAPIError) and err.orig is not None else err
        kind, code = type(origin).__name__, getattr(origin, "sqlstate", None)
        said = str(origin).strip().splitlines() if isinstance(err, (exc.DBAPIError, OSError)) else []
        reason = ": ".join([f"{kind} {code}" if code else kind, *(line[:_MAX_REASON_CHARS] for line in said[:1])])
        other = "check the server and the URL" if self.address.is_shared else "check the folder and its permissions"
        advice = next((advice for pattern, advice in _ADVICE.items() if re.search(pattern, reason)), other)
        what = f"{self.what}: {self.address.redacted(reason)}; {advice}"
        if self.is_log:
            return errors.QueryLogError(what)
        if code == "55P03" or "locked" in reason:
            return errors.StoreBusyError(what)
        if re.search("malformed|not a database", reason):
            return errors.StoreDamagedError(what)
        return errors.StoreUnreachableError(what) if self.address.is_shared else errors.StoreError(what)


def put_rows(
    connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]], *keys: str, kept: str = ""
) -> None:
    """Insert rows alike in columns; those there by their keys get what is new but ``kept``, without keys nothing."""
    if rows:
        connection.execute(_put(connection.dialect.name, table, tuple(rows[0]), keys, kept), rows)


@lru_cache(64)  # making one takes longer than sending it
def _put(dialect: str, table: sa.Table, columns: Sequence[str], keys: Sequence[str], kept: str) -> Any:  # noqa: ANN401
    new: Any = (sqlite if dialect == "sqlite" else postgresql).insert(table)
    if not keys:
        return new.on_conflict_do_nothing()
    changed = {name: new.excluded[name] for name in columns if name not in {*keys, kept}}
    return new.on_conflict_do_update(index_elements=list(keys), set_=changed)


def discard(file: Path) -> None:
    """Remove a SQLite file whose content is elsewhere now."""
    for extra in ("-wal", "-shm", ""):
        file.with_name(file.name + extra).unlink(missing_ok=True)


_DATABASES: Final[weakref.WeakSet[Database]] = weakref.WeakSet()


@lru_cache(64)
def _turns(_path: str) -> threading.RLock:
    return threading.RLock()


def _forget_in_child() -> None:
    _turns.cache_clear()  # a lock may be held by a thread that only the parent has
    for database in list(_DATABASES):
        database.forget_connections()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)

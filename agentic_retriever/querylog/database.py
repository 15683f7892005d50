"""The history in its database: made when first written, checked for its version, pruned, read."""

from __future__ import annotations

import secrets
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy import exc

from agentic_retriever.errors import QueryLogError
from agentic_retriever.querylog.engine import DATA_ERRORS, make_engine, make_file, shown_cause, transaction, typed
from agentic_retriever.querylog.tables import META, METADATA, QUERIES, SCHEMA_VERSION, entry_from, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from agentic_retriever.querylog.address import Address
    from agentic_retriever.querylog.entry import LogEntry

# Deleted in one transaction, so that other writers never wait long.
_PRUNED_AT_ONCE: Final = 2_000
# Any number, but always the same: processes that make the tables at the same time queue up for it.
_ADVISORY_LOCK: Final = 4_137_902_261
# What only the entry at hand is to blame for; errors of the connection are mapped before.
_REFUSED: Final = (*DATA_ERRORS, exc.StatementError, ValueError, TypeError, ArithmeticError)
_SALT_BYTES: Final = 32
_CHECKED_WHOLE_BYTES: Final = 64_000_000


class Database:
    """The tables of one history. Its methods raise :class:`QueryLogError` alone.

    Args:
        address: Where it is.
        text: What to keep of questions: ``plain``, ``hashed`` or ``none``.
    """

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
        """Add entries.

        Returns:
            How many are kept. An entry that the database refuses for what it holds is left out.

        Raises:
            QueryLogError: If none could be written, so that trying again may help.
        """
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
        """Remove what is older than a moment, and the oldest above a number of rows.

        Returns:
            How many rows were removed.

        Raises:
            QueryLogError: If the database cannot be written.
        """
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
        """Return the newest entries, the newest first.

        Raises:
            QueryLogError: If the database cannot be read.
        """
        with self.reading() as connection:
            if connection is None:
                return ()
            rows = connection.execute(sa.select(QUERIES).order_by(QUERIES.c.id.desc()).limit(count))
            return tuple(entry_from(row._asdict()) for row in rows)

    def check(self) -> str:
        """Say what is there, after looking at its structure and whether it can be written.

        Raises:
            QueryLogError: If it is damaged, of a newer version, or can be neither read nor written.
        """
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
        """Open a reading transaction; ``None`` if no history was written yet.

        Raises:
            QueryLogError: If the database cannot be read, or is of a newer version.
        """
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
        """Open a writing transaction.

        Raises:
            QueryLogError: If the database cannot be written. What a single row is to blame for stays what it is.
        """
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
        """Tell whether a schema is this one; an older one is not.

        Raises:
            QueryLogError: If it is newer, or no version at all.
        """
        if not version.isdigit():
            raise QueryLogError(f"query history {self.address} is damaged: it has no version; move it away")
        if int(version) > SCHEMA_VERSION:
            raise QueryLogError(
                f"query history {self.address} has schema {int(version)}, this version reads up to {SCHEMA_VERSION}; "
                "install a newer agentic-retriever, or set query_log to another place"
            )
        return int(version) == SCHEMA_VERSION

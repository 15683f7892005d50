"""The history of queries: recorded in the background, read on demand."""

from __future__ import annotations

import weakref
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import ConfigError, InvalidQueryError
from agentic_retriever.querylog.address import address_of
from agentic_retriever.querylog.analytics import Analytics
from agentic_retriever.querylog.entry import LogEntry, entry_of
from agentic_retriever.querylog.keeper import Keeper
from agentic_retriever.querylog.waiting import EntryIds, Waiting
from agentic_retriever.querylog.writer import BatchWriter, LogStats
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.config.values import Secret
    from agentic_retriever.schema import Answer

#: What may be kept of a question: its text, a keyed hash of it, or nothing.
TEXT_MODES: Final = ("plain", "hashed", "none")
#: Name of the SQLite file in the data directory.
FILE_NAME: Final = "queries.sqlite"
_READ_TIMEOUT_S: Final = 90.0
_FLUSH_BEFORE_READING_S: Final = 2.0
_MOST_RECENT: Final = 100_000


def _utc_now() -> datetime:
    return datetime.now(timezone.utc)


class QueryLog:
    """The history of queries in a SQLite file or a PostgreSQL database; threads and processes may share one.

    Nothing is opened until the first entry is recorded or read. Recording puts an entry into a bounded queue and
    returns; one daemon thread writes. Whatever is wrong with the database, recording never fails and never waits.

    Args:
        place: A file, or a URL: ``sqlite:///FILE``, ``postgresql://USER:PASSWORD@HOST/DATABASE``.
        text: What to keep of questions: ``plain``, ``hashed`` (HMAC-SHA-256 under a salt of this database) or ``none``.
        retention_days: Age in days from which entries are removed; ``None`` keeps them.
        max_rows: Most entries kept, the newest; there may be a tenth or 1,000 more of them for a while, whichever is
            less. ``None`` sets no limit.
        capacity: Most entries waiting to be written; further ones are dropped and counted.
        clock: The present moment, with a time zone.

    Raises:
        ConfigError: If an argument does not fit. The message never repeats the URL.

    Example:
        >>> with QueryLog(folder / "queries.sqlite") as log:  # doctest: +SKIP
        ...     log.record_answer(router.query("What is new?"))
        ...     log.analytics().queries
        1
    """

    def __init__(
        self,
        place: str | Path | Secret,
        *,
        text: str = "plain",
        retention_days: float | None = 90.0,
        max_rows: int | None = 1_000_000,
        capacity: int = 4_000,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        _check_limits(text, retention_days, max_rows, capacity)
        if clock().tzinfo is None:
            raise ConfigError("the clock of the query history must return moments with a time zone, such as UTC")
        self._address = address_of(place)
        self._clock = clock
        self._keeper = Keeper(self._address, text=text, retention_days=retention_days, max_rows=max_rows, clock=clock)
        self._ids = EntryIds()
        self._writer: BatchWriter[Waiting] = BatchWriter(
            partial(_write, self._keeper), name=str(self._address), capacity=capacity,
            on_fork=partial(_start_anew, self._keeper, self._ids),
        )  # fmt: skip
        self._reads = DeadlineCaller(f"query history {self._address}")
        # The thread holds the writer, not this object; when this is forgotten unclosed, the thread finishes and ends.
        weakref.finalize(self, self._writer.stop).atexit = False

    def __repr__(self) -> str:
        return f"QueryLog({str(self._address)!r})"

    def record(self, entry: LogEntry) -> None:
        """Hand in one entry; never raises, never waits.

        Args:
            entry: The entry; its time and its ``entry_id`` are set here unless it has them.
        """
        try:
            self._writer.put(Waiting(entry, entry.recorded_at or self._clock(), entry.entry_id or self._ids.next()))
        except Exception:  # noqa: BLE001 - a clock of the caller may fail; the answer must go out all the same
            self._writer.drop()

    def record_answer(self, answer: Answer | None, **known: Any) -> None:  # noqa: ANN401 - the arguments of entry_of
        """Make an entry as :func:`entry_of` and hand it in; never raises, never waits.

        Args:
            answer: The answer, or ``None`` when the query failed.
            **known: As :func:`entry_of`.
        """
        try:
            entry = entry_of(answer, **known)
        except Exception:  # noqa: BLE001 - an odd answer of a caller's own stage is not worth losing it
            self._writer.drop()
        else:
            self.record(entry)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until what was recorded before is settled.

        Args:
            timeout_s: Most seconds to wait.

        Returns:
            ``False`` if the time was up first, or the database cannot be written now.
        """
        return self._writer.flush(timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is waiting, within the time, and stop recording; a second call does nothing.

        Args:
            timeout_s: Most seconds to wait. A thread that hangs in the database is left behind.
        """
        self._writer.close(timeout_s)

    def stats(self) -> LogStats:
        """Return how many entries of this process were written, dropped, or wait."""
        return self._writer.stats()

    def analytics(self, since: datetime | None = None, until: datetime | None = None) -> Analytics:
        """Measure a period of the history, what this process just recorded included.

        Args:
            since: Start of the period, included, with a time zone; by default the beginning.
            until: End of the period, excluded, with a time zone; by default now.

        Raises:
            InvalidQueryError: If a moment has no time zone.
            QueryLogError: If the history cannot be read.
            DeadlineExceededError: If reading takes longer than 90 s.
        """
        for name, moment in (("since", since), ("until", until)):
            if moment is not None and moment.tzinfo is None:
                raise InvalidQueryError(f"{name} must have a time zone; write datetime(..., tzinfo=timezone.utc)")

        def read() -> Analytics:
            from agentic_retriever.querylog.aggregation import measure  # noqa: PLC0415 - loads SQLAlchemy

            with self._keeper.database().reading() as connection:
                if connection is None:
                    return Analytics(since=since, until=until)
                return measure(connection, since=since, until=until)

        self.flush(_FLUSH_BEFORE_READING_S)
        return self._reads.call(read, _READ_TIMEOUT_S)

    def recent(self, count: int = 20) -> tuple[LogEntry, ...]:
        """Return the newest entries, the newest first, as far as they are kept.

        Args:
            count: How many at most, from 1 to 100,000.

        Raises:
            InvalidQueryError: If the number is out of range.
            QueryLogError: If the history cannot be read.
            DeadlineExceededError: If reading takes longer than 90 s.
        """
        if not 1 <= count <= _MOST_RECENT:
            raise InvalidQueryError(f"count must be from 1 to {_MOST_RECENT:,}, got {count}")
        self.flush(_FLUSH_BEFORE_READING_S)
        return self._reads.call(lambda: self._keeper.database().recent(count), _READ_TIMEOUT_S)

    def check(self, timeout_s: float = 5.0) -> str:
        """Say where the history is and what is in it, for a person.

        Args:
            timeout_s: Most seconds to wait.

        Raises:
            QueryLogError: If it is damaged, of a newer version, or can be neither read nor written.
            DeadlineExceededError: If the time was up first.
        """
        # Made beforehand: on a busy machine SQLAlchemy may take longer to load than the database to answer.
        database = self._keeper.database()
        return self._reads.call(database.check, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_query_log(config: RouterConfig, *, clock: Callable[[], datetime] = _utc_now) -> QueryLog | None:
    """Make the history that the settings ask for; nothing is opened yet.

    Args:
        config: The settings.
        clock: The present moment, with a time zone.

    Returns:
        The history, or ``None`` where it is turned off.

    Raises:
        ConfigError: If ``query_log`` is none of ``none``, ``sqlite`` and a database's URL.
    """
    place = config.query_log.reveal()
    if place == "none":
        return None
    return QueryLog(
        config.data_dir / FILE_NAME if place == "sqlite" else config.query_log,
        text=config.query_log_text,
        retention_days=config.query_log_retention_days or None,
        max_rows=config.query_log_max_rows or None,
        clock=clock,
    )


def _write(keeper: Keeper, batch: Sequence[Waiting]) -> int:
    return keeper.write([one.stamped() for one in batch])


def _start_anew(keeper: Keeper, ids: EntryIds) -> None:
    keeper.after_fork()
    ids.after_fork()


def _check_limits(text: str, retention_days: float | None, max_rows: int | None, capacity: int) -> None:
    if text not in TEXT_MODES:
        raise ConfigError(f"text of the query history must be one of {', '.join(TEXT_MODES)}, got {str(text)[:40]!r}")
    for name, value in (("retention_days", retention_days), ("max_rows", max_rows), ("capacity", capacity)):
        if value is not None and not value > 0:
            raise ConfigError(f"{name} of the query history must be above 0, got {str(value)[:40]}")

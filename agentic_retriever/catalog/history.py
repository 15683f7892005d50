"""The history of queries: recorded in the background, read on demand; SQLAlchemy is loaded with the first entry."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import uuid4

from agentic_retriever.catalog.address import Address
from agentic_retriever.catalog.records import Analytics, Feedback, LogEntry, make_entry, utc_now
from agentic_retriever.config import RouterConfig, Secret
from agentic_retriever.errors import AgenticRetrieverError, InvalidQueryError
from agentic_retriever.schema import Answer
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from agentic_retriever.catalog.history_database import HistoryDatabase  # loads SQLAlchemy: a fifth of a second

logger = logging.getLogger(__name__)

BEFORE: Final = "queries.sqlite"  # where earlier versions kept it, in the data directory
MAX_ROWS: Final = 1_000_000  # most queries kept, the newest: about half a gigabyte
EXIT_TIMEOUT_S: Final = 2.0
_READ_TIMEOUT_S: Final = 90.0
_FLUSH_BEFORE_READING_S: Final = 2.0
_MOST_LISTED: Final = 100_000
_BATCH: Final = 256
_LINGER_S: Final = 0.2
_RETRY_DELAYS_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0)  # before each further try of a batch; after the last it is dropped
_WARNED_AT_MOST_EVERY_S: Final = 3_600.0


T = TypeVar("T")


class LogStats(NamedTuple):
    """What became of the entries of this process."""

    written: int
    dropped: int
    pending: int


class BatchWriter:
    """A bounded queue and the daemon thread that empties it; what finds no room in it is dropped and counted."""

    def __init__(
        self,
        sink: Callable[[Sequence[LogEntry]], int],
        *,
        name: str,
        capacity: int = 4_000,
        on_fork: Callable[[], None] = lambda: None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink = sink
        self._name = name
        self._capacity = capacity
        self._timer = timer
        self._on_fork = on_fork
        self.start_afresh()
        _WRITERS.add(self)

    def start_afresh(self) -> None:
        """Start from nothing, as in a child process, without the thread and the entries, which are the parent's."""
        self._on_fork()
        self._changed = threading.Condition()
        self._queue: deque[LogEntry] = deque()
        self._thread: threading.Thread | None = None
        self._in_flight = self._written = self._dropped = 0
        self._attempts = self._last_failure = 0
        self._stopping = self._hurried = False
        self._warned_at: float | None = None

    def put(self, entry: LogEntry) -> bool:
        with self._changed:
            taken = not self._stopping and len(self._queue) < self._capacity and self._running()
            if taken:
                self._queue.append(entry)
                # The thread need not wake for each entry: the first begins a batch, and a full one ends the wait.
                if len(self._queue) in {1, _BATCH}:
                    self._changed.notify_all()
            else:
                self._dropped += 1
            warn = not taken and not self._stopping
        if warn:
            self.warn("entries come faster than it can be written")
        return taken

    def drop(self) -> None:
        with self._changed:
            self._dropped += 1

    def flush(self, timeout_s: float) -> bool:
        with self._changed:
            seen, target = self._attempts, self._settled() + self._waiting()
            if self._waiting():
                self._hurried = True
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._settled() >= target or self._last_failure > seen, timeout=max(0.0, timeout_s)
                )
            return self._settled() >= target

    def stop(self) -> None:
        """Take no more entries; the thread tries once to write what is waiting, and ends."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Stop, and wait for the thread. Closing twice does nothing."""
        self.stop()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(max(0.0, timeout_s))
        return not thread.is_alive()

    def stats(self) -> LogStats:
        with self._changed:
            return LogStats(written=self._written, dropped=self._dropped, pending=self._waiting())

    def _settled(self) -> int:
        return self._written + self._dropped

    def _waiting(self) -> int:
        return self._in_flight + len(self._queue)

    def _running(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="agentic-query-log", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter is shutting down
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while batch := self._next_batch():
            written = 0
            for delay_s in (*_RETRY_DELAYS_S, None):
                with self._changed:
                    self._attempts += 1
                try:
                    written = self._sink(batch)
                    break
                except Exception as err:  # noqa: BLE001 - the thread must outlive whatever a database raises
                    self.warn(str(err) if isinstance(err, AgenticRetrieverError) else type(err).__name__)
                    if not self._goes_on_after(delay_s):
                        break
            with self._changed:
                self._written += written
                self._dropped += len(batch) - written
                self._in_flight = 0
                self._changed.notify_all()

    def _next_batch(self) -> list[LogEntry]:
        """Wait for entries, a little longer for more of them; an empty batch means the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stopping)
            self._changed.wait_for(lambda: len(self._queue) >= _BATCH or self._hurried or self._stopping, _LINGER_S)
            batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
            self._in_flight = len(batch)
            self._hurried = self._hurried and bool(self._queue)
            return batch

    def _goes_on_after(self, delay_s: float | None) -> bool:
        """Note a failure, and wait for the time of the next try; ``False`` if there is none."""
        with self._changed:
            self._last_failure = self._attempts
            self._hurried = False
            self._changed.notify_all()
            if self._stopping:
                # Nobody waits for a database that is gone when the process ends.
                self._dropped += len(self._queue)
                self._queue.clear()
                return False
            if delay_s is not None:
                self._changed.wait_for(lambda: self._stopping or self._hurried, timeout=delay_s)
            return delay_s is not None

    def warn(self, reason: str) -> None:
        """Say that entries are lost, once an hour at most."""
        with self._changed:
            now = self._timer()
            if self._warned_at is not None and now - self._warned_at < _WARNED_AT_MOST_EVERY_S:
                return
            self._warned_at = now
        logger.warning("the query history %s loses entries: %s; queries are answered all the same", self._name, reason)


_WRITERS: Final[weakref.WeakSet[BatchWriter]] = weakref.WeakSet()


def _finish_all() -> None:
    for writer in list(_WRITERS):
        writer.stop()
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    for writer in list(_WRITERS):
        if not writer.close(deadline - time.monotonic()):
            writer.warn(f"{writer.stats().pending:,} were not written before the process ended")


def _forget_in_child() -> None:
    for writer in list(_WRITERS):
        writer.start_afresh()


atexit.register(_finish_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


Entries: TypeAlias = list[LogEntry]  # by a name, since QueryLog.list is something else


class QueryLog(AbstractContextManager["QueryLog"]):
    """The history of queries in a catalog for many threads, processes and machines; recording never fails or waits."""

    def __init__(
        self,
        place: str | Path | Secret | Address,
        *,
        text: Literal["plain", "hashed", "no_text"] = "plain",  # what is kept of questions: a keyed hash if "hashed"
        retention_days: float | None = 90.0,
        max_rows: int | None = MAX_ROWS,
        clock: Callable[[], datetime] = utc_now,
        before: Path | None = None,
    ) -> None:
        address = place if isinstance(place, Address) else Address.of(place)
        options: dict[str, Any] = {"retention_days": retention_days, "max_rows": max_rows, "before": before}

        @lru_cache(1)
        def database() -> HistoryDatabase:
            from agentic_retriever.catalog.history_database import HistoryDatabase  # noqa: PLC0415 - loads SQLAlchemy

            return HistoryDatabase(address, text=text, clock=clock, **options)

        self._name = str(address)
        self._clock = clock
        self._database = database
        # The thread holds the writer, not this object; when this is forgotten unclosed, the thread finishes and ends.
        self._writer = BatchWriter(lambda batch: database().write(batch), name=self._name, on_fork=database.cache_clear)
        weakref.finalize(self, self._writer.stop).atexit = False
        self._reads = DeadlineCaller(f"query history {address}")

    def __repr__(self) -> str:
        return f"QueryLog({self._name!r})"

    def record(self, entry: LogEntry) -> None:
        """Hand in one entry; never raises, never waits."""
        self._record(lambda: entry)

    def record_answer(self, answer: Answer | None, **known: Any) -> None:  # noqa: ANN401 - the arguments of make_entry
        """Make an entry as :func:`make_entry` and hand it in; never raises, never waits."""
        self._record(lambda: make_entry(answer, **known))

    def _record(self, make: Callable[[], LogEntry]) -> None:
        try:
            entry = make()
            moment, entry_id = entry.recorded_at or self._clock(), entry.entry_id or uuid4().hex
            self._writer.put(replace(entry, recorded_at=moment, entry_id=entry_id))
        except Exception:  # noqa: BLE001 - a caller's clock or stage may be odd; the answer must go out all the same
            self._writer.drop()

    def flush(self, timeout_s: float = 5.0) -> bool:
        return self._writer.flush(timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is waiting, within the time, and stop recording; a second call does nothing."""
        self._writer.close(timeout_s)

    def stats(self) -> LogStats:
        return self._writer.stats()

    def analytics(self, since: datetime | None = None, until: datetime | None = None) -> Analytics:
        """Measure a period of the history, what this process just recorded included."""
        for name, moment in (("since", since), ("until", until)):
            if moment is not None and moment.tzinfo is None:
                raise InvalidQueryError(f"{name} must have a time zone; write datetime(..., tzinfo=timezone.utc)")
        return self._read(lambda database: database.analytics(since, until))

    def list(
        self, *, limit: int = 50, offset: int = 0, conversation_id: str | None = None, user_id: str | None = None
    ) -> Entries:
        """Return entries, the newest first, as far as they are kept; :meth:`get` adds citations and feedback."""
        if not 1 <= limit <= _MOST_LISTED or offset < 0:
            wanted = f"limit must be from 1 to {_MOST_LISTED:,}, offset 0 or more"
            raise InvalidQueryError(f"{wanted}; got {limit}, {offset}")
        asked = {"conversation_id": conversation_id, "user_id": user_id}
        conditions = {name: value for name, value in asked.items() if value is not None}
        return self._read(lambda database: database.entries(limit, offset, conditions))

    def get(self, query_id: str) -> LogEntry:
        """Return what is kept of one query, with what its answer cited and what people thought of it.

        Raises:
            UnknownQueryError: If there is no such query.
        """
        return self._read(lambda database: database.entry(query_id))

    def add_feedback(self, query_id: str, *, rating: int, comment: str = "", user_id: str = "") -> None:
        """Note what somebody thought of an answer.

        Args:
            query_id: The answer's ``query_id``.
            rating: From 1 to 5; thumbs are 1 and 5.
            comment: In words.
            user_id: Who says so.

        Raises:
            UnknownQueryError: If there is no such query.
            InvalidQueryError: If the rating is none.
        """
        if isinstance(rating, bool) or rating not in range(1, 6):
            raise InvalidQueryError(f"rating must be a whole number from 1 to 5, got {str(rating)[:20]}")
        given = Feedback(rating=rating, comment=comment, user_id=user_id, created_at=self._clock())
        self._read(lambda database: database.add_feedback(query_id, given))

    def _read(self, read: Callable[[HistoryDatabase], T]) -> T:
        """Read what this process just recorded, too."""
        self.flush(_FLUSH_BEFORE_READING_S)
        return self._reads.call(lambda: read(self._database()), _READ_TIMEOUT_S)

    def check(self, timeout_s: float = 5.0) -> str:
        """Say where the history is and what is in it, for a person."""
        # Made beforehand: on a busy machine SQLAlchemy may take longer to load than the database to answer.
        database = self._database()
        return self._reads.call(database.check, timeout_s)

    def __exit__(self, *error: object) -> None:
        self.close()


def open_query_log(config: RouterConfig) -> QueryLog | None:
    """Make the history that the settings ask for; nothing is opened yet."""
    if config.query_log == "none":
        return None
    days, before = config.query_log_retention_days or None, config.data_dir / BEFORE
    return QueryLog(Address.from_config(config), text=config.query_log, retention_days=days, before=before)

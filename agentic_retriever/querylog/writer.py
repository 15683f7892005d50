"""One background thread that hands entries to the database in batches, and never keeps a query waiting."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from agentic_retriever.errors import AgenticRetrieverError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

T = TypeVar("T")

_BATCH: Final = 256
_LINGER_S: Final = 0.2
#: Seconds before each further try of a batch; after the last it is dropped.
_RETRY_DELAYS_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
_WARNED_AT_MOST_EVERY_S: Final = 3_600.0
EXIT_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """What became of the entries of this process.

    Attributes:
        written: In the database.
        dropped: Lost, since the database was gone, full or too slow, or refused them.
        pending: Waiting, or being written now.
    """

    written: int
    dropped: int
    pending: int


class BatchWriter(Generic[T]):
    """A bounded queue and the daemon thread that empties it.

    ``put`` takes a lock for a moment and does no input or output, so it costs microseconds whatever the state of the
    database. When the queue is full, new entries are dropped and counted. A batch that cannot be written is tried again
    for half a minute while the queue fills up behind it, then dropped. There is one warning an hour at most.

    Args:
        sink: Writes a batch and returns how many of it were kept; whatever it raises means that none can be written
            for the moment.
        name: Name of what is written, for the warning and the thread; without secrets.
        capacity: Most entries waiting.
        on_fork: Called in a forked child before anything else of the writer is used there.
        timer: Monotonic time in seconds.
    """

    def __init__(
        self,
        sink: Callable[[Sequence[T]], int],
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
        self._reset()
        _WRITERS.add(self)

    def after_fork(self) -> None:
        """Start from nothing: in a child process the parent's thread does not exist and its entries are its own."""
        self._reset()
        self._on_fork()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[T] = deque()
        self._thread: threading.Thread | None = None
        self._in_flight = self._written = self._dropped = 0
        self._attempts = self._last_failure = 0
        self._stopping = self._hurried = False
        self._warned_at: float | None = None

    def put(self, entry: T) -> bool:
        """Hand in one entry; ``False`` if it was dropped."""
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
            self._warn("entries come faster than it can be written")
        return taken

    def drop(self) -> None:
        """Count an entry that never became one."""
        with self._changed:
            self._dropped += 1

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything handed in before is settled.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            Whether all of it is settled: written, or refused and counted. ``False`` as soon as a try that began after
            this call failed, or when the time is up.
        """
        with self._changed:
            target = self._settled() + self._in_flight + len(self._queue)
            if self._settled() == target:
                return True
            seen = self._attempts
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
        """Stop, and wait for the thread. Closing twice does nothing.

        Returns:
            Whether the thread has ended. One that hangs in the database is left behind; it ends with the process.
        """
        self.stop()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(max(0.0, timeout_s))
        return not thread.is_alive()

    def give_up(self) -> None:
        """Tell what is lost when the process ends before the thread does."""
        self._warn(f"{self.stats().pending:,} were not written before the process ended")

    def stats(self) -> LogStats:
        """Return what became of the entries."""
        with self._changed:
            waiting = self._in_flight + len(self._queue)
            return LogStats(written=self._written, dropped=self._dropped, pending=waiting)

    def _settled(self) -> int:
        return self._written + self._dropped

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
            self._deliver(batch)

    def _next_batch(self) -> list[T]:
        """Wait for entries, a little longer for more of them; an empty batch means the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stopping)
            self._changed.wait_for(
                lambda: len(self._queue) >= _BATCH or self._hurried or self._stopping, timeout=_LINGER_S
            )
            batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
            self._in_flight = len(batch)
            self._hurried = self._hurried and bool(self._queue)
            return batch

    def _deliver(self, batch: list[T]) -> None:
        for delay_s in (*_RETRY_DELAYS_S, None):
            with self._changed:
                self._attempts += 1
            try:
                written = self._sink(batch)
            except Exception as err:  # noqa: BLE001 - the seam to a database; the thread must outlive whatever it raises
                self._warn(str(err) if isinstance(err, AgenticRetrieverError) else type(err).__name__)
                if not self._goes_on_after(delay_s):
                    written = 0
                    break
            else:
                break
        with self._changed:
            self._written += written
            self._dropped += len(batch) - written
            self._in_flight = 0
            self._changed.notify_all()

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

    def _warn(self, reason: str) -> None:
        with self._changed:
            now = self._timer()
            if self._warned_at is not None and now - self._warned_at < _WARNED_AT_MOST_EVERY_S:
                return
            self._warned_at = now
        logger.warning("the query history %s loses entries: %s; queries are answered all the same", self._name, reason)


_WRITERS: Final[weakref.WeakSet[BatchWriter[Any]]] = weakref.WeakSet()


def _finish_all() -> None:
    """Write what is waiting before the interpreter ends."""
    for writer in list(_WRITERS):
        writer.stop()
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    for writer in list(_WRITERS):
        if not writer.close(deadline - time.monotonic()):
            writer.give_up()


def _forget_in_child() -> None:
    for writer in list(_WRITERS):
        writer.after_fork()


atexit.register(_finish_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)

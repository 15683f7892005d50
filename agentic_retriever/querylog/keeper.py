"""What the writer's thread does with a batch: write it, and now and then remove what is too old."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import QueryLogError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from agentic_retriever.querylog.address import Address
    from agentic_retriever.querylog.database import Database
    from agentic_retriever.querylog.entry import LogEntry

logger = logging.getLogger(__name__)

# Pruning costs a scan of an index, so it waits for this many entries (or a tenth of what is kept).
_PRUNED_EVERY: Final = 1_000


class Keeper:
    """Keeps one history within its limits.

    Args:
        address: Where the history is.
        text: What to keep of questions.
        retention_days: Age in days from which an entry is removed, or ``None``.
        max_rows: Most entries kept, or ``None``.
        clock: The present moment, aware.
    """

    def __init__(
        self,
        address: Address,
        *,
        text: str,
        retention_days: float | None,
        max_rows: int | None,
        clock: Callable[[], datetime],
    ) -> None:
        self._address = address
        self._text = text
        self._retention_days = retention_days
        self._max_rows = max_rows
        self._clock = clock
        self._every = _PRUNED_EVERY if max_rows is None else max(1, min(_PRUNED_EVERY, max_rows // 10))
        self.after_fork()

    def after_fork(self) -> None:
        """Start from nothing in a child process."""
        self._lock = threading.Lock()
        self._made: Database | None = None
        # The first batch prunes, so that processes that live for one query keep to the limits, too.
        self._since_pruned = self._every

    def database(self) -> Database:
        """Return the database, made on first use, since SQLAlchemy takes a fifth of a second to load."""
        with self._lock:
            if self._made is None:
                from agentic_retriever.querylog.database import Database  # noqa: PLC0415 - loads SQLAlchemy

                self._made = Database(self._address, text=self._text)
            return self._made

    def write(self, entries: Sequence[LogEntry]) -> int:
        """Write entries, and prune when it is time.

        Returns:
            How many are kept.

        Raises:
            QueryLogError: If none could be written.
        """
        kept = self.database().write(entries)
        self._since_pruned += len(entries)
        if self._since_pruned >= self._every:
            self._since_pruned = 0
            self._prune()
        return kept

    def _prune(self) -> None:
        before = None if self._retention_days is None else self._clock() - timedelta(days=self._retention_days)
        if before is None and self._max_rows is None:
            return
        try:
            self.database().prune(before=before, max_rows=self._max_rows)
        except QueryLogError as err:
            # The entries are written; the next batch but some tries again.
            logger.debug("the query history was not pruned: %s", err)

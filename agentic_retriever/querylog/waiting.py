"""Entries on their way to the database: what a query leaves to the thread that writes."""

from __future__ import annotations

import secrets
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime

    from agentic_retriever.querylog.entry import LogEntry


class Waiting(NamedTuple):
    """An entry, and what it is to be recorded with.

    Attributes:
        entry: The entry.
        recorded_at: The moment, with a time zone.
        entry_id: Its id, the same however often it is tried.
    """

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

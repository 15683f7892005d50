"""Hearing how far a long measurement is."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Hears how far a long step is."""

    def begin(self, what: str, total: int) -> None:
        """A step of so many parts begins."""

    def advance(self, done: int) -> None:
        """So many more parts are done."""


class SilentWatcher:
    """A watcher that nobody listens to."""

    def begin(self, what: str, total: int) -> None:
        """Ignore it."""

    def advance(self, done: int) -> None:
        """Ignore it."""

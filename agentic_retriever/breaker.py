"""A circuit breaker: a server that keeps failing is left alone for a while, then tried with one call."""

from __future__ import annotations

import threading
import time
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class BreakerState(str, Enum):
    """Whether calls go through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Ticket(NamedTuple):
    """Leave to make one call, to be handed back when it ended."""

    generation: int
    is_probe: bool


class Breaker:
    """Counts failures in a row and decides whether the next call may go out; safe to use from several threads.

    Closed, every call goes out. After ``failures`` failures in a row it opens: no call goes out until ``cooldown_s``
    have passed. Then it is half open: one call at a time goes out as a probe. A probe that succeeds closes the breaker,
    one that fails opens it again, for twice as long as before up to ``max_cooldown_s``. The pattern is M. Nygard's
    (Release It!, 2007).

    A call hands back the ticket that :meth:`enter` gave it, so that a late result from before the breaker opened is
    never taken for the probe's.

    Args:
        failures: Failures in a row that open it, at least 1.
        cooldown_s: Seconds that it stays open, above 0.
        max_cooldown_s: Most seconds that it stays open after probes that failed; always ``cooldown_s`` by default.
        clock: Seconds that only grow.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(
        self,
        *,
        failures: int = 3,
        cooldown_s: float = 30.0,
        max_cooldown_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if failures < 1 or not cooldown_s > 0:
            message = f"failures must be at least 1 and cooldown_s above 0, got {failures} and {cooldown_s}"
            raise ValueError(message)
        self.failures = failures
        self.cooldown_s = cooldown_s
        self.failed = 0  # failures in a row so far
        self.openings = 0  # how often it went from closed to open
        self._max_cooldown_s = max(cooldown_s, max_cooldown_s)
        self._clock = clock
        # Reentrant, since the finalizer of a forgotten stream may hand its ticket back in the middle of anything.
        self._lock = threading.RLock()
        self._state = BreakerState.CLOSED
        self._open_s = cooldown_s
        self._opened_at = 0.0
        self._probing = False
        self._generation = 0

    def __repr__(self) -> str:
        return f"Breaker({self.state.value!r}, failures={self.failures}, cooldown_s={self.cooldown_s:g})"

    @property
    def state(self) -> BreakerState:
        """Whether calls go through now."""
        with self._lock:
            self._tick()
            return self._state

    @property
    def retry_in_s(self) -> float:
        """Seconds until the next probe may go out; 0 unless open."""
        with self._lock:
            self._tick()
            if self._state is not BreakerState.OPEN:
                return 0.0
            return max(0.0, self._opened_at + self._open_s - self._clock())

    def enter(self) -> Ticket | None:
        """Give a ticket to hand to :meth:`leave`, or ``None`` when the call must not go out."""
        with self._lock:
            self._tick()
            if self._state is BreakerState.OPEN or (self._state is BreakerState.HALF_OPEN and self._probing):
                return None
            self._probing = self._state is BreakerState.HALF_OPEN
            return Ticket(self._generation, self._probing)

    def leave(self, ticket: Ticket, *, ok: bool | None) -> bool:
        """Note how a call ended, and tell whether that opened the breaker, which was closed.

        Args:
            ticket: What :meth:`enter` returned for it.
            ok: Whether the server did its part; ``None`` when the call says nothing about that.
        """
        with self._lock:
            self._tick()
            if ticket.generation != self._generation:
                return False
            self._probing = False
            if ok:
                self.failed = 0
                if ticket.is_probe:
                    self._open_s = self.cooldown_s
                    self._move(BreakerState.CLOSED)
            elif ok is False:
                self.failed += 1
                if ticket.is_probe:
                    self._open_s = min(self._max_cooldown_s, 2 * self._open_s)
                    self._move(BreakerState.OPEN)
                elif self.failed >= self.failures:
                    self.openings += 1
                    self._move(BreakerState.OPEN)
                    return True
            return False

    def _tick(self) -> None:
        if self._state is BreakerState.OPEN and self._clock() - self._opened_at >= self._open_s:
            self._move(BreakerState.HALF_OPEN)

    def _move(self, state: BreakerState) -> None:
        self._state = state
        self._generation += 1
        if state is BreakerState.OPEN:
            self._opened_at = self._clock()
        elif state is BreakerState.CLOSED:
            self.failed = 0

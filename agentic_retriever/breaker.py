"""A circuit breaker: an endpoint that keeps failing is left alone for a while, then tried with one call."""

from __future__ import annotations

import threading
import time
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class BreakerState(str, Enum):
    """Whether calls go through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Counts failures in a row and decides whether the next call may go out; safe to use from several threads.

    Closed, every call goes out. After ``failures`` failures in a row it opens: no call goes out until ``cooldown_s``
    have passed. Then it is half open: one call at a time goes out as a probe. A probe that succeeds closes the breaker,
    one that fails opens it for another cooldown. The pattern is M. Nygard's (Release It!, 2007).

    A call hands back the ticket that :meth:`enter` gave it, so that a late result from before the breaker opened is
    never taken for the probe's.

    Args:
        failures: Failures in a row that open it, at least 1.
        cooldown_s: Seconds that it stays open, above 0.
        clock: Seconds that only grow.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(
        self, *, failures: int = 3, cooldown_s: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if failures < 1 or not cooldown_s > 0:
            message = f"failures must be at least 1 and cooldown_s above 0, got {failures} and {cooldown_s}"
            raise ValueError(message)
        self.failures = failures
        self.cooldown_s = cooldown_s
        self._clock = clock
        # Reentrant, since the finalizer of a forgotten stream may hand its ticket back in the middle of anything.
        self._lock = threading.RLock()
        self._state = BreakerState.CLOSED
        self._failed = 0
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
            return self._left_s()

    def enter(self) -> int | None:
        """Ask whether a call may go out.

        Returns:
            A ticket to hand to :meth:`leave`, or ``None`` when the call must not go out.
        """
        with self._lock:
            self._tick()
            if self._state is BreakerState.OPEN or (self._state is BreakerState.HALF_OPEN and self._probing):
                return None
            self._probing = self._state is BreakerState.HALF_OPEN
            return self._generation

    def leave(self, ticket: int, *, ok: bool | None) -> None:
        """Say how a call ended.

        Args:
            ticket: What :meth:`enter` returned for it.
            ok: Whether the endpoint did its part; ``None`` when the call says nothing about that.
        """
        with self._lock:
            self._tick()
            if ticket != self._generation:
                return
            self._probing = False
            if ok is None:
                return
            if ok:
                self._failed = 0
                if self._state is BreakerState.HALF_OPEN:
                    self._move(BreakerState.CLOSED)
                return
            self._failed += 1
            if self._state is BreakerState.HALF_OPEN or self._failed >= self.failures:
                self._opened_at = self._clock()
                self._move(BreakerState.OPEN)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        with self._lock:
            self._tick()
            return {"state": self._state.value, "failed": self._failed, "retry_in_s": self._left_s()}

    def _left_s(self) -> float:
        if self._state is not BreakerState.OPEN:
            return 0.0
        return max(0.0, self._opened_at + self.cooldown_s - self._clock())

    def _tick(self) -> None:
        if self._state is BreakerState.OPEN and self._clock() - self._opened_at >= self.cooldown_s:
            self._move(BreakerState.HALF_OPEN)

    def _move(self, state: BreakerState) -> None:
        self._state = state
        self._probing = False
        self._generation += 1
        if state is BreakerState.CLOSED:
            self._failed = 0

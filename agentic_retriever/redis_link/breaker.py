"""A circuit breaker whose trial calls cost nobody anything: they are made in the background."""

from __future__ import annotations

import threading
import time
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Verdict(Enum):
    """What a caller shall do."""

    CALL = "call"
    SKIP = "skip"
    PROBE = "probe"


class Breaker:
    """Opens with the first failure, and lets one caller at a time start a probe once its cooldown is over.

    The cooldown doubles with each probe that fails, up to a limit, and starts over with one that succeeds.

    Args:
        cooldown_s: Seconds from opening to the first probe, above 0.
        max_cooldown_s: Most seconds between two probes.
        timer: Monotonic time in seconds.
    """

    def __init__(
        self, *, cooldown_s: float = 1.0, max_cooldown_s: float = 30.0, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._first_s = cooldown_s
        self._most_s = max(cooldown_s, max_cooldown_s)
        self._timer = timer
        self._lock = threading.Lock()
        self._cooldown_s = cooldown_s
        self._until: float | None = None
        self._probing = False
        self._openings = 0

    @property
    def is_open(self) -> bool:
        """Whether calls are skipped."""
        return self._until is not None

    @property
    def openings(self) -> int:
        """How often it has opened."""
        return self._openings

    def ask(self) -> Verdict:
        """Tell a caller what to do; who is told ``PROBE`` must report with :meth:`probed`."""
        with self._lock:
            if self._until is None:
                return Verdict.CALL
            if self._probing or self._timer() < self._until:
                return Verdict.SKIP
            self._probing = True
            return Verdict.PROBE

    def failed(self) -> bool:
        """Note a call that failed; return whether that opened the breaker."""
        with self._lock:
            if self._until is not None:
                return False
            self._openings += 1
            self._until = self._timer() + self._cooldown_s
            return True

    def probed(self, *, ok: bool) -> None:
        """Note how a probe went: close, or wait twice as long as before."""
        with self._lock:
            self._probing = False
            if ok:
                self._until, self._cooldown_s = None, self._first_s
            else:
                self._cooldown_s = min(self._most_s, self._cooldown_s * 2)
                self._until = self._timer() + self._cooldown_s

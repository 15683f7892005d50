"""One clock for a query: what each step took, and what is left of its time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentic_retriever.errors import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class QueryClock:
    """Counts milliseconds by step, and seconds down to the deadline.

    Args:
        limit_s: Seconds for the whole query.
        timer: Monotonic time in seconds.
    """

    def __init__(self, limit_s: float, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._start = timer()
        self._limit_s = limit_s
        self._steps: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a step."""
        start = self._timer()
        try:
            yield
        finally:
            self._steps[name] = self._steps.get(name, 0.0) + (self._timer() - start) * 1000

    def add(self, name: str, milliseconds: float) -> None:
        """Add time that was measured elsewhere to a step."""
        self._steps[name] = self._steps.get(name, 0.0) + milliseconds

    def left_s(self, doing: str) -> float:
        """Return the seconds that are left.

        Raises:
            DeadlineExceededError: If none are left before ``doing``.
        """
        left = self.remaining_s()
        if left <= 0:
            raise DeadlineExceededError(
                f"the time for this query ({self._limit_s:.1f} s) ran out before {doing}; allow more or ask less"
            )
        return left

    def remaining_s(self) -> float:
        """Return the seconds that are left; 0 or less when the time is up."""
        return self._limit_s - (self._timer() - self._start)

    def elapsed_ms(self) -> float:
        """Return the milliseconds since the query began."""
        return (self._timer() - self._start) * 1000

    def stop(self) -> None:
        """Let no time be left: nobody wants the result any more, so the next step is the end."""
        self._limit_s = 0.0

    def timings_ms(self) -> dict[str, float]:
        """Return milliseconds by step, with ``total``."""
        return {**self._steps, "total": self.elapsed_ms()}

"""Writes that nobody waits for: a bounded line of jobs and one thread that works it off."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_IDLE_S = 1.0


class WriteBehind:
    """Runs jobs one after another in a daemon thread, which starts with the first and ends when there are no more.

    Args:
        name: Of the thread.
        max_jobs: Most jobs in line.
        max_bytes: Most bytes in line.
    """

    def __init__(self, name: str, *, max_jobs: int = 1_024, max_bytes: int = 8_000_000) -> None:
        self._name = name
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._jobs: deque[tuple[int, Callable[[], None]]] = deque()
        self._bytes = 0
        self._busy = False
        self._thread: threading.Thread | None = None

    def put(self, job: Callable[[], None], size: int = 0) -> bool:
        """Put a job in line; never waits.

        Args:
            job: What to do; must not raise.
            size: How many bytes it holds.

        Returns:
            Whether there was room.
        """
        with self._changed:
            if len(self._jobs) >= self._max_jobs or self._bytes + size > self._max_bytes:
                return False
            self._jobs.append((size, job))
            self._bytes += size
            # After a fork the thread is not alive in the child, and one of its own is started there.
            if self._thread is None or not self._thread.is_alive():
                return self._start()
            self._changed.notify_all()
            return True

    def discard(self, timeout_s: float) -> int:
        """Drop the jobs in line, wait for the one under way, and return how many were dropped."""
        with self._changed:
            count = len(self._jobs)
            self._jobs.clear()
            self._bytes = 0
        self.flush(timeout_s)
        return count

    def flush(self, timeout_s: float) -> bool:
        """Wait until all jobs are done; return whether they are."""
        ends = time.monotonic() + timeout_s
        with self._changed:
            while self._jobs or self._busy:
                left = ends - time.monotonic()
                if left <= 0 or self._thread is None or not self._thread.is_alive():
                    return False
                self._changed.wait(left)
            return True

    def _start(self) -> bool:
        self._busy = False
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads can be had: the machine is full, or the interpreter is ending
            self._thread = None
            self._jobs.clear()
            self._bytes = 0
            return False
        return True

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._jobs and not self._changed.wait_for(lambda: self._jobs, _IDLE_S):
                    self._thread = None
                    return
                size, job = self._jobs.popleft()
                self._bytes = max(0, self._bytes - size)
                self._busy = True
            try:
                job()
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

"""Taking notice of changes to an attached index in a thread of its own, which questions wait for only so long."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 2.0
"""A change is waited for that long from the moment that somebody began to look; after that the index stays as it was
read last until it has been read again.
"""

REST_S: Final = 1.0
"""After a failure it is not tried again for that long."""


class CatchingUp:
    """Runs one piece of work at a time, however many wait for it; one that hangs is waited for no longer.

    Args:
        what: What is read, for messages.
        work: Looks and reads; may take any time.
        timer: Gives seconds that only grow.
    """

    def __init__(self, what: str, work: Callable[[], object], *, timer: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._work = work
        self._timer = timer
        # Two places, since a piece of work is done a moment before its thread ends.
        self._caller = DeadlineCaller(what, max_calls=2)
        self._lock = threading.Lock()
        self._running: Future[str | None] | None = None
        self._since = self._rest_until = 0.0
        self._pid = os.getpid()

    def run(self, timeout_s: float) -> str | None:
        """Do the work, or wait for whoever does it already.

        Args:
            timeout_s: Seconds to wait at most; the work goes on after them.

        Returns:
            Why it is not done, for people; ``None`` if it is.
        """
        running, since = self._started()
        try:
            return running.result(timeout=max(0.0, min(timeout_s, since + PATIENCE_S - self._timer())))
        except FutureTimeoutError:
            return f"{self._what} is under way since {self._timer() - since:.1f} s"

    def _started(self) -> tuple[Future[str | None], float]:
        with self._lock:
            running = self._running
            is_over = running is None or self._pid != os.getpid()  # a fork leaves its threads behind
            if running is not None and not is_over and running.done():
                is_over = running.result() is None or self._timer() >= self._rest_until
            if running is None or is_over:
                self._since, self._pid = self._timer(), os.getpid()
                # In a context of its own: it is no part of the question that happened to come first.
                done = partial(contextvars.Context().run, self._done)
                running = self._running = self._caller.start(done, PATIENCE_S)
            return running, self._since

    def _done(self) -> str | None:
        try:
            self._work()
        except AgenticRetrieverError as err:
            self._rest_until = self._timer() + REST_S
            logger.warning("%s failed, so it stays as it was: %s", self._what, err)
            return str(err)
        return None

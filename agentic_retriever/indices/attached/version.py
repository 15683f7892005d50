"""The version of an attached index: it grows when its nodes are seen to have changed."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import StoreError
from agentic_retriever.threads import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from agentic_retriever.indices.attached.sources import NodeSource

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
"""How often what is dear to find out is looked at; less often where a look takes more than a hundredth of that."""

_REST: Final = 100


class WatchedVersion:
    """Looks at a source: at its mark whenever it is asked, at its imprint now and then. Never waits for another thread.

    A source that cannot be looked at keeps its version; searching it will say what is wrong.

    Args:
        name: Name of the index, for messages.
        source: What to look at.
        timer: Gives seconds that only grow.
    """

    def __init__(self, name: str, source: NodeSource, *, timer: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._source = source
        self._timer = timer
        self._lock = threading.Lock()  # never held while the source is looked at, which may hang
        self._version = 1
        self._mark = self._seen(source.mark, None)
        self._imprint: Hashable = None
        self._next_look = 0.0
        self._imprint = self._look()

    def may_differ(self, version: int) -> bool:
        """Tell, in no time, whether :meth:`current` may return another version than this one."""
        is_due = self._timer() >= self._next_look
        return is_due or version != self._version or self._seen(self._source.mark, self._mark) != self._mark

    def current(self) -> int:
        """Look, which may take any time, and return the version."""
        mark, imprint = self._seen(self._source.mark, self._mark), self._imprint
        if mark != self._mark or self._timer() >= self._next_look:
            imprint = self._look()
        with self._lock:
            if (mark, imprint) != (self._mark, self._imprint):
                self._mark, self._imprint = mark, imprint
                self._version += 1
            return self._version

    def grow(self) -> int:
        """Count as changed, and return the new version."""
        with self._lock:
            self._version += 1
            return self._version

    def _look(self) -> Hashable:
        start = self._timer()
        imprint = self._seen(self._source.imprint, self._imprint)
        end = self._timer()
        self._next_look = end + max(LOOK_EVERY_S, _REST * (end - start))
        return imprint

    def _seen(self, look: Callable[[], Hashable], before: Hashable) -> Hashable:
        try:
            return guarded(f"index {self._name}", look)
        except StoreError as err:
            logger.debug("changes of index %r cannot be seen: %s", self._name, err)
            return before

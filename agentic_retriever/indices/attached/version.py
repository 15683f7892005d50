"""The version of an attached index: it grows when its nodes are seen to have changed."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import StoreError
from agentic_retriever.indices.attached.seam import asked

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from agentic_retriever.indices.attached.sources import NodeSource

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
"""How often what is dear to find out is looked at; less often where a look takes more than a hundredth of that."""

_REST: Final = 100


class WatchedVersion:
    """Looks at a source whenever the version is asked for: at its mark each time, at its imprint now and then.

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
        self._lock = threading.Lock()
        self._version = 1
        self._mark = self._seen(source.mark, None)
        self._imprint: Hashable = None
        self._next_look = 0.0
        self._imprint = self._look()

    def current(self) -> int:
        """Return the version."""
        with self._lock:
            mark, imprint = self._seen(self._source.mark, self._mark), self._imprint
            if mark != self._mark or self._timer() >= self._next_look:
                imprint = self._look()
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
            return asked(f"index {self._name}", look)
        except StoreError as err:
            logger.debug("changes of index %r cannot be seen: %s", self._name, err)
            return before

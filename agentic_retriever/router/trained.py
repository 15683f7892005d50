"""What training left beside an index: its measured strategies, and what changes when it is trained anew."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from agentic_retriever.errors import StoreDamagedError
from agentic_retriever.indices.measured import MEASURED_FILE, MeasuredStrategies
from agentic_retriever.retrievers import FUSION_FILE
from agentic_retriever.schema import Degradation

if TYPE_CHECKING:
    from agentic_retriever.indices import RoutedIndex

Stamp = list[tuple[int, int]]
"""When each of the files was last changed, in nanoseconds, and its size in bytes; zeros for one that is not there."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What is known of the strategies on one index.

    Attributes:
        measured: Quality and latency by strategy, or ``None``.
        degraded: Their file, if it cannot be read.
    """

    measured: MeasuredStrategies | None = None
    degraded: tuple[Degradation, ...] = ()


_UNTRAINED = Trained()
_SETTLED_NS = 2_000_000_000
_MISSING = (0, 0)


class TrainedFiles:
    """Reads the files beside each index again when they have changed; safe to use from several threads.

    Args:
        stamps: Tells when they have.
    """

    def __init__(self, stamps: TrainingStamps) -> None:
        self._stamps = stamps
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Stamp, Trained]] = {}

    def of(self, index: RoutedIndex) -> Trained:
        """Return what is known of an index; a file that cannot be read counts as missing and is told."""
        folder, changed = _folder_of(index), self._stamps.of(index)
        if folder is None or not any(map(any, changed)):
            return _UNTRAINED
        with self._lock:
            known = self._known.get(index.name)
            if known is None or known[0] != changed:
                known = self._known[index.name] = changed, _loaded(folder)
            return known[1]


class TrainingStamps:
    """Tells what changes whenever training changes how an index is searched; safe to use from several threads.

    Files that were not there are looked for only when their folder has changed, as it does whenever a file comes or
    goes; those that were there always, as they may also be written over in place.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, tuple[str, ...]]] = {}

    def of(self, index: RoutedIndex) -> Stamp:
        """Return the stamp of an index; of one without a folder, nothing."""
        where = _folder_of(index)
        if where is None:
            return []
        folder = str(where)
        changed = _changed(folder)[0]
        known = self._known.get(folder)
        if known is not None and known[0] == changed:
            return [_changed(path) if path else _MISSING for path in known[1]]
        paths = _paths(folder)
        stamp = [_changed(path) for path in paths]
        # A folder that changed a moment ago may change again within the clock's resolution.
        if time.time_ns() - changed > _SETTLED_NS:
            there = (path if seen is not _MISSING else "" for path, seen in zip(paths, stamp, strict=True))
            self._known[folder] = changed, tuple(there)
        return stamp


def _folder_of(index: RoutedIndex) -> Path | None:
    # As isinstance with the protocol HasFolder would tell, which takes longer than all else that is done here.
    folder: Path | None = getattr(index, "folder", None)
    return folder


@lru_cache(1_024)
def _paths(folder: str) -> tuple[str, str]:
    # As texts, made once: every query asks for them, and joining paths costs more than asking the file system.
    return str(Path(folder) / MEASURED_FILE), str(Path(folder) / FUSION_FILE)


def _loaded(folder: Path) -> Trained:
    try:
        return Trained(MeasuredStrategies.load(folder))
    except StoreDamagedError as err:
        lost = Degradation(step="stage_two.measured", reason=str(err), fallback="the signals alone")
        return Trained(degraded=(lost,))


def _changed(path: str) -> tuple[int, int]:
    """When a file was last changed, in nanoseconds, and its size; ``_MISSING`` when it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116 - see _paths
    except OSError:
        return _MISSING
    return found.st_mtime_ns, found.st_size

"""What benchmark and training left beside an index: measured strategies and a strategy model."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from agentic_retriever.errors import StoreDamagedError
from agentic_retriever.indices.measured import MEASURED_FILE, MeasuredStrategies
from agentic_retriever.retrievers import FUSION_FILE
from agentic_retriever.routing import MODEL_FILE, StrategyModel
from agentic_retriever.schema import Degradation

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentic_retriever.indices import Index

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trained:
    """What is known of the strategies on one index.

    Attributes:
        measured: Quality and latency by strategy, or ``None``.
        model: The strategy model, or ``None``.
        degraded: Files that cannot be read.
    """

    measured: MeasuredStrategies | None = None
    model: StrategyModel | None = None
    degraded: tuple[Degradation, ...] = ()


_UNTRAINED = Trained()


class TrainedFiles:
    """Reads the files beside each index again when they have changed; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[tuple[int, int], Trained]] = {}

    def of(self, index: Index) -> Trained:
        """Return what is known of an index; a file that cannot be read counts as missing and is told."""
        folder = index.folder
        paths = _paths(str(folder))
        changed = _changed(paths[0]), _changed(paths[1])
        if changed == (0, 0):
            return _UNTRAINED
        with self._lock:
            known = self._known.get(index.name)
            if known is None or known[0] != changed:
                measured, no_measured = _read("measured", lambda: MeasuredStrategies.load(folder))
                model, no_model = _read("learned", lambda: StrategyModel.load(folder / MODEL_FILE))
                known = self._known[index.name] = changed, Trained(measured, model, (*no_measured, *no_model))
            return known[1]


def training_stamp(index: Index) -> list[int]:
    """Return what changes whenever training changes how an index is searched."""
    return [_changed(path) for path in _paths(str(index.folder))]


@lru_cache(1_024)
def _paths(folder: str) -> tuple[str, str, str]:
    # As texts, made once: every query asks for them, and joining paths costs more than asking the file system.
    measured, model, fusion = (str(Path(folder) / name) for name in (MEASURED_FILE, MODEL_FILE, FUSION_FILE))
    return measured, model, fusion


def _changed(path: str) -> int:
    """When a file was last changed, in nanoseconds; 0 when it is not there."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - see _paths
    except OSError:
        return 0


def _read(what: str, load: Callable[[], T | None]) -> tuple[T | None, tuple[Degradation, ...]]:
    try:
        return load(), ()
    except StoreDamagedError as err:
        return None, (Degradation(step=f"stage_two.{what}", reason=str(err), fallback="the signals alone"),)

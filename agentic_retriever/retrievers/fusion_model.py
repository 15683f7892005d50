"""How much hybrid search trusts its dense side: evenly, by question, or as fitted on judged questions of an index.

A question's best cosine is compared with the cosines between unrelated nodes of the index, and with what the best of
that many nodes would reach by chance. Far above, the dense side has found something, and gets more weight; below, the
words get more. The constants of the default were chosen on public collections, each judged by constants chosen on the
others; docs/strategies.md has the table.
"""

from __future__ import annotations

import math
import threading
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import StoreDamagedError
from agentic_retriever.json_files import (
    check_format,
    check_trained_on,
    is_finite,
    load_model,
    model_bytes,
    require,
    table_of,
    write_atomically,
)

if TYPE_CHECKING:
    from pathlib import Path

FUSION_FILE: Final = "fusion.json"
FUSION_FORMAT: Final = 1
MIN_NODES: Final = 30
"""Below so many nodes the spread of cosines says too little."""

_SLOPE: Final = 0.1
_PIVOT: Final = 0.4
_REACH: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionTrainedOn:
    """What a fusion model was fitted on."""

    dataset: str
    index: str
    index_version: int
    rows: int
    date: str  # When, ISO 8601

    def __post_init__(self) -> None:
        check_trained_on(self, texts=("dataset", "index", "date"), counts=("index_version", "rows"))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionModel:
    """The weight of the dense side, by question.

    The weight is ``alpha`` where the excess of the best cosine (see :func:`dense_excess`) is ``pivot``, or not known.
    It rises by ``slope`` with each standard deviation of excess, moves at most ``reach`` away from ``alpha``, and stays
    in [0, 1]. With a slope of 0 it is the same for every question; ``alpha`` 0 is BM25 alone, 1 dense search alone.
    """

    alpha: float = 0.5  # In [0, 1]
    slope: float = _SLOPE
    pivot: float = _PIVOT
    reach: float = _REACH  # In [0, 1]
    trained_on: FusionTrainedOn | None = None  # What it was fitted on; None for the default

    def __post_init__(self) -> None:
        for name in ("alpha", "reach"):
            value = getattr(self, name)
            require(is_finite(value) and 0 <= value <= 1, name, "a number from 0 to 1", value)
        require(is_finite(self.slope) and self.slope >= 0, "slope", "a number from 0", self.slope)
        require(is_finite(self.pivot), "pivot", "a finite number", self.pivot)
        trained = self.trained_on
        require(trained is None or isinstance(trained, FusionTrainedOn), "trained_on", "a FusionTrainedOn", trained)

    def weight(self, excess: float | None) -> float:
        """Return the weight of the dense side, in [0, 1]; that of BM25 is the rest."""
        if excess is None or not math.isfinite(excess):
            return self.alpha
        moved = max(-self.reach, min(self.reach, self.slope * (excess - self.pivot)))
        return max(0.0, min(1.0, self.alpha + moved))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"format": FUSION_FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, data: object) -> FusionModel:
        """Read what ``to_dict`` returned."""
        table = table_of(data, "the model", ("format", *cls.__dataclass_fields__))
        check_format(table, FUSION_FORMAT)
        trained = table["trained_on"]
        if trained is not None:
            if isinstance(trained, dict):
                # Of the time when weights were also fitted without judgments.
                trained = {name: value for name, value in trained.items() if name != "pseudo"}
            trained = FusionTrainedOn(**table_of(trained, "trained_on", FusionTrainedOn.__dataclass_fields__))
        numbers = {name: table[name] for name in ("alpha", "slope", "pivot", "reach")}
        return cls(**numbers, trained_on=trained)

    def save(self, path: Path) -> None:
        """Write the model as JSON in one step."""
        write_atomically(path, model_bytes(self.to_dict()))

    @classmethod
    def load(cls, path: Path) -> FusionModel | None:
        """Read a model; ``None`` when there is no such file."""
        return load_model(path, cls.from_dict, advice="remove it or train the index again")


@dataclass(frozen=True, slots=True, kw_only=True)
class CosineBackground:
    """What cosines are worth on an index."""

    mean: float
    std: float
    nodes: int


def dense_excess(best: float | None, background: CosineBackground | None) -> float | None:
    """Tell how far the best cosine of a search stands above what the best of unrelated nodes reaches by chance.

    That is the median of the largest of ``n`` standard normal numbers, so that a large index, in which something is
    always near, does not count as one that knows the answer.
    """
    if best is None or background is None or background.nodes < MIN_NODES or not background.std > 0:
        return None
    by_chance = NormalDist().inv_cdf(2 ** (-1 / background.nodes))
    excess = (best - background.mean) / background.std - by_chance
    return excess if math.isfinite(excess) else None


class InstalledFusion:
    """Reads the fusion model beside an index, again when the file has changed; safe to use from several threads."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: tuple[tuple[int, int], FusionModel | StoreDamagedError] | None = None

    def current(self) -> FusionModel:
        """Return the model of the index, or the default when there is none."""
        stamp = None if self._path is None else _stamp(self._path)
        if self._path is None or stamp is None:
            return DEFAULT_FUSION
        with self._lock:
            if self._known is None or self._known[0] != stamp:
                self._known = stamp, _read(self._path)
            found = self._known[1]
        if isinstance(found, StoreDamagedError):
            raise StoreDamagedError(str(found)) from found
        return found


def _stamp(path: Path) -> tuple[int, int] | None:
    """When a file was last changed, in nanoseconds, and its size; ``None`` when it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _read(path: Path) -> FusionModel | StoreDamagedError:
    try:
        return FusionModel.load(path) or DEFAULT_FUSION
    except StoreDamagedError as err:
        return err


DEFAULT_FUSION: Final = FusionModel()
"""Without judged questions: both sides alike, moved by at most 0.2 by what the dense side has found."""

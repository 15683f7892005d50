"""Merging ranked lists of several sources into one, and how much hybrid search trusts each.

All methods take ``{source: [(node_id, score), ...]}`` and ``{source: weight}``. Within a source the order is by
falling score, then by id, whatever order the list came in; an id that comes twice counts with its best score; a score
that is ``None``, NaN or infinite ranks behind all others of its source. The result is a new list by falling fused
score, then by id, and does not depend on the order of the sources. Every id of every list is in it.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final, TypeAlias

from agentic_retriever.errors import ConfigError
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

Entry: TypeAlias = tuple[str, float | None]
Ranking: TypeAlias = Sequence[Entry]
Lists: TypeAlias = Mapping[str, Ranking]
Weights: TypeAlias = Mapping[str, float]

RRF_K: Final = 60


class Fusion(str, Enum):
    """The ways to merge, by the names that the settings use."""

    CALIBRATED = "calibrated"
    WEIGHTED = "weighted"
    RRF = "rrf"
    BORDA = "borda"


def fuse(
    method: Fusion, lists: Lists, weights: Weights, *, rrf_k: int = RRF_K, floors: Mapping[str, float] | None = None
) -> list[tuple[str, float]]:
    """Merge by the named method; see the functions of this module."""
    if method is Fusion.CALIBRATED:
        return calibrated(lists, weights, floors=floors)
    if method is Fusion.RRF:
        return reciprocal_rank(lists, weights, k=rrf_k)
    return weighted_sum(lists, weights) if method is Fusion.WEIGHTED else borda(lists, weights)


def calibrated(lists: Lists, weights: Weights, *, floors: Mapping[str, float] | None = None) -> list[tuple[str, float]]:
    """Add up weighted scores as ``weighted_sum`` does, from the floor of each source where it is known.

    A list that was cut at some depth ends where it was cut, and what lies below gets 0. A list that holds all that its
    source has found ends above what it has not found, and the score of that is its floor: 0 for BM25. So the last of a
    few hits by words is worth more than no hit (the theoretical minimum of S. Bruch, S. Gai and A. Ingber, "An Analysis
    of Fusion Functions for Hybrid Retrieval", TOIS 42, 2023, but only where the list is whole).
    """
    known = floors or {}
    _check_weights(lists, weights)
    units = {source: _to_unit(ranked(entries), known.get(source)) for source, entries in lists.items()}
    ids = {node_id for entries in lists.values() for node_id, _score in entries}
    totals = [(i, math.fsum(weights[source] * got.get(i, 0.0) for source, got in units.items())) for i in ids]
    return sorted(totals, key=lambda entry: (-entry[1], entry[0]))


def weighted_sum(lists: Lists, weights: Weights) -> list[tuple[str, float]]:
    """Add up the weighted scores, each brought to [0, 1] within its source (CombSUM: Fox and Shaw 1994).

    The best of a source becomes 1, the worst 0. Where all scores are the same, a single one included, all become 1. An
    id that a source does not have gets 0 from it.
    """
    return _combine(lists, weights, lambda entries, _count: _to_unit(entries))


def reciprocal_rank(lists: Lists, weights: Weights, *, k: int = RRF_K) -> list[tuple[str, float]]:
    """Add up ``weight / (k + rank)``, ranks from 1 (Cormack, Clarke and Buettcher 2009, "Reciprocal Rank Fusion")."""
    if k < 1:
        raise ConfigError(f"the constant of reciprocal rank fusion must be 1 or more, got {k!r}")
    return _combine(
        lists,
        weights,
        lambda entries, _count: {node_id: 1 / (k + i) for i, (node_id, _) in enumerate(entries, start=1)},
    )


def borda(lists: Lists, weights: Weights) -> list[tuple[str, float]]:
    """Let each source vote: of ``n`` ids in all, its first gets ``n`` points, its second ``n - 1``, and so on.

    The points that a source has left over are shared equally by the ids that it does not have (Aslam and Montague 2001,
    "Models for Metasearch"). Points are divided by ``n``, so that scores stay in [0, 1] when the weights sum to 1.
    """
    return _combine(
        lists,
        weights,
        lambda entries, count: {node_id: (count - i) / count for i, (node_id, _) in enumerate(entries)},
        missing=lambda entries, count: (count - len(entries) + 1) / (2 * count),
    )


def _combine(
    lists: Lists,
    weights: Weights,
    points: Callable[[list[Entry], int], Mapping[str, float]],
    *,
    missing: Callable[[list[Entry], int], float] = lambda _entries, _count: 0.0,
) -> list[tuple[str, float]]:
    _check_weights(lists, weights)
    in_order = {source: ranked(lists[source]) for source in lists}
    ids = {node_id for entries in in_order.values() for node_id, _score in entries}
    parts = [
        (weights[source], points(entries, len(ids)), missing(entries, len(ids)) if entries else 0.0)
        for source, entries in in_order.items()
    ]
    # fsum gives the same sum in any order of the sources.
    totals = [(i, math.fsum(weight * got.get(i, absent) for weight, got, absent in parts)) for i in ids]
    return sorted(totals, key=lambda entry: (-entry[1], entry[0]))


def ranked(entries: Ranking) -> list[Entry]:
    """Return a list in order, without repetitions; a score that is no finite number becomes ``None`` and goes last."""
    best: dict[str, float | None] = {}
    for node_id, score in entries:
        value = float(score) if score is not None and math.isfinite(score) else None
        known = best.get(node_id)
        best[node_id] = value if known is None else max(known, known if value is None else value)
    return sorted(best.items(), key=lambda entry: (entry[1] is None, -(entry[1] or 0.0), entry[0]))


def _to_unit(entries: list[Entry], floor: float | None = None) -> dict[str, float]:
    finite = [(node_id, score) for node_id, score in entries if score is not None]
    if not finite:
        return {}
    high, low = finite[0][1], finite[-1][1]
    if floor is not None and math.isfinite(floor):
        low = min(low, floor)
    if len(finite) < len(entries):
        # One step lower, so that the worst of those with a score stays ahead of those without, which get 0.
        low = max(math.nextafter(low, -math.inf), -sys.float_info.max)
    if high == low:
        return dict.fromkeys((node_id for node_id, _score in finite), 1.0)
    # Halved, the difference of very large numbers of opposite sign does not overflow.
    scale = 1.0 if math.isfinite(high - low) else 0.5
    span = high * scale - low * scale
    return {node_id: (score * scale - low * scale) / span for node_id, score in finite}


def unit_scores(entries: Ranking) -> dict[str, float]:
    """Bring scores to [0, 1], best first: all 1 where they are the same; what has no score gets 0."""
    in_order = ranked(entries)
    units = _to_unit([entry for entry in in_order if entry[1] is not None])
    return {node_id: units.get(node_id, 0.0) for node_id, _score in in_order}


def _check_weights(lists: Lists, weights: Weights) -> None:
    for source in lists:
        weight = weights.get(source)
        if weight is None or not math.isfinite(weight) or weight < 0:
            raise ConfigError(f"fusion needs a weight of 0 or more for the source {source!r}, got {weight!r}")


# How much hybrid search trusts its dense side: evenly, by question, or as fitted on judged questions of an index.
#
# A question's best cosine is compared with the cosines between unrelated nodes of the index, and with what the best of
# that many nodes would reach by chance. Far above, the dense side has found something, and gets more weight; below, the
# words get more. The constants of the default were chosen on public collections, each judged by constants chosen on the
# others; docs/training.md has the table.

FUSION_FILE: Final = "fusion.json"
FUSION_FORMAT: Final = 1
MIN_NODES: Final = 30
"""Below so many nodes the spread of cosines says too little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionTrainedOn:
    """What a fusion model was fitted on."""

    dataset: str
    index: str
    index_version: int
    rows: int
    date: str  # ISO 8601

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

    alpha: float = 0.5  # in [0, 1]
    slope: float = 0.1
    pivot: float = 0.4
    reach: float = 0.2  # in [0, 1]
    trained_on: FusionTrainedOn | None = None  # none for the default

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


DEFAULT_FUSION: Final = FusionModel()
"""Without judged questions: both sides alike, moved by at most 0.2 by what the dense side has found."""


class InstalledFusion:
    """Reads the fusion model beside an index, again when the file has changed; safe to use from several threads."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: tuple[tuple[int, int], FusionModel] | None = None

    def current(self) -> FusionModel:
        """Return the model of the index, or the default when there is none."""
        stamp = None if self._path is None else _stamp(self._path)
        if self._path is None or stamp is None:
            return DEFAULT_FUSION
        with self._lock:
            if self._known is None or self._known[0] != stamp:
                self._known = stamp, FusionModel.load(self._path) or DEFAULT_FUSION
            return self._known[1]


def _stamp(path: Path) -> tuple[int, int] | None:
    """When a file was last changed, in nanoseconds, and its size; ``None`` when it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size

"""Merging ranked lists of several sources into one.

All methods take ``{source: [(node_id, score), ...]}`` and ``{source: weight}``. Within a source the order is by
falling score, then by id, whatever order the list came in; an id that comes twice counts with its best score; a score
that is ``None``, NaN or infinite ranks behind all others of its source. The result is a new list by falling fused
score, then by id, and does not depend on the order of the sources. Every id of every list is in it.
"""

from __future__ import annotations

import math
import sys
from enum import Enum
from typing import TYPE_CHECKING

from agentic_retriever.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Entry = tuple[str, float | None]
    Ranking = Sequence[Entry]
    Lists = Mapping[str, Ranking]
    Weights = Mapping[str, float]


RRF_K = 60


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


def _check_weights(lists: Lists, weights: Weights) -> None:
    for source in lists:
        weight = weights.get(source)
        if weight is None or not math.isfinite(weight) or weight < 0:
            raise ConfigError(f"fusion needs a weight of 0 or more for the source {source!r}, got {weight!r}")

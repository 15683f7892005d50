"""Which points are wanted, and how deep to look for the best; the same for the engine in this process and on a server.

An engine is asked for more than is wanted: some of what it finds may not satisfy the part of a filter that it does not
understand, and of points with the lowest score it may have left out some.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from agentic_retriever.filters.check import walk_clauses
from agentic_retriever.indices.edge_fields import payload_path
from agentic_retriever.indices.edge_filters import NO_SOURCE
from agentic_retriever.indices.edge_payload import payload_fields
from agentic_retriever.indices.point_reading import warn_of_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.filters import Predicate
    from agentic_retriever.indices.point_reading import PointT

PAGE: Final = 1_000
"""Points that are read at a time."""

TIE_MARGIN: Final = 8
MAX_GUESS: Final = 1_024
"""How many more points than are wanted are looked at before it is found out which points a filter lets through."""

_MAX_TIES: Final = 4_096
_GROWTH: Final = 4

FilterT = TypeVar("FilterT")
HitT = TypeVar("HitT")
SideT = TypeVar("SideT")


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPoints(Generic[FilterT]):
    """Which points are wanted.

    Attributes:
        filter: What the engine checks, in its own words; it lets every wanted point through. ``None`` is no filter.
        exact: Whether it lets through nothing else.
        accepts: Decides on the metadata of a point.
        keys: The metadata fields that ``accepts`` looks at.
    """

    filter: FilterT | None
    exact: bool
    accepts: Predicate
    keys: tuple[str, ...]

    def among(self, records: Sequence[PointT]) -> list[PointT]:
        """Return those that are wanted of points that the filter let through, in the same order."""
        if self.exact:
            return list(records)
        return [record for record in records if self.accepts(payload_fields(record.payload or {}))]

    def narrowed(self, exactly: FilterT) -> WantedPoints[FilterT]:
        """Return the same points with a filter that lets through nothing else."""
        return replace(self, filter=exactly, exact=True)

    @property
    def payload(self) -> bool | list[str]:
        """What of a payload decides: none of it, these fields as the engine's paths, or all."""
        if self.exact:
            return False
        paths = [payload_path(key) for key in self.keys]
        return True if None in paths else [path for path in paths if path is not None]


def filter_keys(filters: MetadataFilters | None) -> tuple[str, ...]:
    """Return the metadata fields that filters look at, sorted."""
    return tuple(sorted({clause.key for clause in walk_clauses(filters)}))


def source_ids(doc_ids: Iterable[str]) -> list[str]:
    """Return the ids of sources without what stands for no source, sorted."""
    return sorted({doc_id for doc_id in doc_ids if doc_id != NO_SOURCE})


def find_best(
    sides: Sequence[SideT],
    top_k: int,
    wanted: WantedPoints[FilterT],
    *,
    ask: Callable[[Sequence[SideT], int, WantedPoints[FilterT]], Sequence[Sequence[PointT]]],
    resolve: Callable[[WantedPoints[FilterT]], WantedPoints[FilterT]],
    read: Callable[[Sequence[PointT], bool], tuple[list[HitT], int]],
) -> list[list[HitT]]:
    """Find the best wanted points, looking deeper until they are known.

    Args:
        sides: The ways to search.
        top_k: How many of each at most, from 1.
        wanted: Which points to choose from.
        ask: Gives for each of some sides so many points at most that the filter lets through, by falling score.
        resolve: Finds out which points are wanted, so that the engine can be asked for exactly these.
        read: Puts points in order, given whether there are no more than these, see :func:`rank`; returns the best
            ``top_k`` as hits, and how many points are not ours.

    Returns:
        For each side hits by falling score and then by node id; fewer than ``top_k`` only where no more exist. More
        than 4,096 equal scores at the end of a list are cut by the engine's order.
    """
    limit = top_k + TIE_MARGIN if wanted.exact else _GROWTH * top_k + 2 * TIE_MARGIN
    found: dict[int, list[HitT]] = {}
    while len(found) < len(sides):
        if not wanted.exact and limit > MAX_GUESS + top_k:
            wanted = resolve(wanted)
        waiting = [i for i in range(len(sides)) if i not in found]
        for i, points in zip(waiting, ask([sides[i] for i in waiting], limit, wanted), strict=True):
            exhausted = len(points) < limit
            hits, foreign = read(points, exhausted or limit > top_k + _MAX_TIES)
            if exhausted or len(hits) == top_k:
                warn_of_foreign(foreign)
                found[i] = hits
        limit *= _GROWTH
    return [found[i] for i in range(len(sides))]

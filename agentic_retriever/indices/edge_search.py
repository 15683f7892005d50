"""Searching and listing the points of an engine: exact, whatever part of a filter the engine itself understands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from qdrant_edge import (
    CountRequest,
    FieldCondition,
    Filter,
    HasIdCondition,
    MatchAny,
    PayloadSelector,
    Query,
    QueryRequest,
    ScrollRequest,
    SearchParams,
)

from agentic_retriever.filters import predicate
from agentic_retriever.filters.check import walk_clauses
from agentic_retriever.indices.edge_fields import payload_path
from agentic_retriever.indices.edge_filters import NO_SOURCE, nothing, push_down
from agentic_retriever.indices.edge_payload import payload_fields, point_id
from agentic_retriever.indices.point_ranking import rank, read_hits, warn_of_foreign

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    import numpy as np
    import numpy.typing as npt
    from llama_index.core.vector_stores.types import MetadataFilters
    from qdrant_edge import EdgeShard, Record, ScoredPoint

    from agentic_retriever.filters import Predicate
    from agentic_retriever.indices.point_ranking import Hit

    PointId = int | UUID | str

PAGE: Final = 1_000
_TIE_MARGIN: Final = 8
_MAX_TIES: Final = 4_096
_GROWTH: Final = 4
_MAX_GUESS: Final = 1_024
_GRAPH_EFFORT: Final = 512  # candidates that a search through the graph keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which points are wanted.

    Attributes:
        filter: What the engine checks; it lets every wanted point through.
        exact: Whether it lets through nothing else.
        accepts: Decides on the metadata of a point.
        keys: The metadata fields that ``accepts`` looks at.
    """

    filter: Filter | None
    exact: bool
    accepts: Predicate
    keys: tuple[str, ...]


def select(
    filters: MetadataFilters | None,
    *,
    kinds: Mapping[str, str],
    node_ids: Sequence[str] | None = None,
    doc_ids: Sequence[str] | None = None,
) -> Selection:
    """Say which points are wanted; every restriction narrows the others.

    Args:
        filters: Metadata filters; ``None`` or empty for no restriction.
        kinds: The kind of payload index of each indexed field.
        node_ids: Only these nodes; an empty list is none.
        doc_ids: Only nodes of these sources; an empty list is none.

    Returns:
        The selection.

    Raises:
        FilterError: The filters cannot be evaluated.
    """
    accepts = predicate(filters)
    pushed = push_down(filters, kinds)
    must: list[Any] = []
    if node_ids is not None:
        must.append(HasIdCondition({point_id(node_id) for node_id in node_ids}))
    if doc_ids is not None:
        sources = sorted({doc_id for doc_id in doc_ids if doc_id != NO_SOURCE})
        must.append(FieldCondition("doc_id", match=MatchAny(sources)) if sources else nothing())
    if pushed.condition is not None:
        must.append(pushed.condition)
    keys = tuple(sorted({clause.key for clause in walk_clauses(filters)}))
    return Selection(filter=Filter(must=must) if must else None, exact=pushed.exact, accepts=accepts, keys=keys)


def search(
    edge: EdgeShard, vector: npt.NDArray[np.float32], top_k: int, wanted: Selection, *, approximate: bool = False
) -> list[Hit]:
    """Find the wanted points nearest to a vector.

    Args:
        edge: The engine.
        vector: A unit vector, ``(dim,)``.
        top_k: How many at most.
        wanted: Which points to choose from.
        approximate: Whether the engine has a graph to search through; what the graph does not find is then searched for
            without it.

    Returns:
        At most ``top_k`` hits, by falling score and then by node id; fewer only where no more exist. More than 4,096
        equal scores at the end of the list are cut by the engine's order.
    """
    if top_k > PAGE:  # the engine sets memory aside for as many as it is asked for
        top_k = max(1, min(top_k, edge.count(CountRequest(exact=True))))
    limit = top_k + _TIE_MARGIN if wanted.exact else _GROWTH * top_k + 2 * _TIE_MARGIN
    exact = not approximate
    while True:
        if not wanted.exact and limit > _MAX_GUESS + top_k:
            wanted = _resolve(edge, wanted)
        points = _nearest(edge, vector, limit, wanted.filter, exact=exact)
        exhausted = len(points) < limit
        if exhausted and not exact:
            exact = True
            continue
        ranked, foreign = rank(points, wanted.accepts, whole=exhausted or limit > top_k + _MAX_TIES)
        hits = read_hits(ranked, top_k)
        if exhausted or len(hits) == top_k:
            warn_of_foreign(foreign)
            return hits
        limit *= _GROWTH


def scan(edge: EdgeShard, wanted: Selection, *, whole: bool = False) -> Iterator[Record]:
    """Go through the wanted points in the engine's order.

    Args:
        edge: The engine.
        wanted: Which points.
        whole: Whether the whole payload is needed, or just enough to decide.

    Yields:
        The points.
    """
    records, offset = read_page(edge, wanted, None, whole=whole)
    yield from records
    while offset is not None:
        records, offset = read_page(edge, wanted, offset, whole=whole)
        yield from records


def read_page(
    edge: EdgeShard, wanted: Selection, offset: PointId | None, *, size: int = PAGE, whole: bool = False
) -> tuple[list[Record], PointId | None]:
    """Read one page of the wanted points.

    Args:
        edge: The engine.
        wanted: Which points.
        offset: Where the page starts; ``None`` for the first.
        size: How many points the engine looks at.
        whole: Whether the whole payload is needed, or just enough to decide.

    Returns:
        The points, and where the next page starts; ``None`` after the last.
    """
    request = ScrollRequest(offset=offset, limit=size, filter=wanted.filter, with_payload=whole or _needed(wanted))
    records, following = edge.scroll(request)
    if not wanted.exact:
        records = [record for record in records if wanted.accepts(payload_fields(record.payload or {}))]
    return records, following


def count(edge: EdgeShard, wanted: Selection) -> int:
    """Count the wanted points.

    Args:
        edge: The engine.
        wanted: Which points.

    Returns:
        How many there are.
    """
    if wanted.exact:
        return edge.count(CountRequest(exact=True, filter=wanted.filter))
    return sum(1 for _ in scan(edge, wanted))


def _resolve(edge: EdgeShard, wanted: Selection) -> Selection:
    ids = {record.id for record in scan(edge, wanted)}
    narrowed = Filter(must=[HasIdCondition(ids)])
    return Selection(filter=narrowed, exact=True, accepts=wanted.accepts, keys=wanted.keys)


def _needed(wanted: Selection) -> bool | PayloadSelector:
    if wanted.exact:
        return False
    paths = [payload_path(key) for key in wanted.keys]
    return True if None in paths else PayloadSelector.Include(cast("list[str]", paths))


def _nearest(
    edge: EdgeShard, vector: npt.NDArray[np.float32], limit: int, condition: Filter | None, *, exact: bool
) -> list[ScoredPoint]:
    request = QueryRequest(
        limit=limit,
        query=Query.Nearest(cast("list[float]", vector)),
        filter=condition,
        params=SearchParams(exact=True) if exact else SearchParams(hnsw_ef=max(_GRAPH_EFFORT, 2 * limit)),
        with_payload=True,
    )
    return edge.query(request)

"""Searching and listing the points of an engine: exact, whatever part of a filter the engine itself understands."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

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
from agentic_retriever.indices.edge_filters import nothing, push_down
from agentic_retriever.indices.edge_payload import point_id
from agentic_retriever.indices.point_ranking import ranked_hits
from agentic_retriever.indices.point_search import PAGE, WantedPoints, filter_keys, find_best, source_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from uuid import UUID

    import numpy as np
    import numpy.typing as npt
    from llama_index.core.vector_stores.types import MetadataFilters
    from qdrant_edge import EdgeShard, Record, ScoredPoint

    from agentic_retriever.indices.known_points import FactT, KnownPoints
    from agentic_retriever.indices.point_ranking import Hit
    from agentic_retriever.indices.point_search import HitT

    PointId = int | UUID | str

Wanted: TypeAlias = WantedPoints[Filter]

_GRAPH_EFFORT: Final = 512  # candidates that a search through the graph keeps


def select(
    filters: MetadataFilters | None,
    *,
    kinds: Mapping[str, str],
    node_ids: Sequence[str] | None = None,
    doc_ids: Sequence[str] | None = None,
) -> Wanted:
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
        sources = source_ids(doc_ids)
        must.append(FieldCondition("doc_id", match=MatchAny(sources)) if sources else nothing())
    if pushed.condition is not None:
        must.append(pushed.condition)
    condition = Filter(must=must) if must else None
    return WantedPoints(filter=condition, exact=pushed.exact, accepts=accepts, keys=filter_keys(filters))


def search(
    edge: EdgeShard, vector: npt.NDArray[np.float32], top_k: int, wanted: Wanted, *, approximate: bool = False
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
    top_k = _reachable(edge, top_k)
    read = partial(ranked_hits, accepts=wanted.accepts, top_k=top_k)
    return _best(edge, vector, top_k, wanted, approximate=approximate, payload=True, read=read)


def search_known(
    edge: EdgeShard,
    vector: npt.NDArray[np.float32],
    top_k: int,
    wanted: Wanted,
    known: KnownPoints[FactT],
    *,
    approximate: bool = False,
) -> list[tuple[FactT, float]]:
    """Find the wanted points nearest to a vector, and read only those of which nothing is known.

    Args:
        edge: The engine.
        vector: A unit vector, ``(dim,)``.
        top_k: How many at most.
        wanted: Which points to choose from, exactly.
        known: What is known of the points.
        approximate: As for :func:`search`.

    Returns:
        Facts and cosines, in the order of :func:`search`.
    """
    top_k = _reachable(edge, top_k)

    def retrieve(point_ids: Sequence[str]) -> list[Record]:
        return edge.retrieve(list(point_ids), with_payload=True, with_vector=False)

    def read(points: Sequence[ScoredPoint], whole: bool) -> tuple[list[tuple[FactT, float]], int]:
        floor = float("-inf") if whole or not points else points[-1].score
        scores = {str(point.id): point.score for point in points if point.score > floor}
        facts = known.of(list(scores), retrieve, lambda record: str(record.id))
        order = sorted(facts, key=lambda point_id: (-scores[point_id], facts[point_id][0]))
        return [(facts[point_id][1], scores[point_id]) for point_id in order[:top_k]], len(scores) - len(facts)

    return _best(edge, vector, top_k, wanted, approximate=approximate, payload=False, read=read)


def _best(
    edge: EdgeShard,
    vector: npt.NDArray[np.float32],
    top_k: int,
    wanted: Wanted,
    *,
    approximate: bool,
    payload: bool,
    read: Callable[[Sequence[ScoredPoint], bool], tuple[list[HitT], int]],
) -> list[HitT]:
    exact = not approximate

    def ask(_sides: Sequence[object], limit: int, wanted: Wanted) -> list[list[ScoredPoint]]:
        nonlocal exact
        points = _nearest(edge, vector, limit, wanted.filter, exact=exact, payload=payload)
        if len(points) < limit and not exact:
            exact = True
            points = _nearest(edge, vector, limit, wanted.filter, exact=True, payload=payload)
        return [points]

    [hits] = find_best([vector], top_k, wanted, ask=ask, resolve=partial(_resolve, edge), read=read)
    return hits


def _reachable(edge: EdgeShard, top_k: int) -> int:
    """Cut a number of hits at what there is, since the engine sets memory aside for as many as it is asked for."""
    return top_k if top_k <= PAGE else max(1, min(top_k, edge.count(CountRequest(exact=True))))


def scan(edge: EdgeShard, wanted: Wanted, *, whole: bool = False) -> Iterator[Record]:
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
    edge: EdgeShard, wanted: Wanted, offset: PointId | None, *, size: int = PAGE, whole: bool = False
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
    fields = wanted.payload
    payload = PayloadSelector.Include(fields) if isinstance(fields, list) else fields
    request = ScrollRequest(offset=offset, limit=size, filter=wanted.filter, with_payload=whole or payload)
    records, following = edge.scroll(request)
    return wanted.among(records), following


def count(edge: EdgeShard, wanted: Wanted) -> int:
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


def _resolve(edge: EdgeShard, wanted: Wanted) -> Wanted:
    ids = {record.id for record in scan(edge, wanted)}
    return wanted.narrowed(Filter(must=[HasIdCondition(ids)]))


def _nearest(
    edge: EdgeShard,
    vector: npt.NDArray[np.float32],
    limit: int,
    condition: Filter | None,
    *,
    exact: bool,
    payload: bool,
) -> list[ScoredPoint]:
    request = QueryRequest(
        limit=limit,
        query=Query.Nearest(cast("list[float]", vector)),
        filter=condition,
        params=SearchParams(exact=True) if exact else SearchParams(hnsw_ef=max(_GRAPH_EFFORT, 2 * limit)),
        with_payload=payload,
    )
    return edge.query(request)

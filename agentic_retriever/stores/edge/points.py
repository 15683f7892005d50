"""Searching and listing the points of an engine: exact, whatever part of a filter the engine itself understands."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np
from qdrant_edge import (
    CountRequest,
    FieldCondition,
    Filter,
    HasIdCondition,
    MatchAny,
    PayloadSelector,
    Point,
    Query,
    QueryRequest,
    ScrollRequest,
    SearchParams,
    UpdateOperation,
)

from agentic_retriever.errors import StoreError
from agentic_retriever.filters import predicate
from agentic_retriever.stores.payload import (
    MAX_INDEXED_FIELDS,
    RESERVED_FIELDS,
    FieldKind,
    infer_kinds,
    nothing,
    payload_path,
    point_id,
    push_down,
    schema_type,
)
from agentic_retriever.stores.points import (
    PAGE,
    StoredCount,
    WantedPoints,
    filter_keys,
    find_best,
    page_mark,
    page_start,
    ranked_hits,
    read_embedded,
    read_ids,
    read_nodes,
    source_ids,
    vector_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from uuid import UUID

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters
    from qdrant_edge import EdgeShard, Record, ScoredPoint

    from agentic_retriever.stores.edge.engine import ShardLease
    from agentic_retriever.stores.points import FactT, Hit, HitT, KnownPoints

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
    """Say which points are wanted; every restriction narrows the others."""
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
    """Find the wanted points nearest to a vector."""
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
    """Find the wanted points nearest to a vector, and read only those of which nothing is known."""
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
    """Go through the wanted points in the engine's order."""
    records, offset = read_page(edge, wanted, None, whole=whole)
    yield from records
    while offset is not None:
        records, offset = read_page(edge, wanted, offset, whole=whole)
        yield from records


def read_page(
    edge: EdgeShard, wanted: Wanted, offset: PointId | None, *, size: int = PAGE, whole: bool = False
) -> tuple[list[Record], PointId | None]:
    """Read one page of the wanted points."""
    fields = wanted.payload
    payload = PayloadSelector.Include(fields) if isinstance(fields, list) else fields
    request = ScrollRequest(offset=offset, limit=size, filter=wanted.filter, with_payload=whole or payload)
    records, following = edge.scroll(request)
    return wanted.among(records), following


def count(edge: EdgeShard, wanted: Wanted) -> int:
    """Count the wanted points."""
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


# Reading nodes and vectors out of a collection.


def pages(
    lease: ShardLease,
    filters: MetadataFilters | None,
    *,
    node_ids: Sequence[str] | None = None,
    size: int = PAGE,
) -> Iterator[list[BaseNode]]:
    """Go through nodes, page by page; the collection is only held while a page is read."""
    offset: PointId | None = None
    while True:
        with lease.reading("read nodes") as edge:
            wanted = select(filters, kinds=lease.kinds, node_ids=node_ids)
            if edge is None:
                return
            records, offset = read_page(edge, wanted, offset, size=size, whole=True)
        yield read_nodes(records)
        if offset is None:
            return


def nodes(
    lease: ShardLease,
    filters: MetadataFilters | None,
    *,
    node_ids: Sequence[str] | None = None,
    limit: int | None = None,
) -> list[BaseNode]:
    """Read nodes, however many there are."""
    found: list[BaseNode] = []
    for page in pages(lease, filters, node_ids=node_ids):
        found.extend(page)
        if limit is not None and node_ids is None and len(found) >= limit:
            break
    if node_ids is not None:
        by_id = {node.node_id: node for node in found}
        found = [by_id[node_id] for node_id in dict.fromkeys(node_ids) if node_id in by_id]
    return found[:limit]


def node_ids(lease: ShardLease) -> list[str]:
    """List the ids of all nodes."""
    with lease.reading("list the nodes") as edge:
        if edge is None:
            return []
        everything = select(None, kinds={})
        return read_ids(scan(edge, everything, whole=True))


def vectors(lease: ShardLease, wanted: Sequence[str]) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Read stored vectors."""
    unique = list(dict.fromkeys(wanted))
    rows: dict[str, npt.NDArray[np.float32]] = {}
    with lease.reading("read vectors") as edge:
        for start in range(0, len(unique) if edge is not None else 0, PAGE):
            points = [point_id(node_id) for node_id in unique[start : start + PAGE]]
            for record in edge.retrieve(list(points), with_payload=False, with_vector=True) if edge is not None else []:
                rows[str(record.id)] = np.asarray(record.vector, dtype=np.float32)
    return vector_table(unique, rows, lease.dimension or 0)


def export(lease: ShardLease, after: str | None, size: int) -> tuple[list[BaseNode], str | None]:
    """Read a page of nodes with their vectors."""
    offset: PointId | None = page_start(after)
    with lease.reading("read nodes with their vectors") as edge:
        if edge is None:
            return [], None
        request = ScrollRequest(offset=offset, limit=size, with_payload=True, with_vector=True)
        records, following = edge.scroll(request)
    return read_embedded(records, _vector), page_mark(following)


def _vector(record: Record) -> list[float]:
    found: list[float] = np.asarray(record.vector, dtype=np.float32).tolist()
    return found


# Writing to a collection: everything is checked first, then written in small steps.

_STEP: Final = 256  # points handed to the engine at a time; more would keep other threads waiting for longer
_SOURCE_FIELD: Final = "doc_id"
# Making an index takes tens of milliseconds, more than all scans that it would spare a small collection.
INDEX_FROM: Final = 500
# The engine maps its files into memory, and writing to a map on a full disk kills the process. So stop before that.
_MIN_FREE_BYTES: Final = 64 * 1024**2


def add(
    lease: ShardLease,
    node_ids: Sequence[str],
    vectors: npt.NDArray[np.float32],
    payloads: Sequence[dict[str, Any]],
) -> None:
    """Store nodes."""
    number, dimension = vectors.shape
    with (
        StoredCount(number) as stored,
        lease.writing("add nodes", dimension=dimension, points=number) as edge,
    ):
        if edge is None:  # pragma: no cover - a dimension was given, so it is made
            return
        _check_space(lease, vectors.nbytes + sum(len(payload["_node_content"]) for payload in payloads))
        _index_fields(lease, edge, payloads)
        for start in range(0, number, _STEP):
            step = range(start, min(start + _STEP, number))
            points = [Point(point_id(node_ids[row]), cast("Any", vectors[row]), payloads[row]) for row in step]
            edge.update(UpdateOperation.upsert_points(points))
            stored.add(len(step))


def delete(
    lease: ShardLease,
    filters: MetadataFilters | None,
    *,
    node_ids: Sequence[str] | None = None,
    doc_ids: Sequence[str] | None = None,
) -> None:
    """Delete the nodes that satisfy everything that is given."""
    select(filters, kinds={})  # refuses a bad filter even where there is nothing to delete
    with lease.writing("delete nodes") as edge:
        if edge is None:
            return
        wanted = select(filters, kinds=lease.kinds, node_ids=node_ids, doc_ids=doc_ids)
        found = [record.id for record in scan(edge, wanted)]
        if found:
            edge.update(UpdateOperation.delete_points(found))


def clear(lease: ShardLease) -> None:
    """Delete every node."""
    with lease.writing("clear the index") as edge:
        if edge is not None:
            edge.update(UpdateOperation.delete_points_by_filter(Filter()))


def index_field(lease: ShardLease, field: str, path: str, kind: FieldKind) -> None:
    """Index a metadata field; an index of another kind is replaced."""
    with lease.writing("index a field") as edge:
        if edge is None:
            message = f"the index in {lease.folder} holds nothing yet; add nodes before indexing their fields"
            raise StoreError(message)
        if lease.kinds.get(field) == kind:
            return
        if field in lease.kinds:
            edge.update(UpdateOperation.delete_field_index(path))
        edge.update(UpdateOperation.create_field_index(path, schema_type(kind)))
        lease.refresh()


def optimize(lease: ShardLease) -> bool:
    """Tidy up and, above the engine's threshold, build a graph."""
    with lease.writing("optimize the index") as edge:
        if edge is None:
            return False
        changed = edge.optimize()
        lease.refresh()
        return changed


def _index_fields(lease: ShardLease, edge: EdgeShard, payloads: Sequence[Mapping[str, object]]) -> None:
    kinds = lease.kinds
    if _SOURCE_FIELD not in kinds and edge.info().points_count + len(payloads) < INDEX_FROM:
        return
    wanted: dict[str, FieldKind | None] = {} if _SOURCE_FIELD in kinds else {_SOURCE_FIELD: "keyword"}
    if len(kinds) < MAX_INDEXED_FIELDS:
        skip = RESERVED_FIELDS | lease.unindexed | kinds.keys()
        wanted.update(infer_kinds(payloads, skip))
    made = 0
    for field, kind in wanted.items():
        path = payload_path(field)
        if kind is None or path is None or len(kinds) + made >= MAX_INDEXED_FIELDS:
            lease.unindexed.add(field)
            continue
        edge.update(UpdateOperation.create_field_index(path, schema_type(kind)))
        made += 1
    if made:
        lease.refresh()


def _check_space(lease: ShardLease, size: int) -> None:
    free = shutil.disk_usage(lease.folder).free
    needed = _MIN_FREE_BYTES + 3 * size
    if free < needed:
        message = (
            f"cannot add nodes in {lease.folder}: {free // 1024**2:,} MB of disk are free, {needed // 1024**2:,} MB "
            "are needed; free some space and try again"
        )
        raise StoreError(message)

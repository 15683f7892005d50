"""Writing to a collection: everything is checked first, then written in small steps."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final, cast

from qdrant_edge import Filter, Point, UpdateOperation

from agentic_retriever.errors import StoreError
from agentic_retriever.indices.edge_fields import (
    MAX_INDEXED_FIELDS,
    FieldKind,
    infer_kinds,
    payload_path,
    schema_type,
)
from agentic_retriever.indices.edge_payload import RESERVED_FIELDS, point_id
from agentic_retriever.indices.edge_search import scan, select
from agentic_retriever.indices.point_writing import StoredCount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    from llama_index.core.vector_stores.types import MetadataFilters
    from qdrant_edge import EdgeShard

    from agentic_retriever.indices.edge_shard import ShardLease

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
    """Store nodes.

    Args:
        lease: The collection.
        node_ids: Their ids; at least one.
        vectors: Their unit vectors, ``(n, dim)``.
        payloads: Their payloads.

    Raises:
        EmbeddingMismatchError: The vectors have another dimension than the collection.
        StoreError: The disk failed; the message says how many nodes are stored.
    """
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
    """Delete the nodes that satisfy everything that is given.

    Args:
        lease: The collection.
        filters: Metadata filters.
        node_ids: Ids of nodes.
        doc_ids: Ids of sources.

    Raises:
        FilterError: The filters cannot be evaluated.
        StoreError: The disk failed.
    """
    select(filters, kinds={})  # refuses a bad filter even where there is nothing to delete
    with lease.writing("delete nodes") as edge:
        if edge is None:
            return
        wanted = select(filters, kinds=lease.kinds, node_ids=node_ids, doc_ids=doc_ids)
        found = [record.id for record in scan(edge, wanted)]
        if found:
            edge.update(UpdateOperation.delete_points(found))


def clear(lease: ShardLease) -> None:
    """Delete every node.

    Args:
        lease: The collection.

    Raises:
        StoreError: The disk failed.
    """
    with lease.writing("clear the index") as edge:
        if edge is not None:
            edge.update(UpdateOperation.delete_points_by_filter(Filter()))


def index_field(lease: ShardLease, field: str, path: str, kind: FieldKind) -> None:
    """Index a metadata field; an index of another kind is replaced.

    Args:
        lease: The collection.
        field: Name of the field.
        path: The name as the engine's path.
        kind: Kind of index.

    Raises:
        StoreError: Nothing was ever stored, or the disk failed.
    """
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
    """Tidy up and, above the engine's threshold, build a graph.

    Args:
        lease: The collection.

    Returns:
        Whether there was anything to do.

    Raises:
        StoreError: The disk failed.
    """
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

"""Writing to a collection: everything is checked first, then written in small steps."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from qdrant_edge import Filter, Point, UpdateOperation

from agentic_retriever.errors import ConfigError, StoreError
from agentic_retriever.indices.edge_fields import (
    MAX_INDEXED_FIELDS,
    FieldKind,
    infer_kinds,
    payload_path,
    schema_type,
)
from agentic_retriever.indices.edge_payload import RESERVED_FIELDS, node_payload, point_id, unit_vectors
from agentic_retriever.indices.edge_search import scan, select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters
    from qdrant_edge import EdgeShard

    from agentic_retriever.indices.edge_shard import ShardLease

_STEP: Final = 256  # points handed to the engine at a time; more would keep other threads waiting for longer
_SOURCE_FIELD: Final = "doc_id"
# Making an index takes tens of milliseconds, more than all scans that it would spare a small collection.
INDEX_FROM: Final = 500
# The engine maps its files into memory, and writing to a map on a full disk kills the process. So stop before that.
_MIN_FREE_BYTES: Final = 64 * 1024**2


def add(lease: ShardLease, nodes: Sequence[BaseNode]) -> list[str]:
    """Store nodes with their embeddings.

    Args:
        lease: The collection.
        nodes: The nodes.

    Returns:
        Their ids, in their order.

    Raises:
        IndexingError: A node cannot be stored.
        EmbeddingError: An embedding cannot be used.
        EmbeddingMismatchError: An embedding has another dimension than the collection.
        StoreError: The disk failed; the message says how many nodes are stored.
    """
    lease.check_open()
    if not nodes:
        return []
    payloads = [node_payload(node) for node in nodes]
    vectors = unit_vectors(nodes)
    node_ids = [node.node_id for node in nodes]
    stored = 0
    try:
        with lease.writing("add nodes", dimension=vectors.shape[1], points=len(nodes)) as edge:
            if edge is None:  # pragma: no cover - a dimension was given, so it is made
                return []
            _check_space(lease, vectors.nbytes + sum(len(payload["_node_content"]) for payload in payloads))
            _index_fields(lease, edge, payloads)
            for start in range(0, len(nodes), _STEP):
                step = range(start, min(start + _STEP, len(nodes)))
                points = [Point(point_id(node_ids[row]), cast("Any", vectors[row]), payloads[row]) for row in step]
                edge.update(UpdateOperation.upsert_points(points))
                stored += len(step)
    except StoreError as err:
        if not stored:
            raise
        message = f"{err}; {stored:,} of the {len(nodes):,} nodes are stored, add all again to complete them"
        raise type(err)(message) from err
    return node_ids


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


def create_payload_index(lease: ShardLease, field: str, kind: FieldKind) -> None:
    """Index a metadata field.

    Args:
        lease: The collection.
        field: Name of the field.
        kind: Kind of index.

    Raises:
        ConfigError: The kind is unknown or the field's name cannot be indexed.
        StoreError: Nothing was ever stored, or the disk failed.
    """
    if kind not in get_args(FieldKind):
        message = f"unknown kind of payload index {kind!r:.40}; allowed: {', '.join(get_args(FieldKind))}"
        raise ConfigError(message)
    path = payload_path(field)
    if path is None or field in RESERVED_FIELDS:
        message = f"the field {field!r:.60} cannot be indexed; its name is empty, reserved, or has a quote or backslash"
        raise ConfigError(message)
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

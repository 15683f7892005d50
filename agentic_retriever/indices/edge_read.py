"""Reading nodes and vectors out of a collection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from qdrant_edge import ScrollRequest

from agentic_retriever.indices.edge_payload import point_id
from agentic_retriever.indices.edge_search import read_page, scan, select
from agentic_retriever.indices.point_reading import (
    page_mark,
    page_start,
    read_embedded,
    read_ids,
    read_nodes,
    vector_table,
)
from agentic_retriever.indices.point_search import PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters
    from qdrant_edge import Record

    from agentic_retriever.indices.edge_search import PointId
    from agentic_retriever.indices.edge_shard import ShardLease


def pages(
    lease: ShardLease,
    filters: MetadataFilters | None,
    *,
    node_ids: Sequence[str] | None = None,
    size: int = PAGE,
) -> Iterator[list[BaseNode]]:
    """Go through nodes, page by page; the collection is only held while a page is read.

    Args:
        lease: The collection.
        filters: Only those that satisfy the filters.
        node_ids: Only these.
        size: How many points a page looks at, at least 1.

    Yields:
        The nodes of a page, always in the same order.

    Raises:
        FilterError: The filters cannot be evaluated.
        StoreClosedError: The collection was closed.
    """
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
    """Read nodes, however many there are.

    Args:
        lease: The collection.
        filters: Only those that satisfy the filters.
        node_ids: Only these, in this order.
        limit: At most so many.

    Returns:
        The nodes.

    Raises:
        FilterError: The filters cannot be evaluated.
    """
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
    """List the ids of all nodes.

    Args:
        lease: The collection.

    Returns:
        The ids, sorted.
    """
    with lease.reading("list the nodes") as edge:
        if edge is None:
            return []
        everything = select(None, kinds={})
        return read_ids(scan(edge, everything, whole=True))


def vectors(lease: ShardLease, wanted: Sequence[str]) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Read stored vectors.

    Args:
        lease: The collection.
        wanted: Node ids.

    Returns:
        The ids that were found, in the given order without repetition, and their unit vectors ``(n, dim)``.
    """
    unique = list(dict.fromkeys(wanted))
    rows: dict[str, npt.NDArray[np.float32]] = {}
    with lease.reading("read vectors") as edge:
        for start in range(0, len(unique) if edge is not None else 0, PAGE):
            points = [point_id(node_id) for node_id in unique[start : start + PAGE]]
            for record in edge.retrieve(list(points), with_payload=False, with_vector=True) if edge is not None else []:
                rows[str(record.id)] = np.asarray(record.vector, dtype=np.float32)
    return vector_table(unique, rows, lease.dimension or 0)


def export(lease: ShardLease, after: str | None, size: int) -> tuple[list[BaseNode], str | None]:
    """Read a page of nodes with their vectors.

    Args:
        lease: The collection.
        after: The mark that the page before gave.
        size: How many points to look at.

    Returns:
        The nodes, and the mark of the next page.
    """
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

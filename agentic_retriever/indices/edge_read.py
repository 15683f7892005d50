"""Searching a collection, and reading nodes and vectors out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode, VectorStoreQueryResult
from qdrant_edge import ScrollRequest

from agentic_retriever.errors import InvalidQueryError
from agentic_retriever.indices.edge_payload import point_id, stored_node, stored_node_id, unit_vector
from agentic_retriever.indices.edge_search import PAGE, read_page, scan, search, select
from agentic_retriever.indices.point_ranking import read_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.indices.edge_search import PointId
    from agentic_retriever.indices.edge_shard import ShardLease
    from agentic_retriever.indices.point_ranking import Hit


def query(lease: ShardLease, query: VectorStoreQuery, unknown: Mapping[str, object]) -> VectorStoreQueryResult:
    """Find the nodes nearest to an embedding.

    Args:
        lease: The collection.
        query: What to find.
        unknown: Further arguments of the caller; none are known.

    Returns:
        Nodes, cosines and ids, by falling score and then by id.

    Raises:
        InvalidQueryError: A part of the query cannot be used.
        EmbeddingError: The embedding is zero, or has NaN or an infinity.
        EmbeddingMismatchError: It has another dimension than the collection.
        FilterError: The filters cannot be evaluated.
    """
    top_k = checked_top_k(query, unknown)
    vector = unit_vector(query.query_embedding or [], lease.dimension)
    node_ids = None if is_unrestricted(query) else query.node_ids
    nothing_asked = top_k == 0 or node_ids == [] or query.doc_ids == []
    hits: list[Hit] = []
    with lease.reading("search") as edge:
        wanted = select(query.filters, kinds=lease.kinds, node_ids=node_ids, doc_ids=query.doc_ids)
        if edge is not None and not nothing_asked:
            hits = search(edge, vector, top_k, wanted, approximate=lease.approximate)
    return VectorStoreQueryResult(
        nodes=[hit.node for hit in hits],
        similarities=[hit.score for hit in hits],
        ids=[hit.node.node_id for hit in hits],
    )


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
        found = (stored_node_id(record.payload) for record in scan(edge, everything, whole=True))
        return sorted(node_id for node_id in found if node_id is not None)


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
    found = [node_id for node_id in unique if point_id(node_id) in rows]
    matrix = np.empty((len(found), lease.dimension or 0), dtype=np.float32)
    for row, node_id in zip(matrix, found, strict=True):
        row[:] = rows[point_id(node_id)]
    return found, matrix


def export(lease: ShardLease, after: str | None, size: int) -> tuple[list[BaseNode], str | None]:
    """Read a page of nodes with their vectors.

    Args:
        lease: The collection.
        after: The mark that the page before gave.
        size: How many points to look at.

    Returns:
        The nodes, and the mark of the next page.
    """
    offset: PointId | None = int(after) if after is not None and after.isdigit() else after
    with lease.reading("read nodes with their vectors") as edge:
        if edge is None:
            return [], None
        request = ScrollRequest(offset=offset, limit=size, with_payload=True, with_vector=True)
        records, following = edge.scroll(request)
    nodes: list[BaseNode] = []
    for record in records:
        node = stored_node(record.payload)
        if node is not None:
            node.embedding = np.asarray(record.vector, dtype=np.float32).tolist()
            nodes.append(node)
    return nodes, None if following is None else str(following)


def is_unrestricted(query: VectorStoreQuery) -> bool:
    """Tell whether an empty list of node ids restricts nothing."""
    # VectorStoreIndex.as_retriever() sends an empty list when it restricts nothing, and always the query's text.
    # Taken at its word it would find nothing in any store that keeps the text itself.
    return query.node_ids == [] and query.query_str is not None


def checked_top_k(query: VectorStoreQuery, unknown: Mapping[str, object]) -> int:
    """Return how many results a query wants.

    Raises:
        InvalidQueryError: A part of the query cannot be used.
    """
    problem = None
    top_k = query.similarity_top_k
    if unknown:
        problem = f"query() got unknown arguments: {', '.join(sorted(unknown))}; none are known"
    elif query.mode != VectorStoreQueryMode.DEFAULT:
        problem = f"query mode {query.mode!s:.40} is not supported; use the default, a dense search"
    elif type(top_k) is not int or top_k < 0:
        problem = f"similarity_top_k is {top_k!r}; allowed are whole numbers from 0"
    elif query.query_embedding is None:
        problem = "the query has no embedding; embed its text first"
    if problem is not None:
        raise InvalidQueryError(problem)
    return top_k

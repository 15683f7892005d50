"""Reading nodes and vectors out of a server's collection, and deleting points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdrant_client import models

from agentic_retriever.indices.edge_payload import point_id
from agentic_retriever.indices.point_reading import (
    page_mark,
    page_start,
    read_embedded,
    read_ids,
    read_nodes,
    vector_table,
)
from agentic_retriever.indices.point_search import PAGE
from agentic_retriever.indices.server_collection import DENSE_VECTOR
from agentic_retriever.indices.server_search import scan, select

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.indices.server_collection import ServerCollection
    from agentic_retriever.indices.server_search import Wanted


def nodes(
    collection: ServerCollection, filters: MetadataFilters | None, node_ids: Sequence[str] | None, limit: int | None
) -> list[BaseNode]:
    """Read nodes, however many there are; in the order of ``node_ids`` where these are given."""
    if node_ids is not None:
        return _named_nodes(collection, filters, node_ids)[:limit]
    found: list[BaseNode] = []
    for records in scan(collection, select(filters, collection.kinds()), whole=True):
        found.extend(read_nodes(records))
        if limit is not None and len(found) >= limit:
            break
    return found[:limit]


def _named_nodes(
    collection: ServerCollection, filters: MetadataFilters | None, node_ids: Sequence[str]
) -> list[BaseNode]:
    unique = list(dict.fromkeys(node_ids))
    by_id: dict[str, BaseNode] = {}
    for start in range(0, len(unique), PAGE):
        wanted = select(filters, collection.kinds(), node_ids=unique[start : start + PAGE])
        for records in scan(collection, wanted, whole=True):
            by_id.update((node.node_id, node) for node in read_nodes(records))
    return [by_id[node_id] for node_id in unique if node_id in by_id]


def node_ids(collection: ServerCollection) -> list[str]:
    """Return the ids of all nodes, sorted."""
    pages = scan(collection, select(None, {}), whole=True)
    return read_ids(record for records in pages for record in records)


def vectors(
    collection: ServerCollection, wanted: Sequence[str], dimension: int
) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Return the ids that were found, in the given order without repetition, and their unit vectors ``(n, dim)``."""
    unique = list(dict.fromkeys(wanted))
    rows: dict[str, list[float]] = {}
    for start in range(0, len(unique), PAGE):
        ids = [point_id(node_id) for node_id in unique[start : start + PAGE]]

        def retrieve(client: Any, ids: list[str] = ids) -> Any:  # noqa: ANN401 - the client's types
            return client.retrieve(collection.name, ids, with_payload=False, with_vectors=[DENSE_VECTOR])

        records: list[Any] = collection.read("read vectors", retrieve, [])
        rows.update((str(record.id), dense(record.vector)) for record in records)
    return vector_table(unique, rows, dimension)


def export(collection: ServerCollection, after: str | None, size: int) -> tuple[list[BaseNode], str | None]:
    """Read a page of nodes with their vectors, and give the mark of the next page."""
    offset = page_start(after)

    def scroll(client: Any) -> Any:  # noqa: ANN401 - the client's types
        return client.scroll(collection.name, limit=size, offset=offset, with_payload=True, with_vectors=[DENSE_VECTOR])

    nothing: tuple[list[Any], Any] = ([], None)
    records, following = collection.read("read nodes with their vectors", scroll, nothing)
    return read_embedded(records, lambda record: dense(record.vector)), page_mark(following)


def count(collection: ServerCollection, filters: MetadataFilters | None) -> int:
    """Count the nodes that satisfy the filters."""
    wanted = select(filters, {} if filters is None else collection.kinds())
    if not wanted.exact:
        return sum(len(records) for records in scan(collection, wanted))

    def ask(client: Any) -> int:  # noqa: ANN401 - the client's types
        return int(client.count(collection.name, count_filter=wanted.filter, exact=True).count)

    return collection.read("count the nodes", ask, 0)


def delete(collection: ServerCollection, wanted: Wanted) -> None:
    """Delete points, named one by one: a filter that was translated too widely must not delete too much."""
    found = [record.id for records in scan(collection, wanted) for record in records]
    for start in range(0, len(found), PAGE):
        selector = models.PointIdsList(points=found[start : start + PAGE])

        def remove(client: Any, selector: models.PointIdsList = selector) -> None:  # noqa: ANN401 - the client's types
            client.delete(collection.name, selector, wait=True)

        collection.call("delete nodes", remove)


def clear(collection: ServerCollection) -> None:
    """Delete every point."""
    everything = models.FilterSelector(filter=models.Filter())

    def remove(client: Any) -> None:  # noqa: ANN401 - the client's types
        client.delete(collection.name, everything, wait=True)

    collection.read("clear the index", remove, None)


def dense(vector: Any) -> list[float]:  # noqa: ANN401 - one of the client's many kinds of vectors
    """Take the dense vector out of a point's vectors."""
    row = vector[DENSE_VECTOR] if isinstance(vector, dict) else vector
    return [float(x) for x in row]

"""From stored points to nodes, ids and vectors; the same for the engine in this process and on a server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from agentic_retriever.indices.edge_payload import point_id, stored_node, stored_node_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode

logger = logging.getLogger(__name__)


class HasPayload(Protocol):
    """A point as it was stored."""

    @property
    def payload(self) -> dict[str, Any] | None:
        """What was stored with the vector."""


PointT = TypeVar("PointT", bound=HasPayload)


def read_nodes(records: Sequence[HasPayload]) -> list[BaseNode]:
    """Read the nodes of points; those that are broken or not ours are left out with one warning.

    Args:
        records: Points with their payload.

    Returns:
        The nodes, in the same order.
    """
    found = [stored_node(record.payload) for record in records]
    nodes = [node for node in found if node is not None]
    warn_of_foreign(len(found) - len(nodes))
    return nodes


def read_embedded(records: Iterable[PointT], vector: Callable[[PointT], list[float]]) -> list[BaseNode]:
    """Read the nodes of points together with their vectors.

    Args:
        records: Points with their payload and their vectors.
        vector: Takes the vector out of a point.

    Returns:
        The nodes with their embeddings, in the same order; those that are broken or not ours are left out.
    """
    nodes: list[BaseNode] = []
    for record in records:
        node = stored_node(record.payload)
        if node is not None:
            node.embedding = vector(record)
            nodes.append(node)
    return nodes


def read_ids(records: Iterable[HasPayload]) -> list[str]:
    """Return the node ids of points, sorted; those that are not ours have none."""
    found = (stored_node_id(record.payload) for record in records)
    return sorted(node_id for node_id in found if node_id is not None)


def vector_table(
    node_ids: Sequence[str], rows: Mapping[str, npt.ArrayLike], dimension: int
) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Put vectors in the order of node ids.

    Args:
        node_ids: Ids without repetition.
        rows: Vectors by the engine's ids.
        dimension: Length of the vectors.

    Returns:
        The ids that have a vector, in the given order, and their vectors ``(n, dim)``.
    """
    found = [node_id for node_id in node_ids if point_id(node_id) in rows]
    matrix = np.empty((len(found), dimension), dtype=np.float32)
    for row, node_id in zip(matrix, found, strict=True):
        row[:] = rows[point_id(node_id)]
    return found, matrix


def page_start(mark: str | None) -> int | str | None:
    """Read the mark of a page as the engine's id; ``None`` is the first page."""
    return int(mark) if mark is not None and mark.isdigit() else mark


def page_mark(start: object) -> str | None:
    """Write the engine's id of where a page starts as a mark; ``None`` is the end."""
    return None if start is None else str(start)


def warn_of_foreign(number: int) -> None:
    """Log that so many points were skipped, if any were."""
    if number:
        logger.warning("skipped %d stored points that are broken or were not written by LlamaIndex", number)

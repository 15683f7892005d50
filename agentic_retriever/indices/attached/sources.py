"""What is read of an attached index: all its nodes, single ones, their vectors, and whether anything has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode

Vectors: TypeAlias = "tuple[list[str], npt.NDArray[np.float32]]"
"""Ids, and their unit vectors ``(n, dimension)`` in the same order."""


class NodeSource(Protocol):
    """Where the nodes of an attached index are. Nothing here writes; foreign errors come out as they are."""

    @property
    def takes_ids(self) -> bool:
        """Whether the vector store restricts a query to node ids, as it should."""

    def count(self) -> int:
        """Return the number of nodes, without reading them where that can be helped."""

    def nodes(self) -> Iterable[BaseNode]:
        """Go through every node."""

    def get(self, node_ids: Sequence[str]) -> list[BaseNode]:
        """Read nodes by id; those that are not there are left out."""

    def source_text(self, doc_id: str) -> str | None:
        """Return the text of a source document, where the index has kept it."""

    def vectors(self, node_ids: Sequence[str]) -> Vectors:
        """Read stored vectors at length 1; none where the store does not give them away."""

    def node_id(self, stored_id: str) -> str:
        """Return the id of the node that the vector store knows under an id of its own."""

    def mark(self) -> Hashable:
        """Return what tells most changes, in no time."""

    def imprint(self) -> Hashable:
        """Return what tells every change that can be seen; asked for once a second at most, on large indexes less."""


class NoNodes:
    """The source of an index that tells nothing of its nodes."""

    takes_ids = False

    def count(self) -> int:
        """Return 0."""
        return 0

    def nodes(self) -> Iterable[BaseNode]:
        """Go through nothing."""
        return ()

    def get(self, node_ids: Sequence[str]) -> list[BaseNode]:  # noqa: ARG002 - of the protocol
        """Read nothing."""
        return []

    def source_text(self, doc_id: str) -> str | None:  # noqa: ARG002 - of the protocol
        """Return nothing."""
        return None

    def vectors(self, node_ids: Sequence[str]) -> Vectors:  # noqa: ARG002 - of the protocol
        """Read nothing."""
        return unit_rows({})

    def node_id(self, stored_id: str) -> str:
        """Return the id."""
        return stored_id

    def mark(self) -> Hashable:
        """Nothing changes."""
        return None

    def imprint(self) -> Hashable:
        """Nothing changes."""
        return None


def unit_rows(known: Mapping[str, Sequence[float]]) -> Vectors:
    """Bring vectors to length 1; those that are zero, not finite, or not as long as the first are left out.

    Args:
        known: Vectors by node id.
    """
    rows: dict[str, npt.NDArray[np.float32]] = {}
    dimension = None
    for node_id, vector in known.items():
        row = np.asarray(vector, dtype=np.float64)
        norm = float(np.linalg.norm(row)) if row.ndim == 1 and row.size else 0.0
        if not np.isfinite(norm) or norm == 0 or len(row) != (dimension or len(row)):
            continue
        dimension = len(row)
        rows[node_id] = (row / norm).astype(np.float32)
    if not rows:
        return [], np.empty((0, 0), dtype=np.float32)
    return list(rows), np.stack(list(rows.values()))

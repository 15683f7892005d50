"""The nodes that satisfy a filter, as a set of ids that is only written out where somebody asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import numpy as np
from pyroaring import BitMap

if TYPE_CHECKING:
    import numpy.typing as npt

    from agentic_retriever.indices.prefilter.numbers import NodeNumbers


class CandidateSet(AbstractSet[str]):
    """Ids of the nodes that satisfy a filter, at one moment. Immutable, and a set of strings as any other.

    Attributes:
        exact: Whether all of them satisfy it. Otherwise those that do are among them, and the rest is for the store,
            which gets the filter too, to sort out.
    """

    __slots__ = ("_numbers", "_rows", "exact")

    def __init__(self, numbers: NodeNumbers, rows: BitMap, *, exact: bool = True) -> None:
        self._numbers = numbers
        self._rows = rows
        self.exact = exact

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, node_id: object) -> bool:
        return isinstance(node_id, str) and self.contains(node_id)

    def __iter__(self) -> Iterator[str]:
        numbers = self._numbers
        return (numbers[row] for row in self._rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(count={self.count}, exact={self.exact})"

    @property
    def numbering(self) -> NodeNumbers:
        """What the numbers stand for: an object that only grows, until the prefilter is built or compacted anew."""
        return self._numbers

    def numbers(self) -> npt.NDArray[np.uint32]:
        """List the nodes' numbers, rising, ``(count,)``."""
        return np.frombuffer(self._rows.to_array(), dtype=np.uint32)

    def contains(self, node_id: str) -> bool:
        """Tell whether a node is one of them."""
        rows = self._rows
        return any(number in rows for number in self._numbers.find(node_id))

    def node_ids(self) -> list[str]:
        """List them, always in the same order."""
        return list(self)

    def narrowed(self, node_ids: Iterable[str]) -> CandidateSet:
        """Keep those that somebody who can tell found to satisfy the filter.

        Args:
            node_ids: Those.

        Returns:
            An exact set of the ids that are in both.
        """
        rows = (number for node_id in node_ids for number in self._numbers.find(node_id))
        return CandidateSet(self._numbers, BitMap(list(rows)) & self._rows)

    @classmethod
    def _from_iterable(cls, node_ids: Iterable[str]) -> AbstractSet[str]:  # type: ignore[override]  # what "&" makes
        return frozenset(node_ids)

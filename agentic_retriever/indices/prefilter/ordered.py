"""Keys of one type in one field: a B+-tree for ranges and, for few rows, a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from pyroaring import BitMap

from agentic_retriever.indices.prefilter.btree import BPlusTree
from agentic_retriever.indices.prefilter.columns import Column
from agentic_retriever.indices.prefilter.inverted import bitmap_of, rows_of
from agentic_retriever.indices.prefilter.values import Entries

if TYPE_CHECKING:
    from agentic_retriever.indices.prefilter.btree import Keys, Rows

#: Up to so many rows it is faster to look at their keys than to walk down the tree; measured on 1,000,000 nodes.
COLUMN_ROWS: Final = 1_024


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a bound.

    Attributes:
        bound: The bound; of the keys' type.
        above: Whether what lies above it is wanted, or what lies below.
        inclusive: Whether the bound itself counts.
    """

    bound: int | float
    above: bool
    inclusive: bool


@dataclass(frozen=True, slots=True, eq=False)
class OrderedKeys:
    """Rows by key. Immutable, as its parts are.

    Attributes:
        tree: The entries.
        column: The key of each row; ``None`` where the keys are objects.
    """

    tree: BPlusTree
    column: Column | None

    @classmethod
    def build(cls, entries: Entries, size: int) -> OrderedKeys:
        """Build of many entries at once.

        Args:
            entries: Keys and rows, in any order.
            size: Number of rows there are.

        Returns:
            The ordered keys.
        """
        column = None
        if entries.keys.dtype != np.object_:
            column = Column.empty(entries.keys.dtype)
            if len(entries.rows):
                column = column.extend(size, entries.keys, entries.rows)
        return cls(BPlusTree.build(entries.keys, entries.rows), column)

    def __bool__(self) -> bool:
        return self.tree.root is not None

    def insert(self, entries: Entries, size: int) -> OrderedKeys:
        """Return ordered keys that have these entries too; their rows must be new."""
        if not len(entries.rows):
            return self
        if not self:
            return OrderedKeys.build(entries, size)
        if self.column is None or entries.keys.dtype == np.object_:
            # Numbers that no float64 holds: from now on all are kept as they are.
            tree = self.tree if self.column is None else BPlusTree.build(*_as_objects(*self.tree.entries()))
            return OrderedKeys(tree.insert(*_as_objects(entries.keys, entries.rows)), None)
        return OrderedKeys(
            self.tree.insert(entries.keys, entries.rows), self.column.extend(size, entries.keys, entries.rows)
        )

    def delete(self, rows: BitMap) -> OrderedKeys:
        """Return ordered keys without these rows."""
        tree = self.tree.delete(rows)
        return self if tree is self.tree else OrderedKeys(tree, self.column)

    def renumber(self, numbers: Rows, size: int) -> OrderedKeys:
        """Return ordered keys under other row numbers: row ``r`` becomes ``numbers[r]``."""
        keys, rows = self.tree.entries()
        if not len(keys):
            return self
        return OrderedKeys.build(Entries(keys, numbers[rows]), size)

    def equal(self, key: float) -> BitMap:
        """Find the rows that have a key; not to be changed."""
        if self.column is not None and isinstance(key, int) and self.column.keys.dtype == np.float64:
            rounded = _rounded(key)
            if rounded != key:
                return BitMap()
            key = rounded
        return self.tree.equal(key)

    def exact(self, side: Side) -> Side:
        """Say the same with a bound that the keys' type holds."""
        if self.column is None or self.column.keys.dtype != np.float64 or isinstance(side.bound, float):
            return side
        rounded = _rounded(side.bound)
        if rounded == side.bound:
            return Side(rounded, side.above, side.inclusive)
        # No key lies between the bound and what it was rounded to.
        return Side(rounded, side.above, inclusive=(rounded > side.bound) == side.above)

    def counts(self, side: Side) -> tuple[int, int]:
        """Tell at least and at most how many rows lie on one side of an exact bound."""
        count = self.tree.count_above if side.above else self.tree.count_below
        return count(side.bound, inclusive=side.inclusive)

    def find(self, side: Side, within: BitMap | None = None) -> BitMap:
        """Find the rows that have a key on one side of a bound.

        Args:
            side: An exact bound.
            within: Only these rows.

        Returns:
            The rows; not to be changed.
        """
        few = within is not None and len(within) <= COLUMN_ROWS and not within.intersect(self.tree.repeats)
        if within is not None and few and self.column is not None:
            rows = rows_of(within)
            found = self.column.compare(rows, side.bound, above=side.above, inclusive=side.inclusive)
            return bitmap_of(rows[found])
        search = self.tree.above if side.above else self.tree.below
        return search(side.bound, inclusive=side.inclusive, within=within)


def _rounded(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _as_objects(keys: Keys, rows: Rows) -> tuple[Keys, Rows]:
    return keys.astype(object), rows

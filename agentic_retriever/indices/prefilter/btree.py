"""A B+-tree from keys to rows whose inner nodes know the rows below them, for ranges of any width.

A range is answered along one path: each inner node on it adds one bitmap, that of all children before the one where
the bound lies, and the leaf adds the entries that are left. This is the range-encoded bitmap index (Chan and Ioannidis
1998, "Bitmap Index Design and Evaluation") laid over a B+-tree (Comer 1979, "The Ubiquitous B-Tree"), so that keys can
be inserted and deleted, and a field of a million different values needs no bitmap for each.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyroaring import BitMap

from agentic_retriever.indices.prefilter.btree_nodes import Leaf, delete, insert, pack, stack
from agentic_retriever.indices.prefilter.inverted import bitmap_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from agentic_retriever.indices.prefilter.btree_nodes import Key, Node

    Rows = npt.NDArray[np.uint32]
    Keys = npt.NDArray[Any]

_SHRINK: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class BPlusTree:
    """Rows by key, in order of the keys. Immutable: changes give a new tree that shares what did not change.

    Keys are one numpy type, ``float64`` or ``int64``, or objects that can all be compared with each other. A row may
    have several keys.

    Attributes:
        root: The top node; ``None`` for an empty tree.
        repeats: Rows that were inserted with several keys.
        peak: Most rows there were since the tree was built as a whole.
    """

    root: Node | None = None
    repeats: BitMap = field(default_factory=BitMap)
    peak: int = 0

    @classmethod
    def build(cls, keys: Keys, rows: Rows) -> BPlusTree:
        """Build a tree of many entries at once.

        Args:
            keys: ``(n,)`` in any order, without NaN.
            rows: ``(n,)`` the row of each key.

        Returns:
            The tree.
        """
        keys, rows, repeats = _sorted(keys, rows)
        root = stack(pack(keys, rows))
        return cls(root, repeats, 0 if root is None else len(root.bitmap))

    def __len__(self) -> int:
        return sum(len(leaf.bitmap) if leaf.rows is None else len(leaf.rows) for leaf in self.leaves())

    @property
    def bitmap(self) -> BitMap:
        """Every row of the tree; not to be changed."""
        return BitMap() if self.root is None else self.root.bitmap

    def insert(self, keys: Keys, rows: Rows) -> BPlusTree:
        """Return a tree that has these entries too.

        Args:
            keys: ``(n,)`` in any order, of the tree's type.
            rows: ``(n,)`` rows that the tree does not have yet; all keys of a row are inserted together.

        Returns:
            The new tree.
        """
        if not len(keys):
            return self
        keys, rows, repeats = _sorted(keys, rows)
        root = stack(pack(keys, rows) if self.root is None else insert(self.root, keys, rows))
        peak = 0 if root is None else max(self.peak, len(root.bitmap))
        return BPlusTree(root, self.repeats | repeats if repeats else self.repeats, peak)

    def delete(self, rows: BitMap) -> BPlusTree:
        """Return a tree without the entries of these rows."""
        root = self.root if self.root is None else delete(self.root, rows)
        if root is self.root:
            return self
        left = BPlusTree(root, self.repeats - rows, self.peak)
        # Thin leaves are left as they are until three rows in four are gone: cheaper than joining them one by one, and
        # leaves stay a quarter full on average.
        return left if _SHRINK * len(left.bitmap) >= self.peak else BPlusTree.build(*left.entries())

    def below(self, bound: Key, *, inclusive: bool, within: BitMap | None = None) -> BitMap:
        """Find the rows that have a key below a bound.

        Args:
            bound: A key of the tree's type.
            inclusive: Whether the bound itself counts.
            within: Only these rows.

        Returns:
            The rows; not to be changed.
        """
        parts = self._parts_below(bound, inclusive=inclusive)
        if within is not None:
            parts = [part & within for part in parts]
        return _union(parts)

    def above(self, bound: Key, *, inclusive: bool, within: BitMap | None = None) -> BitMap:
        """Find the rows that have a key above a bound.

        Args:
            bound: A key of the tree's type.
            inclusive: Whether the bound itself counts.
            within: Only these rows.

        Returns:
            The rows; not to be changed.
        """
        found = self.bitmap if within is None else self.bitmap & within
        for part in self._parts_below(bound, inclusive=not inclusive):
            found = found - part
        if self.repeats:  # such a row may have one key below the bound and another above it
            repeats = self.repeats if within is None else self.repeats & within
            found = _union([found, *(part & repeats for part in self._parts_above(bound, inclusive=inclusive))])
        return found

    def equal(self, key: Key) -> BitMap:
        """Find the rows that have a key; not to be changed."""
        node = self.root
        while node is not None and not isinstance(node, Leaf):
            place = bisect_right(node.lows, key) - 1
            node = node.children[place] if place >= 0 else None
        if node is None:
            return BitMap()
        start, end = (int(np.searchsorted(node.keys, key, side)) for side in ("left", "right"))
        if node.rows is None:
            return node.bitmap if end > start else BitMap()
        return bitmap_of(node.rows[start:end])

    def count_below(self, bound: Key, *, inclusive: bool) -> tuple[int, int]:
        """Count the rows below a bound without making a bitmap.

        Args:
            bound: A key of the tree's type.
            inclusive: Whether the bound itself counts.

        Returns:
            At least and at most how many; the same number where no row has several keys.
        """
        count = min(self._count(bound, inclusive=inclusive), len(self.bitmap))
        return (0 if self.repeats else count), count

    def count_above(self, bound: Key, *, inclusive: bool) -> tuple[int, int]:
        """Count the rows above a bound without making a bitmap.

        Args:
            bound: A key of the tree's type.
            inclusive: Whether the bound itself counts.

        Returns:
            At least and at most how many; the same number where no row has several keys.
        """
        rows = len(self.bitmap)
        if self.repeats:
            return 0, rows
        count = rows - self._count(bound, inclusive=not inclusive)
        return count, count

    def leaves(self) -> Iterator[Leaf]:
        """Yield the leaves in order of their keys."""
        stack_ = [] if self.root is None else [self.root]
        while stack_:
            node = stack_.pop()
            if isinstance(node, Leaf):
                yield node
            else:
                stack_.extend(reversed(node.children))

    def entries(self) -> tuple[Keys, Rows]:
        """Return all keys, ascending, and their rows."""
        parts = [leaf.entries() for leaf in self.leaves()]
        if not parts:
            return np.empty(0), np.empty(0, dtype=np.uint32)
        return np.concatenate([keys for keys, _ in parts]), np.concatenate([rows for _, rows in parts])

    def distinct(self) -> int:
        """Count the different keys."""
        return sum(1 if leaf.rows is None else len(np.unique(leaf.keys)) for leaf in self.leaves())

    def renumber(self, numbers: Rows) -> BPlusTree:
        """Return the tree under other row numbers: row ``r`` becomes ``numbers[r]``."""
        keys, rows = self.entries()
        return BPlusTree.build(keys, numbers[rows])

    def _parts_below(self, bound: Key, *, inclusive: bool) -> list[BitMap]:
        find: Any = bisect_right if inclusive else bisect_left
        parts: list[BitMap] = []
        node = self.root
        while node is not None and not isinstance(node, Leaf):
            place = find(node.lows, bound) - 1
            if place > 0:
                parts.append(node.upto[place - 1])
            node = node.children[place] if place >= 0 else None
        if node is not None:
            end = _place(node, bound, inclusive=inclusive)
            if end == len(node.keys):
                parts.append(node.bitmap)
            elif end and node.rows is not None:
                parts.append(bitmap_of(node.rows[:end]))
        return parts

    def _parts_above(self, bound: Key, *, inclusive: bool) -> list[BitMap]:
        find: Any = bisect_left if inclusive else bisect_right
        parts: list[BitMap] = []
        node = self.root
        while node is not None and not isinstance(node, Leaf):
            place = find(node.lows, bound) - 1
            parts += [child.bitmap for child in node.children[place + 1 :]]
            node = node.children[place] if place >= 0 else None
        if node is not None:
            start = _place(node, bound, inclusive=not inclusive)
            if start == 0:
                parts.append(node.bitmap)
            elif node.rows is not None:
                parts.append(bitmap_of(node.rows[start:]))
        return parts

    def _count(self, bound: Key, *, inclusive: bool) -> int:
        find: Any = bisect_right if inclusive else bisect_left
        total = 0
        node = self.root
        while node is not None and not isinstance(node, Leaf):
            place = find(node.lows, bound) - 1
            total += len(node.upto[place - 1]) if place > 0 else 0
            node = node.children[place] if place >= 0 else None
        if node is None:
            return total
        end = _place(node, bound, inclusive=inclusive)
        return total + (end if node.rows is not None else end * len(node.bitmap))


def _place(leaf: Leaf, bound: Key, *, inclusive: bool) -> int:
    return int(np.searchsorted(leaf.keys, bound, "right" if inclusive else "left"))


def _union(parts: list[BitMap]) -> BitMap:
    if len(parts) < 2:
        return parts[0] if parts else BitMap()
    return BitMap.union(*parts)


def _sorted(keys: Keys, rows: Rows) -> tuple[Keys, Rows, BitMap]:
    """Sort entries by key and row, drop repeated ones, and find the rows that have several keys."""
    if (rows[1:] > rows[:-1]).all():
        order = np.argsort(keys, kind="stable")
        return keys[order], rows[order], BitMap()
    by_row = np.argsort(rows, kind="stable")
    order = by_row[np.argsort(keys[by_row], kind="stable")]
    keys, rows = keys[order], rows[order]
    new = np.ones(len(keys), dtype=np.bool_)
    new[1:] = (keys[1:] != keys[:-1]) | (rows[1:] != rows[:-1])
    keys, rows = keys[new], rows[new]
    ascending = np.sort(rows)
    return keys, rows, bitmap_of(ascending[1:][ascending[1:] == ascending[:-1]])

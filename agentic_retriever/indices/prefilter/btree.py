"""Bitmaps of the rows that have a value: inverted lists of texts and booleans, a B+-tree of what has an order."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate, compress
from math import ceil
from operator import or_
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

Rows: TypeAlias = npt.NDArray[np.uint32]
Value: TypeAlias = str | bool

VALUE_BYTES: Final = 300  # of a text beside its characters: the string, its place in the dictionary, a small bitmap
MANY: Final = 16  # from so many bitmaps on it is faster to join them all at once


def bitmap_of(rows: Rows) -> BitMap:
    # Only an ``array`` takes the fast way into it.
    return BitMap(array("I", np.ascontiguousarray(rows, dtype=np.uint32).tobytes()))


def rows_of(bitmap: BitMap) -> Rows:
    return np.frombuffer(bitmap.to_array(), dtype=np.uint32)


def union(bitmaps: Sequence[BitMap]) -> BitMap:
    """Join bitmaps; the result is not to be changed, as it may be one of them."""
    if not bitmaps:
        return BitMap()
    return reduce(or_, bitmaps) if len(bitmaps) < MANY else BitMap.union(*bitmaps)


def texts_cost(values: Iterable[Value]) -> int:
    """Estimate how many bytes an inverted index takes for the texts among its different values."""
    return sum(map(_cost, values))


def _cost(value: Value) -> int:
    return VALUE_BYTES + len(value) if isinstance(value, str) else 0


@dataclass(frozen=True, slots=True, eq=False)
class Factorised:
    """The values of a field as numbers into the list of the different ones."""

    values: list[Value]  # in order of appearance
    codes: npt.NDArray[np.integer]  # (n,) positions in ``values``
    rows: Rows  # (n,) the row of each; a row that has several values comes several times

    @classmethod
    def of(cls, values: Sequence[Value], rows: Rows) -> Factorised:
        different = list(dict.fromkeys(values))
        number_of = {value: number for number, value in enumerate(different)}
        # Sixteen bits where they do: numpy sorts these by radix.
        dtype = np.uint16 if len(different) < 2**16 else np.uint32
        codes = np.fromiter(map(number_of.__getitem__, values), dtype=dtype, count=len(rows))
        return cls(different, codes, rows)

    def split_texts(self) -> tuple[Rows, Factorised]:
        """Return the rows that have a text, and the booleans alone."""
        texts = np.fromiter((isinstance(value, str) for value in self.values), dtype=np.bool_)[self.codes]
        return self.rows[texts], Factorised(self.values, self.codes[~texts], self.rows[~texts])


@dataclass(frozen=True, slots=True, eq=False)
class InvertedIndex:
    """Rows by value. Immutable: changes give a new index that shares all bitmaps that did not change."""

    postings: Mapping[Value, BitMap] = field(default_factory=dict)  # no bitmap is empty, and none is ever changed
    cost: int = 0  # bytes that the texts take, roughly

    def texts(self) -> Iterator[tuple[str, BitMap]]:
        return ((value, rows) for value, rows in self.postings.items() if isinstance(value, str))

    def insert(self, words: Factorised) -> InvertedIndex:
        if not len(words.rows):
            return self
        order = np.argsort(words.codes, kind="stable")
        rows = array("I", words.rows[order].astype(np.uint32, copy=False).tobytes())
        ends = np.cumsum(np.bincount(words.codes, minlength=len(words.values))).tolist()
        postings, cost, start = dict(self.postings), self.cost, 0
        for value, end in zip(words.values, ends, strict=True):
            if end > start:
                before, added = postings.get(value), BitMap(rows[start:end])
                postings[value] = added if before is None else before | added
                cost += _cost(value) if before is None else 0
            start = end
        return InvertedIndex(postings, cost)

    def delete(self, rows: BitMap) -> InvertedIndex:
        """Return an index without these rows; values that nothing has any more are gone."""
        # Few lists change when few rows go, and asking is far cheaper than subtracting.
        touched = list(compress(self.postings, (bitmap.intersect(rows) for bitmap in self.postings.values())))
        if not touched:
            return self
        postings, cost = dict(self.postings), self.cost
        for value in touched:
            postings[value] = postings[value] - rows
            if not postings[value]:
                del postings[value]
                cost -= _cost(value)
        return InvertedIndex(postings, cost)

    def without_texts(self) -> InvertedIndex:
        return InvertedIndex({value: rows for value, rows in self.postings.items() if isinstance(value, bool)})

    def renumber(self, numbers: Rows) -> InvertedIndex:
        postings = {value: bitmap_of(numbers[rows_of(rows)]) for value, rows in self.postings.items()}
        return InvertedIndex(postings, self.cost)


# A B+-tree from keys to rows whose inner nodes know the rows below them, for ranges of any width.
# A range is answered along one path: each inner node on it adds one bitmap, that of all children before the one where
# the bound lies, and the leaf adds the entries that are left. This is the range-encoded bitmap index (Chan and
# Ioannidis 1998, "Bitmap Index Design and Evaluation") laid over a B+-tree (Comer 1979, "The Ubiquitous B-Tree"), so
# that keys can be inserted and deleted, and a field of a million different values needs no bitmap for each. All entries
# of one key stand in one leaf, so the position of a key in a node decides for whole children.

Key: TypeAlias = Any  # of the tree's type: int, float, or anything that compares with the other keys
Keys: TypeAlias = npt.NDArray[Any]

LEAF: Final = 1_024  # most entries of a leaf with more than one key
FANOUT: Final = 16  # most children of an inner node
RUN: Final = 64  # from so many rows on, a leaf of one key keeps nothing but their bitmap
_SHRINK: Final = 4


class Side(NamedTuple):
    """One side of a bound: the keys above it or those below it."""

    bound: Key
    above: bool
    inclusive: bool  # whether the bound itself counts


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """Entries in order of their keys."""

    keys: Keys  # (n,) ascending; one key alone where ``rows`` is None
    rows: Rows | None  # (n,) the row of each key; None where all rows of ``bitmap`` have the one key
    bitmap: BitMap  # all rows

    @property
    def low(self) -> Key:
        key = self.keys[0]
        return key.item() if isinstance(key, np.generic) else key

    def entries(self) -> tuple[Keys, Rows]:
        if self.rows is not None:
            return self.keys, self.rows
        rows = rows_of(self.bitmap)
        return np.repeat(self.keys, len(rows)), rows

    def part(self, start: int, end: int) -> BitMap:
        if end - start == len(self.keys):
            return self.bitmap
        return BitMap() if self.rows is None else bitmap_of(self.rows[start:end])


@dataclass(frozen=True, slots=True, eq=False)
class Inner:
    """Up to 16 children, all of one height, in order of their keys."""

    lows: tuple[Key, ...]  # the least key below each child
    children: tuple[Leaf | Inner, ...]
    upto: tuple[BitMap, ...]  # for each child, the rows below it and all before it

    @property
    def low(self) -> Key:
        return self.lows[0]

    @property
    def bitmap(self) -> BitMap:
        return self.upto[-1]


Node: TypeAlias = Leaf | Inner


@dataclass(frozen=True, slots=True, eq=False)
class BPlusTree:
    """Rows by key, in order of the keys. Immutable: changes give a new tree that shares what did not change.

    Keys are all ``float64``, all ``int64``, or objects that compare. Bitmaps that are returned are not to be changed.
    """

    root: Node | None = None
    repeats: BitMap = field(default_factory=BitMap)  # rows that were inserted with several keys
    peak: int = 0  # most rows there were since the tree was built as a whole

    def __bool__(self) -> bool:
        return self.root is not None

    @property
    def bitmap(self) -> BitMap:
        return BitMap() if self.root is None else self.root.bitmap

    def insert(self, keys: Keys, rows: Rows) -> BPlusTree:
        """Return a tree with these entries too, in any order, without NaN: all keys of each row, which is new."""
        if not len(keys):
            return self
        tree = self
        if self and self._dtype() != keys.dtype:
            # Numbers that no float64 holds: from now on all are kept as they are.
            keys = keys.astype(object)
            if self._dtype() != np.object_:
                held, held_rows = self.entries()
                tree = BPlusTree().insert(held.astype(object), held_rows)
        keys, rows, repeats = _sorted(keys, rows)
        nodes: Sequence[Node] = _pack(keys, rows) if tree.root is None else _insert(tree.root, keys, rows)
        while len(nodes) > 1:  # inner nodes above nodes of one height until there is one root
            nodes = _group(nodes)
        root = nodes[0] if nodes else None
        peak = 0 if root is None else max(tree.peak, len(root.bitmap))
        return BPlusTree(root, tree.repeats | repeats if repeats else tree.repeats, peak)

    def delete(self, rows: BitMap) -> BPlusTree:
        root = None if self.root is None else _delete(self.root, rows)
        if root is self.root:
            return self
        left = BPlusTree(root, self.repeats - rows, self.peak)
        # Thin leaves are left as they are until three rows in four are gone: cheaper than joining them one by one, and
        # leaves stay a quarter full on average.
        return left if _SHRINK * len(left.bitmap) >= self.peak else BPlusTree().insert(*left.entries())

    def cut(self, side: Side) -> Cut:
        side = self._exact(side)
        return Cut(self, side.above, *self._cut(side.bound, inclusive=side.inclusive != side.above))

    def equal(self, key: Key) -> BitMap:
        exact = self._exact(Side(key, above=False, inclusive=True)).bound
        _, leaf, end = self._cut(exact, inclusive=True)
        if leaf is None or exact != key:
            return BitMap()
        return leaf.part(int(np.searchsorted(leaf.keys, exact, "left")), end)

    def leaves(self) -> Iterator[Leaf]:
        waiting = [] if self.root is None else [self.root]
        while waiting:
            node = waiting.pop()
            if isinstance(node, Leaf):
                yield node
            else:
                waiting.extend(reversed(node.children))

    def entries(self) -> tuple[Keys, Rows]:
        parts = [leaf.entries() for leaf in self.leaves()]
        if not parts:
            return np.empty(0), np.empty(0, dtype=np.uint32)
        return np.concatenate([keys for keys, _ in parts]), np.concatenate([rows for _, rows in parts])

    def renumber(self, numbers: Rows) -> BPlusTree:
        keys, rows = self.entries()
        return BPlusTree().insert(keys, numbers[rows])

    def _cut(self, bound: Key, *, inclusive: bool) -> tuple[list[tuple[Inner, int]], Leaf | None, int]:
        """Find where the keys up to a bound end: the way down with the child taken, the leaf, the place in it."""
        find: Any = bisect_right if inclusive else bisect_left
        path: list[tuple[Inner, int]] = []
        node = self.root
        while isinstance(node, Inner):
            place = find(node.lows, bound) - 1
            path.append((node, place))
            node = node.children[place] if place >= 0 else None
        if node is None:
            return path, None, 0
        return path, node, int(np.searchsorted(node.keys, bound, "right" if inclusive else "left"))

    def _dtype(self) -> np.dtype[Any] | None:
        node = self.root
        while isinstance(node, Inner):
            node = node.children[0]
        return None if node is None else node.keys.dtype

    def _exact(self, side: Side) -> Side:
        """Say the same with a bound that the keys' type holds."""
        if isinstance(side.bound, float) or self._dtype() != np.float64:
            return side
        try:
            rounded = float(side.bound)
        except OverflowError:
            rounded = float("inf") if side.bound > 0 else float("-inf")
        # No key lies between the bound and what it was rounded to.
        inclusive = side.inclusive if rounded == side.bound else (rounded > side.bound) == side.above
        return Side(rounded, side.above, inclusive)


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Where the keys of a tree are parted by a bound: the way down with the child taken, the leaf, the place in it."""

    tree: BPlusTree
    above: bool
    path: list[tuple[Inner, int]]
    leaf: Leaf | None
    end: int

    def find(self, within: BitMap | None = None) -> BitMap:
        """Find the rows, of those within a bitmap, that have a key on the wanted side."""
        tree, leaf, end = self.tree, self.leaf, self.end
        parts = [inner.upto[place - 1] for inner, place in self.path if place > 0]
        if leaf is not None and end:
            parts.append(leaf.part(0, end))
        if not self.above:
            return union(parts if within is None else [part & within for part in parts])
        found = tree.bitmap if within is None else tree.bitmap & within
        for part in parts:
            found = found - part
        if tree.repeats:  # such a row may have one key below the bound and another above it
            above = [child.bitmap for inner, place in self.path for child in inner.children[place + 1 :]]
            if leaf is not None:
                above.append(leaf.part(end, len(leaf.keys)))
            repeats = tree.repeats if within is None else tree.repeats & within
            found = union([found, *(part & repeats for part in above)])
        return found

    def count(self) -> tuple[int, int]:
        """Count at least and at most how many rows ``find`` gives; the same where no row has several keys."""
        below = sum([len(inner.upto[place - 1]) for inner, place in self.path if place > 0])
        if self.leaf is not None:
            below += self.end if self.leaf.rows is not None else self.end * len(self.leaf.bitmap)
        rows = len(self.tree.bitmap)
        if self.tree.repeats:
            return 0, rows if self.above else min(below, rows)
        count = rows - below if self.above else below
        return count, count


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


def _pack(keys: Keys, rows: Rows) -> list[Leaf]:
    """Cut sorted entries into leaves of about equal size, none of them empty, never within one key."""
    leaves: list[Leaf] = []
    start, total = 0, len(keys)
    size = ceil(total / ceil(total / LEAF)) if total else LEAF
    while start < total:
        end = min(start + size, total)
        if end < total and keys[end - 1] == keys[end]:
            first = int(np.searchsorted(keys, keys[end], "left"))
            end = first if first > start else int(np.searchsorted(keys, keys[end], "right"))
        held = rows[start:end]
        if end - start >= RUN and keys[start] == keys[end - 1]:
            leaves.append(Leaf(keys[start : start + 1].copy(), None, bitmap_of(held)))
        else:  # copies, so that a leaf does not keep the array that it was cut from
            leaves.append(Leaf(keys[start:end].copy(), held.astype(np.uint32), bitmap_of(held)))
        start = end
    return leaves


def _insert(node: Node, keys: Keys, rows: Rows) -> list[Node]:
    """Insert sorted entries, and return the nodes of the same height that take the node's place."""
    if isinstance(node, Leaf):
        if node.rows is None:
            low = int(np.searchsorted(keys, node.low, "left"))
            high = int(np.searchsorted(keys, node.low, "right"))
            run = Leaf(node.keys, None, node.bitmap | bitmap_of(rows[low:high])) if high > low else node
            return [*_pack(keys[:low], rows[:low]), run, *_pack(keys[high:], rows[high:])]
        at = np.searchsorted(node.keys, keys, "right")
        all_keys, all_rows = np.insert(node.keys, at, keys), np.insert(node.rows, at, rows)
        if len(all_keys) > LEAF:
            return list(_pack(all_keys, all_rows))
        return [Leaf(all_keys, all_rows, node.bitmap | bitmap_of(rows))]
    # A key below all others goes to the first child, whose least key it then becomes.
    places = np.searchsorted(np.array(node.lows[1:], dtype=keys.dtype), keys, "right")
    ends = np.searchsorted(places, np.arange(len(node.children)), "right").tolist()
    children: list[Node] = []
    upto: list[BitMap] = []
    start, added = 0, BitMap()
    for child, before, end in zip(node.children, node.upto, ends, strict=True):
        grown = [child]
        if end > start:
            grown = _insert(child, keys[start:end], rows[start:end])
            added = added | bitmap_of(rows[start:end])
            start = end
        for part in grown[:-1]:
            upto.append(upto[-1] | part.bitmap if upto else part.bitmap)
        upto.append(before | added if added else before)
        children += grown
    return list(_group(children)) if len(children) > FANOUT else [_inner(children, upto)]


def _delete(node: Node, rows: BitMap) -> Node | None:
    """Return what is left without some rows: the node itself where it has none of them, ``None`` for nothing."""
    if not node.bitmap.intersect(rows):
        return node
    if isinstance(node, Inner):
        left = [(_delete(child, rows), before) for child, before in zip(node.children, node.upto, strict=True)]
        kept = [(child, before) for child, before in left if child is not None]
        upto = [before - rows if before.intersect(rows) else before for _, before in kept]
        return _inner([child for child, _ in kept], upto) if kept else None
    bitmap = node.bitmap - rows
    if not bitmap:
        return None
    if node.rows is None and len(bitmap) >= RUN:
        return Leaf(node.keys, None, bitmap)
    keys, held = node.entries()
    gone = rows_of(node.bitmap & rows)
    keep = held != gone[0] if len(gone) == 1 else ~np.isin(held, gone)
    return Leaf(keys[keep], held[keep], bitmap)


def _inner(children: Sequence[Node], upto: Sequence[BitMap]) -> Inner:
    return Inner(tuple(child.low for child in children), tuple(children), tuple(upto))


def _group(nodes: Sequence[Node]) -> list[Inner]:
    size = ceil(len(nodes) / ceil(len(nodes) / FANOUT))
    groups = [nodes[start : start + size] for start in range(0, len(nodes), size)]
    return [_inner(group, list(accumulate((node.bitmap for node in group), or_))) for group in groups]

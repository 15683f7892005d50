"""The nodes of the B+-tree and how they grow and shrink; a changed node is a new node.

Leaves hold keys with their rows, and an inner node holds for each child the bitmap of all rows up to and including
that child. All entries of one key stand in one leaf, so the position of a key in a node decides for whole children.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from operator import or_
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from agentic_retriever.indices.prefilter.inverted import bitmap_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from pyroaring import BitMap

    Rows = npt.NDArray[np.uint32]
    Keys = npt.NDArray[Any]

Key: TypeAlias = Any  # of the tree's type: int, float, or anything that compares with the other keys

LEAF: Final = 1_024  # most entries of a leaf with more than one key
FANOUT: Final = 16  # most children of an inner node
RUN: Final = 64  # from so many rows on, a leaf of one key keeps nothing but their bitmap


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """Entries in order of their keys.

    Attributes:
        keys: ``(n,)`` ascending; one key alone where ``rows`` is ``None``.
        rows: ``(n,)`` the row of each key; ``None`` where all rows of ``bitmap`` have the one key.
        bitmap: All rows.
    """

    keys: Keys
    rows: Rows | None
    bitmap: BitMap

    @property
    def low(self) -> Key:
        """The least key."""
        key = self.keys[0]
        return key.item() if isinstance(key, np.generic) else key

    def entries(self) -> tuple[Keys, Rows]:
        """Return keys and rows of the same length."""
        if self.rows is not None:
            return self.keys, self.rows
        rows = rows_of(self.bitmap)
        return np.repeat(self.keys, len(rows)), rows


@dataclass(frozen=True, slots=True, eq=False)
class Inner:
    """Children in order of their keys.

    Attributes:
        lows: The least key below each child.
        children: From 1 to 16 nodes, all of one height.
        upto: For each child, the rows below it and all before it.
    """

    lows: tuple[Key, ...]
    children: tuple[Leaf | Inner, ...]
    upto: tuple[BitMap, ...]

    @property
    def low(self) -> Key:
        """The least key."""
        return self.lows[0]

    @property
    def bitmap(self) -> BitMap:
        """All rows below."""
        return self.upto[-1]


Node: TypeAlias = Leaf | Inner


def pack(keys: Keys, rows: Rows) -> list[Leaf]:
    """Cut sorted entries into leaves of about equal size, never within one key.

    Args:
        keys: ``(n,)`` ascending.
        rows: ``(n,)``.

    Returns:
        The leaves, none of them empty.
    """
    leaves: list[Leaf] = []
    start, total = 0, len(keys)
    size = ceil(total / ceil(total / LEAF)) if total else LEAF
    while start < total:
        end = min(start + size, total)
        if end < total and keys[end - 1] == keys[end]:
            first = int(np.searchsorted(keys, keys[end], "left"))
            end = first if first > start else int(np.searchsorted(keys, keys[end], "right"))
        leaves.append(_leaf(keys[start:end], rows[start:end]))
        start = end
    return leaves


def stack(nodes: Sequence[Node]) -> Node | None:
    """Put inner nodes above nodes of one height until there is one root.

    Args:
        nodes: In order of their keys.

    Returns:
        The root; ``None`` for no nodes.
    """
    while len(nodes) > 1:
        nodes = _group(nodes)
    return nodes[0] if nodes else None


def insert(node: Node, keys: Keys, rows: Rows) -> list[Node]:
    """Insert sorted entries.

    Args:
        node: Where; it stays as it is.
        keys: ``(n,)`` ascending, at least one.
        rows: ``(n,)``.

    Returns:
        The nodes that take its place, of the same height.
    """
    if isinstance(node, Leaf):
        return list(_insert_in_leaf(node, keys, rows))
    # A key below all others goes to the first child, whose least key it then becomes.
    places = np.searchsorted(_array(node.lows[1:], keys.dtype), keys, "right")
    ends = np.searchsorted(places, np.arange(len(node.children)), "right").tolist()
    children: list[Node] = []
    upto: list[BitMap] = []
    start, added = 0, bitmap_of(rows[:0])
    for child, before, end in zip(node.children, node.upto, ends, strict=True):
        grown = [child]
        if end > start:
            grown = insert(child, keys[start:end], rows[start:end])
            added = added | bitmap_of(rows[start:end])
            start = end
        for part in grown[:-1]:
            upto.append(upto[-1] | part.bitmap if upto else part.bitmap)
        upto.append(before | added if added else before)
        children += grown
    if len(children) > FANOUT:
        return list(_group(children))
    return [_inner(children, upto)]


def delete(node: Node, rows: BitMap) -> Node | None:
    """Remove all entries of some rows. Nodes are not joined: a tree that lost most of its rows is built anew.

    Args:
        node: Where; it stays as it is.
        rows: Which.

    Returns:
        What is left: the node itself where nothing was to be removed, ``None`` where nothing is left.
    """
    if not node.bitmap.intersect(rows):
        return node
    if isinstance(node, Leaf):
        return _delete_from_leaf(node, rows)
    children: list[Node] = []
    upto: list[BitMap] = []
    for child, before in zip(node.children, node.upto, strict=True):
        left = delete(child, rows)
        if left is None:
            continue
        children.append(left)
        upto.append(before - rows if before.intersect(rows) else before)
    return _inner(children, upto) if children else None


def _leaf(keys: Keys, rows: Rows) -> Leaf:
    if len(keys) >= RUN and keys[0] == keys[-1]:
        return Leaf(keys[:1].copy(), None, bitmap_of(rows))
    # Copies, so that a leaf does not keep the array that it was cut from.
    return Leaf(keys.copy(), rows.astype(np.uint32), bitmap_of(rows))


def _inner(children: Sequence[Node], upto: Sequence[BitMap]) -> Inner:
    return Inner(tuple(child.low for child in children), tuple(children), tuple(upto))


def _group(nodes: Sequence[Node]) -> list[Inner]:
    size = ceil(len(nodes) / ceil(len(nodes) / FANOUT))
    groups = [nodes[start : start + size] for start in range(0, len(nodes), size)]
    return [_inner(group, list(accumulate((node.bitmap for node in group), or_))) for group in groups]


def _insert_in_leaf(leaf: Leaf, keys: Keys, rows: Rows) -> list[Leaf]:
    if leaf.rows is None:
        before = int(np.searchsorted(keys, leaf.low, "left"))
        after = int(np.searchsorted(keys, leaf.low, "right"))
        run = Leaf(leaf.keys, None, leaf.bitmap | bitmap_of(rows[before:after])) if after > before else leaf
        return [*pack(keys[:before], rows[:before]), run, *pack(keys[after:], rows[after:])]
    places = np.searchsorted(leaf.keys, keys, "right")
    all_keys, all_rows = np.insert(leaf.keys, places, keys), np.insert(leaf.rows, places, rows)
    if len(all_keys) > LEAF:
        return pack(all_keys, all_rows)
    return [Leaf(all_keys, all_rows, leaf.bitmap | bitmap_of(rows))]


def _delete_from_leaf(leaf: Leaf, rows: BitMap) -> Leaf | None:
    bitmap = leaf.bitmap - rows
    if not bitmap:
        return None
    if leaf.rows is None and len(bitmap) >= RUN:
        return Leaf(leaf.keys, None, bitmap)
    keys, held = leaf.entries()
    gone = rows_of(leaf.bitmap & rows)
    keep = held != gone[0] if len(gone) == 1 else ~np.isin(held, gone)
    return Leaf(keys[keep], held[keep], bitmap)


def _array(keys: Sequence[Any], dtype: np.dtype[Any]) -> Keys:
    made = np.empty(len(keys), dtype=dtype)
    made[:] = keys
    return made

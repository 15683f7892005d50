"""Inverted lists: from each text or boolean of a field to the bitmap of the rows that have it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Final

import numpy as np
from pyroaring import BitMap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    Rows = npt.NDArray[np.uint32]
    Value = str | bool

#: What a text costs beside its characters, in bytes: the string, its place in the dictionary, a small bitmap.
VALUE_BYTES: Final = 300


def bitmap_of(rows: Rows) -> BitMap:
    """Make a bitmap of row numbers, in any order.

    Args:
        rows: ``(n,)`` row numbers; repetitions count once.

    Returns:
        The bitmap. (Only an ``array`` takes the fast way into it.)
    """
    return BitMap(array("I", np.ascontiguousarray(rows, dtype=np.uint32).tobytes()))


def rows_of(bitmap: BitMap) -> Rows:
    """List the rows of a bitmap.

    Args:
        bitmap: Any bitmap.

    Returns:
        ``(n,)`` row numbers, ascending.
    """
    return np.frombuffer(bitmap.to_array(), dtype=np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Factorised:
    """The values of a field as numbers into the list of the different ones.

    Attributes:
        values: The different values, in order of appearance.
        codes: ``(n,)`` position in ``values``.
        rows: ``(n,)`` the row that has the value; a row that has several values comes several times.
    """

    values: list[Value]
    codes: npt.NDArray[np.integer]
    rows: Rows

    @classmethod
    def of(cls, values: Sequence[Value], rows: Rows) -> Factorised:
        """Number the different values.

        Args:
            values: One value for each of ``rows``; texts and booleans.
            rows: ``(n,)`` row numbers.

        Returns:
            The numbered values.
        """
        different = list(dict.fromkeys(values))
        number_of = {value: number for number, value in enumerate(different)}
        # Sixteen bits where they do: numpy sorts these by radix.
        dtype = np.uint16 if len(different) < 2**16 else np.uint32
        codes = np.fromiter(map(number_of.__getitem__, values), dtype=dtype, count=len(rows))
        return cls(different, codes, rows)

    @property
    def cost(self) -> int:
        """Roughly how many bytes an inverted index of the values takes."""
        return inverted_cost(self.values)


@dataclass(frozen=True, slots=True, eq=False)
class InvertedIndex:
    """Rows by value. Immutable: changes give a new index that shares all bitmaps that did not change.

    Attributes:
        postings: The rows of each value; no bitmap is empty, and none is ever changed.
        cost: Roughly how many bytes the texts take.
    """

    postings: Mapping[Value, BitMap] = field(default_factory=dict)
    cost: int = 0

    @classmethod
    def build(cls, factorised: Factorised) -> InvertedIndex:
        """Build the lists of many values at once.

        Args:
            factorised: The numbered values.

        Returns:
            The index.
        """
        order = np.argsort(factorised.codes, kind="stable")
        rows = array("I", factorised.rows[order].astype(np.uint32, copy=False).tobytes())
        ends = np.cumsum(np.bincount(factorised.codes, minlength=len(factorised.values))).tolist()
        postings: dict[Value, BitMap] = {}
        start = 0
        for value, end in zip(factorised.values, ends, strict=True):
            postings[value] = BitMap(rows[start:end])
            start = end
        return cls(postings, factorised.cost)

    def __len__(self) -> int:
        return len(self.postings)

    def get(self, value: Value) -> BitMap | None:
        """Return the rows that have a value, or ``None``; not to be changed."""
        return self.postings.get(value)

    def texts(self) -> Iterator[tuple[str, BitMap]]:
        """Yield every text with its rows."""
        for value, rows in self.postings.items():
            if isinstance(value, str):
                yield value, rows

    def insert(self, factorised: Factorised) -> InvertedIndex:
        """Return an index that has these rows too."""
        if not len(factorised.rows):
            return self
        added = InvertedIndex.build(factorised)
        postings = dict(self.postings)
        cost = self.cost
        for value, rows in added.postings.items():
            known = postings.get(value)
            postings[value] = rows if known is None else known | rows
            cost += _cost(value) if known is None else 0
        return InvertedIndex(postings, cost)

    def delete(self, rows: BitMap) -> InvertedIndex:
        """Return an index without these rows; values that nothing has any more are gone."""
        values = list(self.postings)
        # Few lists change when few rows go, and asking is far cheaper than subtracting.
        touched = compress(values, (bitmap.intersect(rows) for bitmap in self.postings.values()))
        postings: dict[Value, BitMap] | None = None
        cost = self.cost
        for value in touched:
            postings = dict(self.postings) if postings is None else postings
            left = self.postings[value] - rows
            if left:
                postings[value] = left
            else:
                del postings[value]
                cost -= _cost(value)
        return self if postings is None else InvertedIndex(postings, cost)

    def without_texts(self) -> InvertedIndex:
        """Return the index of the booleans alone."""
        postings: dict[Value, BitMap] = {
            value: rows for value, rows in self.postings.items() if isinstance(value, bool)
        }
        return InvertedIndex(postings, inverted_cost(postings))

    def renumber(self, numbers: Rows) -> InvertedIndex:
        """Return the index under other row numbers: row ``r`` becomes ``numbers[r]``."""
        postings = {value: bitmap_of(numbers[rows_of(rows)]) for value, rows in self.postings.items()}
        return InvertedIndex(postings, self.cost)


def inverted_cost(values: Iterable[Value]) -> int:
    """Say what the texts of an inverted index take.

    Args:
        values: Its different values.

    Returns:
        Roughly how many bytes.
    """
    return sum(map(_cost, values))


def _cost(value: Value) -> int:
    return VALUE_BYTES + len(value) if isinstance(value, str) else 0

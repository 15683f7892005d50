"""Inverted lists: from each text or boolean of a field to the bitmap of the rows that have it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import reduce
from itertools import compress
from operator import or_
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Rows: TypeAlias = npt.NDArray[np.uint32]
Value: TypeAlias = str | bool

VALUE_BYTES: Final = 300  # of a text beside its characters: the string, its place in the dictionary, a small bitmap
MANY: Final = 16  # from so many bitmaps on it is faster to join them all at once


def bitmap_of(rows: Rows) -> BitMap:
    """Make a bitmap of row numbers, in any order."""
    # Only an ``array`` takes the fast way into it.
    return BitMap(array("I", np.ascontiguousarray(rows, dtype=np.uint32).tobytes()))


def rows_of(bitmap: BitMap) -> Rows:
    """List the rows of a bitmap, ascending."""
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
        """Number the different values."""
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
        """Yield every text with its rows."""
        return ((value, rows) for value, rows in self.postings.items() if isinstance(value, str))

    def insert(self, words: Factorised) -> InvertedIndex:
        """Return an index that has these rows too."""
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
        """Return the index of the booleans alone."""
        return InvertedIndex({value: rows for value, rows in self.postings.items() if isinstance(value, bool)})

    def renumber(self, numbers: Rows) -> InvertedIndex:
        """Return the index under other row numbers: row ``r`` becomes ``numbers[r]``."""
        postings = {value: bitmap_of(numbers[rows_of(rows)]) for value, rows in self.postings.items()}
        return InvertedIndex(postings, self.cost)

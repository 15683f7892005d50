"""One metadata field: its values taken apart by type, as filters compare them, and everything indexed of them.

Of the types that can stand in one field the order is: booleans, numbers, dates, date-times, texts. Filters never
compare across types, so each type has an order, and a structure, of its own and no comparison can fail.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np
from pyroaring import BitMap

from agentic_retriever.filters import elements, is_missing, parse_moment
from agentic_retriever.indices.prefilter.btree import (
    BPlusTree,
    Factorised,
    InvertedIndex,
    Keys,
    Rows,
    bitmap_of,
    rows_of,
    union,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

Entries: TypeAlias = tuple[Keys, Rows]  # keys of one type, and the row of each

DAY_US: Final = 86_400_000_000
_EXACT: Final = 2**53  # beyond it a float64 cannot tell neighbouring integers apart
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_NUMBERS: Final = frozenset({int, float})


@dataclass(frozen=True, slots=True, eq=False)
class FieldValues:
    """What the nodes have in one field, taken apart but not yet indexed."""

    present: Rows  # those in which the field is not missing
    words: Factorised  # texts and booleans
    numbers: Entries

    @classmethod
    def of(cls, values: Sequence[object], rows: Rows) -> FieldValues:
        """Take metadata values of any type apart, one for each of the rows, which are ascending."""
        flat, flat_rows, present = values, rows, rows
        if set(map(type, values)) == {list}:
            lists = cast("Sequence[list[object]]", values)
            lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(rows))
            flat, flat_rows, present = list(chain.from_iterable(lists)), np.repeat(rows, lengths), rows[lengths > 0]
        return cls._of_one_kind(flat, flat_rows, present) or cls._of_mixed(values, rows)

    def renumber(self, numbers: Rows) -> FieldValues:
        """Return the values under other row numbers: row ``r`` becomes ``numbers[r]``."""
        keys, rows = self.numbers
        words = replace(self.words, rows=numbers[self.words.rows])
        return FieldValues(numbers[self.present], words, (keys, numbers[rows]))

    @classmethod
    def _of_one_kind(cls, values: Sequence[Any], rows: Rows, present: Rows) -> FieldValues | None:
        """Take apart what is all text, all boolean or all numbers; by far the most fields are."""
        kinds = set(map(type, values))
        if kinds <= {str} or kinds == {bool}:
            return cls(present, Factorised.of(values, rows), _number_entries([], rows[:0]))
        if kinds <= _NUMBERS:
            keys, _ = entries = _number_entries(values, rows)
            if keys.dtype == np.float64 and not np.isnan(keys).any():
                return cls(present, Factorised.of([], rows[:0]), entries)
        return None

    @classmethod
    def _of_mixed(cls, values: Sequence[object], rows: Rows) -> FieldValues:
        present: list[int] = []
        words: list[tuple[str | bool, int]] = []
        numbers: list[tuple[int | float, int]] = []
        for value, row in zip(values, rows.tolist(), strict=True):
            if is_missing(value):
                continue
            present.append(row)
            for scalar in elements(value):
                if isinstance(scalar, (str, bool)):
                    words.append((scalar, row))
                else:
                    numbers.append((scalar, row))
        return cls(
            _as_rows(present),
            Factorised.of([word for word, _ in words], _as_rows([row for _, row in words])),
            _number_entries([number for number, _ in numbers], _as_rows([row for _, row in numbers])),
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FieldIndex:
    """The index of one field. Immutable: changes give a new one that shares what did not change."""

    whole: bool = True  # whether texts are indexed
    present: BitMap = field(default_factory=BitMap)  # rows in which the field is not missing
    words: InvertedIndex = field(default_factory=InvertedIndex)  # texts and booleans; booleans alone if not ``whole``
    unindexed: BitMap = field(default_factory=BitMap)  # rows that have a text, if not ``whole``
    numbers: BPlusTree = field(default_factory=BPlusTree)  # by worth
    days: BPlusTree = field(default_factory=BPlusTree)  # dates without a time, as days since 1970
    moments: BPlusTree = field(default_factory=BPlusTree)  # date-times, as microseconds since 1970 in UTC

    def insert(self, values: FieldValues) -> FieldIndex:
        """Return an index that has these values too; their rows must be new."""
        words, unindexed = values.words, self.unindexed
        if not self.whole:
            texts, words = words.split_texts()
            unindexed = unindexed | bitmap_of(texts)
        days, moments = _moment_entries(values.words)
        return FieldIndex(
            whole=self.whole,
            present=self.present | bitmap_of(values.present),
            words=self.words.insert(words),
            unindexed=unindexed,
            numbers=self.numbers.insert(*values.numbers),
            days=self.days.insert(*days),
            moments=self.moments.insert(*moments),
        )

    def delete(self, rows: BitMap) -> FieldIndex:
        """Return an index without these rows."""
        if not self.present.intersect(rows):
            return self
        return replace(
            self,
            present=self.present - rows,
            words=self.words.delete(rows),
            unindexed=self.unindexed - rows,
            numbers=self.numbers.delete(rows),
            days=self.days.delete(rows),
            moments=self.moments.delete(rows),
        )

    def renumber(self, numbers: Rows) -> FieldIndex:
        """Return the index under other row numbers: row ``r`` becomes ``numbers[r]``."""
        return replace(
            self,
            present=bitmap_of(numbers[rows_of(self.present)]),
            words=self.words.renumber(numbers),
            unindexed=bitmap_of(numbers[rows_of(self.unindexed)]),
            numbers=self.numbers.renumber(numbers),
            days=self.days.renumber(numbers),
            moments=self.moments.renumber(numbers),
        )

    def without_texts(self) -> FieldIndex:
        """Return the index with its texts left out; dates keep their ranges."""
        texts = union([rows for _, rows in self.words.texts()])
        return replace(self, words=self.words.without_texts(), unindexed=texts, whole=False)


def microseconds_of(moment: dt.datetime) -> int:
    """Count the microseconds from 1970 in UTC, exactly."""
    return (moment - _EPOCH) // _MICROSECOND


def _number_entries(numbers: Sequence[int | float], rows: Rows) -> Entries:
    """Make ``float64`` keys of numbers of any size where these are exact, else keep the numbers themselves."""
    try:
        keys = np.asarray(numbers, dtype=np.float64)
    except OverflowError:
        return _objects(numbers), rows
    if len(keys) and not (np.abs(keys) < _EXACT).all():
        exact = all(isinstance(number, float) or int(key) == number for number, key in zip(numbers, keys, strict=True))
        if not exact:
            return _objects(numbers), rows
    return keys, rows


def _moment_entries(words: Factorised) -> tuple[Entries, Entries]:
    """Find the ISO 8601 dates, as days, and date-times, as microseconds, among texts."""
    days: dict[int, int] = {}
    moments: dict[int, int] = {}
    for code, text in enumerate(words.values):
        # Most texts are no dates, and parsing them to find out takes ten times as long as this look.
        if not isinstance(text, str) or len(text) < 10 or text[4] != "-":
            continue
        found = parse_moment(text)
        if found is not None:
            microseconds = microseconds_of(found[0])
            (days if found[1] else moments)[code] = microseconds // DAY_US if found[1] else microseconds
    return _spread(words, days), _spread(words, moments)


def _spread(words: Factorised, keys: dict[int, int]) -> Entries:
    """Give every row whose word has a key that key."""
    if not keys:
        return np.empty(0, dtype=np.int64), words.rows[:0]
    key_of_code = np.zeros(len(words.values), dtype=np.int64)
    key_of_code[list(keys)] = list(keys.values())
    has_key = np.zeros(len(words.values), dtype=np.bool_)
    has_key[list(keys)] = True
    chosen = has_key[words.codes]
    return key_of_code[words.codes[chosen]], words.rows[chosen]


def _objects(numbers: Sequence[int | float]) -> Keys:
    keys = np.empty(len(numbers), dtype=object)
    keys[:] = numbers
    return keys


def _as_rows(rows: list[int]) -> Rows:
    return np.asarray(rows, dtype=np.uint32)

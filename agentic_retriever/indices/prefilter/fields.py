"""Everything that is indexed of one metadata field."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
from pyroaring import BitMap

from agentic_retriever.indices.prefilter.inverted import Factorised, InvertedIndex, bitmap_of, rows_of
from agentic_retriever.indices.prefilter.ordered import OrderedKeys
from agentic_retriever.indices.prefilter.values import moment_entries, split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.indices.prefilter.inverted import Rows
    from agentic_retriever.indices.prefilter.values import Entries


class FieldKind(str, Enum):
    """What the values of a field are."""

    TEXT = "text"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DATE = "date"
    MIXED = "mixed"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """What is known of a metadata field.

    Attributes:
        name: The field.
        kind: What its values are; ``DATE`` where all texts are ISO 8601 dates or date-times (in lists, one of them),
            ``OTHER`` for objects and nested lists, which no filter compares.
        distinct: How many different values there are; of texts that are left out, ``None``.
        nodes: How many nodes have the field.
        indexed: Whether filters on it are answered from the index alone; not so for texts of very many values.
    """

    name: str
    kind: FieldKind
    distinct: int | None
    nodes: int
    indexed: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FieldIndex:
    """The index of one field. Immutable: changes give a new one that shares what did not change.

    Attributes:
        present: Rows in which the field is not missing.
        words: Texts and booleans; booleans alone where ``whole`` is false.
        text_rows: Rows that have a text.
        whole: Whether texts are indexed.
        numbers: Numbers, by worth.
        days: Dates without a time, as days since 1970.
        moments: Date-times, as microseconds since 1970 in UTC.
    """

    present: BitMap
    words: InvertedIndex
    text_rows: BitMap
    whole: bool
    numbers: OrderedKeys
    days: OrderedKeys
    moments: OrderedKeys

    @property
    def cost(self) -> int:
        """Roughly how many bytes the texts take."""
        return self.words.cost

    def insert(self, values: RawField, size: int) -> FieldIndex:
        """Return an index that has these values too; their rows must be new."""
        days, moments = moment_entries(values.words)
        words = values.words if self.whole else values.booleans()
        return FieldIndex(
            present=self.present | bitmap_of(values.present),
            words=self.words.insert(words),
            text_rows=self.text_rows | values.text_rows(),
            whole=self.whole,
            numbers=self.numbers.insert(values.numbers, size),
            days=self.days.insert(days, size),
            moments=self.moments.insert(moments, size),
        )

    def delete(self, rows: BitMap) -> FieldIndex:
        """Return an index without these rows."""
        if not self.present.intersect(rows):
            return self
        return replace(
            self,
            present=self.present - rows,
            words=self.words.delete(rows),
            text_rows=self.text_rows - rows,
            numbers=self.numbers.delete(rows),
            days=self.days.delete(rows),
            moments=self.moments.delete(rows),
        )

    def renumber(self, numbers: Rows, size: int) -> FieldIndex:
        """Return the index under other row numbers: row ``r`` becomes ``numbers[r]``."""
        return FieldIndex(
            present=bitmap_of(numbers[rows_of(self.present)]),
            words=self.words.renumber(numbers),
            text_rows=bitmap_of(numbers[rows_of(self.text_rows)]),
            whole=self.whole,
            numbers=self.numbers.renumber(numbers, size),
            days=self.days.renumber(numbers, size),
            moments=self.moments.renumber(numbers, size),
        )

    def without_texts(self) -> FieldIndex:
        """Return the index with its texts left out; dates keep their ranges."""
        return replace(self, words=self.words.without_texts(), whole=False)

    def info(self, name: str) -> FieldInfo:
        """Describe the field."""
        distinct = len(self.words) + self.numbers.tree.distinct() if self.whole or not self.text_rows else None
        return FieldInfo(name, self._kind(), distinct, len(self.present), self.whole or not self.text_rows)

    def _kind(self) -> FieldKind:
        dated = self.days.tree.bitmap | self.moments.tree.bitmap
        kinds = {
            FieldKind.TEXT: bool(self.text_rows),
            FieldKind.NUMBER: bool(self.numbers),
            FieldKind.BOOLEAN: self.words.get(True) is not None or self.words.get(False) is not None,
        }
        found = [kind for kind, there in kinds.items() if there]
        if len(found) != 1:
            return FieldKind.MIXED if found else FieldKind.OTHER
        return FieldKind.DATE if found == [FieldKind.TEXT] and dated == self.text_rows else found[0]


@dataclass(frozen=True, slots=True, eq=False)
class RawField:
    """The values of a field, taken apart but not yet indexed.

    Attributes:
        present: Rows in which the field is not missing.
        words: Texts and booleans.
        numbers: Numbers.
    """

    present: Rows
    words: Factorised
    numbers: Entries

    @classmethod
    def of(cls, values: Sequence[object], rows: Rows) -> RawField:
        """Take values apart.

        Args:
            values: What the metadata hold, of any type; one for each row.
            rows: ``(n,)`` row numbers, ascending.

        Returns:
            The parts.
        """
        return cls(*split(values, rows))

    def text_rows(self) -> BitMap:
        """Return the rows that have a text."""
        if all(isinstance(value, str) for value in self.words.values):
            return bitmap_of(self.words.rows)
        rows = self.words.rows.tolist()
        values, codes = self.words.values, self.words.codes.tolist()
        return BitMap([row for row, code in zip(rows, codes, strict=True) if isinstance(values[code], str)])

    def booleans(self) -> Factorised:
        """Return the booleans alone."""
        values = self.words.values
        if all(isinstance(value, str) for value in values):
            return Factorised.of([], self.words.rows[:0])
        pairs = zip(self.words.rows.tolist(), self.words.codes.tolist(), strict=True)
        kept = [(row, values[code]) for row, code in pairs if isinstance(values[code], bool)]
        rows = rows_of(BitMap()) if not kept else np.asarray([row for row, _ in kept], dtype=np.uint32)
        return Factorised.of([value for _, value in kept], rows)

    def index(self, size: int, *, whole: bool = True) -> FieldIndex:
        """Index the values.

        Args:
            size: Number of rows there are.
            whole: Whether texts are indexed.

        Returns:
            The index.
        """
        days, moments = moment_entries(self.words)
        return FieldIndex(
            present=bitmap_of(self.present),
            words=InvertedIndex.build(self.words if whole else self.booleans()),
            text_rows=self.text_rows(),
            whole=whole,
            numbers=OrderedKeys.build(self.numbers, size),
            days=OrderedKeys.build(days, size),
            moments=OrderedKeys.build(moments, size),
        )

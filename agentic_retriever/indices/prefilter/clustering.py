"""Numbering nodes so that those that are alike stand together, which makes their bitmaps short.

Rows sorted by their fields, those of the fewest values first, have bitmaps of few runs, which take little memory and
are joined in little time (Lemire, Kaser and Aouiche 2010, "Sorting improves word-aligned bitmap indexes").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from agentic_retriever.indices.prefilter.fields import RawField
from agentic_retriever.indices.prefilter.inverted import Factorised, rows_of
from agentic_retriever.indices.prefilter.values import Entries

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from agentic_retriever.indices.prefilter.btree import Keys, Rows
    from agentic_retriever.indices.prefilter.fields import FieldIndex

#: In fewer rows than one container of a bitmap holds there is nothing to win.
MIN_ROWS: Final = 2**16
_MAX_VALUES: Final = 1_024
_MAX_COMBINATIONS: Final = 2**40
_PROBED: Final = 8_192


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """The value of each row as a number.

    Attributes:
        different: How many numbers there are.
        codes: ``(rows,)`` from 0 to ``different - 1``; 0 where a row has no value.
    """

    different: int
    codes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, values: int, codes: npt.NDArray[np.integer], rows: Rows, size: int) -> Codes:
        """Spread codes over all rows.

        Args:
            values: How many different ones there are.
            codes: ``(n,)`` from 0.
            rows: ``(n,)`` the row of each.
            size: Number of rows.

        Returns:
            The codes of all rows.
        """
        column = np.zeros(size, dtype=np.int64)
        column[rows] = codes.astype(np.int64) + 1
        return cls(values + 1, column)

    def of_rows(self, rows: Rows) -> Codes:
        """Return the codes of some rows."""
        return Codes(self.different, self.codes[rows])


def clustered_order(columns: Iterable[Codes | None], size: int) -> npt.NDArray[np.intp] | None:
    """Find an order in which rows of equal values stand together.

    Args:
        columns: The codes of each field that has some.
        size: Number of rows.

    Returns:
        ``(size,)`` the rows in the new order; ``None`` where it would be of no use.
    """
    if size < MIN_ROWS:
        return None
    known = [column for column in columns if column is not None]
    combined = np.zeros(size, dtype=np.int64)
    combinations = 1
    for column in sorted(known, key=lambda column: column.different):
        if combinations * column.different > _MAX_COMBINATIONS:
            break
        combinations *= column.different
        combined = combined * column.different + column.codes
    return np.argsort(combined, kind="stable") if combinations > 1 else None


def reordered(values: RawField, order: npt.NDArray[np.intp]) -> RawField:
    """Give the values of a field the row numbers of another order.

    Args:
        values: Values by row.
        order: ``(size,)`` the rows in the new order.

    Returns:
        The values by new row number, ascending.
    """
    numbers: Rows = np.empty(len(order), dtype=np.uint32)
    numbers[order] = np.arange(len(order), dtype=np.uint32)
    words, figures = values.words, values.numbers
    word_rows, word_order = _moved(words.rows, numbers, order)
    figure_rows, figure_order = _moved(figures.rows, numbers, order)
    return RawField(
        _moved(values.present, numbers, order)[0],
        Factorised(words.values, words.codes[word_order], word_rows),
        Entries(figures.keys[figure_order], figure_rows),
    )


def _moved(rows: Rows, numbers: Rows, order: npt.NDArray[np.intp]) -> tuple[Rows, npt.NDArray[np.intp]]:
    if len(rows) == len(order) and _ascending(rows):  # one for every row: the order itself
        return np.arange(len(order), dtype=np.uint32), order
    moved = numbers[rows]
    by_row = np.argsort(moved, kind="stable")
    return moved[by_row], by_row


def raw_codes(values: RawField, size: int) -> Codes | None:
    """Number the values of a field that has one value in a row and few in all.

    Args:
        values: The values by row.
        size: Number of rows.

    Returns:
        The codes; ``None`` for other fields.
    """
    words, figures = values.words, values.numbers
    if len(words.rows) and len(figures.rows):
        return None
    if not len(words.rows):
        return _number_codes(figures.keys, figures.rows, size) if _ascending(figures.rows) else None
    if len(words.values) >= _MAX_VALUES or not _ascending(words.rows):
        return None
    return Codes.of(len(words.values), words.codes, words.rows, size)


def field_codes(index: FieldIndex, size: int) -> Codes | None:
    """Number the values of an indexed field that has one value in a row and few in all.

    Args:
        index: The field.
        size: Number of rows.

    Returns:
        The codes; ``None`` for other fields.
    """
    postings = list(index.words.postings.values())
    if not postings:
        tree = index.numbers.tree
        return None if tree.repeats else _number_codes(*tree.entries(), size)
    if index.numbers or len(postings) >= _MAX_VALUES or sum(map(len, postings)) > len(index.present):
        return None
    lengths = [len(rows) for rows in postings]
    codes = np.repeat(np.arange(len(postings)), lengths)
    return Codes.of(len(postings), codes, np.concatenate([rows_of(rows) for rows in postings]), size)


def _number_codes(keys: Keys, rows: Rows, size: int) -> Codes | None:
    few = len(keys) and keys.dtype != np.object_ and len(np.unique(keys[:: len(keys) // _PROBED + 1])) < _MAX_VALUES
    if not few:
        return None
    different, codes = np.unique(keys, return_inverse=True)
    return Codes.of(len(different), codes, rows, size) if len(different) < _MAX_VALUES else None


def _ascending(rows: Rows) -> bool:
    return bool((rows[1:] > rows[:-1]).all())

"""The values of one metadata field, taken apart by type as filters compare them.

Of the types that can stand in one field the order is: booleans, numbers, dates, date-times, texts. Filters never
compare across types, so each type has an order, and a structure, of its own and no comparison can fail.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agentic_retriever.filters import elements, is_missing, parse_moment
from agentic_retriever.indices.prefilter.inverted import Factorised

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Rows = npt.NDArray[np.uint32]
    Keys = npt.NDArray[Any]

DAY_US: Final = 86_400_000_000
_EXACT: Final = 2**53  # beyond it a float64 cannot tell neighbouring integers apart
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_NUMBERS: Final = frozenset({int, float})


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Keys of one type with their rows.

    Attributes:
        keys: ``(n,)`` ``float64`` or ``int64``, or objects.
        rows: ``(n,)``.
    """

    keys: Keys
    rows: Rows


@dataclass(slots=True, eq=False)
class FieldValues:
    """What the nodes have in one field.

    Attributes:
        present: Rows in which the field is not missing.
        words: Texts and booleans, and the row of each.
        numbers: Numbers, and the row of each.
    """

    present: list[int] = field(default_factory=list)
    words: tuple[list[str | bool], list[int]] = field(default_factory=lambda: ([], []))
    numbers: tuple[list[int | float], list[int]] = field(default_factory=lambda: ([], []))


def split(values: Sequence[object], rows: Rows) -> tuple[Rows, Factorised, Entries]:
    """Take the values of a field apart.

    Args:
        values: What the metadata hold, of any type; one for each row.
        rows: ``(n,)`` row numbers, ascending.

    Returns:
        The rows in which the field is not missing, its texts and booleans, and its numbers.
    """
    kinds = set(map(type, values))
    if kinds == {list}:
        lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(rows))  # type: ignore[arg-type]  # all are lists
        flat: list[Any] = list(chain.from_iterable(values))  # type: ignore[arg-type]  # all are lists
        fast = _of_one_kind(flat, np.repeat(rows, lengths))
        present = rows[lengths > 0]
    else:
        fast, present = _of_one_kind(values, rows), rows
    if fast is not None:
        return (present, *fast)
    return _split_mixed(values, rows)


def _of_one_kind(values: Sequence[Any], rows: Rows) -> tuple[Factorised, Entries] | None:
    """Take apart what is all text, all boolean or all numbers; by far the most fields are."""
    kinds = set(map(type, values))
    if kinds <= {str} or kinds == {bool}:
        return Factorised.of(values, rows), number_entries([], rows[:0])
    if kinds <= _NUMBERS:
        entries = number_entries(values, rows)
        if entries.keys.dtype == np.float64 and not np.isnan(entries.keys).any():
            return Factorised.of([], rows[:0]), entries
    return None


def _split_mixed(values: Sequence[object], rows: Rows) -> tuple[Rows, Factorised, Entries]:
    found = FieldValues()
    for value, row in zip(values, rows.tolist(), strict=True):
        if is_missing(value):
            continue
        found.present.append(row)
        for scalar in elements(value):
            into: tuple[list[Any], list[int]] = found.words if isinstance(scalar, (str, bool)) else found.numbers
            into[0].append(scalar)
            into[1].append(row)
    words, word_rows = found.words
    numbers, number_rows = found.numbers
    return (
        _as_rows(found.present),
        Factorised.of(words, _as_rows(word_rows)),
        number_entries(numbers, _as_rows(number_rows)),
    )


def number_entries(numbers: Sequence[int | float], rows: Rows) -> Entries:
    """Make keys of numbers.

    Args:
        numbers: Of any size.
        rows: The row of each.

    Returns:
        ``float64`` keys where these are exact, else the numbers themselves.
    """
    try:
        keys = np.asarray(numbers, dtype=np.float64)
    except OverflowError:
        return Entries(_objects(numbers), rows)
    if len(keys) and not (np.abs(keys) < _EXACT).all():
        exact = all(isinstance(number, float) or int(key) == number for number, key in zip(numbers, keys, strict=True))
        if not exact:
            return Entries(_objects(numbers), rows)
    return Entries(keys, rows)


def moment_entries(words: Factorised) -> tuple[Entries, Entries]:
    """Find the ISO 8601 dates and date-times among texts.

    Args:
        words: Texts and booleans.

    Returns:
        Dates as days and date-times as microseconds, both ``int64`` since 1970 in UTC.
    """
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
    return _expand(words, days), _expand(words, moments)


def microseconds_of(moment: dt.datetime) -> int:
    """Count the microseconds from 1970 in UTC.

    Args:
        moment: With a time zone.

    Returns:
        The count, exact.
    """
    return (moment - _EPOCH) // _MICROSECOND


def _expand(words: Factorised, keys: dict[int, int]) -> Entries:
    if not keys:
        return Entries(np.empty(0, dtype=np.int64), words.rows[:0])
    of_code = np.zeros(len(words.values), dtype=np.int64)
    of_code[list(keys)] = list(keys.values())
    wanted = np.zeros(len(words.values), dtype=np.bool_)
    wanted[list(keys)] = True
    chosen = wanted[words.codes]
    return Entries(of_code[words.codes[chosen]], words.rows[chosen])


def _objects(numbers: Sequence[int | float]) -> Keys:
    keys = np.empty(len(numbers), dtype=object)
    keys[:] = numbers
    return keys


def _as_rows(rows: list[int]) -> Rows:
    return np.asarray(rows, dtype=np.uint32)

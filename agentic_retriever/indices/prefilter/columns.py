"""The keys of an ordered field by row: to look at few rows is faster than to make the bitmap of a range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Rows = npt.NDArray[np.uint32]
    Keys = npt.NDArray[Any]

_NO_INTEGER: Final = np.iinfo(np.int64).min
_GROWTH: Final = 1.25


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One key per row, or none. Rows are only ever appended, so that columns of all ages share one array.

    Attributes:
        keys: ``(capacity,)`` ``float64`` or ``int64``; NaN or the least integer where a row has no key.
        size: How many rows there are.
    """

    keys: Keys
    size: int

    @classmethod
    def empty(cls, dtype: np.dtype[Any]) -> Column:
        """Make a column without rows.

        Args:
            dtype: ``float64`` or ``int64``.

        Returns:
            The column.
        """
        return cls(np.empty(0, dtype=dtype), 0)

    def extend(self, size: int, keys: Keys, rows: Rows) -> Column:
        """Return a column of more rows.

        Readers of this one never look beyond its size, so the same array may serve both. There must be one line of
        descent: of two columns made from this one only the last is right.

        Args:
            size: How many rows the new one has.
            keys: ``(n,)`` keys of new rows.
            rows: ``(n,)`` those rows, none of them in this column.

        Returns:
            The new column.
        """
        held = self.keys
        if size > len(held):
            held = np.empty(size if self.size == 0 else int(size * _GROWTH), dtype=held.dtype)
            held[: self.size] = self.keys[: self.size]
        held[self.size : size] = _filler(held.dtype)
        held[rows] = keys
        return Column(held, size)

    def compare(self, rows: Rows, bound: float, *, above: bool, inclusive: bool) -> npt.NDArray[np.bool_]:
        """Compare the keys of some rows with a bound.

        Args:
            rows: ``(n,)`` row numbers; those beyond the column have no key.
            bound: A number of the column's type.
            above: Whether keys above the bound are wanted, or those below it.
            inclusive: Whether the bound itself counts.

        Returns:
            ``(n,)`` whether the row has a key that satisfies it.
        """
        if not self.size:
            return np.zeros(len(rows), dtype=np.bool_)
        known = rows < self.size
        keys = self.keys[np.where(known, rows, 0)] if not known.all() else self.keys[rows]
        if above:
            found = keys >= bound if inclusive else keys > bound
        else:
            found = keys <= bound if inclusive else keys < bound
        if keys.dtype == np.int64:
            found &= keys != _NO_INTEGER
        result: npt.NDArray[np.bool_] = found & known
        return result


def _filler(dtype: np.dtype[Any]) -> float | int:
    return _NO_INTEGER if dtype == np.int64 else np.nan

"""Numbers, amounts and dates as they are written."""

from __future__ import annotations

import calendar
import datetime as dt
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agentic_retriever.retrievers.question_filters.lexicon import units

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDDHIST: Final = 543
"""Years by which the Buddhist era is ahead of the common one."""

_INTEGER: Final = re.compile(r"[0-9]{1,15}")
_POINTED: Final = re.compile(r"[0-9]{1,3}(?:,[0-9]{3}){1,4}(?:\.[0-9]{1,9})?|[0-9]{1,15}(?:\.[0-9]{1,9})?")
_COMMAED: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{3}){1,4}(?:,[0-9]{1,9})?|[0-9]{1,15}(?:,[0-9]{1,9})?")
_PLAIN_DECIMAL: Final = re.compile(r"[0-9]{1,15}[.,][0-9]{1,9}")
_ISO_DATE: Final = re.compile(r"([12][0-9]{3})-([0-9]{2})-([0-9]{2})")
_SLASHED: Final = re.compile(r"([0-9]{1,2})[/.-]([0-9]{1,2})[/.-]([12][0-9]{3})")
_TWO: Final = re.compile(r"([0-9][0-9.,]*)-([0-9][0-9.,]*)")


@dataclass(frozen=True, slots=True)
class Amount:
    """A number with a unit.

    Attributes:
        number: As it was written, with its factor: 5 of ``5 rai``.
        unit: The unit's id; of several (``5 rai 2 ngan``) that of the first.
        base: The whole in the base unit of its dimension.
        dimension: What it measures.
    """

    number: float
    unit: str
    base: float
    dimension: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A time span of the calendar: a day, a month, a year or a decade.

    Attributes:
        year: Year as it was written, of either era; of a decade the first.
        month: Month, or ``None`` for a whole year.
        day: Day, or ``None`` for a whole month.
        years: How many years it covers: 10 for a decade, else 1.
        era: ``"be"``, ``"ce"`` or ``None`` where it was not said.
    """

    year: int
    month: int | None = None
    day: int | None = None
    years: int = 1
    era: str | None = None

    def first_day(self, year: int) -> str:
        """Return its first day as an ISO date, with the year replaced."""
        return f"{year:04d}-{self.month or 1:02d}-{self.day or 1:02d}"

    def last_day(self, year: int) -> str:
        """Return its last day as an ISO date, with the year replaced."""
        last = year + self.years - 1
        month = self.month or 12
        day = self.day or calendar.monthrange(last, month)[1]
        return f"{last:04d}-{month:02d}-{day:02d}"


def read_number(text: str, decimal: str) -> float | None:
    """Read figures with their separators.

    Args:
        text: Such as ``1,250.5`` or ``1.250,5``.
        decimal: The sign before decimals in the question's language. ``1.250`` is a thousand and more where that is a
            comma; figures that do not fit the language's way are read in the other.

    Returns:
        The number, or ``None`` for what is none, such as ``4.2.1``.
    """
    for sign in dict.fromkeys((decimal, ".", ",")):
        if (_POINTED if sign == "." else _COMMAED).fullmatch(text):
            grouping = "," if sign == "." else "."
            return float(text.replace(grouping, "").replace(sign, "."))
    if _PLAIN_DECIMAL.fullmatch(text):
        return float(text.replace(",", "."))
    return None


def split_figures(text: str, decimal: str, *, day_first: bool) -> Iterator[tuple[str, int, int, object]]:
    """Tell what a run of figures, dots, commas, slashes and hyphens is.

    Args:
        text: The run, beginning and ending with a figure.
        decimal: The sign before decimals.
        day_first: Whether ``5/6/2021`` is in June. Where it is not known, such a date counts only if it can be read in
            one way.

    Yields:
        Letter, start, end and value of each thing: a date ``D``, a number ``N`` or ``4``, ``T`` for the hyphen of a
        range, ``W`` for anything else.
    """
    moment = _date(text, day_first=day_first)
    if moment is not None:
        yield "D", 0, len(text), moment
        return
    two = _TWO.fullmatch(text)
    if two is not None:
        first, second = read_number(two[1], decimal), read_number(two[2], decimal)
        if first is not None and second is not None:
            yield _symbol(two[1]), 0, two.end(1), first
            yield "T", two.end(1), two.start(2), None
            yield _symbol(two[2]), two.start(2), len(text), second
            return
    number = read_number(text, decimal)
    yield ("W", 0, len(text), None) if number is None else (_symbol(text), 0, len(text), number)


def _symbol(text: str) -> str:
    return "4" if len(text) == 4 and text[0] in "12" and _INTEGER.fullmatch(text) else "N"


def _date(text: str, *, day_first: bool) -> Moment | None:
    iso = _ISO_DATE.fullmatch(text)
    if iso is not None:
        return make_date(int(iso[1]), int(iso[2]), int(iso[3]))
    slashed = _SLASHED.fullmatch(text)
    if slashed is None:
        return None
    first, second, year = (int(part) for part in slashed.groups())
    if first > 12 or first == second or day_first:
        return make_date(year, second, first)
    return make_date(year, first, second) if second > 12 else None


def make_date(year: int, month: int, day: int | None, era: str | None = None) -> Moment | None:
    """Make a day or month, if the calendar has it in either era."""
    for shift in (0, BUDDHIST):
        try:
            dt.date(year - shift, month, day or 1)
        except ValueError:
            continue
        return Moment(year, month, day, era=era)
    return None


def add_up(numbers: list[tuple[float, str]]) -> Amount | None:
    """Add numbers with units of one dimension, greatest unit first: ``5 rai 2 ngan``.

    Returns:
        The amount, or ``None`` when the units do not go together so.
    """
    known = units()
    total, last = 0.0, None
    for number, unit in numbers:
        size = known[unit]
        if last is not None and (size.dimension != last.dimension or size.factor >= last.factor):
            return None
        total, last = total + number * size.factor, size
    number, unit = numbers[0]
    return Amount(number, unit, total, known[unit].dimension)

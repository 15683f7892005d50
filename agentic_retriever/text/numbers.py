"""The one reader of numbers, dates and units, in the words of every language (sections ``numbers`` and ``dates``).

``find_numbers`` and ``find_dates`` read a running text, whatever its language and form of writing: the check of
citations rests on them. ``read_figures``, ``number_words`` and ``add_up`` read a question, whose language tells the
decimal sign. Both stand on the same tables: number words up to ninety-nine, scales, percentages, months, units and
eras.
"""

import calendar
import datetime as dt
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from agentic_retriever.text.language_files import language_files, listed, packaged_json, section
from agentic_retriever.text.scripts import UNSPACED

_SEPARATORS: Final = ".,'\u2019\u00a0\u202f\u066c"
_DIGITS: Final = re.compile(
    rf"(?<!\d)\d{{1,3}}(?:[{_SEPARATORS} ]\d{{3}})+(?!\d)(?:[.,\u066b]\d+)?|\d+(?:[.,\u066b]\d+)?"
)
_THOUSANDS: Final = re.compile(rf"[{_SEPARATORS} ](?=\d{{3}}(?!\d))")
_AROUND: Final = 12
_NUMBERS: Final = section("numbers")
_DATES: Final = section("dates")

_POWER: Final[dict[str, int]] = {
    word: len(str(value)) - 1
    for table in _NUMBERS.values()
    for word, value in table.get("scales", {}).items()
    if value >= 1_000
}
# The longest first; those of alphabets end where a word does.
_POWERS: Final = [
    re.escape(word) + ("" if UNSPACED.search(word) else r"\b") for word in sorted(_POWER, key=len, reverse=True)
]
_SCALE: Final = re.compile(f"[ \u00a0\u202f]?({'|'.join(_POWERS)})", re.IGNORECASE)
_PERCENT: Final = "|".join(listed("numbers", "percent"))
_PERCENT_BEFORE: Final = "|".join(listed("numbers", "percent_before"))
_BEHIND_PERCENT: Final = re.compile(f"[ \u00a0\u202f]?(?:{_PERCENT})", re.IGNORECASE)
_BEFORE_PERCENT: Final = re.compile(f"(?:{_PERCENT_BEFORE})[ \u00a0]?$")
_ANY_PERCENT: Final = re.compile(f"{_PERCENT}|{_PERCENT_BEFORE}", re.IGNORECASE)

_SPACED: Final[dict[str, int]] = {
    word: value
    for code, table in _NUMBERS.items()
    if language_files()[code]["spaced"]
    for kind in ("words", "scales")
    for word, value in table.get(kind, {}).items()
    if kind == "words" or value == 100
}
_TENS: Final = {word: value for word, value in _SPACED.items() if value in range(20, 100, 10)}
_ALONE_ONLY: Final = {word: value for word, value in _SPACED.items() if word not in _TENS}
_ONES: Final = [word for word, value in _SPACED.items() if 1 <= value <= 9]
_WORD: Final = re.compile(
    "".join(f"(?<!{word})" for word in listed("numbers", "not_behind"))
    + rf"\b(?:({'|'.join(_TENS)})(?:(?:{'|'.join(listed('numbers', 'joints'))})({'|'.join(_ONES)}))?"
    + rf"|({'|'.join(_ALONE_ONLY)}))\b",
    re.IGNORECASE,
)

# Letters that would make another word of it follow none of these: ห้าม, สามารถ, เก้าอี้, หกล้ม.
_UNSPACED_TABLES: Final = [_NUMBERS[code] for code in _NUMBERS if not language_files()[code]["spaced"]]
_UNSPACED_ONES: Final[dict[str, int]] = {
    word: value for table in _UNSPACED_TABLES for word, value in (table["words"] | table["joined"]).items()
}
_UNSPACED_ONE: Final = "|".join(
    f"{word}(?!{table['not_before'][word]})" if word in table["not_before"] else word
    for table in _UNSPACED_TABLES
    for word in (*table["words"], *table["joined"])
)
_TEN: Final = "|".join(table["ten"] for table in _UNSPACED_TABLES)
_UNSPACED_WORD: Final = re.compile(f"({_UNSPACED_ONE})?({_TEN})({_UNSPACED_ONE})?|({_UNSPACED_ONE})")

# What a source may say instead of a number: accepted, never asked for.
_LOOSE: Final = [(re.compile(pattern, re.IGNORECASE), values) for pattern, values in listed("numbers", "loose")]


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a text, its value in one form: without thousands marks, with a dot before decimals."""

    start: int
    end: int
    text: str
    value: str
    power: int = 0  # Of ten, from the scale behind it
    percent: bool = False
    word: bool = False

    @property
    def scaled(self) -> str:
        """The value times the scale."""
        if not self.power:
            return self.value
        whole, _, decimals = self.value.partition(".")
        padded = decimals.ljust(self.power, "0")
        return _in_one_form(whole + padded[: self.power], padded[self.power :])


def _in_one_form(whole: str, decimals: str) -> str:
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    return f"{whole}.{decimals}" if decimals else whole


def canonical(digits: str) -> str:
    """Write digits of any script with any separators in one form."""
    plain = "".join(str(unicodedata.decimal(char)) if char.isdecimal() else char for char in digits)
    if not plain.startswith("0"):
        plain = _THOUSANDS.sub("", plain)
    whole, _, decimals = plain.replace(",", ".").replace("\u066b", ".").partition(".")
    return _in_one_form(whole, decimals)


def numbers_in(text: str) -> frozenset[str]:
    """Read the numbers that a text has in digits, whatever their script and separators."""
    return frozenset(canonical(found[0]) for found in _DIGITS.finditer(text))


def find_numbers(text: str) -> list[Number]:
    found = [_number(text, match, canonical(match[0])) for match in _DIGITS.finditer(text)]
    for match in _WORD.finditer(text):
        value = sum(_SPACED[word.lower()] for word in match.groups() if word)  # tens and ones, or one word alone
        found.append(_number(text, match, str(value), word=True))
    if not text.isascii():
        found += [_number(text, m, str(_unspaced_value(m)), word=True) for m in _UNSPACED_WORD.finditer(text)]
    return sorted(found, key=lambda number: number.start)


def loose_values(text: str) -> frozenset[str]:
    """Give the numbers that a text stands for without saying them: ``twice`` for 2, ``half`` for 50 (percent)."""
    return frozenset(value for pattern, values in _LOOSE if pattern.search(text) for value in values)


def has_percent(text: str) -> bool:
    return _ANY_PERCENT.search(text) is not None


def _number(text: str, match: re.Match[str], value: str, *, word: bool = False) -> Number:
    start, end = match.span()
    scale = _SCALE.match(text, end, end + _AROUND + 2)
    behind = scale.end() if scale else end
    before = text[max(0, start - _AROUND) : start]
    percent = _BEHIND_PERCENT.match(text, behind, behind + _AROUND) or _BEFORE_PERCENT.search(before)
    return Number(start, end, match[0], value, _POWER[scale[1].lower()] if scale else 0, percent is not None, word)


def _unspaced_value(match: re.Match[str]) -> int:
    tens, _, ones, alone = match.groups()
    if alone:
        return _UNSPACED_ONES[alone]
    return 10 * (_UNSPACED_ONES[tens] if tens else 1) + (_UNSPACED_ONES[ones] if ones else 0)


# Dates in a text: ``2021-03-04``, ``4 March 2021``, ``4 de marzo de 2021``, ``4 มีนาคม 2564``

BUDDHIST: Final = 543  # years by which the Buddhist era is ahead of the common one
# Numbers of months by their names in all languages. The stop of "ม.ค." belongs to it, that of "Jan." may be left out.
MONTHS: Final = {
    name if UNSPACED.search(name) else name.rstrip("."): int(month)
    for table in _DATES.values()
    for month, names in table["months"].items()
    for name in names
}
_NAMES: Final = "|".join(re.escape(name) for name in sorted(MONTHS, key=len, reverse=True))
_ALONE: Final = listed("dates", "alone")
_BEHIND: Final = [table["alone_behind"] for table in _DATES.values() if "alone_behind" in table]
_ORDINALS: Final = "|".join(listed("dates", "ordinals"))
_ERA: Final = rf"(?:{'|'.join(listed('dates', 'eras'))})?\s?"
_JOIN: Final = rf"(?:\s?(?:,|\.|{'|'.join(listed('dates', 'joints'))})?\s?)"
_YEAR: Final = r"(?<!\d)(\d{4})(?!\d)"
_DAY_FIRST: Final = (
    rf"(?<![\d.,])(\d{{1,2}})(?:{_ORDINALS}|º|\.)?{_JOIN}({_NAMES})(?![a-zà-ÿ])(?:{_JOIN}{_ERA}{_YEAR})?"
)
_MONTH_FIRST: Final = rf"(?<![^\W_])({_NAMES})\.?\s(\d{{1,2}})(?:{_ORDINALS})?(?![\d.,]\d|\d)(?:,?\s{_YEAR})?"


def _after(words: Iterable[str], names: Iterable[str]) -> re.Pattern[str]:
    """A pattern for names of months that count alone behind some words only, and with their capital."""
    behind = "|".join(rf"(?<=\b{word} )" for word in words)
    return re.compile(rf"(?:{behind})({'|'.join(names)})\b(?! \d)")


# What is written in which order: year, month and day in digits, or the month by its name (M).
_PATTERNS: Final = (
    ("ymd", re.compile(r"(?<!\d)(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?!\d)")),
    ("ymd", re.compile(r"(\d{4})\s?[年년]\s?(\d{1,2})\s?[月월](?:\s?(\d{1,2})\s?[日일])?")),
    ("dmy", re.compile(r"(?<!\d)(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})(?!\d)")),
    ("dMy", re.compile(_DAY_FIRST, re.IGNORECASE)),
    ("Mdy", re.compile(_MONTH_FIRST, re.IGNORECASE)),
    ("My", re.compile(rf"(?<![a-zà-ÿ])({_NAMES})\.?{_JOIN}{_ERA}{_YEAR}", re.IGNORECASE)),
    ("M", re.compile(rf"(?<![^\W_])({'|'.join(_ALONE)})(?![^\W_])", re.IGNORECASE)),
    # Thai has no spaces around its words, English has a verb "may" and "march".
    ("M", re.compile(f"({'|'.join(name for name in _ALONE if UNSPACED.search(name))})")),
    *(("M", _after(one["words"], one["months"])) for one in _BEHIND),
)

Reading = tuple[int | None, int | None, int | None]  # year, month and day, as far as they are said


@dataclass(frozen=True, slots=True)
class Date:
    start: int
    end: int
    text: str
    readings: tuple[Reading, ...]

    @property
    def complete(self) -> bool:
        """Whether it has a month and a day or a year, so that it is more than a month's name."""
        return any(year is not None or day is not None for year, _, day in self.readings)


def find_dates(text: str) -> list[Date]:
    """Find the dates of a text, days without a year and months included."""
    found: list[Date] = []
    for form, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            readings = _readings(form, match)
            taken = any(match.start() < date.end and date.start < match.end() for date in found)
            if readings and not taken:
                found.append(Date(match.start(), match.end(), match[0], readings))
    return sorted(found, key=lambda date: date.start)


def agrees(wanted: Date, source: Date, years: frozenset[str]) -> bool:
    """Tell whether a source's date says what another one says; a year may stand elsewhere, among ``years``."""
    return any(_fits(one, other, years) for one in wanted.readings for other in source.readings)


def _fits(wanted: Reading, source: Reading, years: frozenset[str]) -> bool:
    year, month, day = wanted
    if month != source[1] or (day is not None and day != source[2]):
        return False
    if year is None or year == source[0]:
        return True
    return source[0] is None and not years.isdisjoint({str(year), str(year + BUDDHIST)})


def _readings(form: str, match: re.Match[str]) -> tuple[Reading, ...]:
    said = dict(zip(form, match.groups(), strict=True))
    year, day = (int(said[part]) if said.get(part) else None for part in "yd")
    if year is not None and 2400 <= year <= 2700:  # of the Buddhist era, known by its size
        year -= BUDDHIST
    month = MONTHS[said["M"].lower()] if "M" in said else int(said["m"])
    swapped = [(year, day, month)] if form == "dmy" else []
    kept = [(y, m, d) for y, m, d in [(year, month, day), *swapped] if m and m <= 12 and (d is None or 1 <= d <= 31)]
    return tuple(dict.fromkeys(kept))


# Figures in a question.

_POINTED: Final = re.compile(r"[0-9]{1,3}(?:,[0-9]{3}){1,4}(?:\.[0-9]{1,9})?|[0-9]{1,15}(?:\.[0-9]{1,9})?")
_COMMAED: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{3}){1,4}(?:,[0-9]{1,9})?|[0-9]{1,15}(?:,[0-9]{1,9})?")
_PLAIN_DECIMAL: Final = re.compile(r"[0-9]{1,15}[.,][0-9]{1,9}")
_ISO_DATE: Final = re.compile(r"([12][0-9]{3})-([0-9]{2})-([0-9]{2})")
_SLASHED: Final = re.compile(r"([0-9]{1,2})[/.-]([0-9]{1,2})[/.-]([12][0-9]{3})")
_TWO: Final = re.compile(r"([0-9][0-9.,]*)-([0-9][0-9.,]*)")


@dataclass(frozen=True, slots=True)
class Moment:
    """A time span of the calendar: a day, a month, a year or a decade."""

    year: int
    month: int | None = None  # None for a whole year
    day: int | None = None  # None for a whole month
    years: int = 1
    era: str | None = None  # "be", "ce" or None where it was not said

    def first_day(self, year: int) -> str:
        """Return its first day as an ISO date, with the year replaced."""
        return f"{year:04d}-{self.month or 1:02d}-{self.day or 1:02d}"

    def last_day(self, year: int) -> str:
        """Return its last day as an ISO date, with the year replaced."""
        last = year + self.years - 1
        month = self.month or 12
        return f"{last:04d}-{month:02d}-{self.day or calendar.monthrange(last, month)[1]:02d}"


def make_date(year: int, month: int, day: int | None, era: str | None = None) -> Moment | None:
    """Make a day or month, if the calendar has it in either era."""
    for shift in (0, BUDDHIST):
        try:
            dt.date(year - shift, month, day or 1)
        except ValueError:
            continue
        return Moment(year, month, day, era=era)
    return None


def decimal_sign(language: str) -> str:
    return str(_NUMBERS.get(language, {}).get("decimal", "."))


def read_number(text: str, decimal: str) -> float | None:
    for sign in dict.fromkeys((decimal, ".", ",")):
        if (_POINTED if sign == "." else _COMMAED).fullmatch(text):
            grouping = "," if sign == "." else "."
            return float(text.replace(grouping, "").replace(sign, "."))
    return float(text.replace(",", ".")) if _PLAIN_DECIMAL.fullmatch(text) else None


def read_figures(text: str, decimal: str, languages: Iterable[str]) -> Iterator[tuple[str, int, int, object]]:
    """Tell what a run of figures, dots, commas, slashes and hyphens is: symbol, start, end and value of each thing.

    ``D`` is a date, ``N`` a number, ``4`` one of four digits that may be a year, ``T`` what joins two, ``W`` neither.
    """
    moment = _calendar_day(text, day_first=all(_DATES.get(code, {}).get("day_first", True) for code in languages))
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
    return "4" if len(text) == 4 and text[0] in "12" and text.isdecimal() else "N"


def _calendar_day(text: str, *, day_first: bool) -> Moment | None:
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


# Words for numbers, and units.


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of measure: what it measures, and how much one is of that dimension's base unit."""

    dimension: str
    factor: float

    @property
    def is_money(self) -> bool:
        """Whether it is a currency: each is a dimension of its own, called by its code."""
        return self.dimension in units()


@dataclass(frozen=True, slots=True)
class Amount:
    number: float
    unit: str
    base: float
    dimension: str


@lru_cache(1)
def units() -> Mapping[str, Unit]:
    content = packaged_json("text/units.json")
    return {name: Unit(dimension, float(factor)) for name, (dimension, factor) in content.items()}


def number_words(language: str) -> dict[str, float]:
    """Give the words for the numbers below a hundred in a language, ``"twenty-one"`` and ``"half a"`` included."""
    table = _NUMBERS[language]
    words: dict[str, int] = table["words"]
    if "ten" in table:
        ones = {"": 0} | words | table["joined"]
        tens = {f"{one}{table['ten']}": 10 * (value or 1) for one, value in ones.items()}
        made = {ten + one: value + ones[one] for ten, value in tens.items() for one in ones}
    else:
        made = {
            f"{ten}{joint}{one}": words[ten] + words[one]
            for ten in words.keys() & _TENS.keys()
            for one in words.keys() & set(_ONES)
            for joint in table["joints"]
        }
    return {word: float(value) for word, value in (made | words | table["phrases"]).items()}


def add_up(numbers: Sequence[tuple[float, str]]) -> Amount | None:
    """Add numbers with units of one dimension, greatest unit first: ``5 rai 2 ngan``."""
    total, last = 0.0, None
    for number, unit in numbers:
        size = units()[unit]
        if last is not None and (size.dimension != last.dimension or size.factor >= last.factor):
            return None
        total, last = total + number * size.factor, size
    number, unit = numbers[0]
    return Amount(number, unit, total, units()[unit].dimension)


@lru_cache(1)
def currency_words() -> Mapping[str, str]:
    return {
        word: unit
        for table in _NUMBERS.values()
        for unit, words in table.get("units", {}).items()
        if units()[unit].is_money
        for word in words
    }

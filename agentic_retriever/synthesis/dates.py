"""Dates in a text, whatever their form: ``2021-03-04``, ``4 March 2021``, ``4 de marzo de 2021``, ``4 มีนาคม 2564``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

BUDDHIST_OFFSET: Final = 543
"""Years of the Buddhist era are this much ahead."""

_FULL: Final = (
    "january february march april may june july august september october november december",
    "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "มกราคม กุมภาพันธ์ มีนาคม เมษายน พฤษภาคม มิถุนายน กรกฎาคม สิงหาคม กันยายน ตุลาคม พฤศจิกายน ธันวาคม",
)
# Known beside a day or a year only, since they are other words, too.
_BESIDE: Final = (
    "jan feb mar apr may jun jul aug sep oct nov dec",
    "ene feb mar abr may jun jul ago sept oct nov dic",
    "januar februar märz april mai juni juli august september oktober november dezember",
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    "ม.ค. ก.พ. มี.ค. เม.ย. พ.ค. มิ.ย. ก.ค. ส.ค. ก.ย. ต.ค. พ.ย. ธ.ค.",
)
_MONTHS: Final = {word: at for words in (*_BESIDE, *_FULL) for at, word in enumerate(words.split(), start=1)} | {
    "setiembre": 9
}
_NAMES: Final = "|".join(re.escape(word) for word in sorted(_MONTHS, key=len, reverse=True))
_ALONE: Final = "|".join(word for words in _FULL for word in words.split() if word not in ("may", "march"))

_ERA: Final = r"(?:พ\.ศ\.|ค\.ศ\.|ปี)?\s?"
_YEAR: Final = r"(?<!\d)(\d{4})(?!\d)"
_JOIN: Final = r"(?:\s?(?:,|\.|de|del|of|d')?\s?)"
_PATTERNS: Final = (
    ("ymd", re.compile(r"(?<!\d)(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?!\d)")),
    ("ymd", re.compile(r"(\d{4})\s?[年년]\s?(\d{1,2})\s?[月월](?:\s?(\d{1,2})\s?[日일])?")),
    ("dmy", re.compile(r"(?<!\d)(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})(?!\d)")),
    (
        "dMy",
        re.compile(
            rf"(?<![\d.,])(\d{{1,2}})(?:st|nd|rd|th|º|\.)?{_JOIN}({_NAMES})(?![a-zà-ÿ])(?:{_JOIN}{_ERA}{_YEAR})?",
            re.IGNORECASE,
        ),
    ),
    (
        "Mdy",
        re.compile(
            rf"(?<![^\W_])({_NAMES})\.?\s(\d{{1,2}})(?:st|nd|rd|th)?(?![\d.,]\d|\d)(?:,?\s{_YEAR})?", re.IGNORECASE
        ),
    ),
    ("My", re.compile(rf"(?<![a-zà-ÿ])({_NAMES})\.?{_JOIN}{_ERA}{_YEAR}", re.IGNORECASE)),
    ("M", re.compile(rf"(?<![^\W_])({_ALONE})(?![^\W_])", re.IGNORECASE)),
    # Thai has no spaces around its words, English has a verb "may" and "march".
    ("M", re.compile("(" + "|".join(_FULL[2].split()) + ")")),
    ("M", re.compile(r"(?<=\b(?:in|of|by|to) )(May|March)\b(?! \d)")),
)

Reading = tuple["int | None", "int | None", "int | None"]


@dataclass(frozen=True, slots=True)
class Date:
    """A date, or a part of one, in a text.

    Attributes:
        start: Offset of its first character.
        end: Offset behind its last character.
        text: As it stands there.
        readings: Year of the common era, month and day of each way to read it, ``None`` for what it does not say.
    """

    start: int
    end: int
    text: str
    readings: tuple[Reading, ...]

    @property
    def complete(self) -> bool:
        """Whether it has a month and a day or a year, so that it is more than a month's name."""
        return any(year is not None or day is not None for year, _, day in self.readings)


def find_dates(text: str) -> list[Date]:
    """Find the dates of a text, days without a year and months included.

    Args:
        text: Any text.

    Returns:
        Dates in order, without overlaps. ``04/03/2021`` is read both ways.
    """
    found: list[Date] = []
    for form, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            readings = _readings(form, match)
            taken = any(match.start() < date.end and date.start < match.end() for date in found)
            if readings and not taken:
                found.append(Date(match.start(), match.end(), match[0], readings))
    return sorted(found, key=lambda date: date.start)


def agrees(wanted: Date, source: Date, years: frozenset[str]) -> bool:
    """Tell whether a source's date says what another one says.

    Args:
        wanted: The date in question.
        source: A date of the source.
        years: The numbers of the source, among which the year may stand elsewhere.

    Returns:
        Whether all that ``wanted`` says agrees with some reading of ``source``.
    """
    return any(_fits(one, other, years) for one in wanted.readings for other in source.readings)


def common_year(year: int) -> int:
    """Turn a year of the Buddhist era, known by its size, into one of the common era."""
    return year - BUDDHIST_OFFSET if 2400 <= year <= 2700 else year


def _fits(wanted: Reading, source: Reading, years: frozenset[str]) -> bool:
    year, month, day = wanted
    if month != source[1] or (day is not None and day != source[2]):
        return False
    if year is None or year == source[0]:
        return True
    return source[0] is None and not years.isdisjoint({str(year), str(year + BUDDHIST_OFFSET)})


def _readings(form: str, match: re.Match[str]) -> tuple[Reading, ...]:
    if form == "M":
        return ((None, _MONTHS[match[1].lower()], None),)
    if form == "My":
        return ((common_year(int(match[2])), _MONTHS[match[1].lower()], None),)
    if form in ("dMy", "Mdy"):
        name, day = (match[2], match[1]) if form == "dMy" else (match[1], match[2])
        return _valid([(_year(match[3]), _MONTHS[name.lower()], int(day))])
    first, second, third = (int(part) if part else None for part in match.groups())
    if form == "ymd":
        return _valid([(_year(match[1]), second, third)])
    return _valid([(_year(match[3]), second, first), (_year(match[3]), first, second)])


def _year(digits: str | None) -> int | None:
    return common_year(int(digits)) if digits else None


def _valid(readings: list[Reading]) -> tuple[Reading, ...]:
    kept = [(y, m, d) for y, m, d in readings if m is not None and 1 <= m <= 12 and (d is None or 1 <= d <= 31)]
    return tuple(dict.fromkeys(kept))

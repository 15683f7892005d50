"""Numbers in a text, in one form: digits of any script, number words, scales and percentages.

Words are read up to ninety-nine in English, Spanish and Thai; scales such as "million" in a few languages more.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


_SEPARATORS: Final = ".,'\u2019\u00a0\u202f\u066c"
_DIGITS: Final = re.compile(
    rf"(?<!\d)\d{{1,3}}(?:[{_SEPARATORS} ]\d{{3}})+(?!\d)(?:[.,\u066b]\d+)?|\d+(?:[.,\u066b]\d+)?"
)
_THOUSANDS: Final = re.compile(rf"[{_SEPARATORS} ](?=\d{{3}}(?!\d))")

_SCALES: Final = {
    3: ("thousand", "mil", "tausend", "mille", "k", "พัน"),
    4: ("หมื่น", "万", "萬", "만"),
    5: ("แสน", "lakh"),
    6: ("million", "millions", "millón", "millon", "millones", "millionen", "mio", "mn", "milhões", "milioni", "ล้าน"),
    8: ("億", "亿", "억"),
    9: ("billion", "billions", "bn", "mil millones", "milliarde", "milliarden", "milliards", "mrd", "miliardi"),
}
_POWER: Final = {word: power for power, words in _SCALES.items() for word in words}
_SCALE: Final = re.compile(
    "[ \u00a0\u202f]?("
    + "|".join(re.escape(w) + (r"\b" if w.isascii() or w[-1] in "ns" else "") for w in sorted(_POWER, key=len)[::-1])
    + ")",
    re.IGNORECASE,
)
_PERCENT_BEHIND: Final = re.compile(
    r"[ \u00a0\u202f]?(?:%|％|٪|per ?cent\b|percentage\b|por ?ciento\b|prozent\b|pour ?cent\b|per cento\b|เปอร์เซ็นต์)",
    re.IGNORECASE,
)
_PERCENT_BEFORE: Final = re.compile(r"(?:ร้อยละ|百分之)[ \u00a0]?$")

_ENGLISH: Final = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_SPANISH: Final = [
    "cero",
    "uno",
    "dos",
    "tres",
    "cuatro",
    "cinco",
    "seis",
    "siete",
    "ocho",
    "nueve",
    "diez",
    "once",
    "doce",
    "trece",
    "catorce",
    "quince",
    "dieciséis",
    "diecisiete",
    "dieciocho",
    "diecinueve",
]
_TENS: Final = {
    word: 10 * at
    for words in (
        "twenty thirty forty fifty sixty seventy eighty ninety",
        "veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa",
    )
    for at, word in enumerate(words.split(), start=2)
}
_UNITS: Final = {word: at for words in (_ENGLISH, _SPANISH) for at, word in enumerate(words)} | {
    "un": 1, "una": 1, "hundred": 100, "cien": 100, "ciento": 100, "veintiuno": 21, "veintidós": 22, "veintitrés": 23,
    "veinticuatro": 24, "veinticinco": 25, "veintiséis": 26, "veintisiete": 27, "veintiocho": 28, "veintinueve": 29,
}  # fmt: skip
_DIGIT_WORDS: Final = "|".join([*_ENGLISH[1:10], *_SPANISH[1:10]])
_WORD: Final = re.compile(
    rf"(?<!por )(?<!per )\b(?:({'|'.join(_TENS)})(?:(?:-| | y )({_DIGIT_WORDS}))?|({'|'.join(_UNITS)}))\b",
    re.IGNORECASE,
)
# Letters that would make another word of it follow none of these: ห้าม, สามารถ, เก้าอี้, หกล้ม.
_THAI_UNITS: Final = {
    "หนึ่ง": 1, "เอ็ด": 1, "ยี่": 2, "สอง": 2, "สาม(?!ารถ|ี|ัญ)": 3, "สี่": 4, "ห้า(?![งม])": 5, "หก(?!ล้ม|่|้)": 6,
    "เจ็ด": 7, "แปด": 8, "เก้า(?!อี้)": 9,
}  # fmt: skip
_THAI_UNIT: Final = "|".join(f"(?:{pattern})" for pattern in _THAI_UNITS)
_THAI_WORD: Final = re.compile(f"({_THAI_UNIT})?(สิบ)({_THAI_UNIT})?|({_THAI_UNIT})")
_THAI: Final = re.compile("[\u0e01-\u0e3a]")
_AROUND: Final = 12

#: What a source may say instead of a number: accepted, never asked for.
_LOOSE: Final = (
    (re.compile(r"\b(?:twice|double[ds]?|both|pair|dos veces|doble|ambos|ambas)\b|ทั้งสอง", re.IGNORECASE), ("2",)),
    (re.compile(r"\b(?:half|halves|mitad|medi[oa]s?)\b|ครึ่ง", re.IGNORECASE), ("0.5", "50", "2")),
    (re.compile(r"\b(?:once|single|sol[oa]|únic[oa]|una vez)\b|เดียว", re.IGNORECASE), ("1",)),
    (re.compile(r"\b(?:dozen|docena)\b|โหล", re.IGNORECASE), ("12",)),
    (re.compile(r"\b(?:quarterly|quarters?|cuart[oa]s?)\b", re.IGNORECASE), ("4", "0.25", "25")),
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a text."""

    start: int
    end: int
    text: str
    value: str
    power: int = 0
    percent: bool = False
    word: bool = False

    @property
    def scaled(self) -> str:
        """The value times the scale."""
        return _shifted(self.value, self.power)


def numbers_in(text: str) -> frozenset[str]:
    """Read the numbers that a text has in digits, whatever their script and separators."""
    return frozenset(canonical(found[0]) for found in _DIGITS.finditer(text))


def find_numbers(text: str) -> list[Number]:
    """Find the numbers of a text, in digits and in words."""
    found = [_digits(text, match) for match in _DIGITS.finditer(text)]
    found += [_from(text, match.start(), match.end(), str(_word_value(match)), word=True)
              for match in _WORD.finditer(text)]  # fmt: skip
    if _THAI.search(text):
        found += [_from(text, match.start(), match.end(), str(_thai_value(match)), word=True)
                  for match in _THAI_WORD.finditer(text)]  # fmt: skip
    return sorted(found, key=lambda number: number.start)


def loose_values(text: str) -> frozenset[str]:
    """Give the numbers that a text stands for without saying them: ``twice`` for 2, ``half`` for 50 (percent)."""
    return frozenset(value for pattern, values in _LOOSE if pattern.search(text) for value in values)


def canonical(digits: str) -> str:
    """Write digits of any script with any separators in one form."""
    plain = "".join(str(unicodedata.decimal(char)) if char.isdecimal() else char for char in digits)
    if not plain.startswith("0"):
        plain = _THOUSANDS.sub("", plain)
    plain = plain.replace(",", ".").replace("\u066b", ".")
    whole, _, decimals = plain.partition(".")
    decimals = decimals.rstrip("0")
    whole = whole.lstrip("0") or "0"
    return f"{whole}.{decimals}" if decimals else whole


def values_of(numbers: Iterable[Number]) -> frozenset[str]:
    """Give the values of numbers, with and without their scales."""
    return frozenset(value for number in numbers for value in (number.value, number.scaled))


def _digits(text: str, match: re.Match[str]) -> Number:
    return _from(text, match.start(), match.end(), canonical(match[0]), word=False)


def _from(text: str, start: int, end: int, value: str, *, word: bool) -> Number:
    scale = _SCALE.match(text, end, end + _AROUND + 2)
    behind = scale.end() if scale else end
    before = text[max(0, start - _AROUND) : start]
    percent = _PERCENT_BEHIND.match(text, behind, behind + _AROUND) or _PERCENT_BEFORE.search(before)
    power = _POWER[scale[1].lower()] if scale else 0
    return Number(start, end, text[start:end], value, power, percent is not None, word)


def _word_value(match: re.Match[str]) -> int:
    if match[1]:
        return _TENS[match[1].lower()] + (_UNITS[match[2].lower()] if match[2] else 0)
    return _UNITS[match[3].lower()]


def _thai_value(match: re.Match[str]) -> int:
    tens, ten, units, alone = match.groups()
    if not ten:
        return _thai_unit(alone)
    return 10 * (_thai_unit(tens) if tens else 1) + (_thai_unit(units) if units else 0)


def _thai_unit(word: str) -> int:
    return next(value for pattern, value in _THAI_UNITS.items() if pattern.startswith(word))


def _shifted(value: str, power: int) -> str:
    whole, _, decimals = value.partition(".")
    if not power:
        return value
    padded = decimals.ljust(power, "0")
    left, rest = whole + padded[:power], padded[power:].rstrip("0")
    left = left.lstrip("0") or "0"
    return f"{left}.{rest}" if rest else left


# Dates in a text, whatever their form: ``2021-03-04``, ``4 March 2021``, ``4 de marzo de 2021``, ``4 มีนาคม 2564``.

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
    """A date, or a part of one, in a text."""

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
    """Tell whether a source's date says what another one says."""
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

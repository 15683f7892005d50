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
    """A number in a text.

    Attributes:
        start: Offset of its first character.
        end: Offset behind its last character, without its scale.
        text: As it stands there.
        value: ASCII digits with ``.`` before decimals, without separators of thousands and closing zeros.
        power: The power of ten that a scale behind it stands for, 0 without one.
        percent: Whether it is a percentage.
        word: Whether it is written in letters.
    """

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
    """Read the numbers that a text has in digits, whatever their script and separators.

    Args:
        text: Any text.

    Returns:
        ASCII digits with ``.`` before decimals, without separators of thousands and closing zeros: ``1.250,50`` is
        ``1250.5``. Three digits behind one separator are taken as thousands unless a zero stands before it.
    """
    return frozenset(canonical(found[0]) for found in _DIGITS.finditer(text))


def find_numbers(text: str) -> list[Number]:
    """Find the numbers of a text, in digits and in words.

    Args:
        text: Any text.

    Returns:
        Numbers in order of their places.
    """
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

"""The form in which questions and metadata values are compared, with the way back to the question's characters."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from agentic_retriever.text.cleaning import lexical_form
from agentic_retriever.text.scripts import Script, character_class
from agentic_retriever.text.words import fold

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALIKE: Final = str.maketrans({**dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"), "’": "'", "‘": "'"})
_QUOTES: Final = str.maketrans(dict.fromkeys("“”„«»", '"'))
# Signs that belong to the letter before them although Unicode does not count them among the marks.
_SPACING_VOWELS: Final = frozenset("\u0e33\u0eb3")
_THAI_E: Final = "\u0e40"

_UNSPACED_SCRIPTS: Final = (
    Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR, Script.HAN, Script.KANA, Script.HANGUL,
)  # fmt: skip

UNSPACED: Final = re.compile(f"[{character_class(*_UNSPACED_SCRIPTS)}]")
"""Letters of the scripts that are written without spaces between words."""

# Vowels written behind or around a consonant, and the repetition sign: no word begins with one.
_NEVER_FIRST: Final = frozenset("ะัาำิีึืฺุูๅๆ็่้๊๋์ํ๎ະັາຳິີຶືຸູົຼ່້໊໋໌ໍ")
# Vowels written before their consonant: no word ends with one.
_NEVER_LAST: Final = frozenset("เแโใไເແໂໃໄ")


@dataclass(frozen=True, slots=True)
class Folded:
    """A text in comparable form.

    Attributes:
        text: Without letter case, accents of Latin letters and runs of white space; digits in ASCII.
        starts: For each of its characters, where in the original the piece begins that it came from.
        ends: Likewise, where that piece ends.
    """

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Turn a stretch of the folded text, not empty, into one of the original."""
        return self.starts[start], self.ends[end - 1]


def folded(text: str) -> str:
    """Bring a text to comparable form, white space trimmed."""
    if text.isascii():
        return " ".join(text.lower().split())
    return " ".join("".join(_fold_cluster(text[start:end]) for start, end in _clusters(text)).split())


def fold_query(text: str) -> Folded:
    """Bring a question to the same form and keep where each character came from."""
    chars: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for start, end in _clusters(text):
        for char in _fold_cluster(text[start:end]):
            blank = char.isspace()
            if blank and chars and chars[-1] == " ":
                ends[-1] = end
                continue
            chars.append(" " if blank else char)
            starts.append(start)
            ends.append(end)
    return Folded("".join(chars), tuple(starts), tuple(ends))


def has_borders(text: str, start: int, end: int, *, digits_split: bool = False) -> bool:
    """Tell whether a stretch of folded text can stand as a word of its own there.

    Args:
        text: The folded text.
        start: Where the stretch begins.
        end: Where it ends.
        digits_split: Whether a digit beside a letter is a border, as in ``5rai`` and ``FY2024``.
    """
    if start > 0 and _glued(text[start - 1], text[start], digits_split=digits_split):
        return False
    return end >= len(text) or not _glued(text[end - 1], text[end], digits_split=digits_split)


def _glued(left: str, right: str, *, digits_split: bool) -> bool:
    if right in _NEVER_FIRST or left in _NEVER_LAST:
        return True
    if not (_is_wordlike(left) and _is_wordlike(right)):
        return False
    if left.isdigit() != right.isdigit() and (digits_split or UNSPACED.match(left) or UNSPACED.match(right)):
        return False
    return not (UNSPACED.match(left) or UNSPACED.match(right))


def _is_wordlike(char: str) -> bool:
    return char.isalnum() or unicodedata.category(char)[0] == "M"


def _clusters(text: str) -> Iterator[tuple[int, int]]:
    """Cut a text into letters with the signs that belong to them."""
    start = 0
    for at in range(1, len(text) + 1):
        if at < len(text) and _belongs(text[at], text[at - 1]):
            continue
        yield start, at
        start = at


def _belongs(char: str, before: str) -> bool:
    if char < "\u0300":
        return False
    if char == _THAI_E:
        return before == _THAI_E
    return char in _SPACING_VOWELS or unicodedata.category(char)[0] == "M"


@lru_cache(1 << 15)
def _fold_cluster(piece: str) -> str:
    return fold(lexical_form(piece).casefold()).translate(_ALIKE).translate(_QUOTES)

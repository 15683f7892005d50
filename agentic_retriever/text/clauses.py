"""Where to cut a sentence that punctuation does not end: Thai and Lao write a space instead; others are too long."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from agentic_retriever.text.scripts import Script, character_class

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SENTENCE: Final = 1_000
"""Longest sentence, in characters; longer ones are cut at the best place in their second half."""

# In characters: no clause is shorter; at a space between two Thai words one ends from the second length on, at any
# space that is not beside a number from the third on.
_MIN_CLAUSE: Final = 20
_LONG_CLAUSE: Final = 60
_VERY_LONG_CLAUSE: Final = 200

_SPACED_CHARS: Final = character_class(Script.THAI, Script.LAO)
_SPACED_RE: Final = re.compile(f"[{_SPACED_CHARS}]")
_SPACE_RE: Final = re.compile(r"(?<!\.)\s+(?![\dๆฯ])")
_BETWEEN_WORDS_RE: Final = re.compile(rf"(?<=[{_SPACED_CHARS}\"'”’)\]])\s+(?=[{_SPACED_CHARS}\"'“‘(\[])")
# Words with which a new clause or sentence begins: but, therefore, besides, however, when, if, because, afterwards...
# Those that also join two nouns, such as "and", are not among them.
_OPENING_RE: Final = re.compile(
    r"\s+(?:แต่|ดังนั้น|ดังนี้|นอกจาก|อย่างไรก็|ทั้งนี้|อนึ่ง|เมื่อ|หาก|ถ้า|เนื่องจาก|เพราะ|ต่อมา|จากนั้น|หลังจาก|ก่อนที่|ส่วน|ในขณะ|ในปี"
    r"|ในกรณี|ทำให้|ซึ่ง|จึง|ข้อ|มาตรา|แม้|กล่าวคือ"
    r"|ແຕ່|ດັ່ງນັ້ນ|ນອກຈາກ|ເມື່ອ|ຖ້າ|ເພາະ|ຕໍ່ມາ|ຫຼັງຈາກ|ຊຶ່ງ|ເຊິ່ງ)"
)
# Polite particles that close what is said.
_CLOSING_RE: Final = re.compile("(?:ครับ|ค่ะ|คะ|นะ|จ้ะ|ແດ່|ເດີ)$")

_PAUSE_RE: Final = re.compile(r"[,;:،؛၊]\s+|[、，；：]")
_WHITE_RE: Final = re.compile(r"\s+")
# Vowels that are written before the consonant they belong to.
_LEADING_VOWELS: Final = frozenset("เแโใไເແໂໃໄ")


def clause_cuts(text: str, start: int, end: int) -> Iterator[int]:
    """Find where to cut a sentence further.

    Args:
        text: The whole text.
        start: Offset of the sentence.
        end: Offset behind it.

    Yields:
        Offsets between ``start`` and ``end``, both exclusive, ascending.
    """
    at = start
    if _SPACED_RE.search(text, start, end):
        for cut in _space_cuts(text, start, end):
            yield from _hard_cuts(text, at, cut)
            yield cut
            at = cut
    yield from _hard_cuts(text, at, end)


def _space_cuts(text: str, start: int, end: int) -> Iterator[int]:
    at = start
    for space in _SPACE_RE.finditer(text, start, end):
        length = space.start() - at
        if length >= _MIN_CLAUSE and end - space.end() >= _MIN_CLAUSE and _ends_clause(text, space.start(), length):
            yield space.end()
            at = space.end()


def _ends_clause(text: str, space: int, length: int) -> bool:
    """Tell whether a clause of some length ends at a space."""
    if text[space - 1].isdigit():  # what follows may be its unit
        return _OPENING_RE.match(text, space) is not None
    if length >= _VERY_LONG_CLAUSE:
        return True
    if not _BETWEEN_WORDS_RE.match(text, space):
        return False
    if length >= _LONG_CLAUSE or _OPENING_RE.match(text, space):
        return True
    return _CLOSING_RE.search(text[max(0, space - 5) : space]) is not None


def _hard_cuts(text: str, start: int, end: int) -> Iterator[int]:
    while end - start > MAX_SENTENCE:
        start = _best_cut(text, start + MAX_SENTENCE // 2, start + MAX_SENTENCE)
        yield start


def _best_cut(text: str, first: int, last: int) -> int:
    """The last place between two offsets where a reader would pause, or else where no letter is torn apart."""
    for pattern in (_PAUSE_RE, _WHITE_RE):
        places = [match.end() for match in pattern.finditer(text, first, last)]
        if places:
            return places[-1]
    for cut in range(last, first, -1):
        torn = unicodedata.category(text[cut])[0] == "M" or text[cut - 1] in _LEADING_VOWELS
        if not torn:
            return cut
    return last

"""Sentences with their exact places in the text, for every script.

Rules, not a model: they need no training data, treat all languages that share a mark alike, and run in linear time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agentic_retriever.text.abbreviations import ALWAYS_FOLLOWED, BEFORE_NUMBER, MAY_END, MONTHS, STARTERS
from agentic_retriever.text.clauses import clause_cuts
from agentic_retriever.text.layout import blocks
from agentic_retriever.text.scripts import Script, character_class

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLOSERS: Final = "\"'”’»›)\\]}」』】〉》）*_"
_CERTAIN: Final = "。！？｡։።؟۔།༎।॥។៕။"
_END_RE: Final = re.compile(
    f"(?P<mark>(?:\\.[ \u00a0])+\\.|[.!?…‥{_CERTAIN}]+|(?<=[\u0370-\u03ff\u1f00-\u1fff]);)"
    rf"(?P<closers>[{_CLOSERS}]*(?:[ \u00a0\u202f]»)?)(?:\[[0-9]{{1,3}}\])*"
)
_CERTAIN_RE: Final = re.compile(f"[{_CERTAIN}]")
_KANA_RE: Final = re.compile(f"[{character_class(Script.KANA)}]")
_NO_SPACE_RE: Final = re.compile(
    f"[{character_class(Script.HAN, Script.KANA, Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR)}]"
)
_NEXT_RE: Final = re.compile(
    r"(?P<opening>[\s\"'“‘«‹(\[{¿¡*_>-]*)(?:(?P<word>[^\W\d_]+)(?P<stop>\.?)|(?P<number>[0-9]))?"
)
_BEFORE_RE: Final = re.compile(r"[^\W_]+(?:\.[^\W_]+)*$|[§№]$")
_MARKER_RE: Final = re.compile(
    r"\s*(?:>\s*)*(?:#{1,6}\s+)?(?:[-*+•]\s+)?[*_(]*(?:§+\s*)?"
    r"(?:[0-9]{1,3}(?:\.[0-9]{1,3})*|[A-Za-z]|[ivxIVX]{2,5})"
)
_OPENING_RE: Final = re.compile("[«¿¡]")
_MAX_MARKER: Final = 24
_MAX_BEFORE: Final = 24
_PAIR_RE: Final = re.compile(r"([A-Z])\1")
_THAI_WORD_RE: Final = re.compile(f"[{character_class(Script.THAI, Script.LAO)}]{{6}}$")
_THAI_RE: Final = re.compile(f"[{character_class(Script.THAI, Script.LAO)}]")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and where it stands.

    Attributes:
        start: Offset of its first character, in code points.
        end: Offset behind its last character.
        text: Exactly ``source[start:end]``; neither begins nor ends with white space.
    """

    start: int
    end: int
    text: str


def split_sentences(text: str) -> list[Sentence]:
    """Cut a text into sentences.

    A blank line ends a sentence; list items, headings and table rows are sentences of their own. Thai and Lao, which
    have no full stop, are cut at line ends and at spaces where a clause begins. No sentence is longer than 1,000
    characters.

    Args:
        text: Any text, plain or Markdown.

    Returns:
        Sentences in order, without overlaps, that together hold every character that is not white space.
    """
    sentences = []
    for block in blocks(text):
        start = block.start
        for end in (block.end,) if block.whole else _ends(text, block.start, block.end):
            for cut in (*clause_cuts(text, start, end), end):
                piece = text[start:cut]
                content = piece.strip()
                if content:
                    begin = start + len(piece) - len(piece.lstrip())
                    sentences.append(Sentence(begin, begin + len(content), content))
                start = cut
    return sentences


def _ends(text: str, first: int, last: int) -> Iterator[int]:
    """Offsets behind the sentences of a block, its own end included."""
    for mark in _END_RE.finditer(text, first, last):
        if mark.end() < last and _is_end(text, mark, first, last):
            yield mark.end()
    yield last


def _is_end(text: str, mark: re.Match[str], first: int, last: int) -> bool:
    following = text[mark.end()]
    if _CERTAIN_RE.search(mark["mark"]):
        # In Japanese, what is quoted goes on in the sentence that quotes it.
        return not (mark["closers"] and _KANA_RE.match(following))
    if not following.isspace() and (mark["mark"] == "." or not _NO_SPACE_RE.match(following)):
        return False
    ahead = _NEXT_RE.match(text, mark.end(), last)
    if mark["mark"] == ".":
        return _full_stop_ends(text, mark.start(), first, ahead)
    return not _goes_on(ahead)


def _goes_on(ahead: re.Match[str] | None) -> bool:
    """Tell whether what follows begins with a small letter, as the rest of a sentence does."""
    return ahead is not None and bool(ahead["word"]) and ahead["word"][0].islower()


def _full_stop_ends(text: str, stop: int, first: int, ahead: re.Match[str] | None) -> bool:
    """Tell whether a full stop with white space behind it ends a sentence."""
    if stop > first and text[stop - 1].isspace():  # text that was cut into words before, all in small letters perhaps
        return True
    if _goes_on(ahead) or (stop - first <= _MAX_MARKER and _MARKER_RE.fullmatch(text, first, stop)):
        return False
    before = text[max(first, stop - _MAX_BEFORE) : stop]
    if before and _THAI_RE.match(before[-1]):
        return _THAI_WORD_RE.search(before) is not None
    found = _BEFORE_RE.search(before)
    return found is None or _word_ends(found[0], ahead)


def _word_ends(before: str, ahead: re.Match[str] | None) -> bool:
    """Tell whether a sentence ends at the full stop behind a word."""
    word = before.casefold()
    following = (ahead["word"] or "") if ahead else ""
    if word in ALWAYS_FOLLOWED:
        return False
    if word in BEFORE_NUMBER and ahead and (ahead["number"] or _is_roman(following, after=word)):
        return False
    if word.isdigit() and len(word) <= 2 and following.casefold() in MONTHS:
        return False
    short = (len(word) == 1 or "." in word) and word[0].isalpha()
    if short or word in MAY_END or _PAIR_RE.fullmatch(before):
        return ahead is not None and _begins(ahead)
    return True


def _begins(ahead: re.Match[str]) -> bool:
    """Tell whether what follows an abbreviation can only be a new sentence."""
    if _OPENING_RE.search(ahead["opening"]):
        return True
    return (ahead["word"] or "").casefold() in STARTERS and not ahead["stop"]


def _is_roman(word: str, *, after: str) -> bool:
    if word == "I" and after == "no":  # "No. I will not."
        return False
    return bool(word) and not word.strip("IVXLC")

"""What a question names: quoted titles, names in capitals, codes and numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agentic_retriever.retrievers.planning.tables import folded, lowered
from agentic_retriever.text import stopwords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.retrievers.planning.tables import ClauseTable

_QUOTED: Final = re.compile(r"\"[^\"\n]{2,100}\"|«[^»\n]{2,100}»|“[^”\n]{2,100}”|「[^」\n]{2,100}」")
_WORD: Final = re.compile(r"[^\s\"«»“”]+")
# A number of a document, a parcel or an order; years and amounts have fewer digits or a comma.
_LONG_NUMBER: Final = re.compile(r"(?<![\w.,/-])[0-9]{5,18}(?![\w,])")
_AFTER_GAP: Final = re.compile(r"[\s,]+([,.;:?!])")
_OPENING: Final = "([{¿¡'‘*"
_CLOSING: Final = ",;:.?!)]}'’*…"
_ENDS_NAME: Final = frozenset(",;:?!)]}")
_MAX_SMALL: Final = 2


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a question.

    Attributes:
        start: Offset of its first character.
        end: Offset behind its last one.
        words: How many words it has.
    """

    start: int
    end: int
    words: int


def named_spans(text: str, table: ClauseTable) -> list[Span]:
    """Find what a question names.

    Args:
        text: The question.
        table: The table of its language.

    Returns:
        Spans in reading order, without overlaps. A text all in capitals, or in a script without them, has only quoted
        titles and long numbers.
    """
    quoted = [Span(m.start(), m.end(), len(m[0].split())) for m in _QUOTED.finditer(text)]
    names = [] if text.isupper() or not table.spaced else _names(text, table)
    found = [*quoted]
    for span in [*names, *(Span(m.start(), m.end(), 1) for m in _LONG_NUMBER.finditer(text))]:
        if all(span.end <= other.start or span.start >= other.end for other in found):
            found.append(span)
    return sorted(found, key=lambda span: span.start)


def without(text: str, spans: Sequence[Span], kept: Span, table: ClauseTable) -> str:
    """Return a text with one of several stretches only.

    Args:
        text: The text.
        spans: The stretches, in reading order.
        kept: The one that stays.
        table: The table of the text's language; a word such as ``and`` between two stretches goes with them.
    """
    pieces: list[str] = []
    at = 0
    for span in spans:
        between = text[at : span.start]
        pieces.append(" " if at and _only_joins(between, table) else between)
        pieces.append(text[span.start : span.end] if span == kept else " ")
        at = span.end
    return _AFTER_GAP.sub(r"\1", " ".join("".join([*pieces, text[at:]]).split())).strip(" ,;")


def _only_joins(between: str, table: ClauseTable) -> bool:
    words = [word.strip(",;") for word in folded(between).split()]
    joins = [table.joins.fullmatch(word) is not None for word in words]
    others = (word for word, joins_here in zip(words, joins, strict=True) if word and not joins_here)
    return any(joins) and all(table.inside_names.fullmatch(word) for word in others)


def _names(text: str, table: ClauseTable) -> list[Span]:
    words = list(_WORD.finditer(text))
    named = [_is_name(match, table, text) for match in words]
    small = [table.inside_names.fullmatch(folded(match[0])) is not None for match in words]
    spans: list[Span] = []
    first = 0
    while first < len(words):
        last = _last_word(words, named, small, first) if named[first] else first
        if named[first] and (last > first or _alone_is_name(words[first], table, text)):
            bare = words[first][0].lstrip(_OPENING)
            end = words[last].start() + len(words[last][0].rstrip(_CLOSING))
            spans.append(Span(words[first].end() - len(bare), end, last - first + 1))
        first = last + 1
    return spans


def _last_word(words: Sequence[re.Match[str]], named: Sequence[bool], small: Sequence[bool], first: int) -> int:
    """Find the last word of a name: names may hold numbers and one or two small words, but no comma."""
    last = first
    while words[last][0][-1] not in _ENDS_NAME:
        following = last + 1
        if following < len(words) and words[following][0][0].isdigit():
            last = following
            continue
        while following < len(words) and following - last <= _MAX_SMALL and small[following]:
            following += 1
        if following >= len(words) or not named[following]:
            break
        last = following
    return last


def _is_name(match: re.Match[str], table: ClauseTable, text: str) -> bool:
    word = match[0].strip(_OPENING + _CLOSING)
    return bool(word) and word[0].isupper() and not (_begins(match, text) and _is_common(word, table))


def _alone_is_name(match: re.Match[str], table: ClauseTable, text: str) -> bool:
    """Tell whether a word with a capital is a name by itself: not ``I``, nor any plain word that begins a sentence."""
    word = match[0].strip(_OPENING + _CLOSING)
    return not _is_common(word, table) and not (_begins(match, text) and word.isalpha() and word[1:].islower())


def _begins(match: re.Match[str], text: str) -> bool:
    before = text[: match.start()].rstrip()
    return not before or before[-1] in ".?!¿¡:" or match[0][0] in "¿¡"


def _is_common(word: str, table: ClauseTable) -> bool:
    lower = lowered(word)
    patterns = (table.asks.fullmatch(lower), table.not_names.fullmatch(folded(word)))
    return lower in stopwords(table.language) or any(patterns)

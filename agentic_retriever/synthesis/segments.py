"""The smallest stretches of a passage that are quoted: its sentences, and parts of those that are too long to read."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cached_property
from itertools import filterfalse
from typing import TYPE_CHECKING, Final

from agentic_retriever.text import split_sentences
from agentic_retriever.text.names import find_names, keys_in
from agentic_retriever.text.numbers import Date, Number, find_dates, find_numbers, loose_values, values_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentic_retriever.text import Tokenizer


MAX_SEGMENT_CHARS = 500


def segments(text: str) -> list[tuple[int, int]]:
    """Cut a text into what may be quoted."""
    found: list[tuple[int, int]] = []
    for sentence in split_sentences(text):
        found += _cut(text, sentence.start, sentence.end)
    return found


def _cut(text: str, start: int, end: int) -> list[tuple[int, int]]:
    if end - start <= MAX_SEGMENT_CHARS:
        return _trimmed(text, start, end)
    pieces: list[tuple[int, int]] = []
    while start < end:
        stop = _stop(text, start, end)
        pieces += _trimmed(text, start, stop)
        start = stop
    return pieces


def _stop(text: str, start: int, end: int) -> int:
    """Where the next piece of a long sentence ends."""
    line = text.find("\n", start, min(end, start + MAX_SEGMENT_CHARS))
    if line >= 0:
        return line + 1
    if end - start <= MAX_SEGMENT_CHARS:
        return end
    space = text.rfind(" ", start + 1, start + MAX_SEGMENT_CHARS)
    if space > start:
        return space
    stop = start + MAX_SEGMENT_CHARS
    # A vowel sign or tone mark stays with its letter.
    while stop > start + 1 and unicodedata.combining(text[stop]):
        stop -= 1
    return stop


def _trimmed(text: str, start: int, end: int) -> list[tuple[int, int]]:
    piece = text[start:end]
    bare = piece.strip()
    first = start + len(piece) - len(piece.lstrip())
    return [(first, first + len(bare))] if bare else []


# What one segment of a passage says, read once: its terms, numbers, dates and names.

_DIGIT: Final = re.compile("[0-9]")


@dataclass(frozen=True, eq=False)
class Facts:
    """What a text says, each part read when it is first asked for."""

    text: str
    tokenizer: Tokenizer
    passage: int = 0
    position: int = 0

    @cached_property
    def terms(self) -> frozenset[str]:
        """Its distinct terms without those that have digits."""
        return words_only(self.all_terms)

    @cached_property
    def all_terms(self) -> frozenset[str]:
        """Its distinct terms."""
        return frozenset(self.tokenizer.tokens(self.text))

    @cached_property
    def dates(self) -> list[Date]:
        """Its dates, months included."""
        return find_dates(self.text)

    @cached_property
    def numbers(self) -> list[Number]:
        """Its numbers, those in dates included."""
        return find_numbers(self.text)

    @cached_property
    def values(self) -> frozenset[str]:
        """Values of its numbers, with and without scales."""
        return values_of(self.numbers)

    @cached_property
    def loose(self) -> frozenset[str]:
        """Numbers that it stands for without saying them."""
        return loose_values(self.text)

    @cached_property
    def keys(self) -> frozenset[str]:
        """All its words as names are compared."""
        return keys_in(self.text)

    @cached_property
    def name_keys(self) -> frozenset[str]:
        """What it has as names, those of codes apart from those of words."""
        language = self.tokenizer.language
        return frozenset(f"{name.code}{name.key}" for name in find_names(self.text, language) if not name.opening)


def words_only(terms: Iterable[str]) -> frozenset[str]:
    """Keep the terms without digits: numbers are compared as such."""
    return frozenset(filterfalse(_DIGIT.search, terms))

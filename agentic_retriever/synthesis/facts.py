"""What is read in a passage: the smallest stretches that are quoted, what each says, and which serve a sentence.

A segment is a sentence, or a part of one that is too long to read.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import filterfalse
from typing import Final

from agentic_retriever.text import Tokenizer, split_sentences
from agentic_retriever.text.names import find_names, keys_in
from agentic_retriever.text.numbers import (
    Date,
    Number,
    find_dates,
    find_numbers,
    loose_values,
    numbers_in,
    values_of,
)

MAX_SEGMENT_CHARS: Final = 500
_DIGIT: Final = re.compile("[0-9]")
_MAX_FURTHER: Final = 3
_MAX_CITED: Final = 4
_NEAR: Final = 2
# What a further segment must add, as a share of the sentence's terms: nearby and elsewhere.
_ADDS_NEAR: Final = 0.1
_ADDS_FAR: Final = 0.18
# What a number that both have counts, in terms, at least and as a share of the sentence's terms.
_FACT_WEIGHT: Final = 0.4
_FACT_SHARE: Final = 0.05


def segments(text: str) -> list[tuple[int, int]]:
    """Cut a text into what may be quoted."""
    return [piece for sentence in split_sentences(text) for piece in _cut(text, sentence.start, sentence.end)]


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
    def digits(self) -> frozenset[str]:
        """Values of its numbers in digits."""
        return numbers_in(self.text)

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
    def name_keys(self) -> frozenset[tuple[bool, str]]:
        """What it has as names, each with whether it is a code."""
        names = find_names(self.text, self.tokenizer.language)
        return frozenset((name.code, name.key) for name in names if not name.opening)


def words_only(terms: Iterable[str]) -> frozenset[str]:
    """Keep the terms without digits: numbers are compared as such."""
    return frozenset(filterfalse(_DIGIT.search, terms))


@dataclass(frozen=True, slots=True)
class Grounds:
    """The segments that a sentence is held against."""

    core: tuple[Facts, ...]  # that say most of what it says, the best one first
    near: tuple[Facts, ...]  # that stand beside those
    headers: tuple[Facts, ...]
    whole: tuple[Facts, ...]


def gather(sentence: Facts, passages: Sequence[Sequence[Facts]], headers: Sequence[Facts]) -> Grounds | None:
    """Choose the segments that a sentence is held against.

    Each passage gives the one that shares most of its terms. Another one is taken only for terms that are still
    missing: never for a number alone, or a changed number would be found somewhere.
    """
    whole = [segment for passage in passages for segment in passage]
    if not whole:
        return None
    wanted = sentence.terms
    best_ones = [max(passage, key=lambda segment: _likeness(sentence, segment)) for passage in passages if passage]
    first = max(best_ones, key=lambda segment: _likeness(sentence, segment))
    # Of several cited passages each has its say.
    core = [first, *(one for one in best_ones[:_MAX_CITED] if one is not first and not wanted.isdisjoint(one.terms))]
    missing = wanted.difference(*(segment.terms for segment in core))
    for header in headers:
        missing -= header.terms
    for _ in range(_MAX_FURTHER):
        best = max(whole, key=lambda segment: (_gain(missing, segment, first), _likeness(sentence, segment)))
        share = _ADDS_NEAR if _is_near(best, core) else _ADDS_FAR
        added = len(missing & best.terms)
        if not added or added < share * len(wanted):
            break
        core.append(best)
        missing -= best.terms
    near = [segment for segment in whole if segment not in core and _is_near(segment, core)]
    return Grounds(tuple(core), tuple(near), tuple(headers), tuple(whole))


def _likeness(sentence: Facts, segment: Facts) -> float:
    shared = len(sentence.terms & segment.terms)
    facts = len(sentence.values & segment.values) if shared and sentence.values else 0
    # Among segments with the same terms, the shorter one says less else.
    weight = max(_FACT_WEIGHT, _FACT_SHARE * len(sentence.terms))
    return shared + weight * facts + 0.1 * shared / (1 + len(segment.terms))


def _gain(missing: frozenset[str], segment: Facts, first: Facts) -> float:
    return len(missing & segment.terms) * (1.5 if _is_near(segment, [first]) else 1.0)


def _is_near(segment: Facts, others: Sequence[Facts]) -> bool:
    return any(s.passage == segment.passage and abs(s.position - segment.position) <= _NEAR for s in others)

"""A question as it is matched against text: its terms and how much each tells, and the kind of answer it asks for.

The section ``answers`` of each language says what a question asks for and what shows that a sentence has it: ``asks``
and ``shows`` hold regular expressions by kind, ``joints`` those between the parts of a question, ``leans`` those with
which a sentence begins that leans on the one before it. All languages are tried on every text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

from agentic_retriever.text import Tokenizer
from agentic_retriever.text.language_files import any_listed, listed, section
from agentic_retriever.text.numbers import numbers_in
from agentic_retriever.text.tokens import without_asking

LISTING: Final = "listing"
OVERVIEW: Final = "overview"
_NUMERIC: Final = frozenset({"number", "amount", "date", "duration", "percent", "time"})
_NAMED: Final = frozenset({"person", "place"})

_ANY_NUMBER: Final = 0.6
_NUMBER_WORD: Final = 0.5
_FLOOR: Final = 0.5
_MAX_PARTED: Final = 1_000
_MAX_PARTS: Final = 6
_ENUMERATION: Final = re.compile(r"^\s*(?:[-*•]\s*)?\(?(?:\d{1,3}[.)]|(?:\d+\.)+\d+)\s+")
_EMPHASIS: Final = re.compile(r"[*_`]+")


@cache
def _patterns(key: str) -> Mapping[str, re.Pattern[str]]:
    """One pattern a kind of answer, of all languages; a name is known by its capital."""
    by_kind: dict[str, list[str]] = {}
    for table in section("answers").values():
        for kind, patterns in table[key].items():
            by_kind.setdefault(kind, []).extend(patterns)
    return {
        kind: re.compile("|".join(patterns), 0 if key == "shows" and kind in _NAMED else re.IGNORECASE)
        for kind, patterns in sorted(by_kind.items())
    }


@dataclass(frozen=True, slots=True)
class Part:
    """One of several things that a question asks."""

    terms: tuple[str, ...]
    kinds: frozenset[str]


@dataclass(frozen=True, slots=True)
class Question:
    """A question as it is matched against text."""

    text: str
    terms: tuple[str, ...]
    kinds: frozenset[str]
    parts: tuple[Part, ...] = ()  # What it asks one after the other; () when that is one thing

    @property
    def asks_number(self) -> bool:
        """Whether a quantity or a date is asked for."""
        return bool(self.kinds & _NUMERIC)

    @classmethod
    def of(cls, query: str, tokenizer: Tokenizer) -> Question:
        """Analyse a question."""
        return cls(query, _terms_of(query, tokenizer), _asked_kinds(query), _parts_of(query, tokenizer))

    def weights(self, texts: Sequence[Collection[str]]) -> dict[str, float]:
        """Weigh the terms by inverse document frequency among some texts.

        A term that is everywhere still counts half: retrieval brought texts together because they have it.
        """
        size = len(texts)
        rarest = math.log(size + 1) or 1.0
        found = _without_parts({term: sum(term in text for text in texts) for term in self.terms})
        return {
            term: _FLOOR + (1 - _FLOOR) * (math.log((size + 1) / (count + 1)) / rarest if size else 1.0)
            for term, count in found.items()
        }


def coverage(weights: Mapping[str, float], terms: Collection[str]) -> float:
    """Tell which share of the weighted terms of a question is among some terms."""
    total = sum(weights.values())
    return min(1.0, sum(weight for term, weight in weights.items() if term in terms) / total) if total else 0.0


def unknown_share(query: str, document_frequency: Mapping[str, int], *, language: str) -> float | None:
    """Tell which share of a question's terms occurs nowhere in an index."""
    terms = _terms_of(query, Tokenizer(language))
    return sum(term not in document_frequency for term in terms) / len(terms) if terms else None


def satisfaction(kinds: Collection[str], text: str, query: str) -> float:
    """Tell how far a text has what is asked for."""
    body = _EMPHASIS.sub("", _ENUMERATION.sub("", text))
    return max((_has(kind, body, query) for kind in kinds if kind in _patterns("shows")), default=0.0)


def leans(sentence: str) -> bool:
    """Tell whether a sentence begins with a word that points back, such as "This" or "Dicho"."""
    return _leans_re().match(sentence) is not None


def _has(kind: str, body: str, query: str) -> float:
    shown = _patterns("shows")[kind]
    if kind in _NUMERIC:
        if numbers_in(body) - numbers_in(query):
            return 1.0 if kind == "number" or shown.search(body) else _ANY_NUMBER
        return _NUMBER_WORD if shown.search(body) or _patterns("shows")["number"].search(body) else 0.0
    if kind in _NAMED:
        asked = query.casefold()
        return 1.0 if any(match[0].casefold() not in asked for match in shown.finditer(body)) else 0.0
    return 1.0 if shown.search(body) else 0.0


def _asked_kinds(query: str) -> frozenset[str]:
    return frozenset(kind for kind, pattern in _patterns("asks").items() if pattern.search(query))


@lru_cache(1)
def _leans_re() -> re.Pattern[str]:
    return re.compile(rf"\W*(?:{'|'.join(listed('answers', 'leans'))})", re.IGNORECASE)


@lru_cache(1)
def _joints_re() -> re.Pattern[str]:
    return any_listed("answers", "joints")


def _terms_of(query: str, tokenizer: Tokenizer) -> tuple[str, ...]:
    terms = tokenizer.query_tokens(without_asking(query)) or tokenizer.query_tokens(query)
    return tuple(dict.fromkeys(terms))


def _parts_of(query: str, tokenizer: Tokenizer) -> tuple[Part, ...]:
    """Find the parts that say something of their own, each with its own terms only."""
    parts: list[Part] = []
    seen: set[str] = set()
    for text in _joints_re().split(query[:_MAX_PARTED]):
        terms = tuple(term for term in _terms_of(text, tokenizer) if term not in seen) if text and text.strip() else ()
        seen.update(terms)
        if terms:
            parts.append(Part(terms, _asked_kinds(text)))
    return tuple(parts) if 1 < len(parts) <= _MAX_PARTS else ()


def _without_parts(found: Mapping[str, int]) -> dict[str, int]:
    """Count a code such as ``fy2024`` once: as a whole where it occurs so, else by its parts."""
    kept = dict(found)
    for whole in found:
        parts = [term for term in found if term != whole and term in whole]
        if parts and any(char.isdecimal() for char in whole):
            for term in parts if found[whole] else [whole]:
                kept.pop(term, None)
    return kept

"""The terms of a question, and how much each of them tells."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentic_retriever.synthesis.cues import NUMERIC, asked_kinds, split_parts
from agentic_retriever.text import Tokenizer
from agentic_retriever.text.tokens import without_asking

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


_FLOOR = 0.5
_MAX_PARTED = 1_000
_MAX_PARTS = 6
_CODE_CHARS = 3


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
        return bool(self.kinds & NUMERIC)

    @classmethod
    def of(cls, query: str, tokenizer: Tokenizer) -> Question:
        """Analyse a question."""
        kinds = asked_kinds(query)
        return cls(query, _terms_of(query, tokenizer), kinds, _parts_of(query, tokenizer))

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


def _terms_of(query: str, tokenizer: Tokenizer) -> tuple[str, ...]:
    terms = tokenizer.query_tokens(without_asking(query)) or tokenizer.query_tokens(query)
    return tuple(dict.fromkeys(terms))


def _parts_of(query: str, tokenizer: Tokenizer) -> tuple[Part, ...]:
    """Find the parts that say something of their own, each with its own terms only."""
    parts: list[Part] = []
    seen: set[str] = set()
    for text in split_parts(query[:_MAX_PARTED]):
        terms = tuple(term for term in _terms_of(text, tokenizer) if term not in seen)
        seen.update(terms)
        if terms:
            parts.append(Part(terms, asked_kinds(text)))
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


def is_code(term: str) -> bool:
    """Tell whether a term has a digit and three characters or more: shorter numbers tell no record from another."""
    return len(term) >= _CODE_CHARS and any(char.isdecimal() for char in term)


def unknown_share(query: str, document_frequency: Mapping[str, int], *, language: str) -> float | None:
    """Tell which share of a question's terms occurs nowhere in an index."""
    terms = _terms_of(query, Tokenizer(language))
    return sum(term not in document_frequency for term in terms) / len(terms) if terms else None


def coverage(weights: Mapping[str, float], terms: Collection[str]) -> float:
    """Tell which share of the weighted terms of a question is among some terms."""
    total = sum(weights.values())
    return min(1.0, sum(weight for term, weight in weights.items() if term in terms) / total) if total else 0.0

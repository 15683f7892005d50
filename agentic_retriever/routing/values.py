"""Metadata values that a query names: the same words in the same order, whatever their endings."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agentic_retriever.text import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.indices.profile import IndexProfile

MAX_EXAMINED: Final = 2_000
"""Characters of a query that routing looks at."""

_MAX_TABLES: Final = 128
_YEAR_DIGITS: Final = 4


def examined(query: str) -> str:
    """Return the part of a query that routing looks at: all of it, or both ends of a long one.

    In front of or behind a long pasted text stands what is asked about it.
    """
    half = MAX_EXAMINED // 2
    return query if len(query) <= MAX_EXAMINED else f"{query[:half]}\n{query[-half:]}"


@dataclass(frozen=True, slots=True)
class ValueHit:
    """A metadata value that occurs in a query.

    Attributes:
        field: Name of the metadata field.
        value: The value, case-folded.
    """

    field: str
    value: str


class ValueTable:
    """The values of one index, by the first term of each; immutable, safe to share between threads.

    Args:
        field_values: Values by field.
        language: Language of the index, which decides about stems.
    """

    def __init__(self, field_values: Mapping[str, frozenset[str]], language: str) -> None:
        tokenizer = Tokenizer(language=language)
        self._by_first: dict[str, list[tuple[tuple[str, ...], ValueHit]]] = {}
        for field, values in sorted(field_values.items()):
            for value in sorted(values):
                terms = tuple(tokenizer.query_tokens(value))
                if terms and _tells_something(value):
                    self._by_first.setdefault(terms[0], []).append((terms, ValueHit(field, value)))

    def hits(self, terms: Sequence[str]) -> list[ValueHit]:
        """Find the values that occur among the terms of a query.

        Args:
            terms: Terms of the query in reading order, by ``query_tokens`` of a tokenizer of the same language.

        Returns:
            Each value once, in reading order.
        """
        found: dict[ValueHit, None] = {}
        for at, term in enumerate(terms):
            for wanted, hit in self._by_first.get(term, ()):
                if tuple(terms[at : at + len(wanted)]) == wanted:
                    found.setdefault(hit)
        return list(found)


def _tells_something(value: str) -> bool:
    """Tell whether a value can be recognised in a sentence: a lone letter or a number that is no year cannot."""
    if any(char.isalpha() for char in value):
        return len(value.strip()) > 1
    return value.isdigit() and len(value) == _YEAR_DIGITS


class _Tables:
    """The tables made last. An entry holds the mapping that it was made from, so that its ``id`` stays taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[int, str], tuple[object, ValueTable]] = OrderedDict()

    def get(self, profile: IndexProfile) -> ValueTable:
        key = (id(profile.field_values), profile.language)
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key][1]
        table = ValueTable(profile.field_values, profile.language)
        with self._lock:
            self._made[key] = (profile.field_values, table)
            while len(self._made) > _MAX_TABLES:
                self._made.popitem(last=False)
        return table


_TABLES: Final = _Tables()


def value_hits(profile: IndexProfile, terms: Sequence[str]) -> list[ValueHit]:
    """Find the metadata values of an index that a query names.

    Args:
        profile: The index; its table is made once and remembered.
        terms: Terms of the query by a tokenizer of the index's language (``query_tokens``).

    Returns:
        Each value once, in reading order.
    """
    return _TABLES.get(profile).hits(terms) if profile.field_values else []

"""What one segment of a passage says, read once: its terms, numbers, dates and names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import filterfalse
from typing import TYPE_CHECKING, Final

from agentic_retriever.synthesis.dates import Date, find_dates
from agentic_retriever.synthesis.names import find_names, keys_in
from agentic_retriever.synthesis.numbers import Number, find_numbers, loose_values, values_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentic_retriever.text import Tokenizer


_DIGIT: Final = re.compile("[0-9]")


@dataclass(frozen=True, eq=False)
class Facts:
    """What a text says, each part read when it is first asked for.

    Attributes:
        text: The text.
        tokenizer: Cuts it into terms.
        passage: Number of the passage that it stands in; 0 for none.
        position: Its place among the segments of the passage.
    """

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

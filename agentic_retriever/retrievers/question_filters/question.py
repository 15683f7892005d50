"""A question on its way to clauses: its text in comparable form and what the automaton found in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from agentic_retriever.retrievers.question_filters.folding import Folded, fold_query
from agentic_retriever.retrievers.question_filters.lexicon import decimal_sign, languages_in_use, stem_language
from agentic_retriever.retrievers.question_filters.matcher import Match, alias_matches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentic_retriever.retrievers.question_filters.fields import FieldDictionary

MAX_EXAMINED: Final = 4_000
"""Characters of a question that are looked at; what stands behind them makes no clause."""

_MAX_GAP: Final = 16
_LINK: Final = re.compile(r"[\s:=\"'(]*(?:(?:of|is|in|the|de|del|la|el|es|คือ|เป็น|ชื่อ)[\s:=\"'(]*){0,2}")
_TIGHT_LINK: Final = re.compile(r"[\s:=\"'(]*")


@dataclass(frozen=True, slots=True)
class Question:
    """A question with everything that was found in it.

    Attributes:
        query: The question as it was asked.
        folded: Its examined part in comparable form.
        dictionary: The index's fields.
        languages: Whose cues count.
        stems: Whose stems serve, in the order in which they are tried.
        decimal: The sign before decimals.
        matches: What the automaton found, overlapping.
    """

    query: str
    folded: Folded
    dictionary: FieldDictionary
    languages: frozenset[str]
    stems: tuple[str, ...]
    decimal: str
    matches: tuple[Match, ...]
    _ends: Mapping[int, tuple[Match, ...]] = field(repr=False)
    _starts: Mapping[int, tuple[Match, ...]] = field(repr=False)

    @property
    def text(self) -> str:
        """The folded text."""
        return self.folded.text

    def shown(self, start: int, end: int) -> str:
        """Return a stretch of the folded text as it stands in the question."""
        first, last = self.folded.origin(start, end)
        return self.query[first:last]

    def named_before(self, start: int, *, tight: bool = False) -> tuple[frozenset[str], int]:
        """Return the fields named right before a place, and where the name begins; no word between if ``tight``."""
        for end in range(start, max(-1, start - _MAX_GAP), -1):
            if end in self._ends and (_TIGHT_LINK if tight else _LINK).fullmatch(self.text, end, start):
                named = self._ends[end]
                return _fields(named), min(match.start for match in named)
        return frozenset(), start

    def named_after(self, end: int) -> tuple[frozenset[str], int]:
        """Return the fields named right behind a place, as in ``finance department``, and where the name ends."""
        named = self._starts.get(end + 1, ()) if self.text[end : end + 1] == " " else ()
        return _fields(named), max((match.end for match in named), default=end)


def _fields(matches: tuple[Match, ...]) -> frozenset[str]:
    return frozenset(name for match in matches for name in match.fields)


def read_question(
    query: str, dictionary: FieldDictionary, language: str | None, aliases: Mapping[str, Mapping[str, str]]
) -> Question:
    """Fold a question and run the automaton over it."""
    examined = query[:MAX_EXAMINED]
    comparable = fold_query(examined)
    matches = [*dictionary.matcher.matches(comparable.text), *alias_matches(dictionary, aliases, comparable.text)]
    ends: dict[int, tuple[Match, ...]] = {}
    starts: dict[int, tuple[Match, ...]] = {}
    for match in matches:
        if match.fields:
            ends[match.end] = (*ends.get(match.end, ()), match)
            starts[match.start] = (*starts.get(match.start, ()), match)
    code = stem_language(examined, language)
    languages = languages_in_use(examined, language)
    return Question(
        query=query,
        folded=comparable,
        dictionary=dictionary,
        languages=languages,
        stems=(code, *sorted(languages - {"th", code})),
        decimal=decimal_sign(code),
        matches=tuple(matches),
        _ends=ends,
        _starts=starts,
    )

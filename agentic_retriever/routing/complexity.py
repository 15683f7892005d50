"""Whether a question is one look-up, or needs several facts to be combined."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from agentic_retriever.routing.hops import hop_cues
from agentic_retriever.routing.tables import read_query
from agentic_retriever.routing.values import examined
from agentic_retriever.schema import Complexity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.routing.tables import SignalTable

COMPLEX_PATTERN: Final = 0.3
STRONG_KEYWORD: Final = 0.15
MEDIUM_KEYWORD: Final = 0.08
SIMPLE_PATTERN: Final = -0.1
SEVERAL_QUESTIONS: Final = 0.15
CONJUNCTION: Final = 0.05
MAX_CONJUNCTIONS: Final = 3
MAX_HOPS: Final = 0.3
"""What the cues of a question in several steps add at most; from there on they decide like a complex pattern."""
MAX_LENGTH_SCORE: Final = 0.2
FULL_LENGTH: Final = 300
"""Characters from which on the length counts in full."""
LONG: Final = 150
"""Characters beyond which a question that is no list counts as complex."""

_MIN_QUESTIONS: Final = 2
_MIN_CLAUSES: Final = 3
_MIN_ITEMS: Final = 4
_MAX_ITEM_CHARS: Final = 40
_MAX_SHOWN: Final = 40
_QUESTION_MARK: Final = re.compile("[?？؟]")
_CLAUSE_END: Final = re.compile(r"[,;:.?？؟¿!]")
_ITEM_END: Final = re.compile(r"[\n,;•]")
# A preposition or two may stand before the question word that opens a clause.
_OPENING: Final = re.compile(r"\W*(?:\w{1,4} ){0,2}")


def assess_complexity(query: str) -> tuple[Complexity, float]:
    """Judge a question by the patterns and keywords of its language.

    The score adds up: 0.3 for each complex pattern, 0.15 for each strong and 0.08 for each medium keyword, up to 0.3 by
    the weights of the cues of a question in several steps (``hop_cues``), up to 0.2 for length, 0.15 for several
    questions, 0.05 for each conjunction up to 0.15, less 0.1 for a simple pattern. The verdict is that of the first
    check that applies: complex patterns, strong keywords, cues of several steps that weigh 0.3 together, simple
    patterns, more than 150 characters that are no list, several questions, three conjunctions; else it is simple.

    Args:
        query: Any text; of a long one, the first and last 1,000 characters are examined for words.

    Returns:
        The verdict, and the score in [0, 1].
    """
    found = _find(query)
    return _verdict(found), _score(found)


def complexity_reasons(query: str) -> tuple[str, ...]:
    """Name what was found in a question, for explanations.

    Args:
        query: Any text, as for ``assess_complexity``.

    Returns:
        What counts for and against complexity, the first checks first: a short name, and behind a colon the words that
        a pattern or keyword matched, cut at 40 characters, for example ``strong_keyword: compare``. Empty for none.
    """
    found = _find(query)
    return (
        *(f"complex_pattern: {_cut(words)}" for words in found.complex_patterns),
        *(f"strong_keyword: {word}" for word in found.strong),
        *found.hops,
        *(f"medium_keyword: {word}" for word in found.medium),
        *(["simple_pattern"] if found.simple else []),
        *([f"more_than_{LONG}_characters"] if found.too_long else []),
        *([f"several_questions: {found.questions}"] if found.several else []),
        *([f"conjunctions: {found.conjunctions}"] if found.conjunctions else []),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What a question holds."""

    complex_patterns: tuple[str, ...]
    strong: tuple[str, ...]
    medium: tuple[str, ...]
    hops: Mapping[str, float]
    simple: bool
    questions: int
    conjunctions: int
    chars: int
    too_long: bool

    @property
    def several(self) -> bool:
        return self.questions >= _MIN_QUESTIONS

    @property
    def hop_score(self) -> float:
        # Rounded, for sums of hundredths must reach their limit exactly.
        return round(min(sum(self.hops.values()), MAX_HOPS), 6)


@lru_cache(16)
def _find(query: str) -> _Found:
    read = read_query(query)
    text, tables = read.text, read.tables
    length = len(query.strip())
    return _Found(
        complex_patterns=tuple(m[0] for table in tables for m in table.found_patterns("complex_patterns", text)),
        strong=_distinct(tables, "strong_keywords", text),
        medium=_distinct(tables, "medium_keywords", text),
        hops=hop_cues(query, read),
        simple=any(table.found_patterns("simple_patterns", text) for table in tables),
        questions=question_count(text, tables),
        conjunctions=max(len(table.found_words("conjunctions", text)) for table in tables),
        chars=length,
        too_long=length > LONG and not _is_list(query),
    )


def forget_assessments() -> None:
    """Forget what was found in queries, since the tables have changed."""
    _find.cache_clear()


def _score(found: _Found) -> float:
    score = (
        COMPLEX_PATTERN * len(found.complex_patterns)
        + STRONG_KEYWORD * len(found.strong)
        + MEDIUM_KEYWORD * len(found.medium)
        + found.hop_score
        + MAX_LENGTH_SCORE * min(1.0, found.chars / FULL_LENGTH)
        + SEVERAL_QUESTIONS * found.several
        + CONJUNCTION * min(found.conjunctions, MAX_CONJUNCTIONS)
        + SIMPLE_PATTERN * found.simple
    )
    return min(1.0, max(0.0, score))


def _verdict(found: _Found) -> Complexity:
    if found.complex_patterns or found.strong or found.hop_score >= MAX_HOPS:
        return Complexity.COMPLEX
    if found.simple:
        return Complexity.SIMPLE
    much = found.too_long or found.several or found.conjunctions >= MAX_CONJUNCTIONS
    return Complexity.COMPLEX if much else Complexity.SIMPLE


def question_count(text: str, tables: Sequence[SignalTable]) -> int:
    """Count the questions in a text: by question marks, or by clauses that a question word opens.

    Args:
        text: A query in ``matching_form``.
        tables: The tables of its language.

    Returns:
        The number of question marks behind words; where three clauses or more ask, their number if that is greater; at
        least 1. Two clauses alone count as one question, for relative clauses open with the same words.
    """
    marks = sum(any(char.isalpha() for char in part) for part in _QUESTION_MARK.split(text)[:-1])
    clauses = max(_asking_clauses(text, table) for table in tables)
    return max(1, marks, clauses if clauses >= _MIN_CLAUSES else 0)


def _asking_clauses(text: str, table: SignalTable) -> int:
    words = table.words["question_words"]
    if not table.spaced:
        return len(words.findall(text))
    parts = (part for clause in _CLAUSE_END.split(text) for part in table.words["conjunctions"].split(clause))
    return sum(words.match(part, _opening_end(part, words)) is not None for part in parts)


def _opening_end(part: str, words: re.Pattern[str]) -> int:
    """Where the question word of a clause would stand: at its start, or behind two short words at most."""
    opening = _OPENING.match(part)
    end = opening.end() if opening else 0
    found = words.search(part, 0, end)
    return found.start() if found else end


def _distinct(tables: Sequence[SignalTable], name: str, text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for table in tables for word in table.found_words(name, text)))


def _cut(words: str) -> str:
    return words if len(words) <= _MAX_SHOWN else f"{words[: _MAX_SHOWN - 1]}…"


def _is_list(query: str) -> bool:
    items = [item.strip() for item in _ITEM_END.split(examined(query))]
    filled = [item for item in items if item]
    return len(filled) >= _MIN_ITEMS and all(len(item) <= _MAX_ITEM_CHARS for item in filled)

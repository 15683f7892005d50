"""Whether a question is one look-up, or needs several facts to be combined."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agentic_retriever.routing.tables import read_query
from agentic_retriever.routing.values import examined
from agentic_retriever.schema import Complexity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.routing.tables import SignalTable

COMPLEX_PATTERN: Final = 0.3
STRONG_KEYWORD: Final = 0.15
MEDIUM_KEYWORD: Final = 0.08
SIMPLE_PATTERN: Final = -0.1
SEVERAL_QUESTIONS: Final = 0.15
CONJUNCTION: Final = 0.05
MAX_CONJUNCTIONS: Final = 3
MAX_LENGTH_SCORE: Final = 0.2
FULL_LENGTH: Final = 300
"""Characters from which on the length counts in full."""
LONG: Final = 150
"""Characters beyond which a question that is no list counts as complex."""

_MIN_QUESTIONS: Final = 2
_MIN_CLAUSES: Final = 3
_MIN_ITEMS: Final = 4
_MAX_ITEM_CHARS: Final = 40
_QUESTION_MARK: Final = re.compile("[?？؟]")
_CLAUSE_END: Final = re.compile(r"[,;:.?？؟¿!]")
_ITEM_END: Final = re.compile(r"[\n,;•]")
# A preposition or two may stand before the question word that opens a clause.
_OPENING: Final = re.compile(r"\W*(?:\w{1,4} ){0,2}")


def assess_complexity(query: str) -> tuple[Complexity, float]:
    """Judge a question by the patterns and keywords of its language.

    The score adds up: 0.3 for each complex pattern, 0.15 for each strong and 0.08 for each medium keyword, up to 0.2
    for length, 0.15 for several questions, 0.05 for each conjunction up to 0.15, less 0.1 for a simple pattern. The
    verdict is that of the first check that applies: complex patterns, strong keywords, simple patterns, more than 150
    characters that are no list, several questions, three conjunctions; else it is simple.

    Args:
        query: Any text; of a long one, the first and last 1,000 characters are examined for words.

    Returns:
        The verdict, and the score in [0, 1].
    """
    read = read_query(query)
    text, tables = read.text, read.tables
    complex_patterns = sum(len(table.found_patterns("complex_patterns", text)) for table in tables)
    strong = _distinct(tables, "strong_keywords", text)
    medium = _distinct(tables, "medium_keywords", text)
    simple = any(table.found_patterns("simple_patterns", text) for table in tables)
    several = question_count(text, tables) >= _MIN_QUESTIONS
    conjunctions = max(len(table.found_words("conjunctions", text)) for table in tables)
    score = (
        COMPLEX_PATTERN * complex_patterns
        + STRONG_KEYWORD * strong
        + MEDIUM_KEYWORD * medium
        + MAX_LENGTH_SCORE * min(1.0, len(query.strip()) / FULL_LENGTH)
        + SEVERAL_QUESTIONS * several
        + CONJUNCTION * min(conjunctions, MAX_CONJUNCTIONS)
        + SIMPLE_PATTERN * simple
    )
    too_long = len(query.strip()) > LONG and not _is_list(query)
    if complex_patterns or strong:
        verdict = Complexity.COMPLEX
    elif simple:
        verdict = Complexity.SIMPLE
    else:
        verdict = Complexity.COMPLEX if too_long or several or conjunctions >= MAX_CONJUNCTIONS else Complexity.SIMPLE
    return verdict, min(1.0, max(0.0, score))


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


def _distinct(tables: Sequence[SignalTable], name: str, text: str) -> int:
    return len({word for table in tables for word in table.found_words(name, text)})


def _is_list(query: str) -> bool:
    items = [item.strip() for item in _ITEM_END.split(examined(query))]
    filled = [item for item in items if item]
    return len(filled) >= _MIN_ITEMS and all(len(item) <= _MAX_ITEM_CHARS for item in filled)

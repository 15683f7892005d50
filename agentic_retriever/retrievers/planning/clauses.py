"""Several questions in one: each clause that asks, with what was said before it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agentic_retriever.retrievers.planning.tables import folded, lowered
from agentic_retriever.text import Tokenizer, split_sentences

if TYPE_CHECKING:
    from agentic_retriever.retrievers.planning.tables import ClauseTable

_EDGES: Final = " ,;:.?？!¿¡"
_ASKS: Final = re.compile("[?？؟]")
_OPENS: Final = re.compile(r"\s*¿")
_BEGINNING: Final = re.compile(r"\W*(?:\w{1,4}\s){0,2}")
_MIN_TERMS: Final = 3
_SHORT_WITHOUT_SPACES: Final = 12


def asked(text: str, table: ClauseTable) -> list[str]:
    """Cut a text into the questions that it asks.

    Statements before the first question stay with each. A question of one or two words, which means nothing alone, has
    the first one before it.

    Args:
        text: The question.
        table: The table of its language.

    Returns:
        Two questions or more, or ``[]`` for a text that asks one.
    """
    said: list[str] = []
    questions: list[str] = []
    for sentence in _sentences(text):
        clauses = [bare for clause in _clauses(sentence, table) if any(map(str.isalnum, bare := clause.strip(_EDGES)))]
        worded = [_asks(clause, table) for clause in clauses]
        # "Is it free?" asks without any question word.
        marked = _ASKS.search(sentence) is not None and not any(worded)
        for clause, asks in zip(clauses, worded, strict=True):
            (questions if asks or marked or questions else said).append(clause)
    if len(questions) < 2:
        return []
    return [" ".join([*said, *_complete(question, questions[0], table)]) for question in questions]


def _sentences(text: str) -> list[str]:
    """Sentences, and what stands before an opening question mark within one."""
    found: list[str] = []
    for sentence in split_sentences(text):
        at = 0
        for match in _OPENS.finditer(sentence.text, 1):
            found.append(sentence.text[at : match.start()])
            at = match.start()
        found.append(sentence.text[at:])
    return found


def _clauses(sentence: str, table: ClauseTable) -> list[str]:
    """Cut a sentence where a joining word stands between two clauses, or another question begins."""
    joints = [match.span() for match in table.clause_joints.finditer(folded(sentence))]
    joints += [match.span() for match in table.clause_starts.finditer(lowered(sentence))]
    clauses: list[str] = []
    at = 0
    for start, end in sorted(joints):
        if start >= at:
            clauses.append(sentence[at:start])
            at = end
    return [*clauses, sentence[at:]]


def _asks(clause: str, table: ClauseTable) -> bool:
    """Tell whether a clause has a question word; one that may be relative, as in ``a city where``, must begin it."""
    found = table.asks.finditer(lowered(clause))
    return any(not table.relatives.fullmatch(m[0]) or _BEGINNING.fullmatch(clause[: m.start()]) for m in found)


def _complete(question: str, first: str, table: ClauseTable) -> list[str]:
    if question == first or not _is_short(question, table):
        return [question]
    return [first, question]


def _is_short(question: str, table: ClauseTable) -> bool:
    if not table.spaced:
        return len(question) < _SHORT_WITHOUT_SPACES
    return len(Tokenizer(table.language).query_tokens(question)) < _MIN_TERMS

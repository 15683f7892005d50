"""People in a question: a family name stands for the stored names that have it, a given name narrows them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from agentic_retriever.retrievers.question_filters.lexicon import common_words, grammar_words, phrases, titles
from agentic_retriever.retrievers.question_filters.matcher import ValueRef
from agentic_retriever.retrievers.question_filters.names import compatible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.retrievers.question_filters.matcher import Match
    from agentic_retriever.retrievers.question_filters.question import Question

CUED: Final = 0.75
ALONE: Final = 0.5
GIVEN_BONUS: Final = 0.1
"""What is added where a given name or an initial stands beside the family name."""

_MAX_GIVEN: Final = 3
_MIN_ALONE: Final = 4
_WORD_BEFORE: Final = re.compile(r"(?:^|[\s,;:(\"'.-])(?P<word>[^\W\d_]{1,24})(?P<stop>\.?)[ -]?\Z")
_INITIALS_BEHIND: Final = re.compile(r",? ?(?P<initials>(?:[^\W\d_]\.[ -]?){1,3})")
_BETWEEN_NAMES: Final = re.compile(r"[ ,]*(?:and|or|y|e|o|u|ni|nor|&|และ|หรือ)?[ ]*")
_SENTENCE_START: Final = re.compile(r"(?:^|[.?!:;\n(])[ \"'¿¡]*\Z")
_MAX_NAME_CHARS: Final = 80


@dataclass(frozen=True, slots=True)
class Person:
    """A person that a question names: where, who it can be, and how sure that is."""

    start: int
    end: int
    refs: tuple[ValueRef, ...]
    certainty: float
    cued: bool


def recognise_person(question: Question, match: Match, refs: Sequence[ValueRef], last_cued: int) -> Person | None:
    """Decide whether a family name in a question is meant as one.

    Behind a word such as ``by``, or in a list that began behind one, it counts. Elsewhere it must be written with a
    capital inside a sentence and be no common word.

    Args:
        question: The question.
        match: Where the family name stands.
        refs: The fields that have it.
        last_cued: Where the last name ended that stood behind such a word; -1 for none.
    """
    start, end, given = _given(question, match)
    kept = tuple(ref for ref in (_narrowed(question, match, ref, given) for ref in refs) if ref is not None)
    if not kept:
        return None
    before = question.text[max(0, start - _MAX_NAME_CHARS) : start]
    listed = 0 <= last_cued <= start and _BETWEEN_NAMES.fullmatch(question.text, last_cued, start) is not None
    named = any(ref.field in question.named_before(start)[0] for ref in refs)
    cued = listed or named or _by_words().search(before) is not None
    if not _counts(question, match, cued=cued, given=bool(given)):
        return None
    certainty = (CUED if cued else ALONE) + (GIVEN_BONUS if given else 0.0)
    return Person(start, end, kept, certainty, cued)


def _counts(question: Question, match: Match, *, cued: bool, given: bool) -> bool:
    text = question.text[match.start : match.end]
    capital = question.shown(match.start, match.end)[:1].isupper()
    if text in grammar_words():
        return capital and given and cued
    if cued:
        return capital or text not in common_words()
    ordinary = len(text) < _MIN_ALONE or text in common_words() or question.query.isupper()
    first = _SENTENCE_START.search(question.text, max(0, match.start - 8), match.start) is not None
    return capital and not ordinary and (given or not first)


def _given(question: Question, match: Match) -> tuple[int, int, tuple[str, ...]]:
    """Find the given names around a family name: where the whole name begins and ends, and what they are."""
    behind = _INITIALS_BEHIND.match(question.text, match.end)
    if behind is not None:
        return match.start, behind.end("initials"), tuple(re.findall(r"[^\W\d_]", behind["initials"]))
    start, words = match.start, list[str]()
    lower = not any(char.isupper() for char in question.query)
    while len(words) < _MAX_GIVEN:
        found = _WORD_BEFORE.search(question.text, max(0, start - 28), start)
        if found is None:
            break
        capital = question.shown(found.start("word"), found.end("word"))[:1].isupper()
        initial = len(found["word"]) == 1
        if not (initial and found["stop"]) and (found["word"] in grammar_words() or found["word"] in titles()):
            break
        if not (capital or lower) or (found["stop"] and not initial) or (lower and not initial and words):
            break
        words.insert(0, found["word"])
        start = found.start("word")
    return start, match.end, tuple(words)


def _narrowed(question: Question, match: Match, ref: ValueRef, given: tuple[str, ...]) -> ValueRef | None:
    names = question.dictionary.matcher.families[ref.field].get(question.text[match.start : match.end], [])
    kept = tuple(stored for name, stored in names if compatible(given, name.given))
    return ValueRef(ref.field, kept, "family") if kept else None


@lru_cache(1)
def _by_words() -> re.Pattern[str]:
    """Words right before a name that say it is a person's: by, de, โดย."""
    words = {phrase for phrase, readings in phrases().items() if any(r.symbol == "J" for r in readings)}
    listed = "|".join(re.escape(word) for word in sorted({*words, "de", "del", "either"}, key=len, reverse=True))
    forms = "|".join(re.escape(word) for word in sorted(titles(), key=len, reverse=True))
    return re.compile(rf"(?:^|[\s,(]|[\u0e00-\u0e7f])(?:{listed}) *(?:(?:{forms}) *)?\Z")

"""Which of the values that stand in a question are meant, and how sure that is.

A value is surest where its field is named beside it. Numbers alone, single letters, roman numerals, stop words and the
free subject words of a topical field count only there (or, for the last, in quotation marks): ``text`` or ``1960`` in a
question is rarely a value. The longest match wins, so ``น.ส.3ก`` is never taken for ``น.ส.3``. A value of several
fields counts for the field that is named, else for any of them, with less certainty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agentic_retriever.retrievers.question_filters.folding import UNSPACED
from agentic_retriever.retrievers.question_filters.lexicon import common_words, grammar_words
from agentic_retriever.retrievers.question_filters.people import recognise_person

if TYPE_CHECKING:
    from agentic_retriever.retrievers.question_filters.matcher import Match, ValueRef
    from agentic_retriever.retrievers.question_filters.question import Question

NAMED: Final = 0.95
QUOTED: Final = 0.9
PLAIN: Final = {"exact": 0.8, "alias": 0.8, "stem": 0.7, "flag": 0.6}
DISTINCT_BONUS: Final = 0.1
UNSURE: Final = 0.5
COMMON: Final = 0.35
SEVERAL_FIELDS: Final = 0.7
OTHER_FIELD: Final = 0.8
"""Factor where another field is named beside a value than the one that has it."""

_MAX_FIELDS: Final = 4
_SHORT_CAPITALS: Final = 5
_ROMAN: Final = re.compile(r"[ivxlc]{1,6}")


@dataclass(frozen=True, slots=True)
class ValueHit:
    """A value that a question names.

    Attributes:
        start: Where it begins in the folded question.
        end: Where it ends.
        refs: What it is, in each field that it may belong to.
        certainty: In (0, 1].
        cued: Whether it is a person's name behind a word such as ``by``.
        span: Where it begins and ends with the name of its field, where that stands beside it.
    """

    start: int
    end: int
    refs: tuple[ValueRef, ...]
    certainty: float
    cued: bool = False
    span: tuple[int, int] = (0, 0)


def recognise(question: Question) -> list[ValueHit]:
    """Find the values that a question names, in reading order, without overlap."""
    hits = [hit for match in question.matches if match.values for hit in (_judge(question, match),) if hit]
    chosen = _longest([*hits, *_people(question)])
    for language in question.stems:
        taken = [(hit.start, hit.end) for hit in chosen]
        inflected = question.dictionary.matcher.inflected(question.folded, language, taken)
        chosen = _longest([*chosen, *(hit for match in inflected for hit in (_judge(question, match),) if hit)])
    return chosen


def _longest(hits: list[ValueHit]) -> list[ValueHit]:
    kept: list[ValueHit] = []
    covered: set[int] = set()
    for hit in sorted(hits, key=lambda h: (h.start - h.end, h.start, -h.certainty)):
        if covered.isdisjoint(range(hit.start, hit.end)):
            covered.update(range(hit.start, hit.end))
            kept.append(hit)
    return sorted(kept, key=lambda hit: hit.start)


def _people(question: Question) -> list[ValueHit]:
    found: list[ValueHit] = []
    last_cued = -1
    for match in sorted(question.matches, key=lambda m: (m.start, -m.end)):
        refs = [ref for ref in match.values if ref.how == "family"]
        person = recognise_person(question, match, refs, last_cued) if refs else None
        if person is not None:
            last_cued = match.end if person.cued else last_cued
            span = person.start, person.end
            found.append(ValueHit(*span, person.refs, person.certainty, person.cued, span))
    return found


def _judge(question: Question, match: Match) -> ValueHit | None:
    refs = [ref for ref in match.values if ref.how != "family"]
    if not refs:
        return None
    named, span = _named(question, match)
    meant = tuple(ref for ref in refs if ref.field in named)
    if meant:
        return ValueHit(match.start, match.end, meant, NAMED if len(meant) == 1 else NAMED * SEVERAL_FIELDS, span=span)
    judged = [(ref, _unnamed(question, match, ref)) for ref in refs]
    usable = [(ref, certainty) for ref, certainty in judged if certainty is not None]
    if not usable or len(usable) > _MAX_FIELDS:
        return None
    certainty = min(certainty for _, certainty in usable)
    certainty *= (SEVERAL_FIELDS if len(usable) > 1 else 1.0) * (OTHER_FIELD if named else 1.0)
    own = match.start, match.end
    return ValueHit(*own, tuple(ref for ref, _ in usable), certainty, span=own)


def _named(question: Question, match: Match) -> tuple[frozenset[str], tuple[int, int]]:
    """Fields named before a match or, where words stand between spaces, behind it; with the whole stretch."""
    own = match.start, match.end
    text = question.text[match.start : match.end]
    grammar = text in grammar_words()
    if grammar and not _as_stored(question, match):
        return frozenset(), own
    before, start = question.named_before(match.start, tight=grammar or sum(map(str.isalpha, text)) < 2)
    if before or grammar or UNSPACED.search(text):
        return before, (start, match.end)
    after, end = question.named_after(match.end)
    return after, (match.start, end)


def _as_stored(question: Question, match: Match) -> bool:
    shown = question.shown(match.start, match.end)
    return any(shown in ref.originals for ref in match.values)


def _unnamed(question: Question, match: Match, ref: ValueRef) -> float | None:
    """How sure a value is whose field is not named; ``None`` where it does not count."""
    text = question.text[match.start : match.end]
    around = question.text[match.start - 1 : match.start] + question.text[match.end : match.end + 1]
    info = question.dictionary.fields[ref.field]
    if around == '""':
        return UNSURE if info.topical else QUOTED
    if info.topical or text in grammar_words() or _says_nothing(text):
        return None
    if text in common_words():
        return COMMON
    if _is_short(text) or _other_capitals(question.shown(match.start, match.end), ref):
        return UNSURE if _as_stored(question, match) else None
    distinct = " " in text or any(char.isdigit() for char in text)
    return PLAIN[ref.how] + (DISTINCT_BONUS if distinct else 0.0)


def _says_nothing(text: str) -> bool:
    return sum(map(str.isalpha, text)) < 2 or _ROMAN.fullmatch(text) is not None


def _is_short(text: str) -> bool:
    """Tell whether a value is so short that it often stands inside or for something else."""
    unspaced = UNSPACED.match(text)
    if unspaced is None:
        return len(text) <= 2
    return len(text) <= (3 if "\u0e00" <= text[0] < "\u1100" else 1)


def _other_capitals(shown: str, ref: ValueRef) -> bool:
    """Tell whether an abbreviation in capitals stands in the question as a word in small letters: ``IT`` and ``it``."""
    short = all(original.isupper() and len(original) <= _SHORT_CAPITALS for original in ref.originals)
    return short and shown not in ref.originals and not UNSPACED.match(shown)

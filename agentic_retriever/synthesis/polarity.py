"""Whether two sentences say the opposite: one is negated where the other is not, or one has the other's antonym.

The rules read the section ``polarity`` of each language: all of it for English, Spanish and Thai, the plain negations
for a few more. A sentence is turned round by a negation or by an antonym; by both at once it says the same again ("not
below 10" and "at least 10").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import Final

from agentic_retriever.text.language_files import any_listed, listed

_SCOPE_WORDS: Final = 4
_SCOPE_CHARS: Final = 12
_IN_SCOPE: Final = 0.6
_BEFORE_CHARS: Final = 30
_AROUND_CHARS: Final = 50
_SHORT_CLAUSE: Final = 4
_MAX_CUES: Final = 12

_NEGATION: Final = any_listed("polarity", "negations")
# What excuses the lack of a negation, without asking for one.
_EXCUSE: Final = any_listed("polarity", "excuses")
# Negations that set a bound, and what says the same without one.
_BOUND: Final = any_listed("polarity", "bounds")
_LIMIT: Final = any_listed("polarity", "limits")
# What follows these is said of the rest.
_EXCEPTION: Final = any_listed("polarity", "exceptions")
_ANTONYMS: Final = [
    (re.compile(one, re.IGNORECASE), re.compile(other, re.IGNORECASE)) for one, other in listed("polarity", "antonyms")
]

WordsOf = Callable[[str], frozenset[str]]


def opposed(sentence: str, source: str, words_of: WordsOf) -> bool:
    """Tell whether a sentence says the opposite of a source that speaks of the same."""
    if _antonym(sentence, source):
        return (_NEGATION.search(sentence) is None) is (_NEGATION.search(source) is None)
    return _lacks(sentence, source, words_of) or _lacks(source, sentence, words_of)


def negated_before(text: str, start: int) -> bool:
    """Tell whether a negation stands shortly before a place, in the same clause."""
    before = re.split(r"[.!?,;:\n|]", text[max(0, start - _BEFORE_CHARS) : start])[-1]
    return _NEGATION.search(before) is not None


def _antonym(sentence: str, source: str) -> bool:
    for one, other in _ANTONYMS:
        for here, there in ((one, other), (other, one)):
            if here.search(sentence) and there.search(source) and not (there.search(sentence) or here.search(source)):
                return True
    return False


def _lacks(negated: str, other: str, words_of: WordsOf) -> bool:
    """Tell whether a text is negated where another one says the same without a negation.

    Each negation needs one in the other text: one with words of its scope, or else one that is left over nearby.
    """
    if _EXCEPTION.search(negated):
        return False
    said = words_of(other)
    # What both have excuses nothing.
    bounded = _new(_LIMIT, other, negated)
    partners = [(cue, _scope(other, cue, words_of)) for cue in islice(_NEGATION.finditer(other), _MAX_CUES)]
    alone: list[frozenset[str]] = []
    for cue in islice(_NEGATION.finditer(negated), _MAX_CUES):
        scope = _scope(negated, cue, words_of)
        partner = next((pair for pair in partners if scope & pair[1]), None)
        if partner is not None:
            partners.remove(partner)
        elif not (bounded and _BOUND.search(negated, max(0, cue.start() - 12), cue.end() + 24)):
            alone.append(_demanded(negated, cue, scope, said, words_of))
    excuses = [cue.span() for cue, _ in partners] + _new(_EXCUSE, other, negated)
    around = [words_of(other[max(0, start - _AROUND_CHARS) : end + _AROUND_CHARS]) for start, end in excuses]
    return any(scope and not any(2 * len(scope & words) >= len(scope & said) for words in around) for scope in alone)


def _demanded(
    text: str, cue: re.Match[str], scope: frozenset[str], said: frozenset[str], words_of: WordsOf
) -> frozenset[str]:
    """The terms that a negation is about if another text speaks of them, or else nothing."""
    if scope and len(scope & said) >= _IN_SCOPE * len(scope):
        return scope
    clause = words_of(re.split(r"[,;:.()]", text[: cue.start()])[-1]) | scope
    short = 2 <= len(clause) <= _SHORT_CLAUSE and len(clause & said) >= _IN_SCOPE * len(clause)
    return clause if short else frozenset()


def _new(pattern: re.Pattern[str], text: str, other: str) -> list[tuple[int, int]]:
    """Where a pattern matches in a text with words that it does not match in another one."""
    old = {found[0].casefold() for found in pattern.finditer(other)}
    spans = (found.span() for found in pattern.finditer(text) if found[0].casefold() not in old)
    return list(islice(spans, _MAX_CUES))


def _scope(text: str, cue: re.Match[str], words_of: WordsOf) -> frozenset[str]:
    """The terms behind a negation, up to a comma, or those before it at the end of a clause."""
    if cue[0][0] >= "\u0e00":
        return words_of(text[cue.end() : cue.end() + _SCOPE_CHARS])
    behind = re.split(r"[,;:.()]", text[cue.end() : cue.end() + 120], maxsplit=1)[0].split()
    scope: frozenset[str] = frozenset()
    for word in behind[: 2 * _SCOPE_WORDS]:
        scope |= words_of(word)
        if len(scope) >= _SCOPE_WORDS:
            break
    return scope or words_of(text[max(0, cue.start() - 40) : cue.start()])

"""Whether passages support a sentence, decided by rules without a model.

A sentence is supported when it is verbatim in a passage, or when its words are near enough to a few segments of the
cited passages and nothing of what can be compared exactly speaks against it: its numbers, dates and names are there, it
is not negated where the source is not, and no part of it is missing from the source altogether.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from rapidfuzz import fuzz

from agentic_retriever.schema import SentenceCheck
from agentic_retriever.synthesis.citations import PassageMatcher
from agentic_retriever.synthesis.facts import Facts, Grounds, gather, words_only
from agentic_retriever.synthesis.polarity import opposed
from agentic_retriever.text import Script, Tokenizer, dominant_script
from agentic_retriever.text.names import find_names, foreign_thai_names
from agentic_retriever.text.numbers import BUDDHIST, Date, Number, agrees, has_percent
from agentic_retriever.text.scripts import character_class

SUPPORTED_FROM: Final = 0.56
"""Least likeness of a sentence to its grounds, in [0, 1]; fixed on the first half of the cases in docs/answers.md."""

FLAWED_CAP: Final = 0.3
"""Highest score of a sentence that is not supported."""

TOO_FAR: Final = "too far from the text"
_OTHER_SCRIPT: Final = "in another script than the source: only numbers and names can be compared"
_MAX_PROBLEMS: Final = 5
# Most words in a row with terms of their own that a source may lack; in characters for scripts without spaces.
_MAX_STRAY_WORDS: Final = 3
_MAX_STRAY_CHARS: Final = {"thai": 14, "han": 7}
_GRAM: Final = {"thai": 4, "han": 2}

_UNIT: Final = re.compile(r"[\s-]*([^\W\d_]{1,20})")
_ENUMERATION: Final = re.compile(r"^\s*(?:[-*•]\s*)?\(?\d{1,2}[.)]\s+")
_WORD: Final = re.compile(r"\S+")
_RUN: Final = re.compile(
    f"(?P<thai>[{character_class(Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR)}]+)"
    f"|(?P<han>[{character_class(Script.HAN, Script.KANA)}]+)"
)


def unsupported_sentence(sentence: str, problem: str) -> SentenceCheck:
    """The check of a sentence that nothing supports."""
    return SentenceCheck(start=0, end=len(sentence), text=sentence, supported=False, score=0.0, problems=(problem,))


def judge(sentence: str, matchers: Sequence[PassageMatcher], tokenizer: Tokenizer) -> SentenceCheck:
    """Decide whether passages support a sentence, one of them or several together; its place is left open."""
    whole = SentenceCheck(start=0, end=len(sentence), text=sentence, supported=True, score=1.0)
    if any(matcher.is_verbatim(sentence) for matcher in matchers):
        return whole
    said = Facts(sentence, tokenizer)
    grounds = gather(said, [matcher.facts for matcher in matchers], [matcher.header for matcher in matchers])
    if grounds is None:
        return unsupported_sentence(sentence, "no passage is cited")
    likeness = _likeness(said, grounds)
    problems = _problems_of(said, grounds)
    if not _comparable(sentence, grounds):
        problems.append(_OTHER_SCRIPT)
    elif likeness < SUPPORTED_FROM:
        problems.append(TOO_FAR)
    elif not problems:
        stray = _longest_unmatched(said, grounds)
        problems += [f"“{stray}” is not in the source"] if stray else []
    score = min(FLAWED_CAP if problems else 0.99, likeness)
    return replace(whole, supported=not problems, score=score, problems=tuple(problems))


def _likeness(said: Facts, grounds: Grounds) -> float:
    """Mean of the share of terms that the grounds have and the best fuzzy match of a segment of them."""
    covered = frozenset().union(*(segment.terms for segment in (*grounds.core, *grounds.headers)))
    share = len(said.terms & covered) / len(said.terms) if said.terms else 1.0
    needle = said.text.lower()
    texts = [segment.text.lower() for segment in grounds.core]
    ratio = max(max(fuzz.partial_ratio(needle, text), fuzz.token_set_ratio(needle, text)) for text in texts) / 100
    return (share + ratio) / 2


def _comparable(sentence: str, grounds: Grounds) -> bool:
    scripts = {dominant_script(segment.text) for segment in grounds.core}
    return dominant_script(sentence) in scripts or not any(char.isalpha() for char in sentence)


# --- what speaks against a sentence: a number, date or name that its source lacks, or the opposite ----------------


def _problems_of(said: Facts, grounds: Grounds) -> list[str]:
    """Name what speaks against a sentence."""
    found = [f"date {date.text} is not in the source" for date in _foreign_dates(said, grounds)]
    found += [f"number {number.text} is not in the source" for number in _foreign_numbers(said, grounds)]
    found += [f"name {name} is not in the source" for name in _foreign_names(said, grounds)]
    if opposed(said.text, grounds.core[0].text, lambda text: words_only(said.tokenizer.tokens(text))):
        found.append("says the opposite")
    return list(dict.fromkeys(found))[:_MAX_PROBLEMS]


def _foreign_dates(said: Facts, grounds: Grounds) -> Iterator[Date]:
    if not said.dates:
        return
    close = (*grounds.core, *grounds.headers)
    years = frozenset().union(*(part.values for part in (*close, *grounds.whole)))
    for date in said.dates:
        if any(agrees(date, other, years) for part in close for other in part.dates):
            continue
        # With a date of its own in the nearest segment, that one was meant.
        rivals = [o for o in grounds.core[0].dates if o.complete and not any(agrees(d, o, years) for d in said.dates)]
        if not rivals and any(agrees(date, other, years) for part in grounds.near for other in part.dates):
            continue
        yield date


def _foreign_numbers(said: Facts, grounds: Grounds) -> Iterator[Number]:
    skip = _ENUMERATION.match(said.text)
    begin = skip.end() if skip else 0
    in_dates = [(date.start, date.end) for date in said.dates if date.complete]
    for number in said.numbers:
        dated = any(start <= number.start < end for start, end in in_dates)
        if number.start < begin or dated or (number.word and number.value in ("0", "1")):
            continue
        if not _has_number(number, said, grounds):
            yield number


def _has_number(number: Number, said: Facts, grounds: Grounds) -> bool:
    if any(_in_part(number, part) for part in grounds.core):
        return True
    if _is_year(number):
        rivals = [n for n in grounds.core[0].numbers if _is_year(n) and n.value not in said.values]
        return not rivals and any(_in_part(number, part) for part in (*grounds.whole, *grounds.headers))
    if any(_rival(number, other, said, grounds.core[0]) for other in grounds.core[0].numbers):
        return False
    if any(number.value in part.loose for part in grounds.core):
        return True
    return any(_in_part(number, part) for part in (*grounds.near, *grounds.headers))


def _in_part(number: Number, part: Facts) -> bool:
    wanted = {number.value, number.scaled}
    if _is_year(number):
        wanted |= {str(int(number.value) + BUDDHIST), str(int(number.value) - BUDDHIST)}
    for other in part.numbers:
        if number.power and other.power:
            same = number.scaled == other.scaled
        else:
            same = other.value in wanted or other.scaled in wanted
        if same and _same_kind(number, other, part):
            return True
    return False


def _same_kind(number: Number, other: Number, part: Facts) -> bool:
    """A percentage is no count, unless the sign stands elsewhere, as in the head of a table."""
    if number.percent == other.percent:
        return True
    return number.percent and (has_percent(part.text) or part.text.startswith("|"))


def _rival(number: Number, other: Number, said: Facts, source: Facts) -> bool:
    """Tell whether another number stands in the source where this one stands in the sentence."""
    if {other.value, other.scaled} & said.values or number.percent != other.percent:
        return False
    return _unit(number, said) == _unit(other, source) or number.percent


def _unit(number: Number, facts: Facts) -> str:
    found = _UNIT.match(facts.text, number.end)
    word = found[1].casefold() if found else ""
    terms = facts.tokenizer.tokens(word)
    return (terms[0] if terms else word)[:6]


def _is_year(number: Number) -> bool:
    return (
        not number.percent and len(number.value) == 4 and number.value.isdecimal() and "1800" <= number.value <= "2700"
    )


def _foreign_names(said: Facts, grounds: Grounds) -> Iterator[str]:
    close = (*grounds.core, *grounds.headers)
    near = frozenset().union(*(part.keys for part in close))
    terms = frozenset().union(*(part.terms for part in close))
    dated = [(date.start, date.end) for date in said.dates]
    for name in find_names(said.text, said.tokenizer.language):
        if name.opening or any(start <= name.start < end for start, end in dated) or name.key in near:
            continue
        stems = said.tokenizer.tokens(name.text)
        if not name.code and stems and terms.issuperset(stems):
            continue
        rivals = [key for code, key in grounds.core[0].name_keys - said.name_keys if code is name.code]
        if rivals or not any(name.key in part.keys for part in grounds.whole):
            yield name.text
    yield from _swapped_opening(said, grounds)
    joined = [part.text for part in grounds.whole] + [part.text for part in grounds.headers]
    yield from foreign_thai_names(said.text, "\n".join(part.text for part in close), "\n".join(joined))


def _swapped_opening(said: Facts, grounds: Grounds) -> Iterator[str]:
    """The first word of a sentence that is otherwise the source's, where the source has a name."""
    for name in find_names(said.text, said.tokenizer.language)[:1]:
        source = grounds.core[0]
        if not name.opening or name.key in source.keys:
            continue
        rest = said.text[name.end :]
        rivals = find_names(source.text, said.tokenizer.language)[:1]
        if not rivals or not rivals[0].opening or fuzz.partial_ratio(rest, source.text) < 95:
            continue
        names = frozenset().union(*(part.name_keys for part in grounds.whole))
        if (False, rivals[0].key) in names:
            yield name.text


# --- what of a sentence stands nowhere: the mark of something added to a true one ---------------------------------


def _longest_unmatched(said: Facts, grounds: Grounds) -> str:
    """Find the longest stretch of a sentence that its passages do not have, if it is too long to be mere wording."""
    if _RUN.search(said.text):
        return _unspaced(said.text, "\n".join(part.text for part in (*grounds.whole, *grounds.headers)))
    known: frozenset[str] = frozenset()
    for part in (*grounds.core, *grounds.near, *grounds.headers):
        known |= part.terms
    return _spaced(said, known)


def _spaced(said: Facts, known: frozenset[str]) -> str:
    best: list[re.Match[str]] = []
    run: list[re.Match[str]] = []
    for word in _WORD.finditer(said.text):
        terms = said.tokenizer.tokens(word[0])
        if not terms:
            continue
        if known.isdisjoint(terms) and not any(char.isdecimal() for char in word[0]):
            run.append(word)
            best = max(best, run, key=len)
        else:
            run = []
        run = list(run)
    return said.text[best[0].start() : best[-1].end()].rstrip(".,;:!?") if len(best) > _MAX_STRAY_WORDS else ""


def _unspaced(sentence: str, source: str) -> str:
    best = ""
    for run in _RUN.finditer(sentence):
        kind = run.lastgroup or "thai"
        stray = _stray(run[0], source, _GRAM[kind])
        if len(stray) > _MAX_STRAY_CHARS[kind] and len(stray) > len(best):
            best = stray
    return best


def _stray(run: str, source: str, gram: int) -> str:
    """The longest stretch of a run of letters of which no n-gram is in the source."""
    known = [False] * len(run)
    for at in range(max(1, len(run) - gram + 1)):
        if run[at : at + gram] in source:
            known[at : at + gram] = [True] * len(known[at : at + gram])
    best = start = 0
    end = 0
    for at, hit in enumerate([*known, True]):
        if hit:
            if at - start > end - best:
                best, end = start, at
            start = at + 1
    return run[best:end]

"""The citations of a text: looked up, completed and corrected, with a verdict on every sentence."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from rapidfuzz import fuzz

from agentic_retriever.schema import SentenceCheck
from agentic_retriever.synthesis.citations import Mark, PassageMatcher, Support, cite, gather, opposed, read_markers
from agentic_retriever.synthesis.segments import Facts, words_only
from agentic_retriever.text import Script, Tokenizer, dominant_script, split_sentences
from agentic_retriever.text.names import find_names, foreign_thai_names
from agentic_retriever.text.numbers import agrees
from agentic_retriever.text.scripts import character_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from agentic_retriever.schema import Citation
    from agentic_retriever.synthesis.citations import Evidence
    from agentic_retriever.synthesis.context import ContextPassage
    from agentic_retriever.text import Sentence
    from agentic_retriever.text.numbers import Date, Number


# What speaks against a sentence: a number, date or name that its source lacks, or the source says the opposite.

_MAX_PROBLEMS: Final = 5
_UNIT: Final = re.compile(r"[\s-]*([^\W\d_]{1,20})")
_ENUMERATION: Final = re.compile(r"^\s*(?:[-*•]\s*)?\(?\d{1,2}[.)]\s+")
_MARK: Final = re.compile("[%％٪]|percent|por ciento|ร้อยละ|เปอร์เซ็นต์", re.IGNORECASE)


def problems_of(said: Facts, evidence: Evidence) -> list[str]:
    """Name what speaks against a sentence."""
    found = [f"date {date.text} is not in the source" for date in _foreign_dates(said, evidence)]
    found += [f"number {number.text} is not in the source" for number in _foreign_numbers(said, evidence)]
    found += [f"name {name} is not in the source" for name in _foreign_names(said, evidence)]
    if opposed(said.text, evidence.core[0].text, lambda text: words_only(said.tokenizer.tokens(text))):
        found.append("says the opposite")
    return list(dict.fromkeys(found))[:_MAX_PROBLEMS]


def _foreign_dates(said: Facts, evidence: Evidence) -> Iterator[Date]:
    if not said.dates:
        return
    close = (*evidence.core, *evidence.headers)
    years = frozenset().union(*(part.values for part in (*close, *evidence.whole)))
    for date in said.dates:
        if any(agrees(date, other, years) for part in close for other in part.dates):
            continue
        # With a date of its own in the nearest segment, that one was meant.
        rivals = [o for o in evidence.core[0].dates if o.complete and not any(agrees(d, o, years) for d in said.dates)]
        if not rivals and any(agrees(date, other, years) for part in evidence.near for other in part.dates):
            continue
        yield date


def _foreign_numbers(said: Facts, evidence: Evidence) -> Iterator[Number]:
    skip = _ENUMERATION.match(said.text)
    begin = skip.end() if skip else 0
    in_dates = [(date.start, date.end) for date in said.dates if date.complete]
    for number in said.numbers:
        dated = any(start <= number.start < end for start, end in in_dates)
        if number.start < begin or dated or (number.word and number.value in ("0", "1")):
            continue
        if not _has_number(number, said, evidence):
            yield number


def _has_number(number: Number, said: Facts, evidence: Evidence) -> bool:
    if any(_in_part(number, part) for part in evidence.core):
        return True
    if _is_year(number):
        rivals = [n for n in evidence.core[0].numbers if _is_year(n) and n.value not in said.values]
        return not rivals and any(_in_part(number, part) for part in (*evidence.whole, *evidence.headers))
    if any(_rival(number, other, said, evidence.core[0]) for other in evidence.core[0].numbers):
        return False
    if any(number.value in part.loose for part in evidence.core):
        return True
    return any(_in_part(number, part) for part in (*evidence.near, *evidence.headers))


def _in_part(number: Number, part: Facts) -> bool:
    wanted = {number.value, number.scaled}
    if _is_year(number):
        wanted |= {str(int(number.value) + 543), str(int(number.value) - 543)}
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
    return number.percent and (_MARK.search(part.text) is not None or part.text.startswith("|"))


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


def _foreign_names(said: Facts, evidence: Evidence) -> Iterator[str]:
    close = (*evidence.core, *evidence.headers)
    near = frozenset().union(*(part.keys for part in close))
    terms = frozenset().union(*(part.terms for part in close))
    own = said.name_keys
    dated = [(date.start, date.end) for date in said.dates]
    for name in find_names(said.text, said.tokenizer.language):
        if name.opening or any(start <= name.start < end for start, end in dated) or name.key in near:
            continue
        stems = said.tokenizer.tokens(name.text)
        if not name.code and stems and terms.issuperset(stems):
            continue
        rivals = [key for key in evidence.core[0].name_keys - own if key.startswith(str(name.code))]
        if rivals or not any(name.key in part.keys for part in evidence.whole):
            yield name.text
    yield from _swapped_opening(said, evidence)
    joined = [part.text for part in evidence.whole] + [part.text for part in evidence.headers]
    yield from foreign_thai_names(said.text, "\n".join(part.text for part in close), "\n".join(joined))


def _swapped_opening(said: Facts, evidence: Evidence) -> Iterator[str]:
    """The first word of a sentence that is otherwise the source's, where the source has a name."""
    for name in find_names(said.text, said.tokenizer.language)[:1]:
        source = evidence.core[0]
        if not name.opening or name.key in source.keys:
            continue
        rest = said.text[name.end :]
        rivals = find_names(source.text, said.tokenizer.language)[:1]
        if not rivals or not rivals[0].opening or fuzz.partial_ratio(rest, source.text) < 95:
            continue
        names = frozenset().union(*(part.name_keys for part in evidence.whole))
        if f"False{rivals[0].key}" in names:
            yield name.text


# What of a sentence stands nowhere in its evidence: the mark of something added to a true sentence.

MAX_STRAY_WORDS: Final = 3
"""Most words in a row with terms of their own that a source may lack."""

MAX_STRAY_CHARS: Final = {"thai": 14, "han": 7}
"""The same in characters, for scripts without spaces: of the Thai kind, and Chinese, Japanese and Korean ones."""

_WORD: Final = re.compile(r"\S+")
_THAI_KIND: Final = character_class(Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR)
_HAN_KIND: Final = character_class(Script.HAN, Script.KANA)
_RUN: Final = re.compile(f"(?P<thai>[{_THAI_KIND}]+)|(?P<han>[{_HAN_KIND}]+)")
_GRAM: Final = {"thai": 4, "han": 2}


def shared_share(said: Facts, segments: Iterable[Facts]) -> float:
    """Tell which share of a sentence's terms some segments have; 1 for a sentence without terms."""
    covered = frozenset().union(*(segment.terms for segment in segments))
    return len(said.terms & covered) / len(said.terms) if said.terms else 1.0


def longest_unmatched(said: Facts, evidence: Evidence) -> str:
    """Find the longest stretch of a sentence that its passages do not have, if it is too long to be mere wording."""
    if _RUN.search(said.text):
        return _unspaced(said.text, "\n".join(part.text for part in (*evidence.whole, *evidence.headers)))
    known: frozenset[str] = frozenset()
    for part in (*evidence.core, *evidence.near, *evidence.headers):
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
    return said.text[best[0].start() : best[-1].end()].rstrip(".,;:!?") if len(best) > MAX_STRAY_WORDS else ""


def _unspaced(sentence: str, source: str) -> str:
    best = ""
    for run in _RUN.finditer(sentence):
        kind = run.lastgroup or "thai"
        stray = _stray(run[0], source, _GRAM[kind])
        if len(stray) > MAX_STRAY_CHARS[kind] and len(stray) > len(best):
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


# Whether passages support a sentence, decided by rules without a model.
#
# A sentence is supported when it is verbatim in a passage, or when its words are near enough to a few segments of the
# cited passages and nothing of what can be compared exactly speaks against it: its numbers, dates and names are there,
# it
# is not negated where the source is not, and no part of it is missing from the source altogether.

SUPPORTED_FROM: Final = 0.56
"""Least likeness of a sentence to its evidence, in [0, 1]; fixed on the first half of the cases in docs/answers.md."""

FLAWED_CAP: Final = 0.3
"""Highest score of a sentence that is not supported."""

TOO_FAR: Final = "too far from the text"
OTHER_SCRIPT: Final = "in another script than the source: only numbers and names can be compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a sentence is supported, and why not."""

    supported: bool
    score: float  # How well, in [0, 1]: 1 for a verbatim sentence, at most 0.3 for one that is not supported
    problems: tuple[str, ...] = ()


def judge(sentence: str, matchers: Sequence[PassageMatcher], tokenizer: Tokenizer) -> Verdict:
    """Decide whether passages support a sentence, one of them or several together."""
    if any(matcher.is_verbatim(sentence) for matcher in matchers):
        return Verdict(supported=True, score=1.0)
    said = Facts(sentence, tokenizer)
    headers = [matcher.header for matcher in matchers]
    evidence = gather(said, [matcher.facts for matcher in matchers], headers)
    if evidence is None:
        return Verdict(supported=False, score=0.0, problems=("no passage is cited",))
    likeness = _likeness(said, evidence)
    problems = problems_of(said, evidence)
    if not _comparable(sentence, evidence):
        problems.append(OTHER_SCRIPT)
    elif likeness < SUPPORTED_FROM:
        problems.append(TOO_FAR)
    else:
        stray = longest_unmatched(said, evidence)
        problems += [f"“{stray}” is not in the source"] if stray and not problems else []
    score = min(0.99, likeness) if not problems else min(FLAWED_CAP, likeness)
    return Verdict(supported=not problems, score=score, problems=tuple(problems))


def _likeness(said: Facts, evidence: Evidence) -> float:
    """Mean of the share of terms that the evidence has and the best fuzzy match of a segment of it."""
    share = shared_share(said, (*evidence.core, *evidence.headers))
    needle = said.text.lower()
    texts = [segment.text.lower() for segment in evidence.core]
    ratio = max(max(fuzz.partial_ratio(needle, text), fuzz.token_set_ratio(needle, text)) for text in texts) / 100
    return (share + ratio) / 2


def _comparable(sentence: str, evidence: Evidence) -> bool:
    scripts = {dominant_script(segment.text) for segment in evidence.core}
    return dominant_script(sentence) in scripts or not any(char.isalpha() for char in sentence)


# The text of a checked answer as it is written anew: markers behind its sentences, and where each of them stands.

Unsupported = Literal["flag", "mark", "drop"]
"""What becomes of unsupported sentences: told in the checks, marked in the text as well, or left out."""

UNSUPPORTED_MARK: Final = "[?]"
"""Stands behind an unsupported sentence; no citation looks like it."""

_LINE_END: Final = re.compile(r"[ \t]+$", re.MULTILINE)


class Rewriter:
    """Writes a checked text anew, and remembers where each sentence stands in it."""

    def __init__(self, unsupported: Unsupported) -> None:
        self._unsupported = unsupported
        self._parts: list[str] = []
        self._length = 0
        self._checks: list[SentenceCheck] = []
        self._kept = False

    def copy(self, gap: str, sentence: str) -> None:
        """Write what is not checked."""
        self._add(gap + sentence)

    def write(self, gap: str, sentence: str, verdict: Verdict, numbers: Sequence[int]) -> None:
        """Write a checked sentence with its markers, or leave it out."""
        left_out = not verdict.supported and self._unsupported == "drop"
        # A line break before a sentence that is left out still parts what stands around it.
        self._add(gap if not left_out or "\n" in gap else "")
        start = self._length
        if not left_out:
            self._kept = True
            self._add(sentence)
        end = self._length
        markers = "".join(f"[{number}]" for number in numbers)
        if not verdict.supported and self._unsupported == "mark":
            markers += UNSUPPORTED_MARK
        self._add(f" {markers}" if markers else "")
        self._checks.append(
            SentenceCheck(
                start=start,
                end=end,
                text=sentence,
                supported=verdict.supported,
                score=verdict.score,
                citations=tuple(numbers),
                problems=verdict.problems,
            )
        )

    def finish(self, rest: str) -> tuple[str, tuple[SentenceCheck, ...]]:
        """Give the text without spaces at line ends, and the checks with their places in it."""
        self._add(rest)
        written = "".join(self._parts)
        if self._unsupported == "drop" and self._checks and not self._kept:
            return "", tuple(replace(check, start=0, end=0) for check in self._checks)
        moved = _Moved(written)
        return moved.text, tuple(moved.check(check) for check in self._checks)

    def _add(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)


class _Moved:
    """A text without white space at its ends and at the ends of its lines, and where its places have gone."""

    def __init__(self, text: str) -> None:
        first, last = len(text) - len(text.lstrip()), len(text.rstrip())
        kept: list[tuple[int, int]] = []
        at = first
        for found in _LINE_END.finditer(text):
            if first <= found.start() < last:
                kept.append((at, found.start()))
                at = max(first, found.end())
        kept.append((at, max(at, last)))
        self._starts = [start for start, _ in kept]
        self._kept = kept
        self._offsets: list[int] = []
        length = 0
        for start, end in kept:
            self._offsets.append(length)
            length += end - start
        self.text = "".join(text[start:end] for start, end in kept)

    def check(self, check: SentenceCheck) -> SentenceCheck:
        start, end = self._place(check.start), self._place(check.end)
        return replace(check, start=start, end=end, text=self.text[start:end] if start < end else check.text)

    def _place(self, old: int) -> int:
        piece = max(0, bisect_right(self._starts, old) - 1)
        start, end = self._kept[piece]
        return self._offsets[piece] + min(max(0, old - start), end - start)


_ATTACH_FROM: Final = 0.7
_MAX_TRIED: Final = 2
# Least share of a sentence's terms in a passage that can be near enough.
_LIKELY: Final = 0.55
_LOOKED_AT: Final = 300
_MAX_CHECKED: Final = 60
_MAX_LEAD_IN: Final = 80

_NO_STOP: Final = re.compile(f"[{character_class(Script.THAI, Script.LAO)}][^.!?]*$")
_OWN_MARK: Final = re.compile(r"[ \t]{0,3}\[\?\]")

Found = tuple[PassageMatcher, Support]


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedText:
    """An answer with its citations."""

    text: str
    citations: tuple[Citation, ...]
    support: float
    checks: tuple[SentenceCheck, ...] = ()


def check_citations(
    text: str,
    passages: Sequence[ContextPassage],
    *,
    language: str = "und",
    index_of: Callable[[str], str] = lambda _node_id: "",
    unsupported: Unsupported = "flag",
) -> CitedText:
    """Look up every citation of a text, add those that are missing, drop those that were invented.

    A sentence keeps the passages that it names, each with the stretch that supports it best, however badly, unless
    another passage supports it and none of those does. One that names none gets the passage that supports it, if there
    is one. Each distinct stretch has a number of its own.
    """
    tokenizer = Tokenizer(language)
    clean, marks = read_markers(_without_own_marks(text), len(passages))
    numbering = _Numbering(index_of)
    writer = Rewriter(unsupported)
    checker = _Checker([PassageMatcher(p, tokenizer) for p in passages], tokenizer)
    at = 0
    sentences = split_sentences(clean)
    every_named = _all_named(clean, sentences, marks)
    for i, (sentence, named) in enumerate(zip(sentences, every_named, strict=True)):
        gap = clean[at : sentence.start]
        at = sentence.end
        if not any(char.isalnum() for char in sentence.text) or _is_lead_in(sentence.text, named):
            writer.copy(gap, sentence.text)
            continue
        if i < _MAX_CHECKED:
            verdict, found = checker.check(sentence.text, named)
        else:
            verdict, found = Verdict(supported=False, score=0.0, problems=("not checked: the answer is too long",)), []
        shown = found if verdict.supported or unsupported != "drop" else []
        writer.write(gap, sentence.text, verdict, numbering.numbers(shown))
    answer, checks = writer.finish(clean[at:])
    scores = [check.score for check in checks]
    return CitedText(
        text=answer,
        citations=numbering.citations(),
        support=sum(scores) / len(scores) if scores else 0.0,
        checks=checks,
    )


def _without_own_marks(text: str) -> str:
    """Take out what would read as our mark; where taking one out leaves another, only its question mark goes."""
    return _OWN_MARK.sub("", text).replace(UNSUPPORTED_MARK, "[ ]")


def _is_lead_in(sentence: str, named: Sequence[int]) -> bool:
    """Tell whether a sentence only announces what follows: "The conditions are:"."""
    short = len(sentence) <= _MAX_LEAD_IN and sentence.endswith((":", "："))
    return short and not named and not any(char.isdecimal() for char in sentence)


def _all_named(text: str, sentences: Sequence[Sentence], marks: Sequence[Mark]) -> list[list[int]]:
    """The passages that each sentence names: those cited behind its beginning and not behind that of the next one.

    Thai has no full stop, so that a marker stands for all the clauses before it on its line that have none.
    """
    starts = [-1, *(sentence.start for sentence in sentences[1:])]
    ends = [*(sentence.start for sentence in sentences[1:]), len(text)]
    named = [
        list(dict.fromkeys(mark.number for mark in marks if start < mark.position <= end))
        for start, end in zip(starts, ends, strict=False)
    ][: len(sentences)]
    for i in range(len(sentences) - 2, -1, -1):
        gap = text[sentences[i].end : sentences[i + 1].start]
        if not named[i] and "\n" not in gap and _NO_STOP.search(sentences[i].text):
            named[i] = named[i + 1]
    return named


class _Checker:
    """Finds what supports a sentence: the passages that it names, or else one of the others."""

    def __init__(self, matchers: Sequence[PassageMatcher], tokenizer: Tokenizer) -> None:
        self._matchers = matchers
        self._tokenizer = tokenizer

    def check(self, sentence: str, named: Sequence[int]) -> tuple[Verdict, list[Found]]:
        cited = [self._matchers[number - 1] for number in named]
        located = [(matcher, matcher.locate(sentence)) for matcher in cited]
        found = [(matcher, support) for matcher, support in located if support is not None]
        if found:
            verdict = judge(sentence, [matcher for matcher, _ in found], self._tokenizer)
            if verdict.supported:
                return verdict, _scored(found, verdict)
        other, instead = self._elsewhere(sentence, cited)
        if instead is not None:
            moved = f"cited {_listed(named)}, found elsewhere" if named else "no passage was cited, one was found"
            return replace(other, problems=(moved,)), _scored([instead], other)
        if not found:
            return Verdict(supported=False, score=0.0, problems=("no passage supports it",)), []
        return verdict, _scored(found, verdict)

    def _elsewhere(self, sentence: str, cited: Sequence[PassageMatcher]) -> tuple[Verdict, Found | None]:
        """The best of the passages that are not cited, if it supports a sentence beyond doubt."""
        # Only a first look: the beginning of a long sentence tells whether a passage may hold it.
        terms = frozenset(self._tokenizer.tokens(sentence[:_LOOKED_AT]))
        likely = [m for m in self._matchers if m not in cited and len(terms & m.terms) >= _LIKELY * len(terms)]
        tried = [(matcher, matcher.locate(sentence)) for matcher in likely]
        near = [(matcher, support) for matcher, support in tried if support and support.score >= _ATTACH_FROM]
        for matcher, support in sorted(near, key=lambda pair: -pair[1].score)[:_MAX_TRIED]:
            verdict = judge(sentence, [matcher], self._tokenizer)
            if verdict.supported:
                return verdict, (matcher, support)
        return Verdict(supported=False, score=0.0, problems=(TOO_FAR,)), None


def _scored(found: Sequence[Found], verdict: Verdict) -> list[Found]:
    """Give each stretch the score of its sentence where that is lower: a quote is no better than what it supports."""
    if verdict.supported:
        return list(found)
    return [(matcher, replace(support, score=min(support.score, verdict.score))) for matcher, support in found]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(f"passage {number}" for number in numbers)


class _Numbering:
    """Gives out the numbers of one answer: one for each stretch of a passage, in order of first use."""

    def __init__(self, index_of: Callable[[str], str]) -> None:
        self._index_of = index_of
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._best: dict[int, Found] = {}

    def numbers(self, found: Sequence[Found]) -> list[int]:
        """The numbers of a sentence."""
        numbers: list[int] = []
        for matcher, support in found:
            key = (matcher.passage.number, support.start, support.end)
            number = self._numbers.setdefault(key, len(self._numbers) + 1)
            numbers.append(number)
            # Two sentences may rest on one stretch; its citation shows the better fit.
            if number not in self._best or support.score > self._best[number][1].score:
                self._best[number] = (matcher, support)
        return list(dict.fromkeys(numbers))

    def citations(self) -> tuple[Citation, ...]:
        """One citation for each number given out."""
        return tuple(
            cite(matcher.passage, support, number, self._index_of)
            for number, (matcher, support) in sorted(self._best.items())
        )

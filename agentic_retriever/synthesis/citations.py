"""Where a passage says what a sentence of an answer says, to the character, and the ``[n]`` that point there."""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import filterfalse, islice, permutations
from typing import Final, NamedTuple

from rapidfuzz import fuzz

from agentic_retriever.schema import Citation, SentenceCheck
from agentic_retriever.synthesis.context import ContextPassage
from agentic_retriever.text import Tokenizer, split_sentences
from agentic_retriever.text.language_files import any_listed, listed
from agentic_retriever.text.names import find_names, keys_in
from agentic_retriever.text.numbers import find_dates, find_numbers, loose_values, numbers_in
from agentic_retriever.text.scripts import lowered

# --- what is read in a passage: the smallest stretches that are quoted, what each says, and which serve a sentence ---
# A segment is a sentence, or a part of one that is too long to read.

MAX_SEGMENT_CHARS: Final = 500
_DIGIT: Final = re.compile("[0-9]")
_MAX_FURTHER: Final = 3
_MAX_CITED: Final = 4
_NEAR: Final = 2
# What a further segment must add, as a share of the sentence's terms: nearby and elsewhere.
_ADDS_NEAR: Final = 0.1
_ADDS_FAR: Final = 0.18
# What a number that both have counts, in terms, at least and as a share of the sentence's terms.
_FACT_WEIGHT: Final = 0.4
_FACT_SHARE: Final = 0.05


def segments(text: str) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for sentence in split_sentences(text):
        start, end = sentence.start, sentence.end
        whole = end - start <= MAX_SEGMENT_CHARS
        while start < end:
            stop = end if whole else _stop(text, start, end)
            piece = text[start:stop]
            first = start + len(piece) - len(piece.lstrip())
            if piece.strip():
                found.append((first, first + len(piece.strip())))
            start = stop
    return found


def _stop(text: str, start: int, end: int) -> int:
    line = text.find("\n", start, min(end, start + MAX_SEGMENT_CHARS))
    if line >= 0:
        return line + 1
    if end - start <= MAX_SEGMENT_CHARS:
        return end
    space = text.rfind(" ", start + 1, start + MAX_SEGMENT_CHARS)
    if space > start:
        return space
    stop = start + MAX_SEGMENT_CHARS
    # A vowel sign or tone mark stays with its letter.
    while stop > start + 1 and unicodedata.combining(text[stop]):
        stop -= 1
    return stop


@dataclass(frozen=True, eq=False)
class Facts:
    """What a text says, each part read when it is first asked for."""

    text: str
    tokenizer: Tokenizer
    passage: int = 0
    position: int = 0

    all_terms = cached_property(lambda self: frozenset(self.tokenizer.tokens(self.text)))
    terms = cached_property(lambda self: words_only(self.all_terms))
    digits = cached_property(lambda self: numbers_in(self.text))
    dates = cached_property(lambda self: find_dates(self.text))
    numbers = cached_property(lambda self: find_numbers(self.text))
    loose = cached_property(lambda self: loose_values(self.text))
    keys = cached_property(lambda self: keys_in(self.text))

    @cached_property
    def values(self) -> frozenset[str]:
        """Its numbers, with and without their scales."""
        return frozenset(value for number in self.numbers for value in (number.value, number.scaled))

    @cached_property
    def name_keys(self) -> frozenset[tuple[bool, str]]:
        """What it has as names, each with whether it is a code."""
        names = find_names(self.text, self.tokenizer.language)
        return frozenset((name.code, name.key) for name in names if not name.opening)


def words_only(terms: Iterable[str]) -> frozenset[str]:
    """Keep the terms without digits: numbers are compared as such."""
    return frozenset(filterfalse(_DIGIT.search, terms))


@dataclass(frozen=True, slots=True)
class Grounds:
    core: tuple[Facts, ...]  # that say most of what it says, the best one first
    near: tuple[Facts, ...]  # that stand beside those
    headers: tuple[Facts, ...]
    whole: tuple[Facts, ...]


def gather(sentence: Facts, passages: Sequence[Sequence[Facts]], headers: Sequence[Facts]) -> Grounds:
    """Choose the segments that a sentence is held against: of each passage the one that shares most of its terms.

    Another is taken only for terms still missing: never for a number alone, or a changed one would be found somewhere.
    """
    whole = [segment for passage in passages for segment in passage]
    wanted = sentence.terms
    best_ones = [max(passage, key=lambda segment: _likeness(sentence, segment)) for passage in passages]
    first = max(best_ones, key=lambda segment: _likeness(sentence, segment))
    # Of several cited passages each has its say.
    core = [first, *(one for one in best_ones[:_MAX_CITED] if one is not first and not wanted.isdisjoint(one.terms))]
    missing = wanted.difference(*(segment.terms for segment in (*core, *headers)))
    for _ in range(_MAX_FURTHER):
        best = max(whole, key=lambda segment: (_gain(missing, segment, first), _likeness(sentence, segment)))
        added = len(missing & best.terms)
        if not added or added < (_ADDS_NEAR if _is_near(best, core) else _ADDS_FAR) * len(wanted):
            break
        core.append(best)
        missing -= best.terms
    near = [segment for segment in whole if segment not in core and _is_near(segment, core)]
    return Grounds(tuple(core), tuple(near), tuple(headers), tuple(whole))


def _likeness(sentence: Facts, segment: Facts) -> float:
    shared = len(sentence.terms & segment.terms)
    facts = len(sentence.values & segment.values) if shared and sentence.values else 0
    # Among segments with the same terms, the shorter one says less else.
    weight = max(_FACT_WEIGHT, _FACT_SHARE * len(sentence.terms))
    return shared + weight * facts + 0.1 * shared / (1 + len(segment.terms))


def _gain(missing: frozenset[str], segment: Facts, first: Facts) -> float:
    return len(missing & segment.terms) * (1.5 if _is_near(segment, [first]) else 1.0)


def _is_near(segment: Facts, others: Sequence[Facts]) -> bool:
    return any(s.passage == segment.passage and abs(s.position - segment.position) <= _NEAR for s in others)


# --- whether two sentences say the opposite: one is negated where the other is not, or one has the other's antonym ---
# The rules are the section ``polarity`` of each language. A sentence is turned round by a negation or by an antonym; by
# both at once it says the same again ("not below 10" and "at least 10").

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
    if has_antonym(sentence, source):
        return (_NEGATION.search(sentence) is None) is (_NEGATION.search(source) is None)
    return _lacks(sentence, source, words_of) or _lacks(source, sentence, words_of)


def has_antonym(one: str, other: str) -> bool:
    """Tell whether a text has a word, and the other one only its opposite."""
    return any(there.search(other) and not here.search(other) for here, there in _opposites(one))


@lru_cache(1_000)
def _opposites(text: str) -> tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]:
    """The words that a text has without their opposites, each with these."""
    pairs = (pair for one in _ANTONYMS for pair in permutations(one))
    return tuple((here, there) for here, there in pairs if here.search(text) and not there.search(text))


def negated_before(text: str, start: int) -> bool:
    before = re.split(r"[.!?,;:\n|]", text[max(0, start - _BEFORE_CHARS) : start])[-1]
    return _NEGATION.search(before) is not None


def _lacks(negated: str, other: str, words_of: WordsOf) -> bool:
    """Tell whether a text is negated where another one says the same without a negation."""
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


# --- one passage, and where it says what a sentence says ------------------------------------------------------------

NUMBER_MISMATCH_CAP: Final = 0.3  # highest score of a quote that lacks a number of the sentence
_MAX_NEEDLE_CHARS: Final = 400
_REACHES: Final = sorted(((before, after) for before in range(3) for after in range(3)), key=sum)
_MIN_SHARE: Final = 0.3
_LEAST_RATIO: Final = 45.0
_MIN_OPENING_CHARS: Final = 40
_DECORATION: Final = re.compile(r"^[\s>#*+•–-]+|[*`]+|(?<!\w)_+|_+(?!\w)|\s*[.!?。！？…]+\s*$")
# Between two words of a passage may stand emphasis that a model leaves out.
_GAP: Final = r"[\s*_`]+"
_ENUMERATION: Final = re.compile(r"^\s*(?:[-*•]\s*)?\d{1,2}[.)]\s+")


class PassageMatcher:
    """Finds sentences in one passage; splits and folds its text once."""

    def __init__(self, passage: ContextPassage, tokenizer: Tokenizer) -> None:
        self.passage = passage
        self.tokenizer = tokenizer
        self._folded = lowered(passage.text)
        self._spans = segments(passage.text)

    @cached_property
    def facts(self) -> list[Facts]:
        texts = [self.passage.text[start:end] for start, end in self._spans]
        return [Facts(text, self.tokenizer, self.passage.number, position) for position, text in enumerate(texts)]

    @cached_property
    def header(self) -> Facts:
        return Facts(f"{self.passage.title}\n{self.passage.section}\n{self.passage.table_header}", self.tokenizer)

    @cached_property
    def terms(self) -> frozenset[str]:
        return frozenset().union(*(segment.all_terms for segment in self.facts))

    @cached_property
    def _header_numbers(self) -> frozenset[str]:
        # Title and section stand beside the quote in every reference list, so their numbers are shown, too.
        return numbers_in(self.passage.header)

    def locate(self, sentence: str) -> Citation | None:
        """Find the stretch that supports a sentence best, as a citation without a number."""
        needle = _needle(sentence)
        if not needle or not self._spans:
            return None
        found = self._found(needle)
        exact = self._snapped(found.start(), found.end(), least=0.0) if found else None
        if exact:
            return self._cite(exact, 1.0)
        needle = needle[:_MAX_NEEDLE_CHARS]
        terms = frozenset(self.tokenizer.tokens(needle))
        wanted = numbers_in(_ENUMERATION.sub("", sentence)) - self._header_numbers
        judged = (self._judged(window, needle, terms, wanted) for window in self._windows(needle, terms))
        return max(judged, key=lambda found: found.score)

    def _windows(self, needle: str, terms: frozenset[str]) -> Collection[tuple[int, int]]:
        """Where a passage may say it: the best fuzzy match, the segment with most of the terms, or else its opening."""
        near = fuzz.partial_ratio_alignment(needle, self._folded, score_cutoff=_LEAST_RATIO)
        fuzzy = self._snapped(near.dest_start, near.dest_end, least=_MIN_SHARE) if near else None
        shared = [len(terms & segment.all_terms) for segment in self.facts]
        best = shared.index(max(shared))
        windows = dict.fromkeys(filter(None, (fuzzy, (best, best + 1) if shared[best] else None)))
        if windows:
            return windows
        # A passage may support a sentence in another language, with nothing in common that could be seen here.
        first = next((i for i, (start, end) in enumerate(self._spans) if end - start >= _MIN_OPENING_CHARS), 0)
        return [(first, first + 1)]

    def is_verbatim(self, sentence: str) -> bool:
        """Tell whether the passage has a sentence as it is, and not just behind a negation that it leaves out."""
        found = self._found(_needle(sentence))
        return found is not None and not negated_before(self._folded, found.start())

    def _found(self, needle: str) -> re.Match[str] | None:
        if not 0 < len(needle) <= _MAX_NEEDLE_CHARS:
            return None
        pattern = _GAP.join(re.escape(word) for word in needle.split())
        if _spaced(needle[0]):
            pattern = r"(?<![^\W_])" + pattern
        if _spaced(needle[-1]):
            pattern += r"(?![^\W_])"
        return re.search(pattern, self._folded)

    def _snapped(self, start: int, end: int, *, least: float) -> tuple[int, int] | None:
        """The sentences that a stretch covers to a share of ``least`` or more, or else the one it covers most."""
        overlaps = [min(end, last) - max(start, first) for first, last in self._spans]
        enough = [max(1e-9, least * min(last - first, end - start)) for first, last in self._spans]
        touched = [i for i, overlap in enumerate(overlaps) if overlap >= enough[i]]
        if touched:
            return touched[0], touched[-1] + 1
        best = overlaps.index(max(overlaps))
        return (best, best + 1) if overlaps[best] > 0 else None

    def _judged(self, window: tuple[int, int], needle: str, terms: frozenset[str], wanted: frozenset[str]) -> Citation:
        start, end = self._span(window)
        ratio = fuzz.partial_ratio(needle, self._folded[start:end]) / 100
        inside = frozenset().union(*(segment.all_terms for segment in self.facts[window[0] : window[1]]))
        shared = len(terms & inside) / len(terms) if terms else ratio
        # Below 1, which is kept for what is verbatim.
        score = min(0.99, (ratio + shared) / 2)
        # The smallest stretch around it, by up to two sentences on either side, that has all the numbers.
        for before, after in _REACHES:
            wider = max(0, window[0] - before), min(len(self._spans), window[1] + after)
            if not wanted or wanted <= frozenset().union(*(part.digits for part in self.facts[wider[0] : wider[1]])):
                return self._cite(wider, score)
        return self._cite(window, min(score, NUMBER_MISMATCH_CAP))

    def _span(self, window: tuple[int, int]) -> tuple[int, int]:
        return self._spans[window[0]][0], self._spans[window[1] - 1][1]

    def _cite(self, window: tuple[int, int], score: float) -> Citation:
        return self.passage.cite(*self._span(window), score)


def _needle(sentence: str) -> str:
    """What of a sentence is looked for: no bullets, emphasis or final stop, white space as one space."""
    return " ".join(lowered(_DECORATION.sub("", _ENUMERATION.sub("", sentence))).split())


def _spaced(char: str) -> bool:
    """Tell whether words of the character's script have spaces between them, for which its case or digits stand."""
    return char.isdecimal() or char.islower() or char.isupper()


# --- markers: the ``[n]`` in the text of an answer, read as models write them ----------

# As models write them: [1], [1, 2], [1-3], [[1]], 【1】, ［１］, [๑], [passage 1]. Repetitions are bounded, so that no
# text makes the search slow.
MARKER: Final = re.compile(
    r"[\[【［〔]{1,3}[ \t]{0,3}(?:passages?|sources?)?[ \t]{0,3}"
    r"\d{1,9}(?:[ \t]{0,3}[,，、;；–—\-&][ \t]{0,3}\d{1,9}){0,40}[ \t]{0,3}[\]】］〕]{1,3}",
    re.IGNORECASE,
)
_RUN: Final = re.compile(rf"(?:{MARKER.pattern}[ \t]{{0,2}}){{1,20}}", re.IGNORECASE)
_NUMBER: Final = re.compile(r"(\d{1,9})(?:[ \t]*[–—\-][ \t]*(\d{1,9}))?")
_CLOSES_SENTENCE: Final = re.compile(r"[ \t]*([.!?。！？…،؟।,;:]+)")


class Mark(NamedTuple):
    position: int
    number: int


def read_markers(text: str, known: int) -> tuple[str, tuple[Mark, ...]]:
    clean = ""
    marks: list[Mark] = []
    at = 0
    for found in _RUN.finditer(text):
        clean = _joined(clean, text[at : found.start()], behind_marker=at > 0)
        position = _position(clean, text[found.end() :])
        # A range that runs out of the passages is taken as far as it names some.
        ranges = [(max(int(one[1]), 1), min(int(one[2] or one[1]), known)) for one in _NUMBER.finditer(found[0])]
        numbers = dict.fromkeys(number for first, last in ranges for number in range(first, last + 1))
        marks += [Mark(position, number) for number in numbers]
        at = found.end()
    clean = _joined(clean, text[at:], behind_marker=at > 0)
    # What was left over may read as a marker now that something between its parts is gone.
    while MARKER.search(clean):
        clean = MARKER.sub(lambda found: " " * len(found[0]), clean)
    return clean, tuple(marks)


def _position(before: str, after: str) -> int:
    rest = after.lstrip(" \t")
    begins_line = not before.strip(" \t") or before.rstrip(" \t").endswith("\n")
    if begins_line and rest and not rest[0].isspace():
        return len(before) + len(after) - len(rest) + 1
    return len(before.rstrip())


def _joined(before: str, after: str, *, behind_marker: bool) -> str:
    """Join the texts around a marker: no space before a full stop, one between words."""
    if not behind_marker:
        return before + after
    closing = _CLOSES_SENTENCE.match(after)
    if closing:
        # "One. [1]. Two" has a full stop already.
        return before.rstrip(" \t").removesuffix(closing[1]) + closing[1] + after[closing.end() :]
    apart = before[-1:].strip() and after[:1].strip()
    return f"{before} {after}" if apart else before + after


# --- what an extract quotes, as it is shown, and its checks ------------------------------

_OWN_MARKER: Final = re.compile(r"\[([0-9]{1,9})\]")


def quoted_checks(text: str, citations: Sequence[Citation]) -> tuple[SentenceCheck, ...]:
    """Check the text of an extractive answer: each sentence must stand in the quote behind its number."""
    quotes = {citation.number: bare(citation.quote) for citation in citations}
    found: list[SentenceCheck] = []
    at = 0
    for marker in _OWN_MARKER.finditer(text):
        piece = text[at : marker.start()]
        start, sentence = at + len(piece) - len(piece.lstrip()), piece.strip()
        number = int(marker[1])
        verbatim = bare(sentence) in quotes.get(number, "")
        check = SentenceCheck(start=start, end=start + len(sentence), text=sentence, supported=True, score=1.0)
        if not verbatim:
            check = replace(check, supported=False, score=0.0, problems=("not verbatim in its quote",))
        found.append(replace(check, citations=(number,)))
        at = marker.end()
    return tuple(found)


def bare(text: str) -> str:
    """Letters and digits alone: white space and brackets are shown otherwise than they stand in a source."""
    return "".join(char for char in text if char.isalnum())


def shown(sentence: str) -> str:
    """Show a sentence of a source in an answer: on one line, and without anything that reads as our marker."""
    return _OWN_MARKER.sub(r"(\1)", " ".join(sentence.split()))

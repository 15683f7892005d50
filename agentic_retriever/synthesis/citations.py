"""Where a passage says what a sentence of an answer says, to the character, and the ``[n]`` that point there.

A verbatim sentence is found as it is, any other by the best fuzzy window (partial ratio of M. Bachmann's RapidFuzz) and
by shared terms. Either way the quote is whole sentences of the source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from rapidfuzz import fuzz

from agentic_retriever.schema import Citation
from agentic_retriever.synthesis.context import ContextPassage
from agentic_retriever.synthesis.facts import Facts, segments
from agentic_retriever.synthesis.polarity import negated_before
from agentic_retriever.text import Tokenizer
from agentic_retriever.text.numbers import numbers_in

NUMBER_MISMATCH_CAP: Final = 0.3
"""Highest score of a quote that lacks a number of the sentence."""

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
        self._tokenizer = tokenizer
        self._folded = _folded(passage.text)
        self._spans = segments(passage.text)

    @cached_property
    def facts(self) -> list[Facts]:
        """What each of its segments says."""
        text, number = self.passage.text, self.passage.number
        return [
            Facts(text[start:end], self._tokenizer, number, position)
            for position, (start, end) in enumerate(self._spans)
        ]

    @cached_property
    def header(self) -> Facts:
        """What its title and section say."""
        return Facts(f"{self.passage.title}\n{self.passage.section}", self._tokenizer)

    @cached_property
    def terms(self) -> frozenset[str]:
        """All its distinct terms."""
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
        exact = self._exact(needle) if len(needle) <= _MAX_NEEDLE_CHARS else None
        if exact is not None:
            return exact
        needle = needle[:_MAX_NEEDLE_CHARS]
        terms = frozenset(self._tokenizer.tokens(needle))
        windows = dict.fromkeys(filter(None, (self._fuzzy_window(needle), self._term_window(terms))))
        # A passage may support a sentence in another language, with nothing in common that could be seen here.
        windows = windows or {self._opening(): None}
        wanted = numbers_in(_ENUMERATION.sub("", sentence)) - self._header_numbers
        return max((self._judged(window, needle, terms, wanted) for window in windows), key=lambda found: found.score)

    def is_verbatim(self, sentence: str) -> bool:
        """Tell whether the passage has a sentence as it is, and not just behind a negation that it leaves out."""
        needle = _needle(sentence)
        found = self._found(needle) if needle and len(needle) <= _MAX_NEEDLE_CHARS else None
        return found is not None and not negated_before(self._folded, found.start())

    def _exact(self, needle: str) -> Citation | None:
        found = self._found(needle)
        window = self._snapped(found.start(), found.end(), least=0.0) if found else None
        return self._cite(window, 1.0) if window else None

    def _found(self, needle: str) -> re.Match[str] | None:
        pattern = _GAP.join(re.escape(word) for word in needle.split())
        if _spaced(needle[0]):
            pattern = r"(?<![^\W_])" + pattern
        if _spaced(needle[-1]):
            pattern += r"(?![^\W_])"
        return re.search(pattern, self._folded)

    def _fuzzy_window(self, needle: str) -> tuple[int, int] | None:
        found = fuzz.partial_ratio_alignment(needle, self._folded, score_cutoff=_LEAST_RATIO)
        return self._snapped(found.dest_start, found.dest_end, least=_MIN_SHARE) if found else None

    def _term_window(self, terms: frozenset[str]) -> tuple[int, int] | None:
        if not terms:
            return None
        shared = [len(terms & segment.all_terms) for segment in self.facts]
        best = max(range(len(shared)), key=lambda i: shared[i])
        return (best, best + 1) if shared[best] else None

    def _opening(self) -> tuple[int, int]:
        """The first segment that is longer than a heading, or the first one."""
        long = (i for i, (start, end) in enumerate(self._spans) if end - start >= _MIN_OPENING_CHARS)
        first = next(long, 0)
        return first, first + 1

    def _snapped(self, start: int, end: int, *, least: float) -> tuple[int, int] | None:
        """The sentences that a stretch covers to a share of ``least`` or more, or else the one it covers most."""
        overlaps = [min(end, last) - max(start, first) for first, last in self._spans]
        touched = [
            i
            for i, (first, last) in enumerate(self._spans)
            if overlaps[i] > 0 and overlaps[i] >= least * min(last - first, end - start)
        ]
        if not touched:
            best = max(range(len(overlaps)), key=lambda i: overlaps[i])
            return (best, best + 1) if overlaps[best] > 0 else None
        return touched[0], touched[-1] + 1

    def _judged(self, window: tuple[int, int], needle: str, terms: frozenset[str], wanted: frozenset[str]) -> Citation:
        start, end = self._span(window)
        ratio = fuzz.partial_ratio(needle, self._folded[start:end]) / 100
        inside = frozenset().union(*(segment.all_terms for segment in self.facts[window[0] : window[1]]))
        shared = len(terms & inside) / len(terms) if terms else ratio
        # Below 1, which is kept for what is verbatim.
        score = min(0.99, (ratio + shared) / 2)
        wider = self._with_numbers(window, wanted)
        return self._cite(wider, score) if wider else self._cite(window, min(score, NUMBER_MISMATCH_CAP))

    def _with_numbers(self, window: tuple[int, int], wanted: frozenset[str]) -> tuple[int, int] | None:
        """The smallest stretch around a window, by up to two sentences on either side, that has all the numbers."""
        first, last = window
        for before, after in _REACHES:
            wider = max(0, first - before), min(len(self._spans), last + after)
            if not wanted or wanted <= frozenset().union(*(part.digits for part in self.facts[wider[0] : wider[1]])):
                return wider
        return None

    def _span(self, window: tuple[int, int]) -> tuple[int, int]:
        return self._spans[window[0]][0], self._spans[window[1] - 1][1]

    def _cite(self, window: tuple[int, int], score: float) -> Citation:
        return self.passage.cite(*self._span(window), score)


def _needle(sentence: str) -> str:
    """What of a sentence is looked for: no bullets, emphasis or final stop, white space as one space."""
    bare = _DECORATION.sub("", _ENUMERATION.sub("", sentence))
    return " ".join(_folded(bare).split())


def _folded(text: str) -> str:
    """Lower case without a change of length, so that offsets stay."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(low if len(low := char.lower()) == 1 else char for char in text)


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


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a text where a passage is cited."""

    position: int
    number: int


def read_markers(text: str, known: int) -> tuple[str, tuple[Mark, ...]]:
    """Take the markers out of a text."""
    clean = ""
    marks: list[Mark] = []
    at = 0
    for found in _RUN.finditer(text):
        clean = _joined(clean, text[at : found.start()], behind_marker=at > 0)
        position = _position(clean, text[found.end() :])
        marks += [Mark(position, number) for number in _numbers(found[0], known)]
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


def _numbers(marker: str, known: int) -> list[int]:
    numbers: list[int] = []
    for found in _NUMBER.finditer(marker):
        first = int(found[1])
        last = int(found[2]) if found[2] else first
        # A range that runs out of the passages is taken as far as it names some.
        numbers += range(max(first, 1), min(last, known) + 1)
    return list(dict.fromkeys(numbers))


def _joined(before: str, after: str, *, behind_marker: bool) -> str:
    """Join the texts around a marker: no space before a full stop, one between words."""
    if not behind_marker:
        return before + after
    closing = _CLOSES_SENTENCE.match(after)
    if closing:
        bare = before.rstrip(" \t")
        # "One. [1]. Two" has a full stop already.
        kept = "" if bare.endswith(closing[1]) else closing[1]
        return bare + kept + after[closing.end() :]
    if before and after and not before[-1].isspace() and not after[0].isspace():
        return f"{before} {after}"
    return before + after

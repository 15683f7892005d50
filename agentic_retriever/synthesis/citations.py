"""Where a passage says what a sentence of an answer says, to the character.

A verbatim sentence is found as it is, any other by the best fuzzy window (partial ratio of M. Bachmann's RapidFuzz) and
by shared terms. Either way the quote is whole sentences of the source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rapidfuzz import fuzz

from agentic_retriever.schema import Citation
from agentic_retriever.synthesis.numbers import numbers_in
from agentic_retriever.synthesis.polarity import negated_before
from agentic_retriever.synthesis.segment_facts import Facts
from agentic_retriever.synthesis.segments import segments

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentic_retriever.synthesis.context import ContextPassage
    from agentic_retriever.text import Tokenizer

NUMBER_MISMATCH_CAP = 0.3
"""Highest score of a quote that lacks a number of the sentence."""

_MAX_NEEDLE_CHARS = 400
_REACHES = sorted(((before, after) for before in range(3) for after in range(3)), key=sum)
_MIN_SHARE = 0.3
_LEAST_RATIO = 45.0
_MIN_OPENING_CHARS = 40

_DECORATION = re.compile(r"^[\s>#*+•–-]+|[*`]+|(?<!\w)_+|_+(?!\w)|\s*[.!?。！？…]+\s*$")
# Between two words of a passage may stand emphasis that a model leaves out.
_GAP = r"[\s*_`]+"
_ENUMERATION = re.compile(r"^\s*(?:[-*•]\s*)?\d{1,2}[.)]\s+")


@dataclass(frozen=True, slots=True)
class Support:
    """A stretch of a passage that supports a sentence.

    Attributes:
        start: Offset of its first character in the passage's text.
        end: Offset behind its last character.
        score: How well it supports the sentence, in [0, 1]; 1 for a verbatim one.
    """

    start: int
    end: int
    score: float


def cite(passage: ContextPassage, support: Support, number: int, index_of: Callable[[str], str]) -> Citation:
    """Make the citation of a stretch of a passage.

    Args:
        passage: The passage.
        support: The stretch; offsets in the passage's text.
        number: The ``n`` of its ``[n]``, from 1.
        index_of: Gives the name of the index that a node id came from.

    Returns:
        A citation whose span counts from the beginning of the source document, or of the node's own text for a node
        that does not know its place.
    """
    return Citation(
        number=number,
        doc_id=passage.doc_id,
        node_id=passage.node_id,
        start=passage.offset + support.start,
        end=passage.offset + support.end,
        quote=passage.text[support.start : support.end],
        score=support.score,
        index=index_of(passage.node_id),
        title=passage.title,
        section=passage.section,
        page=passage.page,
    )


class PassageMatcher:
    """Finds sentences in one passage; splits and folds its text once.

    Args:
        passage: The passage.
        tokenizer: Cuts sentences and passage into terms.
    """

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
    def _numbers(self) -> list[frozenset[str]]:
        return [numbers_in(segment.text) for segment in self.facts]

    @cached_property
    def _header_numbers(self) -> frozenset[str]:
        # Title and section stand beside the quote in every reference list, so their numbers are shown, too.
        return numbers_in(self.passage.header)

    def locate(self, sentence: str) -> Support | None:
        """Find the stretch that supports a sentence best.

        Args:
            sentence: One sentence without markers.

        Returns:
            Whole sentences of the passage with a score; ``None`` when the sentence or the passage says nothing. With
            nothing in common it is the beginning of the passage, with a low score. When a
            number of the sentence occurs neither in the quote nor in the passage's header, up to two sentences on
            either side are taken in to find it; the score is at most ``NUMBER_MISMATCH_CAP`` if that fails.
        """
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
        """Tell whether the passage has a sentence as it is, and not just behind a negation that it leaves out.

        Args:
            sentence: One sentence without markers.
        """
        needle = _needle(sentence)
        found = self._found(needle) if needle and len(needle) <= _MAX_NEEDLE_CHARS else None
        return found is not None and not negated_before(self._folded, found.start())

    def _exact(self, needle: str) -> Support | None:
        found = self._found(needle)
        window = self._snapped(found.start(), found.end(), least=0.0) if found else None
        return self._support(window, 1.0) if window else None

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

    def _judged(self, window: tuple[int, int], needle: str, terms: frozenset[str], wanted: frozenset[str]) -> Support:
        found = self._support(window, 0.0)
        ratio = fuzz.partial_ratio(needle, self._folded[found.start : found.end]) / 100
        inside = frozenset().union(*(segment.all_terms for segment in self.facts[window[0] : window[1]]))
        shared = len(terms & inside) / len(terms) if terms else ratio
        # Below 1, which is kept for what is verbatim.
        score = min(0.99, (ratio + shared) / 2)
        wider = self._with_numbers(window, wanted)
        return self._support(wider, score) if wider else self._support(window, min(score, NUMBER_MISMATCH_CAP))

    def _with_numbers(self, window: tuple[int, int], wanted: frozenset[str]) -> tuple[int, int] | None:
        """The smallest stretch around a window, by up to two sentences on either side, that has all the numbers."""
        first, last = window
        for before, after in _REACHES:
            wider = max(0, first - before), min(len(self._spans), last + after)
            if not wanted or wanted <= frozenset().union(*self._numbers[wider[0] : wider[1]]):
                return wider
        return None

    def _support(self, window: tuple[int, int], score: float) -> Support:
        return Support(self._spans[window[0]][0], self._spans[window[1] - 1][1], score)


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

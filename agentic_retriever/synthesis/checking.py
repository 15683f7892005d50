"""The citations of a text: looked up, completed and corrected, with a verdict on every sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from agentic_retriever.synthesis.citations import PassageMatcher, Support, cite
from agentic_retriever.synthesis.markers import Mark, read_markers
from agentic_retriever.synthesis.rewriting import UNSUPPORTED_MARK, Rewriter
from agentic_retriever.synthesis.verdicts import TOO_FAR, Verdict, judge
from agentic_retriever.text import Script, Tokenizer, split_sentences
from agentic_retriever.text.scripts import character_class

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentic_retriever.schema import Citation, SentenceCheck
    from agentic_retriever.synthesis.context import ContextPassage
    from agentic_retriever.synthesis.rewriting import Unsupported
    from agentic_retriever.text import Sentence

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
    """An answer with its citations.

    Attributes:
        text: The text; each ``[n]`` in it has a citation. ``""`` when everything was left out.
        citations: One for each number, from 1 in order of first use.
        support: Mean score of the sentences that were checked, left-out ones included, in [0, 1]: 1 for a verbatim
            sentence, at most 0.3 for an unsupported one and 0 for one without a citation.
        checks: How each sentence stands, in order. Headings of lists and what has no letters are not checked.
    """

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

    Args:
        text: An answer with markers in any of the usual forms.
        passages: What the numbers stand for, numbered from 1.
        language: ISO 639-1 code, for stemming.
        index_of: Gives the name of the index that a node id came from.
        unsupported: What becomes of unsupported sentences: ``flag`` tells them in the checks, ``mark`` puts a ``[?]``
            behind them as well, ``drop`` leaves them out.

    Returns:
        The text with markers behind its sentences, the citations and the checks; never an error, whatever the text.
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

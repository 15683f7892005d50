"""The citations of a text: looked up, completed and corrected, with a verdict on every sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from agentic_retriever.schema import Citation, SentenceCheck
from agentic_retriever.synthesis.citations import Mark, PassageMatcher, read_markers
from agentic_retriever.synthesis.context import ContextPassage
from agentic_retriever.synthesis.judging import TOO_FAR, judge, unsupported_sentence
from agentic_retriever.text import Script, Sentence, Tokenizer, split_sentences
from agentic_retriever.text.scripts import character_class

Unsupported = Literal["flag", "mark", "drop"]
"""What becomes of unsupported sentences: told in the checks, marked in the text as well, or left out."""

UNSUPPORTED_MARK: Final = "[?]"
"""Stands behind an unsupported sentence; no citation looks like it."""

_ATTACH_FROM: Final = 0.7
_MAX_TRIED: Final = 2
# Least share of a sentence's terms in a passage that can be near enough.
_LIKELY: Final = 0.55
_LOOKED_AT: Final = 300
_MAX_CHECKED: Final = 60
_MAX_LEAD_IN: Final = 80

_LINE_END: Final = re.compile(r"[ \t]+(?=\n)")
_NO_STOP: Final = re.compile(f"[{character_class(Script.THAI, Script.LAO)}][^.!?]*$")
_OWN_MARK: Final = re.compile(r"[ \t]{0,3}\[\?\]")


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
    numbering, writer = _Numbering(index_of), _Rewriter(unsupported)
    checker = _Checker([PassageMatcher(p, tokenizer) for p in passages], tokenizer)
    at = 0
    sentences = split_sentences(clean)
    for i, (sentence, named) in enumerate(zip(sentences, _all_named(clean, sentences, marks), strict=True)):
        gap = clean[at : sentence.start]
        at = sentence.end
        if not any(char.isalnum() for char in sentence.text) or _is_lead_in(sentence.text, named):
            writer.copy(gap + sentence.text)
            continue
        check, found = checker.check(sentence.text, named) if i < _MAX_CHECKED else (_unchecked(sentence.text), [])
        shown = found if check.supported or unsupported != "drop" else []
        writer.write(gap, replace(check, citations=numbering.numbers(shown)))
    answer, checks = writer.finish(clean[at:])
    support = sum(check.score for check in checks) / len(checks) if checks else 0.0
    return CitedText(text=answer, citations=numbering.citations(), support=support, checks=checks)


def _unchecked(sentence: str) -> SentenceCheck:
    return unsupported_sentence(sentence, "not checked: the answer is too long")


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

    def check(self, sentence: str, named: Sequence[int]) -> tuple[SentenceCheck, list[Citation]]:
        cited = [self._matchers[number - 1] for number in named]
        located = [(matcher, citation) for matcher in cited if (citation := matcher.locate(sentence)) is not None]
        found = [citation for _, citation in located]
        if found:
            check = judge(sentence, [matcher for matcher, _ in located], self._tokenizer)
            if check.supported:
                return check, found
        instead, citation = self._elsewhere(sentence, cited)
        if citation is not None:
            passages = ", ".join(f"passage {number}" for number in named)
            moved = f"cited {passages}, found elsewhere" if named else "no passage was cited, one was found"
            return replace(instead, problems=(moved,)), [citation]
        if not found:
            return unsupported_sentence(sentence, "no passage supports it"), []
        # A quote is no better than what it supports.
        return check, [replace(one, score=min(one.score, check.score)) for one in found]

    def _elsewhere(self, sentence: str, cited: Sequence[PassageMatcher]) -> tuple[SentenceCheck, Citation | None]:
        """The best of the passages that are not cited, if it supports a sentence beyond doubt."""
        # Only a first look: the beginning of a long sentence tells whether a passage may hold it.
        terms = frozenset(self._tokenizer.tokens(sentence[:_LOOKED_AT]))
        likely = [m for m in self._matchers if m not in cited and len(terms & m.terms) >= _LIKELY * len(terms)]
        tried = [(matcher, matcher.locate(sentence)) for matcher in likely]
        near = [(matcher, found) for matcher, found in tried if found and found.score >= _ATTACH_FROM]
        for matcher, citation in sorted(near, key=lambda pair: -pair[1].score)[:_MAX_TRIED]:
            check = judge(sentence, [matcher], self._tokenizer)
            if check.supported:
                return check, citation
        return unsupported_sentence(sentence, TOO_FAR), None


class _Numbering:
    """Gives out the numbers of one answer: one for each stretch of a passage, in order of first use."""

    def __init__(self, index_of: Callable[[str], str]) -> None:
        self._index_of = index_of
        self._numbers: dict[tuple[str, int, int, str], int] = {}
        self._best: dict[int, Citation] = {}

    def numbers(self, found: Sequence[Citation]) -> tuple[int, ...]:
        """The numbers of a sentence."""
        numbers: dict[int, None] = {}
        for citation in found:
            key = (citation.node_id, citation.start, citation.end, citation.quote)
            number = self._numbers.setdefault(key, len(self._numbers) + 1)
            numbers[number] = None
            # Two sentences may rest on one stretch; its citation shows the better fit.
            if number not in self._best or citation.score > self._best[number].score:
                self._best[number] = replace(citation, number=number, index=self._index_of(citation.node_id))
        return tuple(numbers)

    def citations(self) -> tuple[Citation, ...]:
        """One citation for each number given out."""
        return tuple(citation for _, citation in sorted(self._best.items()))


class _Rewriter:
    """Writes a checked text anew, without spaces at line ends, and notes where each sentence stands in it."""

    def __init__(self, unsupported: Unsupported) -> None:
        self._unsupported = unsupported
        self._text = ""
        self._checks: list[SentenceCheck] = []
        self._kept = False

    def copy(self, text: str) -> None:
        """Write what is not checked."""
        if not self._text:
            text = text.lstrip()
        if text.lstrip(" \t").startswith("\n"):
            self._text = self._text.rstrip(" \t")
            text = text.lstrip(" \t")
        self._text += _LINE_END.sub("", text)

    def write(self, gap: str, check: SentenceCheck) -> None:
        """Write a checked sentence with its markers, or leave it out."""
        if not check.supported and self._unsupported == "drop":
            # A line break before a sentence that is left out still parts what stands around it.
            self.copy(gap if "\n" in gap else "")
            place = len(self._text.rstrip(" \t"))
            self._checks.append(replace(check, start=place, end=place))
            return
        self._kept = True
        self.copy(gap)
        start = len(self._text)
        self.copy(check.text)
        self._checks.append(replace(check, start=start, end=len(self._text), text=self._text[start:]))
        markers = "".join(f"[{number}]" for number in check.citations)
        if not check.supported and self._unsupported == "mark":
            markers += UNSUPPORTED_MARK
        self._text += f" {markers}" if markers else ""

    def finish(self, rest: str) -> tuple[str, tuple[SentenceCheck, ...]]:
        """Give the text and its checks; no text where every sentence was left out."""
        self.copy(rest)
        if self._unsupported == "drop" and self._checks and not self._kept:
            return "", tuple(replace(check, start=0, end=0) for check in self._checks)
        text = self._text.rstrip()
        # What was left out at the very end has its place at the end.
        ends = [(min(check.start, len(text)), min(check.end, len(text))) for check in self._checks]
        return text, tuple(
            replace(check, start=start, end=end) for check, (start, end) in zip(self._checks, ends, strict=True)
        )

"""The text of a checked answer as it is written anew: markers behind its sentences, and where each of them stands."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from agentic_retriever.schema import SentenceCheck

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.synthesis.verdicts import Verdict

Unsupported = Literal["flag", "mark", "drop"]
"""What becomes of unsupported sentences: told in the checks, marked in the text as well, or left out."""

UNSUPPORTED_MARK: Final = "[?]"
"""Stands behind an unsupported sentence; no citation looks like it."""

_LINE_END: Final = re.compile(r"[ \t]+$", re.MULTILINE)


class Rewriter:
    """Writes a checked text anew, and remembers where each sentence stands in it.

    Args:
        unsupported: What becomes of unsupported sentences.
    """

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

"""What of an answer can be shown while a model still writes it, with the citations that it will have in the end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agentic_retriever.llm import without_thoughts
from agentic_retriever.prompts import NO_ANSWER
from agentic_retriever.synthesis.markers import read_markers
from agentic_retriever.text import split_sentences

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentic_retriever.synthesis.checking import CitedText

_OPEN_TAG: Final = re.compile(r"<[^<>\n]{0,40}\Z")
_OPEN_MARKER: Final = re.compile(r"\s*[\[【［〔].*\Z", re.DOTALL)
_SQUEEZED: Final = re.compile(r"[\W_]+")
_REFUSAL: Final = _SQUEEZED.sub("", NO_ANSWER).casefold()


class StreamedText:
    """Turns the pieces that a model writes into pieces to show.

    Words are shown as they come. What the model thinks aloud is not, nor its own markers: behind each finished sentence
    stand the citations that hold, numbered as in the finished answer. Joined, the pieces are the beginning of the
    finished text, or all of it, unless what follows changes how the text falls into sentences; then nothing more is
    shown, and only the finished answer counts.

    Args:
        check: Looks up the citations of a text.
        known: How many passages there are.
        whole_sentences: Whether to show finished sentences only, since unsupported ones are left out.
    """

    def __init__(self, check: Callable[[str], CitedText], known: int, *, whole_sentences: bool = False) -> None:
        self._check = check
        self._known = known
        self._whole = whole_sentences
        self._raw = ""
        self._base = ""
        self._finished = 0
        self.shown = ""

    def feed(self, piece: str) -> str:
        """Take a piece of the reply.

        Args:
            piece: What the model wrote.

        Returns:
            What can be shown now, perhaps ``""``.
        """
        self._raw += piece
        text = without_thoughts(_OPEN_TAG.sub("", self._raw))
        if _may_refuse(text):
            return ""
        clean, _ = read_markers(_OPEN_MARKER.sub("", text) if text.count("[") > text.count("]") else text, self._known)
        sentences = split_sentences(clean)
        if not sentences:
            return ""
        last = sentences[-1].text
        if len(sentences) != self._finished + 1:
            self._finished = len(sentences) - 1
            self._base = self._before(text, last)
        return self._more(self._base.rstrip() if self._whole else self._base + last)

    def finish(self, final: str) -> str:
        """Return what is left to show of the finished text."""
        return self._more(final)

    def _before(self, text: str, last: str) -> str:
        """The finished text up to the sentence that is still being written."""
        if not self._finished:
            return ""
        cited = self._check(text).text
        at = cited.rfind(last)
        return cited[:at] if at >= 0 else self._base

    def _more(self, target: str) -> str:
        if not target.startswith(self.shown):
            return ""
        more = target[len(self.shown) :]
        self.shown = target
        return more


def _may_refuse(text: str) -> bool:
    """Tell whether a text is, or may still become, the word for "no answer"."""
    begun = _SQUEEZED.sub("", text[:40]).casefold()
    return begun.startswith(_REFUSAL) or _REFUSAL.startswith(begun)

"""The ``[n]`` in the text of an answer: read as models write them, written in one form."""

from __future__ import annotations

import re
from dataclasses import dataclass

# As models write them: [1], [1, 2], [1-3], [[1]], 【1】, ［１］, [๑], [passage 1]. Repetitions are bounded, so that no
# text makes the search slow.
MARKER = re.compile(
    r"[\[【［〔]{1,3}[ \t]{0,3}(?:passages?|sources?)?[ \t]{0,3}"
    r"\d{1,9}(?:[ \t]{0,3}[,，、;；–—\-&][ \t]{0,3}\d{1,9}){0,40}[ \t]{0,3}[\]】］〕]{1,3}",
    re.IGNORECASE,
)
_RUN = re.compile(rf"(?:{MARKER.pattern}[ \t]{{0,2}}){{1,20}}", re.IGNORECASE)
_NUMBER = re.compile(r"(\d{1,9})(?:[ \t]*[–—\-][ \t]*(\d{1,9}))?")
_CLOSES_SENTENCE = re.compile(r"[ \t]*([.!?。！？…،؟।,;:]+)")


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a text where a passage is cited.

    Attributes:
        position: Offset in the text without markers: behind what the marker stands behind, or, for a marker that begins
            a line, behind the first character of what follows.
        number: Number of the passage.
    """

    position: int
    number: int


def read_markers(text: str, known: int) -> tuple[str, tuple[Mark, ...]]:
    """Take the markers out of a text.

    Args:
        text: Any text that a model wrote.
        known: How many passages there are; they have the numbers from 1. Other numbers were invented and disappear.

    Returns:
        The text without anything that reads as a marker, and the places where known passages were cited.
    """
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

"""The smallest stretches of a passage that are quoted: its sentences, and parts of those that are too long to read."""

from __future__ import annotations

import unicodedata

from agentic_retriever.text import split_sentences

MAX_SEGMENT_CHARS = 500


def segments(text: str) -> list[tuple[int, int]]:
    """Cut a text into what may be quoted.

    Args:
        text: Any text.

    Returns:
        Start and end of each segment, in order, without white space at the ends; together all that is not white space.
        A sentence of more than 500 characters, such as a list without full stops, is cut at its line breaks and then at
        the last space that fits.
    """
    found: list[tuple[int, int]] = []
    for sentence in split_sentences(text):
        found += _cut(text, sentence.start, sentence.end)
    return found


def _cut(text: str, start: int, end: int) -> list[tuple[int, int]]:
    if end - start <= MAX_SEGMENT_CHARS:
        return _trimmed(text, start, end)
    pieces: list[tuple[int, int]] = []
    while start < end:
        stop = _stop(text, start, end)
        pieces += _trimmed(text, start, stop)
        start = stop
    return pieces


def _stop(text: str, start: int, end: int) -> int:
    """Where the next piece of a long sentence ends."""
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


def _trimmed(text: str, start: int, end: int) -> list[tuple[int, int]]:
    piece = text[start:end]
    bare = piece.strip()
    first = start + len(piece) - len(piece.lstrip())
    return [(first, first + len(bare))] if bare else []

"""The frame around data in a prompt: lines that carry a mark which nobody who wrote the data could know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import SynthesisError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MIN_BOUNDARY: Final = 8
"""Fewest characters of a boundary."""


def occurs(boundary: str, query: str, passages: Sequence[tuple[int, str, str]]) -> bool:
    """Tell whether a boundary occurs in any of the texts, whatever its case.

    Args:
        boundary: The boundary.
        query: The question.
        passages: Number, header and text of each.
    """
    return _in_any(boundary, [query, *(text for _, header, body in passages for text in (header, body))])


def check_boundary(boundary: str, texts: Iterable[str], what: str) -> None:
    """Refuse a boundary that could be guessed or forged.

    Args:
        boundary: Letters and digits.
        texts: The data that it is to frame.
        what: Names the data in the message, such as ``"the question or in a passage"``.

    Raises:
        SynthesisError: If it is too simple or occurs in a text, whatever its case; draw another one.
    """
    if len(boundary) < MIN_BOUNDARY or not (boundary.isascii() and boundary.isalnum()):
        raise SynthesisError(f"the boundary must be {MIN_BOUNDARY} or more ASCII letters and digits; draw another")
    if _in_any(boundary, texts):
        raise SynthesisError(f"the boundary occurs in {what}; draw another")


def framed(boundary: str, name: str, lines: Iterable[str]) -> list[str]:
    """Put lines of data between two lines that carry the boundary.

    Args:
        boundary: A checked boundary.
        name: What stands between them, such as ``"question"``.
        lines: The data.
    """
    return [f"<<{boundary} {name}>>", *lines, f"<<{boundary} end of {name}>>"]


def flat(text: str) -> str:
    """Bring a text on one line, so that it cannot begin a line of its own."""
    return " ".join(text.split())


def marked(lines: Iterable[str], boundary: str) -> list[str]:
    """Fill the mark into lines of instruction; only our own lines pass here, never data."""
    return [line.replace("{mark}", boundary) for line in lines]


def _in_any(boundary: str, texts: Iterable[str]) -> bool:
    mark = boundary.casefold()
    return any(mark in text.casefold() for text in texts)

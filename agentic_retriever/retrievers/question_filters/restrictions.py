"""What the parts of a question ask for, before it becomes clauses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.retrievers.question_filters.compiler import Part
    from agentic_retriever.retrievers.question_filters.stream import Stream

SURE: Final = 0.7
UNSURE_BELOW: Final = 0.5

_SKIPPED: Final = frozenset("IGBOHRYEJ")
_MAX_LOOK: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """A restriction that a part of a question asks for.

    Attributes:
        part: The filter and what it says.
        certainty: In (0, 1].
        spans: Stretches of the folded question.
    """

    part: Part
    certainty: float
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A value that a field shall have: one of those that are joined to "one of".

    Attributes:
        value: The year, or what stands for it.
        certainty: In (0, 1].
        span: Its stretch of the folded question.
    """

    value: object
    certainty: float
    span: tuple[int, int]


def named_around(stream: Stream, first: int, behind: int) -> tuple[str, ...]:
    """Return the fields named before a stretch of a question, small words aside, or right behind it.

    Args:
        stream: The question.
        first: Number of the stretch's first thing.
        behind: Number of the thing behind it.
    """
    return fields_before(stream, first)[1] or fields_behind(stream, behind)


def fields_before(stream: Stream, first: int) -> tuple[int, tuple[str, ...]]:
    """Return where the name of a field stands before a stretch, and the fields; ``first`` and ``()`` without one."""
    for at in range(first - 1, max(-1, first - 1 - _MAX_LOOK), -1):
        item = stream.items[at]
        if item.symbol == "F":
            return at, item.value
        if item.symbol not in _SKIPPED:
            break
    return first, ()


def fields_behind(stream: Stream, behind: int) -> tuple[str, ...]:
    """Return the fields that are named right behind a stretch."""
    if behind < len(stream.items) and stream.items[behind].symbol == "F":
        names: tuple[str, ...] = stream.items[behind].value
        return names
    return ()


HasCertainty = TypeVar("HasCertainty")


def surest(things: Sequence[HasCertainty]) -> list[HasCertainty]:
    """Leave out what is unsure where something else for the same field is sure, so that it cannot widen that."""
    certainties = [float(getattr(thing, "certainty", 0.0)) for thing in things]
    if max(certainties, default=0.0) < SURE:
        return list(things)
    return [thing for thing, certainty in zip(things, certainties, strict=True) if certainty >= UNSURE_BELOW]

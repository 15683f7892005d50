"""Comparisons: one question about each of the things that are compared."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agentic_retriever.retrievers.planning.tables import folded

if TYPE_CHECKING:
    from agentic_retriever.retrievers.planning.tables import ClauseTable

_MAX_ITEM: Final = 160
_STOP: Final = re.compile(r"[:;?？!]|\.\s|,\s(?=\S{0,30}\s)")
_HARD_STOP: Final = re.compile(r"[:;?？!]|\.\s")
_COMMA: Final = re.compile(r"\s*[,;、]\s*")
# In scripts without spaces between words, one stands between clauses; beside a number it only sets that off.
_PAUSE: Final = re.compile(r"(?<![\d\s])\s+(?![\d\s])|(?<=\d)\s+(?=\S{8})")
_EDGES: Final = " ,;:.?？!¿¡"


def compared(text: str, table: ClauseTable) -> list[str]:
    """Cut a comparison into one question for each thing compared.

    ``compare the price of A and B in 2024`` becomes ``the price of A in 2024`` and ``the price of B in 2024``.

    Args:
        text: The question.
        table: The table of its language.

    Returns:
        Two questions or more, or ``[]`` for a text that compares nothing.
    """
    plain = folded(text)
    opener = table.openers.search(plain)
    versus = table.versus.search(plain)
    if versus is not None:
        start = opener.end() if opener is not None and opener.end() <= versus.start() else _clause_start(plain, versus)
        end = _tail_start(plain, versus.end(), table)
        items = [text[start : versus.start()], text[versus.end() : end]]
        return _questions(items, text[end:], table)
    if opener is None:
        return []
    return _behind_opener(text, plain, opener.end(), table)


def _clause_start(plain: str, versus: re.Match[str]) -> int:
    stops = list(_HARD_STOP.finditer(plain, 0, versus.start()))
    return stops[-1].end() if stops else 0


def _behind_opener(text: str, plain: str, start: int, table: ClauseTable) -> list[str]:
    joint = table.joints.search(plain, start)
    strong = table.strong_joints.search(plain, start)
    first = min((match.end() for match in (joint, strong) if match), default=None)
    if first is None:
        return []
    stop = _HARD_STOP.search(plain, start)
    end = min(_tail_start(plain, first, table), stop.start() if stop else len(plain))
    if strong is not None and strong.end() < end:
        return _questions([text[start : strong.start()], text[strong.end() : end]], text[end:], table)
    last = list(table.joints.finditer(plain, start, end))
    if not last:
        return []
    listed = _COMMA.split(text[start : last[-1].start()])
    return _questions([*listed, text[last[-1].end() : end]], text[end:], table)


def _tail_start(plain: str, start: int, table: ClauseTable) -> int:
    """Where that begins which things are compared in, behind the last of them."""
    found = [table.about.search(plain, start), (_STOP if table.spaced else _PAUSE).search(plain, start)]
    ends = [match.start() for match in found if match is not None and plain[start : match.start()].strip(_EDGES)]
    return min(ends, default=len(plain))


def _questions(items: list[str], tail: str, table: ClauseTable) -> list[str]:
    things = [item.strip(_EDGES) for item in items]
    if len(things) < 2 or any(not thing or len(thing) > _MAX_ITEM for thing in things):
        return []
    head, things[0] = _topic(things, table)
    behind = " ".join(tail.split()).strip(_EDGES)
    return [" ".join(part for part in (head, thing, behind) if part) for thing in things]


def _topic(things: list[str], table: ClauseTable) -> tuple[str, str]:
    """Divide ``the price of A`` when the other things are bare, as in ``the price of A and B``."""
    first = things[0]
    divided = list(table.belongs.finditer(folded(first)))
    if not divided or any(table.belongs.search(folded(thing)) for thing in things[1:]):
        return "", first
    at = divided[-1].end()
    return first[:at].strip(), first[at:].strip() or first

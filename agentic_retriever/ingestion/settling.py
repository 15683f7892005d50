"""Headings judged by the document they stand in: monotone numbers, contents lists, references at a line start."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.ingestion.headings import Heading

_MIN_EMPTY = 3
_MAX_STEP = 10
_LETTER = 1000


def settle(headings: Sequence[Heading | None]) -> list[Heading | None]:
    """Take back the candidates that the whole document speaks against.

    Explicit Markdown headings always stay. Taken back are: lists of headings without any text between them (a table of
    contents); ``1.``-style ones in a document with Markdown headings, or that are no series 1, 2, ... and have no
    ``1.1`` below them; numbers that run backwards or leap; and articles in the middle of a block that are not the next
    article.

    Args:
        headings: For each block of the document its candidate, or ``None`` for body text.

    Returns:
        The same sequence with ``None`` in place of what was taken back.
    """
    kept = list(headings)
    for at in _contents_lists(kept) | _lone_singles(kept):
        kept[at] = None
    last_number: tuple[int, ...] | None = None
    last_article: int | None = None
    for at, heading in enumerate(kept):
        if heading is None or heading.origin == "markdown":
            continue
        if heading.origin == "legal":
            article = _leading_int(heading.article)
            if heading.weak and not _next_article(heading, article, last_article):
                kept[at] = None
                continue
            last_article = article or last_article
            last_number = None
        elif _follows(last_number, _parts(heading.number)):
            last_number = _parts(heading.number)
        else:
            kept[at] = None
    return kept


def _contents_lists(headings: Sequence[Heading | None]) -> set[int]:
    """Return the members of chains of headings of which three or more have neither text nor a deeper heading below."""
    doomed: set[int] = set()
    chain: list[int] = []
    for at, heading in enumerate([*headings, None]):
        if heading is not None and heading.origin != "markdown":
            chain.append(at)
            if not heading.inline:
                continue
        doomed.update(_empty_chain(chain, headings))
        chain = []
    return doomed


def _empty_chain(chain: Sequence[int], headings: Sequence[Heading | None]) -> Sequence[int]:
    members = [heading for at in chain if (heading := headings[at]) is not None]
    empty = sum(after.level <= heading.level for heading, after in pairwise(members))
    return chain if empty >= _MIN_EMPTY - 1 else ()


def _lone_singles(headings: Sequence[Heading | None]) -> set[int]:
    singles = {at: int(heading.number) for at, heading in enumerate(headings) if heading and heading.origin == "single"}
    if any(heading is not None and heading.origin == "markdown" for heading in headings):
        return set(singles)
    present = set(singles.values())
    parents = {
        heading.number.split(".")[0] for heading in headings if heading is not None and heading.origin == "numbered"
    }

    def in_series(number: int) -> bool:
        return str(number) in parents or number - 1 in present or (number == 1 and 2 in present)

    return {at for at, number in singles.items() if not in_series(number)}


def _parts(number: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else _LETTER + ord(part) for part in number.split("."))


def _follows(last: tuple[int, ...] | None, number: tuple[int, ...]) -> bool:
    if last is None or set(number) == {1} or number[0] > _LETTER > last[0]:
        return True
    if number <= last:
        return False
    shared = next((at for at, (one, two) in enumerate(zip(last, number, strict=False)) if one != two), len(last))
    return number[shared] - (last[shared] if shared < len(last) else 0) <= _MAX_STEP


def _leading_int(article: str) -> int | None:
    digits = re.match(r"\d+", article)
    return int(digits[0]) if digits else None


def _next_article(heading: Heading, article: int | None, last: int | None) -> bool:
    if not heading.article:
        return False
    return article is not None and last is not None and article - last in {0, 1} and heading.article != str(last)

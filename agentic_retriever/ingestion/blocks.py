"""A text as a sequence of blocks: headings, paragraphs, lists, tables, code, each a span of the source."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from agentic_retriever.ingestion.headings import (
    Heading,
    LineContext,
    extends_title,
    find_heading,
    is_bare,
    label,
)
from agentic_retriever.ingestion.settling import settle

BlockKind = Literal["heading", "text", "list", "table", "code"]

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)$")
_UNDERLINE = re.compile(r" {0,3}(={3,}|-{3,})[ \t\r]*$")
_DELIMITER_CELL = re.compile(r"[ \t]*:?-+:?[ \t\r]*")
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*+•]|\(?(?:\d{1,3}|[A-Za-z])[.)])[ \t]+\S")
_MAX_ROW_CHARS = 20_000
_MAX_SETEXT_CHARS = 200


@dataclass(frozen=True, slots=True)
class Block:
    """A span of the source that holds one kind of thing; it begins and ends with a visible character.

    Attributes:
        start: First character.
        end: One past the last character.
        kind: What it holds.
        heading: The heading that this block is, or whose label a text block begins with.
    """

    start: int
    end: int
    kind: BlockKind
    heading: Heading | None = None


def scan_blocks(text: str, *, start: int = 0, markup: bool = True) -> list[Block]:
    r"""Divide a text into blocks. Every visible character from ``start`` on is in exactly one.

    Args:
        text: The whole text; lines end with ``\n``.
        start: Where to begin, in characters: behind the front matter.
        markup: Whether ``#`` headings, underlined headings and fenced code count; not in text from a PDF.

    Returns:
        The blocks in order, not overlapping.
    """
    blocks = _Scanner(text, start, markup=markup).scan()
    headings = settle([block.heading for block in blocks])
    return _rejoin(text, blocks, headings)


def _rejoin(text: str, blocks: list[Block], headings: list[Heading | None]) -> list[Block]:
    """Put lines that turned out to be no headings back into the paragraph that they were taken from."""
    joined: list[Block] = []
    loose = False
    for block, heading in zip(blocks, headings, strict=True):
        demoted = block.heading is not None and heading is None
        kind: BlockKind = "list" if demoted and _LIST_ITEM.match(text[block.start : block.end]) else block.kind
        current = replace(block, heading=heading, kind="text" if demoted and kind == "heading" else kind)
        last = joined[-1] if joined else None
        if last and (loose or demoted) and _same_paragraph(text, last, current):
            joined[-1] = replace(last, end=current.end)
        else:
            joined.append(current)
        loose = demoted
    return joined


def _same_paragraph(text: str, last: Block, current: Block) -> bool:
    prose = {"text", "list"}
    one_line_end = text.count("\n", last.end, current.start) <= 1
    return last.kind in prose and current.kind in prose and current.heading is None and one_line_end


class _Scanner:
    """Walks over the lines once."""

    def __init__(self, text: str, start: int, *, markup: bool) -> None:
        self._text = text
        self._markup = markup
        self._spans = _line_spans(text, start)
        self._at = 0
        self._after_heading = False
        self._unclosed: dict[str, int] = {}
        self._blank_from = self._next_visible()

    def scan(self) -> list[Block]:
        blocks: list[Block] = []
        while self._at < len(self._spans):
            if not self._line(self._at).strip():
                self._at += 1
                continue
            block = self._heading() or self._code() or self._table() or self._prose()
            self._after_heading = block.kind == "heading"
            blocks.append(block)
        return blocks

    def _line(self, at: int) -> str:
        if not 0 <= at < len(self._spans):
            return ""
        start, end = self._spans[at]
        return self._text[start:end]

    def _next_visible(self) -> list[int]:
        """Return for each line the first line from it on that is not blank."""
        following = [len(self._spans)] * (len(self._spans) + 2)
        for at in range(len(self._spans) - 1, -1, -1):
            start, end = self._spans[at]
            following[at] = following[at + 1] if self._text[start:end].isspace() or start == end else at
        return following

    def _context(self, at: int, *, at_break: bool) -> LineContext:
        after = self._line(at + 1)
        return LineContext(
            before="" if at_break else self._line(at - 1),
            after=after if after.strip() else "",
            next_text=self._line(self._blank_from[at + 1]),
            at_break=at_break,
        )

    def _block(self, first: int, last: int, kind: BlockKind, heading: Heading | None = None) -> Block:
        """Make a block of the lines ``first`` to ``last`` and go on behind it."""
        self._at = last + 1
        start, end = self._spans[first][0], self._spans[last][1]
        source = self._text[start:end]
        start, end = end - len(source.lstrip()), start + len(source.rstrip())
        return Block(start, end, kind, heading)

    def _at_break(self, at: int) -> bool:
        return at == 0 or not self._line(at - 1).strip() or (self._after_heading and at == self._at)

    def _candidate(self, at: int) -> Heading | None:
        line = self._line(at)
        if line.lstrip()[:1] == "#" and not self._markup:
            return None
        return find_heading(line, self._context(at, at_break=self._at_break(at)))

    def _heading(self) -> Block | None:
        at = self._at
        heading = self._candidate(at)
        if heading is None:
            return self._setext()
        if heading.inline:
            return self._prose(heading)
        below = self._blank_from[at + 1]
        if is_bare(heading) and below - at <= 2 and below < len(self._spans):
            context = self._context(below, at_break=True)
            if extends_title(self._line(below), context.after, context.next_text):
                title = f"{heading.title.rstrip(' .:')}. {self._line(below).strip()}"
                return self._block(at, below, "heading", replace(heading, title=title))
        return self._block(at, at, "heading", heading)

    def _setext(self) -> Block | None:
        line, below = self._line(self._at), self._line(self._at + 1)
        if not self._markup or not self._at_break(self._at) or len(line) > _MAX_SETEXT_CHARS:
            return None
        underline = _UNDERLINE.match(below)
        if underline is None or "|" in line or _LIST_ITEM.match(line) or _UNDERLINE.match(line):
            return None
        heading = label(line.strip(), level=1 if underline[1][0] == "=" else 2)
        return self._block(self._at, self._at + 1, "heading", heading)

    def _code(self) -> Block | None:
        found = _FENCE.match(self._line(self._at)) if self._markup else None
        if found is None or (found[1][0] == "`" and "`" in found[2]):
            return None
        mark = found[1][0]
        if len(found[1]) >= self._unclosed.get(mark, len(self._text) + 1):
            return None
        for at in range(self._at + 1, len(self._spans)):
            closing = _FENCE.match(self._line(at))
            if closing and closing[1][0] == mark and len(closing[1]) >= len(found[1]) and not closing[2].strip():
                return self._block(self._at, at, "code")
        # A fence that is never closed is taken as text, so that one slip does not swallow the rest of the document.
        self._unclosed[mark] = len(found[1])
        return None

    def _is_row(self, at: int) -> bool:
        line = self._line(at).strip()
        return line[:1] == "|" and line.count("|", 0, _MAX_ROW_CHARS) > 1

    def _has_delimiter_below(self, at: int) -> bool:
        line, below = self._line(at), self._line(at + 1)
        if "|" not in line or "|" not in below or len(below) > _MAX_ROW_CHARS:
            return False
        return all(_DELIMITER_CELL.fullmatch(cell) for cell in below.strip().strip("|").split("|"))

    def _starts_table(self, at: int) -> bool:
        return self._is_row(at) or self._has_delimiter_below(at)

    def _table(self) -> Block | None:
        if not self._starts_table(self._at):
            return None
        headed = self._has_delimiter_below(self._at)
        at = self._at + 1
        while self._is_row(at) or (headed and "|" in self._line(at)):
            at += 1
        return self._block(self._at, at - 1, "table")

    def _prose(self, heading: Heading | None = None) -> Block:
        first = self._at
        is_list = heading is None and bool(_LIST_ITEM.match(self._line(first)))
        at = first + 1
        while self._goes_on(at, is_list=is_list):
            at += 1
        return self._block(first, at - 1, "list" if is_list else "text", heading)

    def _goes_on(self, at: int, *, is_list: bool) -> bool:
        line = self._line(at)
        if not line.strip() or self._starts_table(at):
            return False
        if self._markup and _FENCE.match(line):
            return False
        if not is_list and _LIST_ITEM.match(line):
            return False
        return self._candidate(at) is None


def _line_spans(text: str, start: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        spans.append((start, end))
        start = end + 1
    return spans

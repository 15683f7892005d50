"""Blocks grouped under the headings that they stand below."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentic_retriever.ingestion.blocks import Block, scan_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.ingestion.headings import Heading


@dataclass(slots=True)
class Section:
    """The blocks between one heading and the next.

    Attributes:
        path: The headings around it, outermost first; empty for text above the first heading.
        blocks: Its own heading (with those above it that have no text of their own), then its body.
    """

    path: tuple[Heading, ...]
    blocks: list[Block] = field(default_factory=list)

    @property
    def number(self) -> str:
        """Number of the innermost numbered heading, such as ``"6.2.1"``, or ``""``."""
        return next((heading.number for heading in reversed(self.path) if heading.number), "")

    @property
    def article(self) -> str:
        """Number of the article that it lies in, such as ``"42"``, or ``""``."""
        return next((heading.article for heading in reversed(self.path) if heading.article), "")


def split_sections(text: str, *, start: int = 0, markup: bool = True) -> list[Section]:
    """Divide a text at its headings.

    Args:
        text: The source.
        start: Where to begin, in characters.
        markup: Whether Markdown headings and fences count.

    Returns:
        The sections in order, none without blocks; a heading without body has joined the section below it.
    """
    sections: list[Section] = []
    current = Section(())
    waiting: list[Block] = []
    for block in scan_blocks(text, start=start, markup=markup):
        heading = block.heading
        if heading is None:
            current.blocks.extend([*waiting, block])
            waiting = []
            continue
        if current.blocks:
            sections.append(current)
        current = Section((*_enclosing(current.path, heading), heading))
        if block.kind == "heading":
            waiting.append(block)
        else:
            current.blocks.extend([*waiting, block])
            waiting = []
    current.blocks.extend(waiting)
    return [*sections, current] if current.blocks else sections


def joined(sections: Sequence[Section]) -> Section:
    """Make one section of several.

    Args:
        sections: At least one section.

    Returns:
        A section with all their blocks, below the headings that all of them share.
    """
    paths = [section.path for section in sections]
    shared = [level[0] for level in zip(*paths, strict=False) if all(one is level[0] for one in level)]
    return Section(tuple(shared), [block for section in sections for block in section.blocks])


def _enclosing(path: tuple[Heading, ...], heading: Heading) -> tuple[Heading, ...]:
    return tuple(outer for outer in path if outer.level < heading.level)

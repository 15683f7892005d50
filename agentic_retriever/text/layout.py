"""Where the lines of a text belong together, so that sentences are looked for only inside such blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agentic_retriever.text.scripts import Script, script_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# A heading, a table row, a rule, an underline or a code fence: a line that is one with neither neighbour.
_ALONE_RE: Final = re.compile(r"\s*(?:#{1,6}\s|\||```|~~~|(?:[-=*_]\s*){3,}$|[^\t]*\t[^\t]*\t|[^|]*\|[^|]*\|)")
_ITEM_RE: Final = re.compile(r"\s*(?:>\s*)*(?:[-*+•‣◦▪●·–—]|\(?(?:[0-9]{1,3}|[A-Za-z]|[ivxIVX]{2,5})[.)])\s+\S")
_SECTION_RE: Final = re.compile(r"\s*(?:§+\s*)?[0-9]{1,3}(?:\.[0-9]{1,3})+\.?\s+\S")
_OPEN_ENDS: Final = (",", ";", "-", "(", "[", "،", "、", "，")
_ENDS_BY_LINE: Final = frozenset({Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR})

# In characters: lines up to these lengths are titles or entries rather than wrapped prose.
_SHORT: Final = 40
_SHORT_SECTION: Final = 80


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that belong together.

    Attributes:
        start: Offset of the first character.
        end: Offset behind the last character.
        whole: Whether the block is a heading, table row or rule, which is one sentence whatever stands in it.
    """

    start: int
    end: int
    whole: bool


def blocks(text: str) -> Iterator[Block]:
    """Cut a text into blocks of lines over which a sentence may run on.

    A blank line ends a block, and so does the beginning of a list item or numbered section; a Markdown heading, a table
    row or a rule is a block of its own. Other lines run on, save after a short line or one in a script that has no full
    stop.

    Args:
        text: Any text.

    Yields:
        Blocks in order that together hold every character that is not white space.
    """
    start = end = 0
    previous = ""
    for line in text.splitlines(keepends=True):
        content = line.strip()
        if previous and (not content or _breaks(previous, line, content)):
            yield Block(start, end, _ALONE_RE.match(previous) is not None)
            start = end
        end += len(line)
        if not content:
            start = end
        previous = content
    if previous:
        yield Block(start, end, _ALONE_RE.match(previous) is not None)


def _breaks(previous: str, line: str, content: str) -> bool:
    """Tell whether a line begins a new block after another that is not blank."""
    if _ALONE_RE.match(previous) or _ALONE_RE.match(line) or _ITEM_RE.match(line) or _SECTION_RE.match(line):
        return True
    if script_of(previous[-1]) in _ENDS_BY_LINE:
        return True
    short = _SHORT_SECTION if _SECTION_RE.match(previous) else _SHORT
    return len(previous) <= short and not previous.endswith(_OPEN_ENDS) and not content[0].islower()

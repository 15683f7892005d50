"""The sentences among which the extractor chooses, with what stands around them."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentic_retriever.synthesis.segments import segments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.synthesis.context import ContextPassage
    from agentic_retriever.text import Tokenizer

_LEAD_CHARS = 48
_BULLET = re.compile(r"(?:[-*+•‣▪>]+\s+)+(?=\S)")
_ITEM = re.compile(r"\s*(?:(?P<sign>[-*+•‣▪])|\(?(?:(?P<digit>\d{1,3})|(?P<letter>[^\W\d_]{1,4}))[.)])\s+\S")
_HEADING = re.compile(r"#{1,6}\s")
_SECTION_LINE = re.compile(r"(?:\d+\.)+\d*\s+\S.{0,78}")
_TABLE_RULE = re.compile(r"[\s|:+=_*—–-]+")
_ENDS = tuple(".!?:;。！？…។။।")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A sentence that may be quoted.

    Attributes:
        passage: Where it stands.
        position: Its place among the passage's segments, from 0; neighbours differ by one.
        start: Offset of its first character in the passage's text, behind a list bullet.
        end: Offset behind its last character.
        terms: Its distinct terms.
        item: The kind of list item it is, ``"sign"``, ``"digit"`` or ``"letter"``, or ``""``.
        lead: Distinct terms of its first 48 characters or so, where a sentence says what it is about.
        around: Distinct terms of the title, the heading above it and the head of its table.
        width: Its length in characters, those as wide as two Latin ones counted three times: a Chinese sign says as
            much as three letters.
    """

    passage: ContextPassage
    position: int
    start: int
    end: int
    terms: frozenset[str]
    item: str
    lead: frozenset[str]
    around: frozenset[str]
    width: int

    @property
    def text(self) -> str:
        """The sentence, verbatim."""
        return self.passage.text[self.start : self.end]

    @property
    def in_context(self) -> str:
        """The sentence below its title and section, as it is embedded: alone it seldom says what it is about."""
        return f"{self.passage.header}\n{self.text}" if self.passage.header else self.text


def candidates(passages: Sequence[ContextPassage], tokenizer: Tokenizer) -> list[Candidate]:
    """List the sentences of some passages, without headings, heads and rules of tables, and repetitions.

    Args:
        passages: Best first.
        tokenizer: Cuts sentences into terms.

    Returns:
        Candidates in order of the passages; everything that is not blank when nothing but headings and rules is there.
    """
    found: list[Candidate] = []
    seen: set[str] = set()
    for passage in passages:
        everything = _read(passage, tokenizer)
        for candidate in [c for c, quotable in everything if quotable] or [c for c, _ in everything]:
            said = " ".join(candidate.text.split())
            if said not in seen:
                seen.add(said)
                found.append(candidate)
    return found


def _read(passage: ContextPassage, tokenizer: Tokenizer) -> list[tuple[Candidate, bool]]:
    """Walk through a passage, remembering heading and table head; tells which of its sentences can be quoted."""
    text = passage.text
    spans = segments(text)
    pieces = [text[start:end] for start, end in spans]
    title = frozenset(tokenizer.tokens(passage.header))
    heading: frozenset[str] = frozenset()
    table: frozenset[str] = frozenset()
    found: list[tuple[Candidate, bool]] = []
    for position, (piece, (begin, end)) in enumerate(zip(pieces, spans, strict=True)):
        bullet = _BULLET.match(piece)
        start = begin + (bullet.end() if bullet else 0)
        tokens = tokenizer.tokens(text[start:end])
        terms = frozenset(tokens)
        is_heading, is_head = _is_heading(piece), _is_table_head(pieces, position)
        table = table if piece.startswith("|") else frozenset()
        candidate = Candidate(
            passage=passage,
            position=position,
            start=start,
            end=end,
            terms=terms,
            lead=frozenset(tokens[: len(tokens) * _LEAD_CHARS // (end - start) + 1]),
            item=_item_kind(piece),
            around=title | heading | table,
            width=_width(text[start:end]),
        )
        found.append((candidate, not (is_heading or is_head or _TABLE_RULE.fullmatch(piece))))
        heading = terms if is_heading else heading
        table = terms if is_head else table
    return found


def _item_kind(piece: str) -> str:
    item = _ITEM.match(piece)
    return (item.lastgroup or "") if item else ""


def _is_heading(piece: str) -> bool:
    if _HEADING.match(piece):
        return True
    # "6.2.1. Presencia" is a heading, "1. The tyres shall be new." is not.
    return _SECTION_LINE.fullmatch(piece) is not None and not piece.endswith(_ENDS)


def _is_table_head(pieces: Sequence[str], position: int) -> bool:
    behind = pieces[position + 1] if position + 1 < len(pieces) else ""
    return pieces[position].startswith("|") and "-" in behind and _TABLE_RULE.fullmatch(behind) is not None


def _width(text: str) -> int:
    return len(text) + 2 * sum(unicodedata.east_asian_width(char) in "WF" for char in text)

"""Blocks to chunks: whole blocks while they fit, then sentences, rows and lines, then cuts between tokens."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from agentic_retriever.ingestion.tokens import count_tokens, take
from agentic_retriever.text import split_sentences

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentic_retriever.ingestion.blocks import Block, BlockKind


@dataclass(frozen=True, slots=True)
class Chunk:
    """A span of the source that becomes one node.

    Attributes:
        start: First character.
        end: One past the last character.
        kinds: Kinds of the blocks that it holds, wholly or in part.
    """

    start: int
    end: int
    kinds: frozenset[BlockKind]


@dataclass(frozen=True, slots=True)
class _Unit:
    """A piece that is moved as a whole: a block, then its sentences, rows or lines, then pieces between cuts."""

    start: int
    end: int
    kind: BlockKind
    depth: int = 0
    cost: int = 0
    repeated: bool = False


_BLOCK, _SENTENCE, _CUT = 0, 1, 2


def pack(text: str, blocks: Iterable[Block], *, size: int, overlap: int = 0) -> list[Chunk]:
    """Pack the blocks of one section into chunks.

    Blocks are kept whole when they fit into ``size``. A larger paragraph is divided at sentences, a larger table
    between rows, larger lists and code between lines, and a single sentence or line that is still too large between
    tokens. A chunk begins with up to ``overlap`` tokens of whole sentences from the end of the chunk before it; tables
    and code are not repeated. A heading is not left alone at the end of a chunk when the block below it can be divided.

    Args:
        text: The source.
        blocks: Blocks in order, as ``scan_blocks`` gives them.
        size: Most tokens in a chunk.
        overlap: Most tokens repeated from the chunk before, below ``size``.

    Returns:
        The chunks in order. Each begins and ends with a visible character, and together they hold every block.
    """
    blocks = list(blocks)
    if blocks and count_tokens(text[blocks[0].start : blocks[-1].end]) <= size:
        return [Chunk(blocks[0].start, blocks[-1].end, frozenset(block.kind for block in blocks))]
    return _Packer(text, size, overlap).pack(blocks)


class _Packer:
    def __init__(self, text: str, size: int, overlap: int) -> None:
        self._text = text
        self._size = size
        self._overlap = overlap
        self._current: list[_Unit] = []
        self._used = 0
        self._queue: deque[_Unit] = deque()
        self._chunks: list[Chunk] = []

    def pack(self, blocks: Iterable[Block]) -> list[Chunk]:
        self._queue.extend(_Unit(block.start, block.end, block.kind) for block in blocks)
        while self._queue:
            unit = self._queue.popleft()
            unit = replace(unit, cost=self._cost(unit))
            if self._used + unit.cost <= self._size or self._fits(unit):
                self._add(unit)
            else:
                self._make_room(unit)
            if not self._queue:
                self._close()
        return self._chunks

    def _add(self, unit: _Unit) -> None:
        self._current.append(unit)
        self._used += unit.cost

    def _fits(self, unit: _Unit) -> bool:
        """Count again together, which is less than the sum where tokens reach over the borders of units."""
        if not self._current:
            return False
        together = count_tokens(self._text[self._current[0].start : unit.end]) if unit.cost <= self._size else unit.cost
        if together > self._size:
            return False
        self._used = together - unit.cost
        return True

    def _cost(self, unit: _Unit) -> int:
        """Count the unit together with the white space that parts it from the one before."""
        start = self._current[-1].end if self._current else unit.start
        return count_tokens(self._text[start : unit.end])

    def _make_room(self, unit: _Unit) -> None:
        """Do the first of these that helps, and look at the unit again: drop overlap, divide it, close the chunk."""
        if self._current and self._current[0].repeated and all(one.repeated for one in self._current):
            self._used -= self._current.pop(0).cost
            self._queue.appendleft(unit)
            return
        too_large = count_tokens(self._text[unit.start : unit.end]) > self._size
        below_heading = bool(self._current) and all(one.kind == "heading" for one in self._current)
        if too_large or (below_heading and unit.depth == _BLOCK and unit.kind in {"text", "list"}):
            pieces = self._finer(unit)
            if pieces:
                self._queue.extendleft(reversed(pieces))
                return
        if not self._current:
            # One character of more tokens than a chunk may have: it cannot be left out.
            self._add(unit)
            return
        self._queue.appendleft(unit)
        self._close()

    def _close(self) -> None:
        """Make a chunk of the current units, handing back what the sum of their costs had let in by mistake."""
        while self._current and self._tokens() > self._size and len(self._current) > 1:
            if self._current[0].repeated:
                self._current.pop(0)
            else:
                self._queue.appendleft(self._current.pop())
        if not self._current or all(one.repeated for one in self._current):
            self._restart([])
            return
        if self._tokens() > self._size and (pieces := self._finer(self._current[0])):
            self._queue.extendleft(reversed(pieces))
            self._restart([])
            return
        kinds = frozenset(unit.kind for unit in self._current)
        self._chunks.append(Chunk(self._current[0].start, self._current[-1].end, kinds))
        self._restart(self._tail() if self._queue else [])

    def _restart(self, tail: list[_Unit]) -> None:
        self._current = tail
        self._used = sum(unit.cost for unit in tail)

    def _tokens(self) -> int:
        return count_tokens(self._text[self._current[0].start : self._current[-1].end])

    def _tail(self) -> list[_Unit]:
        """Return the last whole sentences of the chunk that fit into the overlap."""
        tail: list[_Unit] = []
        room = self._overlap
        for unit in reversed(self._current):
            if room <= 0 or unit.kind not in {"text", "list"} or unit.depth == _CUT:
                break
            for piece in reversed(self._divide(unit) if unit.depth == _BLOCK else [unit]):
                cost = count_tokens(self._text[piece.start : tail[0].start if tail else piece.end])
                room -= cost
                if room < 0 or piece.depth == _CUT:
                    return tail
                tail.insert(0, replace(piece, cost=cost, repeated=True))
        return tail

    def _finer(self, unit: _Unit) -> Sequence[_Unit]:
        """Return the next smaller pieces, or nothing when the unit is as small as can be."""
        pieces = self._divide(unit)
        return pieces if len(pieces) > 1 or pieces[0].depth > unit.depth else ()

    def _divide(self, unit: _Unit) -> Sequence[_Unit]:
        """Return the next smaller pieces of a unit."""
        if unit.depth == _BLOCK and unit.kind == "text":
            spans = sentence_spans(self._text, unit.start, unit.end)
        elif unit.depth == _BLOCK and unit.kind != "heading":
            spans = _line_pieces(self._text, unit.start, unit.end)
        elif unit.depth == _SENTENCE and unit.kind == "list":
            spans = sentence_spans(self._text, unit.start, unit.end)
        else:
            return [_Unit(start, end, unit.kind, _CUT) for start, end in self._cuts(unit)]
        depth = unit.depth + 1
        if len(spans) == 1 and depth == _CUT:
            return self._divide(replace(unit, kind="text", depth=_SENTENCE))
        return [_Unit(start, end, unit.kind, min(depth, _SENTENCE)) for start, end in spans]

    def _cuts(self, unit: _Unit) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = []
        start = unit.start
        while start < unit.end:
            end = take(self._text, start, unit.end, self._size)
            spans.extend(trimmed(self._text, start, end))
            start = end
        return spans


def sentence_spans(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Divide a span at its sentences so that no visible character is lost.

    Args:
        text: The source.
        start: First character of the span.
        end: One past its last character.

    Returns:
        Start and end of each sentence, without the white space around it; at least one for a span with visible text.
    """
    starts = [start + sentence.start for sentence in split_sentences(text[start:end])]
    borders = [start, *(at for at in starts[1:] if start < at < end), end]
    return [span for left, right in pairwise(borders) for span in trimmed(text, left, right)]


def trimmed(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Take the white space off both ends of a span.

    Args:
        text: The source.
        start: First character of the span.
        end: One past its last character.

    Returns:
        The one span that is left, or nothing when all of it is white space.
    """
    piece = text[start:end]
    left, right = end - len(piece.lstrip()), start + len(piece.rstrip())
    return [(left, right)] if left < right else []


def _line_pieces(text: str, start: int, end: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    while start < end:
        stop = text.find("\n", start, end)
        stop = end if stop < 0 else stop + 1
        spans.extend(trimmed(text, start, stop))
        start = stop
    return spans

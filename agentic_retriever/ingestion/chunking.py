"""Source documents to text nodes: settings and metadata first, then leaves, packing, and tokens."""

from __future__ import annotations

import base64
import unicodedata
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib import resources
from itertools import pairwise
from pathlib import PurePath
from typing import Final, NamedTuple

import tiktoken
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, RelatedNodeType, TextNode

from agentic_retriever.errors import ConfigError, IndexingError
from agentic_retriever.ingestion.documents import SourceDocument, parse_front_matter
from agentic_retriever.ingestion.structure import (
    LINE,
    Block,
    BlockKind,
    Heading,
    Section,
    scan_blocks,
    shared_path,
    split_sections,
    table_head,
)
from agentic_retriever.text import UNDETERMINED, detect_language, split_sentences
from agentic_retriever.text.references import find_references
from agentic_retriever.text.scripts import LEADING_VOWELS

CHUNKING_VERSION = 2  # raised whenever the same document and settings would give other nodes than before
# The metadata that is embedded and searched by words together with the text, in this order.
EMBEDDED_KEYS = ("title", "section", "table_header")
SECTION_STARTS: Final = "section_starts"
MAPPED_SECTION: Final = "mapped_section"  # the title of its section that only a map of these knows (see sections.py)
# What only programs read.
_KEPT: Final = ("article_number", "parent", "heading_hierarchy", "cross_references")
_HIDDEN: Final = frozenset(
    {SECTION_STARTS, "page_starts", "heading_hierarchy", "parent", "cross_references", "content_hash"}
)
MIN_TOKENS: Final = 100  # a chunk with fewer says too little to be understood alone
_LITTLE: Final = 0.4  # of that is needed where the neighbours are about something else
LEAF_SIZE: Final = 128  # tokens: a few sentences, small enough to tell one statement of a chunk from the next
_MIN_SIZE = 8
_MAX_SIZE = 100_000
_LANGUAGE_SAMPLE = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSettings:
    """How large nodes are, in tokens as ``count_tokens`` counts them."""

    chunk_size: int = 512
    chunk_overlap: int = 50
    leaf_size: int = LEAF_SIZE

    def __post_init__(self) -> None:
        _check("chunk_size", self.chunk_size, _MIN_SIZE, _MAX_SIZE)
        _check("chunk_overlap", self.chunk_overlap, 0, self.chunk_size - 1)
        _check("leaf_size", self.leaf_size, _MIN_SIZE, self.chunk_size)

    @property
    def fingerprint(self) -> str:
        return f"v{CHUNKING_VERSION}-{self.chunk_size}-{self.chunk_overlap}-{self.leaf_size}"


def chunk_document(doc: SourceDocument, settings: ChunkSettings, *, size: int | None = None) -> list[TextNode]:
    """Cut a document into nodes along its headings, blocks and sentences.

    ``node.text`` is exactly ``doc.text[node.start_char_idx:node.end_char_idx]``, and every visible character behind the
    front matter is in at least one node. ``page_starts`` count in the document, ``section_starts`` in the node's text.
    """
    if size is not None:
        _check("size", size, _MIN_SIZE, _MAX_SIZE)
    limit = size or settings.chunk_size
    overlap = settings.chunk_overlap if size is None else min(settings.chunk_overlap, limit // 2)
    least = min(MIN_TOKENS, limit // 2)
    front = parse_front_matter(doc.text) if doc.kind == "md" else None
    start = front.end if front else 0
    sections = split_sections(doc.text, start=start)
    is_record = doc.kind == "jsonl" and count_tokens(doc.text.strip()) <= limit
    groups = [_Group(sections, ())] if is_record and sections else _grouped(doc.text, sections, least, limit)
    shared = _shared_metadata(doc, start)
    nodes: list[TextNode] = []
    for group, _, tokens in groups:
        blocks = [block for section in group for block in section.blocks]
        total = tokens if len(group) == 1 else 0
        for chunk in pack(doc.text, blocks, size=limit, overlap=overlap, least=least, total=total):
            inside = [one for one in group if one.start < chunk.end and one.end > chunk.start]
            header = "" if "table" not in chunk.kinds else table_head(doc.text, blocks, chunk.start)
            nodes.append(_node(doc, chunk, inside, shared, header, ordinal=len(nodes)))
    return nodes


class _Group(NamedTuple):
    sections: list[Section]
    path: tuple[Heading, ...]
    tokens: int = 0


def _grouped(text: str, sections: Sequence[Section], least: int, size: int) -> list[_Group]:
    """Join sections of fewer than ``least`` tokens with those beside them, the nearest relatives first."""
    # Joining all that is short, not only parts of what fits into one chunk, cost dense search 0.026 of RR@10 on an FAQ.
    groups = [_Group([one], one.path, count_tokens(text[one.start : one.end])) for one in sections]
    whole = len(shared_path([one.path for one in sections if one.path]))
    parts: Counter[int] = Counter()
    for group in groups:
        parts.update({id(heading): group.tokens for heading in group.path[whole:]})
    fitting = {part for part, tokens in parts.items() if tokens <= size}
    for depth in range(max((len(one.path) for one in sections), default=0), -1, -1):
        groups = _merged(groups, depth, least, fitting)
        groups = _merged(groups[::-1], depth, least, fitting)[::-1]
    return [group._replace(sections=sorted(group.sections, key=lambda one: one.start)) for group in groups]


def _merged(groups: Iterable[_Group], depth: int, least: int, fitting: Collection[int]) -> list[_Group]:
    merged: list[_Group] = []
    for group in groups:
        last = merged[-1] if merged else _Group([], (), least)
        if last.tokens < least and len(path := shared_path((last.path, group.path))) >= depth:
            tokens = last.tokens + group.tokens
            enough = least if path and id(path[-1]) in fitting else least * _LITTLE
            if last.tokens < enough and (tokens <= 2 * enough or last.tokens < enough * _LITTLE):
                merged[-1] = _Group([*last.sections, *group.sections], path, tokens)
                continue
        merged.append(group)
    return merged


def _chunk_type(kinds: frozenset[BlockKind]) -> str:
    other = "list" if kinds - {"heading"} == {"list"} else "text"
    return next((kind for kind in ("table", "code") if kind in kinds), other)


def _text_hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _check(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number from {low:,} to {high:,} tokens, got {value!r}")


def _shared_metadata(doc: SourceDocument, body_start: int) -> dict[str, object]:
    """Return what all nodes of the document have; ``title`` first, since LlamaIndex embeds metadata in this order."""
    title = doc.title.strip()
    shared: dict[str, object] = {"title": title} if title else {}
    shared |= {key: value for key, value in doc.metadata.items() if key not in shared}
    language = detect_language(doc.text[body_start : body_start + _LANGUAGE_SAMPLE])
    if language != UNDETERMINED:
        shared.setdefault("language", language)
    if doc.source:
        shared.setdefault("file_name", PurePath(doc.source).name)
    return shared


def _place(doc: SourceDocument, chunk: Chunk, sections: Sequence[Section]) -> dict[str, object]:
    """Return the metadata that tells where in its document a chunk stands."""

    def names(path: Sequence[Heading]) -> list[str]:
        titles = [heading.title for heading in path]
        return titles[1:] if titles and titles[0].casefold() == doc.title.strip().casefold() else titles

    path = names(shared_path([section.path for section in sections]))
    starts = [[max(0, section.start - chunk.start), " > ".join(names(section.path))] for section in sections]
    return {
        "section": " > ".join(path),
        "heading_hierarchy": path,
        "parent": " > ".join(path[:-1]),
        "section_number": _one_or_all(section.number for section in sections),
        "article_number": _one_or_all(section.article for section in sections),
        SECTION_STARTS: starts if len(sections) > 1 else (),
    }


def _one_or_all(values: Iterable[str]) -> str | list[str]:
    known = list(dict.fromkeys(filter(None, values)))
    return known if len(known) > 1 else "".join(known)


def _node(
    doc: SourceDocument,
    chunk: Chunk,
    sections: Sequence[Section],
    shared: dict[str, object],
    table_header: str,
    *,
    ordinal: int,
) -> TextNode:
    text = doc.text[chunk.start : chunk.end]
    references = list(dict.fromkeys(f"{one.kind} {one.number}" for one in find_references(text)))
    own = _place(doc, chunk, sections) | {"table_header": table_header, "cross_references": references}
    brought = {key: shared[key] for key in _KEPT if key in shared}
    metadata = shared | {key: value for key, value in own.items() if value} | brought
    if doc.pages:
        first = max(0, bisect_right(doc.pages, chunk.start, key=lambda page: page.start) - 1)
        pages = [page for page in doc.pages[first:] if page.start < chunk.end and page.end > chunk.start]
        metadata.setdefault("page", doc.pages[first].number)
        metadata["page_numbers"] = [page.number for page in pages] or [doc.pages[first].number]
        if len(pages) > 1:
            metadata["page_starts"] = [page.start for page in pages]
    metadata |= {"chunk_type": _chunk_type(chunk.kinds), "content_hash": _text_hash(text)}
    embedded = "\n".join(str(metadata[key]) for key in EMBEDDED_KEYS if key in metadata)
    fingerprint = _text_hash(f"{embedded}{chr(0)}{text}")[:8]
    return TextNode(
        text=text,
        start_char_idx=chunk.start,
        end_char_idx=chunk.end,
        metadata=metadata,
        excluded_embed_metadata_keys=[key for key in metadata if key not in EMBEDDED_KEYS],
        excluded_llm_metadata_keys=[key for key in metadata if key in _HIDDEN],
        metadata_template="{value}",
        metadata_separator="\n",
        text_template="{metadata_str}\n{content}",
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc.doc_id)},
        id_=f"{doc.doc_id}#{ordinal:04d}-{fingerprint}",
    )


# Leaves: a chunk cut once more, for searches that find a sentence and return what is around it.

_COPIED: Final = (
    "excluded_embed_metadata_keys", "excluded_llm_metadata_keys", "metadata_template", "metadata_separator",
    "text_template",
)  # fmt: skip


def leaf_nodes(node: TextNode, settings: ChunkSettings) -> list[TextNode]:
    """Cut a chunk into leaves of at most ``settings.leaf_size`` tokens, without overlap, that have its metadata.

    With their parent stands where in its text each is (``start`` and ``end``), and how many there are (``leaves``).
    """
    offset, source = node.start_char_idx, node.relationships.get(NodeRelationship.SOURCE)
    spans = _leaf_spans(node, settings.leaf_size)
    leaves = []
    for ordinal, (start, end) in enumerate(spans):
        place = {"start": start, "end": end, "leaves": len(spans)}
        parent = RelatedNodeInfo(node_id=node.node_id, metadata=place)
        related: dict[NodeRelationship, RelatedNodeType] = {NodeRelationship.PARENT: parent}
        if isinstance(source, RelatedNodeInfo):
            related[NodeRelationship.SOURCE] = source.model_copy(deep=True)
        leaf = TextNode(
            id_=f"{node.node_id}/L{ordinal:02d}",
            text=node.text[start:end],
            start_char_idx=None if offset is None else offset + start,
            end_char_idx=None if offset is None else offset + end,
            metadata=dict(node.metadata),
            relationships=related,
            **{name: getattr(node, name) for name in _COPIED},
        )
        leaves.append(leaf)
    return leaves


def section_starts(metadata: Mapping[str, object]) -> tuple[tuple[int, str], ...]:
    """Read where in the text of a node sections begin; other programs may use the name for something else."""
    starts = []
    value = metadata.get(SECTION_STARTS)
    for entry in value if isinstance(value, (list, tuple)) else ():
        match entry:
            case [int(at), str(path)]:
                starts.append((at, path))
    return tuple(sorted(starts))


def _leaf_spans(node: TextNode, size: int) -> list[tuple[int, int]]:
    blocks = scan_blocks(node.text)
    starts = [at for at, _ in section_starts(node.metadata)]
    parts = pairwise([0, *starts[1:], len(node.text)])
    inside = ([block for block in blocks if start <= block.start < end] for start, end in parts)
    return [(chunk.start, chunk.end) for part in inside for chunk in pack(node.text, part, size=size)]


# Blocks to chunks: whole blocks while they fit, then sentences, rows and lines, then cuts between tokens.


class Chunk(NamedTuple):
    start: int
    end: int
    kinds: frozenset[BlockKind]


class _Unit(NamedTuple):
    """A piece that is moved as a whole: a block, then its sentences, rows or lines, then pieces between cuts."""

    start: int
    end: int
    kind: BlockKind
    depth: int = 0
    cost: int = 0
    repeated: bool = False


_BLOCK, _SENTENCE, _CUT = 0, 1, 2


def pack(
    text: str, blocks: Iterable[Block], *, size: int, overlap: int = 0, least: int = 0, total: int = 0
) -> list[Chunk]:
    """Pack the blocks of sections into chunks; ``total`` is their count of tokens where it is known.

    Overlaps are whole sentences. If the last would have fewer than ``least`` tokens, all are made smaller if it helps.
    """
    blocks = list(blocks)
    if not blocks:
        return []
    total = total or count_tokens(text[blocks[0].start : blocks[-1].end])
    if total <= size:
        return [Chunk(blocks[0].start, blocks[-1].end, frozenset(block.kind for block in blocks))]
    chunks = _Packer(text, size, overlap).pack(blocks)
    if count_tokens(text[chunks[-1].start : chunks[-1].end]) < least:
        evenly = min(size, total // len(chunks) + overlap + least // 2)
        smaller = _Packer(text, evenly, overlap).pack(blocks)
        if len(smaller) == len(chunks):
            return smaller
    return chunks


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
            # Counted together with the white space that parts it from the one before.
            start = self._current[-1].end if self._current else unit.start
            unit = unit._replace(cost=count_tokens(self._text[start : unit.end]))
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

    def _make_room(self, unit: _Unit) -> None:
        """Do the first of these that helps, and look at the unit again: drop overlap, divide it, close the chunk."""
        if self._current and all(one.repeated for one in self._current):
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
            self._add(unit)  # one character of more tokens than a chunk may have cannot be left out
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
                tail.insert(0, piece._replace(cost=cost, repeated=True))
        return tail

    def _finer(self, unit: _Unit) -> Sequence[_Unit]:
        """Return the next smaller pieces, or nothing when the unit is as small as can be."""
        pieces = self._divide(unit)
        return pieces if len(pieces) > 1 or pieces[0].depth > unit.depth else ()

    def _divide(self, unit: _Unit) -> Sequence[_Unit]:
        if (unit.depth, unit.kind) in {(_BLOCK, "text"), (_SENTENCE, "list")}:
            spans = _sentence_spans(self._text, unit.start, unit.end)
        elif unit.depth == _BLOCK and unit.kind != "heading":
            lines = LINE.finditer(self._text, unit.start, unit.end)
            spans = [span for line in lines for span in _trimmed(self._text, *line.span())]
        else:
            cuts: list[_Unit] = []
            start = unit.start
            while start < unit.end:
                end = take(self._text, start, unit.end, self._size)
                cuts += [_Unit(*span, unit.kind, _CUT) for span in _trimmed(self._text, start, end)]
                start = end
            return cuts
        depth = unit.depth + 1
        if len(spans) == 1 and depth == _CUT:
            return self._divide(unit._replace(kind="text", depth=_SENTENCE))
        return [_Unit(start, end, unit.kind, min(depth, _SENTENCE)) for start, end in spans]


def _sentence_spans(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Divide a span at its sentences so that no visible character is lost."""
    starts = [start + sentence.start for sentence in split_sentences(text[start:end])]
    borders = [start, *(at for at in starts[1:] if start < at < end), end]
    return [span for left, right in pairwise(borders) for span in _trimmed(text, left, right)]


def _trimmed(text: str, start: int, end: int) -> list[tuple[int, int]]:
    piece = text[start:end]
    left, right = end - len(piece.lstrip()), start + len(piece.rstrip())
    return [(left, right)] if left < right else []


# Token counts and token-sized cuts, offline and the same on every machine.
# The cl100k_base encoding, from the rank file in llama-index-core's wheel. Its own get_tokenizer writes a global and
# returns whatever another part of the program has set, which would make node ids depend on the host application.

# LlamaIndex names the file by the SHA-1 of the address that tiktoken would load it from.
_RANKS_FOLDER = "_static/tiktoken_cache"
_RANKS_FILE = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"

# How cl100k_base divides text before merging bytes: contractions, words with one leading mark, up to three digits,
# punctuation with the line ends after it, then runs of white space.
_SPLIT_RULE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)

_JOINERS = frozenset("\u200d\u2060")


@lru_cache(maxsize=1)
def _encoding() -> tiktoken.Encoding:
    ranks = resources.files("llama_index.core") / _RANKS_FOLDER / _RANKS_FILE
    try:
        lines = ranks.read_bytes().splitlines()
    except OSError as err:
        raise IndexingError(
            "the tokenizer file that llama-index-core carries is missing; reinstall it with "
            "'pip install --force-reinstall llama-index-core'"
        ) from err
    mergeable = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    name = "agentic_retriever_cl100k"
    return tiktoken.Encoding(name, pat_str=_SPLIT_RULE, mergeable_ranks=mergeable, special_tokens={})


def count_tokens(text: str) -> int:
    return len(_encoding().encode_ordinary(text))


def take(text: str, start: int, end: int, limit: int) -> int:
    """Find where a piece of at most ``limit`` tokens that begins at ``start`` should end.

    The work is bounded by ``limit``, not by the length of the text, so cutting a long text in pieces is linear.
    """
    for window in (2 * limit, 4 * limit, 8 * limit):
        stop = min(end, start + window)
        tokens = _encoding().encode_ordinary(text[start:stop])
        if len(tokens) > limit or stop == end:
            break
    if len(tokens) > limit:
        kept = b"".join(_encoding().decode_tokens_bytes(tokens[:limit]))
        stop = start + max(1, len(kept.decode("utf-8", errors="ignore")))
    if stop < end:
        earliest = max(start + (stop - start) * 3 // 4, start + 1)
        behind_space = (at for at in range(stop, earliest - 1, -1) if text[at - 1].isspace())
        stop = next(behind_space, None) or _whole_character(text, start, stop)
    while stop - start > 1 and count_tokens(text[start:stop].strip()) > limit:
        stop = _whole_character(text, start, stop - max(1, (stop - start) // 32))
    return stop


def _whole_character(text: str, start: int, stop: int) -> int:
    stop = max(stop, start + 1)
    for end in range(stop, start, -1):
        left, right = text[end - 1], text[end]
        bound = left in _JOINERS or right in _JOINERS or left in LEADING_VOWELS
        if not bound and not unicodedata.category(right).startswith("M") and right != "ำ":
            return end
    return stop

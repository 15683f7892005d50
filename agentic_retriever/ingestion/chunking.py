"""Source documents to text nodes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePath
from typing import TYPE_CHECKING

from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from agentic_retriever.errors import ConfigError
from agentic_retriever.ingestion.front_matter import parse_front_matter
from agentic_retriever.ingestion.packing import Chunk, pack
from agentic_retriever.ingestion.sections import Section, joined, split_sections
from agentic_retriever.ingestion.tokens import count_tokens
from agentic_retriever.text import UNDETERMINED, detect_language

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentic_retriever.ingestion.blocks import BlockKind
    from agentic_retriever.ingestion.documents import SourceDocument
    from agentic_retriever.ingestion.headings import Heading

CHUNKING_VERSION = 1
"""Raised whenever the same document and settings would give other nodes than before."""

EMBEDDED_KEYS = ("title", "section")
"""The metadata that is embedded together with the text, in this order."""

_MIN_SIZE = 8
_MAX_SIZE = 100_000
_LANGUAGE_SAMPLE = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSettings:
    """How large nodes are, in tokens as ``count_tokens`` counts them.

    Attributes:
        chunk_size: Largest chunk, from 8 to 100,000.
        chunk_overlap: Most tokens of whole sentences repeated from the chunk before, from 0 to below ``chunk_size``.
        leaf_size: Largest leaf of the hierarchy, from 8 to ``chunk_size``.

    Raises:
        ConfigError: If a value is no whole number, out of range, or does not go with the others.
    """

    chunk_size: int = 512
    chunk_overlap: int = 50
    leaf_size: int = 128

    def __post_init__(self) -> None:
        _check("chunk_size", self.chunk_size, _MIN_SIZE, _MAX_SIZE)
        _check("chunk_overlap", self.chunk_overlap, 0, self.chunk_size - 1)
        _check("leaf_size", self.leaf_size, _MIN_SIZE, self.chunk_size)

    @property
    def fingerprint(self) -> str:
        """Short text that changes whenever nodes made with these settings would."""
        return f"v{CHUNKING_VERSION}-{self.chunk_size}-{self.chunk_overlap}-{self.leaf_size}"


def chunk_document(doc: SourceDocument, settings: ChunkSettings, *, size: int | None = None) -> list[TextNode]:
    """Cut a document into nodes along its headings, blocks and sentences.

    ``node.text`` is exactly ``doc.text[node.start_char_idx:node.end_char_idx]``, begins and ends with a visible
    character, and every visible character behind the front matter is in at least one node. A node never reaches over
    the end of a section, except that headings without text of their own join the section below them, and that a
    record (``kind`` ``"jsonl"``) which fits into one chunk is one node.

    Metadata is that of the document and ``title``, ``section``, ``section_number``, ``article``, ``page``,
    ``chunk_type`` (``"text"``, ``"table"``, ``"code"`` or ``"list"``), ``content_hash``, ``language`` and
    ``file_name``, each only where known. Where the document brings a value of the same name itself, it keeps
    ``article``, ``page``, ``language`` and ``file_name``, which its owner knows best and filters by; the others
    describe this chunk and are replaced.

    Args:
        doc: The document.
        settings: Sizes in tokens.
        size: Largest chunk in tokens instead of ``settings.chunk_size``; the overlap shrinks to half of it at most.

    Returns:
        New nodes in reading order with deterministic, unique ids; none for a document without visible text.

    Raises:
        ConfigError: If ``size`` is out of range.
    """
    if size is not None:
        _check("size", size, _MIN_SIZE, _MAX_SIZE)
    limit = size or settings.chunk_size
    overlap = settings.chunk_overlap if size is None else min(settings.chunk_overlap, limit // 2)
    front = parse_front_matter(doc.text) if doc.kind == "md" else None
    sections = split_sections(doc.text, start=front.end if front else 0, markup=doc.kind != "pdf")
    if doc.kind == "jsonl" and len(sections) > 1 and count_tokens(doc.text.strip()) <= limit:
        sections = [joined(sections)]
    shared = _shared_metadata(doc, front.end if front else 0)
    nodes: list[TextNode] = []
    for section in sections:
        for chunk in pack(doc.text, section.blocks, size=limit, overlap=overlap):
            nodes.append(_node(doc, chunk, section, shared, ordinal=len(nodes)))
    return nodes


def chunk_type(kinds: Iterable[BlockKind]) -> str:
    """Name what a chunk holds.

    Args:
        kinds: Kinds of its blocks.

    Returns:
        ``"table"`` or ``"code"`` when there is any, so that a filter finds it; ``"list"`` when there are only lists;
        otherwise ``"text"``.
    """
    present = set(kinds) - {"heading"}
    for kind in ("table", "code"):
        if kind in present:
            return kind
    return "list" if present == {"list"} else "text"


def text_hash(text: str) -> str:
    """Return the SHA-256 of a text in hexadecimal.

    Args:
        text: Any text.

    Returns:
        64 hexadecimal digits.
    """
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


def _node(doc: SourceDocument, chunk: Chunk, section: Section, shared: dict[str, object], *, ordinal: int) -> TextNode:
    text = doc.text[chunk.start : chunk.end]
    metadata = dict(shared)
    own = {"section": _section_label(section.path, doc.title), "section_number": section.number}
    metadata |= {key: value for key, value in own.items() if value}
    if section.article:
        metadata.setdefault("article", section.article)
    page = _page(doc, chunk.start)
    if page:
        metadata.setdefault("page", page)
    metadata |= {"chunk_type": chunk_type(chunk.kinds), "content_hash": text_hash(text)}
    return TextNode(
        text=text,
        start_char_idx=chunk.start,
        end_char_idx=chunk.end,
        metadata=metadata,
        excluded_embed_metadata_keys=[key for key in metadata if key not in EMBEDDED_KEYS],
        metadata_template="{value}",
        metadata_separator="\n",
        text_template="{metadata_str}\n{content}",
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc.doc_id)},
        id_=_node_id(doc.doc_id, ordinal, text, metadata),
    )


def _node_id(doc_id: str, ordinal: int, text: str, metadata: dict[str, object]) -> str:
    embedded = "\n".join(str(metadata[key]) for key in EMBEDDED_KEYS if key in metadata)
    return f"{doc_id}#{ordinal:04d}-{text_hash(f'{embedded}{chr(0)}{text}')[:8]}"


def _section_label(path: Sequence[Heading], title: str) -> str:
    names = [heading.title for heading in path]
    if names and names[0].casefold() == title.strip().casefold():
        names = names[1:]
    return " > ".join(names)


def _page(doc: SourceDocument, at: int) -> int | None:
    if not doc.pages:
        return None
    return doc.pages[max(0, bisect_right(doc.pages, at, key=lambda page: page.start) - 1)].number

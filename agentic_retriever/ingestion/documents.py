"""What the readers hand on: source documents, their pages, and what had to be left out."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from typing import cast

from llama_index.core.schema import BaseNode, Document, MetadataMode, TextNode

from agentic_retriever.errors import IndexingError, SourceError


@dataclass(frozen=True, slots=True)
class PageSpan:
    """Where one page lies in the text of a document."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDocument:
    r"""One document as it was read, before it is cut into nodes."""

    doc_id: str
    text: str
    metadata: Mapping[str, object]
    source: str
    root: str
    title: str
    kind: str
    pages: tuple[PageSpan, ...] = ()

    @property
    def content_hash(self) -> str:
        """SHA-256 over text, metadata, title and kind, in hexadecimal: equal hashes give equal nodes."""
        facts = json.dumps([self.kind, self.title, dict(self.metadata)], sort_keys=True, default=str)
        digest = hashlib.sha256(facts.encode())
        digest.update(b"\0")
        digest.update(self.text.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class SkippedSource:
    """Something that was left out, and why."""

    source: str
    reason: str


# ---------------------------------------------------------------------------------------------------------------------
# Metadata as a flat dictionary that filters and stores can work with

RESERVED_KEYS = frozenset({"_node_content", "_node_type", "doc_id", "document_id", "ref_doc_id"})
"""Keys that LlamaIndex's vector stores write themselves: metadata of these names would be overwritten silently."""

_MAX_DEPTH = 4


def clean_text(text: str) -> str:
    """Replace lone surrogates and NULs by U+FFFD, one for one, so that offsets stay."""
    if "\0" not in text and text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        text = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    return text.replace("\0", "\ufffd")


def flat_metadata(given: Mapping[str, object], *, doc_id: str) -> dict[str, object]:
    """Return metadata as a flat dictionary.

    Strings, numbers and booleans stay as they are, and so do lists of them. ``None`` is left out: absent and null mean
    the same to a filter. A nested mapping is flattened, ``{"author": {"name": "x"}}`` to ``author_name``; where that
    name is taken, or four levels down, the mapping is kept as a JSON string. Dates become ISO 8601 strings,
    anything else its ``str``. An empty mapping disappears.
    """
    flat: dict[str, object] = {}
    for key, value in given.items():
        name = clean_text(str(key))
        if name in RESERVED_KEYS:
            if str(value) == doc_id:
                continue
            raise SourceError(f"the metadata key {name!r} is reserved for the store; rename it")
        if not name.strip():
            raise SourceError("a metadata key is empty; give it a name")
        if not isinstance(value, Mapping):
            flat.update(_leaf(name, value))
    for key, value in given.items():
        if isinstance(value, Mapping):
            _flatten(clean_text(str(key)), cast("Mapping[str, object]", value), flat, 1)
    return flat


def _flatten(name: str, nested: Mapping[str, object], flat: dict[str, object], depth: int) -> None:
    names = [f"{name}_{key}" for key in nested]
    if depth >= _MAX_DEPTH or any(child in flat or child in RESERVED_KEYS for child in names):
        flat[name] = _json(nested)
        return
    for child, value in zip(names, nested.values(), strict=True):
        if isinstance(value, Mapping):
            _flatten(clean_text(child), cast("Mapping[str, object]", value), flat, depth + 1)
        else:
            flat.update(_leaf(clean_text(child), value))


def _leaf(name: str, value: object) -> dict[str, object]:
    if value is None:
        return {}
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (str, bytes)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return {name: [_scalar(item) for item in items if item is not None]}
    return {name: _scalar(value)}


def _scalar(value: object) -> object:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (Mapping, list, tuple)):
        return _json(value)
    return clean_text(str(value))


def _json(value: object) -> str:
    return clean_text(json.dumps(value, ensure_ascii=False, sort_keys=True, default=str))


# ---------------------------------------------------------------------------------------------------------------------
# LlamaIndex documents and nodes that the caller already has

_log = logging.getLogger(__name__)


def from_llama_documents(docs: Sequence[Document]) -> Iterator[SourceDocument | SkippedSource]:
    """Take LlamaIndex documents as they are: their id, their text, their metadata.

    Metadata is kept, flattened where it is nested (see ``flat_metadata``). ``title`` is the metadata's ``title``. A
    document that was made without an id has a random one, so adding it again adds it twice: give ids that stay.
    """
    seen: set[str] = set()
    for position, doc in enumerate(docs):
        doc_id = clean_text(doc.doc_id)
        problem = _problem(doc_id, doc.text, seen)
        if problem:
            yield SkippedSource(doc_id or f"document {position}", problem)
            continue
        seen.add(doc_id)
        try:
            metadata = flat_metadata(doc.metadata, doc_id=doc_id)
        except SourceError as err:
            yield SkippedSource(doc_id, str(err))
            continue
        title = metadata.get("title")
        yield SourceDocument(
            doc_id=doc_id,
            text=clean_text(doc.text),
            metadata=metadata,
            source="",
            root="",
            title=title if isinstance(title, str) else "",
            kind="document",
        )


def nodes_as_they_are(
    nodes: Sequence[BaseNode], *, on_skip: Callable[[SkippedSource], None] | None = None
) -> list[TextNode]:
    """Check a caller's own nodes and copy them, changing nothing."""
    kept: list[TextNode] = []
    positions: dict[str, int] = {}
    for position, node in enumerate(nodes):
        if not node.node_id.strip():
            raise IndexingError(f"node {position} has a blank id; give every node an id of its own")
        first = positions.setdefault(node.node_id, position)
        if first != position:
            raise IndexingError(
                f"nodes {first} and {position} share the id {node.node_id[:80]!r}; give every node an id of its own"
            )
        copy = _text_node(node)
        if copy.text.strip():
            kept.append(copy)
            continue
        skipped = SkippedSource(node.node_id, "the node has no text")
        if on_skip is None:
            _log.warning("skipped node %s: %s", skipped.source, skipped.reason)
        else:
            on_skip(skipped)
    return kept


def _problem(doc_id: str, text: str, seen: set[str]) -> str:
    if not doc_id.strip():
        return "the document has a blank id; give it one that stays the same between runs"
    if doc_id in seen:
        return "another document before it has the same id; give every document an id of its own"
    return "" if text.strip() else "the document has no text"


def _text_node(node: BaseNode) -> TextNode:
    if isinstance(node, TextNode):
        return node.model_copy(deep=True)
    return TextNode(
        id_=node.node_id,
        text=node.get_content(MetadataMode.NONE),
        embedding=None if node.embedding is None else list(node.embedding),
        metadata=dict(node.metadata),
        excluded_embed_metadata_keys=list(node.excluded_embed_metadata_keys),
        excluded_llm_metadata_keys=list(node.excluded_llm_metadata_keys),
        metadata_template=node.metadata_template,
        metadata_separator=node.metadata_separator,
        relationships=dict(node.relationships),
    )

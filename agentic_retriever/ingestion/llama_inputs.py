"""LlamaIndex documents and nodes that the caller already has."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from llama_index.core.schema import MetadataMode, TextNode

from agentic_retriever.errors import IndexingError, SourceError
from agentic_retriever.ingestion.documents import SkippedSource, SourceDocument
from agentic_retriever.ingestion.metadata import clean_text, flat_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from llama_index.core.schema import BaseNode, Document

_log = logging.getLogger(__name__)


def from_llama_documents(docs: Sequence[Document]) -> Iterator[SourceDocument | SkippedSource]:
    """Take LlamaIndex documents as they are: their id, their text, their metadata.

    Metadata is kept, flattened where it is nested (see ``flat_metadata``). ``title`` is the metadata's ``title``. A
    document that was made without an id has a random one, so adding it again adds it twice: give ids that stay.

    Args:
        docs: The documents.

    Yields:
        A document for each in order, or what was skipped: no text, a blank or repeated id, or a metadata key that the
        store reserves.
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
    """Check a caller's own nodes and copy them, changing nothing.

    Args:
        nodes: Text nodes of any kind, with or without embeddings.
        on_skip: Called for each node without text, which is left out. Without it a warning is logged.

    Returns:
        Deep copies in the same order. A node that is no ``TextNode`` (LlamaIndex's multimodal ``Node``) becomes one
        with the same id, text, metadata and relationships.

    Raises:
        IndexingError: If an id is blank or two nodes share one, which would silently lose one of them.
    """
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

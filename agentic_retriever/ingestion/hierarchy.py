"""Leaves: a chunk cut once more, for searches that find a sentence and return what is around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from agentic_retriever.ingestion.blocks import scan_blocks
from agentic_retriever.ingestion.chunking import ChunkSettings, chunk_type, text_hash
from agentic_retriever.ingestion.packing import Chunk, pack

if TYPE_CHECKING:
    from llama_index.core.schema import RelatedNodeType


def leaves_of(node: TextNode, settings: ChunkSettings) -> list[TextNode]:
    """Cut a chunk into leaves of at most ``settings.leaf_size`` tokens at blocks and sentences, without overlap.

    Args:
        node: A chunk as ``chunk_document`` makes it, or any text node of the caller's.
        settings: Sizes in tokens.

    Returns:
        New nodes with the ids ``{node_id}/L00``, ``/L01`` and so on, metadata and templates of the chunk (with
        ``content_hash`` and ``chunk_type`` of their own where the chunk has them), its ``SOURCE``, and the chunk as
        ``PARENT``. Offsets point into the same source as the chunk's; without offsets there, there are none here.
        A chunk that is small enough is its own single leaf; one without visible text has none.
    """
    chunks = pack(node.text, scan_blocks(node.text), size=settings.leaf_size)
    return [_leaf(node, chunk, ordinal) for ordinal, chunk in enumerate(chunks)]


def _leaf(node: TextNode, chunk: Chunk, ordinal: int) -> TextNode:
    text = node.text[chunk.start : chunk.end]
    metadata = dict(node.metadata)
    own = {"chunk_type": chunk_type(chunk.kinds), "content_hash": text_hash(text)}
    metadata |= {key: value for key, value in own.items() if key in metadata}
    offset = node.start_char_idx
    relationships: dict[NodeRelationship, RelatedNodeType] = {
        NodeRelationship.PARENT: RelatedNodeInfo(node_id=node.node_id)
    }
    source = node.relationships.get(NodeRelationship.SOURCE)
    if isinstance(source, RelatedNodeInfo):
        relationships[NodeRelationship.SOURCE] = source.model_copy(deep=True)
    return TextNode(
        id_=f"{node.node_id}/L{ordinal:02d}",
        text=text,
        start_char_idx=None if offset is None else offset + chunk.start,
        end_char_idx=None if offset is None else offset + chunk.end,
        metadata=metadata,
        excluded_embed_metadata_keys=list(node.excluded_embed_metadata_keys),
        excluded_llm_metadata_keys=list(node.excluded_llm_metadata_keys),
        metadata_template=node.metadata_template,
        metadata_separator=node.metadata_separator,
        text_template=node.text_template,
        relationships=relationships,
    )

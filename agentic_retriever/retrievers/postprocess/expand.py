"""Parent expansion: the chunks around a hit, from the same section of the same document."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from llama_index.core.schema import BaseNode, NodeWithScore, TextNode
from llama_index.core.vector_stores.types import FilterCondition, MetadataFilter, MetadataFilters

from agentic_retriever.filters import is_empty, node_fields, predicate
from agentic_retriever.retrievers.postprocess.scores import value_of
from agentic_retriever.retrievers.sides import guarded

if TYPE_CHECKING:
    from agentic_retriever.retrievers.searchable import SearchableIndex

Neighbours = Callable[[BaseNode], Sequence[BaseNode]]
"""Gives the chunks around a chunk, in reading order, perhaps with that chunk itself."""

EXPANDED_KEY: Final = "expanded_from"
"""Metadata key of a node that was not found but stands beside one that was: the id of that one."""

SECTION: Final = "section"


def expand(nodes: Sequence[NodeWithScore], neighbours: Neighbours, *, limit: int) -> list[NodeWithScore]:
    """Add the chunks around the hits.

    Args:
        nodes: The hits, best first.
        neighbours: Gives the chunks around each.
        limit: Add at most so many, those of the better hits first.

    Returns:
        A new list: the hits as they were, then the chunks added, each below everything before it, with the id of its
        hit under ``EXPANDED_KEY``.
    """
    result = list(nodes)
    known = {entry.node.node_id for entry in nodes}
    floor = min((value for value in map(value_of, nodes) if value > -math.inf), default=0.0)
    for hit in nodes:
        if len(result) - len(nodes) >= limit:
            break
        for node in neighbours(hit.node):
            if node.node_id not in known and len(result) - len(nodes) < limit:
                known.add(node.node_id)
                floor = math.nextafter(floor, -math.inf)
                result.append(NodeWithScore(node=_beside(node, hit.node.node_id), score=floor))
    return result


def section_neighbours(index: SearchableIndex, *, width: int, filters: MetadataFilters | None = None) -> Neighbours:
    """Return what reads the chunks around a chunk from an index.

    Args:
        index: The index that the hits are from.
        width: How many chunks on each side, within the same document and section.
        filters: What the question's caller asked for; chunks that do not satisfy them are left out.

    Returns:
        A function that raises ``StoreError`` if the store cannot be read. It reads each document once, so make a new
        one for each question.
    """
    satisfies = predicate(filters)
    documents: dict[str, list[BaseNode]] = {}

    def read(doc_id: str) -> list[BaseNode]:
        clause = MetadataFilter(key="doc_id", value=doc_id)
        wanted = MetadataFilters(filters=[clause], condition=FilterCondition.AND)
        if filters is not None and not is_empty(filters):
            wanted.filters.append(filters)
        found = guarded(f"the store of index {index.name}", lambda: index.vector_store.get_nodes(filters=wanted))
        # Some stores know no such field, or let others through.
        mine = [node for node in found if node.ref_doc_id == doc_id and satisfies(node_fields(node))]
        return sorted(mine, key=_place)

    def around(node: BaseNode) -> list[BaseNode]:
        doc_id = node.ref_doc_id
        if not doc_id:
            return []
        if doc_id not in documents:
            documents[doc_id] = read(doc_id)
        chunks = [other for other in documents[doc_id] if other.metadata.get(SECTION) == node.metadata.get(SECTION)]
        at = next((i for i, other in enumerate(chunks) if other.node_id == node.node_id), None)
        return [] if at is None else chunks[max(0, at - width) : at + width + 1]

    return around


def _place(node: BaseNode) -> tuple[int, str]:
    start = node.start_char_idx if isinstance(node, TextNode) else None
    return (start if start is not None else -1, node.node_id)


def _beside(node: BaseNode, hit_id: str) -> BaseNode:
    copy = node.model_copy()
    copy.metadata = {**node.metadata, EXPANDED_KEY: hit_id}
    copy.excluded_llm_metadata_keys = [*node.excluded_llm_metadata_keys, EXPANDED_KEY]
    copy.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, EXPANDED_KEY]
    return copy

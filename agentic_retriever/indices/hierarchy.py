"""The hierarchy of an index: leaves below its chunks, and where the numbered parts of its documents are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery

from agentic_retriever.filters import is_empty
from agentic_retriever.indices.view_update import Derivation, Derived
from agentic_retriever.ingestion.chunking import leaves_of
from agentic_retriever.stores.points import KnownPoints, found_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters

    from agentic_retriever.ingestion import ChunkSettings

LEAVES: Final = "leaves"
LEAVES_FORMAT: Final = 1
"""Raised whenever the same chunks would give other leaves or outlines than before."""

_NUMBERS: Final = {"sections": "section_number", "articles": "article"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafHit:
    """A leaf that was found."""

    leaf_id: str
    chunk_id: str
    score: float
    start: int  # Where the leaf begins in the chunk's text, in characters
    end: int
    siblings: int


class _Place(NamedTuple):
    """What a leaf is, as long as its chunk stays the same; as in :class:`LeafHit`."""

    leaf_id: str
    chunk_id: str
    start: int
    end: int
    siblings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """Where the numbered parts of one document are."""

    title: str
    sections: Mapping[str, Sequence[str]]
    articles: Mapping[str, Sequence[str]]


class HierarchyView:
    """Leaves to search, and outlines to look numbered parts up in. Safe to use from many threads."""

    def __init__(self, store: BasePydanticVectorStore, outlines: Mapping[str, Outline]) -> None:
        self._store = store
        self._places: KnownPoints[_Place] = KnownPoints(_place)
        self.outlines = outlines

    def search(self, vector: Sequence[float], top_k: int, *, filters: MetadataFilters | None = None) -> list[LeafHit]:
        """Find the leaves nearest to a question."""
        query = VectorStoreQuery(
            query_embedding=list(vector),
            similarity_top_k=top_k,
            filters=None if is_empty(filters) else filters,
        )
        found = found_facts(self._store, query, self._places)
        hits = [
            LeafHit(leaf_id=leaf_id, chunk_id=chunk_id, score=score, start=start, end=end, siblings=siblings)
            for (leaf_id, chunk_id, start, end, siblings), score in found
            if score == score  # noqa: PLR0124 - NaN is unequal to itself
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.leaf_id))


def leaf_nodes(chunk: TextNode, settings: ChunkSettings) -> list[TextNode]:
    """Cut a chunk into the leaves that the view holds."""
    # Offsets from 0 are offsets in the chunk's text, whether or not the chunk knows its place in the source.
    leaves = leaves_of(chunk.model_copy(update={"start_char_idx": 0, "embedding": None}), settings)
    return [_placed(leaf, chunk, len(leaves)) for leaf in leaves]


def outline_of(chunks: Iterable[TextNode]) -> dict[str, Any]:
    """Collect where the numbered parts of a document are, in plain JSON types."""
    facts: dict[str, Any] = {"title": "", "sections": {}, "articles": {}}
    for chunk in chunks:
        title = chunk.metadata.get("title")
        if not facts["title"] and isinstance(title, str):
            facts["title"] = title.strip()
        for part, key in _NUMBERS.items():
            number = str(chunk.metadata.get(key) or "").strip().casefold()
            if number:
                facts[part].setdefault(number, []).append(chunk.node_id)
    return facts


def hierarchy_derivation(settings: ChunkSettings) -> Derivation:
    """Say how the leaves of an index are made."""

    def derive(_doc_id: str, chunks: Sequence[TextNode]) -> Derived:
        return Derived([leaf for chunk in chunks for leaf in leaf_nodes(chunk, settings)], outline_of(chunks))

    return Derivation(derive=derive)


def _placed(leaf: TextNode, chunk: TextNode, siblings: int) -> TextNode:
    start, end = leaf.start_char_idx or 0, leaf.end_char_idx or 0
    offset = chunk.start_char_idx
    place = {"start": start, "end": end, "leaves": siblings}
    parent = RelatedNodeInfo(node_id=chunk.node_id, metadata=place)
    return leaf.model_copy(
        update={
            "metadata": dict(chunk.metadata),
            "relationships": {**leaf.relationships, NodeRelationship.PARENT: parent},
            "start_char_idx": None if offset is None else offset + start,
            "end_char_idx": None if offset is None else offset + end,
        }
    )


def _place(leaf: BaseNode) -> _Place | None:
    parent = leaf.relationships.get(NodeRelationship.PARENT)
    if not isinstance(parent, RelatedNodeInfo):
        return None
    told = parent.metadata
    return _Place(
        leaf_id=leaf.node_id,
        chunk_id=parent.node_id,
        start=int(told.get("start", 0)),
        end=int(told.get("end", 0)),
        siblings=max(1, int(told.get("leaves", 1))),
    )

"""The hierarchy of an index: leaves below its chunks, and where the numbered parts of its documents are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from llama_index.core.schema import BaseNode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters, VectorStoreQuery

from agentic_retriever.filters import is_empty
from agentic_retriever.indices.derived import Derivation, Derived, DerivedCollection, ViewState
from agentic_retriever.indices.stored_nodes import LEAVES, StoredNodes
from agentic_retriever.ingestion import ChunkSettings
from agentic_retriever.ingestion.chunking import leaves_of
from agentic_retriever.stores.node_store import NodeStore
from agentic_retriever.stores.points import KnownPoints, found_facts

LEAVES_FORMAT: Final = 1
"""Raised whenever the same chunks would give other leaves or outlines than before."""

_NUMBERS: Final = {"sections": "section_number", "articles": "article"}


class LeafHit(NamedTuple):
    """A leaf that was found; all but its score stay as long as its chunk does."""

    leaf_id: str
    chunk_id: str
    start: int  # Where the leaf begins in the chunk's text, in characters
    end: int
    siblings: int
    score: float


_Place: TypeAlias = "tuple[str, str, int, int, int]"


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
        hits = [LeafHit(*place, score) for place, score in found if score == score]  # noqa: PLR0124 - not for NaN
        return sorted(hits, key=lambda hit: (-hit.score, hit.leaf_id))


def hierarchy_collection(index: StoredNodes) -> DerivedCollection[HierarchyView]:
    """Return the leaves of a stored index, cut as its chunks were."""
    settings = index.manifest.chunk_settings

    def derive(_doc_id: str, chunks: Sequence[TextNode]) -> Derived:
        return Derived([leaf for chunk in chunks for leaf in leaf_nodes(chunk, settings)], outline_of(chunks))

    def view_of(store: NodeStore, state: ViewState) -> HierarchyView:
        return HierarchyView(store, {doc_id: Outline(**held.facts) for doc_id, held in state.documents.items()})

    made_with = f"{LEAVES_FORMAT}:{settings.fingerprint}"
    return DerivedCollection(index, LEAVES, Derivation(derive=derive), view_of, made_with=made_with)


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


def _placed(leaf: TextNode, chunk: TextNode, siblings: int) -> TextNode:
    start, end = leaf.start_char_idx or 0, leaf.end_char_idx or 0
    offset = chunk.start_char_idx
    parent = RelatedNodeInfo(node_id=chunk.node_id, metadata={"start": start, "end": end, "leaves": siblings})
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
    place = parent.metadata
    start, end, siblings = (int(place.get(key, default)) for key, default in (("start", 0), ("end", 0), ("leaves", 1)))
    return leaf.node_id, parent.node_id, start, end, max(1, siblings)

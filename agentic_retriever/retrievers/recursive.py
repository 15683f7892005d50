"""Strategy ``recursive``: leaves first, then the chunks they belong to, then what those refer to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from llama_index.core.schema import BaseNode, IndexNode, NodeRelationship, NodeWithScore, RelatedNodeInfo

from agentic_retriever.errors import AgenticRetrieverError, DeadlineExceededError
from agentic_retriever.indices.derived import HierarchyView, LeafHit
from agentic_retriever.retrievers import vector
from agentic_retriever.retrievers.base import RetrievalRequest, RetrieverAdapter, SearchResult, fetch_nodes
from agentic_retriever.schema import Degradation, Strategy
from agentic_retriever.text.references import find_references
from agentic_retriever.understanding.references import ReferenceMap

# In the per-source scores: the best leaf's cosine; the score of a chunk most of whose leaves were found; and that of a
# chunk that another one refers to.
LEAF: Final = "leaf"
MERGED: Final = "merged"
REFERRED: Final = "referred"

LEAF_FACTOR: Final = 4
MIN_LEAVES: Final = 40
MERGE_RATIO: Final = 0.5
MERGE_GAIN: Final = 0.05  # how far a chunk all of whose leaves were found moves from its best leaf's score towards 1

FOLLOWED_FROM: Final = 5
MAX_FOLLOWED: Final = 64
REFERRED_SHARE: Final = 0.5  # how near the score of what is referred to comes to that of what refers to it, per step

_POINTING: Final = (NodeRelationship.NEXT, NodeRelationship.PREVIOUS, NodeRelationship.CHILD)


class RecursiveRetriever(RetrieverAdapter):
    """Finds leaves, merges them into their chunks, and follows the references of the best chunks.

    A chunk has the score of its best leaf. One of whose leaves at least half were found, and two or more, is scored
    higher, as it speaks of the question throughout. From the five best chunks on, references are followed, two steps
    far: those that stand in the text ("section 4.2", "artículo 17 del Reglamento"), ``NEXT``, ``PREVIOUS`` and
    ``CHILD``, and where an ``IndexNode`` points. What is referred to scores between its own cosine and the score of
    what refers to it. Each chunk is visited once and at most 64 are added, so circles and long chains end.

    LlamaIndex's ``AutoMergingRetriever`` and ``RecursiveRetriever`` read parents from a document store in memory, know
    no filters, and call themselves without limit, so that a circle ends in ``RecursionError``.
    """

    strategy = Strategy.RECURSIVE
    depth = 2  # how many steps references are followed
    _known: tuple[HierarchyView, ReferenceMap] | None = None

    def _search(self, request: RetrievalRequest, deadline: float) -> SearchResult:
        request = vector.with_vector(self._index, request, self._left_s(deadline))
        try:
            view = vector.open_leaves(self._index)
            hits = vector.leaves_for_chunks(view, request, depth=max(MIN_LEAVES, LEAF_FACTOR * request.top_k))
        except AgenticRetrieverError as err:
            left_s = self._left_s(deadline)
            return vector.plain_search(self._index, request, step="recursive.leaves", err=err, left_s=left_s)
        trail = self._read(merged(hits), request.top_k)
        try:
            known = self._known
            if known is None or known[0] is not view:
                known = self._known = (view, ReferenceMap(view.outlines))
            self._follow(trail, request, known[1], deadline)
        except AgenticRetrieverError as err:
            lost = Degradation(step="recursive.references", reason=str(err), fallback="what was found until then")
            return SearchResult(list(trail.found.values()), (lost,), sources=trail.sources)
        return SearchResult(list(trail.found.values()), sources=trail.sources)

    def _read(self, scored: Sequence[MergedChunk], top_k: int) -> _Trail:
        """Read the best chunks; those that were deleted or changed meanwhile make room for the next."""
        trail = _Trail()
        for start in range(0, len(scored), top_k):
            batch = scored[start : start + top_k]
            nodes = fetch_nodes(self._index, [chunk.chunk_id for chunk in batch])
            for chunk in batch:
                if chunk.chunk_id in nodes:
                    trail.found[chunk.chunk_id] = NodeWithScore(node=nodes[chunk.chunk_id], score=chunk.score)
                    trail.sources[LEAF][chunk.chunk_id] = chunk.leaf_score
                    if chunk.is_merged:
                        trail.sources[MERGED][chunk.chunk_id] = chunk.score
            if len(trail.found) >= top_k:
                break
        return trail

    def _follow(self, trail: _Trail, request: RetrievalRequest, references: ReferenceMap, deadline: float) -> None:
        frontier = sorted(trail.found.values(), key=lambda one: (-(one.score or 0.0), one.node.node_id))[:FOLLOWED_FROM]
        for _step in range(self.depth):
            if self._left_s(deadline) <= 0:
                raise DeadlineExceededError("the time ran out while references were followed")
            targets = trail.targets(frontier, references)
            if not targets:
                return
            found = vector.nearest_among(self._index, request, targets, len(targets))
            known = {one.node.node_id for one in found}
            # Not every store can be asked for some nodes only.
            others = fetch_nodes(self._index, [node_id for node_id in targets if node_id not in known])
            unscored = [NodeWithScore(node=node, score=None) for node in others.values()]
            frontier = trail.add(targets, [*found, *unscored])


@dataclass(frozen=True, slots=True)
class MergedChunk:
    """A chunk with its score, and that of its best leaf."""

    chunk_id: str
    score: float
    leaf_score: float
    is_merged: bool = False  # whether enough of its leaves were found


def merged(hits: Sequence[LeafHit], ratio: float = MERGE_RATIO) -> list[MergedChunk]:
    """Merge leaves into their chunks."""
    groups: dict[str, list[LeafHit]] = {}
    for hit in hits:
        groups.setdefault(hit.chunk_id, []).append(hit)
    chunks = []
    for chunk_id, group in groups.items():
        best = max(hit.score for hit in group)
        share = len(group) / max(group[0].siblings, len(group))
        is_merged = len(group) > 1 and share >= ratio
        gain = MERGE_GAIN * share * (1 - best) if is_merged else 0.0
        chunks.append(MergedChunk(chunk_id, best + gain, best, is_merged))
    return sorted(chunks, key=lambda chunk: (-chunk.score, chunk.chunk_id))


@dataclass(slots=True)
class _Trail:
    """The chunks found so far, each visited once, and what each source gave them."""

    found: dict[str, NodeWithScore] = field(default_factory=dict)
    sources: dict[str, dict[str, float | None]] = field(
        default_factory=lambda: {name: {} for name in (vector.DENSE, LEAF, MERGED, REFERRED)}
    )
    followed: int = 0
    visited: set[str] = field(default_factory=set)

    def targets(self, frontier: Sequence[NodeWithScore], references: ReferenceMap) -> dict[str, float]:
        """Return what the chunks refer to and was not visited, with the best score of what refers to it."""
        targets: dict[str, float] = {}
        for one in frontier:
            self.visited.add(one.node.node_id)
            for target in _pointed_at(one.node, references):
                is_full = self.followed + len(targets) >= MAX_FOLLOWED
                if target not in self.visited and (target in targets or not is_full):
                    targets[target] = max(targets.get(target, -1.0), one.score or 0.0)
        self.followed += len(targets)
        self.visited.update(targets)
        return targets

    def add(self, targets: Mapping[str, float], reached: Sequence[NodeWithScore]) -> list[NodeWithScore]:
        """Take in what was reached, and return it with its scores; what was found before keeps the better score."""
        added: list[NodeWithScore] = []
        for one in reached:
            node_id = one.node.node_id
            score = REFERRED_SHARE * targets[node_id]
            if one.score is not None and not math.isnan(one.score):
                score = one.score + REFERRED_SHARE * max(0.0, targets[node_id] - one.score)
            known = self.found.get(node_id)
            best = score if known is None or known.score is None else max(score, known.score)
            self.sources[vector.DENSE][node_id], self.sources[REFERRED][node_id] = one.score, score
            self.found[node_id] = NodeWithScore(node=one.node, score=best)
            added.append(self.found[node_id])
        return added


def _pointed_at(node: BaseNode, references: ReferenceMap) -> Iterator[str]:
    """Yield the ids of the chunks that a chunk refers to, its own left out."""
    own = node.node_id
    for relationship in _POINTING:
        related = node.relationships.get(relationship)
        for info in related if isinstance(related, list) else [related]:
            if isinstance(info, RelatedNodeInfo) and info.node_id != own:
                yield info.node_id
    if isinstance(node, IndexNode) and node.index_id != own:
        yield node.index_id
    text = getattr(node, "text", "")
    for reference in find_references(text) if isinstance(text, str) else ():
        yield from (chunk for chunk in references.resolve(reference, node.ref_doc_id or own) if chunk != own)

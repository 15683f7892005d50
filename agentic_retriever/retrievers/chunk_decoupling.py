"""Strategy ``chunk_decoupling``: what is searched is finer than what is returned."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from llama_index.core.schema import BaseNode

from agentic_retriever.indices.derived import LeafHit
from agentic_retriever.retrievers import base
from agentic_retriever.retrievers.hybrid import ranked
from agentic_retriever.retrievers.vector import leaves_for_chunks, nearest, open_leaves, with_vector
from agentic_retriever.schema import Strategy

# The two sides, and their cosines in the per-source scores.
LEAF: Final = "leaf"
CHUNK: Final = "chunk"

# Metadata key of a result under which the place of its best leaf stands, as {"start": 10, "end": 90} in the node's own
# text; add the node's start_char_idx for the place in the source. A field of that name in the stored node is hidden by
# it, in results only.
SPAN_KEY: Final = "retrieval_leaf"

FINE_FACTOR: Final = 2
_LOST: Final = {LEAF: ("chunk_decoupling.leaf", "chunks alone"), CHUNK: ("chunk_decoupling.chunk", "leaves alone")}


@dataclass(frozen=True, slots=True)
class _Side:
    """What one side found: scores by chunk, the best leaf of each, and the chunks that it has read."""

    scores: Mapping[str, float]
    leaves: Mapping[str, LeafHit] = field(default_factory=dict)
    nodes: Mapping[str, BaseNode] = field(default_factory=dict)


class ChunkDecouplingRetriever(base.RetrieverAdapter):
    """Searches leaves, twice ``top_k`` of them, and chunks side by side, and returns chunks.

    Every leaf that is found brings its chunk, as the window around it. A chunk scores the mean of its own cosine and
    that of its best leaf; where only one of the two was found, the other counts as the least that was found on that
    side. Each chunk comes once and tells, under ``retrieval_leaf``, where its best leaf stands.
    """

    strategy = Strategy.CHUNK_DECOUPLING

    def _search(self, request: base.RetrievalRequest, deadline: float) -> base.SearchResult:
        left = partial(self._left_s, deadline)
        request = with_vector(self._index, request, left())
        calls: dict[str, Callable[[], _Side]] = {
            LEAF: lambda: self._fine(request),
            CHUNK: lambda: self._coarse(request, left()),
        }
        sides, errors = base.run_sides(self._settings.workers, calls, timeout_s=left)
        merge = partial(self._merged, request=request)
        return base.merge_sides("chunk_decoupling", sides, errors, merge, reread=LEAF, lost=_LOST)

    def _fine(self, request: base.RetrievalRequest) -> _Side:
        hits = leaves_for_chunks(open_leaves(self._index), request, depth=FINE_FACTOR * request.top_k)
        best = {hit.chunk_id: hit for hit in reversed(hits)}  # the first of each chunk is its best
        return _Side({chunk_id: hit.score for chunk_id, hit in best.items()}, leaves=best)

    def _coarse(self, request: base.RetrievalRequest, left_s: float) -> _Side:
        found = nearest(self._index, request, FINE_FACTOR * request.top_k, left_s)
        scores = {node_id: score for node_id, score in base.scores_of(found).items() if score is not None}
        return _Side(scores, nodes={one.node.node_id: one.node for one in found})

    def _merged(self, sides: Mapping[str, _Side], request: base.RetrievalRequest) -> base.SearchResult:
        # The mean over the sides that found anything; what one did not find counts there as its least.
        filled = [(side.scores, min(side.scores.values())) for side in sides.values() if side.scores]
        chunk_ids = {chunk_id: None for scores, _least in filled for chunk_id in scores}
        means = {
            chunk_id: sum(scores.get(chunk_id, least) for scores, least in filled) / len(filled)
            for chunk_id in chunk_ids
        }
        nodes = {node_id: node for side in sides.values() for node_id, node in side.nodes.items()}
        leaves = sides[LEAF].leaves if LEAF in sides else {}
        taken = base.take_nodes(self._index, ranked(list(means.items())), nodes, request.top_k, filters=request.filters)
        for at, one in enumerate(taken):
            leaf = leaves.get(one.node.node_id)
            if leaf is not None:
                taken[at] = base.detailed(one, one.score, **{SPAN_KEY: {"start": leaf.start, "end": leaf.end}})
        return base.SearchResult(taken, sources={name: side.scores for name, side in sides.items()})

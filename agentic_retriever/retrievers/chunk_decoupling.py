"""Strategy ``chunk_decoupling``: what is searched is finer than what is returned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import AgenticRetrieverError, RetrievalError
from agentic_retriever.retrievers.base import Candidate, Found, RetrieverAdapter, run_sides, take_nodes
from agentic_retriever.retrievers.fusion import ranked
from agentic_retriever.retrievers.vector import nearest
from agentic_retriever.retrievers.view_search import hierarchy_of, leaves_for_chunks, seconds_left, with_vector
from agentic_retriever.schema import Degradation, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llama_index.core.schema import BaseNode

    from agentic_retriever.indices.hierarchy import LeafHit
    from agentic_retriever.retrievers.base import RetrievalRequest

LEAF: Final = "leaf"
CHUNK: Final = "chunk"
"""Names of the two sides, and of their cosines in the per-source scores."""

SPAN_KEY: Final = "retrieval_leaf"
"""Metadata key of a result under which the place of its best leaf stands, as ``{"start": 10, "end": 90}`` in the node's
own text; add the node's ``start_char_idx`` for the place in the source. A field of that name in the stored node is
hidden by it, in results only."""

FINE_FACTOR: Final = 2

_FALLBACKS: Final = {LEAF: "chunks alone", CHUNK: "leaves alone"}


@dataclass(frozen=True, slots=True)
class _Side:
    """What one side found: scores by chunk, the best leaf of each, and the chunks that it has read."""

    scores: Mapping[str, float]
    leaves: Mapping[str, LeafHit] = field(default_factory=dict)
    nodes: Mapping[str, BaseNode] = field(default_factory=dict)


class ChunkDecouplingRetriever(RetrieverAdapter):
    """Searches leaves, twice ``top_k`` of them, and chunks side by side, and returns chunks.

    Every leaf that is found brings its chunk, as the window around it. A chunk scores the mean of its own cosine and
    that of its best leaf; where only one of the two was found, the other counts as the least that was found on that
    side. Each chunk comes once and tells, under ``retrieval_leaf``, where its best leaf stands.
    """

    strategy = Strategy.CHUNK_DECOUPLING

    def _search(self, request: RetrievalRequest, deadline: float | None) -> Found:
        def left() -> float | None:
            return seconds_left(deadline, self._settings.timer)

        request = with_vector(self._index, request, left())
        calls: dict[str, Callable[[], _Side]] = {
            LEAF: lambda: self._fine(request, left()),
            CHUNK: lambda: self._coarse(request, left()),
        }
        sides, errors = run_sides(self._settings.workers, calls, timeout_s=left)
        try:
            candidates = self._merged(sides, request)
        except AgenticRetrieverError as err:
            errors[LEAF] = err  # only the chunks of leaves are read after the fact
            sides.pop(LEAF, None)
            candidates = self._merged(sides, request)
        if not sides:
            told = "; ".join(f"{side}: {err}" for side, err in errors.items())
            raise RetrievalError(f"both sides of chunk_decoupling failed: {told}", errors) from errors.get(CHUNK)
        return Found(
            tuple(candidates),
            tuple(
                Degradation(step=f"chunk_decoupling.{side}", reason=str(err), fallback=_FALLBACKS[side])
                for side, err in errors.items()
            ),
        )

    def _fine(self, request: RetrievalRequest, left_s: float | None) -> _Side:
        view = hierarchy_of(self._index, left_s)
        hits = leaves_for_chunks(view, request, request.top_k, depth=FINE_FACTOR * request.top_k)
        best: dict[str, LeafHit] = {}
        for hit in hits:  # best first
            best.setdefault(hit.chunk_id, hit)
        return _Side({chunk_id: hit.score for chunk_id, hit in best.items()}, leaves=best)

    def _coarse(self, request: RetrievalRequest, left_s: float | None) -> _Side:
        found = nearest(self._index, request, FINE_FACTOR * request.top_k, timeout_s=left_s)
        scores = {c.node.node_id: c.score for c in found if c.score is not None}
        return _Side(scores, nodes={c.node.node_id: c.node for c in found})

    def _merged(self, sides: Mapping[str, _Side], request: RetrievalRequest) -> list[Candidate]:
        means = _means([side.scores for side in sides.values()])
        nodes = {node_id: node for side in sides.values() for node_id, node in side.nodes.items()}
        leaves = sides[LEAF].leaves if LEAF in sides else {}
        taken = take_nodes(self._index, ranked(list(means.items())), nodes, request.top_k, filters=request.filters)
        return [
            Candidate(
                _marked(node, leaves.get(node.node_id)),
                score,
                {name: side.scores.get(node.node_id) for name, side in sides.items()},
            )
            for node, score in taken
        ]


def _means(sides: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean over the sides that found anything; what one did not find counts there as its least."""
    filled = [side for side in sides if side]
    least = [min(side.values()) for side in filled]
    chunk_ids = {chunk_id: None for side in filled for chunk_id in side}
    return {
        chunk_id: sum(side.get(chunk_id, low) for side, low in zip(filled, least, strict=True)) / len(filled)
        for chunk_id in chunk_ids
    }


def _marked(node: BaseNode, leaf: LeafHit | None) -> BaseNode:
    """Note the place of the best leaf in a copy of the node, where no prompt and no embedding sees it."""
    if leaf is None:
        return node
    excluded = {
        name: [*getattr(node, name), SPAN_KEY]
        for name in ("excluded_llm_metadata_keys", "excluded_embed_metadata_keys")
    }
    span = {"start": leaf.start, "end": leaf.end}
    return node.model_copy(update={"metadata": {**node.metadata, SPAN_KEY: span}, **excluded})

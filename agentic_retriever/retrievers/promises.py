"""What the contract of a retriever promises of every result, kept in one place for all strategies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from llama_index.core.schema import NodeWithScore

from agentic_retriever.filters import is_empty, node_fields, predicate
from agentic_retriever.retrievers.node_copy import copied_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from llama_index.core.schema import BaseNode

    from agentic_retriever.retrievers.search import Candidate, RetrievalRequest

SCORES_KEY = "retrieval"
"""Metadata key of a result under which the score of each source stands, such as ``{"dense": 0.8, "bm25": 3.1}``.

A field of that name in the stored node is hidden by it, in results only.
"""


def keep_promises(candidates: Iterable[Candidate], request: RetrievalRequest) -> list[NodeWithScore]:
    """Turn candidates into a result, whatever the strategy or its store did.

    Args:
        candidates: In any order, perhaps with repetitions or scores that are no numbers.
        request: What was asked for.

    Returns:
        At most ``top_k`` nodes, unique by id, by falling score and then by id, each satisfying the filters, with a
        finite score, and copied, so that neither the store nor a cache shares it.
    """
    allowed = predicate(request.filters)
    unique: dict[str, Candidate] = {}
    for candidate in candidates:
        known = unique.get(candidate.node.node_id)
        if known is None or _rank_value(candidate.score) > _rank_value(known.score):
            unique[candidate.node.node_id] = candidate
    kept = list(unique.values())
    if not is_empty(request.filters):
        kept = [c for c in kept if allowed(node_fields(c.node))]
    finite = [c.score for c in kept if c.score is not None and math.isfinite(c.score)]
    # Just below the lowest real score, so that the order by score stays true.
    unscored = math.nextafter(min(finite), -math.inf) if finite else 0.0
    scored = [(c, float(c.score) if c.score is not None and math.isfinite(c.score) else unscored) for c in kept]
    scored.sort(key=lambda pair: (-pair[1], pair[0].node.node_id))
    return [NodeWithScore(node=_copied(c), score=score) for c, score in scored[: request.top_k]]


def _rank_value(score: float | None) -> float:
    return score if score is not None and math.isfinite(score) else -math.inf


def _copied(candidate: Candidate) -> BaseNode:
    """Copy a node and note what each source gave it."""
    copy = copied_node(candidate.node)
    copy.metadata[SCORES_KEY] = {
        name: float(s) for name, s in candidate.sources.items() if s is not None and math.isfinite(s)
    }
    # A model should neither read the scores in its prompt nor embed them.
    for excluded in (copy.excluded_llm_metadata_keys, copy.excluded_embed_metadata_keys):
        if SCORES_KEY not in excluded:
            excluded.append(SCORES_KEY)
    return copy


def source_scores(node: BaseNode) -> Mapping[str, float]:
    """Return the score of each source that found a node of a result, by the source's name."""
    scores: Mapping[str, float] = node.metadata.get(SCORES_KEY, {})
    return scores

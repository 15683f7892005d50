"""New scores for nodes, without a change to what was given."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from llama_index.core.schema import NodeWithScore

from agentic_retriever.retrievers.promises import SCORES_KEY, source_scores

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RETRIEVED: Final = "retrieved"
"""Name in the per-source scores of the score that a node had before anything here changed it."""


def rescored(entry: NodeWithScore, score: float) -> NodeWithScore:
    """Return a node under another score.

    Args:
        entry: The node; it stays as it is.
        score: The new score.

    Returns:
        A copy, which keeps the score that retrieval gave among its per-source scores as ``retrieved``.
    """
    node = entry.node.model_copy()
    known = dict(source_scores(entry.node))
    if entry.score is not None:
        known.setdefault(RETRIEVED, entry.score)
    node.metadata = {**entry.node.metadata, SCORES_KEY: known}
    hidden = [SCORES_KEY]
    node.excluded_llm_metadata_keys = list(dict.fromkeys([*entry.node.excluded_llm_metadata_keys, *hidden]))
    node.excluded_embed_metadata_keys = list(dict.fromkeys([*entry.node.excluded_embed_metadata_keys, *hidden]))
    return NodeWithScore(node=node, score=score)


def in_order(nodes: Iterable[NodeWithScore]) -> list[NodeWithScore]:
    """Return nodes by falling score, then by id; those without a finite score last."""
    return sorted(nodes, key=lambda entry: (-value_of(entry), entry.node.node_id))


def value_of(entry: NodeWithScore) -> float:
    """Return a node's score, or minus infinity for none or no finite one."""
    return entry.score if entry.score is not None and math.isfinite(entry.score) else -math.inf


def unit_scores(nodes: Sequence[NodeWithScore]) -> list[float]:
    """Bring scores to [0, 1]: the best becomes 1, the worst 0, all 1 where they are the same; no score gives 0."""
    finite = [value for value in map(value_of, nodes) if value > -math.inf]
    if not finite:
        return [0.0] * len(nodes)
    low, span = min(finite), max(finite) - min(finite)
    if not (span > 0 and math.isfinite(span)):
        return [float(value_of(entry) > -math.inf) for entry in nodes]
    return [max(0.0, (value_of(entry) - low) / span) for entry in nodes]

"""Maximal marginal relevance: results that are not all the same.

J. Carbonell and J. Goldstein, "The Use of MMR, Diversity-Based Reranking for Reordering Documents and Producing
Summaries", SIGIR 1998.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from agentic_retriever.errors import ConfigError
from agentic_retriever.retrievers.postprocess.scores import unit_scores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    from llama_index.core.schema import NodeWithScore


def mmr(
    nodes: Sequence[NodeWithScore],
    vectors: Mapping[str, npt.ArrayLike],
    *,
    top_k: int,
    trade_off: float,
) -> list[NodeWithScore]:
    """Choose nodes one by one, each relevant and unlike those chosen before.

    The next node is the one with the largest ``trade_off x relevance - (1 - trade_off) x similarity``: relevance is its
    score brought to [0, 1], similarity its largest cosine with a chosen node.

    Args:
        nodes: Best first.
        vectors: A vector by node id, each of the same length; a node without a usable one is similar to none.
        top_k: How many to choose.
        trade_off: The lambda of the paper, in [0, 1]; 1 gives the nodes as they are, 0 looks at differences alone.

    Returns:
        A new list of at most ``top_k`` of the nodes given, in the order they were chosen, scores unchanged.

    Raises:
        ConfigError: If ``trade_off`` is out of range.
    """
    if not 0 <= trade_off <= 1:
        raise ConfigError(f"the trade-off of MMR must be from 0 to 1, got {trade_off!r}")
    if trade_off == 1:
        return list(nodes[:top_k])
    relevance = np.asarray(unit_scores(nodes))
    cosines = _cosines([vectors.get(entry.node.node_id) for entry in nodes])
    nearest = np.zeros(len(nodes))
    left = np.ones(len(nodes), dtype=bool)
    chosen: list[int] = []
    while len(chosen) < min(top_k, len(nodes)):
        gain = np.where(left, trade_off * relevance - (1 - trade_off) * nearest, -math.inf)
        best = int(np.argmax(gain))  # the first of equals, which is the better one
        nearest = np.maximum(nearest, cosines[best]) if chosen else cosines[best]
        left[best] = False
        chosen.append(best)
    return [nodes[i] for i in chosen]


def _cosines(vectors: Sequence[npt.ArrayLike | None]) -> npt.NDArray[np.float64]:
    """Cosines of all pairs, ``(n, n)``; 0 where a vector is missing, zero or not finite."""
    given = [None if vector is None else np.asarray(vector, dtype=np.float64).ravel() for vector in vectors]
    size = next((len(vector) for vector in given if vector is not None), 1)
    matrix = np.zeros((len(given), size))
    for row, vector in enumerate(given):
        if vector is not None and len(vector) == size and np.isfinite(vector).all():
            matrix[row] = vector / (np.linalg.norm(vector) or 1.0)
    product: npt.NDArray[np.float64] = matrix @ matrix.T
    return product

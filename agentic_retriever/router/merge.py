"""One list of nodes from several indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index.core.schema import NodeWithScore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentic_retriever.retrievers import SearchResult


def merge_indexes(
    results: Mapping[str, SearchResult], index_scores: Mapping[str, float], *, top_k: int
) -> tuple[list[NodeWithScore], dict[str, str]]:
    """Merge the results of several indexes by the score of each node relative to its list, times the index's score.

    Args:
        results: What each index returned, by its name; one index passes through unchanged.
        index_scores: Probability of each index, in [0, 1].
        top_k: Most nodes to keep.

    Returns:
        Nodes ordered by (-merged score, node id), unique by id; and the index of each node.
    """
    if len(results) == 1:
        name, result = next(iter(results.items()))
        return list(result.nodes), {n.node.node_id: name for n in result.nodes}
    merged: dict[str, tuple[float, str, NodeWithScore]] = {}
    for name, result in results.items():
        top = max((n.score or 0.0 for n in result.nodes), default=0.0)
        for node in result.nodes:
            share = (node.score or 0.0) / top if top > 0 else 0.0
            candidate = (index_scores.get(name, 0.0) * share, name, node)
            node_id = node.node.node_id
            if node_id not in merged or candidate[0] > merged[node_id][0]:
                merged[node_id] = candidate
    ordered = sorted(merged.items(), key=lambda item: (-item[1][0], item[0]))[:top_k]
    nodes = [NodeWithScore(node=node.node, score=score) for _, (score, _, node) in ordered]
    return nodes, {node_id: name for node_id, (_, name, _) in ordered}

"""One list of nodes from several indexes, by scores that can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from llama_index.core.schema import NodeWithScore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.retrievers import SearchResult

INDEX_SHARE: Final = 0.4
"""How much a good index lifts its nodes: the weight of the collection in CORI's merging."""


def merge_indexes(
    results: Mapping[str, SearchResult],
    index_scores: Mapping[str, float],
    *,
    cosines: Mapping[str, float],
    top_k: int,
) -> tuple[list[NodeWithScore], dict[str, str]]:
    """Merge the results of several indexes.

    Scores of different indexes do not compare: a fusion depends on its list, BM25 on its collection. Cosines with the
    question do, since all indexes share one embedding model. So the nodes of each index keep the order that their
    strategy gave them, the n-th of them counts as near as the n-th largest cosine of its list, and all are merged as
    in CORI: ``(D + 0.4 D C) / 1.4`` with node scores D and index scores C brought to [0, 1] (J. Callan, Z. Lu and
    W. B. Croft, "Searching Distributed Collections with Inference Networks", SIGIR 1995).

    Args:
        results: What each index returned, by its name; one index passes through unchanged.
        index_scores: Probability of each index, in [0, 1].
        cosines: Cosine with the question by node id; where one is missing, each list's own scores relative to its best
            stand in for all.
        top_k: Most nodes to keep.

    Returns:
        Nodes ordered by (-merged score, node id), unique by id; and the index of each node.
    """
    if len(results) == 1:
        name, result = next(iter(results.items()))
        return list(result.nodes[:top_k]), {n.node.node_id: name for n in result.nodes}
    comparable = all(node.node.node_id in cosines for result in results.values() for node in result.nodes)
    levels = {
        name: _levels(result.nodes, cosines) if comparable else _relative(result.nodes)
        for name, result in results.items()
    }
    node_scores = _unit_range([level for row in levels.values() for level in row])
    shares = dict(zip(results, _unit_range([index_scores.get(name, 0.0) for name in results]), strict=True))
    merged: dict[str, tuple[float, str, NodeWithScore]] = {}
    at = 0
    for name, result in results.items():
        for node in result.nodes:
            score = node_scores[at] * (1 + INDEX_SHARE * shares[name]) / (1 + INDEX_SHARE)
            at += 1
            known = merged.get(node.node.node_id)
            if known is None or score > known[0]:
                merged[node.node.node_id] = (score, name, node)
    ordered = sorted(merged.items(), key=lambda item: (-item[1][0], item[0]))[:top_k]
    nodes = [NodeWithScore(node=node.node, score=score) for _, (score, _, node) in ordered]
    return nodes, {node_id: name for node_id, (_, name, _) in ordered}


def _levels(nodes: Sequence[NodeWithScore], cosines: Mapping[str, float]) -> list[float]:
    """Cosines of a list from the largest down, so that the strategy's order stays."""
    return sorted((cosines[node.node.node_id] for node in nodes), reverse=True)


def _relative(nodes: Sequence[NodeWithScore]) -> list[float]:
    top = max((node.score or 0.0 for node in nodes), default=0.0)
    return [max(0.0, node.score or 0.0) / top if top > 0 else 0.0 for node in nodes]


def _unit_range(values: Sequence[float]) -> list[float]:
    """Bring values to [0, 1]; equal ones to 1."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [(value - low) / (high - low) if high > low else 1.0 for value in values]

"""What cosines tell of retrieved nodes: how near they are to a question, and one order for those of several indexes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from llama_index.core.schema import NodeWithScore

from agentic_retriever.indices import IndexProfile
from agentic_retriever.resources import Resources
from agentic_retriever.retrievers import SearchResult, source_scores
from agentic_retriever.retrievers.refining import store_vectors

if TYPE_CHECKING:
    from agentic_retriever.embeddings.model import Vector

# The sources of strategies whose scores are cosines with a node of the index.
_COSINES: Final = ("dense", "leaf", "chunk")

# Fixed on the sample questions against questions of other collections asked of the sample: 95 % of the answerable ones
# stand above a z of 0, 95 % of the others below 0.4.
_STEEPNESS: Final = 2.0
_TURN: Final = -0.3

INDEX_SHARE: Final = 0.4
"""How much a good index lifts its nodes: the weight of the collection in CORI's merging."""


def relevance(nodes: Sequence[NodeWithScore], profile: IndexProfile) -> float | None:
    """Turn the best cosine into [0, 1] by how far it stands above what unrelated texts of the index reach."""
    cosines = [cosine for node in nodes if (cosine := _node_cosine(node)) is not None]
    if not cosines:
        return None
    z = (max(cosines) - profile.background_mean) / profile.background_std
    return 1 / (1 + math.exp(-_STEEPNESS * (z - _TURN)))


def _node_cosine(node: NodeWithScore) -> float | None:
    """Return the cosine by which a node was found, or ``None`` when it was found by words alone."""
    scores = source_scores(node.node)
    return max((scores[source] for source in _COSINES if source in scores), default=None)


def merge_indexes(
    resources: Resources,
    results: Mapping[str, SearchResult],
    index_scores: Mapping[str, float],
    *,
    query_vector: Vector | None,
    top_k: int,
) -> tuple[list[NodeWithScore], dict[str, str]]:
    """Make one list of the nodes of the indexes that were searched, and tell the index of each node by its id."""
    if len(results) == 1:
        name, result = next(iter(results.items()))
        return list(result.nodes[:top_k]), {n.node.node_id: name for n in result.nodes}
    cosines = _cosines(resources, results, query_vector)
    return merge_by_cosine(results, index_scores, cosines=cosines, top_k=top_k)


def _cosines(
    resources: Resources, results: Mapping[str, SearchResult], query_vector: Vector | None
) -> dict[str, float]:
    """Return the cosine of each node with the question, as far as it can be known."""
    cosines: dict[str, float] = {}
    for name, result in results.items():
        index = resources.index(name)
        if not resources.compares(index):
            continue  # cosines of another model
        found = {node.node.node_id: _node_cosine(node) for node in result.nodes}
        cosines |= {node_id: cosine for node_id, cosine in found.items() if cosine is not None}
        missing = [node_id for node_id, cosine in found.items() if cosine is None]
        if missing and query_vector is not None:
            vectors = store_vectors(index)(missing)
            cosines |= {node_id: float(np.dot(np.asarray(v), query_vector)) for node_id, v in vectors.items()}
    return cosines


def merge_by_cosine(
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
    """
    comparable = all(node.node.node_id in cosines for result in results.values() for node in result.nodes)
    levels = {
        name: _levels(result.nodes, cosines) if comparable else _relative(result.nodes)
        for name, result in results.items()
    }
    node_scores = iter(_unit_range([level for row in levels.values() for level in row]))
    shares = dict(zip(results, _unit_range([index_scores.get(name, 0.0) for name in results]), strict=True))
    merged: dict[str, tuple[float, str, NodeWithScore]] = {}
    for name, result in results.items():
        for node in result.nodes:
            score = next(node_scores) * (1 + INDEX_SHARE * shares[name]) / (1 + INDEX_SHARE)
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

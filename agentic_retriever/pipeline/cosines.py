"""What cosines tell of retrieved nodes: how near they are to a question, and one order for those of several indexes."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from llama_index.core.schema import NodeWithScore

from agentic_retriever import retrievers
from agentic_retriever.embeddings.model import Vector
from agentic_retriever.indices import IndexProfile
from agentic_retriever.resources import Resources
from agentic_retriever.retrievers import refining
from agentic_retriever.retrievers.base import detailed

_COSINES: Final = ("dense", "leaf", "chunk")  # sources of strategies whose scores are cosines with a node of the index

# Fixed on the sample questions against questions of other collections asked of the sample: 95 % of the answerable ones
# stand above a z of 0, 95 % of the others below 0.4.
_STEEPNESS, _TURN = 2.0, -0.3

INDEX_SHARE: Final = 0.4  # how much a good index lifts its nodes: the weight of the collection in CORI's merging


def relevance(nodes: Sequence[NodeWithScore], profile: IndexProfile) -> float | None:
    """Turn the best cosine into [0, 1] by how far it stands above what unrelated texts of the index reach."""
    cosines = [cosine for node in nodes if (cosine := node_cosine(node)) is not None]
    if not cosines:
        return None
    z = (max(cosines) - profile.background_mean) / profile.background_std
    # The spread of near-identical chunks is next to nothing, and a power far out would overflow.
    return 1 / (1 + math.exp(max(-60.0, min(60.0, -_STEEPNESS * (z - _TURN)))))


def node_cosine(node: NodeWithScore) -> float | None:
    """Return the cosine by which a node was found, or ``None`` when it was found by words alone."""
    scores = retrievers.source_scores(node)
    return max((scores[source] for source in _COSINES if source in scores), default=None)


def merge_indexes(
    resources: Resources,
    results: Mapping[str, retrievers.SearchResult],
    index_scores: Mapping[str, float],
    *,
    query_vector: Vector | None,
    top_k: int,
) -> tuple[list[NodeWithScore], dict[str, str]]:
    """Make one list of the nodes of the indexes that were searched, and tell the index of each node by its id."""
    if len(results) == 1:
        name, result = next(iter(results.items()))
        return list(result.nodes[:top_k]), {n.node.node_id: name for n in result.nodes}
    cosines: dict[str, float] = {}  # of each node with the question, as far as it can be known
    for name, result in results.items():
        index = resources.index(name)
        if not resources.compares(index):
            continue  # cosines of another model
        found = {node.node.node_id: node_cosine(node) for node in result.nodes}
        cosines |= {node_id: cosine for node_id, cosine in found.items() if cosine is not None}
        missing = [node_id for node_id, cosine in found.items() if cosine is None]
        if missing and query_vector is not None:
            vectors = refining.store_vectors(index, missing)
            cosines |= {node_id: float(np.dot(np.asarray(v), query_vector)) for node_id, v in vectors.items()}
    return merge_by_cosine(results, index_scores, cosines=cosines, top_k=top_k)


def merge_by_cosine(
    results: Mapping[str, retrievers.SearchResult],
    index_scores: Mapping[str, float],
    *,
    cosines: Mapping[str, float],
    top_k: int,
) -> tuple[list[NodeWithScore], dict[str, str]]:
    """Merge the results of several indexes as in CORI (Callan et al., SIGIR 1995): cosines compare, scores do not."""
    comparable = all(node.node.node_id in cosines for result in results.values() for node in result.nodes)
    levels: list[float] = []
    for result in results.values():
        scores = [node.score or 0.0 for node in result.nodes]
        top = max(scores, default=0.0)
        if comparable:
            levels += sorted((cosines[node.node.node_id] for node in result.nodes), reverse=True)
        else:
            levels += [max(0.0, score) / top if top > 0 else 0.0 for score in scores]
    node_scores = iter(_unit_range(levels))
    shares = dict(zip(results, _unit_range([index_scores.get(name, 0.0) for name in results]), strict=True))
    merged: dict[str, tuple[float, str, NodeWithScore]] = {}
    for name, result in results.items():
        for node in result.nodes:
            score = next(node_scores) * (1 + INDEX_SHARE * shares[name]) / (1 + INDEX_SHARE)
            known = merged.get(node.node.node_id)
            if known is None or score > known[0]:
                merged[node.node.node_id] = (score, name, node)
    ordered = sorted(merged.items(), key=lambda item: (-item[1][0], item[0]))[:top_k]
    nodes: list[NodeWithScore] = [detailed(node, score) for _, (score, _, node) in ordered]
    return nodes, {node_id: name for node_id, (_, name, _) in ordered}


def _unit_range(values: Sequence[float]) -> list[float]:
    """Bring values to [0, 1]; equal ones to 1."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [(value - low) / (high - low) if high > low else 1.0 for value in values]

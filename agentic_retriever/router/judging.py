"""How well what was retrieved fits the question, without a model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from agentic_retriever.indices.profile import MAX_TERMS
from agentic_retriever.retrievers import source_scores
from agentic_retriever.retrievers.postprocess import store_vectors
from agentic_retriever.retrievers.searchable import HasSearchProfile
from agentic_retriever.synthesis import unknown_share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.schema import NodeWithScore

    from agentic_retriever.embeddings.model import Vector
    from agentic_retriever.indices import IndexProfile, RoutedIndex
    from agentic_retriever.router.resources import Resources

# The sources of strategies whose scores are cosines with a node of the index.
_COSINES = ("dense", "leaf", "chunk")

# Fixed on the sample questions against questions of other collections asked of the sample: 95 % of the answerable ones
# stand above a z of 0, 95 % of the others below 0.4.
_STEEPNESS = 2.0
_TURN = -0.3


def relevance(nodes: Sequence[NodeWithScore], profile: IndexProfile) -> float | None:
    """Turn the best cosine into [0, 1] by how far it stands above what unrelated texts of the index reach.

    Args:
        nodes: What was retrieved.
        profile: Of the index that was searched first.

    Returns:
        A number in [0, 1]; ``None`` when no node was found by its vector.
    """
    known = [cosine for node in nodes if (cosine := node_cosine(node)) is not None]
    if not known:
        return None
    z = (max(known) - profile.background_mean) / profile.background_std
    return 1 / (1 + math.exp(-_STEEPNESS * (z - _TURN)))


def search_profile(index: RoutedIndex) -> IndexProfile:
    """Return the profile of an index with the background of the cosines that its searches give."""
    return index.search_profile() if isinstance(index, HasSearchProfile) else index.profile()


def unknown_words(query: str, profile: IndexProfile) -> float | None:
    """Return the share of a question's words that an index lacks, in [0, 1].

    Args:
        query: The question.
        profile: Of the index.

    Returns:
        The share; ``None`` where the profile cannot hold all words of the index, or the question has none.
    """
    if not profile.whole or len(profile.document_frequency) >= MAX_TERMS:
        return None
    return unknown_share(query, profile.document_frequency, language=profile.language)


def node_cosine(node: NodeWithScore) -> float | None:
    """Return the cosine by which a node was found, or ``None`` when it was found by words alone."""
    scores = source_scores(node.node)
    return max((scores[source] for source in _COSINES if source in scores), default=None)


def cosines(
    resources: Resources, found: Mapping[str, Sequence[NodeWithScore]], query_vector: Vector | None
) -> dict[str, float]:
    """Return the cosine of each node with the question.

    Args:
        resources: The indexes.
        found: Nodes by name of their index.
        query_vector: Unit vector of the question, or ``None``.

    Returns:
        By node id, as far as known: from the search itself, else from the stored vectors. Nothing of an index with an
        embedding model of its own, whose cosines do not compare with those of others.

    Raises:
        StoreError: If a store cannot be read.
    """
    known: dict[str, float] = {}
    for name, nodes in found.items():
        if not resources.compares(resources.index(name)):
            continue  # cosines of another model
        told = {node.node.node_id: node_cosine(node) for node in nodes}
        known |= {node_id: cosine for node_id, cosine in told.items() if cosine is not None}
        missing = [node_id for node_id, cosine in told.items() if cosine is None]
        if missing and query_vector is not None:
            vectors = store_vectors(resources.index(name))(missing)
            known |= {node_id: float(np.dot(np.asarray(v), query_vector)) for node_id, v in vectors.items()}
    return known

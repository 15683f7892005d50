"""Reranking: a second, slower look at the first nodes, by a language model, a cross-encoder or Cohere.

A reranker that fails raises; ``postprocess`` then keeps the order that it had.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol

from llama_index.core.schema import MetadataMode

from agentic_retriever.errors import LLMOutputError
from agentic_retriever.retrievers.postprocess.scores import in_order, rescored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import NodeWithScore

MAX_PASSAGE_CHARS: Final = 4_000
"""Most characters of one node that a reranker reads."""


class Reranker(Protocol):
    """Orders nodes anew."""

    def rerank(
        self, query: str, nodes: Sequence[NodeWithScore], top_k: int, timeout_s: float | None = None
    ) -> list[NodeWithScore]:
        """Return the best nodes under new scores.

        Args:
            query: The question.
            nodes: Best first; none is changed.
            top_k: How many to return at most, from 1.
            timeout_s: Total seconds, or ``None`` for the reranker's own limit.

        Returns:
            A new list by falling score, then by id, of copies that keep their earlier score as ``retrieved``.

        Raises:
            AgenticRetrieverError: If it failed or did not end in time.
        """


class NoReranker:
    """Leaves the order as it is."""

    def rerank(
        self,
        query: str,  # noqa: ARG002 - the protocol's signature
        nodes: Sequence[NodeWithScore],
        top_k: int,
        timeout_s: float | None = None,  # noqa: ARG002 - the protocol's signature
    ) -> list[NodeWithScore]:
        """Return the first ``top_k`` nodes; see :class:`Reranker`."""
        return list(nodes[:top_k])


def passage_text(entry: NodeWithScore, max_chars: int = MAX_PASSAGE_CHARS) -> str:
    """Return what a reranker reads of a node: its title, section and the beginning of its text."""
    return entry.node.get_content(metadata_mode=MetadataMode.EMBED)[:max_chars]


def by_scores(nodes: Sequence[NodeWithScore], scores: Sequence[float], top_k: int) -> list[NodeWithScore]:
    """Order nodes by new scores.

    Args:
        nodes: The nodes.
        scores: One for each.
        top_k: How many to return at most.

    Raises:
        LLMOutputError: If there are more or fewer scores than nodes, or one is not finite.
    """
    if len(scores) != len(nodes) or not all(map(math.isfinite, scores)):
        raise LLMOutputError(
            f"the reranker gave {len(scores)} scores for {len(nodes)} nodes, or some that are no numbers"
        )
    return in_order(rescored(entry, float(score)) for entry, score in zip(nodes, scores, strict=True))[:top_k]

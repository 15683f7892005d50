"""Merging what was found for the parts of a question: one ranking, in which every part keeps its best node."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from llama_index.core.schema import MetadataMode

from agentic_retriever.retrievers.fusion import ranked
from agentic_retriever.retrievers.promises import source_scores
from agentic_retriever.retrievers.search import Candidate
from agentic_retriever.text import count_overlap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.schema import BaseNode, NodeWithScore

    from agentic_retriever.text import Tokenizer

PARTS_KEY: Final = "retrieval_parts"
"""Metadata key of a planned result, beside ``retrieval``: the questions that the node was found for, such as
``["margin in 2024", "margin in 2025"]``; the whole question is among them where it found the node."""

SIMILARITY_WEIGHT: Final = 0.7
OVERLAP_WEIGHT: Final = 0.3

SIMILARITY: Final = "similarity"
OVERLAP: Final = "overlap"
"""Names in the per-source scores of a planned result, each in [0, 1]."""


@dataclass(slots=True)
class _Hit:
    node: BaseNode
    by_part: dict[str, float]
    sources: Mapping[str, float]

    @property
    def similarity(self) -> float:
        return max(self.by_part.values())


def merge_parts(
    found: Mapping[str, Sequence[NodeWithScore]], query: str, *, tokenizer: Tokenizer, top_k: int
) -> tuple[Candidate, ...]:
    """Merge the results of several questions.

    A node's score is 0.7 times its similarity plus 0.3 times its keyword overlap, both in [0, 1]. Its similarity is the
    best of its scores under any part, brought to [0, 1] within each part; its overlap is the share of the terms of the
    question, and of what the parts that found it add to them, that occur in it.

    Args:
        found: Nodes by the question that they were found for; none is changed.
        query: The whole question.
        tokenizer: Cuts the questions and the nodes.
        top_k: How many candidates at most.

    Returns:
        The best ``top_k``, each with the parts that found it under ``PARTS_KEY``. The best node of each question is
        among them: the whole question's first, then the parts' in order, as far as ``top_k`` reaches.
    """
    hits: dict[str, _Hit] = {}
    best: list[str] = []
    for part in sorted(found, key=lambda part: part != query):
        scores = _to_unit({n.node.node_id: n.score for n in found[part]})
        best += list(scores)[:1]
        for entry in found[part]:
            node_id = entry.node.node_id
            hit = hits.setdefault(node_id, _Hit(entry.node, {}, source_scores(entry.node)))
            hit.by_part[part] = max(scores[node_id], hit.by_part.get(part, 0.0))
    terms = {part: tokenizer.query_tokens(part) for part in {query, *found}}
    overlaps = {node_id: _overlap(hit, query, terms, tokenizer) for node_id, hit in hits.items()}
    totals = {i: SIMILARITY_WEIGHT * hit.similarity + OVERLAP_WEIGHT * overlaps[i] for i, hit in hits.items()}
    order = sorted(totals, key=lambda node_id: (-totals[node_id], node_id))
    kept = dict.fromkeys(list(dict.fromkeys(best))[:top_k])
    kept |= dict.fromkeys([node_id for node_id in order if node_id not in kept][: top_k - len(kept)])
    return tuple(_candidate(hits[node_id], totals[node_id], overlaps[node_id]) for node_id in order if node_id in kept)


def _to_unit(scores: Mapping[str, float | None]) -> dict[str, float]:
    """Bring scores to [0, 1], best first; what has no score gets 0."""
    order = ranked(list(scores.items()))
    finite = [score for _, score in order if score is not None]
    if not finite:
        return {node_id: 0.0 for node_id, _ in order}
    low, span = finite[-1], finite[0] - finite[-1]
    if not (span > 0 and math.isfinite(span)):
        return {node_id: float(score is not None) for node_id, score in order}
    return {node_id: 0.0 if score is None else (score - low) / span for node_id, score in order}


def _overlap(hit: _Hit, query: str, terms: Mapping[str, Sequence[str]], tokenizer: Tokenizer) -> float:
    wanted = [term for part in (query, *hit.by_part) for term in terms[part]]
    return count_overlap(wanted, tokenizer.tokens(hit.node.get_content(metadata_mode=MetadataMode.EMBED)))


def _candidate(hit: _Hit, score: float, overlap: float) -> Candidate:
    sources = {**hit.sources, SIMILARITY: hit.similarity, OVERLAP: overlap}
    return Candidate(_with_parts(hit.node, list(hit.by_part)), score, sources)


def _with_parts(node: BaseNode, parts: list[str]) -> BaseNode:
    """Copy a node as far as it changes, and note its parts where neither prompts nor embeddings have them."""
    excluded = {
        name: [*getattr(node, name), PARTS_KEY]
        for name in ("excluded_llm_metadata_keys", "excluded_embed_metadata_keys")
    }
    return node.model_copy(update={"metadata": {**node.metadata, PARTS_KEY: parts}, **excluded})

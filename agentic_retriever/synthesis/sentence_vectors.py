"""The cosine of the likeliest sentences with the question, mixed into their scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from agentic_retriever.synthesis.candidates import Candidate
    from agentic_retriever.synthesis.scoring import Scores

    Embed = Callable[[list[str]], NDArray[Any]]

EMBEDDED = 12
"""Most sentences of one answer that are embedded."""

NEAR = 0.5
"""Share of the cosine in a mixed score."""

_BY_RANK = 5


def rescored(
    found: Sequence[Candidate],
    scores: Scores,
    embed: Embed,
    query_vector: Sequence[float] | NDArray[Any],
    *,
    blind: bool,
    share: float = NEAR,
) -> Scores:
    """Mix the scores of the best sentences with their cosine to the question; all others keep the share of words.

    Args:
        found: The candidates.
        scores: Their scores by words.
        embed: Embeds texts as rows of an ``(n, dim)`` array; called once, with at most 12 texts.
        query_vector: The question's vector, shape ``(dim,)``.
        blind: Whether the scores by words mean nothing.
        share: Share of the cosine in a mixed score, in [0, 1].

    Returns:
        Scores in [0, 1], ``(n,)``.

    Raises:
        ValueError: If the vectors have the wrong shape or are not finite.
    """
    best = _worth_embedding(found, scores, blind=blind)
    vectors = np.asarray(embed([found[i].in_context for i in best]), dtype=float)
    query = np.asarray(query_vector, dtype=float).ravel()
    if vectors.shape != (len(best), query.size) or not (np.isfinite(vectors).all() and np.isfinite(query).all()):
        raise ValueError(f"expected finite vectors of shape {(len(best), query.size)}, got shape {vectors.shape}")
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosines = vectors @ query / np.where(norms > 0, norms, 1.0)
    # Cosines of one model crowd together, so they are spread over [0, 1] before they are mixed in.
    spread = float(np.ptp(cosines))
    near = (cosines - cosines.min()) / spread if spread > 0 else np.ones(len(best))
    top = float(scores[best].max()) or 1.0
    mixed = np.zeros(len(found)) if blind else (1 - share) * scores / top
    mixed[best] += share * near
    return mixed


def _worth_embedding(found: Sequence[Candidate], scores: Scores, *, blind: bool) -> list[int]:
    # A paraphrase shares no words with the question, so the sentences that come first are looked at in any case.
    first = list(range(min(len(found), EMBEDDED if blind else _BY_RANK)))
    by_score = [int(i) for i in np.argsort(-scores, kind="stable")]
    return list(dict.fromkeys([*by_score[: EMBEDDED - len(first)], *first, *by_score]))[:EMBEDDED]

"""How far an answer can be trusted, as one number."""

from __future__ import annotations

import math


def confidence_score(*, coverage: float, relevance: float | None, support: float) -> float:
    """Combine what speaks for an answer.

    ``evidence = sqrt((coverage² + relevance²) / 2)``, or ``coverage`` alone without a relevance, and
    ``score = evidence * (0.4 + 0.6 * support)``. The quadratic mean lies between the mean and the larger of both: a
    question in another language than the documents shares no words with them, and a question of rare names is far from
    everything in vector space; either evidence can carry most of the weight, but not all of it.

    Args:
        coverage: Weighted share of the question's terms found in the cited text, in [0, 1].
        relevance: How near the dense retriever found the question to the nodes, in [0, 1], or ``None`` if unknown.
        support: Mean score of the citations over the sentences of the answer, in [0, 1].

    Returns:
        A score in [0, 1]. Arguments outside their range are clipped, those that are not finite count as 0.
    """
    share = _unit(coverage)
    evidence = share if relevance is None else math.sqrt((share**2 + _unit(relevance) ** 2) / 2)
    return min(1.0, evidence * (0.4 + 0.6 * _unit(support)))


def _unit(value: float) -> float:
    return min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0

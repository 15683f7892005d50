"""Whether what was retrieved answers a question: every rule that ends in "not found", in the order a query meets them.

Each rule gives the reason, which the answer passes on, or ``""`` where it sees none. Before retrieval, stage one alone
decides (``routing/abstention.py``); what is done with a question that it finds out of scope says ``on_abstain``.
"""

from __future__ import annotations

from typing import Final

MAX_JUDGED: Final = 10
"""So many of the retrieved nodes are looked at together."""

SUPPORT_BELOW: Final = 0.3
"""Nothing is answered from passages that hold an answer with less probability."""

_MODEL_FROM: Final = 0.9
"""Share of the threshold from which a model is asked: it may read more in the passages than their words tell."""


def why_not_read(support: float) -> str:
    """Judge the passages as a whole, by the probability that they hold an answer; without one nobody reads them."""
    return "" if support >= SUPPORT_BELOW else f"the passages found hardly answer this (probability {support:.2f})"


def why_not_answered(sentences: str, confidence: float, *, threshold: float, asks_model: bool) -> str:
    """Judge what can be quoted: the sentences that were found, and the confidence in an answer from the passages."""
    if not sentences:
        return "no sentence of what was found answers this"
    least = threshold * (_MODEL_FROM if asks_model else 1.0)
    return "" if confidence >= least else f"an answer would be too unsure (confidence {confidence:.2f})"


def why_not_written(answer: str | None) -> str:
    """Judge what a model wrote, as it stands after the check of its citations; ``None`` where it saw no answer."""
    if answer is None:
        return "the model read the passages and saw no answer in them"
    return "" if answer else "the passages support nothing of what the model wrote"

"""Whether what was retrieved answers a question: every rule that ends in "not found", in the order a query meets them.

Before retrieval, stage one alone decides (``routing/abstention.py``); what is done with a question that it finds out of
scope says ``on_abstain``, and one that is declined has no passages.
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
    """Judge the passages as a whole, by the probability that they hold an answer: why nobody reads them, or ``""``."""
    return "" if support >= SUPPORT_BELOW else f"the passages found hardly answer this (probability {support:.2f})"


def is_answerable(sentences: str, confidence: float, *, threshold: float, asks_model: bool) -> bool:
    """Judge what can be quoted: whether any sentence was found, and the confidence in an answer from the passages."""
    return bool(sentences) and confidence >= threshold * (_MODEL_FROM if asks_model else 1.0)


def is_written(answer: str | None) -> bool:
    """Judge what a model wrote: ``None`` where it saw no answer, blank where the passages support nothing of it."""
    return bool(answer)

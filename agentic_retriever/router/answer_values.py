"""What the answer cache does with answers: which it keeps, and what it hands out."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from agentic_retriever.cache import WarmOutcome
from agentic_retriever.router.kept_nodes import kept
from agentic_retriever.schema import Answer, Tier

MAX_CHARS: Final = 2_000_000
"""Answers with more text than this in their nodes are not kept, so that 500 of them cannot fill the memory."""


def worth_keeping(answer: Answer) -> bool:
    """Keep what would be answered alike next time: nothing degraded, found out of bounds, or huge."""
    if answer.degraded or answer.tier is Tier.NONE:
        return False
    return sum(len(getattr(scored.node, "text", "")) for scored in answer.nodes) <= MAX_CHARS


def kept_answer(answer: Answer) -> Answer:
    """Return an answer as the cache keeps it; from now on nobody may change its nodes."""
    return replace(answer, nodes=kept(answer.nodes))


def copied_answer(answer: Answer) -> Answer:
    """Copy an answer as far as callers can change it, so that the cached one stays as it was.

    Lists, mappings and models in the nodes are copied to the bottom; texts and numbers are shared.
    """
    return replace(answer, nodes=kept(answer.nodes).copies())


def warm_outcome(answer: Answer) -> WarmOutcome:
    """Tell what became of an answer that was asked for beforehand."""
    if answer.cached:
        return WarmOutcome.CACHED
    return WarmOutcome.STORED if worth_keeping(answer) else WarmOutcome.NOT_KEPT

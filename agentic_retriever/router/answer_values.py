"""What the answer cache does with answers: which it keeps, and what it hands out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from llama_index.core.schema import NodeWithScore

from agentic_retriever.cache import WarmOutcome
from agentic_retriever.schema import Answer, Tier

MAX_CHARS: Final = 2_000_000
"""Answers with more text than this in their nodes are not kept, so that 500 of them cannot fill the memory."""


def worth_keeping(answer: Answer) -> bool:
    """Keep what would be answered alike next time: nothing degraded, found out of bounds, or huge."""
    if answer.degraded or answer.tier is Tier.NONE:
        return False
    return sum(len(getattr(scored.node, "text", "")) for scored in answer.nodes) <= MAX_CHARS


def copied_answer(answer: Answer) -> Answer:
    """Copy an answer as far as callers can change it, so that the cached one stays as it was."""
    return replace(answer, nodes=tuple(_copied(node) for node in answer.nodes))


def warm_outcome(answer: Answer) -> WarmOutcome:
    """Tell what became of an answer that was asked for beforehand."""
    if answer.cached:
        return WarmOutcome.CACHED
    return WarmOutcome.STORED if worth_keeping(answer) else WarmOutcome.NOT_KEPT


def _copied(scored: NodeWithScore) -> NodeWithScore:
    """Copy a node: what it holds in lists and mappings is copied to the bottom, texts and numbers are shared."""
    node = scored.node.model_copy()
    for name, value in list(node.__dict__.items()):
        if isinstance(value, (dict, list)):
            node.__dict__[name] = _copied_value(value)
        elif hasattr(value, "model_copy"):
            node.__dict__[name] = value.model_copy(deep=True)
    return NodeWithScore.model_construct(node=node, score=scored.score)


def _copied_value(value: Any) -> Any:  # noqa: ANN401 - any value that metadata holds
    if isinstance(value, dict):
        return {key: _copied_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied_value(inner) for inner in value]
    return value.model_copy(deep=True) if hasattr(value, "model_copy") else value

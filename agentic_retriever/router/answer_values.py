"""What the answer cache does with answers: which it keeps, and what it hands out."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Final, TypeVar

from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.schema import NodeWithScore

from agentic_retriever.cache import WarmOutcome
from agentic_retriever.schema import Answer, Tier

M = TypeVar("M", bound=BaseModel)

MAX_CHARS: Final = 2_000_000
"""Answers with more text than this in their nodes are not kept, so that 500 of them cannot fill the memory."""

_UNCHANGING: Final = frozenset({str, int, float, bool, type(None)})


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
    """Copy a node: lists, mappings and models in it are copied to the bottom, texts and numbers are shared."""
    return NodeWithScore.model_construct(node=_copied_model(scored.node), score=scored.score)


def _copied_model(model: M) -> M:
    made = model.model_copy()
    values = made.__dict__
    for name, value in values.items():
        if type(value) not in _UNCHANGING:
            values[name] = _copied_value(value)  # the key is there already, so that the mapping keeps its size
    return made


def _copied_value(value: Any) -> Any:  # noqa: ANN401 - any value that metadata holds
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is dict:
        return {key: _copied_value(inner) for key, inner in value.items()}
    if kind is list:
        return [_copied_value(inner) for inner in value]
    return _copied_model(value) if isinstance(value, BaseModel) else copy.deepcopy(value)

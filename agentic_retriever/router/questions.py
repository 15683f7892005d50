"""One question with what its caller fixed, and what routing made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentic_retriever.errors import UnknownStrategyError, unknown_name
from agentic_retriever.retrievers import REGISTRY
from agentic_retriever.schema import RouteDecision, Strategy

if TYPE_CHECKING:
    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.embeddings.model import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question with what its caller fixed."""

    query: str
    top_k: int
    index: str | None = None
    strategy: Strategy | None = None
    filters: MetadataFilters | None = None
    top_k_given: bool = False


@dataclass(frozen=True, slots=True)
class Routed:
    """A decision, the strategies to try in order, and the vector that was computed for it."""

    decision: RouteDecision
    order: tuple[Strategy, ...]
    query_vector: Vector | None


def pinned_strategy(name: str | Strategy | None) -> Strategy | None:
    """Return the strategy that a caller named.

    Raises:
        UnknownStrategyError: If no registered strategy has that name.
    """
    if name is None:
        return None
    known = [strategy.value for strategy in REGISTRY]
    value = name.value if isinstance(name, Strategy) else str(name)
    if value not in known:
        raise UnknownStrategyError(unknown_name("strategy", value, known))
    return Strategy(value)

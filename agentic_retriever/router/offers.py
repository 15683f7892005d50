"""Which strategies stage two may choose from: those that the index serves and that fit the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentic_retriever.retrievers import REGISTRY, cards
from agentic_retriever.retrievers.searchable import ServesSome
from agentic_retriever.schema import View

if TYPE_CHECKING:
    from agentic_retriever.indices import RoutedIndex
    from agentic_retriever.indices.measured import MeasuredStrategies
    from agentic_retriever.schema import StrategyCard

_MISSING = {
    View.SUMMARY: "the index has no summaries; build them with: agentic-retriever index build NAME",
    View.HIERARCHY: "the index has no leaves; build them with: agentic-retriever index build NAME",
}


def offer(
    index: RoutedIndex, measured: MeasuredStrategies | None, *, left_ms: float | None
) -> tuple[tuple[StrategyCard, ...], dict[str, str]]:
    """List the strategies to choose from.

    A strategy whose typical latency does not fit what the caller's budget leaves is withheld; the fastest one never is.

    Args:
        index: The index.
        measured: What a benchmark measured on it, or ``None``.
        left_ms: Milliseconds that the caller's budget leaves, or ``None`` without such a budget.

    Returns:
        The cards in declared order, and why the other strategies are not among them.
    """
    served = cards(index, measured=measured)
    missing = {} if isinstance(index, ServesSome) else _MISSING
    names = {card.strategy for card in served}
    withheld = {
        strategy.value: next((missing[view] for view in spec.needs if view in missing), "the index cannot serve it")
        for strategy, spec in REGISTRY.items()
        if strategy not in names
    }
    if left_ms is None or not served:
        return served, withheld
    fastest = min(served, key=lambda card: card.typical_ms)
    fitting = tuple(card for card in served if card.typical_ms <= left_ms or card is fastest)
    withheld |= {
        card.strategy.value: f"takes about {card.typical_ms:.0f} ms, the budget leaves {left_ms:.0f} ms"
        for card in served
        if card not in fitting
    }
    return fitting, withheld

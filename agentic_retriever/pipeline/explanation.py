"""A decision as a person wants to read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from agentic_retriever.schema import RouteDecision, Selection, StrategyCard
from agentic_retriever.show import render, short_text

_MAX_QUERY_CHARS: Final = 200
_MAX_ROWS: Final = 12
_MIN_SIGNAL: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a question goes where it goes; ``print`` it, or show it in Jupyter."""

    decision: RouteDecision
    cards: tuple[StrategyCard, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the text line by line."""
        query = " ".join(self.decision.query.split())
        shown = query if len(query) <= _MAX_QUERY_CHARS else f"{query[: _MAX_QUERY_CHARS - 1]}…"
        return [f"Question: {shown}", *self._index(), *self._strategy(), *self._nature(), *self._costs()]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types: the record, the cards, and the text."""
        cards = [
            {
                "strategy": card.strategy.value,
                "description": card.description,
                "cost": card.cost,
                "typical_ms": card.typical_ms,
                "quality": card.quality,
                "measured": card.measured,
            }
            for card in self.cards
        ]
        return {"decision": self.decision.to_dict(), "cards": cards, "text": self.lines()}

    def _repr_html_(self) -> str:
        """Draw the text in Jupyter: escaped, no assets, colours inherited from the theme."""
        return render("text.html", text=str(self))

    _repr_pretty_ = short_text

    def _index(self) -> Iterator[str]:
        stage = self.decision.index
        yield f"Index: {', '.join(stage.names)} ({_how(stage)})"
        if stage.abstained:
            yield "  out of scope: nothing in the indexes seems to be about this"
        yield f"  {stage.reason}"
        if len(stage.scores) > 1:
            for name, score in list(stage.scores.items())[:_MAX_ROWS]:
                kinds = "  ".join(f"{kind} {value:.2f}" for kind, value in stage.evidence.get(name, {}).items())
                yield f"    {score:.3f}  {name}{'  ' + kinds if kinds else ''}"
            if len(stage.scores) > _MAX_ROWS:
                yield f"    and {len(stage.scores) - _MAX_ROWS} more"

    def _strategy(self) -> Iterator[str]:
        stage = self.decision.strategy
        yield f"Strategy: {stage.name} ({_how(stage)})"
        yield f"  {stage.reason}"
        known = {card.strategy.value: card for card in self.cards}
        if len(stage.scores) > 1:
            for name, score in stage.scores.items():
                yield f"    {score:.3f}  {name}{_facts(known.get(name))}"
        for name, why in self.decision.withheld.items():
            yield f"    not offered: {name}: {why}"

    def _nature(self) -> Iterator[str]:
        decision = self.decision
        because = f": {', '.join(decision.complexity_reasons)}" if decision.complexity_reasons else ""
        yield f"Complexity: {decision.complexity.value}, {decision.complexity_score:.2f}{because}"
        signals = [
            f"{name.replace('_', ' ')} {value:.2f}"
            for name, value in sorted(decision.features.items(), key=lambda item: (-item[1], item[0]))
            if value >= _MIN_SIGNAL
        ]
        if signals:
            yield f"Signals: {', '.join(signals)}"

    def _costs(self) -> Iterator[str]:
        decision = self.decision
        for lost in decision.degraded:
            yield f"Fell back: {lost.step} to {lost.fallback}: {lost.reason}"
        usage = decision.usage
        if usage.llm_calls:
            tokens = sum(one.prompt_tokens + one.completion_tokens for one in usage.tiers)
            yield f"Spent: {usage.llm_calls} model calls, {tokens:,} tokens, {usage.usd:.5f} USD"
        times = ", ".join(f"{name} {ms:.1f}" for name, ms in decision.timings_ms.items())
        if times:
            yield f"Milliseconds: {times}"


def _how(stage: Selection) -> str:
    asked = ", the model was asked" if stage.escalated else ""
    return f"{stage.mode}{asked}, probability {stage.confidence:.2f}, margin {stage.margin:.2f}"


def _facts(card: StrategyCard | None) -> str:
    if card is None:
        return ""
    quality = "" if card.quality is None else f"  measured nDCG@10 {card.quality:.3f}"
    return f"{quality}  {card.typical_ms:.0f} ms{' measured' if card.measured else ''}"

"""Stage two: which strategy to search with."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from agentic_retriever.errors import ConfigError, NoEligibleStrategyError
from agentic_retriever.routing.features import FEATURES
from agentic_retriever.routing.signals import softmax
from agentic_retriever.schema import NO_LIMITS, Selection, Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.schema import Budget, StrategyCard


WEIGHTS_FILE: Final = "strategy_weights.json"

QUALITY_WEIGHT: Final = 40.0
"""How much one unit of measured nDCG@10 below the best of the strategies offered counts, as logarithm of odds.

A lead of half a hundredth, which a hundred questions cannot tell from chance, is worth 0.2; one of 0.0225 turns the
order of ``vector`` and ``hybrid`` round. Chosen on two collections; see docs/routing.md.
"""
MAX_QUALITY_SHIFT: Final = 2.0
"""The most that measured quality may speak against a strategy; a clear signal in the query speaks louder."""

# Where calibrated hybrid search was the start, switches to these by signals gained, and to the others did not.
_PAID: Final = (Strategy.VECTOR, Strategy.HYBRID, Strategy.METADATA, Strategy.SUMMARY)
_MAX_REASONS: Final = 3


@runtime_checkable
class StrategySelector(Protocol):
    """Picks the strategy that suits a query, among those that an index can serve."""

    @property
    def mode(self) -> str:
        """How it decides, as it is recorded in ``Selection.mode``."""

    def select(
        self,
        query: str,
        cards: Sequence[StrategyCard],
        *,
        features: Mapping[str, float],
        allowance: Budget = NO_LIMITS,
    ) -> Selection:
        """Pick a strategy."""


@dataclass(frozen=True, slots=True)
class StrategyWeights:
    """How much each signal speaks for each strategy, as logarithms of odds."""

    base: Mapping[Strategy, float]
    signals: Mapping[str, Mapping[Strategy, float]]

    def logit(self, strategy: Strategy, strengths: Mapping[str, float]) -> float:
        """Add up what the base and the signals of a query, each in [0, 1], say of a strategy."""
        return self.base.get(strategy, 0.0) + math.fsum(self.spoken(strategy, strengths).values())

    def spoken(self, strategy: Strategy, strengths: Mapping[str, float]) -> dict[str, float]:
        """Return what each signal says of a strategy."""
        return {name: strength * self.signals[name].get(strategy, 0.0) for name, strength in strengths.items()}

    def with_cards(self, cards: Sequence[StrategyCard]) -> StrategyWeights:
        """Add what the cards of strategies say of signals; the same table where they say nothing."""
        own = {card.strategy: card.signals for card in cards if card.signals}
        if not own:
            return self
        rows = {name: dict(row) for name, row in self.signals.items()}
        for strategy, signals in own.items():
            for name, weight in signals.items():
                row = rows.setdefault(name, {})
                row[strategy] = row.get(strategy, 0.0) + weight
        return StrategyWeights(self.base, rows)


class HeuristicSelector:
    """Picks by a table of weights from signals to strategies; safe to share between threads.

    Where the cards carry measured qualities, a strategy's odds fall with the distance of its quality to the best one,
    by ``MAX_QUALITY_SHIFT`` at most; a card without a measured quality counts as the mean of those that have one.
    """

    mode = "heuristic"

    def __init__(self, weights: StrategyWeights | None = None) -> None:
        self._weights = weights or packaged_weights()

    def select(
        self,
        query: str,  # noqa: ARG002 - of the protocol
        cards: Sequence[StrategyCard],
        *,
        features: Mapping[str, float],
        allowance: Budget = NO_LIMITS,  # noqa: ARG002 - of the protocol
    ) -> Selection:
        """Pick a strategy; see :class:`StrategySelector`."""
        offered = offered_strategies(cards)
        weights = self._weights.with_cards(cards)
        strengths = {name: _strength(features.get(name, 0.0)) for name in weights.signals}
        shifts = quality_shifts(cards)
        shares = softmax([weights.logit(strategy, strengths) + shifts.get(strategy, 0.0) for strategy in offered])
        # A stable sort keeps the order of reliability between equals.
        ranked = sorted(zip(shares, offered, strict=True), key=lambda pair: -pair[0])
        share, best = ranked[0]
        only = len(ranked) == 1
        return Selection(
            name=best.value,
            confidence=share,
            scores={strategy.value: part for part, strategy in ranked},
            margin=1.0 if only else share - ranked[1][0],
            reason=(
                "the only strategy that the index serves" if only else _why(weights, best, offered, strengths, shifts)
            ),
            mode="only" if only else self.mode,
        )


def _why(
    weights: StrategyWeights,
    best: Strategy,
    offered: Sequence[Strategy],
    strengths: Mapping[str, float],
    shifts: Mapping[Strategy, float],
) -> str:
    """Name the signals that spoke most for the winner."""
    lead = shifts[best] - min(shifts.values()) if best in shifts else 0.0
    spoken = {**weights.spoken(best, strengths), "measured quality": lead}
    leading = sorted((name for name in spoken if spoken[name] > 0), key=lambda name: (-spoken[name], name))
    if not leading:
        why = "first in order of reliability" if best is offered[0] else "best on average where none speaks"
        return f"no signal for another strategy; {why}"
    named = (f"{name.replace('_', ' ')} {spoken[name]:+.1f}" for name in leading[:_MAX_REASONS])
    return f"signals: {', '.join(named)}"


def quality_shifts(cards: Sequence[StrategyCard]) -> dict[Strategy, float]:
    """Turn measured qualities into logarithms of odds."""
    known = {
        card.strategy: min(1.0, max(0.0, card.quality))
        for card in cards
        if card.quality is not None and math.isfinite(card.quality)
    }
    if not known:
        return {}
    best, mean = max(known.values()), math.fsum(known.values()) / len(known)
    qualities = {card.strategy: known.get(card.strategy, mean) for card in cards}
    return {
        strategy: max(-MAX_QUALITY_SHIFT, min(0.0, QUALITY_WEIGHT * (quality - best)))
        for strategy, quality in qualities.items()
    }


def offered_strategies(cards: Sequence[StrategyCard]) -> tuple[Strategy, ...]:
    """Return the strategies on the cards, once each, in declared order of reliability."""
    if not cards:
        raise NoEligibleStrategyError("no strategy is offered; allow one that the index serves, such as 'vector'")
    return tuple(sorted({card.strategy for card in cards}, key=lambda strategy: (strategy.reliability, strategy.value)))


def _strength(value: float) -> float:
    """Bring a signal into [0, 1]; what is not finite counts as absent."""
    return min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0


@lru_cache(1)
def packaged_weights() -> StrategyWeights:
    """Read the packaged table of what the wording of a query asks for, once; without any signal it is ``vector``."""
    return parse_weights(files("agentic_retriever.routing").joinpath(WEIGHTS_FILE).read_text(encoding="utf-8"))


@lru_cache(1)
def fused_weights() -> StrategyWeights:
    """Start the packaged table from ``hybrid``, for indexes whose hybrid search is calibrated.

    ``hybrid`` and ``vector`` change places, and only those signals speak that lead to strategies which did better than
    ``hybrid`` where they spoke; see docs/routing.md.
    """
    table = packaged_weights()
    places = {Strategy.HYBRID: table.base[Strategy.VECTOR], Strategy.VECTOR: table.base[Strategy.HYBRID]}
    rows = {name: {s: row[s] for s in _PAID if s in row} for name, row in table.signals.items()}
    return StrategyWeights({**table.base, **places}, {name: row for name, row in rows.items() if row})


def parse_weights(text: str, *, file: str = WEIGHTS_FILE) -> StrategyWeights:
    """Read a table of weights."""
    try:
        data = json.loads(text)
    except ValueError as err:
        raise ConfigError(f"{file} is no JSON: {err}") from err
    if not isinstance(data, dict) or set(data) != {"base", "signals"} or not isinstance(data["signals"], dict):
        raise ConfigError(f"{file} must be an object with the keys base and signals")
    unknown = sorted(set(data["signals"]) - set(FEATURES))
    if unknown:
        raise ConfigError(f"{file}: unknown signals {', '.join(unknown)}; allowed: {', '.join(FEATURES)}")
    signals = {name: _weights(row, where=f"{file}: signals.{name}") for name, row in data["signals"].items()}
    return StrategyWeights(_weights(data["base"], where=f"{file}: base"), signals)


def _weights(row: Any, *, where: str) -> dict[Strategy, float]:  # noqa: ANN401 - decoded JSON
    known = {strategy.value for strategy in Strategy}
    if not isinstance(row, dict) or not set(row) <= known:
        raise ConfigError(f"{where} must map strategies to numbers; strategies are {', '.join(sorted(known))}")
    for name, weight in row.items():
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
            raise ConfigError(f"{where}.{name} must be a finite number, got {str(weight)[:40]!r}")
    return {Strategy(name): float(weight) for name, weight in row.items()}


# Every strategy in turn, so that a benchmark sees each of them on its share of the questions.


class RoundRobinSelector:
    """Offers each strategy in turn, for benchmarks; over any number of threads the counts differ by one at most.

    Turns are counted apart for each set of strategies offered.
    """

    mode = "round_robin"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[tuple[Strategy, ...], int] = {}

    def select(
        self,
        query: str,  # noqa: ARG002 - of the protocol
        cards: Sequence[StrategyCard],
        *,
        features: Mapping[str, float],  # noqa: ARG002 - of the protocol
        allowance: Budget = NO_LIMITS,  # noqa: ARG002 - of the protocol
    ) -> Selection:
        """Pick the next strategy; see :class:`StrategySelector`."""
        offered = offered_strategies(cards)
        with self._lock:
            turn = self._turns.get(offered, 0)
            self._turns[offered] = (turn + 1) % len(offered)
        share = 1.0 / len(offered)
        return Selection(
            name=offered[turn].value,
            confidence=share,
            scores={strategy.value: share for strategy in offered[turn:] + offered[:turn]},
            margin=1.0 if len(offered) == 1 else 0.0,
            reason=f"turn {turn + 1} of {len(offered)}",
            mode=self.mode,
        )

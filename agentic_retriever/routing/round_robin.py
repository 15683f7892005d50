"""Every strategy in turn, so that a benchmark sees each of them on its share of the questions."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from agentic_retriever.routing.selector import offered_strategies
from agentic_retriever.schema import NO_LIMITS, Selection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.schema import Allowance, Strategy, StrategyCard


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
        allowance: Allowance = NO_LIMITS,  # noqa: ARG002 - of the protocol
    ) -> Selection:
        """Pick the next strategy; see :class:`StrategySelector`.

        Raises:
            NoEligibleStrategyError: If no strategy is offered.
        """
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

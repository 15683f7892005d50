"""The selector that was trained on measured results of an index."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agentic_retriever.routing.classifier import softmax
from agentic_retriever.routing.selector import HeuristicSelector, offered_strategies
from agentic_retriever.schema import NO_LIMITS, Degradation, Selection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.routing.selector import StrategySelector
    from agentic_retriever.routing.strategy_model import StrategyModel
    from agentic_retriever.schema import Allowance, Strategy, StrategyCard

STEP: Final = "stage_two.learned"

_MAX_NAMED: Final = 3


class LearnedSelector:
    """Picks the strategy with the greatest predicted advantage; safe to share between threads.

    Strategies within the model's tolerance of the best count as equally good, and the fastest in training comes first
    among them. Another selector decides, and the selection says so in ``degraded``, when a feature that the model needs
    is missing or not finite, or a strategy is offered that it does not know.

    Args:
        model: The model of the index.
        fallback: The other selector; a :class:`HeuristicSelector` by default.
    """

    mode = "learned"

    def __init__(self, model: StrategyModel, fallback: StrategySelector | None = None) -> None:
        self._model = model
        self._fallback = fallback or HeuristicSelector()

    def select(
        self,
        query: str,
        cards: Sequence[StrategyCard],
        *,
        features: Mapping[str, float],
        allowance: Allowance = NO_LIMITS,
    ) -> Selection:
        """Pick a strategy; see :class:`StrategySelector`.

        Args:
            query: The question.
            cards: The strategies to choose from.
            features: Of ``query_features`` and ``probe_features``, together.
            allowance: For the fallback.

        Raises:
            NoEligibleStrategyError: If no strategy is offered.
        """
        offered = offered_strategies(cards)
        misfit = self._misfit(offered, features)
        if misfit:
            selection = self._fallback.select(query, cards, features=features, allowance=allowance)
            lost = Degradation(step=STEP, reason=misfit, fallback=self._fallback.mode)
            return replace(selection, degraded=(*selection.degraded, lost))
        predicted = self._model.advantages(features)
        best = max(predicted[strategy] for strategy in offered)
        near = {s for s in offered if predicted[s] >= best - self._model.tolerance}
        levelled = {s: best if s in near else predicted[s] for s in offered}
        shares = dict(zip(offered, softmax([levelled[s] / self._model.temperature for s in offered]), strict=True))
        ranked = sorted(offered, key=lambda s: (-levelled[s], self._model.latency_ms[s]))
        only = len(ranked) == 1
        return Selection(
            name=ranked[0].value,
            confidence=shares[ranked[0]],
            scores={strategy.value: shares[strategy] for strategy in ranked},
            margin=1.0 if only else shares[ranked[0]] - shares[ranked[1]],
            reason="the only strategy that the index serves" if only else self._why(ranked, predicted, near),
            mode="only" if only else self.mode,
        )

    def _misfit(self, offered: Sequence[Strategy], features: Mapping[str, float]) -> str:
        """Say why the model cannot decide; empty when it can."""
        unknown = [strategy.value for strategy in offered if strategy not in self._model.strategies]
        if unknown:
            return f"the model was not trained on {', '.join(unknown)}; train it again"
        missing = self._model.unusable(features)
        if missing:
            more = "" if len(missing) <= _MAX_NAMED else f" and {len(missing) - _MAX_NAMED} more"
            return f"the model needs features that are missing: {', '.join(missing[:_MAX_NAMED])}{more}"
        return ""

    def _why(self, ranked: Sequence[Strategy], predicted: Mapping[Strategy, float], near: set[Strategy]) -> str:
        rows = self._model.trained_on.rows
        first, second = ranked[0], ranked[1]
        if len(near) > 1:
            what = f"fastest of {len(near)} with about the same predicted nDCG@10"
        else:
            what = f"predicted nDCG@10 {predicted[first] - predicted[second]:+.3f} against {second.value}"
        return f"{what}; trained on {rows} questions"

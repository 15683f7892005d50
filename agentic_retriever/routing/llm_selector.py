"""Stage two by a language model: which strategy suits a question, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from agentic_retriever.errors import ConfigError
from agentic_retriever.llm import random_boundary
from agentic_retriever.prompts import strategy_choice_prompt, strategy_word_prompt
from agentic_retriever.routing.describing import describe_strategies, shortened
from agentic_retriever.routing.model_choice import MODE, consult, decided
from agentic_retriever.schema import NO_LIMITS, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentic_retriever.llm import ModelClient
    from agentic_retriever.routing.selector import StrategySelector
    from agentic_retriever.schema import Allowance, StrategyCard

STEP: Final = "routing.strategy.llm"

_PROMPTS: Final = {"structured": strategy_choice_prompt, "word": strategy_word_prompt}


class LLMSelector:
    """Asks a model for the strategy; at most one call a query, none where one strategy is offered.

    ``fallback`` decides first by the signals of the query; the model's choice is then joined with it (see
    ``agentic_retriever.routing.model_choice.decided``). When the model may not be asked, fails or says nothing that can
    be read, that first decision stands, and ``Selection.degraded`` says why. Safe to share between threads.

    Args:
        client: The model.
        fallback: Decides by the signals.
        form: ``"structured"`` asks for strategy, confidence and reasoning; ``"word"`` for the name alone, which small
            models manage better and faster.
        boundary: Draws the mark of the prompt's frame.

    Raises:
        ConfigError: If there is no such form.
    """

    mode = MODE

    def __init__(
        self,
        client: ModelClient,
        fallback: StrategySelector,
        *,
        form: Literal["structured", "word"] = "structured",
        boundary: Callable[[], str] = random_boundary,
    ) -> None:
        if form not in _PROMPTS:
            raise ConfigError(f"form must be one of {', '.join(_PROMPTS)}, got {str(form)[:40]!r}")
        self.fallback = fallback
        self.form = form
        self._client = client
        self._boundary = boundary

    def select(
        self,
        query: str,
        cards: Sequence[StrategyCard],
        *,
        features: Mapping[str, float],
        allowance: Allowance = NO_LIMITS,
    ) -> Selection:
        """Pick a strategy; see :class:`~agentic_retriever.routing.StrategySelector`.

        Raises:
            NoEligibleStrategyError: If no strategy is offered.
        """
        base = self.fallback.select(query, cards, features=features, allowance=allowance)
        return self.reconsider(query, cards, base, allowance=allowance)

    def reconsider(
        self, query: str, cards: Sequence[StrategyCard], base: Selection, *, allowance: Allowance = NO_LIMITS
    ) -> Selection:
        """Ask the model about a decision by signals.

        Args:
            query: The question; any text.
            cards: The strategies to choose from.
            base: The decision by signals about them.
            allowance: What may be spent.

        Returns:
            The decision of both; ``base`` itself where there is nothing to choose.
        """
        described = describe_strategies(cards)
        if len(base.scores) < 2 or len(described) < 2:
            return base
        asked, write = shortened(query), _PROMPTS[self.form]
        consultation = consult(
            self._client,
            lambda mark: write(asked, described, mark),
            [name for name, _ in described],
            allowance=allowance,
            boundary=self._boundary,
        )
        return decided(base, consultation, step=STEP)

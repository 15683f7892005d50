"""Evidence first, and a model only where the evidence is not clear."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from agentic_retriever.routing.thresholds import checked_share
from agentic_retriever.schema import NO_LIMITS, Selection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from agentic_retriever.indices.profile import IndexProfile
    from agentic_retriever.routing.classifier import IndexClassifier
    from agentic_retriever.routing.selector import StrategySelector
    from agentic_retriever.schema import Allowance, StrategyCard

DEFAULT_ESCALATION_MARGIN: Final = 0.2
"""Lead in probability of the first index below which a model is asked."""
DEFAULT_MIN_CONFIDENCE: Final = 0.35
"""Probability of the first strategy below which a model is asked; with no signal at all the heuristic has 0.39."""

MODE: Final = "auto"


class IndexReconsiderer(Protocol):
    """Asks a model about a decision by evidence, as ``LLMClassifier`` does."""

    def reconsider(
        self, query: str, profiles: Sequence[IndexProfile], base: Selection, *, allowance: Allowance
    ) -> Selection:
        """Return the decision of both, or ``base`` itself where there is nothing to choose."""


class StrategyReconsiderer(Protocol):
    """Asks a model about a decision by signals, as ``LLMSelector`` does."""

    def reconsider(
        self, query: str, cards: Sequence[StrategyCard], base: Selection, *, allowance: Allowance
    ) -> Selection:
        """Return the decision of both, or ``base`` itself where there is nothing to choose."""


class EscalationCounter:
    """Counts decisions, and those that were handed to a model; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = 0
        self._escalated = 0

    @property
    def asked(self) -> int:
        """Decisions between two candidates or more."""
        with self._lock:
            return self._asked

    @property
    def escalated(self) -> int:
        """Decisions that were handed to a model."""
        with self._lock:
            return self._escalated

    @property
    def escalation_rate(self) -> float:
        """Share of the decisions that were handed to a model, in [0, 1]; 0 before the first."""
        with self._lock:
            return self._escalated / self._asked if self._asked else 0.0

    def _settled(self, base: Selection, final: Selection) -> Selection:
        """Count a decision; it was handed to a model when the final one is not the base itself."""
        handed = final is not base
        if len(base.scores) > 1:
            with self._lock:
                self._asked += 1
                self._escalated += handed
        return replace(final, escalated=True) if handed else base


class AutoClassifier(EscalationCounter):
    """Picks the index by evidence, and asks a model where the lead is small or no index seems to fit.

    Without a model, or where the allowance forbids one, the decision by evidence stands as it is. A decision that was
    handed to a model says so in ``Selection.escalated``, whatever the model said.

    Args:
        base: Decides by evidence.
        model: Asks a model, such as an ``LLMClassifier``; ``None`` for no model.
        margin: Lead in probability, in [0, 1], below which the model is asked.

    Raises:
        ConfigError: If the margin is not in [0, 1].
    """

    mode = MODE

    def __init__(
        self, base: IndexClassifier, model: IndexReconsiderer | None, *, margin: float = DEFAULT_ESCALATION_MARGIN
    ) -> None:
        super().__init__()
        self.margin = checked_share("margin", margin)
        self._base = base
        self._model = model

    def classify(
        self,
        query: str,
        profiles: Sequence[IndexProfile],
        *,
        query_vector: npt.NDArray[np.float32] | None,
        allowance: Allowance = NO_LIMITS,
    ) -> Selection:
        """Pick an index; see :class:`~agentic_retriever.routing.IndexClassifier`.

        Raises:
            RoutingError: If there is no index, or two have the same name.
        """
        base = self._base.classify(query, profiles, query_vector=query_vector, allowance=allowance)
        final = base
        unclear = base.margin < self.margin or base.abstained
        if self._model is not None and unclear and allowance.may_ask:
            final = self._model.reconsider(query, profiles, base, allowance=allowance)
        return self._settled(base, final)


class AutoSelector(EscalationCounter):
    """Picks the strategy by signals, and asks a model only when that is unsure.

    Without a model, or where the allowance forbids one, the first decision stands as it is. A decision that was handed
    to a model says so in ``Selection.escalated``, whatever the model said.

    Args:
        base: Decides first.
        model: Asks a model, such as an ``LLMSelector``; ``None`` for no model.
        min_confidence: Probability, in [0, 1], below which the model is asked.

    Raises:
        ConfigError: If the probability is not in [0, 1].
    """

    mode = MODE

    def __init__(
        self,
        base: StrategySelector,
        model: StrategyReconsiderer | None,
        *,
        min_confidence: float = DEFAULT_MIN_CONFIDENCE,
    ) -> None:
        super().__init__()
        self.min_confidence = checked_share("min_confidence", min_confidence)
        self._base = base
        self._model = model

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
        base = self._base.select(query, cards, features=features, allowance=allowance)
        final = base
        if self._model is not None and base.confidence < self.min_confidence and allowance.may_ask:
            final = self._model.reconsider(query, cards, base, allowance=allowance)
        return self._settled(base, final)

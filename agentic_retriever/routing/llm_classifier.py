"""Stage one by a language model: one prompt with what every index holds, answered by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentic_retriever.llm import random_boundary
from agentic_retriever.prompts import index_choice_prompt
from agentic_retriever.routing.classifier import DEFAULT_INDEX_MARGIN, IndexClassifier
from agentic_retriever.routing.describing import describe_indexes, shortened
from agentic_retriever.routing.model_choice import MODE, consult, decided
from agentic_retriever.routing.thresholds import checked_share
from agentic_retriever.schema import NO_LIMITS, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from agentic_retriever.indices.profile import IndexProfile
    from agentic_retriever.llm import ModelClient
    from agentic_retriever.schema import Allowance

MAX_SHOWN: Final = 20
"""So many indexes are shown to a model; of more, those that the evidence finds the likeliest."""

STEP: Final = "routing.index.llm"


class LLMClassifier:
    """Asks a model which index a query is about; at most one call a query, none where one index alone has nodes.

    The evidence decides first, by ``fallback``; the model's choice is then joined with it (see
    ``agentic_retriever.routing.model_choice.decided``). When the model may not be asked, fails or says nothing that can
    be read, the decision by evidence stands, and ``Selection.degraded`` says why. Safe to share between threads.

    Args:
        client: The model.
        fallback: Decides by evidence.
        index_margin: Lead in probability, in [0, 1], below which the second index is chosen too.
        boundary: Draws the mark of the prompt's frame.

    Raises:
        ConfigError: If the margin is not in [0, 1].
    """

    mode = MODE

    def __init__(
        self,
        client: ModelClient,
        fallback: IndexClassifier,
        *,
        index_margin: float = DEFAULT_INDEX_MARGIN,
        boundary: Callable[[], str] = random_boundary,
    ) -> None:
        self.fallback = fallback
        self.index_margin = checked_share("index_margin", index_margin)
        self._client = client
        self._boundary = boundary

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
        base = self.fallback.classify(query, profiles, query_vector=query_vector, allowance=allowance)
        return self.reconsider(query, profiles, base, allowance=allowance)

    def reconsider(
        self, query: str, profiles: Sequence[IndexProfile], base: Selection, *, allowance: Allowance = NO_LIMITS
    ) -> Selection:
        """Ask the model about a decision by evidence.

        Args:
            query: The question; any text.
            profiles: The indexes to choose from.
            base: The decision by evidence about them.
            allowance: What may be spent.

        Returns:
            The decision of both; ``base`` itself where there is nothing to choose.
        """
        filled = [profile for profile in profiles if profile.nodes > 0]
        if len(base.scores) < 2 or len(filled) < 2:
            return base
        likeliest = sorted(filled, key=lambda profile: -base.scores.get(profile.name, 0.0))[:MAX_SHOWN]
        shown = {profile.name for profile in likeliest}
        # In order of registration, so that the place of an index in the prompt tells nothing.
        described = describe_indexes([profile for profile in filled if profile.name in shown])
        asked = shortened(query)
        consultation = consult(
            self._client,
            lambda mark: index_choice_prompt(asked, described, mark),
            [name for name, _ in described],
            allowance=allowance,
            boundary=self._boundary,
        )
        return decided(base, consultation, step=STEP, second=self.index_margin)

"""One choice by a model: asked in one call, read by name, joined with the evidence, never an error."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import DeadlineExceededError, LLMError, LLMOutputError
from agentic_retriever.llm import TierNeeds, ask, random_boundary, read_choice, spent_on_failure
from agentic_retriever.schema import Degradation, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentic_retriever.llm import Choice, ModelClient
    from agentic_retriever.schema import Allowance, TierUsage

LEAST_WEIGHT: Final = 0.51
"""Weight of a model's choice that says it is unsure: still the first, however clear the evidence for another is."""
MOST_WEIGHT: Final = 0.95
"""Weight of a model's choice that says it is certain; models say so too often."""
UNSTATED_WEIGHT: Final = 0.75
"""Weight of a model's choice without a confidence."""

MODE: Final = "llm"
_MAX_LOGGED: Final = 500
_MAX_REASON: Final = 300

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consultation:
    """What asking a model came to.

    Attributes:
        choice: What it chose, or ``None``.
        failure: Why it chose nothing, one line, or ``""``.
        spent: The calls made.
    """

    choice: Choice | None = None
    failure: str = ""
    spent: tuple[TierUsage, ...] = ()


def consult(
    client: ModelClient,
    prompt: Callable[[str], str],
    names: Sequence[str],
    *,
    allowance: Allowance,
    boundary: Callable[[], str] = random_boundary,
) -> Consultation:
    """Ask a model to choose among names; at most one call.

    Args:
        client: The model.
        prompt: Writes the prompt with a boundary.
        names: The options.
        allowance: What may be spent.
        boundary: Draws the mark of the prompt's frame.

    Returns:
        The choice or why there is none; no failure of a model, and nothing that it may say, is an error.
    """
    if not allowance.may_ask:
        return Consultation(failure="the budget forbids a model call; allow one, or more time")
    limited = allowance.usd is not None or allowance.llm_calls is not None
    needs = TierNeeds(max_usd=allowance.usd, max_calls=allowance.llm_calls) if limited else None
    try:
        asked = ask(client, prompt, timeout_s=allowance.timeout_s, needs=needs, boundary=boundary)
    except (LLMError, DeadlineExceededError) as err:
        return Consultation(failure=str(err)[:_MAX_REASON], spent=spent_on_failure(client, err))
    try:
        choice = read_choice(asked.text, names)
    except LLMOutputError as err:
        # At DEBUG only: a reply may repeat the question.
        logger.debug("%s Reply: %s", err, ascii(asked.text[:_MAX_LOGGED])[: _MAX_LOGGED - len(str(err)) - 8])
        return Consultation(failure=str(err), spent=asked.spent)
    return Consultation(choice=choice, spent=asked.spent)


def decided(base: Selection, consultation: Consultation, *, step: str, second: float = 0.0) -> Selection:
    """Join what a model said with the decision that the evidence alone came to.

    A choice and the evidence are joined by a linear opinion pool (M. Stone, "The Opinion Pool", 1961): the choice
    counts with the model's stated confidence, clipped to ``[LEAST_WEIGHT, MOST_WEIGHT]``, or with ``UNSTATED_WEIGHT``;
    the rest is left to the probabilities of the evidence. The choice always comes first, and every candidate keeps a
    probability. The weights are conventions, not measurements.

    Args:
        base: The decision by evidence, over all candidates.
        consultation: What asking came to.
        step: Names the step where it fell back.
        second: Lead in probability below which the second candidate is chosen too; 0 for never.

    Returns:
        The model's choice, with the mode ``"llm"``; without one the base decision with a ``Degradation``.
    """
    spent = (*base.spent, *consultation.spent)
    choice = consultation.choice
    if choice is None:
        lost = Degradation(step=step, reason=consultation.failure, fallback=base.mode)
        return replace(base, degraded=(*base.degraded, lost), spent=spent)
    weight = UNSTATED_WEIGHT if choice.confidence is None else min(MOST_WEIGHT, max(LEAST_WEIGHT, choice.confidence))
    shares = {name: (1.0 - weight) * share for name, share in _distribution(base.scores).items()}
    shares[choice.name] = shares.get(choice.name, 0.0) + weight
    ranked = dict(sorted(shares.items(), key=lambda item: -item[1]))
    order = list(ranked)
    margin = ranked[order[0]] - ranked[order[1]]
    unsure = choice.confidence is not None and choice.confidence < 0.5
    return replace(
        base,
        name=choice.name,
        names=tuple(order[: 2 if margin < second and not _empty(base, order[1]) else 1]),
        confidence=ranked[choice.name],
        scores=ranked,
        margin=margin,
        reason=_reason(choice),
        mode=MODE,
        # Where the evidence finds nothing fitting, a model that is more doubtful than not does not overrule it.
        abstained=base.abstained and unsure,
        evidence={**base.evidence, choice.name: {**base.evidence.get(choice.name, {}), MODE: weight}},
        spent=spent,
    )


def _distribution(scores: Mapping[str, float]) -> dict[str, float]:
    """Bring scores to a sum of 1; equal shares where they are no probabilities."""
    usable = all(math.isfinite(score) and score >= 0 for score in scores.values())
    total = math.fsum(scores.values()) if usable else 0.0
    if total <= 0:
        return dict.fromkeys(scores, 1.0 / len(scores))
    return {name: score / total for name, score in scores.items()}


def _empty(base: Selection, name: str) -> bool:
    # Evidence gives no share at all to an index without nodes.
    return base.scores.get(name, 0.0) <= 0


def _reason(choice: Choice) -> str:
    stated = "" if choice.confidence is None else f" with confidence {choice.confidence:.2f}"
    return f"the model chose it{stated}{f': {choice.reason}' if choice.reason else ''}"

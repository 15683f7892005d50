"""From probabilities of indexes to a selection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from agentic_retriever.errors import RoutingError
from agentic_retriever.schema import Selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.indices.profile import IndexProfile


def check_names(profiles: Sequence[IndexProfile]) -> None:
    """Refuse no index at all, and two of one name."""
    names = [profile.name for profile in profiles]
    if not names:
        raise RoutingError("there is no index to choose from; add one first")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise RoutingError(f"several indexes have the same name: {', '.join(twice)}; give each its own")


def only_choice(profile: IndexProfile) -> Selection:
    """Settle what needs no classifier."""
    name = profile.name
    return Selection(name=name, confidence=1.0, scores={name: 1.0}, margin=1.0, reason="the only index", mode="only")


def pick(profiles: Sequence[IndexProfile], shares: Sequence[float], *, mode: str, index_margin: float) -> Selection:
    """Pick by probability; equals in order of registration."""
    order = sorted(range(len(profiles)), key=lambda at: (-shares[at], at))
    first, second = order[0], order[1]
    margin = shares[first] - shares[second]
    # An index without nodes has nothing to add, so it never comes along as the second.
    close = margin < index_margin and profiles[second].nodes > 0
    return Selection(
        name=profiles[first].name,
        names=tuple(profiles[at].name for at in order[: 2 if close else 1]),
        confidence=shares[first],
        scores={profiles[at].name: shares[at] for at in order},
        margin=margin,
        reason="",
        mode=mode,
    )


def softmax(logits: Sequence[float]) -> list[float]:
    """Turn logarithms of odds into probabilities.

    Args:
        logits: Finite numbers, or minus infinity for what cannot be.

    Returns:
        Shares that sum to 1, in the order given; equal ones when every logit is minus infinity.
    """
    top = max(logits)
    if top == -math.inf:
        return [1.0 / len(logits)] * len(logits)
    powers = [math.exp(logit - top) for logit in logits]
    total = math.fsum(powers)
    return [power / total for power in powers]

"""Stage one: which index to search."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from agentic_retriever.errors import ConfigError, RoutingError
from agentic_retriever.routing.evidence import (
    COSINE_WEIGHT,
    Evidence,
    cosine_spread,
    sample_cosines,
    unit_vector,
    weigh,
)
from agentic_retriever.schema import NO_LIMITS, Selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from agentic_retriever.indices.profile import IndexProfile
    from agentic_retriever.schema import Allowance

DEFAULT_INDEX_MARGIN: Final = 0.1
"""Lead in probability below which the second index is chosen too."""

_MAX_NAMED_VALUES: Final = 3
_MAX_VALUE_CHARS: Final = 40


@runtime_checkable
class IndexClassifier(Protocol):
    """Picks the index that a query is about."""

    @property
    def mode(self) -> str:
        """How it decides, as it is recorded in ``Selection.mode``."""

    def classify(
        self,
        query: str,
        profiles: Sequence[IndexProfile],
        *,
        query_vector: npt.NDArray[np.float32] | None,
        allowance: Allowance = NO_LIMITS,
    ) -> Selection:
        """Pick an index.

        Args:
            query: The question; any text.
            profiles: The indexes to choose from, in order of registration, which decides between equals.
            query_vector: The embedded question, ``(dimension,)``; ``None`` when there is none.
            allowance: What may be spent on a model, by a classifier that asks one.

        Returns:
            Probabilities for every index, and the second index too when the first leads by little.

        Raises:
            RoutingError: If there is no index, or two have the same name.
        """


class ProfileClassifier:
    """Picks by the content of the indexes: nearest sampled nodes, vocabulary and metadata values.

    Safe to share between threads; keeps nothing of the queries. A vector that is missing, not finite, zero or of
    another dimension than the samples leaves vocabulary and values to decide. An index without nodes only wins when
    all are empty.

    Args:
        index_margin: Lead in probability, in [0, 1], below which the second index is chosen too.

    Raises:
        ConfigError: If the margin is not in [0, 1].
    """

    mode = "profile"

    def __init__(self, index_margin: float = DEFAULT_INDEX_MARGIN) -> None:
        self.index_margin = _checked_margin(index_margin)

    def classify(
        self,
        query: str,
        profiles: Sequence[IndexProfile],
        *,
        query_vector: npt.NDArray[np.float32] | None,
        allowance: Allowance = NO_LIMITS,  # noqa: ARG002 - of the protocol
    ) -> Selection:
        """Pick an index; see :class:`IndexClassifier`.

        Raises:
            RoutingError: If there is no index, or two have the same name.
        """
        only = _only_choice(profiles)
        if only is not None:
            return only
        filled = [profile for profile in profiles if profile.nodes > 0]
        vector = unit_vector(query_vector)
        cosines = sample_cosines(vector, filled) if vector is not None else None
        evidence = dict(zip((p.name for p in filled), weigh(query, filled, cosines), strict=True))
        logits = [evidence[p.name].total if p.name in evidence else -math.inf for p in profiles]
        selection = _selection(profiles, logits, self)
        return replace(selection, reason=_why(selection, evidence, query_vector, compared=cosines is not None))


class EmbeddingClassifier:
    """Picks by the cosine between the query and the descriptions of the indexes.

    When the query has no usable vector, or one of the descriptions has none, vocabulary and metadata values of the
    indexes decide as in :class:`ProfileClassifier`. An index without nodes only wins when all are empty.

    Args:
        index_margin: Lead in probability, in [0, 1], below which the second index is chosen too.

    Raises:
        ConfigError: If the margin is not in [0, 1].
    """

    mode = "embedding"

    def __init__(self, index_margin: float = DEFAULT_INDEX_MARGIN) -> None:
        self.index_margin = _checked_margin(index_margin)

    def classify(
        self,
        query: str,
        profiles: Sequence[IndexProfile],
        *,
        query_vector: npt.NDArray[np.float32] | None,
        allowance: Allowance = NO_LIMITS,  # noqa: ARG002 - of the protocol
    ) -> Selection:
        """Pick an index; see :class:`IndexClassifier`.

        Raises:
            RoutingError: If there is no index, or two have the same name.
        """
        only = _only_choice(profiles)
        if only is not None:
            return only
        filled = [profile for profile in profiles if profile.nodes > 0]
        cosines = _description_cosines(query_vector, filled)
        if cosines is None:
            scored = {p.name: e.total for p, e in zip(filled, weigh(query, filled, None), strict=True)}
        else:
            unit = cosine_spread(filled)
            scored = {p.name: COSINE_WEIGHT * c / unit for p, c in zip(filled, cosines, strict=True)}
        selection = _selection(profiles, [scored.get(p.name, -math.inf) for p in profiles], self)
        what = "description nearest to the query" if cosines is not None else "no usable vector: vocabulary alone"
        return replace(selection, reason=f"{what}; {_runner_up(selection)}" if filled else _ALL_EMPTY)


_ALL_EMPTY: Final = "every index is empty: the first one"


def _checked_margin(margin: object) -> float:
    if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0 <= margin <= 1:
        raise ConfigError(f"index_margin must be a number from 0 to 1, got {str(margin)[:40]!r}")
    return float(margin)


def _only_choice(profiles: Sequence[IndexProfile]) -> Selection | None:
    """Settle what needs no classifier: no index, one index, two of one name."""
    names = [profile.name for profile in profiles]
    if not names:
        raise RoutingError("there is no index to choose from; add one first")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise RoutingError(f"several indexes have the same name: {', '.join(twice)}; give each its own")
    if len(names) > 1:
        return None
    return Selection(
        name=names[0], confidence=1.0, scores={names[0]: 1.0}, margin=1.0, reason="the only index", mode="only"
    )


def _selection(profiles: Sequence[IndexProfile], logits: Sequence[float], by: _Classifier) -> Selection:
    """Turn evidence into probabilities and pick; equals in order of registration."""
    shares = softmax(logits)
    order = sorted(range(len(profiles)), key=lambda at: (-shares[at], at))
    first, second = order[0], order[1]
    margin = shares[first] - shares[second]
    # An index without nodes has nothing to add, so it never comes along as the second.
    close = margin < by.index_margin and profiles[second].nodes > 0
    return Selection(
        name=profiles[first].name,
        names=tuple(profiles[at].name for at in order[: 2 if close else 1]),
        confidence=shares[first],
        scores={profiles[at].name: shares[at] for at in order},
        margin=margin,
        reason="",
        mode=by.mode,
    )


class _Classifier(Protocol):
    mode: str
    index_margin: float


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


def _description_cosines(
    query_vector: npt.NDArray[np.float32] | None, profiles: Sequence[IndexProfile]
) -> list[float] | None:
    """Cosine of the query to each description; ``None`` when one of them cannot be compared."""
    vector = unit_vector(query_vector)
    if vector is None:
        return None
    units = [unit_vector(profile.description_vector) for profile in profiles]
    if any(unit is None or len(unit) != len(vector) for unit in units):
        return None
    return [float(unit @ vector) for unit in units if unit is not None]


def _why(
    selection: Selection,
    evidence: dict[str, Evidence],
    query_vector: npt.NDArray[np.float32] | None,
    *,
    compared: bool,
) -> str:
    """Say in one line what spoke for the first choice, against the second."""
    if not evidence:
        return _ALL_EMPTY
    first = evidence[selection.name]
    second = next((evidence[name] for name in list(selection.scores)[1:] if name in evidence), None)
    if second is None:
        return "the only index that is not empty"
    parts = [f"vocabulary {first.vocabulary - second.vocabulary:+.1f}"]
    if compared:
        parts.insert(0, f"nearest samples {first.cosine - second.cosine:+.1f}")
    if first.hits or second.hits:
        parts.append(f"metadata values {first.values - second.values:+.1f}{_named(first)}")
    note = ""
    if not compared:
        note = "no query vector, " if query_vector is None else "query vector not usable, "
    return f"{note}{', '.join(parts)}; {_runner_up(selection)}"


def _named(evidence: Evidence) -> str:
    values = [" ".join(hit.value.split())[:_MAX_VALUE_CHARS] for hit in evidence.hits[:_MAX_NAMED_VALUES]]
    return f" ({', '.join(values)})" if values else ""


def _runner_up(selection: Selection) -> str:
    name, share = list(selection.scores.items())[1]
    too = ", searched too" if name in selection.names else ""
    return f"next is {name} with {share:.2f}{too}"

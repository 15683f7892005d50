"""Stage one: which index to search."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, runtime_checkable

from agentic_retriever.routing.abstention import DEFAULT_ABSTAIN_BELOW, Scope, scope_of
from agentic_retriever.routing.evidence import (
    COSINE_WEIGHT,
    Evidence,
    cosine_spread,
    sample_cosines,
    unit_vector,
    weigh,
)
from agentic_retriever.routing.picking import check_names, only_choice, pick, softmax
from agentic_retriever.routing.thresholds import checked_share
from agentic_retriever.schema import NO_LIMITS, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from agentic_retriever.indices.profile import IndexProfile
    from agentic_retriever.schema import Allowance

    Vector = npt.NDArray[np.float32]

__all__ = ["DEFAULT_INDEX_MARGIN", "EmbeddingClassifier", "IndexClassifier", "ProfileClassifier", "softmax"]

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
            Probabilities for every index, and the second index too when the first leads by little; marked as abstained
            when the question seems to be about none of them.

        Raises:
            RoutingError: If there is no index, or two have the same name.
        """


class _EvidenceClassifier(ABC):
    """What both classifiers by evidence share: from logits to a selection, with its doubts."""

    mode: ClassVar[str]

    def __init__(
        self,
        index_margin: float = DEFAULT_INDEX_MARGIN,
        *,
        abstain_below: float = DEFAULT_ABSTAIN_BELOW,
    ) -> None:
        self.index_margin = checked_share("index_margin", index_margin)
        self.abstain_below = checked_share("abstain_below", abstain_below)

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
        check_names(profiles)
        vector = unit_vector(query_vector)
        filled = [profile for profile in profiles if profile.nodes > 0]
        if len(profiles) == 1:
            return self._doubted(only_choice(profiles[0]), {}, query, filled, vector)
        weighed = self._weighed(query, filled, vector, given=query_vector is not None)
        shares = softmax([self._logit(weighed.totals.get(profile.name)) for profile in profiles])
        selection = pick(profiles, shares, mode=self.mode, index_margin=self.index_margin)
        selection = replace(selection, reason=weighed.why(selection) if filled else _ALL_EMPTY)
        return self._doubted(selection, weighed.evidence, query, filled, vector)

    @abstractmethod
    def _weighed(self, query: str, filled: Sequence[IndexProfile], vector: Vector | None, *, given: bool) -> _Weighed:
        """Collect the evidence for the indexes that have nodes."""

    def _logit(self, total: float | None) -> float:
        return -math.inf if total is None else total

    def _doubted(
        self,
        selection: Selection,
        evidence: dict[str, dict[str, float]],
        query: str,
        filled: Sequence[IndexProfile],
        vector: Vector | None,
    ) -> Selection:
        """Say how probable it is that the question is about the first choice at all, and abstain if it is not."""
        first = next((profile for profile in filled if profile.name == selection.name), None)
        if first is None:
            return selection
        scope = scope_of(query, first, query_vector=vector)
        known = {**evidence, first.name: {**evidence.get(first.name, {}), "scope": scope.probability}}
        if scope.probability >= self.abstain_below:
            return replace(selection, evidence=known)
        reason = f"{selection.reason}; {_doubt(scope)}"
        return replace(selection, names=(selection.name,), abstained=True, evidence=known, reason=reason)


class ProfileClassifier(_EvidenceClassifier):
    """Picks by the content of the indexes: nearest sampled nodes, vocabulary and metadata values.

    Safe to share between threads; keeps nothing of the queries. A vector that is missing, not finite, zero or of
    another dimension than the samples leaves vocabulary and values to decide. An index without nodes only wins when
    all are empty. ``Selection.evidence`` has ``cosine``, ``vocabulary`` and ``values`` for every index with nodes, as
    logarithms of odds, and for the first choice ``scope``, the probability that the question is
    about it at all.

    Args:
        index_margin: Lead in probability, in [0, 1], below which the second index is chosen too.
        abstain_below: Probability, in [0, 1], that the question is about the first choice at all, below which the
            selection is marked as abstained; 0 never does.

    Raises:
        ConfigError: If a threshold is not in [0, 1].
    """

    mode = "profile"

    def _weighed(self, query: str, filled: Sequence[IndexProfile], vector: Vector | None, *, given: bool) -> _Weighed:
        cosines = sample_cosines(vector, filled) if vector is not None else None
        evidence = dict(zip((p.name for p in filled), weigh(query, filled, cosines), strict=True))
        return _Weighed(
            totals={name: found.total for name, found in evidence.items()},
            evidence={name: found.to_dict() for name, found in evidence.items()},
            why=lambda selection: _why(selection, evidence, given=given, compared=cosines is not None),
        )


class EmbeddingClassifier(_EvidenceClassifier):
    """Picks by the cosine between the query and the descriptions of the indexes.

    When the query has no usable vector, or one of the descriptions has none, vocabulary and metadata values of the
    indexes decide as in :class:`ProfileClassifier`. An index without nodes only wins when all are empty.

    Args:
        index_margin: Lead in probability, in [0, 1], below which the second index is chosen too.
        abstain_below: As for :class:`ProfileClassifier`.

    Raises:
        ConfigError: If a threshold is not in [0, 1].
    """

    mode = "embedding"

    def _weighed(
        self,
        query: str,
        filled: Sequence[IndexProfile],
        vector: Vector | None,
        *,
        given: bool,  # noqa: ARG002 - of the base
    ) -> _Weighed:
        cosines = _description_cosines(vector, filled)
        if cosines is None:
            found = dict(zip((p.name for p in filled), weigh(query, filled, None), strict=True))
            totals = {name: evidence.total for name, evidence in found.items()}
            kinds = {name: evidence.to_dict() for name, evidence in found.items()}
        else:
            unit = cosine_spread(filled)
            totals = {p.name: COSINE_WEIGHT * c / unit for p, c in zip(filled, cosines, strict=True)}
            kinds = {name: {"description": total} for name, total in totals.items()}
        what = "description nearest to the query" if cosines is not None else "no usable vector: vocabulary alone"
        return _Weighed(
            totals=totals,
            evidence=kinds,
            why=lambda selection: f"{what}; {_runner_up(selection)}",
        )


@dataclass(frozen=True, slots=True)
class _Weighed:
    """Logits, what they are made of, and how to tell it, for the indexes that have nodes."""

    totals: dict[str, float]
    evidence: dict[str, dict[str, float]]
    why: Callable[[Selection], str]


_ALL_EMPTY: Final = "every index is empty: the first one"


def _doubt(scope: Scope) -> str:
    """Say why a question seems to be about nothing in the nearest index."""
    parts = []
    if scope.absent:
        parts.append("it has no " + ", ".join(name[:_MAX_VALUE_CHARS] for name in scope.absent[:_MAX_NAMED_VALUES]))
    if scope.coverage is not None:
        parts.append(f"it knows {scope.coverage:.0%} of the terms")
    if scope.relevance is not None:
        parts.append(f"relevance {scope.relevance:.2f} of a neighbour")
    return f"about it only with probability {scope.probability:.2f} ({', '.join(parts)})"


def _description_cosines(vector: Vector | None, profiles: Sequence[IndexProfile]) -> list[float] | None:
    """Cosine of the query to each description; ``None`` when one of them cannot be compared."""
    if vector is None:
        return None
    units = [unit_vector(profile.description_vector) for profile in profiles]
    if any(unit is None or len(unit) != len(vector) for unit in units):
        return None
    return [float(unit @ vector) for unit in units if unit is not None]


def _why(
    selection: Selection,
    evidence: dict[str, Evidence],
    *,
    given: bool,
    compared: bool,
) -> str:
    """Say in one line what spoke for the first choice, against the second."""
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
        note = "query vector not usable, " if given else "no query vector, "
    return f"{note}{', '.join(parts)}; {_runner_up(selection)}"


def _named(evidence: Evidence) -> str:
    values = [" ".join(hit.value.split())[:_MAX_VALUE_CHARS] for hit in evidence.hits[:_MAX_NAMED_VALUES]]
    return f" ({', '.join(values)})" if values else ""


def _runner_up(selection: Selection) -> str:
    name, share = list(selection.scores.items())[1]
    too = ", searched too" if name in selection.names else ""
    return f"next is {name} with {share:.2f}{too}"

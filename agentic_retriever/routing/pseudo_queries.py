"""Calibrating stage one on the indexes themselves, or on questions whose index is known.

A pseudo-query is a sentence of a sampled node together with the vector of that node. It is asked of its own index with
the node held out: without its row in the sample, and with one node less for each of its terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from agentic_retriever.routing.calibration import (
    LABELS,
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    PSEUDO_QUERIES,
    Calibration,
    expected_calibration_error,
    fit_temperature,
    softmax_rows,
)
from agentic_retriever.routing.evidence import sample_cosines, unit_vector, weigh

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from agentic_retriever.indices.profile import IndexProfile

    Vector = npt.NDArray[np.float32]

MIN_QUERIES: Final = 30
"""Questions below which a temperature is not fitted, but left at 1."""
MAX_PSEUDO_QUERIES: Final = 512
MOST_CAUTIOUS: Final = 1.5
"""Greatest temperature from pseudo-queries, which make more of near duplicates in two indexes than questions do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledQuery:
    """A question whose index is known.

    Attributes:
        query: The question.
        index: Name of the index that it belongs to.
        vector: The embedded question, ``(dimension,)``, or ``None``.
    """

    query: str
    index: str
    vector: Vector | None = None


def calibrate(profiles: Sequence[IndexProfile], labelled: Sequence[LabelledQuery] = ()) -> Calibration:
    """Fit the temperature of :class:`~agentic_retriever.routing.ProfileClassifier` to some indexes.

    Labels are used when there are at least 30 of them for these indexes, pseudo-queries otherwise. Pseudo-queries are
    no real questions, so a temperature from them stays from 1 to 1.5: they may make the probabilities somewhat more
    cautious, never bolder.

    Args:
        profiles: The indexes; those without nodes are left out.
        labelled: Questions whose index is known.

    Returns:
        The temperature; 1 where there are too few questions of either kind, or fewer than two indexes.
    """
    filled = [profile for profile in profiles if profile.nodes > 0]
    names = [profile.name for profile in filled]
    known = [question for question in labelled if question.index in names]
    if len(filled) < 2:
        return Calibration(indexes=len(filled))
    if len(known) >= MIN_QUERIES:
        logits = [_logits(question.query, filled, unit_vector(question.vector)) for question in known]
        return _fitted(logits, [names.index(question.index) for question in known], LABELS)
    held_out, labels = _pseudo_logits(filled)
    if len(labels) < MIN_QUERIES:
        return Calibration(indexes=len(filled))
    return _fitted(held_out, labels, PSEUDO_QUERIES, least=1.0, most=MOST_CAUTIOUS)


def pseudo_queries(profiles: Sequence[IndexProfile]) -> list[LabelledQuery]:
    """Return the sentences that stand in for questions, with the vectors of their nodes: at most 512, as many an index.

    To ask one of its own index without an unfair lead, the node must be held out, as ``calibrate`` does.
    """
    return [
        LabelledQuery(query=profile.specimens[at].text, index=profile.name, vector=profile.sample[row])
        for profile in profiles
        for at, row in _drawn(profile, len(profiles))
    ]


def _drawn(profile: IndexProfile, indexes: int) -> list[tuple[int, int]]:
    """Positions and rows of the specimens used, at equal distances."""
    usable = [(at, one.row) for at, one in enumerate(profile.specimens) if 0 <= one.row < len(profile.sample)]
    most = max(1, MAX_PSEUDO_QUERIES // max(1, indexes))
    return usable[:: max(1, -(-len(usable) // most))]


def _pseudo_logits(profiles: Sequence[IndexProfile]) -> tuple[list[list[float]], list[int]]:
    logits, labels = [], []
    for own, profile in enumerate(profiles):
        for at, row in _drawn(profile, len(profiles)):
            others = list(profiles)
            others[own] = replace(
                profile,
                sample=np.delete(profile.sample, row, axis=0),
                document_frequency=_OneLess(profile.document_frequency),
            )
            logits.append(_logits(profile.specimens[at].text, others, unit_vector(profile.sample[row])))
            labels.append(own)
    return logits, labels


class _OneLess(Mapping[str, int]):
    """Document frequencies without one node; only asked for terms of that node, so it takes one off whatever it is."""

    def __init__(self, frequency: Mapping[str, int]) -> None:
        self._frequency = frequency

    def __getitem__(self, term: str) -> int:
        return max(0, self._frequency[term] - 1)

    def __iter__(self) -> Iterator[str]:
        return iter(self._frequency)

    def __len__(self) -> int:
        return len(self._frequency)


def _logits(query: str, profiles: Sequence[IndexProfile], vector: Vector | None) -> list[float]:
    cosines = None if vector is None else sample_cosines(vector, profiles)
    return [evidence.total for evidence in weigh(query, profiles, cosines)]


def _fitted(
    logits: list[list[float]],
    labels: list[int],
    source: str,
    *,
    least: float = MIN_TEMPERATURE,
    most: float = MAX_TEMPERATURE,
) -> Calibration:
    """Fit so that every index counts the same, however many questions it has."""
    table, right = np.array(logits), np.array(labels)
    sizes = np.bincount(right, minlength=table.shape[1])
    weights = 1.0 / sizes[right]
    temperature = min(most, max(least, fit_temperature(table, right, weights=weights)))
    before, after = (_error(table / by, right, weights) for by in (1.0, temperature))
    return Calibration(
        temperature=temperature,
        fitted_on=source,
        queries=len(labels),
        indexes=table.shape[1],
        error_before=before,
        error_after=after,
    )


def _error(logits: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]) -> float:
    shares = softmax_rows(logits)
    sure = np.minimum(1.0, shares.max(axis=1))
    return expected_calibration_error(
        sure.tolist(), (shares.argmax(axis=1) == labels).tolist(), weights=weights.tolist()
    )

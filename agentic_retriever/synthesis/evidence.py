"""The few segments of the cited passages that say most of what a sentence says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.synthesis.segment_facts import Facts

_MAX_FURTHER: Final = 3
_MAX_CITED: Final = 4
_NEAR: Final = 2
# What a further segment must add, as a share of the sentence's terms: nearby and elsewhere.
_ADDS_NEAR: Final = 0.1
_ADDS_FAR: Final = 0.18
# What a number that both have counts, in terms, at least and as a share of the sentence's terms.
_FACT_WEIGHT: Final = 0.4
_FACT_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a sentence is looked for.

    Attributes:
        core: The segments that say its words, the best one first.
        near: The segments up to two before or behind one of the core.
        headers: Titles and sections of the passages.
        whole: Everything in the passages.
    """

    core: tuple[Facts, ...]
    near: tuple[Facts, ...]
    headers: tuple[Facts, ...]
    whole: tuple[Facts, ...]


def gather(sentence: Facts, passages: Sequence[Sequence[Facts]], headers: Sequence[Facts]) -> Evidence | None:
    """Choose the segments that a sentence is held against.

    Each passage gives the one that shares most of its terms. Another one is taken only for terms that are still
    missing: never for a number alone, or a changed number would be found somewhere.

    Args:
        sentence: The sentence.
        passages: The segments of each passage.
        headers: Title and section of each.

    Returns:
        The evidence, or ``None`` when the passages have no segments.
    """
    whole = [segment for passage in passages for segment in passage]
    if not whole:
        return None
    wanted = sentence.terms
    best_ones = [max(passage, key=lambda segment: _likeness(sentence, segment)) for passage in passages if passage]
    first = max(best_ones, key=lambda segment: _likeness(sentence, segment))
    # Of several cited passages each has its say.
    core = [first, *(one for one in best_ones[:_MAX_CITED] if one is not first and not wanted.isdisjoint(one.terms))]
    missing = wanted.difference(*(segment.terms for segment in core))
    for header in headers:
        missing -= header.terms
    for _ in range(_MAX_FURTHER):
        best = max(whole, key=lambda segment: (_gain(missing, segment, first), _likeness(sentence, segment)))
        share = _ADDS_NEAR if _is_near(best, core) else _ADDS_FAR
        added = len(missing & best.terms)
        if not added or added < share * len(wanted):
            break
        core.append(best)
        missing -= best.terms
    near = [segment for segment in whole if segment not in core and _is_near(segment, core)]
    return Evidence(tuple(core), tuple(near), tuple(headers), tuple(whole))


def _likeness(sentence: Facts, segment: Facts) -> float:
    shared = len(sentence.terms & segment.terms)
    facts = len(sentence.values & segment.values) if shared and sentence.values else 0
    # Among segments with the same terms, the shorter one says less else.
    weight = max(_FACT_WEIGHT, _FACT_SHARE * len(sentence.terms))
    return shared + weight * facts + 0.1 * shared / (1 + len(segment.terms))


def _gain(missing: frozenset[str], segment: Facts, first: Facts) -> float:
    return len(missing & segment.terms) * (1.5 if _is_near(segment, [first]) else 1.0)


def _is_near(segment: Facts, others: Sequence[Facts]) -> bool:
    return any(s.passage == segment.passage and abs(s.position - segment.position) <= _NEAR for s in others)

"""What a model is shown of the options that it chooses among: descriptions and statistics, never retrieved text."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.indices.profile import IndexProfile
    from agentic_retriever.schema import StrategyCard

MAX_DESCRIPTION_CHARS: Final = 600
MAX_QUERY_CHARS: Final = 4_000

_QUERY_TAIL: Final = 1_000
_TERMS: Final = 12
_COMMON_TERMS: Final = 400
_FIELDS: Final = 8
_VALUES: Final = 6
_VALUE_CHARS: Final = 40
# Terms of scripts without spaces are groups of characters, which say nothing to a reader.
_UNSPACED: Final = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


def shortened(query: str) -> str:
    """Cut a question to 4,000 characters; its end, where the question of a long text mostly stands, is kept."""
    if len(query) <= MAX_QUERY_CHARS:
        return query
    return f"{query[: MAX_QUERY_CHARS - _QUERY_TAIL]} … {query[-_QUERY_TAIL:]}"


def describe_indexes(profiles: Sequence[IndexProfile]) -> list[tuple[str, list[str]]]:
    """Describe indexes by what they hold.

    Args:
        profiles: The indexes to choose from.

    Returns:
        Name and lines of each: description, language, number of nodes, the terms that tell it from the others, and some
        fields with values.
    """
    return [
        (profile.name, _index_lines(profile, [other for other in profiles if other is not profile]))
        for profile in profiles
    ]


def describe_strategies(cards: Sequence[StrategyCard]) -> list[tuple[str, list[str]]]:
    """Describe strategies by their cards: name and lines of each, once each."""
    described: dict[str, list[str]] = {}
    for card in cards:
        lines = [f"Description: {card.description[:MAX_DESCRIPTION_CHARS]}", f"Cost: {card.cost:g}"]
        if card.quality is not None:
            lines.append(f"Measured quality: {card.quality:.2f}")
        described.setdefault(card.strategy.value, lines)
    return list(described.items())


def _index_lines(profile: IndexProfile, others: Sequence[IndexProfile]) -> list[str]:
    lines = [f"Description: {profile.description[:MAX_DESCRIPTION_CHARS]}"] if profile.description.strip() else []
    if profile.language != "und":
        lines.append(f"Language: {profile.language}")
    lines.append(f"Passages: {profile.nodes:,}")
    terms = characteristic_terms(profile, others)
    if terms:
        lines.append(f"Typical words: {', '.join(terms)}")
    return [*lines, *(f"Field {line}" for line in _field_lines(profile))]


def characteristic_terms(profile: IndexProfile, others: Sequence[IndexProfile], most: int = _TERMS) -> list[str]:
    """Find the terms that tell an index from others.

    Terms are ranked by their part of the Kullback-Leibler divergence between the index and the mean of the others, as
    in T. Tomokiyo and M. Hurst, "A Language Model Approach to Keyphrase Extraction", ACL 2003 workshop.

    Args:
        profile: The index.
        others: The indexes beside it; without any, its commonest terms are taken.
        most: How many terms.

    Returns:
        Terms as the index has them, mostly stems, the most telling first; none for scripts without spaces.
    """
    common = sorted(profile.document_frequency.items(), key=lambda item: (-item[1], item[0]))[:_COMMON_TERMS]
    told: list[tuple[float, str]] = []
    for term, count in common:
        if len(term) < 3 or not term.isalpha() or _UNSPACED.search(term):
            continue
        here = (count + 0.5) / (profile.nodes + 1)
        elsewhere = [(other.document_frequency.get(term, 0) + 0.5) / (other.nodes + 1) for other in others]
        there = math.fsum(elsewhere) / len(elsewhere) if elsewhere else 1.0 / (profile.nodes + 1)
        told.append((here * math.log(here / there), term))
    return [term for weight, term in sorted(told, key=lambda pair: (-pair[0], pair[1]))[:most] if weight > 0]


def _field_lines(profile: IndexProfile) -> list[str]:
    lines = [
        f"{name}: {'; '.join(value[:_VALUE_CHARS] for value in sorted(values)[:_VALUES])}"
        for name, values in sorted(profile.field_values.items())
        if values
    ]
    lines += [f"{name}: {low:g} to {high:g}" for name, (low, high) in sorted(profile.number_ranges.items())]
    return [line[: _VALUES * _VALUE_CHARS * 2] for line in lines[:_FIELDS]]

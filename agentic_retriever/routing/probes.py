"""What an index answers to a query without any retrieval: score distributions over its sample, and rarity of terms.

These feed the learned selector beside the signals of ``query_features``. How the best scores of a query stand out, and
how rare its terms are, tells before any search how well which kind of search will do; such figures are known as query
performance predictors (S. Cronen-Townsend, Y. Zhou and W. B. Croft, "Predicting Query Performance", SIGIR 2002; C.
Hauff, D. Hiemstra and F. de Jong, "A Survey of Pre-Retrieval Query Performance Predictors", CIKM 2008).
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from agentic_retriever.routing.evidence import unit_vector
from agentic_retriever.routing.tables import read_query
from agentic_retriever.routing.terms import query_terms
from agentic_retriever.text import detect_language

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from agentic_retriever.indices.profile import IndexProfile

PROBE_RANGES: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "probe_vector": (0.0, 1.0),
        "probe_top": (-10.0, 20.0),
        "probe_top3": (-10.0, 20.0),
        "probe_gap": (0.0, 20.0),
        "probe_entropy": (0.0, 1.0),
        "idf_max": (0.0, 1.0),
        "idf_mean": (0.0, 1.0),
        "idf_spread": (0.0, 1.0),
        "terms_unknown": (0.0, 1.0),
        "terms_count": (0.0, 5.0),
        "index_nodes": (0.0, 20.0),
        "index_fields": (0.0, 1.0),
        "index_people": (0.0, 1.0),
        "index_language": (0.0, 1.0),
    }
)
"""Every probe with the range that it lies in.

- ``probe_vector``: 1 when the query could be compared with the sample; the four below are 0 otherwise.
- ``probe_top``, ``probe_top3``: greatest cosine, and mean of the three greatest, as standard deviations above the mean
  cosine of unrelated nodes of the index.
- ``probe_gap``: greatest cosine less the tenth, in the same unit.
- ``probe_entropy``: how evenly the twenty greatest cosines share a softmax, 1 for all equal.
- ``idf_max``, ``idf_mean``, ``idf_spread``: inverse document frequency of the query's known terms, 1 for a term of no
  node; greatest, mean, and standard deviation.
- ``terms_unknown``: share of the query's terms that are not among the index's.
- ``terms_count``: ``log(1 + n)`` of the distinct terms.
- ``index_nodes``: ``log(1 + n)`` of the nodes.
- ``index_fields``, ``index_people``: 1 when the index has metadata values or numbers to filter by, and names of people.
- ``index_language``: 1 when the query is in the language of the index.
"""

PROBE_FEATURES: Final = tuple(PROBE_RANGES)
"""Names of all probes, each of which ``probe_features`` returns."""

_TENTH: Final = 10
_NEAREST: Final = 3
_SHARING: Final = 20
_MAX_TERMS: Final = 256


def probe_features(
    query: str, profile: IndexProfile, query_vector: npt.NDArray[np.float32] | None
) -> Mapping[str, float]:
    """Measure a query against the profile of an index.

    Args:
        query: Any text; of a long one, the first and last 1,000 characters are examined.
        profile: The index that it goes to.
        query_vector: The embedded query, ``(dimension,)``; ``None`` when there is none.

    Returns:
        Every name of ``PROBE_FEATURES`` with a finite number in its range of ``PROBE_RANGES``.
    """
    terms = list(dict.fromkeys(query_terms(query, profile.language)))[:_MAX_TERMS]
    found = {
        **_of_scores(profile, query_vector),
        **_of_terms(profile, terms),
        "index_nodes": math.log1p(profile.nodes),
        "index_fields": float(bool(profile.field_values or profile.number_ranges)),
        "index_people": float(bool(profile.people)),
        "index_language": float(_language(query) == profile.language),
    }
    return {name: _within(found.get(name, 0.0), *bounds) for name, bounds in PROBE_RANGES.items()}


def _language(query: str) -> str:
    """The language that the tables were chosen by, which is remembered; told anew where no table is of it."""
    tables = read_query(query).tables
    return tables[0].language if len(tables) == 1 else detect_language(query)


def _of_scores(profile: IndexProfile, query_vector: npt.NDArray[np.float32] | None) -> dict[str, float]:
    vector, sample = unit_vector(query_vector), profile.sample
    if vector is None or sample.ndim != 2 or not len(sample) or sample.shape[1] != len(vector):
        return {}
    cosines = sample @ vector
    kept = min(len(cosines), _SHARING)
    top = np.sort(np.partition(cosines, len(cosines) - kept)[-kept:])[::-1].astype(np.float64)
    units = (top - profile.background_mean) / profile.background_std
    if not np.isfinite(units).all():
        return {}
    return {
        "probe_vector": 1.0,
        "probe_top": float(units[0]),
        "probe_top3": float(units[:_NEAREST].mean()),
        "probe_gap": float(units[0] - units[min(kept, _TENTH) - 1]),
        "probe_entropy": _evenness(units),
    }


def _evenness(logits: npt.NDArray[np.float64]) -> float:
    """Entropy of the softmax against that of equal shares; 1 for a single value."""
    if len(logits) < 2:
        return 1.0
    powers = np.exp(logits - logits.max())
    shares = powers / powers.sum()
    entropy = -float(np.sum(shares * np.log(np.maximum(shares, 1e-300))))
    return entropy / math.log(len(logits))


def _of_terms(profile: IndexProfile, terms: Sequence[str]) -> dict[str, float]:
    if not terms:
        return {}
    counts = [profile.document_frequency.get(term, 0) for term in terms]
    ceiling = math.log(profile.nodes + 2)
    known = [math.log((profile.nodes + 2) / (count + 1)) / ceiling for count in counts if count > 0]
    return {
        "idf_max": max(known, default=0.0),
        "idf_mean": float(np.mean(known)) if known else 0.0,
        "idf_spread": float(np.std(known)) if known else 0.0,
        "terms_unknown": counts.count(0) / len(counts),
        "terms_count": math.log1p(len(terms)),
    }


def _within(value: float, low: float, high: float) -> float:
    return min(high, max(low, value)) if math.isfinite(value) else low

"""What speaks for each index when a query comes in, on one scale: natural logarithms that may be added.

Three kinds of evidence, all from the content of the index:

- *Nearest samples*: the mean cosine of the query to the nearest sampled nodes, after the idea that a collection is
  worth searching when documents sampled from it are near the query (ReDDE: L. Si and J. Callan, "Relevant Document
  Distribution Estimation Method for Resource Selection", SIGIR 2003).
- *Vocabulary*: the likelihood of the query's terms in the index against all indexes together, with Jelinek-Mercer
  smoothing (L. Si, R. Jin, J. Callan and P. Ogilvie, "A Language Modeling Framework for Resource Selection and Results
  Merging", CIKM 2002), over document frequencies.
- *Metadata values* that the query names.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from agentic_retriever.routing.values import ValueHit, examined, value_hits
from agentic_retriever.text import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from agentic_retriever.indices.profile import IndexProfile

    Vector = npt.NDArray[np.float32]

# The mix. Fixed on six collections in three languages; everything within a factor of 1.5 of it is as good within one
# point of macro accuracy, and with these values the softmax of the sum is calibrated without a temperature.
COSINE_WEIGHT: Final = 4.0
"""Weight of one standard deviation of cosine between unrelated nodes."""
NEAREST: Final = 3
"""How many of the nearest sampled nodes count."""
BACKGROUND_SHARE: Final = 0.2
"""How much of its nodes' mean cosine to each other is taken off an index, whose nodes may all be near everything."""
SMOOTHING: Final = 0.2
"""Share of all indexes together in the likelihood of a term in one of them."""
VALUE_WEIGHT: Final = 0.5
"""Weight of each metadata field of which the query names a value."""

# Many indexes are compared by fewer samples each: 512 lose 0.2 points of macro accuracy against 1,024, 400 two points.
_MAX_SAMPLES: Final = 8_192
_MIN_SAMPLES: Final = 512
_MAX_THINNED: Final = 512
_FEW: Final = 7
_CLOSELY: Final = 4
_GLANCE: Final = 96
_MAX_VALUE_FIELDS: Final = 3
_MAX_TERMS: Final = 128
_UNSEEN: Final = 1e-6
# Indexes of fewer nodes have no background worth the name.
_MIN_BACKGROUND: Final = 3
_DEFAULT_SPREAD: Final = 0.05
_MIN_NORM: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence for one index.

    Attributes:
        cosine: Of the nearest samples, as logarithm of odds; 0.0 where no vectors could be compared.
        vocabulary: Of the terms, as logarithm of a likelihood ratio, damped for long queries.
        values: Of the metadata values.
        hits: The metadata values that were named.
    """

    cosine: float
    vocabulary: float
    values: float
    hits: tuple[ValueHit, ...]

    def to_dict(self) -> dict[str, float]:
        """Return the three by name."""
        return {"cosine": self.cosine, "vocabulary": self.vocabulary, "values": self.values}

    @property
    def total(self) -> float:
        """Sum of the three."""
        return self.cosine + self.vocabulary + self.values


def weigh(query: str, profiles: Sequence[IndexProfile], cosines: Sequence[float] | None) -> list[Evidence]:
    """Collect the evidence for each of several indexes.

    Args:
        query: Any text; of a long one, the first and last 1,000 characters count.
        profiles: The indexes.
        cosines: Evidence of the nearest samples by index (see ``sample_cosines``), or ``None``.

    Returns:
        One value per profile, in their order.
    """
    languages = dict.fromkeys(profile.language for profile in profiles)
    text = examined(query)
    terms = {lang: Tokenizer(language=lang).query_tokens(text) for lang in languages}
    likelihood = {lang: _likelihood_ratios(found, profiles) for lang, found in terms.items()}
    evidence = []
    for at, profile in enumerate(profiles):
        hits = value_hits(profile, terms[profile.language])
        fields = min(len({hit.field for hit in hits}), _MAX_VALUE_FIELDS)
        evidence.append(
            Evidence(
                cosines[at] if cosines else 0.0,
                float(likelihood[profile.language][at]),
                VALUE_WEIGHT * fields,
                tuple(hits),
            )
        )
    return evidence


def _likelihood_ratios(terms: Sequence[str], profiles: Sequence[IndexProfile]) -> npt.NDArray[np.float64]:
    """Likelihood of the terms in each index against all together, ``(len(profiles),)``.

    Divided by the square root of the number of terms: terms of one query are not independent, so that their plain sum
    would drown the other evidence in a long one, while their mean would make little of it.
    """
    distinct = list(dict.fromkeys(terms))[:_MAX_TERMS]
    if not distinct:
        return np.zeros(len(profiles))
    totals = np.array([max(1, profile.terms_total) for profile in profiles], dtype=np.float64)
    tables = [profile.document_frequency for profile in profiles]
    counts = np.array([[table.get(term, 0) for table in tables] for term in distinct], dtype=np.float64)
    likelihoods = counts / totals
    everywhere = likelihoods.mean(axis=1, keepdims=True) + _UNSEEN
    ratios: npt.NDArray[np.float64] = np.log((1 - SMOOTHING) * likelihoods / everywhere + SMOOTHING)
    summed: npt.NDArray[np.float64] = ratios.sum(axis=0) / math.sqrt(len(distinct))
    return summed


def unit_vector(vector: object) -> Vector | None:
    """Return a vector at length 1, or ``None`` when it is missing, empty, zero, not finite or no vector at all."""
    if not isinstance(vector, np.ndarray) or vector.ndim != 1 or vector.dtype.kind not in "fiu":
        return None
    # In double precision, so that no finite vector overflows.
    wide = vector.astype(np.float64)
    peak = float(np.abs(wide).max(initial=0.0))
    if not math.isfinite(peak) or peak < _MIN_NORM:
        return None
    wide /= peak
    unit: Vector = (wide / np.linalg.norm(wide)).astype(np.float32)
    return unit


def sample_cosines(vector: Vector, profiles: Sequence[IndexProfile]) -> list[float] | None:
    """Compare a query with the sampled nodes of each index.

    Args:
        vector: The query, at length 1.
        profiles: Indexes with nodes.

    Returns:
        Evidence by index, as logarithms of odds; ``None`` when one of them cannot be compared with this vector, since
        to compare only some would be unfair to the others.
    """
    means = _nearest_means(vector, profiles)
    if any(mean is None for mean in means):
        return None
    known = [p for p in profiles if len(p.sample) >= _MIN_BACKGROUND]
    typical = median(p.background_mean for p in known) if known else 0.0
    spread = cosine_spread(profiles)
    evidence = []
    for mean, profile in zip(means, profiles, strict=True):
        background = profile.background_mean if len(profile.sample) >= _MIN_BACKGROUND else typical
        evidence.append(COSINE_WEIGHT * ((mean or 0.0) - BACKGROUND_SHARE * background) / spread)
    return evidence


def _nearest_means(vector: Vector, profiles: Sequence[IndexProfile]) -> list[float | None]:
    """Mean cosine to the nearest samples of each index; of many indexes only the nearest are looked at closely.

    What an index looks like by few of its samples is enough to rule out those that are far, and reading all samples of
    twenty indexes would take longer than all the rest of routing.
    """
    limit = max(_MIN_SAMPLES, _MAX_SAMPLES // max(1, len(profiles)))
    if len(profiles) <= _FEW:
        return [_nearest_mean(vector, _THINNED.get(profile.sample, limit)) for profile in profiles]
    means = [_nearest_mean(vector, _THINNED.get(profile.sample, _GLANCE)) for profile in profiles]
    if any(mean is None for mean in means):
        return means
    nearest = sorted(range(len(profiles)), key=lambda at: -(means[at] or 0.0))[:_CLOSELY]
    for at in nearest:
        means[at] = _nearest_mean(vector, _THINNED.get(profiles[at].sample, limit))
    return means


def cosine_spread(profiles: Sequence[IndexProfile]) -> float:
    """Standard deviation of the cosine between unrelated nodes: the unit of cosine of this embedding model."""
    spreads = [p.background_std for p in profiles if len(p.sample) >= _MIN_BACKGROUND]
    return median(spreads) if spreads else _DEFAULT_SPREAD


def thinned(sample: Vector, limit: int) -> Vector:
    """Rows at equal distances, at most ``limit`` of them, side by side in memory."""
    if len(sample) <= limit:
        return sample
    return np.ascontiguousarray(sample[:: math.ceil(len(sample) / limit)])


class _Thinned:
    """Thinned samples made last: reading every second row of a matrix takes as long as reading all of them.

    An entry holds the sample that it was made from, so that its ``id`` stays taken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[int, int], tuple[Vector, Vector]] = OrderedDict()

    def get(self, sample: Vector, limit: int) -> Vector:
        if len(sample) <= limit:
            return sample
        key = (id(sample), limit)
        with self._lock:
            known = self._made.get(key)
            if known is None:
                known = self._made[key] = (sample, thinned(sample, limit))
                while len(self._made) > _MAX_THINNED:
                    self._made.popitem(last=False)
            return known[1]


_THINNED: Final = _Thinned()


def _nearest_mean(vector: Vector, sample: Vector) -> float | None:
    """Mean cosine to the nearest samples; ``None`` when there are none or they are of another dimension."""
    if sample.ndim != 2 or not len(sample) or sample.shape[1] != len(vector):
        return None
    cosines = sample @ vector
    if len(cosines) > NEAREST:
        cosines.partition(len(cosines) - NEAREST)  # in place; NaN sorts last, so that it is not overlooked
    nearest: list[float] = cosines[-NEAREST:].tolist()
    mean = sum(nearest) / len(nearest)
    return mean if math.isfinite(mean) else None

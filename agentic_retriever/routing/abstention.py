"""Whether a question is about anything in an index: before retrieval from its profile, after retrieval from texts.

Both checks are logistic models over a few figures that mean the same for every index and embedding model:

- *Relevance*: how near the question comes to the nearest sampled nodes, on a scale where unrelated nodes of the index
  are at 0 and neighbours are at 1.
- *Contrast*: how far these stand out above all other sampled nodes, in standard deviations of this question's cosines.
- *Coverage*: the share of the question's terms, weighed by inverse document frequency, that the index knows at all;
  only where question and index are of one language.
- *Absent names*: codes and numbered things that the index does not have although it has others of their kind.

What was tried, and on which questions the weights were chosen and checked, is in ``docs/routing.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from agentic_retriever.routing.signals import examined
from agentic_retriever.text import UNDETERMINED, Tokenizer, detect_language
from agentic_retriever.text.tokens import absent, identifiers, without_asking, without_requests

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

    from agentic_retriever.indices.profile import IndexProfile

    Vector = npt.NDArray[np.float32]

DEFAULT_ABSTAIN_BELOW: Final = 0.15
"""Probability that a question is about an index below which stage one abstains."""

NEAREST: Final = 3
MIN_NODES: Final = 32
"""Indexes of fewer nodes are too little known to say what they are not about."""

_MAX_TERMS: Final = 128
_MIN_SPREADS: Final = 1.0
_SURELY_KNOWN: Final = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What speaks for a question being about an index."""

    probability: float  # That it is, in [0, 1]; 1 where too little is known to doubt it
    relevance: float | None = None
    contrast: float | None = None
    coverage: float | None = None
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """What speaks for retrieved texts answering a question."""

    probability: float  # That they do, in [0, 1]; 1 where too little is known to doubt it
    coverage: float | None = None
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights of a logistic model of being out of scope; a figure that is not used has none."""

    bias: float
    relevance: float = 0.0
    contrast: float = 0.0
    coverage: float = 0.0
    absent: float = 0.0
    brevity: float = 0.0


# One model for each combination of figures that a question can have.
_WITH_ALL: Final = _Weights(5.01, relevance=-1.63, contrast=-0.55, coverage=-3.91, absent=3.93)
_WITH_VECTOR: Final = _Weights(2.47, relevance=-3.66, contrast=-1.08, absent=3.93)
_WITH_WORDS: Final = _Weights(4.41, coverage=-5.78, absent=4.0)
_SUPPORT: Final = _Weights(1.28, relevance=-1.37, coverage=-7.37, brevity=4.83, absent=6.38)


def scope_of(query: str, profile: IndexProfile, *, query_vector: Vector | None) -> Scope:
    """Tell how probable it is that a question is about an index, without any retrieval."""
    if profile.nodes < MIN_NODES:
        return Scope(probability=1.0)
    text = examined(query)
    relevance, contrast = _nearness(query_vector, profile)
    coverage = _known_share(text, profile)
    missing = tuple(absent(identifiers(text), profile.identifiers))
    if relevance is not None:
        weights = _WITH_VECTOR if coverage is None else _WITH_ALL
    elif coverage is not None:
        weights = _WITH_WORDS
    else:
        return Scope(probability=1.0, absent=missing)
    out = _logistic(
        weights, relevance=relevance or 0.0, contrast=contrast or 0.0, coverage=coverage or 0.0, absent=bool(missing)
    )
    return Scope(probability=1.0 - out, relevance=relevance, contrast=contrast, coverage=coverage, absent=missing)


def support_of(query: str, profile: IndexProfile, texts: Sequence[str], *, query_vector: Vector | None) -> Support:
    """Tell how probable it is that retrieved texts answer a question.

    What stage one cannot see, since an index may know every word of a question and still hold no passage on it: whether
    one text has them together.
    """
    text = examined(query)
    relevance, _ = _nearness(query_vector, profile)
    terms = _content_terms(text, profile) if _same_language(text, profile) else ()
    if profile.nodes < MIN_NODES or relevance is None or not terms:
        return Support(probability=1.0)
    tokenizer = Tokenizer(language=profile.language)
    best = max((_share(terms, set(tokenizer.tokens(passage)), profile) for passage in texts), default=0.0)
    here = {name for passage in texts for name in identifiers(passage)}
    missing = tuple(name for name in absent(identifiers(text), profile.identifiers) if name not in here)
    out = _logistic(
        _SUPPORT, relevance=relevance, coverage=best, absent=bool(missing), brevity=1.0 / math.sqrt(len(terms))
    )
    return Support(probability=1.0 - out, coverage=best, absent=missing)


def _nearness(vector: Vector | None, profile: IndexProfile) -> tuple[float | None, float | None]:
    """Relevance and contrast; ``None`` without vectors, or where neighbours are no nearer than unrelated nodes."""
    sample = profile.sample
    scale = profile.neighbour_mean - profile.background_mean
    if vector is None or sample.ndim != 2 or len(sample) < MIN_NODES or sample.shape[1] != len(vector):
        return None, None
    if scale < _MIN_SPREADS * profile.background_std:
        return None, None
    cosines = sample @ vector
    spread = float(cosines.std())
    nearest = float(np.partition(cosines, len(cosines) - NEAREST)[-NEAREST:].mean())
    if not math.isfinite(nearest) or spread <= 0.0:
        return None, None
    return (nearest - profile.background_mean) / scale, (nearest - float(cosines.mean())) / spread


def _same_language(text: str, profile: IndexProfile) -> bool:
    language = detect_language(text)
    return UNDETERMINED in {language, profile.language} or language == profile.language


def _content_terms(text: str, profile: IndexProfile) -> tuple[str, ...]:
    tokenizer = Tokenizer(language=profile.language)
    terms = tokenizer.query_tokens(without_requests(without_asking(text))) or tokenizer.query_tokens(text)
    return tuple(dict.fromkeys(terms))[:_MAX_TERMS]


def _known_share(text: str, profile: IndexProfile) -> float | None:
    terms = _content_terms(text, profile)
    if not terms:
        return None
    share = _share(terms, profile.document_frequency, profile)
    # An index does not know most words of another language, so there is no need to find out which one it is.
    return share if share >= _SURELY_KNOWN or _same_language(text, profile) else None


def _share(terms: Sequence[str], among: Collection[str], profile: IndexProfile) -> float:
    """Share of terms that are among some, weighed by inverse document frequency."""
    frequency, nodes = profile.document_frequency, profile.nodes
    weights = [math.log((nodes + 1) / (frequency.get(term, 0) + 0.5)) for term in terms]
    total = math.fsum(weights)
    found = math.fsum(weight for term, weight in zip(terms, weights, strict=True) if term in among)
    return min(1.0, max(0.0, found / total)) if total > 0 else 1.0


def _logistic(
    weights: _Weights,
    *,
    relevance: float = 0.0,
    contrast: float = 0.0,
    coverage: float = 0.0,
    absent: bool = False,
    brevity: float = 0.0,
) -> float:
    score = (
        weights.bias
        + weights.relevance * relevance
        + weights.contrast * contrast
        + weights.coverage * coverage
        + weights.absent * absent
        + weights.brevity * brevity
    )
    return 1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, score))))

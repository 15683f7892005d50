"""Stage one: which index to search."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from operator import add
from statistics import median
from threading import Lock
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache, cached
from typing_extensions import override

from agentic_retriever.errors import RoutingError
from agentic_retriever.indices.profile import IndexProfile
from agentic_retriever.routing import signals
from agentic_retriever.schema import NO_LIMITS, Budget, Selection, examined
from agentic_retriever.text import UNDETERMINED, Tokenizer, detect_language
from agentic_retriever.text.tokens import absent, identifiers, without_asking, without_requests

Vector = npt.NDArray[np.float32]
Profiles = Sequence[IndexProfile]
_Terms = Mapping[str, Sequence[str]]


# Whether a question is about anything in an index, before retrieval: a note beside the choice, which declines nothing.
# A logistic model over relevance, contrast, coverage and absent names; ``docs/routing.md`` says what these are.

DEFAULT_ABSTAIN_BELOW: Final = 0.15  # probability that a question is about an index, below which stage one abstains
MIN_NODES: Final = 32  # indexes of fewer nodes are too little known to say what they are not about
_NEAREST: Final = 3
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


# Weights of logistic models of being out of scope: one for each combination of figures that a question can have.
_WITH_ALL: Final = {"bias": 5.28, "relevance": -3.54, "contrast": -0.83, "coverage": -4.34, "absent": 4.78}
_WITH_VECTOR: Final = {"bias": 2.47, "relevance": -3.66, "contrast": -1.08, "absent": 3.93}
_WITH_WORDS: Final = {"bias": 4.41, "coverage": -5.78, "absent": 4.0}


def scope_of(query: str, profile: IndexProfile, *, query_vector: Vector | None) -> Scope:
    """Tell how probable it is that a question is about an index, without any retrieval."""
    if profile.nodes < MIN_NODES:
        return Scope(probability=1.0)
    text = examined(query)
    relevance, contrast = _nearness(query_vector, profile)
    terms = _content_terms(query, profile)
    coverage = _share(terms, profile.document_frequency, profile) if terms else None
    # An index does not know most words of another language, so only then need it be found out which one it is.
    if coverage is not None and coverage < _SURELY_KNOWN and not is_in(profile, detect_language(text)):
        coverage = None
    missing = tuple(absent(identifiers(text), profile.identifiers))
    if relevance is not None:
        weights = _WITH_VECTOR if coverage is None else _WITH_ALL
    elif coverage is not None:
        weights = _WITH_WORDS
    else:
        return Scope(probability=1.0, absent=missing)
    out = _logistic(weights, relevance=relevance, contrast=contrast, coverage=coverage, absent=bool(missing))
    return Scope(probability=1.0 - out, relevance=relevance, contrast=contrast, coverage=coverage, absent=missing)


def _nearness(vector: Vector | None, profile: IndexProfile) -> tuple[float | None, float | None]:
    """Relevance and contrast; ``None`` without vectors, or where neighbours are no nearer than unrelated nodes."""
    sample = profile.sample
    scale = profile.neighbour_mean - profile.background_mean
    if vector is None or sample.ndim != 2 or len(sample) < MIN_NODES or sample.shape[1] != len(vector):
        return None, None
    if scale < _MIN_SPREADS * profile.background_std:
        return None, None
    cosines = sample @ vector
    mean, spread = float(cosines.mean()), float(cosines.std())
    nearest = float(np.partition(cosines, len(cosines) - _NEAREST)[-_NEAREST:].mean())
    if not math.isfinite(nearest) or spread <= 0.0:
        return None, None
    return (nearest - profile.background_mean) / scale, (nearest - mean) / spread


def is_in(profile: IndexProfile, language: str) -> bool:
    """Tell whether part of an index is in a language; true where one of them cannot be told."""
    return UNDETERMINED in {language, profile.language} or language in (profile.languages or [profile.language])


def _content_terms(query: str, profile: IndexProfile) -> tuple[str, ...]:
    text = examined(query)
    told = without_requests(without_asking(text))
    tokenizer = Tokenizer(language=profile.language)
    return tuple(dict.fromkeys(tokenizer.telling_tokens(told) or tokenizer.telling_tokens(text)))[:_MAX_TERMS]


def _share(terms: Sequence[str], among: Collection[str], profile: IndexProfile) -> float:
    """Share of terms that are among some, weighed by inverse document frequency."""
    frequency, nodes = profile.document_frequency, profile.nodes
    weights = [math.log((nodes + 1) / (frequency.get(term, 0) + 0.5)) for term in terms]
    total = math.fsum(weights)
    found = math.fsum(weight for term, weight in zip(terms, weights, strict=True) if term in among)
    return min(1.0, max(0.0, found / total)) if total > 0 else 1.0


def _logistic(weights: Mapping[str, float], **figures: float | None) -> float:
    score = weights["bias"]
    for name, figure in figures.items():
        score += weights.get(name, 0.0) * (figure or 0.0)
    return 1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, score))))


# What speaks for each index when a query comes in, as natural logarithms that may be added; see ``docs/routing.md``.
COSINE_WEIGHT: Final = 4.0  # of one standard deviation of cosine between unrelated nodes
BACKGROUND_SHARE: Final = 0.2  # of its nodes' mean cosine to each other, taken off: they may all be near everything
SMOOTHING: Final = 0.2  # share of all indexes together in the likelihood of a term in one of them
VALUE_WEIGHT: Final = 0.5  # of each metadata field of which the query names a value
UNRELATED_SHARE: Final = 0.7  # of what queries about nothing have with a node, taken off its cosine between languages
_BETWEEN_LANGUAGES: Final = {"cosine": 0.7, "language": 1.0, "vocabulary": 1.4, "values": 1.4}
STANDS_OUT: Final = 1.75  # deviations by which one in another language is nearer than to queries about nothing
SAME_LANGUAGE: Final = 3.8  # for the index in the query's language: of two translations it is the one wanted

# Many indexes are compared by fewer samples each: 512 lose 0.2 points of macro accuracy against 1,024, 400 two points.
_MAX_SAMPLES: Final = 8_192
_MIN_SAMPLES: Final = 512
_FEW: Final = 7
_CLOSELY: Final = 4
_GLANCE: Final = 96
_ALIGNED: Final = 4  # rows that OpenBLAS multiplies together: each index begins with new ones, so that equals are equal
_ONE_THREAD: Final = 400_000  # numbers in a matrix whose product with a vector stays in one thread
_MAX_VALUE_FIELDS: Final = 3
_UNSEEN: Final = 1e-6
_MIN_BACKGROUND: Final = 3  # indexes of fewer nodes have no background worth the name
_DEFAULT_SPREAD: Final = 0.05
_MIN_NORM: Final = 1e-9


class Evidence(NamedTuple):
    """The evidence for one index by kind, and the values that the query names."""

    kinds: Mapping[str, float]
    hits: Sequence[signals.ValueHit]


class _Known:
    """What is the same for all questions to the same indexes, made once for each set of their versions."""

    def __init__(self, profiles: Profiles) -> None:
        self.profiles = tuple(profiles)
        self.frequency = [profile.document_frequency.get for profile in profiles]
        self.totals = np.array([max(1, profile.terms_total) for profile in profiles], dtype=np.float64)
        self.languages = np.array([profile.language for profile in profiles])
        sampled = [p for p in profiles if len(p.sample) >= _MIN_BACKGROUND]
        typical = median([p.background_mean for p in sampled] or [0.0])
        self.backgrounds = [p.background_mean if len(p.sample) >= _MIN_BACKGROUND else typical for p in profiles]
        self.spread = median([p.background_std for p in sampled] or [_DEFAULT_SPREAD])  # the unit of cosine
        shapes = {p.sample.shape[1:] if len(p.sample) else () for p in profiles}
        self.shape = shapes.pop() if len(shapes) == 1 else ()  # of a vector that can be compared with all of them
        limit = max(_MIN_SAMPLES, _MAX_SAMPLES // len(profiles))
        # Reading every second row of a matrix takes as long as reading all of them, so thinned samples are kept.
        self.sample = cache(lambda at: thinned(profiles[at].sample, limit))
        if len(self.shape) == 1 and len(profiles) > _FEW:
            self._glance([thinned(profile.sample, _GLANCE) for profile in profiles])

    def _glance(self, samples: Sequence[Vector]) -> None:
        """Lay a few samples of each index one below the other, filled up so that all take the same place."""
        self.counts = [min(len(sample), _NEAREST) for sample in samples]
        width = -(-max(map(len, samples)) // _ALIGNED) * _ALIGNED
        rows = np.zeros((len(samples), width, *self.shape), dtype=np.float32)
        self.absent = np.full((len(samples), width), -np.inf, dtype=np.float32)
        for at, sample in enumerate(samples):
            rows[at, : len(sample)], self.absent[at, : len(sample)] = sample, 0.0
        step = max(1, _ONE_THREAD // rows[0].size)
        self.glances = [rows[at : at + step].reshape(-1, *self.shape) for at in range(0, len(rows), step)]


_known: Final = cached(LRUCache(4), key=lambda profiles: tuple(map(id, profiles)), lock=Lock())(_Known)


def weigh(query: str, known: _Known, near: _Near | None = None) -> dict[str, Evidence]:
    """Collect the evidence for each index, by name; of those in the query's language the first is compared for all."""
    asked = detect_language(query)
    own = np.array([is_in(profile, asked) for profile in known.profiles])
    languages, asked = {profile.language for profile in known.profiles}, examined(query)
    terms = {language: tuple(Tokenizer(language).telling_tokens(asked)) for language in languages}
    hits = {p.name: signals.value_hits(p, signals.query_terms(query, p.language)) for p in known.profiles}
    fields = [min(len({hit.field for hit in hits[p.name]}), _MAX_VALUE_FIELDS) for p in known.profiles]
    words, names = _likelihood_ratios(terms, own, known)
    kinds = _kinds(near.cosines if near else None, words, fields)
    if not own.all():
        abroad = _kinds(near.between_languages() if near else None, names, fields)
        abroad = [{kind: weight * one[kind] for kind, weight in _BETWEEN_LANGUAGES.items()} for one in abroad]
        if own.any():
            first = max(np.flatnonzero(own), key=lambda at: sum(kinds[at].values()))
            best = max(np.flatnonzero(~own).tolist(), key=lambda at: sum(abroad[at].values()))
            ahead, rival = sum(abroad[first].values()) + SAME_LANGUAGE, sum(abroad[best].values())
            ahead = rival + SAME_LANGUAGE if rival > ahead and not (near and near.stands_out(best)) else ahead
            ahead -= sum(kinds[first].values())
            abroad = [{**kinds[at], "language": ahead} if is_own else abroad[at] for at, is_own in enumerate(own)]
        kinds = abroad
    return {p.name: Evidence(found, hits[p.name]) for p, found in zip(known.profiles, kinds, strict=True)}


def _kinds(near: Sequence[float] | None, words: Sequence[float], fields: Sequence[int]) -> list[dict[str, float]]:
    parts = zip(near or [0.0] * len(words), words, [VALUE_WEIGHT * count for count in fields], strict=True)
    return [{"cosine": one, "language": 0.0, "vocabulary": said, "values": named} for one, said, named in parts]


def _likelihood_ratios(terms: _Terms, own: npt.NDArray[np.bool_], known: _Known) -> tuple[list[float], list[float]]:
    """Likelihood of the terms in each index against all; and against its language's, where others never lose by it."""
    summed = np.zeros((2, len(own)))
    for language, said in terms.items():
        distinct, here = list(dict.fromkeys(said))[:_MAX_TERMS], known.languages == language
        if not distinct:
            continue
        counts = np.array([[count(term, 0) for count in known.frequency] for term in distinct], dtype=np.float64)
        # What is there in other languages, too, is a name.
        peers = own | ~own.any() | counts[:, ~own].any(axis=1, keepdims=True)
        likelihoods = counts / known.totals
        typical = np.stack([likelihoods.mean(axis=1), likelihoods.mean(axis=1, where=peers)])[:, :, None]
        words, names = np.log((1 - SMOOTHING) * likelihoods / (typical + _UNSEEN) + SMOOTHING)
        found = np.stack([words, np.where(own, names, np.maximum(0.0, names))])[:, :, here]
        summed[:, here] = found.sum(axis=1) / math.sqrt(len(distinct))  # terms of one query are not independent
    return summed[0].tolist(), summed[1].tolist()


@dataclass(frozen=True, slots=True)
class _Near:
    """How near a query's vector is to the indexes, also less what queries about nothing are."""

    known: _Known
    vector: Vector
    cosines: Sequence[float]
    unrelated: Callable[[], Vector | None]

    def between_languages(self) -> Sequence[float] | None:
        found = self.unrelated()
        return self.cosines if found is None else sample_cosines(_less(self.vector, found), self.known, 0.0)

    def stands_out(self, at: int) -> bool:
        """Tell whether it is nearer to an index than queries about nothing, by their spread."""
        found, sample = self.unrelated(), self.known.sample(at)
        if found is None:
            return True
        left = [_less(one, np.delete(found, place, axis=0)) for place, one in enumerate(found)]
        reached = [_nearest_mean(vector, sample) for vector in left]
        return _nearest_mean(_less(self.vector, found), sample) - median(reached) > STANDS_OUT * float(np.std(reached))


def _less(vector: Vector, unrelated: Vector) -> Vector:
    left: Vector = (vector - UNRELATED_SHARE * unrelated.mean(axis=0)).astype(np.float32)
    return left


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


def sample_cosines(vector: Vector, known: _Known, share: float = BACKGROUND_SHARE) -> list[float] | None:
    means = _nearest_means(vector, known) if vector.shape == known.shape else [math.nan]
    if not all(map(math.isfinite, means)):
        return None
    return [COSINE_WEIGHT * (m - share * b) / known.spread for m, b in zip(means, known.backgrounds, strict=True)]


def _nearest_means(vector: Vector, known: _Known) -> list[float]:
    """Mean cosine to the nearest samples of each index; of many, only the nearest by a few are looked at closely."""
    if len(known.profiles) <= _FEW:
        return [_nearest_mean(vector, known.sample(at)) for at in range(len(known.profiles))]
    cosines = np.concatenate([rows @ vector for rows in known.glances]).reshape(known.absent.shape) + known.absent
    cosines.partition(cosines.shape[1] - _NEAREST, axis=1)
    nearest = np.sort(cosines[:, -_NEAREST:], axis=1).tolist()
    means = [sum(row[-count:]) / count for row, count in zip(nearest, known.counts, strict=True)]
    if not all(map(math.isfinite, means)):
        return means
    for at in sorted(range(len(means)), key=lambda at: -means[at])[:_CLOSELY]:
        means[at] = _nearest_mean(vector, known.sample(at))
    return means


def thinned(sample: Vector, limit: int) -> Vector:
    """Rows at equal distances, at most ``limit`` of them, side by side in memory."""
    if len(sample) <= limit:
        return sample
    return np.ascontiguousarray(sample[:: math.ceil(len(sample) / limit)])


def _nearest_mean(vector: Vector, sample: Vector) -> float:
    """Mean cosine to the nearest samples."""
    cosines = sample @ vector
    if len(cosines) > _NEAREST:
        cosines.partition(len(cosines) - _NEAREST)  # in place; NaN sorts last, so that it is not overlooked
    nearest: list[float] = cosines[-_NEAREST:].tolist()
    return sum(nearest) / len(nearest)


DEFAULT_INDEX_MARGIN: Final = 0.1  # lead in probability below which the second index is chosen too
_MAX_NAMED_VALUES: Final = 3
_MAX_VALUE_CHARS: Final = 40


@runtime_checkable
class IndexClassifier(Protocol):
    """Picks the index that a query is about."""

    @property
    def mode(self) -> str:
        """How it decides, as it is recorded in ``Selection.mode``."""

    def classify(
        self, query: str, profiles: Profiles, *, query_vector: Vector | None, allowance: Budget = NO_LIMITS
    ) -> Selection:
        """Pick an index."""


class _EvidenceClassifier(IndexClassifier):
    """What both classifiers by evidence share: from logits to a selection, with its doubts."""

    def __init__(
        self,
        index_margin: float = DEFAULT_INDEX_MARGIN,
        *,
        abstain_below: float = DEFAULT_ABSTAIN_BELOW,
        unrelated: Callable[[str, float], Vector | None] = lambda _query, _left_s: None,
    ) -> None:
        self.index_margin = signals.checked_share("index_margin", index_margin)
        self.abstain_below = signals.checked_share("abstain_below", abstain_below)
        self._unrelated = unrelated  # vectors of queries about nothing, ``(n, dimension)``, in a query's language

    @override
    def classify(
        self, query: str, profiles: Profiles, *, query_vector: Vector | None, allowance: Budget = NO_LIMITS
    ) -> Selection:
        names = [profile.name for profile in profiles]
        if not names:
            raise RoutingError("there is no index to choose from; add one first")
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise RoutingError(f"several indexes have the same name: {', '.join(twice)}; give each its own")
        vector = unit_vector(query_vector)
        filled = [profile for profile in profiles if profile.nodes > 0]
        if len(names) == 1:
            weighed = _Weighed({}, lambda *_: "the only index")
        elif filled:
            left_s = math.inf if allowance.max_ms is None else allowance.max_ms / 1000
            weighed = self._weighed(query, _known(filled), vector, given=query_vector is not None, left_s=left_s)
        else:
            weighed = _Weighed({}, lambda *_: "every index is empty: the first one")
        found = [weighed.evidence.get(name) for name in names]
        shares = signals.softmax([reduce(add, kinds.values()) if kinds else -math.inf for kinds in found])
        # By probability; equals in order of registration.
        order = sorted(range(len(names)), key=lambda at: -shares[at])
        first = profiles[order[0]]
        scope = scope_of(query, first, query_vector=vector) if first.nodes > 0 else None
        return self._picked([profiles[at] for at in order], [shares[at] for at in order], weighed, scope)

    @abstractmethod
    def _weighed(self, query: str, known: _Known, vector: Vector | None, *, given: bool, left_s: float) -> _Weighed:
        """Collect the evidence for the indexes that have nodes."""

    def _picked(self, ranked: Profiles, shares: Sequence[float], weighed: _Weighed, scope: Scope | None) -> Selection:
        """Pick the first, and abstain where the question is probably not about it at all."""
        names, evidence = [profile.name for profile in ranked], weighed.evidence
        margin = shares[0] - shares[1] if len(names) > 1 else 1.0
        abstained = scope is not None and scope.probability < self.abstain_below
        # An index without nodes has nothing to add, so it never comes along as the second.
        both = margin < self.index_margin and ranked[1].nodes > 0 and not abstained
        second = f"next is {names[1]} with {shares[1]:.2f}{', searched too' * both}" if len(names) > 1 else ""
        reason = weighed.why(names, second)
        if scope is not None:
            evidence = {**evidence, names[0]: {**evidence.get(names[0], {}), "scope": scope.probability}}
            reason += f"; {_doubt(scope)}" if abstained else ""
        return Selection(
            name=names[0],
            names=tuple(names[: 2 if both else 1]),
            confidence=shares[0],
            scores=dict(zip(names, shares, strict=True)),
            margin=margin,
            reason=reason,
            mode=self.mode if len(names) > 1 else "only",
            abstained=abstained,
            evidence=evidence,
        )


class ProfileClassifier(_EvidenceClassifier):
    """Picks by the content of the indexes: nearest sampled nodes, vocabulary and metadata values.

    Safe to share between threads; keeps nothing of the queries. Without a usable vector, vocabulary and values decide.
    An index without nodes only wins when all are empty.
    ``Selection.evidence`` has ``cosine``, ``language``, ``vocabulary`` and ``values`` for every index with nodes, as
    logarithms of odds, and for the first choice ``scope``, the probability that the question is about it at all.
    """

    mode = "profile"

    def _weighed(self, query: str, known: _Known, vector: Vector | None, *, given: bool, left_s: float) -> _Weighed:
        cosines = sample_cosines(vector, known) if vector is not None else None
        unrelated = cache(partial(self._unrelated, query, left_s))
        near = None if vector is None or cosines is None else _Near(known, vector, cosines, unrelated)
        evidence = weigh(query, known, near)
        kinds = {name: found.kinds for name, found in evidence.items()}
        return _Weighed(kinds, partial(_why, evidence, given=given, compared=cosines is not None))


class EmbeddingClassifier(_EvidenceClassifier):
    """Picks by the cosine between the query and the descriptions of the indexes, else by words and values alone."""

    mode = "embedding"

    @override
    def _weighed(self, query: str, known: _Known, vector: Vector | None, *, given: bool, left_s: float) -> _Weighed:
        units = {profile.name: unit_vector(profile.description_vector) for profile in known.profiles}
        shape = None if vector is None else vector.shape
        same = {name: unit for name, unit in units.items() if unit is not None and unit.shape == shape}
        kinds: dict[str, Mapping[str, float]]
        if vector is None or len(same) < len(units):
            what = "no usable vector: vocabulary alone"
            kinds = {name: found.kinds for name, found in weigh(query, known).items()}
        else:
            what, cosines = "description nearest to the query", {name: float(u @ vector) for name, u in same.items()}
            kinds = {name: {"description": COSINE_WEIGHT * cosine / known.spread} for name, cosine in cosines.items()}
        return _Weighed(kinds, lambda _, second: f"{what}; {second}")


class _Weighed(NamedTuple):
    """What speaks for the indexes that have nodes, as logarithms that may be added, and how to tell it."""

    evidence: Mapping[str, Mapping[str, float]]
    why: Callable[[Sequence[str], str], str]  # of the indexes, best first, and of what is said of the second


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


def _why(evidence: Mapping[str, Evidence], names: Sequence[str], runner_up: str, *, given: bool, compared: bool) -> str:
    first = evidence[names[0]]
    second = next((evidence[name] for name in names[1:] if name in evidence), None)
    if second is None:
        return "the only index that is not empty"
    lead = {kind: f"{weight - second.kinds[kind]:+.1f}" for kind, weight in first.kinds.items()}
    unusable = "query vector not usable" if given else "no query vector"
    parts = [f"nearest samples {lead['cosine']}" if compared else unusable, f"vocabulary {lead['vocabulary']}"]
    parts += [f"language {lead['language']}"] if first.kinds["language"] != second.kinds["language"] else []
    if first.hits or second.hits:
        values = [" ".join(hit.value.split())[:_MAX_VALUE_CHARS] for hit in first.hits[:_MAX_NAMED_VALUES]]
        named = f" ({', '.join(values)})" if values else ""
        parts.append(f"metadata values {lead['values']}{named}")
    return f"{', '.join(parts)}; {runner_up}"

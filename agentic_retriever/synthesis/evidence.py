"""What speaks for an answer, its question held against the passages and the index, and how far that is to be trusted.

Cosines are counted in standard deviations, once of unrelated nodes of the index and once of this question's own cosines
with the sampled nodes; words are weighed by how few nodes have them. So the figures mean the same in every index,
language and embedding model. A figure that cannot be known is missing or ``None``: words of another language, cosines
without vectors.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agentic_retriever.indices.profile import MAX_TERMS, IndexProfile
from agentic_retriever.schema import Citation, Record, examined, frozen
from agentic_retriever.synthesis.context import ContextPassage, Evidence
from agentic_retriever.synthesis.questions import lacks_measure
from agentic_retriever.text import UNDETERMINED, Tokenizer, detect_language
from agentic_retriever.text.language_files import packaged_json
from agentic_retriever.text.tokens import absent, identifiers, kind_of, without_asking, without_requests

Figures = Mapping[str, float | None]

_MIN_NODES: Final = 30  # below so many the spread of cosines says too little
_MAX_QUESTION_TERMS: Final = 128
_LEAST_WEIGHT: Final = 0.25  # of a word that every node has: it may be what they are about
_USUAL: Final = 3.4  # how far beyond the passage of an answer stands on average
AS_NEAR: Final = 4.0  # how far beyond a passage counts as standing that has all words, where no cosine is known
_LANGUAGE_CHARS: Final = 600
_WORDS: Final = re.compile(r"[^\W_][\w'’.-]*\w|[^\W_]")
_KEY: Final = re.compile(r"(?<![\d.,])\d{3,}(?![\d.,])")  # by which a row of a table is asked for, such as a year
_CODE: Final = re.compile(  # an option, a name with an underscore, a version that is no date
    r"(?<=[^\w-]-)-\w[\w-]+|\w+_\w+|\b(?:vers|rele|верс|[A-Z])\w+ v?(?!\d+\.\d+\.\d{4})(?P<version>\d+(?:\.\d+)+)"
)
_SERIES: Final = 3
_CAPITAL_NOUNS: Final = frozenset({"de", "lb"})
_CAPITALS: Final = 0.5  # where more words than this have one, as in German or in titles, capitals tell no names


def figures_of(query: str, passages: Sequence[ContextPassage], cited: Sequence[Citation], known: Evidence) -> Figures:
    """Weigh an answer that cites the first of ``cited``, from passages in order of rank."""
    query = examined(query)
    places = [passage.node_id for passage in passages]
    at = places.index(cited[0].node_id) if cited and cited[0].node_id in places else 0
    by_cosines = _by_cosines(passages, at, known)
    # Words of another language say nothing, unless nothing else does either.
    foreign = not by_cosines["unseen"] and _is_foreign(query, passages[:1], known.profile)
    query = known.left_of(query)
    by_words = _by_words(query, passages, at, known, foreign=foreign)
    if by_cosines["unseen"]:
        by_cosines = {**by_cosines, "beyond": AS_NEAR * (by_words.get("reachable") or 0.0)}
    elif (by_cosines["beyond"] or 0.0) < _USUAL and cited and _is_row_of(query, cited[0].quote.casefold()):
        by_cosines = {**by_cosines, "contrast": None, "beyond": None, "tailored": None}  # a model knows no numbers
    return {
        "documents": math.log(max(1, len({one.doc_id for one in cited}))),
        **_by_names(query, passages, known, foreign=foreign),
        **by_words,
        **by_cosines,
    }


def _is_foreign(query: str, first: Sequence[ContextPassage], profile: IndexProfile | None) -> bool:
    """Tell whether a question is in another language than most of the index, or the passages if that is not known."""
    language = detect_language(query)
    found = {profile.language} if profile is not None and profile.whole else set[str]()
    found = found - {UNDETERMINED} or {_language(passage) for passage in first}
    return language != UNDETERMINED and bool(found) and not found & {UNDETERMINED, language}


def _language(passage: ContextPassage) -> str:
    told = passage.node.node.metadata.get("language")
    return told if isinstance(told, str) and told else detect_language(passage.text[:_LANGUAGE_CHARS])


# --- words: which of the question's terms, by their weight, stand where ----------------------------------------------


def _by_words(
    query: str, passages: Sequence[ContextPassage], at: int, known: Evidence, *, foreign: bool
) -> dict[str, float | None]:
    profile = known.profile
    tokenizer = Tokenizer(profile.language if profile is not None else detect_language(query))
    asked = tokenizer.telling_tokens(without_requests(without_asking(query))) or tokenizer.telling_tokens(query)
    terms = tuple(dict.fromkeys(asked))[:_MAX_QUESTION_TERMS]
    if known.settled and passages and not terms:
        return {"reachable": 1.0, "absent": 0.0}
    if foreign or not passages or not terms:
        return dict.fromkeys(("reachable", "absent", "unknown", "ahead", "heard"))
    own = [frozenset(tokenizer.tokens(f"{passage.header}\n{passage.shown}")) for passage in passages]
    weights, unknown = _weights(terms, own, profile)
    best = max(known.by_words.get(passage.node_id, 0.0) for passage in passages)
    return {
        "reachable": max(_share(weights, there) for there in own),
        "absent": 1 - _share(weights, frozenset[str]().union(*own)),
        "unknown": unknown,
        "ahead": _ahead(passages, at, known.by_words) / best if best > 0 else None,
        "heard": math.log(best / len(terms)) if best > 0 else None,  # of rare words that are often there
    }


def _ahead(passages: Sequence[ContextPassage], at: int, scores: Mapping[str, float]) -> float:
    """How far the cited passage is ahead of other places by its words."""
    others = [scores.get(one.node_id, 0.0) for one in passages if not _same_place(one, passages[at])]
    return scores.get(passages[at].node_id, 0.0) - max(others, default=0.0)


def _share(weights: Mapping[str, float], there: frozenset[str]) -> float:
    return math.fsum(weight for term, weight in weights.items() if term in there) / math.fsum(weights.values())


def _weights(
    terms: Sequence[str], own: Sequence[frozenset[str]], profile: IndexProfile | None
) -> tuple[dict[str, float], float | None]:
    """Weigh terms by inverse frequency in the index, or the passages, up to 1; and the share that it does not know."""
    if profile is not None and profile.whole and profile.document_frequency:
        counts, size = profile.document_frequency, profile.nodes
    else:
        counts, size = Counter(term for there in own for term in there), len(own)
    rarest = math.log(2 * size + 2)
    rarity = {term: math.log((size + 1) / (min(size, counts.get(term, 0)) + 0.5)) / rarest for term in terms}
    weights = {term: _LEAST_WEIGHT + (1 - _LEAST_WEIGHT) * rare for term, rare in rarity.items()}
    if profile is None or not _knows_all_words(profile):
        return weights, None
    return weights, math.fsum(weights[term] for term in terms if term not in counts) / math.fsum(weights.values())


def _same_place(one: ContextPassage, other: ContextPassage) -> bool:
    if one.doc_id != other.doc_id:
        return False
    overlap = min(one.offset + len(one.text), other.offset + len(other.text)) - max(one.offset, other.offset)
    return overlap > 0 or (bool(one.section) and one.section == other.section)


def _by_names(
    query: str, passages: Sequence[ContextPassage], known: Evidence, *, foreign: bool
) -> dict[str, float | None]:
    """Count what the question calls by name, code or number and the passages do not have."""
    named, profile = _named(query), known.profile
    texts = [f"{passage.header}\n{passage.shown}".casefold() for passage in passages]
    tokens = Tokenizer(profile.language if profile is not None else detect_language(query)).tokens
    missing = [name for name in named if not any(name in text for text in texts)]
    there = {term for text in texts for term in tokens(text)} if missing else set()  # "January" stands in 2012-01-04
    missing = [name for name in missing if not there.issuperset(tokens(name))]
    codes = absent(identifiers(query), profile.identifiers) if profile is not None else []
    of_a_series = profile is not None and any(_is_of_a_series(code, profile.identifiers) for code in codes)
    foreign = foreign or any(_is_foreign(query, [one], None) for one in passages)  # "Norway" stands there as "Norwegen"
    strange = profile is not None and not foreign and _has_strange_name(query, profile, known.expanded)
    written = [found["version"] or found[0].casefold() for found in _CODE.finditer(query)]
    strange = strange or not all(any(code in text for text in texts) for code in written)
    return {
        "absent_names": math.log1p(len(missing)),
        "absent_codes": float(bool(codes) or strange) + of_a_series + 2 * lacks_measure(query, texts, foreign=foreign),
    }


def _is_of_a_series(code: str, known: Mapping[str, frozenset[str]]) -> bool:
    """Tell whether an index has several others that begin with the same letters, such as NS-1, NS-3 and NS-5."""
    letters = code.rstrip("0123456789.")
    others = known.get(kind_of(code), ())
    return bool(letters) and sum(one.rstrip("0123456789.") == letters for one in others) >= _SERIES


def _has_strange_name(query: str, profile: IndexProfile, expanded: Sequence[str]) -> bool:
    """Tell whether a question has a name that no node of the index has, where all words of the index are known."""
    names = _named(query).difference(" ".join(expanded).casefold().split())
    terms = map(Tokenizer(profile.language).tokens, filter(str.isalpha, names))
    known = profile.document_frequency.keys()
    tells = _knows_all_words(profile) and detect_language(query) not in _CAPITAL_NOUNS
    return tells and any(found and known.isdisjoint(found) for found in terms)


def _knows_all_words(profile: IndexProfile) -> bool:
    return profile.whole and len(profile.document_frequency) < MAX_TERMS


def _named(query: str) -> set[str]:
    words = _WORDS.findall(query)
    capital = [word for word in words[1:] if word[0].isupper()]
    names = capital if len(capital) <= _CAPITALS * len(words) else [word for word in capital if word.isupper()]
    return {name.casefold() for name in [*names, *(word for word in words if any(map(str.isdecimal, word)))]}


def _is_row_of(query: str, row: str) -> bool:
    """Tell whether a quote is a row of a table with a long number or all names of the question, or one as a cell."""
    names, shared = _named(query), {*_KEY.findall(row)} & {*_KEY.findall(query)}
    is_cell = any(cell.strip() in names for cell in row.split("|"))
    return row.startswith("|") and (is_cell or bool(shared) or (len(names) > 1 and all(name in row for name in names)))


# --- cosines: how far the passages stand out, and which of them ------------------------------------------------------


def _by_cosines(passages: Sequence[ContextPassage], at: int, known: Evidence) -> dict[str, float | None]:
    profile, found = known.profile, [known.cosines.get(passage.node_id) for passage in passages]
    cosines = [cosine for cosine in found if cosine is not None]
    if not cosines or profile is None or profile.nodes < _MIN_NODES or not profile.background_std > 0:
        return {"unseen": 1.0}
    worst = min(cosines)
    near = [worst if cosine is None else cosine for cosine in found]
    best = max(range(len(near)), key=near.__getitem__)
    others = [near[i] for i in range(len(near)) if not _same_place(passages[i], passages[best])]
    by_chance = NormalDist().inv_cdf(2 ** (-1 / profile.nodes))
    spread = profile.background_std
    asked, unrelated = _with_sample(known.query_vector, profile), _with_sample(known.unrelated, profile)
    return {
        "unseen": 0.0,
        "contrast": None if known.unrelated is None else _contrast(near[best], asked, by_chance),
        "beyond": _beyond(near[best], unrelated),
        "tailored": _tailored(asked, unrelated, profile.nodes),
        "margin": min(3.0, (near[best] - max(others)) / spread) if others else None,
        "behind": (near[best] - near[at]) / spread,
    }


_Cosines: TypeAlias = NDArray[np.float64] | None  # of sampled nodes, if they are known


def _contrast(best: float, cosines: _Cosines, by_chance: float) -> float | None:
    """How far the best cosine stands above this question's cosines with sampled nodes, in their standard deviations."""
    spread = 0.0 if cosines is None else float(cosines.std())
    return None if cosines is None or not spread > 0 else (best - float(cosines.mean())) / spread - by_chance


def _beyond(best: float, cosines: _Cosines) -> float | None:
    """How far it stands above what questions reach that are about nothing here, in standard deviations of theirs."""
    spread = 0.0 if cosines is None else float(cosines.std())
    return None if cosines is None or not spread > 0 else (best - float(np.median(cosines.max(axis=0)))) / spread


def _tailored(asked: _Cosines, others: _Cosines, nodes: int) -> float | None:
    """The same for cosines less what each node has with questions about nothing here: some are near to all of them."""
    if asked is None or others is None or nodes > len(asked) or (count := others.shape[1]) < 2:
        return None
    mean = others.mean(axis=1)
    own, theirs = asked - mean, (others - mean[:, None]) * count / (count - 1)  # each less the mean of all but itself
    spread = float(own.std())
    return float(own.max() - np.median(theirs.max(axis=0))) / spread if spread > 0 else None


def _with_sample(vectors: object, profile: IndexProfile) -> _Cosines:
    """Cosines of sampled nodes with a unit vector or several, ``(nodes, ...)``."""
    given, sample = np.asarray(vectors if vectors is not None else (), dtype=float), profile.sample
    if not given.size or sample.ndim != 2 or len(sample) < _MIN_NODES or sample.shape[1] != given.shape[-1]:
        return None
    return np.asarray(sample @ given.T, dtype=float)


@lru_cache(1)
def _unrelated() -> Mapping[str, Sequence[str]]:
    return frozen(packaged_json("synthesis/unrelated_questions.json"))


def unrelated_questions(language: str) -> Sequence[str]:
    """Return questions in a language about nothing that documents usually are about; in English where none are."""
    return _unrelated().get(language, _unrelated()["en"])


# --- how far to trust an answer with these figures, by weights of ``scripts/fit_confidence.py`` -----------------------

_LEAST_SUPPORTED: Final = 0.4
_MOST_ODDS: Final = 60.0  # of a logarithm: a power far out would overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceModel(Record):
    intercept: float
    weights: Mapping[str, float]
    neutral: Mapping[str, float]  # What stands for a figure that is not known

    def probability(self, figures: Mapping[str, float | None]) -> float:
        odds = self.intercept
        for name, weight in self.weights.items():
            value = figures.get(name)
            odds += weight * (value if value is not None and math.isfinite(value) else self.neutral.get(name, 0.0))
        return 1 / (1 + math.exp(-min(_MOST_ODDS, max(-_MOST_ODDS, odds))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceModels(Record):
    """Both judgments: that the passages hold an answer, and that one of the citations is where it stands."""

    answered: ConfidenceModel
    right: ConfidenceModel
    answered_from: float  # Nothing is answered from passages that hold an answer with less probability
    high_from: float


@lru_cache(1)
def default_models() -> ConfidenceModels:
    return ConfidenceModels.from_dict(packaged_json("synthesis/confidence_weights.json")["models"])


def supported_share(probability: float, support: float) -> float:
    """Return the probability times ``0.4 + 0.6 * support``: nothing raises an answer without support."""
    support = min(1.0, max(0.0, support)) if math.isfinite(support) else 0.0
    return min(1.0, probability * (_LEAST_SUPPORTED + (1 - _LEAST_SUPPORTED) * support))

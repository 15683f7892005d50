"""An answer without a model: the sentences that say most about the question, verbatim and cited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.schema import Complexity, Degradation, frozen
from agentic_retriever.synthesis.candidates import Candidate, candidates
from agentic_retriever.synthesis.quotes import quoted
from agentic_retriever.synthesis.terms import Question, coverage
from agentic_retriever.text import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from agentic_retriever.schema import Citation
    from agentic_retriever.synthesis.context import ContextPassage

    Embed = Callable[[list[str]], NDArray[Any]]

# What makes a sentence worth quoting, in units of "has every term of the question".
_AROUND = 0.4
_RANK = 0.12
_NUMBER = 0.12
_SUBJECT = 0.12
_LEAD = 0.03
_MIN_WIDTH = 12
_LONG_WIDTH = 300
# What is left of a score in a passage with none of the question's terms, and in one that lacks its numbers and codes.
_POOR_PASSAGE = 0.5
_WRONG_NUMBER = 0.5

_EMBEDDED = 12
_EMBEDDED_IN_ALL = 16
_NEAR = 0.6
# Scores that are mixed with spread cosines fall off faster.
_NEAR_SLACK = 0.1
_DIVERSITY = 0.3
_LEAST_OF_BEST = {Complexity.SIMPLE: 0.7, Complexity.COMPLEX: 0.5}
_MAX_LIST_CHARS = 800
_BLIND_SENTENCES = 2
_BLIND_SUPPORT = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """What the extractor found.

    Attributes:
        text: The sentences in reading order, each followed by its ``[n]``; ``""`` when the passages hold no sentence.
        citations: One for each number.
        coverage: Weighted share of the question's terms in the quoted text and its headings, in [0, 1].
        reachable: The same for the best single passage as a whole, in [0, 1].
        support: 1 when sentences were chosen for the question, 0.2 when only the order of retrieval spoke for them.
        weights: Weight of each of the question's terms, in [0.5, 1].
        degraded: ``synthesis.embed`` when sentences could not be embedded.
    """

    text: str
    citations: tuple[Citation, ...]
    coverage: float
    reachable: float
    support: float
    weights: Mapping[str, float]
    degraded: tuple[Degradation, ...] = ()


class ExtractiveSynthesizer:
    """Chooses sentences by weighted term overlap, rank and surroundings, without saying the same thing twice.

    The choice is by maximal marginal relevance (J. Carbonell and J. Goldstein, "The Use of MMR, Diversity-Based
    Reranking for Reordering Documents and Producing Summaries", SIGIR 1998). Reading order is: documents by their best
    rank, sentences of a document by their place in it.

    Args:
        max_sentences: Most sentences in an answer, at least 1.
        embed: Embeds texts as rows of an ``(n, dim)`` array, to rescore the best 12 sentences by cosine when the
            question's vector is given, too.
    """

    def __init__(self, max_sentences: int = 4, embed: Embed | None = None) -> None:
        self.max_sentences = max(1, max_sentences)
        self._embed = embed

    def extract(
        self,
        query: str,
        passages: Sequence[ContextPassage],
        *,
        language: str = "und",
        complexity: Complexity = Complexity.SIMPLE,
        query_vector: Sequence[float] | NDArray[Any] | None = None,
        index_of: Callable[[str], str] = lambda _node_id: "",
    ) -> Extraction:
        """Answer a question from passages.

        Args:
            query: The question.
            passages: Best first, as :func:`~agentic_retriever.synthesis.context.assemble` makes them.
            language: ISO 639-1 code of the question, for stemming.
            complexity: A complex question takes in sentences that score lower against the best one.
            query_vector: The question's vector, for ``embed``.
            index_of: Gives the name of the index that a node id came from.

        Returns:
            The extraction; it never raises for any query or text.
        """
        tokenizer = Tokenizer(language)
        question = Question.of(query, tokenizer)
        found = candidates(passages, tokenizer)
        weights = question.weights([c.terms for c in found])
        scores = _lexical_scores(found, question, weights)
        blind = not any(c.terms & weights.keys() for c in found)
        before = scores
        scores, blind, degraded = self._by_vectors(found, scores, query_vector, blind=blind)
        rescored = scores is not before
        if blind:
            chosen = _first_sentences(found, min(self.max_sentences, _BLIND_SENTENCES))
        else:
            least = _LEAST_OF_BEST[complexity] - (_NEAR_SLACK if rescored else 0.0)
            chosen = _diverse(found, scores, self.max_sentences, least, weights)
        picked = _with_lists(found, chosen)
        text, citations = quoted(picked, index_of)
        return Extraction(
            text=text,
            citations=citations,
            coverage=coverage(weights, frozenset().union(*(c.terms | c.around for c in picked))),
            reachable=_reachable(found, weights),
            support=_BLIND_SUPPORT if blind else 1.0,
            weights=frozen(weights),
            degraded=degraded,
        )

    def _by_vectors(
        self,
        found: Sequence[Candidate],
        scores: NDArray[np.float64],
        query_vector: Sequence[float] | NDArray[Any] | None,
        *,
        blind: bool,
    ) -> tuple[NDArray[np.float64], bool, tuple[Degradation, ...]]:
        """Rescore by cosine if that can be done; afterwards the choice is blind no more."""
        if self._embed is None or query_vector is None or not found:
            return scores, blind, ()
        try:
            return _rescored(found, scores, self._embed, query_vector, blind=blind), False, ()
        except (AgenticRetrieverError, ValueError, TypeError) as err:
            return scores, blind, (_not_embedded(err),)


def _lexical_scores(
    found: Sequence[Candidate], question: Question, weights: Mapping[str, float]
) -> NDArray[np.float64]:
    factors = _passage_factors(found, weights)
    return np.array([_lexical_score(c, question, weights) * factors[c.passage.number] for c in found], dtype=float)


def _lexical_score(c: Candidate, question: Question, weights: Mapping[str, float]) -> float:
    own = coverage(weights, c.terms)
    answers_number = question.asks_number and _new_number(c, weights)
    score = own + _AROUND * coverage(weights, c.around - c.terms) + _RANK / c.passage.number
    score += _SUBJECT * coverage(weights, c.lead)
    score += (_NUMBER if answers_number else 0.0) + (_LEAD if c.position == 0 else 0.0)
    if c.width < _MIN_WIDTH and own < 0.5 and not answers_number:
        score *= 0.3
    return score / (1 + max(0, c.width - _LONG_WIDTH) / (4 * _LONG_WIDTH))


def _passage_factors(found: Sequence[Candidate], weights: Mapping[str, float]) -> dict[int, float]:
    """Tell how far each passage is about the question: many records differ only in a name or a number."""
    terms = _passage_terms(found)
    covered = {number: coverage(weights, own) for number, own in terms.items()}
    best = max(covered.values(), default=0.0) or 1.0
    codes = {term for term in weights if any(char.isdecimal() for char in term)}
    most = max((len(codes & own) for own in terms.values()), default=0)
    return {
        number: (_POOR_PASSAGE + (1 - _POOR_PASSAGE) * covered[number] / best)
        * (1.0 if len(codes & own) == most else _WRONG_NUMBER)
        for number, own in terms.items()
    }


def _new_number(c: Candidate, weights: Mapping[str, float]) -> bool:
    """Tell whether a sentence has a number that the question does not have."""
    return any(term not in weights and any(char.isdecimal() for char in term) for term in c.terms)


def _passage_terms(found: Sequence[Candidate]) -> dict[int, frozenset[str]]:
    terms: dict[int, set[str]] = {}
    for c in found:
        terms.setdefault(c.passage.number, set()).update(c.terms, c.around)
    return {number: frozenset(own) for number, own in terms.items()}


def _reachable(found: Sequence[Candidate], weights: Mapping[str, float]) -> float:
    return max((coverage(weights, terms) for terms in _passage_terms(found).values()), default=0.0)


def _rescored(
    found: Sequence[Candidate],
    scores: NDArray[np.float64],
    embed: Embed,
    query_vector: Sequence[float] | NDArray[Any],
    *,
    blind: bool,
) -> NDArray[np.float64]:
    """Mix the scores of the best sentences with their cosine to the question; all others get 0."""
    # A paraphrase shares no words with the question, so the sentences that come first are looked at in any case.
    by_score = [] if blind else [int(i) for i in np.argsort(-scores, kind="stable")[:_EMBEDDED]]
    best = list(dict.fromkeys([*by_score, *range(len(found))]))[: min(len(found), _EMBEDDED_IN_ALL)]
    vectors = np.asarray(embed([found[i].in_context for i in best]), dtype=float)
    query = np.asarray(query_vector, dtype=float).ravel()
    if vectors.shape != (len(best), query.size) or not (np.isfinite(vectors).all() and np.isfinite(query).all()):
        raise ValueError(f"expected finite vectors of shape {(len(best), query.size)}, got shape {vectors.shape}")
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosines = vectors @ query / np.where(norms > 0, norms, 1.0)
    # Cosines of one model crowd together, so they are spread over [0, 1] before they are mixed in.
    spread = float(np.ptp(cosines))
    near = (cosines - cosines.min()) / spread if spread > 0 else np.ones(len(best))
    top = float(scores[best].max()) or 1.0
    mixed = np.zeros(len(found))
    mixed[best] = _NEAR * near + (0.0 if blind else (1 - _NEAR) * scores[best] / top)
    return mixed


def _not_embedded(err: Exception) -> Degradation:
    reason = str(err) if isinstance(err, AgenticRetrieverError) else f"sentence vectors unusable: {err}"
    return Degradation(step="synthesis.embed", reason=reason, fallback="term overlap")


def _first_sentences(found: Sequence[Candidate], count: int) -> list[int]:
    return [i for i, c in enumerate(found) if c.passage.number == found[0].passage.number][:count]


def _diverse(
    found: Sequence[Candidate],
    scores: NDArray[np.float64],
    most: int,
    least_of_best: float,
    weights: Mapping[str, float],
) -> list[int]:
    """Choose greedily: a sentence loses by what it has in common with those chosen before.

    The neighbour of a chosen sentence gains by the question's terms that it adds: "A reserve exists. Only the CFO can
    release it."
    """
    least = least_of_best * float(scores.max())
    left = [int(i) for i in np.argsort(-scores, kind="stable")]
    chosen: list[int] = []
    missing = dict(weights)
    total = sum(weights.values()) or 1.0
    while left and len(chosen) < most:
        gains = [
            scores[i]
            - _DIVERSITY * max((_overlap(found[i], found[j]) for j in chosen), default=0.0)
            + (sum(missing.get(term, 0.0) for term in found[i].terms) / total if _is_near(i, chosen, found) else 0.0)
            for i in left
        ]
        at = int(np.argmax(gains))
        if gains[at] < least:
            break
        chosen.append(left.pop(at))
        missing = {term: weight for term, weight in missing.items() if term not in found[chosen[-1]].terms}
    return chosen


def _is_near(i: int, chosen: Sequence[int], found: Sequence[Candidate]) -> bool:
    return any(found[i].passage is found[j].passage and abs(found[i].position - found[j].position) == 1 for j in chosen)


def _with_lists(found: Sequence[Candidate], chosen: Sequence[int]) -> list[Candidate]:
    """Give a sentence that announces a list the items of the list: "Excluded are:" says nothing alone."""
    picked = set(chosen)
    for i in chosen:
        if not found[i].text.endswith((":", "：")):
            continue
        room = _MAX_LIST_CHARS
        for j in range(i + 1, len(found)):
            follows = found[j].passage is found[i].passage and found[j].position == found[i].position + j - i
            room -= found[j].end - found[j].start
            if not follows or not found[j].item or found[j].item == found[i].item or room < 0:
                break
            picked.add(j)
    return [found[i] for i in sorted(picked)]


def _overlap(one: Candidate, other: Candidate) -> float:
    smaller = min(len(one.terms), len(other.terms))
    return len(one.terms & other.terms) / smaller if smaller else 0.0

"""How well each sentence answers a question, by what can be seen in its words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentic_retriever.synthesis.cues import satisfaction
from agentic_retriever.synthesis.terms import coverage, is_code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from agentic_retriever.synthesis.candidates import Candidate
    from agentic_retriever.synthesis.terms import Question

    Scores = NDArray[np.float64]

_MIN_WIDTH = 12
_LONG_WIDTH = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringWeights:
    """What makes a sentence worth quoting, in units of "has every term of the question".

    Attributes:
        around: Terms of the question in title, heading and table head.
        beside: Terms of the question in the sentence before or behind.
        rank: For the first passage; the n-th one gets an n-th of it.
        kind: For a sentence that has what is asked for, such as a date.
        subject: Terms of the question where the sentence begins.
        lead: For the first sentence of a passage.
        poor_passage: What is left of a score in a passage with none of the question's terms.
        wrong_code: What is left of it in a passage that lacks numbers and codes that another passage has.
        part: Share of a part of the question in the score for that part; the rest is the score for the whole.
    """

    around: float = 0.4
    beside: float = 0.1
    rank: float = 0.12
    kind: float = 0.3
    subject: float = 0.12
    lead: float = 0.03
    poor_passage: float = 0.5
    wrong_code: float = 0.35
    part: float = 0.5


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of all candidates.

    Attributes:
        whole: For the question as a whole, ``(n,)``, at least 0.
        parts: For each of its parts, ``(parts, n)``.
        fits: How far each has the kind of answer that is asked for, ``(n,)`` in [0, 1].
    """

    whole: Scores
    parts: Scores
    fits: Scores


def score(found: Sequence[Candidate], question: Question, weights: Mapping[str, float], by: ScoringWeights) -> Scored:
    """Score sentences.

    Args:
        found: The candidates, in order of the passages.
        question: The question.
        weights: Weight of each of its terms.
        by: What counts how much.

    Returns:
        The scores, in the order of the candidates.
    """
    fits = np.array([satisfaction(question.kinds, c.text, question.text) for c in found], dtype=float)
    factors = passage_factors(found, weights, by)
    beside = _beside(found, frozenset(weights))
    whole = np.array(
        [_lexical(c, weights, fits[i], beside[i], by) * factors[c.passage.number] for i, c in enumerate(found)],
        dtype=float,
    )
    return Scored(whole, _part_scores(found, question, weights, by), fits)


def passage_terms(found: Sequence[Candidate]) -> dict[int, frozenset[str]]:
    """Collect the terms of each passage, with its title and headings, by its number."""
    terms: dict[int, set[str]] = {}
    for c in found:
        terms.setdefault(c.passage.number, set()).update(c.terms, c.around)
    return {number: frozenset(own) for number, own in terms.items()}


def passage_factors(found: Sequence[Candidate], weights: Mapping[str, float], by: ScoringWeights) -> dict[int, float]:
    """Tell how far each passage is about the question: many records differ only in a name or a number."""
    terms = passage_terms(found)
    covered = {number: coverage(weights, own) for number, own in terms.items()}
    best = max(covered.values(), default=0.0) or 1.0
    codes = {term for term in weights if is_code(term)}
    # Several records may be asked about at once, and each stands in a passage of its own.
    known = codes & frozenset().union(*terms.values()) if terms else frozenset()
    most = max((len(codes & own) for own in terms.values()), default=0)
    return {
        number: (by.poor_passage + (1 - by.poor_passage) * covered[number] / best)
        * (1.0 if not known or len(codes & own) == most or _has_rare(codes & own, terms) else by.wrong_code)
        for number, own in terms.items()
    }


def _has_rare(codes: frozenset[str] | set[str], terms: Mapping[int, frozenset[str]]) -> bool:
    """Tell whether a passage has a code that hardly any other has."""
    return any(
        len(code) >= 4 and sum(code in own for own in terms.values()) <= max(2, len(terms) // 4) for code in codes
    )


def _lexical(
    c: Candidate, weights: Mapping[str, float], fit: float, beside: frozenset[str], by: ScoringWeights
) -> float:
    own = coverage(weights, c.terms)
    score = own + by.around * coverage(weights, c.around - c.terms) + by.rank / c.passage.number
    score += by.beside * coverage(weights, beside - c.terms - c.around)
    score += by.subject * coverage(weights, c.lead) + by.kind * fit + (by.lead if c.position == 0 else 0.0)
    if c.width < _MIN_WIDTH and own < 0.5 and fit < 0.5:
        score *= 0.3
    return score / (1 + max(0, c.width - _LONG_WIDTH) / (4 * _LONG_WIDTH))


def _beside(found: Sequence[Candidate], wanted: frozenset[str]) -> list[frozenset[str]]:
    """The question's terms in the sentences before and behind, within the passage."""
    has = [c.terms & wanted for c in found]
    nothing: frozenset[str] = frozenset()
    around: list[frozenset[str]] = []
    for i, c in enumerate(found):
        before = has[i - 1] if i and found[i - 1].passage is c.passage else nothing
        behind = has[i + 1] if i + 1 < len(found) and found[i + 1].passage is c.passage else nothing
        around.append(before | behind)
    return around


def _part_scores(
    found: Sequence[Candidate], question: Question, weights: Mapping[str, float], by: ScoringWeights
) -> Scores:
    rows = []
    for part in question.parts:
        own = {term: weights[term] for term in part.terms if term in weights}
        rows.append(
            [
                coverage(own, c.terms)
                + by.around * coverage(own, c.around - c.terms)
                + by.kind * satisfaction(part.kinds, c.text, question.text)
                for c in found
            ]
        )
    return np.array(rows, dtype=float).reshape(len(question.parts), len(found))

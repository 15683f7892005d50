"""Which of the scored sentences are quoted: the best ones that do not repeat each other, for all that was asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentic_retriever.synthesis.cues import leans
from agentic_retriever.synthesis.terms import coverage
from agentic_retriever.text.scripts import Script, dominant_script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.synthesis.candidates import Candidate
    from agentic_retriever.synthesis.scoring import Scored, Scores

_MAX_LIST_CHARS = 800
_MAX_LEANT_ON = 300
_CLAUSE_SCRIPTS = frozenset({Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR})
_ENOUGH = 0.5
_LISTED = 0.6
_IDENTITY = 1.5
_NUMBER_IN_NAME = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRules:
    """How sentences are chosen.

    Attributes:
        most: Most sentences, at least 1; what a sentence leans on and the items of its list come on top.
        least: Share of the best score that a further sentence must have, after what it loses.
        diversity: What a sentence loses by all that it has in common with one chosen before.
        clause_width: Least width of a stretch in scripts that do not mark where a sentence ends, in characters.
    """

    most: int
    least: float
    diversity: float = 0.3
    clause_width: int = 140


def choose(
    found: Sequence[Candidate], scored: Scored, weights: Mapping[str, float], rules: ChoiceRules
) -> list[Candidate]:
    """Choose sentences for a question that asks for facts.

    The choice is by maximal marginal relevance (J. Carbonell and J. Goldstein, "The Use of MMR, Diversity-Based
    Reranking for Reordering Documents and Producing Summaries", SIGIR 1998). Of a question in several parts, each part
    gets its best sentence first. The neighbour of a chosen sentence gains by the question's terms that it adds: "A
    reserve exists. Only the CFO can release it."

    Args:
        found: The candidates, at least one.
        scored: Their scores.
        weights: Weight of each of the question's terms.
        rules: How many, and how good.

    Returns:
        The sentences in order of the candidates.
    """
    chosen = _for_parts(scored, rules)
    chosen = _diverse(found, scored.whole, weights, rules, chosen)
    return [found[i] for i in sorted(_completed(found, scored.whole, chosen, rules))]


def choose_listed(
    found: Sequence[Candidate], scores: Scores, weights: Mapping[str, float], *, most: int
) -> list[Candidate]:
    """Choose one sentence of each document that matches as well as the best one: the one that says which it is.

    Args:
        found: The candidates.
        scores: Their scores.
        weights: Weight of each of the question's terms.
        most: Most documents.

    Returns:
        The sentences in order of the candidates.
    """
    covered = covered_documents(found, weights)
    best = max(covered.values(), default=0.0)
    names = _distinguishing(found)
    kept = [doc for doc, share in covered.items() if share >= _LISTED * best][:most]
    top = float(scores.max()) or 1.0
    picked = []
    for doc in kept:
        own = [i for i, c in enumerate(found) if c.passage.doc_id == doc]
        picked.append(max(own, key=lambda i: scores[i] / top + _IDENTITY * _share(names[doc], found[i].terms)))
    return [found[i] for i in sorted(picked)]


def choose_overview(found: Sequence[Candidate], scores: Scores, *, most: int) -> list[Candidate]:
    """Choose the sentences that say most of what the passages say, of the document that they come from most.

    Args:
        found: The candidates.
        scores: Their scores for the question.
        most: Most sentences.

    Returns:
        The sentences in order of the candidates.
    """
    documents: dict[str, float] = {}
    for number, doc in {c.passage.number: c.passage.doc_id for c in found}.items():
        documents[doc] = documents.get(doc, 0.0) + 1 / number
    main = max(documents, key=lambda doc: documents[doc])
    of_main = [i for i, c in enumerate(found) if c.passage.doc_id == main]
    own = [i for i in of_main if not found[i].text.startswith("|")] or of_main
    top = max(float(scores[own].max()), 1e-9)
    alike = _centrality([found[i].terms for i in own])
    value = {i: alike[at] + 0.5 * scores[i] / top + (0.4 if _opens(found, i) else 0.0) for at, i in enumerate(own)}
    chosen: list[int] = []
    while own and len(chosen) < most:
        best = max(own, key=lambda i: value[i] - 0.7 * max((overlap(found[i], found[j]) for j in chosen), default=0.0))
        chosen.append(best)
        own.remove(best)
    return [found[i] for i in sorted(chosen)]


def covered_documents(found: Sequence[Candidate], weights: Mapping[str, float]) -> dict[str, float]:
    """Tell which share of the question's terms each document has, in order of rank."""
    terms: dict[str, set[str]] = {}
    for c in found:
        terms.setdefault(c.passage.doc_id, set()).update(c.terms, c.around)
    return {doc: coverage(weights, own) for doc, own in terms.items()}


def overlap(one: Candidate, other: Candidate) -> float:
    """Share of the shorter sentence's terms that both have."""
    smaller = min(len(one.terms), len(other.terms))
    return len(one.terms & other.terms) / smaller if smaller else 0.0


def _for_parts(scored: Scored, rules: ChoiceRules) -> list[int]:
    top = float(scored.whole.max()) or 1.0
    chosen: list[int] = []
    for row in scored.parts:
        if len(chosen) >= rules.most:
            break
        mixed = row + scored.whole / top
        best = int(np.argmax(mixed))
        if best not in chosen and row[best] >= _ENOUGH * max(1e-9, float(row.max())) and scored.whole[best] > 0.4 * top:
            chosen.append(best)
    return chosen


def _diverse(
    found: Sequence[Candidate], scores: Scores, weights: Mapping[str, float], rules: ChoiceRules, given: Sequence[int]
) -> list[int]:
    """Add sentences greedily: one loses by what it has in common with those chosen before."""
    least = rules.least * float(scores.max())
    chosen = list(given)
    left = [int(i) for i in np.argsort(-scores, kind="stable") if int(i) not in chosen]
    said = frozenset().union(*(found[i].terms for i in chosen))
    missing = {term: weight for term, weight in weights.items() if term not in said}
    total = sum(weights.values()) or 1.0
    while left and len(chosen) < rules.most:
        gains = [
            scores[i]
            - rules.diversity * max((overlap(found[i], found[j]) for j in chosen), default=0.0)
            + (sum(missing.get(term, 0.0) for term in found[i].terms) / total if _is_near(i, chosen, found) else 0.0)
            for i in left
        ]
        at = int(np.argmax(gains))
        if gains[at] < least and chosen:
            break
        chosen.append(left.pop(at))
        missing = {term: weight for term, weight in missing.items() if term not in found[chosen[-1]].terms}
    return chosen


def _is_near(i: int, chosen: Sequence[int], found: Sequence[Candidate]) -> bool:
    return any(found[i].passage is found[j].passage and abs(found[i].position - found[j].position) == 1 for j in chosen)


def _completed(found: Sequence[Candidate], scores: Scores, chosen: Sequence[int], rules: ChoiceRules) -> set[int]:
    picked = set(chosen)
    for i in chosen:
        picked.update(_items_of(found, i))
        if leans(found[i].text) and _adjoins(found, i - 1, i) and found[i - 1].width <= _MAX_LEANT_ON:
            picked.add(i - 1)
        if _is_clause(found[i]):
            picked.update(_widened(found, scores, i, rules.clause_width))
    return picked


def _items_of(found: Sequence[Candidate], i: int) -> list[int]:
    """The items of a list that a sentence announces: "Excluded are:" says nothing alone."""
    if not found[i].text.endswith((":", "：")):
        return []
    items = []
    room = _MAX_LIST_CHARS
    for j in range(i + 1, len(found)):
        follows = found[j].passage is found[i].passage and found[j].position == found[i].position + j - i
        room -= found[j].end - found[j].start
        if not follows or not found[j].item or found[j].item == found[i].item or room < 0:
            break
        items.append(j)
    return items


def _is_clause(c: Candidate) -> bool:
    return not c.item and not c.text.startswith("|") and dominant_script(c.text) in _CLAUSE_SCRIPTS


def _widened(found: Sequence[Candidate], scores: Scores, i: int, width: int) -> list[int]:
    """Take in neighbours until a stretch is as wide as a sentence: where one ends is a guess in these scripts."""
    first = last = i
    room = width - found[i].width
    while room > 0:
        sides = [j for j, edge in ((first - 1, first), (last + 1, last)) if _adjoins(found, min(j, edge), max(j, edge))]
        if not sides:
            break
        best = max(sides, key=lambda j: scores[j])
        room -= found[best].width
        first, last = min(first, best), max(last, best)
    return list(range(first, last + 1))


def _adjoins(found: Sequence[Candidate], i: int, j: int) -> bool:
    """Tell whether one candidate follows the other at once in the same passage."""
    return (
        i >= 0
        and j < len(found)
        and found[i].passage is found[j].passage
        and found[j].position == found[i].position + 1
    )


def _opens(found: Sequence[Candidate], i: int) -> bool:
    return i == 0 or found[i - 1].passage is not found[i].passage or found[i].position != found[i - 1].position + 1


def _distinguishing(found: Sequence[Candidate]) -> dict[str, frozenset[str]]:
    """The terms of each document's titles that few other documents have there."""
    titles: dict[str, frozenset[str]] = {}
    for c in found:
        titles[c.passage.doc_id] = titles.get(c.passage.doc_id, frozenset()) | c.around
    counts: dict[str, int] = {}
    for terms in titles.values():
        for term in terms:
            counts[term] = counts.get(term, 0) + 1
    return {doc: frozenset(t for t in terms if counts[t] <= max(1, len(titles) // 3)) for doc, terms in titles.items()}


def _share(wanted: frozenset[str], terms: frozenset[str]) -> float:
    """Which share of a name is among some terms; its numbers count three times."""
    heavy = {term: _NUMBER_IN_NAME if any(char.isdecimal() for char in term) else 1.0 for term in wanted}
    return coverage(heavy, terms)


def _centrality(terms: Sequence[frozenset[str]]) -> list[float]:
    """How much each sentence has in common with all, by the commonness of its terms, in [0, 1]."""
    counts: dict[str, int] = {}
    for own in terms:
        for term in own:
            counts[term] = counts.get(term, 0) + 1
    raw = [sum(counts[t] - 1 for t in own) / (len(own) + 4) if own else 0.0 for own in terms]
    top = max(raw, default=0.0) or 1.0
    return [value / top for value in raw]

"""An answer without a model: the sentences that say most about the question, verbatim and cited."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.schema import Citation, Complexity, Degradation, SentenceCheck, frozen
from agentic_retriever.synthesis.citations import MARKER, segments
from agentic_retriever.synthesis.confidence import AnswerFeatures
from agentic_retriever.synthesis.context import ContextPassage
from agentic_retriever.synthesis.question import LISTING, OVERVIEW, Question, coverage, leans, satisfaction
from agentic_retriever.text import UNDETERMINED, Tokenizer, detect_language
from agentic_retriever.text.scripts import Script, dominant_script
from agentic_retriever.text.tokens import identifiers

Scores = NDArray[np.float64]
Embed = Callable[[list[str]], NDArray[Any]]

_LEAST_OF_BEST: Final = {Complexity.SIMPLE: 0.65, Complexity.COMPLEX: 0.45}
# Scores that are mixed with spread cosines fall off faster.
_NEAR_SLACK: Final = 0.1
_BLIND_SENTENCES: Final = 2
_BLIND_SUPPORT: Final = 0.2
# Documents that have nearly all that the best one has of the question are listed if there are so many.
_MANY_DOCUMENTS: Final = 3
_AS_GOOD: Final = 0.9
_LANGUAGE_CHARS: Final = 600
_QUERY_CHARS: Final = 1_000
# The number of a numbered thing, or one that is long enough to stand alone.
_NUMBER: Final = re.compile(r"(?<= )\d[\d.]*$|(?<!\d)\d{4,}(?!\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """What the extractor found."""

    text: str
    citations: tuple[Citation, ...]
    coverage: float  # Weighted share of the question's terms in the quoted text and its headings, in [0, 1]
    reachable: float  # The same for the best single passage as a whole, in [0, 1]
    support: float
    weights: Mapping[str, float]  # Weight of each of the question's terms, in [0.5, 1]
    degraded: tuple[Degradation, ...] = ()
    absent: float = 0.0  # Weighted share of the question's terms that are in no passage, in [0, 1]
    missing_code: bool = False
    foreign: bool = False

    def features(self, *, relevance: float | None = None, unknown_share: float | None = None) -> AnswerFeatures:
        """Return what the confidence in the answer rests on."""
        return AnswerFeatures(
            coverage=self.coverage,
            relevance=relevance,
            reachable=self.reachable,
            absent=self.absent,
            missing_code=float(self.missing_code),
            unknown_share=unknown_share,
            foreign=self.foreign,
        )


class ExtractiveSynthesizer:
    """Chooses sentences by weighted term overlap, kind of answer, rank and surroundings, without repetition.

    Reading order is: documents by their best rank, sentences of a document by their place in it.
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
        """Answer a question from passages."""
        tokenizer = Tokenizer(language)
        question = Question.of(query, tokenizer)
        found = _candidates(passages, tokenizer)
        weights = question.weights([c.terms for c in found])
        scored = _scored(found, question, weights)
        blind = not any(c.terms & weights.keys() for c in found)
        before = scored
        scored, blind, degraded = self._by_vectors(found, scored, query_vector, blind=blind)
        if blind:
            picked = _first_sentences(found)[: min(self.max_sentences, _BLIND_SENTENCES)]
        else:
            least = _LEAST_OF_BEST[complexity] - (_NEAR_SLACK if scored is not before else 0.0)
            picked = self._choose(found, scored, before.whole, question, weights, least)
        text, citations = _quoted(picked, index_of)
        everywhere = frozenset().union(*(c.terms | c.around for c in found))
        return Extraction(
            text=text,
            citations=citations,
            coverage=coverage(weights, frozenset().union(*(c.terms | c.around for c in picked))),
            reachable=max((coverage(weights, terms) for terms in _passage_terms(found).values()), default=0.0),
            support=_BLIND_SUPPORT if blind else 1.0,
            weights=frozen(weights),
            degraded=degraded,
            absent=1.0 - coverage(weights, everywhere) if weights else 0.0,
            missing_code=_misses_code(query, passages, everywhere),
            foreign=_is_foreign(language, passages),
        )

    def _choose(
        self,
        found: Sequence[Candidate],
        scored: Scored,
        by_words: Scores,
        question: Question,
        weights: Mapping[str, float],
        least: float,
    ) -> list[Candidate]:
        if OVERVIEW in question.kinds:
            return _chosen_overview(found, scored.whole, most=self.max_sentences)
        if _lists_documents(found, question, weights):
            return _chosen_listed(found, by_words, weights, most=2 * self.max_sentences)
        return _chosen(found, scored, weights, most=self.max_sentences, least=least)

    def _by_vectors(
        self,
        found: Sequence[Candidate],
        scored: Scored,
        query_vector: Sequence[float] | NDArray[Any] | None,
        *,
        blind: bool,
    ) -> tuple[Scored, bool, tuple[Degradation, ...]]:
        """Rescore by cosine if that can be done; afterwards the choice is blind no more."""
        if self._embed is None or query_vector is None or not found:
            return scored, blind, ()
        try:
            whole = _rescored(found, scored.whole, self._embed, query_vector, blind=blind)
        except (AgenticRetrieverError, ValueError, TypeError) as err:
            return scored, blind, (_not_embedded(err),)
        return replace(scored, whole=whole), False, ()


def _lists_documents(found: Sequence[Candidate], question: Question, weights: Mapping[str, float]) -> bool:
    """Tell whether a question asks for all the documents that match, and several match alike."""
    if question.kinds - {LISTING} and LISTING not in question.kinds:
        return False
    covered = _covered_documents(found, weights)
    best = max(covered.values(), default=0.0)
    alike = sum(share >= _AS_GOOD * best for share in covered.values())
    return best > 0 and alike >= (_MANY_DOCUMENTS if LISTING not in question.kinds else _MANY_DOCUMENTS - 1)


def _misses_code(query: str, passages: Sequence[ContextPassage], everywhere: frozenset[str]) -> bool:
    """Tell whether the question names a code or a numbered thing that no passage has."""
    wanted = identifiers(query[:_QUERY_CHARS])
    if not wanted or not passages:
        return False
    there = frozenset(found for p in passages for found in identifiers(f"{p.header}\n{p.text}"))
    # A numbered thing may be named by another word, a year may stand without "FY".
    return any(
        name not in there and not any(number in everywhere for number in _NUMBER.findall(name)) for name in wanted
    )


def _is_foreign(language: str, passages: Sequence[ContextPassage]) -> bool:
    """Tell whether question and best passage are in different languages, both of them known."""
    if not passages or language == UNDETERMINED:
        return False
    told = passages[0].node.node.metadata.get("language")
    found = told if isinstance(told, str) and told else detect_language(passages[0].text[:_LANGUAGE_CHARS])
    return found not in (UNDETERMINED, language)


def _not_embedded(err: Exception) -> Degradation:
    reason = str(err) if isinstance(err, AgenticRetrieverError) else f"sentence vectors unusable: {err}"
    return Degradation(step="synthesis.embed", reason=reason, fallback="term overlap")


def _first_sentences(found: Sequence[Candidate]) -> list[Candidate]:
    return [c for c in found if c.passage.number == found[0].passage.number]


# --- the sentences among which the extractor chooses, with what stands around them ----------------------------------

_LEAD_CHARS: Final = 48
_BULLET: Final = re.compile(r"(?:[-*+•‣▪>]+\s+)+(?=\S)")
_ITEM: Final = re.compile(r"\s*(?:(?P<sign>[-*+•‣▪])|\(?(?:(?P<digit>\d{1,3})|(?P<letter>[^\W\d_]{1,4}))[.)])\s+\S")
_HEADING: Final = re.compile(r"#{1,6}\s")
_SECTION_LINE: Final = re.compile(r"(?:\d+\.)+\d*\s+\S.{0,78}")
_TABLE_RULE: Final = re.compile(r"[\s|:+=_*—–-]+")
_ENDS: Final = tuple(".!?:;。！？…។။।")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A sentence that may be quoted."""

    passage: ContextPassage
    position: int
    start: int
    end: int
    terms: frozenset[str]
    item: str
    lead: frozenset[str]  # Distinct terms of its first 48 characters or so, where a sentence says what it is about
    around: frozenset[str]
    width: int

    @property
    def text(self) -> str:
        """The sentence, verbatim."""
        return self.passage.text[self.start : self.end]

    @property
    def in_context(self) -> str:
        """The sentence below its title and section, as it is embedded: alone it seldom says what it is about."""
        return f"{self.passage.header}\n{self.text}" if self.passage.header else self.text


def _candidates(passages: Sequence[ContextPassage], tokenizer: Tokenizer) -> list[Candidate]:
    """List the sentences of some passages, without headings, heads and rules of tables, and repetitions."""
    found: list[Candidate] = []
    seen: set[str] = set()
    for passage in passages:
        everything = _read(passage, tokenizer)
        for candidate in [c for c, quotable in everything if quotable] or [c for c, _ in everything]:
            said = " ".join(candidate.text.split())
            if said not in seen:
                seen.add(said)
                found.append(candidate)
    return found


def _read(passage: ContextPassage, tokenizer: Tokenizer) -> list[tuple[Candidate, bool]]:
    """Walk through a passage, remembering heading and table head; tells which of its sentences can be quoted."""
    text = passage.text
    spans = segments(text)
    pieces = [text[start:end] for start, end in spans]
    title = frozenset(tokenizer.tokens(passage.header))
    heading: frozenset[str] = frozenset()
    table: frozenset[str] = frozenset()
    found: list[tuple[Candidate, bool]] = []
    for position, (piece, (begin, end)) in enumerate(zip(pieces, spans, strict=True)):
        bullet = _BULLET.match(piece)
        start = begin + (bullet.end() if bullet else 0)
        tokens = tokenizer.tokens(text[start:end])
        terms = frozenset(tokens)
        is_heading, is_head = _is_heading(piece), _is_table_head(pieces, position)
        table = table if piece.startswith("|") else frozenset()
        candidate = Candidate(
            passage=passage,
            position=position,
            start=start,
            end=end,
            terms=terms,
            lead=frozenset(tokens[: len(tokens) * _LEAD_CHARS // (end - start) + 1]),
            item=_item_kind(piece),
            around=title | heading | table,
            width=_width(text[start:end]),
        )
        found.append((candidate, not (is_heading or is_head or _TABLE_RULE.fullmatch(piece))))
        heading = terms if is_heading else heading
        table = terms if is_head else table
    return found


def _item_kind(piece: str) -> str:
    item = _ITEM.match(piece)
    return (item.lastgroup or "") if item else ""


def _is_heading(piece: str) -> bool:
    if _HEADING.match(piece):
        return True
    # "6.2.1. Presencia" is a heading, "1. The tyres shall be new." is not.
    return _SECTION_LINE.fullmatch(piece) is not None and not piece.endswith(_ENDS)


def _is_table_head(pieces: Sequence[str], position: int) -> bool:
    behind = pieces[position + 1] if position + 1 < len(pieces) else ""
    return pieces[position].startswith("|") and "-" in behind and _TABLE_RULE.fullmatch(behind) is not None


def _width(text: str) -> int:
    return len(text) + 2 * sum(unicodedata.east_asian_width(char) in "WF" for char in text)


# --- how well each sentence answers a question, by what can be seen in its words ------------------------------------

_MIN_WIDTH: Final = 12
_LONG_WIDTH: Final = 300
# What makes a sentence worth quoting, in units of "has every term of the question".
_BY_AROUND: Final = 0.4
_BY_BESIDE: Final = 0.1
_BY_RANK: Final = 0.12
_BY_KIND: Final = 0.3
_BY_SUBJECT: Final = 0.12
_BY_LEAD: Final = 0.03
_BY_POOR_PASSAGE: Final = 0.5
_BY_WRONG_CODE: Final = 0.35
_BY_PART: Final = 0.5


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of all candidates."""

    whole: Scores  # For the question as a whole, (n,), at least 0
    parts: Scores  # For each of its parts, (parts, n)
    fits: Scores  # How far each has the kind of answer that is asked for, (n,) in [0, 1]


def _scored(found: Sequence[Candidate], question: Question, weights: Mapping[str, float]) -> Scored:
    """Score sentences."""
    fits = np.array([satisfaction(question.kinds, c.text, question.text) for c in found], dtype=float)
    factors = _passage_factors(found, weights)
    beside = _beside(found, frozenset(weights))
    whole = np.array(
        [_lexical(c, weights, fits[i], beside[i]) * factors[c.passage.number] for i, c in enumerate(found)],
        dtype=float,
    )
    return Scored(whole, _part_scores(found, question, weights), fits)


def _passage_terms(found: Sequence[Candidate]) -> dict[int, frozenset[str]]:
    """Collect the terms of each passage, with its title and headings, by its number."""
    terms: dict[int, set[str]] = {}
    for c in found:
        terms.setdefault(c.passage.number, set()).update(c.terms, c.around)
    return {number: frozenset(own) for number, own in terms.items()}


def _passage_factors(found: Sequence[Candidate], weights: Mapping[str, float]) -> dict[int, float]:
    """Tell how far each passage is about the question: many records differ only in a name or a number."""
    terms = _passage_terms(found)
    covered = {number: coverage(weights, own) for number, own in terms.items()}
    best = max(covered.values(), default=0.0) or 1.0
    codes = {term for term in weights if _is_code(term)}
    # Several records may be asked about at once, and each stands in a passage of its own.
    known = codes & frozenset().union(*terms.values()) if terms else frozenset()
    most = max((len(codes & own) for own in terms.values()), default=0)
    return {
        number: (_BY_POOR_PASSAGE + (1 - _BY_POOR_PASSAGE) * covered[number] / best)
        * (1.0 if not known or len(codes & own) == most or _has_rare(codes & own, terms) else _BY_WRONG_CODE)
        for number, own in terms.items()
    }


def _is_code(term: str) -> bool:
    """Tell whether a term has a digit and three characters or more: shorter numbers tell no record from another."""
    return len(term) >= 3 and any(char.isdecimal() for char in term)


def _has_rare(codes: frozenset[str] | set[str], terms: Mapping[int, frozenset[str]]) -> bool:
    """Tell whether a passage has a code that hardly any other has."""
    return any(
        len(code) >= 4 and sum(code in own for own in terms.values()) <= max(2, len(terms) // 4) for code in codes
    )


def _lexical(c: Candidate, weights: Mapping[str, float], fit: float, beside: frozenset[str]) -> float:
    own = coverage(weights, c.terms)
    score = own + _BY_AROUND * coverage(weights, c.around - c.terms) + _BY_RANK / c.passage.number
    score += _BY_BESIDE * coverage(weights, beside - c.terms - c.around)
    score += _BY_SUBJECT * coverage(weights, c.lead) + _BY_KIND * fit + (_BY_LEAD if c.position == 0 else 0.0)
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


def _part_scores(found: Sequence[Candidate], question: Question, weights: Mapping[str, float]) -> Scores:
    rows = []
    for part in question.parts:
        own = {term: weights[term] for term in part.terms if term in weights}
        rows.append(
            [
                coverage(own, c.terms)
                + _BY_AROUND * coverage(own, c.around - c.terms)
                + _BY_KIND * satisfaction(part.kinds, c.text, question.text)
                for c in found
            ]
        )
    return np.array(rows, dtype=float).reshape(len(question.parts), len(found))


# --- the cosine of the likeliest sentences with the question, mixed into their scores -------------------------------

_EMBEDDED: Final = 12  # most sentences of one answer that are embedded
_NEAR: Final = 0.5  # share of the cosine in a mixed score
_FIRST_LOOKED_AT: Final = 5


def _rescored(
    found: Sequence[Candidate],
    scores: Scores,
    embed: Embed,
    query_vector: Sequence[float] | NDArray[Any],
    *,
    blind: bool,
) -> Scores:
    """Mix the scores of the best sentences with their cosine to the question; all others keep the share of words."""
    best = _worth_embedding(found, scores, blind=blind)
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
    mixed = np.zeros(len(found)) if blind else (1 - _NEAR) * scores / top
    mixed[best] += _NEAR * near
    return mixed


def _worth_embedding(found: Sequence[Candidate], scores: Scores, *, blind: bool) -> list[int]:
    # A paraphrase shares no words with the question, so the sentences that come first are looked at in any case.
    first = list(range(min(len(found), _EMBEDDED if blind else _FIRST_LOOKED_AT)))
    by_score = [int(i) for i in np.argsort(-scores, kind="stable")]
    return list(dict.fromkeys([*by_score[: _EMBEDDED - len(first)], *first, *by_score]))[:_EMBEDDED]


# --- the choice: the best sentences that do not repeat each other, for all that was asked ---------------------------

_MAX_LIST_CHARS: Final = 800
_MAX_LEANT_ON: Final = 300
_CLAUSE_SCRIPTS: Final = frozenset({Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR})
_ENOUGH: Final = 0.5
_LISTED: Final = 0.6
_IDENTITY: Final = 1.5
_NUMBER_IN_NAME: Final = 3.0
_DIVERSITY: Final = 0.3
_CLAUSE_WIDTH: Final = 140  # least width of a stretch in scripts that do not mark where a sentence ends, in characters


def _chosen(
    found: Sequence[Candidate], scored: Scored, weights: Mapping[str, float], *, most: int, least: float
) -> list[Candidate]:
    """Choose sentences for a question that asks for facts.

    The choice is by maximal marginal relevance (J. Carbonell and J. Goldstein, "The Use of MMR, Diversity-Based
    Reranking for Reordering Documents and Producing Summaries", SIGIR 1998). Of a question in several parts, each part
    gets its best sentence first. The neighbour of a chosen sentence gains by the question's terms that it adds: "A
    reserve exists. Only the CFO can release it."
    """
    chosen = _diverse(found, scored.whole, weights, _for_parts(scored, most), most=most, least=least)
    return [found[i] for i in sorted(_completed(found, scored.whole, chosen))]


def _chosen_listed(
    found: Sequence[Candidate], scores: Scores, weights: Mapping[str, float], *, most: int
) -> list[Candidate]:
    """Choose one sentence of each document that matches as well as the best one: the one that says which it is."""
    covered = _covered_documents(found, weights)
    best = max(covered.values(), default=0.0)
    names = _distinguishing(found)
    kept = [doc for doc, share in covered.items() if share >= _LISTED * best][:most]
    top = float(scores.max()) or 1.0
    picked = []
    for doc in kept:
        own = [i for i, c in enumerate(found) if c.passage.doc_id == doc]
        picked.append(max(own, key=lambda i: scores[i] / top + _IDENTITY * _share(names[doc], found[i].terms)))
    return [found[i] for i in sorted(picked)]


def _chosen_overview(found: Sequence[Candidate], scores: Scores, *, most: int) -> list[Candidate]:
    """Choose the sentences that say most of what the passages say, of the document that they come from most."""
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
        best = max(own, key=lambda i: value[i] - 0.7 * max((_overlap(found[i], found[j]) for j in chosen), default=0.0))
        chosen.append(best)
        own.remove(best)
    return [found[i] for i in sorted(chosen)]


def _covered_documents(found: Sequence[Candidate], weights: Mapping[str, float]) -> dict[str, float]:
    """Tell which share of the question's terms each document has, in order of rank."""
    terms: dict[str, set[str]] = {}
    for c in found:
        terms.setdefault(c.passage.doc_id, set()).update(c.terms, c.around)
    return {doc: coverage(weights, own) for doc, own in terms.items()}


def _overlap(one: Candidate, other: Candidate) -> float:
    """Share of the shorter sentence's terms that both have."""
    smaller = min(len(one.terms), len(other.terms))
    return len(one.terms & other.terms) / smaller if smaller else 0.0


def _for_parts(scored: Scored, most: int) -> list[int]:
    top = float(scored.whole.max()) or 1.0
    chosen: list[int] = []
    for row in scored.parts:
        if len(chosen) >= most:
            break
        mixed = row + scored.whole / top
        best = int(np.argmax(mixed))
        if best not in chosen and row[best] >= _ENOUGH * max(1e-9, float(row.max())) and scored.whole[best] > 0.4 * top:
            chosen.append(best)
    return chosen


def _diverse(
    found: Sequence[Candidate],
    scores: Scores,
    weights: Mapping[str, float],
    given: Sequence[int],
    *,
    most: int,
    least: float,
) -> list[int]:
    """Add sentences greedily: one loses by what it has in common with those chosen before."""
    least *= float(scores.max())
    chosen = list(given)
    left = [int(i) for i in np.argsort(-scores, kind="stable") if int(i) not in chosen]
    said = frozenset().union(*(found[i].terms for i in chosen))
    missing = {term: weight for term, weight in weights.items() if term not in said}
    total = sum(weights.values()) or 1.0
    while left and len(chosen) < most:
        gains = [
            scores[i]
            - _DIVERSITY * max((_overlap(found[i], found[j]) for j in chosen), default=0.0)
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


def _completed(found: Sequence[Candidate], scores: Scores, chosen: Sequence[int]) -> set[int]:
    picked = set(chosen)
    for i in chosen:
        picked.update(_items_of(found, i))
        if leans(found[i].text) and _adjoins(found, i - 1, i) and found[i - 1].width <= _MAX_LEANT_ON:
            picked.add(i - 1)
        if _is_clause(found[i]):
            picked.update(_widened(found, scores, i))
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


def _widened(found: Sequence[Candidate], scores: Scores, i: int) -> list[int]:
    """Take in neighbours until a stretch is as wide as a sentence: where one ends is a guess in these scripts."""
    first = last = i
    room = _CLAUSE_WIDTH - found[i].width
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
    inside = i >= 0 and j < len(found)
    return inside and found[i].passage is found[j].passage and found[j].position == found[i].position + 1


def _opens(found: Sequence[Candidate], i: int) -> bool:
    return not _adjoins(found, i - 1, i)


def _distinguishing(found: Sequence[Candidate]) -> dict[str, frozenset[str]]:
    """The terms of each document's titles that few other documents have there."""
    titles: dict[str, frozenset[str]] = {}
    for c in found:
        titles[c.passage.doc_id] = titles.get(c.passage.doc_id, frozenset()) | c.around
    counts = Counter(term for terms in titles.values() for term in terms)
    return {doc: frozenset(t for t in terms if counts[t] <= max(1, len(titles) // 3)) for doc, terms in titles.items()}


def _share(wanted: frozenset[str], terms: frozenset[str]) -> float:
    """Which share of a name is among some terms; its numbers count three times."""
    heavy = {term: _NUMBER_IN_NAME if any(char.isdecimal() for char in term) else 1.0 for term in wanted}
    return coverage(heavy, terms)


def _centrality(terms: Sequence[frozenset[str]]) -> list[float]:
    """How much each sentence has in common with all, by the commonness of its terms, in [0, 1]."""
    counts = Counter(term for own in terms for term in own)
    raw = [sum(counts[t] - 1 for t in own) / (len(own) + 4) if own else 0.0 for own in terms]
    top = max(raw, default=0.0) or 1.0
    return [value / top for value in raw]


# --- from chosen sentences to the text of an answer and its citations -----------------------------------------------

_MARKER: Final = re.compile(r"\[([0-9]{1,9})\]")
_BRACKETS: Final = re.compile(r"[\[\]【】［］〔〕]")


def _quoted(picked: Sequence[Candidate], index_of: Callable[[str], str]) -> tuple[str, tuple[Citation, ...]]:
    """Write sentences in reading order, each with the number of the stretch of source that it stands in.

    Neighbouring sentences of one node share a number, whose quote is all of them as they stand in the source.
    """
    stretches: list[list[Candidate]] = []
    for c in _in_reading_order(picked):
        last = stretches[-1][-1] if stretches else None
        if last is not None and last.passage.number == c.passage.number and last.position + 1 == c.position:
            stretches[-1].append(c)
        else:
            stretches.append([c])
    citations = tuple(
        stretch[0].passage.cite(
            stretch[0].start, stretch[-1].end, 1.0, number=number, index=index_of(stretch[0].passage.node_id)
        )
        for number, stretch in enumerate(stretches, start=1)
    )
    text = ""
    before = ""
    for number, stretch in enumerate(stretches, start=1):
        for line in map(shown, (c.text for c in stretch)):
            # A table row reads better on a line of its own.
            gap = "\n" if line.startswith("|") or before.startswith("|") else " "
            text += f"{gap if text else ''}{line} [{number}]"
            before = line
    return text, citations


def quoted_checks(text: str, citations: Sequence[Citation]) -> tuple[SentenceCheck, ...]:
    """Check the text of an extractive answer: each sentence must stand in the quote behind its number."""
    quotes = {citation.number: _bare(citation.quote) for citation in citations}
    found: list[SentenceCheck] = []
    at = 0
    for marker in _MARKER.finditer(text):
        piece = text[at : marker.start()]
        start = at + len(piece) - len(piece.lstrip())
        sentence = text[start : marker.start()].rstrip()
        number = int(marker[1])
        verbatim = _bare(sentence) in quotes.get(number, "")
        found.append(
            SentenceCheck(
                start=start,
                end=start + len(sentence),
                text=sentence,
                supported=verbatim,
                score=1.0 if verbatim else 0.0,
                citations=(number,),
                problems=() if verbatim else ("not verbatim in its quote",),
            )
        )
        at = marker.end()
    return tuple(found)


def _bare(text: str) -> str:
    """Letters and digits alone: white space and brackets are shown otherwise than they stand in a source."""
    return "".join(char for char in text if char.isalnum())


def shown(sentence: str) -> str:
    """Show a sentence of a source in an answer: on one line, and without anything that reads as our marker."""
    line = " ".join(sentence.split())
    while MARKER.search(line):
        line = MARKER.sub(lambda found: f"({_BRACKETS.sub('', found[0])})", line)
    return line


def _in_reading_order(picked: Sequence[Candidate]) -> list[Candidate]:
    """Documents by the best rank among the chosen sentences, sentences by their place in the document."""
    rank: dict[str, int] = {}
    for c in picked:
        rank[c.passage.doc_id] = min(rank.get(c.passage.doc_id, c.passage.number), c.passage.number)
    return sorted(
        picked, key=lambda c: (rank[c.passage.doc_id], c.passage.offset + c.start, c.passage.number, c.position)
    )

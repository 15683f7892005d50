"""An answer without a model: the sentences that say most about the question, verbatim and cited."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.schema import Citation, Complexity, Degradation, SentenceCheck
from agentic_retriever.synthesis.citations import MARKER, segments
from agentic_retriever.synthesis.context import NO_INDEXES, ContextPassage
from agentic_retriever.text import Tokenizer
from agentic_retriever.text.language_files import any_listed, listed, section
from agentic_retriever.text.numbers import numbers_in
from agentic_retriever.text.scripts import Script, dominant_script
from agentic_retriever.text.tokens import without_asking

# --- a question as it is matched against text: its terms and how much each tells, and the kind of answer it asks for --
#
# The section ``answers`` of each language says what a question asks for and what shows that a sentence has it: ``asks``
# and ``shows`` hold regular expressions by kind, ``joints`` those between the parts of a question, ``leans`` those with
# which a sentence begins that leans on the one before it. All languages are tried on every text.

Weights = Mapping[str, float]

LISTING: Final = "listing"
OVERVIEW: Final = "overview"
NUMERIC: Final = frozenset({"number", "amount", "date", "duration", "percent", "time"})
_NAMED: Final = frozenset({"person", "place"})
_ANY_NUMBER: Final = 0.6
_NUMBER_WORD: Final = 0.5
_FLOOR: Final = 0.5
_MAX_PARTED: Final = 1_000
_MAX_PARTS: Final = 6
_ENUMERATION: Final = re.compile(r"^\s*(?:[-*•]\s*)?\(?(?:\d{1,3}[.)]|(?:\d+\.)+\d+)\s+")
_EMPHASIS: Final = re.compile(r"[*_`]+")
_JOINTS: Final = any_listed("answers", "joints")
# What a sentence begins with that points back, such as "This" or "Dicho".
_LEANS: Final = re.compile(rf"\W*(?:{'|'.join(listed('answers', 'leans'))})", re.IGNORECASE)


@cache
def _patterns(key: str) -> Mapping[str, re.Pattern[str]]:
    """One pattern a kind of answer, of all languages; a name is known by its capital."""
    by_kind: dict[str, list[str]] = {}
    for table in section("answers").values():
        for kind, patterns in table[key].items():
            by_kind.setdefault(kind, []).extend(patterns)
    return {
        kind: re.compile("|".join(patterns), 0 if key == "shows" and kind in _NAMED else re.IGNORECASE)
        for kind, patterns in sorted(by_kind.items())
    }


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    terms: tuple[str, ...]
    kinds: frozenset[str]
    parts: tuple[Question, ...] = ()  # What it asks one after the other; () when that is one thing

    @classmethod
    def of(cls, query: str, tokenizer: Tokenizer) -> Question:
        return cls(query, _terms_of(query, tokenizer), _asked_kinds(query), _parts_of(query, tokenizer))

    def weights(self, texts: Sequence[Collection[str]]) -> dict[str, float]:
        """Weigh the terms by inverse document frequency; one that is everywhere brought the texts, and counts half."""
        size = len(texts)
        rarest = math.log(size + 1) or 1.0
        found = _without_parts({term: sum(term in text for text in texts) for term in self.terms})
        return {
            term: _FLOOR + (1 - _FLOOR) * (math.log((size + 1) / (count + 1)) / rarest if size else 1.0)
            for term, count in found.items()
        }


def coverage(weights: Weights, terms: Collection[str]) -> float:
    total = sum(weights.values())
    return min(1.0, sum(weight for term, weight in weights.items() if term in terms) / total) if total else 0.0


def satisfaction(kinds: Collection[str], text: str, query: str) -> float:
    body = _EMPHASIS.sub("", _ENUMERATION.sub("", text))
    return max((_has(kind, body, query) for kind in kinds if kind in _patterns("shows")), default=0.0)


def _has(kind: str, body: str, query: str) -> float:
    shown = _patterns("shows")[kind]
    if kind in NUMERIC:
        if numbers_in(body) - numbers_in(query):
            return 1.0 if kind == "number" or shown.search(body) else _ANY_NUMBER
        return _NUMBER_WORD if shown.search(body) or _patterns("shows")["number"].search(body) else 0.0
    if kind in _NAMED:
        asked = query.casefold()
        return 1.0 if any(match[0].casefold() not in asked for match in shown.finditer(body)) else 0.0
    return 1.0 if shown.search(body) else 0.0


def _asked_kinds(query: str) -> frozenset[str]:
    return frozenset(kind for kind, pattern in _patterns("asks").items() if pattern.search(query))


def _terms_of(query: str, tokenizer: Tokenizer) -> tuple[str, ...]:
    terms = tokenizer.query_tokens(without_asking(query)) or tokenizer.query_tokens(query)
    return tuple(dict.fromkeys(terms))


def _parts_of(query: str, tokenizer: Tokenizer) -> tuple[Question, ...]:
    """Find the parts that say something of their own, each with its own terms only."""
    parts: list[Question] = []
    seen: set[str] = set()
    for text in _JOINTS.split(query[:_MAX_PARTED]):
        terms = tuple(term for term in _terms_of(text, tokenizer) if term not in seen) if text and text.strip() else ()
        seen.update(terms)
        if terms:
            parts.append(Question(text, terms, _asked_kinds(text)))
    return tuple(parts) if 1 < len(parts) <= _MAX_PARTS else ()


def _without_parts(found: Mapping[str, int]) -> dict[str, int]:
    """Count a code such as ``fy2024`` once: as a whole where it occurs so, else by its parts."""
    kept = dict(found)
    for whole in found:
        parts = [term for term in found if term != whole and term in whole]
        if parts and _has_digit(whole):
            for term in parts if found[whole] else [whole]:
                kept.pop(term, None)
    return kept


def _has_digit(term: str) -> bool:
    return any(map(str.isdecimal, term))


# --- the extractor --------------------------------------------------------------------------------------------------

Scores = NDArray[np.float64]
Embed = Callable[..., NDArray[Any]]  # of a list of sentences, and with timeout_s where time is limited
QueryVector = Sequence[float] | NDArray[Any]
K = TypeVar("K", bound=Hashable)

_LEAST_OF_BEST: Final = {Complexity.SIMPLE: 0.65, Complexity.COMPLEX: 0.45}
_NEAR_SLACK: Final = 0.1  # scores that are mixed with spread cosines fall off faster
_BLIND_SENTENCES: Final = 2
_BLIND_SUPPORT: Final = 0.2
# Documents that have nearly all that the best one has of the question are listed if there are so many.
_MANY_DOCUMENTS: Final = 3
_AS_GOOD: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    text: str
    citations: tuple[Citation, ...]
    support: float
    degraded: tuple[Degradation, ...] = ()


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
        query_vector: QueryVector | None = None,
        index_of: Mapping[str, str] = NO_INDEXES,
        timeout_s: float | None = None,
    ) -> Extraction:
        """Choose sentences, by their words alone when embedding them takes longer than ``timeout_s``."""
        tokenizer = Tokenizer(language)
        question = Question.of(query, tokenizer)
        found = _candidates(passages, tokenizer)
        weights = question.weights([c.terms for c in found])
        by_words = _word_scores(found, question, weights)
        blind = not any(c.terms & weights.keys() for c in found)
        scores, degraded = self._by_vectors(found, by_words, query_vector, timeout_s, blind=blind)
        blind = blind and scores is by_words
        if blind:
            first = (c for c in found if c.passage.number == found[0].passage.number)
            picked = list(islice(first, min(self.max_sentences, _BLIND_SENTENCES)))
        else:
            least = _LEAST_OF_BEST[complexity] - (_NEAR_SLACK if scores is not by_words else 0.0)
            picked = self._choose(found, scores, by_words, question, weights, least)
        text, citations = _quoted(picked, index_of)
        return Extraction(
            text=text,
            citations=citations,
            support=_BLIND_SUPPORT if blind else 1.0,
            degraded=degraded,
        )

    def _choose(
        self, found: Found, scores: Scores, by_words: Scores, question: Question, weights: Weights, least: float
    ) -> list[Candidate]:
        most = self.max_sentences
        chosen: Collection[int]
        if OVERVIEW in question.kinds:
            chosen = _for_overview(found, scores, most=most)
        elif _lists_documents(found, question, weights):
            chosen = _of_each_document(found, by_words, weights, most=2 * most)
        else:
            given = _for_parts(found, scores, question, weights, most)
            chosen = _completed(found, scores, _diverse(found, scores, weights, given, most=most, least=least))
        return [found[i] for i in sorted(chosen)]

    def _by_vectors(
        self, found: Found, scores: Scores, query_vector: QueryVector | None, timeout_s: float | None, *, blind: bool
    ) -> tuple[Scores, tuple[Degradation, ...]]:
        """Rescore by cosine if that can be done; the scores as they are otherwise."""
        if self._embed is None or query_vector is None or not found:
            return scores, ()
        try:
            embed = self._embed if timeout_s is None else partial(self._embed, timeout_s=timeout_s)
            return _rescored(found, scores, embed, query_vector, blind=blind), ()
        except (AgenticRetrieverError, ValueError, TypeError) as err:
            reason = str(err) if isinstance(err, AgenticRetrieverError) else f"sentence vectors unusable: {err}"
            return scores, (Degradation(step="synthesis.embed", reason=reason, fallback="term overlap"),)


def _lists_documents(found: Found, question: Question, weights: Weights) -> bool:
    """Tell whether a question asks for all the documents that match, and several match alike."""
    if question.kinds and LISTING not in question.kinds:
        return False
    covered = _covered_documents(found, weights)
    best = max(covered.values(), default=0.0)
    alike = sum(share >= _AS_GOOD * best for share in covered.values())
    return best > 0 and alike >= (_MANY_DOCUMENTS if LISTING not in question.kinds else _MANY_DOCUMENTS - 1)


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
        return self.passage.text[self.start : self.end]

    @property
    def doc(self) -> str:
        return self.passage.doc_id

    @property
    def in_context(self) -> str:
        """The sentence below its title and section, as it is embedded: alone it seldom says what it is about."""
        return f"{self.passage.header}\n{self.text}" if self.passage.header else self.text


Found = Sequence[Candidate]


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
        # "6.2.1. Presencia" is a heading, "1. The tyres shall be new." is not.
        is_heading = bool(_HEADING.match(piece) or (_SECTION_LINE.fullmatch(piece) and not piece.endswith(_ENDS)))
        behind = pieces[position + 1] if position + 1 < len(pieces) else ""
        is_head = piece.startswith("|") and "-" in behind and _TABLE_RULE.fullmatch(behind) is not None
        table = table if piece.startswith("|") else frozenset()
        candidate = Candidate(
            passage=passage,
            position=position,
            start=start,
            end=end,
            terms=terms,
            lead=frozenset(tokens[: len(tokens) * _LEAD_CHARS // (end - start) + 1]),
            item=(item.lastgroup or "") if (item := _ITEM.match(piece)) else "",
            around=title | heading | table,
            width=end - start + 2 * sum(unicodedata.east_asian_width(char) in "WF" for char in text[start:end]),
        )
        found.append((candidate, not (is_heading or is_head or _TABLE_RULE.fullmatch(piece))))
        heading = terms if is_heading else heading
        table = terms if is_head else table
    return found


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


def _word_scores(found: Found, question: Question, weights: Weights) -> Scores:
    """Score sentences for the question as a whole; ``(n,)``, at least 0."""
    factors = _passage_factors(found, weights)
    beside = _beside(found, frozenset(weights))
    fits = [satisfaction(question.kinds, c.text, question.text) for c in found]
    scores = [_lexical(c, weights, fits[i], beside[i]) * factors[c.passage.number] for i, c in enumerate(found)]
    return np.array(scores, dtype=float)


def _grouped(found: Found, key: Callable[[Candidate], K]) -> dict[K, set[str]]:
    """The terms of each passage or document, with its title and headings, in order of rank."""
    terms: dict[K, set[str]] = {}
    for c in found:
        terms.setdefault(key(c), set()).update(c.terms, c.around)
    return terms


def _passage_factors(found: Found, weights: Weights) -> dict[int, float]:
    """Tell how far each passage is about the question: many records differ only in a name or a number."""
    terms = _grouped(found, lambda c: c.passage.number)
    covered = {number: coverage(weights, own) for number, own in terms.items()}
    best = max(covered.values(), default=0.0) or 1.0
    # Shorter numbers tell no record from another.
    codes = {term for term in weights if len(term) >= 3 and _has_digit(term)}
    # Several records may be asked about at once, and each stands in a passage of its own.
    has = {number: codes & own for number, own in terms.items()}
    most = max(map(len, has.values()), default=0)
    counts = Counter(code for own in has.values() for code in own)
    # A code that hardly any other passage has tells one record from the others.
    rare = {code for code, count in counts.items() if len(code) >= 4 and count <= max(2, len(terms) // 4)}
    return {
        number: (_BY_POOR_PASSAGE + (1 - _BY_POOR_PASSAGE) * share / best)
        * (1.0 if len(has[number]) == most or rare & has[number] else _BY_WRONG_CODE)
        for number, share in covered.items()
    }


def _lexical(c: Candidate, weights: Weights, fit: float, beside: frozenset[str]) -> float:
    own = coverage(weights, c.terms)
    score = _in_words(c, weights) + _BY_RANK / c.passage.number
    score += _BY_BESIDE * coverage(weights, beside - c.terms - c.around)
    score += _BY_SUBJECT * coverage(weights, c.lead) + _BY_KIND * fit + (_BY_LEAD if c.position == 0 else 0.0)
    if c.width < _MIN_WIDTH and own < 0.5 and fit < 0.5:
        score *= 0.3
    return score / (1 + max(0, c.width - _LONG_WIDTH) / (4 * _LONG_WIDTH))


def _in_words(c: Candidate, weights: Weights) -> float:
    return coverage(weights, c.terms) + _BY_AROUND * coverage(weights, c.around - c.terms)


def _beside(found: Found, wanted: frozenset[str]) -> list[frozenset[str]]:
    """The question's terms in the sentences before and behind, within the passage."""
    around: list[frozenset[str]] = []
    for i, c in enumerate(found):
        beside = (j for j in (i - 1, i + 1) if 0 <= j < len(found) and found[j].passage is c.passage)
        around.append(wanted.intersection(frozenset().union(*(found[j].terms for j in beside))))
    return around


# --- the cosine of the likeliest sentences with the question, mixed into their scores -------------------------------

_EMBEDDED: Final = 12  # most sentences of one answer that are embedded
_NEAR: Final = 0.5  # share of the cosine in a mixed score
_FIRST_LOOKED_AT: Final = 5


def _rescored(found: Found, scores: Scores, embed: Embed, query_vector: QueryVector, *, blind: bool) -> Scores:
    """Mix the scores of the best sentences with their cosine to the question; all others keep the share of words."""
    # A paraphrase shares no words with the question, so the sentences that come first are looked at in any case.
    first = list(range(min(len(found), _EMBEDDED if blind else _FIRST_LOOKED_AT)))
    by_score = [int(i) for i in np.argsort(-scores, kind="stable")]
    best = list(dict.fromkeys([*by_score[: _EMBEDDED - len(first)], *first, *by_score]))[:_EMBEDDED]
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


def _of_each_document(found: Found, scores: Scores, weights: Weights, *, most: int) -> list[int]:
    """Choose one sentence of each document that matches as well as the best one: the one that says which it is."""
    covered = _covered_documents(found, weights)
    best = max(covered.values(), default=0.0)
    names = _distinguishing(found)
    top = float(scores.max()) or 1.0
    picked = []
    for doc in [doc for doc, share in covered.items() if share >= _LISTED * best][:most]:
        own = [i for i, c in enumerate(found) if c.doc == doc]
        picked.append(max(own, key=lambda i: scores[i] / top + _IDENTITY * coverage(names[doc], found[i].terms)))
    return picked


def _for_overview(found: Found, scores: Scores, *, most: int) -> list[int]:
    """Choose the sentences that say most of what the passages say, of the document that they come from most."""
    documents: dict[str, float] = {}
    for number, doc in {c.passage.number: c.doc for c in found}.items():
        documents[doc] = documents.get(doc, 0.0) + 1 / number
    main = max(documents, key=lambda doc: documents[doc])
    of_main = [i for i, c in enumerate(found) if c.doc == main]
    own = [i for i in of_main if not found[i].text.startswith("|")] or of_main
    top = max(float(scores[own].max()), 1e-9)
    # How much each has in common with all, by the commonness of its terms, in [0, 1].
    counts = Counter(term for i in own for term in found[i].terms)
    shared = [sum(counts[t] - 1 for t in found[i].terms) / (len(found[i].terms) + 4) for i in own]
    most_shared = max(shared, default=0.0) or 1.0
    opens = [0.0 if _adjoins(found, i - 1) else 0.4 for i in own]
    value = {i: shared[at] / most_shared + 0.5 * scores[i] / top + opens[at] for at, i in enumerate(own)}
    chosen: list[int] = []
    while own and len(chosen) < most:
        best = max(own, key=lambda i: value[i] - 0.7 * _repeated(found, i, chosen))
        chosen.append(best)
        own.remove(best)
    return chosen


def _covered_documents(found: Found, weights: Weights) -> dict[str, float]:
    return {doc: coverage(weights, own) for doc, own in _grouped(found, lambda c: c.doc).items()}


def _repeated(found: Found, i: int, chosen: Sequence[int]) -> float:
    """The largest share that a sentence and a chosen one have in common of the terms of the shorter one."""
    own, others = found[i].terms, [found[j].terms for j in chosen]
    return max((len(own & other) / min(len(own), len(other)) for other in others if own and other), default=0.0)


def _for_parts(found: Found, scores: Scores, question: Question, weights: Weights, most: int) -> list[int]:
    top = float(scores.max()) or 1.0
    chosen: list[int] = []
    for part in question.parts:
        own = {term: weights[term] for term in part.terms if term in weights}
        row = np.array([_in_words(c, own) + _BY_KIND * satisfaction(part.kinds, c.text, question.text) for c in found])
        best = int(np.argmax(row + scores / top))
        enough = row[best] >= _ENOUGH * max(1e-9, float(row.max())) and scores[best] > 0.4 * top
        if best not in chosen and enough and len(chosen) < most:
            chosen.append(best)
    return chosen


def _diverse(
    found: Found, scores: Scores, weights: Weights, given: Sequence[int], *, most: int, least: float
) -> list[int]:
    """Add sentences greedily: one loses by what it has in common with those chosen before.

    This is maximal marginal relevance (J. Carbonell and J. Goldstein, "The Use of MMR, Diversity-Based Reranking for
    Reordering Documents and Producing Summaries", SIGIR 1998). The neighbour of a chosen sentence gains by the
    question's terms that it adds: "A reserve exists. Only the CFO can release it."
    """
    least *= float(scores.max())
    chosen = list(given)
    left = [int(i) for i in np.argsort(-scores, kind="stable") if int(i) not in chosen]
    said = frozenset().union(*(found[i].terms for i in chosen))
    missing = {term: weight for term, weight in weights.items() if term not in said}
    total = sum(weights.values()) or 1.0
    while left and len(chosen) < most:
        gains = [
            scores[i]
            - _DIVERSITY * _repeated(found, i, chosen)
            + (sum(missing.get(term, 0.0) for term in found[i].terms) / total if _is_near(i, chosen, found) else 0.0)
            for i in left
        ]
        at = int(np.argmax(gains))
        if gains[at] < least and chosen:
            break
        chosen.append(left.pop(at))
        missing = {term: weight for term, weight in missing.items() if term not in found[chosen[-1]].terms}
    return chosen


def _is_near(i: int, chosen: Sequence[int], found: Found) -> bool:
    return (i - 1 in chosen and _adjoins(found, i - 1)) or (i + 1 in chosen and _adjoins(found, i))


def _completed(found: Found, scores: Scores, chosen: Sequence[int]) -> set[int]:
    picked = set(chosen)
    for i in chosen:
        picked.update(_items_of(found, i))
        if _LEANS.match(found[i].text) and _adjoins(found, i - 1) and found[i - 1].width <= _MAX_LEANT_ON:
            picked.add(i - 1)
        clause = not found[i].item and not found[i].text.startswith("|")
        if clause and dominant_script(found[i].text) in _CLAUSE_SCRIPTS:
            picked.update(_widened(found, scores, i))
    return picked


def _items_of(found: Found, i: int) -> list[int]:
    """The items of a list that a sentence announces: "Excluded are:" says nothing alone."""
    if not found[i].text.endswith((":", "：")):
        return []
    items = []
    room = _MAX_LIST_CHARS
    for j in range(i + 1, len(found)):
        room -= found[j].end - found[j].start
        if not _adjoins(found, j - 1) or not found[j].item or found[j].item == found[i].item or room < 0:
            break
        items.append(j)
    return items


def _widened(found: Found, scores: Scores, i: int) -> list[int]:
    """Take in neighbours until a stretch is as wide as a sentence: where one ends is a guess in these scripts."""
    first = last = i
    room = _CLAUSE_WIDTH - found[i].width
    while room > 0:
        sides = [j for j, at in ((first - 1, first - 1), (last + 1, last)) if _adjoins(found, at)]
        if not sides:
            break
        best = max(sides, key=lambda j: scores[j])
        room -= found[best].width
        first, last = min(first, best), max(last, best)
    return list(range(first, last + 1))


def _adjoins(found: Found, i: int) -> bool:
    """Tell whether the next candidate follows at once in the same passage."""
    inside = 0 <= i < len(found) - 1
    return inside and found[i].passage is found[i + 1].passage and found[i + 1].position == found[i].position + 1


def _distinguishing(found: Found) -> dict[str, dict[str, float]]:
    """The terms of each document's titles that few other documents have there; numbers count three times."""
    titles: dict[str, frozenset[str]] = {}
    for c in found:
        titles[c.doc] = titles.get(c.doc, frozenset()) | c.around
    counts = Counter(term for terms in titles.values() for term in terms)
    few = {term for term, count in counts.items() if count <= max(1, len(titles) // 3)}
    return {
        doc: {term: _NUMBER_IN_NAME if _has_digit(term) else 1.0 for term in terms & few}
        for doc, terms in titles.items()
    }


# --- from chosen sentences to the text of an answer and its citations -----------------------------------------------

_MARKER: Final = re.compile(r"\[([0-9]{1,9})\]")
_BRACKETS: Final = re.compile(r"[\[\]【】［］〔〕]")


def _quoted(picked: Found, index_of: Mapping[str, str]) -> tuple[str, tuple[Citation, ...]]:
    """Write sentences in reading order; neighbours of one node share a number, whose quote is all of them."""
    stretches: list[list[Candidate]] = []
    # Documents by the best rank among the chosen sentences, sentences by their place in the document.
    rank = {c.doc: c.passage.number for c in sorted(picked, key=lambda c: -c.passage.number)}
    ordered = sorted(picked, key=lambda c: (rank[c.doc], c.passage.offset + c.start, c.passage.number, c.position))
    for c in ordered:
        last = stretches[-1][-1] if stretches else None
        if last is not None and last.passage.number == c.passage.number and last.position + 1 == c.position:
            stretches[-1].append(c)
        else:
            stretches.append([c])
    citations: list[Citation] = []
    text = before = ""
    for number, stretch in enumerate(stretches, start=1):
        passage, start, end = stretch[0].passage, stretch[0].start, stretch[-1].end
        citations.append(passage.cite(start, end, 1.0, number=number, index=index_of.get(passage.node_id, "")))
        for line in map(shown, (c.text for c in stretch)):
            # A table row reads better on a line of its own.
            gap = "\n" if line.startswith("|") or before.startswith("|") else " "
            text += f"{gap if text else ''}{line} [{number}]"
            before = line
    return text, tuple(citations)


def quoted_checks(text: str, citations: Sequence[Citation]) -> tuple[SentenceCheck, ...]:
    """Check the text of an extractive answer: each sentence must stand in the quote behind its number."""
    quotes = {citation.number: _bare(citation.quote) for citation in citations}
    found: list[SentenceCheck] = []
    at = 0
    for marker in _MARKER.finditer(text):
        piece = text[at : marker.start()]
        start, sentence = at + len(piece) - len(piece.lstrip()), piece.strip()
        number = int(marker[1])
        verbatim = _bare(sentence) in quotes.get(number, "")
        check = SentenceCheck(start=start, end=start + len(sentence), text=sentence, supported=True, score=1.0)
        if not verbatim:
            check = replace(check, supported=False, score=0.0, problems=("not verbatim in its quote",))
        found.append(replace(check, citations=(number,)))
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

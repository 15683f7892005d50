"""An answer without a model: the sentences that say most about the question, verbatim and cited."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.schema import Complexity, Degradation, frozen
from agentic_retriever.synthesis.candidates import candidates
from agentic_retriever.synthesis.choosing import (
    ChoiceRules,
    choose,
    choose_listed,
    choose_overview,
    covered_documents,
)
from agentic_retriever.synthesis.confidence import AnswerFeatures
from agentic_retriever.synthesis.cues import LISTING, OVERVIEW, satisfaction
from agentic_retriever.synthesis.quotes import quoted
from agentic_retriever.synthesis.scoring import Scored, ScoringWeights, passage_terms, score
from agentic_retriever.synthesis.sentence_vectors import rescored
from agentic_retriever.synthesis.terms import Question, coverage
from agentic_retriever.text import UNDETERMINED, Tokenizer, detect_language
from agentic_retriever.text.identifiers import identifiers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from agentic_retriever.schema import Citation
    from agentic_retriever.synthesis.candidates import Candidate
    from agentic_retriever.synthesis.context import ContextPassage
    from agentic_retriever.synthesis.scoring import Scores
    from agentic_retriever.synthesis.sentence_vectors import Embed

_LEAST_OF_BEST = {Complexity.SIMPLE: 0.65, Complexity.COMPLEX: 0.45}
# Scores that are mixed with spread cosines fall off faster.
_NEAR_SLACK = 0.1
_BLIND_SENTENCES = 2
_BLIND_SUPPORT = 0.2
# Documents that have nearly all that the best one has of the question are listed if there are so many.
_MANY_DOCUMENTS = 3
_AS_GOOD = 0.9
_LANGUAGE_CHARS = 600
_QUERY_CHARS = 1_000
# The number of a numbered thing, or one that is long enough to stand alone.
_NUMBER = re.compile(r"(?<= )\d[\d.]*$|(?<!\d)\d{4,}(?!\d)")


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
        fit: How far the quoted sentences have the kind of answer that was asked for, such as a date, in [0, 1];
            ``None`` when no such kind was asked for.
        margin: How far the best sentence is ahead of the average one, as a share of its score, in [0, 1].
        absent: Weighted share of the question's terms that are in no passage, in [0, 1].
        missing_code: Whether a code or number of the question is in no passage.
        foreign: Whether the question is in another language than the best passage.
    """

    text: str
    citations: tuple[Citation, ...]
    coverage: float
    reachable: float
    support: float
    weights: Mapping[str, float]
    degraded: tuple[Degradation, ...] = ()
    fit: float | None = None
    margin: float = 0.0
    absent: float = 0.0
    missing_code: bool = False
    foreign: bool = False

    def features(self, *, relevance: float | None = None, unknown_share: float | None = None) -> AnswerFeatures:
        """Return what the confidence in the answer rests on.

        Args:
            relevance: How near the dense retriever found the question to the nodes, in [0, 1], or ``None``.
            unknown_share: Share of the question's terms that occur nowhere in the index, or ``None``.
        """
        return AnswerFeatures(
            coverage=self.coverage,
            relevance=relevance,
            reachable=self.reachable,
            absent=self.absent,
            missing_code=float(self.missing_code),
            unknown_share=unknown_share,
            fit=self.fit,
            margin=self.margin,
            foreign=self.foreign,
        )


class ExtractiveSynthesizer:
    """Chooses sentences by weighted term overlap, kind of answer, rank and surroundings, without repetition.

    Reading order is: documents by their best rank, sentences of a document by their place in it.

    Args:
        max_sentences: Most sentences in an answer, at least 1; the items of a list that is announced, the sentence that
            a quoted one leans on and clauses of scripts without full stops come on top, and a list of documents may
            have twice as many.
        embed: Embeds texts as rows of an ``(n, dim)`` array, to rescore the best 12 sentences by cosine when the
            question's vector is given, too.
        weights: What counts how much in a score.
    """

    def __init__(
        self, max_sentences: int = 4, embed: Embed | None = None, *, weights: ScoringWeights | None = None
    ) -> None:
        self.max_sentences = max(1, max_sentences)
        self._embed = embed
        self._by = weights or ScoringWeights()

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
        scored = score(found, question, weights, self._by)
        blind = not any(c.terms & weights.keys() for c in found)
        before = scored
        scored, blind, degraded = self._by_vectors(found, scored, query_vector, blind=blind)
        if blind:
            picked = _first_sentences(found)[: min(self.max_sentences, _BLIND_SENTENCES)]
        else:
            least = _LEAST_OF_BEST[complexity] - (_NEAR_SLACK if scored is not before else 0.0)
            picked = self._choose(found, scored, before.whole, question, weights, least)
        text, citations = quoted(picked, index_of)
        everywhere = frozenset().union(*(c.terms | c.around for c in found))
        return Extraction(
            text=text,
            citations=citations,
            coverage=coverage(weights, frozenset().union(*(c.terms | c.around for c in picked))),
            reachable=max((coverage(weights, terms) for terms in passage_terms(found).values()), default=0.0),
            support=_BLIND_SUPPORT if blind else 1.0,
            weights=frozen(weights),
            degraded=degraded,
            fit=_fit(question, picked),
            margin=_margin(before),
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
            return choose_overview(found, scored.whole, most=self.max_sentences)
        if _lists_documents(found, question, weights):
            return choose_listed(found, by_words, weights, most=2 * self.max_sentences)
        return choose(found, scored, weights, ChoiceRules(most=self.max_sentences, least=least))

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
            whole = rescored(found, scored.whole, self._embed, query_vector, blind=blind)
        except (AgenticRetrieverError, ValueError, TypeError) as err:
            return scored, blind, (_not_embedded(err),)
        return replace(scored, whole=whole), False, ()


def _lists_documents(found: Sequence[Candidate], question: Question, weights: Mapping[str, float]) -> bool:
    """Tell whether a question asks for all the documents that match, and several match alike."""
    if question.kinds - {LISTING} and LISTING not in question.kinds:
        return False
    covered = covered_documents(found, weights)
    best = max(covered.values(), default=0.0)
    alike = sum(share >= _AS_GOOD * best for share in covered.values())
    return best > 0 and alike >= (_MANY_DOCUMENTS if LISTING not in question.kinds else _MANY_DOCUMENTS - 1)


def _fit(question: Question, picked: Sequence[Candidate]) -> float | None:
    kinds = question.kinds - {LISTING, OVERVIEW}
    if not kinds:
        return None
    return max((satisfaction(kinds, c.text, question.text) for c in picked), default=0.0)


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


def _margin(scored: Scored) -> float:
    top = float(scored.whole.max()) if scored.whole.size else 0.0
    return (top - float(scored.whole.mean())) / top if top > 0 else 0.0


def _not_embedded(err: Exception) -> Degradation:
    reason = str(err) if isinstance(err, AgenticRetrieverError) else f"sentence vectors unusable: {err}"
    return Degradation(step="synthesis.embed", reason=reason, fallback="term overlap")


def _first_sentences(found: Sequence[Candidate]) -> list[Candidate]:
    return [c for c in found if c.passage.number == found[0].passage.number]

"""An answer without a model: the sentences that say most about the question, verbatim and cited."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice, takewhile
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.schema import Citation, Complexity, Degradation
from agentic_retriever.synthesis import questions
from agentic_retriever.synthesis.citations import bare, has_antonym, segments, shown
from agentic_retriever.synthesis.context import NO_INDEXES, ContextPassage
from agentic_retriever.synthesis.questions import DEFAULT, NUMERIC, Question, Weights, coverage, patterns_of
from agentic_retriever.text import Tokenizer
from agentic_retriever.text.language_files import listed
from agentic_retriever.text.references import without_titles
from agentic_retriever.text.scripts import Script, dominant_script

Scores = NDArray[np.float64]
Embed = Callable[..., NDArray[Any]]  # of a list of sentences, and with timeout_s where time is limited
QueryVector = Sequence[float] | NDArray[Any]
Span = tuple[int, int]
K = TypeVar("K", bound=Hashable)

_LOGGED: Final = frozenset({"date", "version"})  # what a heading of a change log has for all that stands below it
_EXACT: Final = frozenset({"date", "price"})  # kinds that any other figure does not show
_LEAST_OF_BEST: Final = {Complexity.SIMPLE: 0.5, Complexity.COMPLEX: 0.3}
_NEAR_SLACK: Final = 0.05  # scores that are mixed with spread cosines fall off faster
_BLIND_SENTENCES: Final = 2
_BLIND_SUPPORT: Final = 0.2
_FIGURELESS_SUPPORT: Final = 0.8
# Documents that have nearly all that the best one has of the question are listed if there are so many.
_MANY_DOCUMENTS: Final = 3
_AS_GOOD: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    text: str
    citations: tuple[Citation, ...]
    support: float
    ranking: tuple[int, ...] = ()  # Numbers of the passages, the one that answers best first
    degraded: tuple[Degradation, ...] = ()


class ExtractiveSynthesizer:
    """Chooses sentences by words, kind of answer, cosine, passage and surroundings, without repetition."""

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
        found = [_without_thousands(c, question.terms) for c in _candidates(passages, tokenizer)]
        weights = question.weights([c.terms for c in found])
        by_words, by_heading = _word_scores(found, question, weights)
        cosines, degraded = self._cosines(found, by_words + by_heading, query_vector, timeout_s)
        shares = any(c.terms & weights.keys() for c in found)
        said, whole = _weighed(found, by_words if shares or not cosines else 0 * by_words, by_heading, cosines, weights)
        for i, subject in _subjects_of_defaults(found, question).items() if DEFAULT in question.kinds else ():
            said[i], whole[i] = said[subject].max() + _OF_SUBJECT, whole[subject].max() + _OF_SUBJECT
        blind = not cosines and not shares
        if blind:
            first = (c for c in found if c.passage.number == found[0].passage.number)
            picked, worth = list(islice(first, min(self.max_sentences, _BLIND_SENTENCES))), None
        else:
            least = _LEAST_OF_BEST[complexity] - (_NEAR_SLACK if cosines else 0.0)
            picked, worth = self._choose(found, said, whole, by_words, question, weights, least)
        text, citations = _quoted([_below_heading(c, question) for c in picked], worth, index_of)
        figures, enough = question.kinds & NUMERIC, 1.0 if question.kinds & _EXACT else questions.NUMBER_WORD
        figureless = figures and all(question.satisfaction(citation.quote, figures) < enough for citation in citations)
        return Extraction(
            text=text,
            citations=citations,
            support=_BLIND_SUPPORT if blind else _FIGURELESS_SUPPORT if figureless else 1.0,
            ranking=tuple(dict.fromkeys(found[int(i)].passage.number for i in np.argsort(-whole, kind="stable"))),
            degraded=degraded,
        )

    def _choose(
        self,
        found: Found,
        said: Scores,
        whole: Scores,
        by_words: Scores,
        question: Question,
        weights: Weights,
        least: float,
    ) -> tuple[list[Candidate], list[float] | None]:
        """Choose sentences, and what each is worth; None where they are to stay in the order of the documents."""
        most = self.max_sentences
        chosen: Collection[int]
        in_order = questions.OVERVIEW in question.kinds or _lists_documents(found, question, weights)
        if questions.OVERVIEW in question.kinds:
            chosen = _for_overview(found, whole, most=most)
        elif in_order:
            chosen = _of_each_document(found, by_words, weights, most=2 * most)
        else:
            given = _for_parts(found, whole, question, weights, most)
            picked = _diverse(found, said, whole, weights, given, most=most, least=least)
            chosen = _completed(found, whole, picked, question, weights)
        quoted = [found[i] for i in sorted(chosen)]
        return quoted, None if in_order else [float(whole[i]) for i in sorted(chosen)]

    def _cosines(
        self, found: Found, scores: Scores, query_vector: QueryVector | None, timeout_s: float | None
    ) -> tuple[dict[int, float], tuple[Degradation, ...]]:
        """The cosines with the question of the sentences that are looked at; none if that cannot be done."""
        if self._embed is None or query_vector is None or not found:
            return {}, ()
        try:
            embed = self._embed if timeout_s is None else partial(self._embed, timeout_s=timeout_s)
            return _cosines(found, scores, embed, query_vector), ()
        except (AgenticRetrieverError, ValueError, TypeError) as err:
            reason = str(err) if isinstance(err, AgenticRetrieverError) else f"sentence vectors unusable: {err}"
            return {}, (Degradation(step="synthesis.embed", reason=reason, fallback="term overlap"),)


def _below_heading(c: Candidate, question: Question) -> Candidate:
    """Show the heading with a sentence where what is asked for, a figure or what the sentence describes, is there."""
    figures, above = question.kinds & NUMERIC, c.above[-1:]
    lacking = {kind for kind in figures if question.satisfaction(c.text, _LOGGED & {kind} or figures) < 1}
    lacking |= question.kinds & {DEFAULT} if not patterns_of("shows")[DEFAULT].search(c.text) else frozenset()
    names = not figures and patterns_of("asks")[questions.WHICH].search(question.text) is not None
    opens = [at for at in above if at[1] - at[0] <= _MAX_DEFINED and not c.passage.text[at[1] : c.start].strip()]
    heads = _heading_with(lacking, c, question) or (opens if names else ())
    return replace(c, head=heads[0]) if heads and not (c.head and c.text.startswith("|")) else c


def _heading_with(kinds: AbstractSet[str], c: Candidate, question: Question) -> Sequence[tuple[int, int]]:
    """The nearest heading that has what is asked for; of a figure, the one just above."""
    figures, default = kinds - {DEFAULT}, patterns_of("shows")[DEFAULT]
    for at in reversed(c.above if kinds & _LOGGED else c.above[-1:]):
        head = c.passage.text[slice(*at)]
        # A heading that begins with "Default" is about defaults, and says none.
        if (DEFAULT in kinds and default.search(head, 1)) or question.satisfaction(head, figures) >= 1:
            return [at]
    return []


def _lists_documents(found: Found, question: Question, weights: Weights) -> bool:
    """Tell whether a question asks for all the documents that match, and several match alike."""
    if questions.LISTING not in question.kinds and (question.kinds or question.text.rstrip().endswith(_ASKS)):
        return False
    covered = _covered_documents(found, weights)
    best = max(covered.values(), default=0.0)
    alike = sum(share >= _AS_GOOD * best for share in covered.values())
    return best > 0 and alike >= (_MANY_DOCUMENTS if questions.LISTING not in question.kinds else _MANY_DOCUMENTS - 1)


# --- the sentences among which the extractor chooses, with what stands around them ----------------------------------

_BULLET: Final = re.compile(r"(?:[-*+•‣▪>]+\s+)+(?=\S)")
_ITEM: Final = re.compile(r"\s*(?:(?P<sign>[-*+•‣▪])|\(?(?:(?P<digit>\d{1,3})|(?P<letter>[^\W\d_]{1,4}))[.)])\s+\S")
_HEADING: Final = re.compile(r"#{1,6}\s")
_MARKS: Final = re.compile(rf"^#*\s*(?:(?:\d+\.)*\d+\.?{questions.UNDATED}(?=\S))?")
_BEFORE_HEADING: Final = " \t*_#>.0123456789"  # what may stand on its line before a question that is a heading
_OF_FAQ: Final = re.compile(r"\W*[QF]\d*:\s")  # "Q: I want to ...", "F: Ich möchte ..."
_SECTION_LINE: Final = re.compile(r"(?:\d+\.)+\d*\s+\S.{0,78}")
_ASKS: Final = ("?", "？", "؟")
_GAP: Final = re.compile(r"[ \t]*(?:\n[ \t]*){2,}(?=[^\W_]|\()")
# What stands before an option of a command, in quotes or not, or before a term above its definition.
_OPTION: Final = re.compile(r"(?:[-*+•#]+\s+)?(?=\W{0,2}-{1,2}\w)|#{6}\s+")
_MAX_ANNOUNCED: Final = 120  # characters of what announces a list and is shown with its items
_MAX_ASKED: Final = 250  # characters of a paragraph that is a question
_MAX_DEFINED: Final = 40  # characters of what stands alone above what says what it is
_DEFINED: Final = 30  # deeper than any other heading
_TABLE_RULE: Final = re.compile(r"[\s|:+=_*—–-]+")
_FENCE: Final = re.compile(r"(?:`{3,}|~{3,})\w*")
# What a sentence begins with that points back, such as "This" or "Dicho".
_LEANS: Final = re.compile(rf"\W*(?:{'|'.join(listed('answers', 'leans'))})", re.IGNORECASE)
_ENDS: Final = tuple(".!?:;。！？…។။।")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    passage: ContextPassage
    position: int
    start: int
    end: int
    terms: frozenset[str]
    item: str
    heading: str  # The nearest one above it
    section: int  # How many headings stand before it in the passage
    head: Span | None  # Where the head of its table stands, or the option or term that it is about
    above: tuple[Span, ...]  # Where the headings stand that it is below, the nearest last
    around: frozenset[str]
    width: int

    @property
    def text(self) -> str:
        return self.passage.text[self.start : self.end]

    @property
    def doc(self) -> str:
        return self.passage.doc_id

    @property
    def place(self) -> Place:
        return self.passage.number, self.section

    @property
    def in_context(self) -> str:
        """The sentence below its title and section, as it is embedded: alone it seldom says what it is about."""
        header = self.passage.header_at(self.start)
        return without_titles(f"{header}\n{self.text}" if header else self.text)


Found = Sequence[Candidate]
Place = tuple[int, int]  # The number of a passage, and of a section in it


def _candidates(passages: Sequence[ContextPassage], tokenizer: Tokenizer) -> list[Candidate]:
    """List the sentences of some passages, without headings, heads and rules of tables, and repetitions."""
    found: list[Candidate] = []
    seen: set[str] = set()
    for passage in passages:
        everything = _Walk(passage, tokenizer).found
        for candidate in [c for c, quotable in everything if quotable] or [c for c, _ in everything]:
            said = " ".join(candidate.text.split())
            if said not in seen:
                seen.add(said)
                found.append(candidate)
    return found


class _Walk:
    """A walk through a passage that remembers what stands above: headings, the head of a table, what opens a list."""

    def __init__(self, passage: ContextPassage, tokenizer: Tokenizer) -> None:
        self.found: list[tuple[Candidate, bool]] = []  # the sentences, and which can be quoted
        self._passage = passage
        self._terms = cache(lambda text: frozenset(tokenizer.tokens(text)))
        self._headings: list[tuple[int, frozenset[str], Span]] = []  # level, terms and place
        self._heading, self._section = passage.section.rpartition(" > ")[2], 0
        self._table = self._terms(passage.table_header)
        self._head: Span | None = None
        self._defined: Span | None = None  # the option or term above
        self._announced: Span | None = None  # what ends with a colon above a list
        self._announcing = frozenset[str]()
        spans = [span for span in segments(passage.text) if not _FENCE.fullmatch(passage.text, *span)]
        for (begin, end), behind in zip(spans, [*(passage.text[slice(*span)] for span in spans[1:]), ""], strict=True):
            self._pass_by(begin, end, behind)

    def _pass_by(self, begin: int, end: int, behind: str) -> None:
        """Note one sentence, with what stands above it, and what it is to those below."""
        text = self._passage.text
        piece = text[begin:end]
        level = _heading_level(text, begin, end)
        is_head = piece.startswith("|") and "-" in behind and _TABLE_RULE.fullmatch(behind) is not None
        item = found_item.lastgroup or "" if (found_item := _ITEM.match(piece)) else ""
        if not item and text[:begin].endswith("\n\n"):
            self._announced = None
        if not piece.startswith("|"):
            listed = item and self._announced
            self._table, self._head = (self._announcing, self._announced) if listed else (frozenset(), self._defined)
        candidate = self._candidate(begin, end, item)
        says_little = is_head or _TABLE_RULE.fullmatch(piece) or piece.endswith(_ASKS)
        self.found.append((candidate, not (level or says_little or questions.LABEL.fullmatch(piece))))
        if level:
            self._section, self._heading = self._section + 1, piece
            above = [one for one in self._headings if one[0] < level]
            self._headings = [*above, (level, candidate.terms, (end - len(_MARKS.sub("", piece)), end))]
            self._defined = (begin + option.end(), end) if (option := _OPTION.match(piece)) else None
        if is_head:
            self._table, self._head = candidate.terms, (begin, end)
        plain = not (item or level or piece.startswith("|") or piece.endswith(_ENDS))
        opens = piece.endswith((":", "：")) or (plain and _ITEM.match(behind))
        if opens and candidate.end - candidate.start <= _MAX_ANNOUNCED:
            self._announced, self._announcing = (candidate.start, end), candidate.terms

    def _candidate(self, begin: int, end: int, item: str) -> Candidate:
        text = self._passage.text
        start = begin + (bullet.end() if (bullet := _BULLET.match(text[begin:end])) else 0)
        before, quotable = self.found[-1] if self.found else (None, False)
        leans = before and quotable and before.width <= _MAX_LEANT_ON and _LEANS.match(text[begin:end])
        leant = before.terms if leans and before and "\n\n" not in text[before.end : begin] else frozenset()
        headed = self._terms(self._passage.header_at(begin))
        return Candidate(
            passage=self._passage,
            position=len(self.found),
            start=start,
            end=end,
            terms=self._terms(without_titles(text[start:end])),
            item=item,
            heading=self._heading,
            section=self._section,
            head=self._head,
            above=tuple(place for _, _, place in self._headings),
            around=headed.union(self._table, leant, *(terms for _, terms, _ in self._headings)),
            width=end - start + 2 * sum(unicodedata.east_asian_width(char) in "WF" for char in text[start:end]),
        )


def _without_thousands(c: Candidate, terms: Sequence[str]) -> Candidate:
    """A sentence without numbers that it has only with their thousands apart, as "2,009", which is no year."""
    there = [term for term in terms if term in c.terms and term.isdecimal() and term not in c.text]
    apart = {term for term in there if re.search(rf"\b{term[:-3]}[.,]{term[-3:]}\b", c.text)}
    return replace(c, terms=c.terms - apart) if apart else c


def _is_defined(text: str, begin: int, end: int) -> bool:
    """Tell whether a few words are a paragraph of their own, which the next one is about."""
    piece, behind = text[begin:end].strip(), text[end:]
    alone = not text[:begin].rpartition("\n")[2].strip() and not behind.partition("\n")[0].strip()
    apart = (not text[:begin].strip() or text[:begin].rstrip(" \t").endswith("\n\n")) and _GAP.match(behind) is not None
    option = _OPTION.match(piece) is not None
    short = len(piece) <= (1 + option) * _MAX_DEFINED and not piece.endswith(_ENDS) and "|" not in piece
    announced = text[:begin].rstrip().endswith((":", "："))
    return short and alone and apart and not announced and (option or not (_ITEM.match(piece) or _BULLET.match(piece)))


def _heading_level(text: str, begin: int, end: int) -> int:
    """The depth of a heading, from 1, or 0 for other text; a question that begins a line heads its answer."""
    piece = text[begin:end]
    if marks := _HEADING.match(piece):
        return len(marks[0].rstrip())
    # "6.2.1. Presencia" is a heading, "1. The tyres shall be new." is not.
    if (number := _SECTION_LINE.fullmatch(piece)) and not piece.endswith(_ENDS):
        return 10 + number[0].split()[0].rstrip(".").count(".")
    starts_line = not text[:begin].rpartition("\n")[2].strip(_BEFORE_HEADING)
    if starts_line and (piece.rstrip("*_ ").endswith(_ASKS) or _OF_FAQ.match(piece)):
        return 20
    first, behind = text.rfind("\n\n", 0, begin) + 2, text.find("\n\n", end)
    paragraph = text[first:behind].strip("*_ \n") if first > 1 and behind > 0 else ""
    if len(paragraph) <= _MAX_ASKED and paragraph.endswith(_ASKS) and paragraph[0].isalnum():
        return 20 + (begin > first)  # a question that says before what it asks of
    return _DEFINED if _is_defined(text, begin, end) else 0


# --- how well each sentence answers a question, by what can be seen in its words ------------------------------------

_LONG_WIDTH: Final = 300
# What makes a sentence worth quoting, in units of "has every term of the question".
_NUMBER: Final = re.compile(r"(?<![\w.,])\d+(?![.,]?\w|\s?(?:[%°Ω]|[µnpmkMG]?(?:[AVWFmgslBΩ]|Hz)\b))")  # no measure
_NAMED_OPTION: Final = re.compile(r"(?<![\w-])-{1,2}[^\W\d_][\w-]*")
_BY_LOG: Final = 0.8
_BY_AROUND: Final = 0.6
_BY_KIND: Final = 0.3
_BELOW_ITS_KIND: Final = 1.0
_WITHOUT_FIGURE: Final = 0.5
_BY_WRONG_CODE: Final = 0.35
_BY_OPPOSITE: Final = 0.5  # of a figure for "off" where that for "on" is asked


def _word_scores(found: Found, question: Question, weights: Weights) -> tuple[Scores, Scores]:
    """Score sentences for the question as a whole, and for the heading above; ``(n,)`` each, at least 0."""
    fits = [question.satisfaction(c.text) for c in found]
    # A sentence without a figure is no answer to a question for one.
    wanted = question.kinds - {DEFAULT}
    lacking = _WITHOUT_FIGURE if wanted and wanted <= NUMERIC | {questions.FREQUENCY} else 1.0
    figures = [question.satisfaction(c.text, wanted) for c in found] if wanted < question.kinds else fits
    if logged := question.kinds & (_LOGGED | {DEFAULT}):
        headed = [_BY_LOG * len(_heading_with(logged, c, question)) for c in found]
        fits, figures = ([*map(max, values, headed)] for values in (fits, figures))
    own = _own_shares(found, weights)
    opposite = [lacking < 1 and has_antonym(question.text, c.text) for c in found]
    scores = [
        _lexical(c, weights, fit) * (1.0 if has else lacking) * (0.5 + 0.5 * share) * (_BY_OPPOSITE if turned else 1.0)
        for c, fit, has, share, turned in zip(found, fits, figures, own, opposite, strict=True)
    ]
    # Below a heading such as "Number", a number answers "how many", in a word as well as in figures.
    kinds = question.kinds - {"number", DEFAULT}  # a height stands below "Number" no more than elsewhere, a count does
    below = [_is_below(kinds, c, fit, question) for c, fit in zip(found, fits, strict=True)]
    first = {(c.passage.number, c.section): i for i, c in reversed(list(enumerate(found))) if below[i]}
    # Every lamp has its "Number": the one counts whose path names most of what was asked about.
    named = [coverage(weights, c.around) * here for c, here in zip(found, below, strict=True)]
    most = max(named, default=0.0) or 1.0
    of_first = [1.0 if i in first.values() else 0.5 for i in range(len(found))]
    worth = [_BELOW_ITS_KIND * share * (one / most) ** 2 for share, one in zip(of_first, named, strict=True)]
    keys = {*_NUMBER.findall(question.text), *_NAMED_OPTION.findall(question.text)}
    by_key = [_BY_KEY * (c.text[:1] == "|" and not keys.isdisjoint(_keys_of(c.text))) for c in found]
    return np.array(scores, dtype=float), np.array(worth, dtype=float) + by_key


def _keys_of(row: str) -> AbstractSet[str]:
    """The cells of a row, and the options that stand in one, as in "`-o`, `--only`"."""
    return {*map(str.strip, row.split("|")), *_NAMED_OPTION.findall(row)}


def _is_below(kinds: frozenset[str], c: Candidate, fit: float, question: Question) -> bool:
    """Tell whether a sentence has what its heading and the question are for; a page or a count is no duration."""
    kinds = kinds & questions.asked_kinds(c.heading)
    return bool(fit and kinds) and (kinds != {"duration"} or question.satisfaction(c.text, kinds) == 1.0)


def _own_shares(found: Found, weights: Weights) -> list[float]:
    """How far what each row has of the question is its own, and not that of other rows of the table; 1 for others."""
    asked = [c.terms & weights.keys() if c.head and c.text.startswith("|") else frozenset[str]() for c in found]
    rows = Counter((c.passage.number, c.head, term) for c, had in zip(found, asked, strict=True) for term in had)
    shares = []
    for c, had in zip(found, asked, strict=True):
        own = sum(weights[term] / rows[c.passage.number, c.head, term] for term in had)
        shares.append(own / sum(weights[term] for term in had) if had else 1.0)
    return shares


def _grouped(found: Found, key: Callable[[Candidate], K]) -> dict[K, set[str]]:
    """The terms of each passage or document, with its title and headings, in order of rank."""
    terms: dict[K, set[str]] = {}
    for c in found:
        terms.setdefault(key(c), set()).update(c.terms, c.around)
    return terms


def _code_factors(found: Found, weights: Weights) -> dict[int, float]:
    """Tell which passages lack the code that was named: many records differ only in a name or a number."""
    terms = _grouped(found, lambda c: c.passage.number)
    # Shorter numbers tell no record from another.
    codes = {term for term in weights if any(map(str.isdecimal, term)) and len(bare(term)) >= 3}
    # Several records may be asked about at once, and each stands in a passage of its own.
    has = {number: codes & own for number, own in terms.items()}
    counts = Counter(code for own in has.values() for code in own)
    # A code that hardly any other passage has tells one record from the others.
    rare = {code for code, count in counts.items() if len(bare(code)) >= 4 and count <= max(2, len(terms) // 4)}
    # A document on "IL300" need not repeat that in each passage, unless one is on "IL301".
    about, docs = dict[str, set[str]](), {c.passage.number: c.doc for c in found}
    for c in found:
        about.setdefault(c.doc, set()).update(c.terms, c.around)
    named = {code: re.sub(r"\d+", "", code) for code in codes if not bare(code).isdecimal()}
    for number, own in terms.items():
        if not {re.sub(r"\d+", "", term) for term in own - codes if len(bare(term)) >= 3}.intersection(named.values()):
            has[number] = has[number] | named.keys() & about[docs[number]]
    most = max(map(len, has.values()), default=0)
    return {n: 1.0 if len(own) == most or rare & terms[n] else _BY_WRONG_CODE for n, own in has.items()}


def _lexical(c: Candidate, weights: Weights, fit: float) -> float:
    return (_in_words(c, weights) + _BY_KIND * fit) / (1 + max(0, c.width - _LONG_WIDTH) / (4 * _LONG_WIDTH))


def _in_words(c: Candidate, weights: Weights) -> float:
    return coverage(weights, c.terms) + _BY_AROUND * coverage(weights, c.around - c.terms)


# --- what the words say, with the cosines of the likeliest sentences and the passage that each stands in -------------
# The weights are fitted: softmax over the sentences of each question (half of the sample and of XQuAD in English and
# Spanish, all of a long FAQ document), by the likelihood of those that answer. Those of place and passage are chosen by
# how many answers cite the right place (FAQs in English, French, Italian and Dutch) or have it (XQuAD, the sample).

_EACH: Final = (12, 4, 3, 3)  # sentences of the first passages that are embedded: the first, and the best others
_EMBEDDED: Final = sum(_EACH)  # of one answer at most
_NEAR: Final = 0.47  # share of the cosine in the score of a sentence
_BY_PASSAGE: Final = 0.15
_BY_PLACE: Final = 0.8
_BY_ROW: Final = 0.3
_BY_KEY: Final = 0.5  # of a row that has a number of the question as a cell, or an option of it
_OF_SUBJECT: Final = 0.35  # what a default has before the sentence that says of what
_BARE: Final = 6  # terms of "Default: 4 times the hello interval." at most


def _weighed(
    found: Found, by_words: Scores, by_heading: Scores, cosines: Mapping[int, float], weights: Weights
) -> tuple[Scores, Scores]:
    """Score what each sentence says, and how well it answers all in all, with the passage that it stands in."""
    said = by_words / (by_words.max(initial=0.0) or 1.0) * ((1 - _NEAR) if cosines else 1.0) + by_heading
    of_passage: dict[int, list[float]] = {}
    for i, near in _spread(cosines).items():
        said[i] += _NEAR * near
        of_passage.setdefault(found[i].passage.number, []).append(cosines[i])
    about = _spread({number: sum(values) / len(values) for number, values in of_passage.items()})
    factors, own, standing = _code_factors(found, weights), _own_shares(found, weights), _standings(found)
    whole = [
        said[i]
        + _BY_PLACE * (1 / c.passage.number + standing[c.passage.number]) / 2
        + _BY_PASSAGE * about.get(c.passage.number, 0.0)
        # A row is short of words, which stand in its head.
        + (_BY_ROW * own[i] if c.text.startswith("|") and c.terms & weights.keys() else 0.0)
        for i, c in enumerate(found)
    ]
    return said, np.array([score * factors[c.passage.number] for score, c in zip(whole, found, strict=True)])


def _subjects_of_defaults(found: Found, question: Question) -> dict[int, slice]:
    """The sentences before each that only says what holds by default, back to the last such one: they say of what."""
    subjects, since, figures = dict[int, slice](), 0, question.kinds & NUMERIC
    for i, c in enumerate(found):
        since = since if _adjoins(found, i - 1) else i
        if patterns_of("shows")[DEFAULT].search(c.text):
            has = not figures or question.satisfaction(c.text, figures)
            if since < i and len(c.terms) <= _BARE and has:
                subjects[i] = slice(since, i)
            since = i + 1
    return subjects


def _spread(values: Mapping[int, float]) -> dict[int, float]:
    """Stretch the cosines of one model, which crowd together, over [0, 1]."""
    low, high = min(values.values(), default=0.0), max(values.values(), default=0.0)
    return {key: (value - low) / (high - low) if high > low else 1.0 for key, value in values.items()}


def _standings(found: Found) -> dict[int, float]:
    """Where each passage stands between the last and the first, by the scores that they were found with."""
    scores = {c.passage.number: c.passage.node.score or 0.0 for c in found}
    return _spread({number: score if math.isfinite(score) else 0.0 for number, score in scores.items()})


def _cosines(found: Found, scores: Scores, embed: Embed, query_vector: QueryVector) -> dict[int, float]:
    by_score = [int(i) for i in np.argsort(-scores, kind="stable")]
    best: list[int] = []
    # A paraphrase shares no words with the question, so what opens the first passages is looked at in any case.
    for number, most in zip(sorted({c.passage.number for c in found}), _EACH, strict=False):
        own = [i for i in by_score if found[i].passage.number == number]
        best += list(dict.fromkeys([min(own), *own]))[:most]
    best = list(dict.fromkeys([*best, *by_score]))[:_EMBEDDED]
    vectors = np.asarray(embed([found[i].in_context for i in best]), dtype=float)
    query = np.asarray(query_vector, dtype=float).ravel()
    if vectors.shape != (len(best), query.size) or not (np.isfinite(vectors).all() and np.isfinite(query).all()):
        raise ValueError(f"expected finite vectors of shape {(len(best), query.size)}, got shape {vectors.shape}")
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosines = vectors @ query / np.where(norms > 0, norms, 1.0)
    return {i: float(cosine) for i, cosine in zip(best, cosines, strict=True)}


# --- the choice: the best sentences that do not repeat each other, for all that was asked ---------------------------

_MAX_LIST_CHARS: Final = 800
_MAX_LEANT_ON: Final = 300
_MOST_LEANT_ON: Final = 2
_ENOUGH: Final = 0.5
_LISTED: Final = 0.6
_IDENTITY: Final = 1.5
_NUMBER_IN_NAME: Final = 3.0
_DIVERSITY: Final = 0.15
# What a sentence loses by each that is chosen of its passage: less in one that stands far above the second.
_SAME_PASSAGE: Final = 0.3
_LEAST_WHOLE: Final = 0.55
_MOST_OF_ALL: Final = 0.8  # of the question's words, by their weight
# How wide, in characters, a sentence becomes by its neighbours that does not say all, or whose end is a guess.
_CLAUSE_SCRIPTS: Final = frozenset({Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR})
_BEST_WIDTH: Final = 300
_LEAST_BESIDE: Final = 0.5  # of what it is worth that a neighbour must be worth
_WIDTH: Final = 150


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
    chosen = [int(np.argmax(scores))] if question.parts else []
    for part in question.parts:
        own = {term: weights[term] for term in part.terms if term in weights}
        row = np.array([_in_words(c, own) + _BY_KIND * question.satisfaction(c.text, part.kinds) for c in found])
        best = int(np.argmax(row + scores / top))
        enough = row[best] >= _ENOUGH * max(1e-9, float(row.max())) and scores[best] > 0.4 * top
        if best not in chosen and enough and len(chosen) < most:
            chosen.append(best)
    return chosen


def _diverse(
    found: Found, said: Scores, whole: Scores, weights: Weights, given: Sequence[int], *, most: int, least: float
) -> list[int]:
    """Add sentences by maximal marginal relevance; the neighbour of a chosen one gains by the terms that it adds."""
    chosen = list(given)
    left = [int(i) for i in np.argsort(-whole, kind="stable") if int(i) not in chosen]
    seen = frozenset().union(*(found[i].terms for i in chosen))
    missing = {term: weight for term, weight in weights.items() if term not in seen}
    total, standing = sum(weights.values()) or 1.0, _standings(found)
    second = [0.0, 0.0, *sorted(standing.values())][-2]
    same = {number: _SAME_PASSAGE * (second**2 if own == 1 else 1.0) for number, own in standing.items()}
    while left and len(chosen) < most:
        of = Counter(found[j].passage.number for j in chosen)
        gains = np.array(
            [
                (sum(missing.get(term, 0.0) for term in found[i].terms) / total if _is_near(i, chosen, found) else 0.0)
                - _DIVERSITY * _repeated(found, i, chosen)
                - same[number := found[i].passage.number] * of[number]
                for i in left
            ]
        )
        enough = (said[left] + gains >= least * said.max()) & (whole[left] + gains >= _LEAST_WHOLE * whole.max())
        if chosen and not enough.any():
            break
        at = int(np.argmax(np.where(enough, whole[left] + gains, -np.inf) if chosen else whole[left]))
        chosen.append(left.pop(at))
        missing = {term: weight for term, weight in missing.items() if term not in found[chosen[-1]].terms}
    return chosen


def _is_near(i: int, chosen: Sequence[int], found: Found) -> bool:
    return (i - 1 in chosen and _adjoins(found, i - 1)) or (i + 1 in chosen and _adjoins(found, i))


def _completed(found: Found, scores: Scores, chosen: Sequence[int], question: Question, weights: Weights) -> set[int]:
    picked, ranked = set(chosen), sorted(chosen, key=lambda i: -scores[i])
    steps = patterns_of("asks")[questions.PROCEDURE].search(question.text)
    if questions.POLAR in question.kinds:  # what begins with yes or no in the section of the best
        beside = [j for j, c in enumerate(found) if c.place == found[ranked[0]].place]
        picked.update([j for j in beside if patterns_of("shows")[questions.POLAR].search(found[j].text)][:1])
    picked.update(_answer_behind(found, ranked[0], question))
    for at, i in enumerate(ranked):
        items: Collection[int] = _items_of(found, i)
        if not items and found[i].item and (steps or questions.LISTING in question.kinds):
            items = _items_beside(found, i, whole=steps is not None)
        picked.update(items, _leant_on(found, i))
        if not items and not _says_all(found[i], question, weights):
            picked.update(_widened(found, scores, i, _WIDTH if at else _BEST_WIDTH, back=DEFAULT not in question.kinds))
    return picked


def _answer_behind(found: Found, i: int, question: Question) -> list[int]:
    """The sentence behind one that has not the kind of answer that is asked for, if it has that, or may be a reason."""
    if not _adjoins(found, i) or found[i + 1].place != found[i].place or found[i + 1].width > _MAX_LEANT_ON:
        return []
    here, behind = (question.satisfaction(found[j].text) for j in (i, i + 1))
    return [i + 1] if question.kinds and here < 1 and (behind >= 1 or questions.REASON in question.kinds) else []


def _says_all(c: Candidate, question: Question, weights: Weights) -> bool:
    """Tell whether a sentence has the kind of answer that is asked for, or nearly all words of the question."""
    if c.text.startswith("|"):
        return True
    shows, asks = question.satisfaction(c.text), question.kinds & patterns_of("shows").keys()
    more = shows > 0 or not (asks or c.terms <= weights.keys())  # than the question says
    says = shows >= 1 or (more and coverage(weights, c.terms) >= _MOST_OF_ALL)
    return says and dominant_script(c.text) not in _CLAUSE_SCRIPTS


def _items_of(found: Found, i: int) -> list[int]:
    """The items of a list that a sentence announces, or a short paragraph: "Excluded are:" says nothing alone."""
    if not found[i].text.endswith((":", "：")) or not _adjoins(found, i):
        return []
    items, listed = list[int](), bool(found[i + 1].item)
    room = _MAX_LIST_CHARS if listed else _MAX_LEANT_ON
    for j in takewhile(lambda j: _adjoins(found, j - 1), range(i + 1, len(found))):
        gap = found[j].passage.text[found[j - 1].end : found[j].start]
        goes_on = items and not found[j].item and ("\n" if listed else "\n\n") not in gap
        if not (listed and goes_on):  # of an item that goes on, what it begins with
            room -= found[j].end - found[j].start
            if room < 0 or (found[j].item in {"", found[i].item} if listed else items and not goes_on):
                break
            items.append(j)
    return items


def _leant_on(found: Found, i: int) -> list[int]:
    """What a sentence leans on that begins with "This" or "Leave it": the one or two before it."""
    before: list[int] = []
    while len(before) < _MOST_LEANT_ON and _LEANS.match(found[i].text) and _adjoins(found, i - 1):
        i -= 1
        if found[i].width > _MAX_LEANT_ON:
            break
        before.append(i)
    return before


def _items_beside(found: Found, i: int, *, whole: bool) -> Collection[int]:
    """The short list that an item is of, where something announces it; whole, or what its items begin with."""
    own = found[i].passage, found[i].head
    beside: Collection[int] = [j for j, c in enumerate(found) if (c.passage, c.head) == own and c.head and c.item]
    beside = range(min(beside), max(beside) + 1) if whole and beside else beside
    return beside if sum(found[j].width for j in beside) <= _MAX_LIST_CHARS else ()


def _widened(found: Found, scores: Scores, i: int, width: int, *, back: bool) -> list[int]:
    """Take in what stands around a sentence in its section, the better side first, up to a width in characters."""
    first = last = i
    room, alike = width - found[i].width, (found[i].place, found[i].item, False)
    while True:
        sides = [j for j, at in ((first - 1, first - 1), (last + 1, last)) if _adjoins(found, at) and (back or j > i)]
        sides = [j for j in sides if (found[j].place, found[j].item, found[j].text.startswith("|")) == alike]
        sides = [j for j in sides if found[j].width <= room and scores[j] >= _LEAST_BESIDE * scores[i]]
        if not sides:
            return list(range(first, last + 1))
        best = max(sides, key=lambda j: scores[j])
        room -= found[best].width
        first, last = min(first, best), max(last, best)


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
    few = [term for term, count in counts.items() if count <= max(1, len(titles) // 3)]
    worth = {term: _NUMBER_IN_NAME if any(map(str.isdecimal, term)) else 1.0 for term in few}
    return {doc: {term: worth[term] for term in terms & worth.keys()} for doc, terms in titles.items()}


# --- from chosen sentences to the text of an answer and its citations -----------------------------------------------


def _quoted(
    picked: Found, worth: Sequence[float] | None, index_of: Mapping[str, str]
) -> tuple[str, tuple[Citation, ...]]:
    """Write sentences, the best place first; neighbours of one place share a number, whose quote is all of them."""
    stretches = _stretches(picked)
    if worth:
        best: dict[object, float] = {}
        for c, value in zip(picked, worth, strict=True):
            at = next(i for i, one in enumerate(stretches) if c in one)
            for key in (c.place, at):
                best[key] = max(value, best.get(key, 0.0))
        order = sorted(
            range(len(stretches)), key=lambda i: (-best[stretches[i][0].place], stretches[i][0].place, -best[i])
        )
        stretches = [stretches[i] for i in order]
    # Heads of tables are cited behind all else, so that the first number is that of the best evidence.
    spans = [(stretch[0].passage, stretch[0].start, stretch[-1].end) for stretch in stretches]
    lines: list[tuple[str, int]] = []
    said = {shown(c.text) for c in picked}
    for number, stretch in enumerate(stretches, start=1):
        for c in stretch:
            head = c.passage.text[slice(*c.head)] if c.head else ""
            if c.head and shown(head) not in said:
                said.add(shown(head))
                spans.append((c.passage, *c.head))
                lines.append((head, len(spans)))
            lines.append((c.text, number))
    text = before = ""
    for line, number in ((shown(one), number) for one, number in lines):
        # A table row reads better on a line of its own.
        gap = "\n" if line.startswith("|") or before.startswith("|") else " "
        text += f"{gap if text else ''}{line} [{number}]"
        before = line
    return text, tuple(
        passage.cite(start, end, 1.0, number=number, index=index_of.get(passage.node_id, ""))
        for number, (passage, start, end) in enumerate(spans, start=1)
    )


def _stretches(picked: Found) -> list[list[Candidate]]:
    """Neighbours together: documents by the best rank among the sentences, sentences by their place in them."""
    found: list[list[Candidate]] = []
    rank = {c.doc: c.passage.number for c in sorted(picked, key=lambda c: -c.passage.number)}
    for c in sorted(picked, key=lambda c: (rank[c.doc], c.passage.offset + c.start, c.passage.number, c.position)):
        last = found[-1][-1] if found else None
        if last is not None and last.place == c.place and last.position + 1 == c.position:
            found[-1].append(c)
        else:
            found.append([c])
    return found

"""Where a passage says what a sentence of an answer says, to the character.

A verbatim sentence is found as it is, any other by the best fuzzy window (partial ratio of M. Bachmann's RapidFuzz) and
by shared terms. Either way the quote is whole sentences of the source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Final

from rapidfuzz import fuzz

from agentic_retriever.schema import Citation
from agentic_retriever.synthesis.segments import Facts, segments
from agentic_retriever.text.numbers import numbers_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentic_retriever.synthesis.context import ContextPassage
    from agentic_retriever.text import Tokenizer


# Whether two sentences say the opposite: one is negated where the other is not, or one has the other's antonym.
#
# Rules for English, Spanish and Thai, and the plain negations of a few languages more. A sentence is turned round by a
# negation or by an antonym; by both at once it says the same again ("not below 10" and "at least 10").

_SCOPE_WORDS: Final = 4
_SCOPE_CHARS: Final = 12
_IN_SCOPE: Final = 0.6
_BEFORE_CHARS: Final = 30
_AROUND_CHARS: Final = 50
_SHORT_CLAUSE: Final = 4
_MAX_CUES: Final = 12

_WORDS: Final = (
    r"\b(?:not|never|no|nor|neither|none|nobody|nothing|cannot|\w+n['’]t"
    r"|ni|nunca|jamás|ningun[oa]?s?|ningún|nadie|nada|tampoco"
    r"|nicht|kein\w*|nie|niemals|ne|pas|jamais|aucune?|non|mai|não|niet|geen)\b"
)
_THAI: Final = "ไม่(?!้)|มิ(?=ได้|ใช่|อาจ|ให้|ต้อง)|ห้าม|ไร้|ยังไม่"
_STRONG: Final = re.compile(f"{_WORDS}|{_THAI}|[不没沒未無无]", re.IGNORECASE)
# What excuses the lack of a negation, without asking for one.
_LEXICAL: Final = re.compile(
    r"\b(?:without|unless|except\w*|exclu\w+|prohibit\w*|forbid\w*|forbidden|ban(?:s|ned)?|refus\w*|den(?:y|ies|ied)"
    r"|lack\w*|exempt\w*|fail\w*|outside|un\w{4,}|in(?:valid|eligible|sufficient)\w*|only|instead|rather|remains?"
    r"|unchanged|stops?|few(?:er)?|hardly|reject\w*|lapse\w*|los[et]s?|free\b|zero|"
    r"sin|salvo|excepto|prohib\w+|prohíb\w+|exclu\w+|exent\w+|deneg\w*|denieg\w*|rechaz\w*|car[eé]c\w+|impid\w+"
    r"|impos\w+|falta\w*|únicamente|solo|sólo|desestim\w*|ausen\w+|tacit\w*|silencio)\b"
    "|เว้น|ปราศจาก|ยกเว้น|ยกเลิก|งด|ปลอด|ขาด|เฉพาะ|เท่านั้น|เพียง|หมด|สิ้น|ต้องห้าม",
    re.IGNORECASE,
)
# Negations that set a bound, and what says the same without one.
_BOUND: Final = re.compile(
    r"\b(?:not?|never) (?:more|less|fewer|later|earlier|longer|higher|lower|only|exceed\w*|above|below|under|over)\b"
    r"|\b(?:must|may|can|does|do|should) (?:not|never) (?:exceed|be (?:more|less|lower|higher|longer|above|below))\b"
    r"|\bcannot (?:exceed|be (?:more|less|lower|higher))\b"
    r"|\bno (?:más|menos|solo|sólo|supera\w*|supere\w*|excede\w*|exceda\w*|rebas\w+|pasa\w* de)\b"
    r"|\bno (?:es|sea) (?:super|infer)ior\b"
    r"|\bnot just\b|ไม่(?:เกิน|น้อยกว่า|ต่ำกว่า|มากกว่า|ถึง|เพียง|ครบ|ใช่เพียง)",
    re.IGNORECASE,
)
# What follows these is said of the rest.
_EXCEPT: Final = re.compile(r"\b(?:except|unless|only if|salvo|excepto|a menos que|sino)\b|เว้นแต่|ยกเว้น", re.IGNORECASE)
_LIMIT: Final = re.compile(
    r"\b(?:at (?:most|least)|up to|maximum|minimum|max|min|within|limit\w*|cap(?:ped|s)?|until|or (?:more|less|fewer)"
    r"|como (?:máximo|mínimo)|hasta|máxim[oa]s?|mínim[oa]s?|límite\w*|dentro|o (?:más|menos)|al menos|inferior|superior"
    r"|menor|mayor|less than|fewer than|under|below|above|over|exceed\w*|more than|from|least)\b"
    "|สูงสุด|อย่างมาก|อย่างน้อย|ภายใน|จนถึง|เพดาน|ขั้นต่ำ|ขึ้นไป|ต่ำกว่า|เกิน|มากกว่า|น้อยกว่า|จำกัด",
    re.IGNORECASE,
)
_PAIRS: Final = tuple(
    (re.compile(one, re.IGNORECASE), re.compile(other, re.IGNORECASE))
    for one, other in (
        (
            r"\b(?:rose|rises?|rising|risen|increas\w+|gr[eo]w\w*|climb\w+|went up|go(?:es)? up|higher|improv\w+)\b",
            (
                r"\b(?:fell|falls?|falling|fallen|decreas\w+|declin\w+|shr[aiu]nk\w*|drop\w*|went down|go(?:es)? down"
                r"|lower\w*)\b"
            ),
        ),
        (r"\b(?:above|over|more than|exceed\w*)\b", r"\b(?:below|under|less than|fewer than)\b"),
        (r"\b(?:minimum|at least|no less)\b", r"\b(?:maximum|at most|up to|no more)\b"),
        (r"\bbefore\b", r"\bafter\b"),
        (r"\b(?:required|mandatory|obligatory|compulsory|must|needs?|needed)\b", r"\b(?:optional|voluntary)\b"),
        (r"\b(?:allowed|permitted|accepted)\b", r"\b(?:prohibited|forbidden|banned|rejected|refused)\b"),
        (r"\b(?:con|incluye\w*)\b", r"\b(?:sin|excluye\w*)\b"),
        (r"\b(?:mínim[oa]s?|al menos)\b", r"\b(?:máxim[oa]s?|hasta|a lo sumo)\b"),
        (r"\b(?:superior\w*|mayor\w*|por encima|supera\w*)\b", r"\b(?:inferior\w*|menor\w*|por debajo)\b"),
        (r"\b(?:sub[ei]\w*|aument\w+|crec\w+)\b", r"\b(?:baj[aóe]\w*|disminu\w+|reduc\w+)\b"),
        (r"\bantes\b", r"\bdespués\b"),
        (r"\bobligatori\w+\b", r"\b(?:opcional\w*|voluntari\w+|facultativ\w+)\b"),
        (r"\b(?:admit\w+|permit\w+|autoriz\w+)\b", r"\b(?:prohíb\w+|prohib\w+|deneg\w+|denieg\w+)\b"),
        ("มากกว่า|สูงกว่า|เกิน", "น้อยกว่า|ต่ำกว่า"),
        ("อย่างน้อย|ขั้นต่ำ", "อย่างมาก|สูงสุด|ไม่เกิน"),
        ("เพิ่มขึ้น|สูงขึ้น", "ลดลง|ต่ำลง"),
        ("ก่อน", "หลัง(?!เขา|ว|เรือน|เล็ก|ๆ| )"),
    )
)


def opposed(sentence: str, source: str, words_of: Callable[[str], frozenset[str]]) -> bool:
    """Tell whether a sentence says the opposite of a source that speaks of the same."""
    if _antonym(sentence, source):
        return (_STRONG.search(sentence) is None) is (_STRONG.search(source) is None)
    return _lacks(sentence, source, words_of) or _lacks(source, sentence, words_of)


def negated_before(text: str, start: int) -> bool:
    """Tell whether a negation stands shortly before a place, in the same clause."""
    before = re.split(r"[.!?,;:\n|]", text[max(0, start - _BEFORE_CHARS) : start])[-1]
    return _STRONG.search(before) is not None


def _lacks(negated: str, other: str, words_of: Callable[[str], frozenset[str]]) -> bool:
    """Tell whether a text is negated where another one says the same without a negation.

    Each negation needs one in the other text: one with words of its scope, or else one that is left over nearby.
    """
    if _EXCEPT.search(negated):
        return False
    said = words_of(other)
    # What both have excuses nothing.
    bounded = _new(_LIMIT, other, negated)
    partners = [(cue, _scope(other, cue, words_of)) for cue in islice(_STRONG.finditer(other), _MAX_CUES)]
    alone: list[frozenset[str]] = []
    for cue in islice(_STRONG.finditer(negated), _MAX_CUES):
        scope = _scope(negated, cue, words_of)
        partner = next((pair for pair in partners if scope & pair[1]), None)
        if partner is not None:
            partners.remove(partner)
        elif not (bounded and _BOUND.search(negated, max(0, cue.start() - 12), cue.end() + 24)):
            alone.append(_demanded(negated, cue, scope, said, words_of))
    excuses = [cue.span() for cue, _ in partners] + _new(_LEXICAL, other, negated)
    around = [words_of(other[max(0, start - _AROUND_CHARS) : end + _AROUND_CHARS]) for start, end in excuses]
    return any(scope and not any(2 * len(scope & words) >= len(scope & said) for words in around) for scope in alone)


def _demanded(
    text: str,
    cue: re.Match[str],
    scope: frozenset[str],
    said: frozenset[str],
    words_of: Callable[[str], frozenset[str]],
) -> frozenset[str]:
    """The terms that a negation is about if another text speaks of them, or else nothing."""
    if scope and len(scope & said) >= _IN_SCOPE * len(scope):
        return scope
    clause = words_of(re.split(r"[,;:.()]", text[: cue.start()])[-1]) | scope
    short = 2 <= len(clause) <= _SHORT_CLAUSE and len(clause & said) >= _IN_SCOPE * len(clause)
    return clause if short else frozenset()


def _new(pattern: re.Pattern[str], text: str, other: str) -> list[tuple[int, int]]:
    """Where a pattern matches in a text with words that it does not match in another one."""
    old = {found[0].casefold() for found in pattern.finditer(other)}
    spans = (found.span() for found in pattern.finditer(text) if found[0].casefold() not in old)
    return list(islice(spans, _MAX_CUES))


def _scope(text: str, cue: re.Match[str], words_of: Callable[[str], frozenset[str]]) -> frozenset[str]:
    """The terms behind a negation, up to a comma, or those before it at the end of a clause."""
    if cue[0][0] >= "\u0e00":
        return words_of(text[cue.end() : cue.end() + _SCOPE_CHARS])
    behind = re.split(r"[,;:.()]", text[cue.end() : cue.end() + 120], maxsplit=1)[0].split()
    scope: frozenset[str] = frozenset()
    for word in behind[: 2 * _SCOPE_WORDS]:
        scope |= words_of(word)
        if len(scope) >= _SCOPE_WORDS:
            break
    return scope or words_of(text[max(0, cue.start() - 40) : cue.start()])


def _antonym(sentence: str, source: str) -> bool:
    for one, other in _PAIRS:
        for here, there in ((one, other), (other, one)):
            if here.search(sentence) and there.search(source) and not (there.search(sentence) or here.search(source)):
                return True
    return False


NUMBER_MISMATCH_CAP = 0.3
"""Highest score of a quote that lacks a number of the sentence."""

_MAX_NEEDLE_CHARS = 400
_REACHES = sorted(((before, after) for before in range(3) for after in range(3)), key=sum)
_MIN_SHARE = 0.3
_LEAST_RATIO = 45.0
_MIN_OPENING_CHARS = 40

_DECORATION = re.compile(r"^[\s>#*+•–-]+|[*`]+|(?<!\w)_+|_+(?!\w)|\s*[.!?。！？…]+\s*$")
# Between two words of a passage may stand emphasis that a model leaves out.
_GAP = r"[\s*_`]+"
_ENUMERATION = re.compile(r"^\s*(?:[-*•]\s*)?\d{1,2}[.)]\s+")


@dataclass(frozen=True, slots=True)
class Support:
    """A stretch of a passage that supports a sentence."""

    start: int
    end: int
    score: float  # How well it supports the sentence, in [0, 1]; 1 for a verbatim one


def cite(passage: ContextPassage, support: Support, number: int, index_of: Callable[[str], str]) -> Citation:
    """Make the citation of a stretch of a passage."""
    return Citation(
        number=number,
        doc_id=passage.doc_id,
        node_id=passage.node_id,
        start=passage.offset + support.start,
        end=passage.offset + support.end,
        quote=passage.text[support.start : support.end],
        score=support.score,
        index=index_of(passage.node_id),
        title=passage.title,
        section=passage.section,
        page=passage.page,
    )


class PassageMatcher:
    """Finds sentences in one passage; splits and folds its text once."""

    def __init__(self, passage: ContextPassage, tokenizer: Tokenizer) -> None:
        self.passage = passage
        self._tokenizer = tokenizer
        self._folded = _folded(passage.text)
        self._spans = segments(passage.text)

    @cached_property
    def facts(self) -> list[Facts]:
        """What each of its segments says."""
        text, number = self.passage.text, self.passage.number
        return [
            Facts(text[start:end], self._tokenizer, number, position)
            for position, (start, end) in enumerate(self._spans)
        ]

    @cached_property
    def header(self) -> Facts:
        """What its title and section say."""
        return Facts(f"{self.passage.title}\n{self.passage.section}", self._tokenizer)

    @cached_property
    def terms(self) -> frozenset[str]:
        """All its distinct terms."""
        return frozenset().union(*(segment.all_terms for segment in self.facts))

    @cached_property
    def _numbers(self) -> list[frozenset[str]]:
        return [numbers_in(segment.text) for segment in self.facts]

    @cached_property
    def _header_numbers(self) -> frozenset[str]:
        # Title and section stand beside the quote in every reference list, so their numbers are shown, too.
        return numbers_in(self.passage.header)

    def locate(self, sentence: str) -> Support | None:
        """Find the stretch that supports a sentence best."""
        needle = _needle(sentence)
        if not needle or not self._spans:
            return None
        exact = self._exact(needle) if len(needle) <= _MAX_NEEDLE_CHARS else None
        if exact is not None:
            return exact
        needle = needle[:_MAX_NEEDLE_CHARS]
        terms = frozenset(self._tokenizer.tokens(needle))
        windows = dict.fromkeys(filter(None, (self._fuzzy_window(needle), self._term_window(terms))))
        # A passage may support a sentence in another language, with nothing in common that could be seen here.
        windows = windows or {self._opening(): None}
        wanted = numbers_in(_ENUMERATION.sub("", sentence)) - self._header_numbers
        return max((self._judged(window, needle, terms, wanted) for window in windows), key=lambda found: found.score)

    def is_verbatim(self, sentence: str) -> bool:
        """Tell whether the passage has a sentence as it is, and not just behind a negation that it leaves out."""
        needle = _needle(sentence)
        found = self._found(needle) if needle and len(needle) <= _MAX_NEEDLE_CHARS else None
        return found is not None and not negated_before(self._folded, found.start())

    def _exact(self, needle: str) -> Support | None:
        found = self._found(needle)
        window = self._snapped(found.start(), found.end(), least=0.0) if found else None
        return self._support(window, 1.0) if window else None

    def _found(self, needle: str) -> re.Match[str] | None:
        pattern = _GAP.join(re.escape(word) for word in needle.split())
        if _spaced(needle[0]):
            pattern = r"(?<![^\W_])" + pattern
        if _spaced(needle[-1]):
            pattern += r"(?![^\W_])"
        return re.search(pattern, self._folded)

    def _fuzzy_window(self, needle: str) -> tuple[int, int] | None:
        found = fuzz.partial_ratio_alignment(needle, self._folded, score_cutoff=_LEAST_RATIO)
        return self._snapped(found.dest_start, found.dest_end, least=_MIN_SHARE) if found else None

    def _term_window(self, terms: frozenset[str]) -> tuple[int, int] | None:
        if not terms:
            return None
        shared = [len(terms & segment.all_terms) for segment in self.facts]
        best = max(range(len(shared)), key=lambda i: shared[i])
        return (best, best + 1) if shared[best] else None

    def _opening(self) -> tuple[int, int]:
        """The first segment that is longer than a heading, or the first one."""
        long = (i for i, (start, end) in enumerate(self._spans) if end - start >= _MIN_OPENING_CHARS)
        first = next(long, 0)
        return first, first + 1

    def _snapped(self, start: int, end: int, *, least: float) -> tuple[int, int] | None:
        """The sentences that a stretch covers to a share of ``least`` or more, or else the one it covers most."""
        overlaps = [min(end, last) - max(start, first) for first, last in self._spans]
        touched = [
            i
            for i, (first, last) in enumerate(self._spans)
            if overlaps[i] > 0 and overlaps[i] >= least * min(last - first, end - start)
        ]
        if not touched:
            best = max(range(len(overlaps)), key=lambda i: overlaps[i])
            return (best, best + 1) if overlaps[best] > 0 else None
        return touched[0], touched[-1] + 1

    def _judged(self, window: tuple[int, int], needle: str, terms: frozenset[str], wanted: frozenset[str]) -> Support:
        found = self._support(window, 0.0)
        ratio = fuzz.partial_ratio(needle, self._folded[found.start : found.end]) / 100
        inside = frozenset().union(*(segment.all_terms for segment in self.facts[window[0] : window[1]]))
        shared = len(terms & inside) / len(terms) if terms else ratio
        # Below 1, which is kept for what is verbatim.
        score = min(0.99, (ratio + shared) / 2)
        wider = self._with_numbers(window, wanted)
        return self._support(wider, score) if wider else self._support(window, min(score, NUMBER_MISMATCH_CAP))

    def _with_numbers(self, window: tuple[int, int], wanted: frozenset[str]) -> tuple[int, int] | None:
        """The smallest stretch around a window, by up to two sentences on either side, that has all the numbers."""
        first, last = window
        for before, after in _REACHES:
            wider = max(0, first - before), min(len(self._spans), last + after)
            if not wanted or wanted <= frozenset().union(*self._numbers[wider[0] : wider[1]]):
                return wider
        return None

    def _support(self, window: tuple[int, int], score: float) -> Support:
        return Support(self._spans[window[0]][0], self._spans[window[1] - 1][1], score)


def _needle(sentence: str) -> str:
    """What of a sentence is looked for: no bullets, emphasis or final stop, white space as one space."""
    bare = _DECORATION.sub("", _ENUMERATION.sub("", sentence))
    return " ".join(_folded(bare).split())


def _folded(text: str) -> str:
    """Lower case without a change of length, so that offsets stay."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(low if len(low := char.lower()) == 1 else char for char in text)


def _spaced(char: str) -> bool:
    """Tell whether words of the character's script have spaces between them, for which its case or digits stand."""
    return char.isdecimal() or char.islower() or char.isupper()


# The few segments of the cited passages that say most of what a sentence says.

_MAX_FURTHER: Final = 3
_MAX_CITED: Final = 4
_NEAR: Final = 2
# What a further segment must add, as a share of the sentence's terms: nearby and elsewhere.
_ADDS_NEAR: Final = 0.1
_ADDS_FAR: Final = 0.18
# What a number that both have counts, in terms, at least and as a share of the sentence's terms.
_FACT_WEIGHT: Final = 0.4
_FACT_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a sentence is looked for."""

    core: tuple[Facts, ...]
    near: tuple[Facts, ...]
    headers: tuple[Facts, ...]
    whole: tuple[Facts, ...]


def gather(sentence: Facts, passages: Sequence[Sequence[Facts]], headers: Sequence[Facts]) -> Evidence | None:
    """Choose the segments that a sentence is held against.

    Each passage gives the one that shares most of its terms. Another one is taken only for terms that are still
    missing: never for a number alone, or a changed number would be found somewhere.
    """
    whole = [segment for passage in passages for segment in passage]
    if not whole:
        return None
    wanted = sentence.terms
    best_ones = [max(passage, key=lambda segment: _likeness(sentence, segment)) for passage in passages if passage]
    first = max(best_ones, key=lambda segment: _likeness(sentence, segment))
    # Of several cited passages each has its say.
    core = [first, *(one for one in best_ones[:_MAX_CITED] if one is not first and not wanted.isdisjoint(one.terms))]
    missing = wanted.difference(*(segment.terms for segment in core))
    for header in headers:
        missing -= header.terms
    for _ in range(_MAX_FURTHER):
        best = max(whole, key=lambda segment: (_gain(missing, segment, first), _likeness(sentence, segment)))
        share = _ADDS_NEAR if _is_near(best, core) else _ADDS_FAR
        added = len(missing & best.terms)
        if not added or added < share * len(wanted):
            break
        core.append(best)
        missing -= best.terms
    near = [segment for segment in whole if segment not in core and _is_near(segment, core)]
    return Evidence(tuple(core), tuple(near), tuple(headers), tuple(whole))


def _likeness(sentence: Facts, segment: Facts) -> float:
    shared = len(sentence.terms & segment.terms)
    facts = len(sentence.values & segment.values) if shared and sentence.values else 0
    # Among segments with the same terms, the shorter one says less else.
    weight = max(_FACT_WEIGHT, _FACT_SHARE * len(sentence.terms))
    return shared + weight * facts + 0.1 * shared / (1 + len(segment.terms))


def _gain(missing: frozenset[str], segment: Facts, first: Facts) -> float:
    return len(missing & segment.terms) * (1.5 if _is_near(segment, [first]) else 1.0)


def _is_near(segment: Facts, others: Sequence[Facts]) -> bool:
    return any(s.passage == segment.passage and abs(s.position - segment.position) <= _NEAR for s in others)


# The ``[n]`` in the text of an answer: read as models write them, written in one form.

# As models write them: [1], [1, 2], [1-3], [[1]], 【1】, ［１］, [๑], [passage 1]. Repetitions are bounded, so that no
# text makes the search slow.
MARKER = re.compile(
    r"[\[【［〔]{1,3}[ \t]{0,3}(?:passages?|sources?)?[ \t]{0,3}"
    r"\d{1,9}(?:[ \t]{0,3}[,，、;；–—\-&][ \t]{0,3}\d{1,9}){0,40}[ \t]{0,3}[\]】］〕]{1,3}",
    re.IGNORECASE,
)
_RUN = re.compile(rf"(?:{MARKER.pattern}[ \t]{{0,2}}){{1,20}}", re.IGNORECASE)
_NUMBER = re.compile(r"(\d{1,9})(?:[ \t]*[–—\-][ \t]*(\d{1,9}))?")
_CLOSES_SENTENCE = re.compile(r"[ \t]*([.!?。！？…،؟।,;:]+)")


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a text where a passage is cited."""

    position: int
    number: int


def read_markers(text: str, known: int) -> tuple[str, tuple[Mark, ...]]:
    """Take the markers out of a text."""
    clean = ""
    marks: list[Mark] = []
    at = 0
    for found in _RUN.finditer(text):
        clean = _joined(clean, text[at : found.start()], behind_marker=at > 0)
        position = _position(clean, text[found.end() :])
        marks += [Mark(position, number) for number in _numbers(found[0], known)]
        at = found.end()
    clean = _joined(clean, text[at:], behind_marker=at > 0)
    # What was left over may read as a marker now that something between its parts is gone.
    while MARKER.search(clean):
        clean = MARKER.sub(lambda found: " " * len(found[0]), clean)
    return clean, tuple(marks)


def _position(before: str, after: str) -> int:
    rest = after.lstrip(" \t")
    begins_line = not before.strip(" \t") or before.rstrip(" \t").endswith("\n")
    if begins_line and rest and not rest[0].isspace():
        return len(before) + len(after) - len(rest) + 1
    return len(before.rstrip())


def _numbers(marker: str, known: int) -> list[int]:
    numbers: list[int] = []
    for found in _NUMBER.finditer(marker):
        first = int(found[1])
        last = int(found[2]) if found[2] else first
        # A range that runs out of the passages is taken as far as it names some.
        numbers += range(max(first, 1), min(last, known) + 1)
    return list(dict.fromkeys(numbers))


def _joined(before: str, after: str, *, behind_marker: bool) -> str:
    """Join the texts around a marker: no space before a full stop, one between words."""
    if not behind_marker:
        return before + after
    closing = _CLOSES_SENTENCE.match(after)
    if closing:
        bare = before.rstrip(" \t")
        # "One. [1]. Two" has a full stop already.
        kept = "" if bare.endswith(closing[1]) else closing[1]
        return bare + kept + after[closing.end() :]
    if before and after and not before[-1].isspace() and not after[0].isspace():
        return f"{before} {after}"
    return before + after

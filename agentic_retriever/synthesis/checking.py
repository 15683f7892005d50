"""The citations of a text: looked up, completed and corrected, with a verdict on every sentence."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

from rapidfuzz import fuzz

from agentic_retriever.schema import Citation, SentenceCheck
from agentic_retriever.synthesis import citations
from agentic_retriever.synthesis.context import NO_INDEXES, ContextPassage
from agentic_retriever.text import Script, Sentence, Tokenizer, dominant_script, split_sentences
from agentic_retriever.text.names import find_names, foreign_thai_names
from agentic_retriever.text.numbers import BUDDHIST, Date, Number, agrees, has_percent
from agentic_retriever.text.scripts import character_class

# --- whether passages support a sentence, decided by rules without a model ------------------------------------------
# A sentence is supported when it is verbatim in a passage, or when its words are near enough to a few segments of the
# cited passages and nothing of what can be compared exactly speaks against it: its numbers, dates and names are there,
# it is not negated where the source is not, and no part of it is missing from the source altogether.

# Least likeness of a sentence to its grounds, in [0, 1]; fixed on the first half of the cases in docs/answers.md.
SUPPORTED_FROM: Final = 0.56
FLAWED_CAP: Final = 0.3  # highest score of a sentence that is not supported
TOO_FAR: Final = "too far from the text"
_OTHER_SCRIPT: Final = "in another script than the source: only numbers and names can be compared"
_MAX_PROBLEMS: Final = 5
# Most words in a row with terms of their own that a source may lack; in characters for scripts without spaces.
_MAX_STRAY_WORDS: Final = 3
_MAX_STRAY_CHARS: Final = {"thai": 14, "han": 7}
_GRAM: Final = {"thai": 4, "han": 2}
_UNIT: Final = re.compile(r"[\s-]*([^\W\d_]{1,20})")
_ENUMERATION: Final = re.compile(r"^\s*(?:[-*•]\s*)?\(?\d{1,2}[.)]\s+")
_WORD: Final = re.compile(r"\S+")
_RUN: Final = re.compile(
    f"(?P<thai>[{character_class(Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR)}]+)"
    f"|(?P<han>[{character_class(Script.HAN, Script.KANA)}]+)"
)


def unsupported_sentence(sentence: str, problem: str) -> SentenceCheck:
    return SentenceCheck(start=0, end=len(sentence), text=sentence, supported=False, score=0.0, problems=(problem,))


def judge(sentence: str, matchers: Sequence[citations.PassageMatcher]) -> SentenceCheck:
    """Decide whether passages support a sentence, one of them or several together; its place is left open."""
    whole = SentenceCheck(start=0, end=len(sentence), text=sentence, supported=True, score=1.0)
    if any(matcher.is_verbatim(sentence) for matcher in matchers):
        return whole
    if not matchers:
        return unsupported_sentence(sentence, "no passage is cited")
    said = citations.Facts(sentence, matchers[0].tokenizer)
    grounds = citations.gather(said, [matcher.facts for matcher in matchers], [matcher.header for matcher in matchers])
    likeness = _likeness(said, grounds)
    found = [f"date {date.text} is not in the source" for date in _foreign_dates(said, grounds)]
    found += [f"number {number.text} is not in the source" for number in _foreign_numbers(said, grounds)]
    found += [f"name {name} is not in the source" for name in _foreign_names(said, grounds)]
    if citations.opposed(
        said.text, grounds.core[0].text, lambda text: citations.words_only(said.tokenizer.tokens(text))
    ):
        found.append("says the opposite")
    problems = list(dict.fromkeys(found))[:_MAX_PROBLEMS]
    scripts = {dominant_script(segment.text) for segment in grounds.core}
    if dominant_script(sentence) not in scripts and any(map(str.isalpha, sentence)):
        problems.append(_OTHER_SCRIPT)
    elif likeness < SUPPORTED_FROM:
        problems.append(TOO_FAR)
    elif not problems and (stray := _longest_unmatched(said, grounds)):
        problems.append(f"“{stray}” is not in the source")
    score = min(FLAWED_CAP if problems else 0.99, likeness)
    return replace(whole, supported=not problems, score=score, problems=tuple(problems))


def _likeness(said: citations.Facts, grounds: citations.Grounds) -> float:
    """Mean of the share of terms that the grounds have and the best fuzzy match of a segment of them."""
    covered = frozenset().union(*(segment.terms for segment in (*grounds.core, *grounds.headers)))
    share = len(said.terms & covered) / len(said.terms) if said.terms else 1.0
    needle = said.text.lower()
    texts = [segment.text.lower() for segment in grounds.core]
    ratio = max(max(fuzz.partial_ratio(needle, text), fuzz.token_set_ratio(needle, text)) for text in texts) / 100
    return (share + ratio) / 2


# --- what speaks against a sentence: a number, date or name that its source lacks, or the opposite ----------------


def _foreign_dates(said: citations.Facts, grounds: citations.Grounds) -> Iterator[Date]:
    if not said.dates:
        return
    close = (*grounds.core, *grounds.headers)
    years = frozenset().union(*(part.values for part in (*close, *grounds.whole)))
    for date in said.dates:
        if any(agrees(date, other, years) for part in close for other in part.dates):
            continue
        # With a date of its own in the nearest segment, that one was meant.
        rivals = [o for o in grounds.core[0].dates if o.complete and not any(agrees(d, o, years) for d in said.dates)]
        if not rivals and any(agrees(date, other, years) for part in grounds.near for other in part.dates):
            continue
        yield date


def _foreign_numbers(said: citations.Facts, grounds: citations.Grounds) -> Iterator[Number]:
    skip = _ENUMERATION.match(said.text)
    begin = skip.end() if skip else 0
    for number in said.numbers:
        dated = any(date.start <= number.start < date.end for date in said.dates if date.complete)
        passed = number.start < begin or dated or (number.word and number.value in ("0", "1"))
        if not passed and not _has_number(number, said, grounds):
            yield number


def _has_number(number: Number, said: citations.Facts, grounds: citations.Grounds) -> bool:
    if any(_in_part(number, part) for part in grounds.core):
        return True
    if _is_year(number):
        rivals = [n for n in grounds.core[0].numbers if _is_year(n) and n.value not in said.values]
        return not rivals and any(_in_part(number, part) for part in (*grounds.whole, *grounds.headers))
    source = grounds.core[0]
    others = [one for one in source.numbers if said.values.isdisjoint((one.value, one.scaled))]
    alike = [one for one in others if one.percent == number.percent]
    if any(number.percent or _unit(number, said) == _unit(one, source) for one in alike):
        return False
    if any(number.value in part.loose for part in grounds.core):
        return True
    return any(_in_part(number, part) for part in (*grounds.near, *grounds.headers))


def _in_part(number: Number, part: citations.Facts) -> bool:
    wanted = {number.value, number.scaled}
    if _is_year(number):
        wanted |= {str(int(number.value) + BUDDHIST), str(int(number.value) - BUDDHIST)}
    for other in part.numbers:
        scaled = number.power and other.power
        same = number.scaled == other.scaled if scaled else not wanted.isdisjoint((other.value, other.scaled))
        # A percentage is no count, unless the sign stands elsewhere, as in the head of a table.
        elsewhere = number.percent and (has_percent(part.text) or part.text.startswith("|"))
        if same and (number.percent == other.percent or elsewhere):
            return True
    return False


def _unit(number: Number, facts: citations.Facts) -> str:
    found = _UNIT.match(facts.text, number.end)
    word = found[1].casefold() if found else ""
    terms = facts.tokenizer.tokens(word)
    return (terms[0] if terms else word)[:6]


def _is_year(number: Number) -> bool:
    return (
        not number.percent and len(number.value) == 4 and number.value.isdecimal() and "1800" <= number.value <= "2700"
    )


def _foreign_names(said: citations.Facts, grounds: citations.Grounds) -> Iterator[str]:
    close = (*grounds.core, *grounds.headers)
    near = frozenset().union(*(part.keys for part in close))
    terms = frozenset().union(*(part.terms for part in close))
    for name in find_names(said.text, said.tokenizer.language):
        if name.opening or any(date.start <= name.start < date.end for date in said.dates) or name.key in near:
            continue
        stems = said.tokenizer.tokens(name.text)
        if not name.code and stems and terms.issuperset(stems):
            continue
        rivals = [key for code, key in grounds.core[0].name_keys - said.name_keys if code is name.code]
        if rivals or not any(name.key in part.keys for part in grounds.whole):
            yield name.text
    yield from _swapped_opening(said, grounds)
    yield from foreign_thai_names(said.text, _joined(close), _joined((*grounds.whole, *grounds.headers)))


def _joined(parts: Iterable[citations.Facts]) -> str:
    return "\n".join(part.text for part in parts)


def _swapped_opening(said: citations.Facts, grounds: citations.Grounds) -> Iterator[str]:
    """The first word of a sentence that is otherwise the source's, where the source has a name."""
    source, language = grounds.core[0], said.tokenizer.language
    for name, rival in zip(find_names(said.text, language)[:1], find_names(source.text, language)[:1], strict=False):
        swapped = name.opening and rival.opening and name.key not in source.keys
        swapped = swapped and fuzz.partial_ratio(said.text[name.end :], source.text) >= 95
        if swapped and any((False, rival.key) in part.name_keys for part in grounds.whole):
            yield name.text


# --- what of a sentence stands nowhere: the mark of something added to a true one ---------------------------------


def _longest_unmatched(said: citations.Facts, grounds: citations.Grounds) -> str:
    """Find the longest stretch of a sentence that its passages do not have, if it is too long to be mere wording."""
    runs = [(run.lastgroup or "thai", run[0]) for run in _RUN.finditer(said.text)]
    if runs:
        source = _joined((*grounds.whole, *grounds.headers))
        stray = ((kind, _stray(run, source, _GRAM[kind])) for kind, run in runs)
        return max((text for kind, text in stray if len(text) > _MAX_STRAY_CHARS[kind]), key=len, default="")
    return _spaced(said, frozenset().union(*(part.terms for part in (*grounds.core, *grounds.near, *grounds.headers))))


def _spaced(said: citations.Facts, known: frozenset[str]) -> str:
    best: list[re.Match[str]] = []
    run: list[re.Match[str]] = []
    for word in _WORD.finditer(said.text):
        terms = said.tokenizer.tokens(word[0])
        if terms:
            stray = known.isdisjoint(terms) and not any(map(str.isdecimal, word[0]))
            run = [*run, word] if stray else []
            best = max(best, run, key=len)
    return said.text[best[0].start() : best[-1].end()].rstrip(".,;:!?") if len(best) > _MAX_STRAY_WORDS else ""


def _stray(run: str, source: str, gram: int) -> str:
    known = bytearray(len(run))
    for at in range(max(1, len(run) - gram + 1)):
        if run[at : at + gram] in source:
            known[at : at + gram] = bytes([1]) * len(known[at : at + gram])
    stray = (run[unknown.start() : unknown.end()] for unknown in re.finditer(rb"\0+", known))
    return max(stray, key=len, default="")


# --- the text of an answer, sentence by sentence --------------------------------------------------------------------

# What becomes of unsupported sentences: told in the checks, marked in the text as well, or left out.
Unsupported = Literal["flag", "mark", "drop"]
UNSUPPORTED_MARK: Final = "[?]"  # stands behind an unsupported sentence; no citation looks like it
_ATTACH_FROM: Final = 0.7
_MAX_TRIED: Final = 2
# Least share of a sentence's terms in a passage that can be near enough.
_LIKELY: Final = 0.55
_LOOKED_AT: Final = 300
_MAX_CHECKED: Final = 60
_MAX_LEAD_IN: Final = 80
_LINE_END: Final = re.compile(r"[ \t]+(?=\n)")
_NO_STOP: Final = re.compile(f"[{character_class(Script.THAI, Script.LAO)}][^.!?]*$")
_OWN_MARK: Final = re.compile(r"[ \t]{0,3}\[\?\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedText:
    text: str
    citations: tuple[Citation, ...]
    support: float
    checks: tuple[SentenceCheck, ...] = ()


class CitationChecker:
    """Looks up every citation of a text, adds those that are missing, drops those that were invented.

    A sentence keeps the passages that it names, each with the stretch that supports it best, however badly, unless
    another passage supports it and none of those does. One that names none gets the passage that supports it, if there
    is one. Each distinct stretch has a number of its own. The text may come in parts, each of whole sentences.
    """

    def __init__(
        self,
        passages: Sequence[ContextPassage],
        *,
        language: str = "und",
        index_of: Mapping[str, str] = NO_INDEXES,
        unsupported: Unsupported = "flag",
    ) -> None:
        tokenizer = Tokenizer(language)
        self._matchers = [citations.PassageMatcher(passage, tokenizer) for passage in passages]
        self._numbering, self._writer = _Numbering(index_of), _Rewriter(unsupported)
        self._unsupported = unsupported
        self._sentences = 0
        self._gap = ""  # behind the last sentence

    def add(self, text: str) -> None:
        """Check a part of the text and write it."""
        # Without what would read as our mark; where taking one out leaves another, only its question mark goes.
        unmarked = _OWN_MARK.sub("", text).replace(UNSUPPORTED_MARK, "[ ]")
        clean, marks = citations.read_markers(unmarked, len(self._matchers))
        at, sentences = 0, split_sentences(clean)
        for sentence, named in zip(sentences, _all_named(clean, sentences, marks), strict=True):
            gap = self._gap + clean[at : sentence.start]
            at, self._gap = sentence.end, ""
            self._sentences += 1
            if not any(char.isalnum() for char in sentence.text) or _is_lead_in(sentence.text, named):
                self._writer.copy(gap + sentence.text)
                continue
            if self._sentences <= _MAX_CHECKED:
                check, found = _check(sentence.text, named, self._matchers)
            else:
                check, found = unsupported_sentence(sentence.text, "not checked: the answer is too long"), []
            shown = found if check.supported or self._unsupported != "drop" else []
            self._writer.write(gap, replace(check, citations=self._numbering.numbers(shown)))
        self._gap += clean[at:]

    def preview(self, unfinished: str) -> str:
        """Return what is written so far and, behind it, the beginning of a sentence that is not checked yet."""
        return self._writer.joined(self._gap + unfinished)

    def finish(self, text: str = "") -> CitedText:
        """Check the last part of the text, or all of it."""
        self.add(text)
        answer, checks = self._writer.finish(self._gap)
        support = sum(check.score for check in checks) / len(checks) if checks else 0.0
        return CitedText(text=answer, citations=self._numbering.citations(), support=support, checks=checks)


def _is_lead_in(sentence: str, named: Sequence[int]) -> bool:
    """Tell whether a sentence only announces what follows: "The conditions are:"."""
    short = len(sentence) <= _MAX_LEAD_IN and sentence.endswith((":", "："))
    return short and not named and not any(char.isdecimal() for char in sentence)


def _all_named(text: str, sentences: Sequence[Sentence], marks: Sequence[citations.Mark]) -> list[list[int]]:
    """The passages that each sentence names; in Thai a marker is for all clauses before it on its line without one."""
    bounds = [-1, *(sentence.start for sentence in sentences[1:]), len(text)]
    cited = [[mark.number for mark in marks if start < mark.position <= end] for start, end in pairwise(bounds)]
    named = [list(dict.fromkeys(numbers)) for numbers in cited][: len(sentences)]
    for i in range(len(sentences) - 2, -1, -1):
        gap = text[sentences[i].end : sentences[i + 1].start]
        if not named[i] and "\n" not in gap and _NO_STOP.search(sentences[i].text):
            named[i] = named[i + 1]
    return named


def _check(
    sentence: str, named: Sequence[int], matchers: Sequence[citations.PassageMatcher]
) -> tuple[SentenceCheck, list[Citation]]:
    """Find what supports a sentence: the passages that it names, or else one of the others."""
    cited = [matchers[number - 1] for number in named]
    located = [(matcher, citation) for matcher in cited if (citation := matcher.locate(sentence)) is not None]
    if located:
        check = judge(sentence, [matcher for matcher, _ in located])
        if check.supported:
            return check, [citation for _, citation in located]
    elsewhere = _elsewhere(sentence, [matcher for matcher in matchers if matcher not in cited])
    if elsewhere:
        passages = ", ".join(f"passage {number}" for number in named)
        moved = f"cited {passages}, found elsewhere" if named else "no passage was cited, one was found"
        return replace(elsewhere[0], problems=(moved,)), [elsewhere[1]]
    if not located:
        return unsupported_sentence(sentence, "no passage supports it"), []
    # A quote is no better than what it supports.
    return check, [replace(citation, score=min(citation.score, check.score)) for _, citation in located]


def _elsewhere(sentence: str, others: Sequence[citations.PassageMatcher]) -> tuple[SentenceCheck, Citation] | None:
    """The best of the passages that are not cited, if it supports a sentence beyond doubt."""
    # Only a first look: the beginning of a long sentence tells whether a passage may hold it.
    terms = frozenset(others[0].tokenizer.tokens(sentence[:_LOOKED_AT])) if others else frozenset()
    likely = [matcher for matcher in others if len(terms & matcher.terms) >= _LIKELY * len(terms)]
    tried = [(matcher, matcher.locate(sentence)) for matcher in likely]
    near = [(matcher, found) for matcher, found in tried if found and found.score >= _ATTACH_FROM]
    near.sort(key=lambda pair: -pair[1].score)
    judged = ((judge(sentence, [matcher]), found) for matcher, found in near[:_MAX_TRIED])
    return next((pair for pair in judged if pair[0].supported), None)


class _Numbering:
    """Gives out the numbers of one answer: one for each stretch of a passage, in order of first use."""

    def __init__(self, index_of: Mapping[str, str]) -> None:
        self._index_of = index_of
        # By stretch, in order of number.
        self._best: dict[tuple[str, int, int, str], Citation] = {}

    def numbers(self, found: Sequence[Citation]) -> tuple[int, ...]:
        numbers: dict[int, None] = {}
        for citation in found:
            key = (citation.node_id, citation.start, citation.end, citation.quote)
            known = self._best.get(key)
            number = known.number if known else len(self._best) + 1
            numbers[number] = None
            # Two sentences may rest on one stretch; its citation shows the better fit.
            if known is None or citation.score > known.score:
                self._best[key] = replace(citation, number=number, index=self._index_of.get(citation.node_id, ""))
        return tuple(numbers)

    def citations(self) -> tuple[Citation, ...]:
        return tuple(self._best.values())


class _Rewriter:
    """Writes a checked text anew, without spaces at line ends, and notes where each sentence stands in it."""

    def __init__(self, unsupported: Unsupported) -> None:
        self._unsupported = unsupported
        self._text = ""
        self._checks: list[SentenceCheck] = []
        self._kept = False

    def joined(self, text: str) -> str:
        before = self._text
        if not before:
            text = text.lstrip()
        if text.lstrip(" \t").startswith("\n"):
            before, text = before.rstrip(" \t"), text.lstrip(" \t")
        return before + _LINE_END.sub("", text)

    def copy(self, text: str) -> None:
        self._text = self.joined(text)

    def write(self, gap: str, check: SentenceCheck) -> None:
        if not check.supported and self._unsupported == "drop":
            # A line break before a sentence that is left out still parts what stands around it.
            self.copy(gap if "\n" in gap else "")
            place = len(self._text.rstrip(" \t"))
            self._checks.append(replace(check, start=place, end=place))
            return
        self._kept = True
        self.copy(gap)
        start = len(self._text)
        self.copy(check.text)
        self._checks.append(replace(check, start=start, end=len(self._text), text=self._text[start:]))
        markers = "".join(f"[{number}]" for number in check.citations)
        if not check.supported and self._unsupported == "mark":
            markers += UNSUPPORTED_MARK
        self._text += f" {markers}" if markers else ""

    def finish(self, rest: str) -> tuple[str, tuple[SentenceCheck, ...]]:
        """Give the text and its checks; no text where every sentence was left out."""
        self.copy(rest)
        if self._unsupported == "drop" and self._checks and not self._kept:
            return "", tuple(replace(check, start=0, end=0) for check in self._checks)
        text = self._text.rstrip()
        # What was left out at the very end has its place at the end.
        ends = [(min(check.start, len(text)), min(check.end, len(text))) for check in self._checks]
        return text, tuple(
            replace(check, start=start, end=end) for check, (start, end) in zip(self._checks, ends, strict=True)
        )

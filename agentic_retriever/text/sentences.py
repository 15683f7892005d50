"""Sentences with their exact places in the text, for every script, and those that say most of what a text says.

Rules, not a model: they need no training data, treat all languages that share a mark alike, and run in linear time.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.text.language_files import listed, section
from agentic_retriever.text.scripts import LEADING_VOWELS, Script, character_class, script_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from agentic_retriever.text.tokens import Tokenizer

# Words before a full stop that is not, or need not be, the end of a sentence.

_ALWAYS_FOLLOWED: Final = frozenset(listed("sentences", "titles"))  # by a name or the rest of the sentence
_BEFORE_NUMBER: Final = frozenset(listed("sentences", "counters"))  # ``No. 5``, but ``No. I will not.``
_MAY_END: Final = frozenset(listed("sentences", "suffixes"))  # if the next word is one that sentences begin with
# Languages that write the day before a month with a full stop: ``3. Oktober``.
_DOTTED_MONTHS: Final = frozenset(
    name
    for table in section("dates").values()
    if table.get("dotted_day")
    for names in table["months"].values()
    for name in names
)
_ORDINALS: Final = rf"\b(?:{'|'.join(listed('sentences', 'ordinals'))})"  # "am 7. Tag"
_ORDINAL_RE: Final = re.compile(rf"{_ORDINALS}\s[0-9]{{1,2}}$", re.IGNORECASE)
_BELOW_RE: Final = re.compile(rf"(?:[^.:!?;\s]\n\d{{1,3}}(?:\.\d{{3}})+|{_ORDINALS}\n\d{{1,2}}\.)\s", re.IGNORECASE)
_STARTERS: Final = frozenset(chain.from_iterable(section("stopwords").values()))

# Where to cut a sentence that punctuation does not end: Thai and Lao write a space instead; others are too long.

_MAX_SENTENCE: Final = 1_000  # characters; longer ones are cut at the best place in their second half

# In characters: no clause is shorter; at a space between two Thai words one ends from the second length on, at any
# space that is not beside a number from the third on.
_MIN_CLAUSE: Final = 20
_LONG_CLAUSE: Final = 60
_VERY_LONG_CLAUSE: Final = 200

_SPACED_CHARS: Final = character_class(Script.THAI, Script.LAO)
_SPACED_RE: Final = re.compile(f"[{_SPACED_CHARS}]")
_SPACE_RE: Final = re.compile(r"(?<!\.)\s+(?![\dๆฯ])")
_BETWEEN_WORDS_RE: Final = re.compile(rf"(?<=[{_SPACED_CHARS}\"'”’)\]])\s+(?=[{_SPACED_CHARS}\"'“‘(\[])")
# Words with which a new clause or sentence begins: but, therefore, besides, however, when, if, because, afterwards...
# Those that also join two nouns, such as "and", are not among them.
_OPENING_RE: Final = re.compile(rf"\s+(?:{'|'.join(listed('sentences', 'openings'))})")
# Polite particles that close what is said.
_CLOSING_RE: Final = re.compile(f"(?:{'|'.join(listed('sentences', 'closings'))})$")

_PAUSES: Final = (re.compile(r"[,;:،؛၊]\s+|[、，；：]"), re.compile(r"\s+"))  # the better one first


def _clause_ends(text: str, start: int, end: int) -> Iterator[int]:
    """Where the parts of a sentence end, its own end included."""
    spaces: list[int] = []
    at = start
    for space in _SPACE_RE.finditer(text, start, end) if _SPACED_RE.search(text, start, end) else ():
        length = space.start() - at
        if length >= _MIN_CLAUSE and end - space.end() >= _MIN_CLAUSE and _ends_clause(text, space.start(), length):
            at = space.end()
            spaces.append(at)
    for cut in (*spaces, end):
        while cut - start > _MAX_SENTENCE:
            start = _best_cut(text, start + _MAX_SENTENCE // 2, start + _MAX_SENTENCE)
            yield start
        yield cut
        start = cut


def _ends_clause(text: str, space: int, length: int) -> bool:
    if text[space - 1].isdigit():  # what follows may be its unit
        return _OPENING_RE.match(text, space) is not None
    if length >= _VERY_LONG_CLAUSE:
        return True
    if not _BETWEEN_WORDS_RE.match(text, space):
        return False
    if length >= _LONG_CLAUSE or _OPENING_RE.match(text, space):
        return True
    return _CLOSING_RE.search(text[max(0, space - 5) : space]) is not None


def _best_cut(text: str, first: int, last: int) -> int:
    """The last place between two offsets where a reader would pause, or else where no letter is torn apart."""
    for pattern in _PAUSES:
        places = [match.end() for match in pattern.finditer(text, first, last)]
        if places:
            return places[-1]
    for cut in range(last, first, -1):
        if unicodedata.category(text[cut])[0] != "M" and text[cut - 1] not in LEADING_VOWELS:
            return cut
    return last


# Where the lines of a text belong together, so that sentences are looked for only inside such blocks.

# A heading, a table row (also by wide gaps), a rule, an underline or a code fence: one with neither neighbour.
_ALONE_RE: Final = re.compile(
    r"(?:#{1,6}\s|\||```|~~~|(?:[-=*_]\s*){3,}$|[^\t]*\t[^\t]*\t|[^|]*\|[^|]*\||(?:.*?\S {4,}(?=\S)){2})"
)
_ITEM_RE: Final = re.compile(r"\s*(?:>\s*)*(?:[-*+•‣◦▪●·–—]|\(?(?:[0-9]{1,3}|[A-Za-z]|[ivxIVX]{2,5})[.)])\s+\S")
_SECTION_RE: Final = re.compile(r"\s*(?:§+\s*)?[0-9]{1,3}(?:\.[0-9]{1,3})+\.?\s+\S")
_OPEN_ENDS: Final = (",", ";", "-", "(", "[", "،", "、", "，")
_ENDS_BY_LINE: Final = frozenset({Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR})

_SHORT: Final = 40  # lines up to so many characters are titles or entries rather than wrapped prose
_SHORT_SECTION: Final = 80


def _blocks(text: str) -> Iterator[tuple[int, int, bool]]:
    """Cut a text into blocks of lines over which a sentence may run on: start, end, and whether it is one sentence."""
    start = end = 0
    previous = ""
    for line in text.splitlines(keepends=True):
        content = line.strip()
        if previous and (not content or _breaks(previous, line, content)):
            yield start, end, _ALONE_RE.match(previous) is not None
            start = end
        end += len(line)
        if not content:
            start = end
        previous = content
    if previous:
        yield start, end, _ALONE_RE.match(previous) is not None


def goes_on_with_number(previous: str, line: str) -> bool:
    """Tell "2.500 € a year" and "7. Tag", with which the line before goes on, from an item or section."""
    return _BELOW_RE.search(f"{previous.rstrip()}\n{line.lstrip()}", len(previous) - 10) is not None


def _breaks(previous: str, line: str, content: str) -> bool:
    if _ALONE_RE.match(previous) or _ALONE_RE.match(content):
        return True
    if (_ITEM_RE.match(line) or _SECTION_RE.match(line)) and not goes_on_with_number(previous, line):
        return True
    if script_of(previous[-1]) in _ENDS_BY_LINE:
        return True
    short = _SHORT_SECTION if _SECTION_RE.match(previous) else _SHORT
    return len(previous) <= short and not previous.endswith(_OPEN_ENDS) and not content[0].islower()


_CLOSERS: Final = "\"'”’»›)\\]}」』】〉》）*_"
_CERTAIN: Final = "。！？｡։።؟۔།༎।॥។៕။"
_END_RE: Final = re.compile(
    f"(?P<mark>(?:\\.[ \u00a0])+\\.|[.!?…‥{_CERTAIN}]+|(?<=[\u0370-\u03ff\u1f00-\u1fff]);)"
    rf"(?P<closers>[{_CLOSERS}]*(?:[ \u00a0\u202f]»)?)(?:\[[0-9]{{1,3}}\]|[¹²³⁰⁴-⁹])*"
)
_CERTAIN_RE: Final = re.compile(f"[{_CERTAIN}]")
_KANA_RE: Final = re.compile(f"[{character_class(Script.KANA)}]")
_NO_SPACE_RE: Final = re.compile(
    f"[{character_class(Script.HAN, Script.KANA, Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR)}]"
)
_NEXT_RE: Final = re.compile(
    r"(?P<opening>[\s\"'“‘«‹(\[{¿¡*_>-]*)(?:(?P<word>[^\W\d_]+)(?P<stop>\.?)|(?P<number>[0-9]))?"
)
_BEFORE_RE: Final = re.compile(r"[^\W_]+(?:\.[^\W_]+)*$|[§№]$")
_MARKER_RE: Final = re.compile(
    r"\s*(?:>\s*)*(?:#{1,6}\s+)?(?:[-*+•]\s+)?[*_(]*(?:§+\s*)?"
    r"(?:[0-9]{1,3}(?:\.[0-9]{1,3})*|[A-Za-z]|[ivxIVX]{2,5})"
)
_MAX_BEFORE: Final = 24  # characters of a list marker, and before a full stop, that are looked at
_PAIR_RE: Final = re.compile(r"([A-Z])\1")
_THAI_WORD_RE: Final = re.compile(f"[{_SPACED_CHARS}]{{6}}$")


@dataclass(frozen=True, slots=True)
class Sentence:
    start: int
    end: int
    text: str


def split_sentences(text: str) -> list[Sentence]:
    """Cut a text into sentences.

    A blank line ends a sentence; list items, headings and table rows are sentences of their own. Thai and Lao, which
    have no full stop, are cut at line ends and at spaces where a clause begins. No sentence is longer than 1,000
    characters.
    """
    sentences = []
    for start, last, whole in _blocks(text):
        at = start
        marks = () if whole else _END_RE.finditer(text, start, last)
        ends = (mark.end() for mark in marks if mark.end() < last and _is_end(text, mark, start, last))
        for end in chain(ends, (last,)):
            for cut in _clause_ends(text, at, end):
                content = text[at:cut].strip()
                if content:
                    begin = text.index(content, at)
                    sentences.append(Sentence(begin, begin + len(content), content))
                at = cut
    return sentences


def _is_end(text: str, mark: re.Match[str], first: int, last: int) -> bool:
    following = text[mark.end()]
    if _CERTAIN_RE.search(mark["mark"]):
        # In Japanese, what is quoted goes on in the sentence that quotes it.
        return not (mark["closers"] and _KANA_RE.match(following))
    if not following.isspace() and (mark["mark"] == "." or not _NO_SPACE_RE.match(following)):
        return False
    found = _NEXT_RE.match(text, mark.end(), last)
    ahead = found.groupdict("") if found else dict.fromkeys(("opening", "word", "stop", "number"), "")
    if mark["mark"] == ".":
        return _full_stop_ends(text, mark.start(), first, ahead)
    return not ahead["word"][:1].islower()  # as the rest of a sentence begins


def _full_stop_ends(text: str, stop: int, first: int, ahead: dict[str, str]) -> bool:
    if stop > first and text[stop - 1].isspace():  # text that was cut into words before, all in small letters perhaps
        return True
    if ahead["word"][:1].islower() or (stop - first <= _MAX_BEFORE and _MARKER_RE.fullmatch(text, first, stop)):
        return False
    before = text[max(first, stop - _MAX_BEFORE) : stop]
    if before and _SPACED_RE.match(before[-1]):
        return _THAI_WORD_RE.search(before) is not None
    if _ORDINAL_RE.search(before) and ahead["word"].casefold() not in _STARTERS:
        return False
    found = _BEFORE_RE.search(before)
    return found is None or _word_ends(found[0], ahead)


def _word_ends(before: str, ahead: dict[str, str]) -> bool:
    word, following = before.casefold(), ahead["word"]
    if word in _ALWAYS_FOLLOWED:
        return False
    is_pronoun = following == "I" and word == "no"  # "No. I will not."
    is_roman = following and not following.strip("IVXLC") and not is_pronoun
    if word in _BEFORE_NUMBER and (ahead["number"] or is_roman):
        return False
    if word.isdigit() and len(word) <= 2 and following.casefold() in _DOTTED_MONTHS:
        return False
    short = (len(word) == 1 or "." in word) and word[0].isalpha()
    if short or word in _MAY_END or _PAIR_RE.fullmatch(before):  # then only what must be a new sentence ends it
        opens = any(mark in ahead["opening"] for mark in "«¿¡")
        return opens or (following.casefold() in _STARTERS and not ahead["stop"])
    return True


MAX_SENTENCES: Final = 400  # most that are weighed; of a longer text, so many spread evenly over it
_DAMPING: Final = 0.85
_ROUNDS: Final = 40
_REPEATED: Final = 0.6
_MIN_TERMS: Final = 3
_HEADING_RE: Final = re.compile(r"#{1,6}\s|(?:\d+\.)+\d*\s+\S.{0,78}(?<![.!?:;])$")
_TABLE_RE: Final = re.compile(r"\||[\s|:+=_*-]+$")


def central_sentences(
    texts: Sequence[str], *, tokenizer: Tokenizer, room: int, measure: Callable[[str], int] = len
) -> list[str]:
    """Choose the most central sentences: those most alike to many others that are central themselves.

    By a random walk over the cosines of their term weights (G. Erkan and D. Radev, "LexRank", JAIR 22, 2004), without
    repetition; headings, rows of tables and very short sentences count only where there is nothing else.
    """
    import numpy as np  # noqa: PLC0415 - who only cuts sentences needs no numpy

    everything = list(dict.fromkeys(s.text for text in texts for s in split_sentences(text)))
    sentences = [s for s in everything if not (_HEADING_RE.match(s) or _TABLE_RE.match(s))] or everything
    if not sentences:
        return []
    terms = [tokenizer.tokens(sentence) for sentence in sentences]
    long = [i for i, found in enumerate(terms) if len(set(found)) >= _MIN_TERMS] or list(range(len(sentences)))
    weighed = [long[int(i)] for i in np.linspace(0, len(long) - 1, min(len(long), MAX_SENTENCES))]
    alike, order = _centrality([terms[i] for i in weighed])
    chosen: list[int] = []
    for i in order:
        size = measure(sentences[weighed[i]])
        is_new = all(alike[i, j] < _REPEATED for j in chosen)
        if is_new and (size <= room or not chosen):
            chosen.append(i)
            room -= size
    return [sentences[weighed[i]] for i in sorted(chosen)]


def _centrality(terms: Sequence[Sequence[str]]) -> tuple[npt.NDArray[np.floating[Any]], list[int]]:
    """Cosines of the sentences' term weights, ``(n, n)``, in [0, 1], and the sentences, the most central one first."""
    import numpy as np  # noqa: PLC0415 - as above

    frequency = Counter(term for found in terms for term in set(found))
    columns = {term: column for column, term in enumerate(frequency)}
    weights = np.zeros((len(terms), max(1, len(columns))), dtype=np.float32)
    for row, found in enumerate(terms):
        for term, count in Counter(found).items():
            weights[row, columns[term]] = count * math.log(1 + len(terms) / frequency[term])
    norms = np.linalg.norm(weights, axis=1, keepdims=True)
    weights /= np.where(norms > 0, norms, 1)
    alike = weights @ weights.T
    count = len(alike)
    others = alike * (1 - np.eye(count, dtype=alike.dtype))  # being like itself says nothing for a sentence
    totals = others.sum(axis=1, keepdims=True)
    steps = np.where(totals > 0, others / np.where(totals > 0, totals, 1), 1 / count)
    share = np.full(count, 1 / count)
    for _ in range(_ROUNDS):
        share = (1 - _DAMPING) / count + _DAMPING * (share @ steps)
    # Equal up to rounding is equal, so that the order of such sentences is that of the text.
    order: list[int] = np.argsort(-np.round(share, 9), kind="stable").tolist()
    return alike, order

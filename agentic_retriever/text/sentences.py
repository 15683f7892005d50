"""Sentences with their exact places in the text, for every script.

Rules, not a model: they need no training data, treat all languages that share a mark alike, and run in linear time.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from agentic_retriever.text.language_files import listed, section
from agentic_retriever.text.scripts import Script, character_class, script_of
from agentic_retriever.text.tokens import stopword_languages, stopwords

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
_STARTERS: Final = frozenset(word for language in stopword_languages() for word in stopwords(language))


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

_PAUSE_RE: Final = re.compile(r"[,;:،؛၊]\s+|[、，；：]")
_WHITE_RE: Final = re.compile(r"\s+")
# Vowels that are written before the consonant they belong to.
_LEADING_VOWELS: Final = frozenset("เแโใไເແໂໃໄ")


def clause_cuts(text: str, start: int, end: int) -> Iterator[int]:
    """Find where to cut a sentence further."""
    at = start
    if _SPACED_RE.search(text, start, end):
        for cut in _space_cuts(text, start, end):
            yield from _hard_cuts(text, at, cut)
            yield cut
            at = cut
    yield from _hard_cuts(text, at, end)


def _space_cuts(text: str, start: int, end: int) -> Iterator[int]:
    at = start
    for space in _SPACE_RE.finditer(text, start, end):
        length = space.start() - at
        if length >= _MIN_CLAUSE and end - space.end() >= _MIN_CLAUSE and _ends_clause(text, space.start(), length):
            yield space.end()
            at = space.end()


def _ends_clause(text: str, space: int, length: int) -> bool:
    """Tell whether a clause of some length ends at a space."""
    if text[space - 1].isdigit():  # what follows may be its unit
        return _OPENING_RE.match(text, space) is not None
    if length >= _VERY_LONG_CLAUSE:
        return True
    if not _BETWEEN_WORDS_RE.match(text, space):
        return False
    if length >= _LONG_CLAUSE or _OPENING_RE.match(text, space):
        return True
    return _CLOSING_RE.search(text[max(0, space - 5) : space]) is not None


def _hard_cuts(text: str, start: int, end: int) -> Iterator[int]:
    while end - start > _MAX_SENTENCE:
        start = _best_cut(text, start + _MAX_SENTENCE // 2, start + _MAX_SENTENCE)
        yield start


def _best_cut(text: str, first: int, last: int) -> int:
    """The last place between two offsets where a reader would pause, or else where no letter is torn apart."""
    for pattern in (_PAUSE_RE, _WHITE_RE):
        places = [match.end() for match in pattern.finditer(text, first, last)]
        if places:
            return places[-1]
    for cut in range(last, first, -1):
        torn = unicodedata.category(text[cut])[0] == "M" or text[cut - 1] in _LEADING_VOWELS
        if not torn:
            return cut
    return last


# Where the lines of a text belong together, so that sentences are looked for only inside such blocks.

# A heading, a table row, a rule, an underline or a code fence: a line that is one with neither neighbour.
_ALONE_RE: Final = re.compile(r"\s*(?:#{1,6}\s|\||```|~~~|(?:[-=*_]\s*){3,}$|[^\t]*\t[^\t]*\t|[^|]*\|[^|]*\|)")
_ITEM_RE: Final = re.compile(r"\s*(?:>\s*)*(?:[-*+•‣◦▪●·–—]|\(?(?:[0-9]{1,3}|[A-Za-z]|[ivxIVX]{2,5})[.)])\s+\S")
_SECTION_RE: Final = re.compile(r"\s*(?:§+\s*)?[0-9]{1,3}(?:\.[0-9]{1,3})+\.?\s+\S")
_OPEN_ENDS: Final = (",", ";", "-", "(", "[", "،", "、", "，")
_ENDS_BY_LINE: Final = frozenset({Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR})

# In characters: lines up to these lengths are titles or entries rather than wrapped prose.
_SHORT: Final = 40
_SHORT_SECTION: Final = 80


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that belong together."""

    start: int
    end: int
    whole: bool


def blocks(text: str) -> Iterator[Block]:
    """Cut a text into blocks of lines over which a sentence may run on.

    A blank line ends a block, and so does the beginning of a list item or numbered section; a Markdown heading, a table
    row or a rule is a block of its own. Other lines run on, save after a short line or one in a script that has no full
    stop.
    """
    start = end = 0
    previous = ""
    for line in text.splitlines(keepends=True):
        content = line.strip()
        if previous and (not content or _breaks(previous, line, content)):
            yield Block(start, end, _ALONE_RE.match(previous) is not None)
            start = end
        end += len(line)
        if not content:
            start = end
        previous = content
    if previous:
        yield Block(start, end, _ALONE_RE.match(previous) is not None)


def _breaks(previous: str, line: str, content: str) -> bool:
    """Tell whether a line begins a new block after another that is not blank."""
    if _ALONE_RE.match(previous) or _ALONE_RE.match(line) or _ITEM_RE.match(line) or _SECTION_RE.match(line):
        return True
    if script_of(previous[-1]) in _ENDS_BY_LINE:
        return True
    short = _SHORT_SECTION if _SECTION_RE.match(previous) else _SHORT
    return len(previous) <= short and not previous.endswith(_OPEN_ENDS) and not content[0].islower()


_CLOSERS: Final = "\"'”’»›)\\]}」』】〉》）*_"
_CERTAIN: Final = "。！？｡։።؟۔།༎।॥។៕။"
_END_RE: Final = re.compile(
    f"(?P<mark>(?:\\.[ \u00a0])+\\.|[.!?…‥{_CERTAIN}]+|(?<=[\u0370-\u03ff\u1f00-\u1fff]);)"
    rf"(?P<closers>[{_CLOSERS}]*(?:[ \u00a0\u202f]»)?)(?:\[[0-9]{{1,3}}\])*"
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
_OPENING_MARK_RE: Final = re.compile("[«¿¡]")
_MAX_MARKER: Final = 24
_MAX_BEFORE: Final = 24
_PAIR_RE: Final = re.compile(r"([A-Z])\1")
_THAI_WORD_RE: Final = re.compile(f"[{character_class(Script.THAI, Script.LAO)}]{{6}}$")
_THAI_RE: Final = re.compile(f"[{character_class(Script.THAI, Script.LAO)}]")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and where it stands."""

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
    for block in blocks(text):
        start = block.start
        for end in (block.end,) if block.whole else _ends(text, block.start, block.end):
            for cut in (*clause_cuts(text, start, end), end):
                piece = text[start:cut]
                content = piece.strip()
                if content:
                    begin = start + len(piece) - len(piece.lstrip())
                    sentences.append(Sentence(begin, begin + len(content), content))
                start = cut
    return sentences


def _ends(text: str, first: int, last: int) -> Iterator[int]:
    """Offsets behind the sentences of a block, its own end included."""
    for mark in _END_RE.finditer(text, first, last):
        if mark.end() < last and _is_end(text, mark, first, last):
            yield mark.end()
    yield last


def _is_end(text: str, mark: re.Match[str], first: int, last: int) -> bool:
    following = text[mark.end()]
    if _CERTAIN_RE.search(mark["mark"]):
        # In Japanese, what is quoted goes on in the sentence that quotes it.
        return not (mark["closers"] and _KANA_RE.match(following))
    if not following.isspace() and (mark["mark"] == "." or not _NO_SPACE_RE.match(following)):
        return False
    ahead = _NEXT_RE.match(text, mark.end(), last)
    if mark["mark"] == ".":
        return _full_stop_ends(text, mark.start(), first, ahead)
    return not _goes_on(ahead)


def _goes_on(ahead: re.Match[str] | None) -> bool:
    """Tell whether what follows begins with a small letter, as the rest of a sentence does."""
    return ahead is not None and bool(ahead["word"]) and ahead["word"][0].islower()


def _full_stop_ends(text: str, stop: int, first: int, ahead: re.Match[str] | None) -> bool:
    """Tell whether a full stop with white space behind it ends a sentence."""
    if stop > first and text[stop - 1].isspace():  # text that was cut into words before, all in small letters perhaps
        return True
    if _goes_on(ahead) or (stop - first <= _MAX_MARKER and _MARKER_RE.fullmatch(text, first, stop)):
        return False
    before = text[max(first, stop - _MAX_BEFORE) : stop]
    if before and _THAI_RE.match(before[-1]):
        return _THAI_WORD_RE.search(before) is not None
    found = _BEFORE_RE.search(before)
    return found is None or _word_ends(found[0], ahead)


def _word_ends(before: str, ahead: re.Match[str] | None) -> bool:
    """Tell whether a sentence ends at the full stop behind a word."""
    word = before.casefold()
    following = (ahead["word"] or "") if ahead else ""
    if word in _ALWAYS_FOLLOWED:
        return False
    if word in _BEFORE_NUMBER and ahead and (ahead["number"] or _is_roman(following, after=word)):
        return False
    if word.isdigit() and len(word) <= 2 and following.casefold() in _DOTTED_MONTHS:
        return False
    short = (len(word) == 1 or "." in word) and word[0].isalpha()
    if short or word in _MAY_END or _PAIR_RE.fullmatch(before):
        return ahead is not None and _begins(ahead)
    return True


def _begins(ahead: re.Match[str]) -> bool:
    """Tell whether what follows an abbreviation can only be a new sentence."""
    if _OPENING_MARK_RE.search(ahead["opening"]):
        return True
    return (ahead["word"] or "").casefold() in _STARTERS and not ahead["stop"]


def _is_roman(word: str, *, after: str) -> bool:
    if word == "I" and after == "no":  # "No. I will not."
        return False
    return bool(word) and not word.strip("IVXLC")

"""References to parts of documents: "section 4.2", "apartado 6.2.1 del Anexo III", "มาตรา 12"."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from agentic_retriever.text.language_files import packaged_json

_WORDS: Final = packaged_json("text/references.json")


def any_of(*lists: str) -> str:
    """Join lists of ``references.json`` to the inside of a group of a regular expression."""
    return "|".join(word for one in lists for word in _WORDS[one])


_SECTION: Final = rf"(?<!\w)(?:{any_of('sections')})|{any_of('unspaced_sections')}"
_ARTICLE: Final = rf"(?<!\w)(?:{any_of('articles')})|{any_of('unspaced_articles')}"
_NUMBER: Final = r"(?:[0-9๐-๙]{1,4}|[A-Z](?=\.[0-9]))(?:\.[0-9๐-๙]{1,3}){0,5}(?:\s?(?:bis|ter|quater|quinquies)\b)?"
_JOINT: Final = rf"\s*(?:,|(?:{any_of('joints', 'ranges')})\b|{any_of('unspaced_joints', 'unspaced_ranges')})\s*"
_RANGES: Final = frozenset(_WORDS["ranges"] + _WORDS["unspaced_ranges"])
_REFERENCE_RE: Final = re.compile(
    rf"(?:(?P<section>{_SECTION})|(?P<article>{_ARTICLE}))\s*"
    rf"(?P<numbers>{_NUMBER}(?:{_JOINT}{_NUMBER}){{0,8}})"
    # Looked at, not consumed, since the next reference may stand in it.
    r"(?=\s*(?:(?:of|in|from|del?|du|des|der|do|da|della?)\b|แห่ง|ของ|ใน)\s*(?P<target>[^.,;:()\n\[\]|]{2,80})|)",
    re.IGNORECASE,
)
# The word before the number that a digit stands in.
_WORD_RE: Final = re.compile(rf"(?:{_SECTION}|{_ARTICLE})\s*(?:[A-Z]\.)?\Z", re.IGNORECASE)
_DIGITS_RE: Final = re.compile(r"[0-9๐-๙](?<![\d,:/%$€+-].)(?<!\d\..)[0-9๐-๙]*")  # the first of a number
_REACH: Final = 24  # characters
_NUMBER_RE: Final = re.compile(_NUMBER, re.IGNORECASE)
_THAI_DIGITS: Final = str.maketrans("๐๑๒๓๔๕๖๗๘๙", "0123456789")

# ``see Section 6.1, “How many releases are there?”`` says what section 6.1 is about, and not what is said here. Without
# a number only a question behind "see", or before what says so in Japanese, is the title of another part.
_POINTS: Final = rf"\b(?:{any_of('see')})[^.\n\"“«„「]{{0,40}}|(?:{any_of('unspaced_see')})[^。.\n“「]{{0,20}}"
TITLED_RE: Final = re.compile(
    r"(?<![\d.])(\d{1,3}(?:\.\d{1,3}){1,4})\.?[\s,:\u7bc0\u8282]{0,3}"
    r"(?:“([^”\n]{4,200})”|„([^“”\n]{4,200})[“”]|«([^»\n]{4,200})»|「([^」\n]{4,200})」)"
    rf"|(?:{_POINTS})[\"“«„「][^\"“”«»「」\n]{{4,200}}[?？]\s?[\"“”»」]"
    r"|(?<![^\s(（。、])「[^」\n]{4,200}[?？]」(?=\s*(?:の?節)?[もをは]?\s*(?:参照|参考|見て|見る|ご覧|確認|で説明|で詳))",
    re.IGNORECASE,
)

MAX_REFERENCES: Final = 40  # read in one text
_MAX_RANGE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    kind: str
    number: str
    target: str


def find_references(text: str) -> list[Reference]:
    found: dict[Reference, None] = {}
    for match in _matches(text):
        kind = "section" if match["section"] else "article"
        for number in _numbers(match["numbers"]):
            found.setdefault(Reference(kind=kind, number=number, target=(match["target"] or "").strip()))
        if len(found) >= MAX_REFERENCES:
            break
    return list(found)[:MAX_REFERENCES]


def _matches(text: str) -> Iterator[re.Match[str]]:
    """Look only before digits, which takes a third of the time that looking everywhere does."""
    end = 0
    for digits in _DIGITS_RE.finditer(text):
        if digits.start() < end:
            continue
        word = _WORD_RE.search(text, max(end, digits.start() - _REACH), digits.start())
        if word and (match := _REFERENCE_RE.match(text, word.start())):
            end = match.end()
            yield match


def _numbers(text: str) -> Iterable[str]:
    matches = list(_NUMBER_RE.finditer(text))
    numbers = [" ".join(m[0].translate(_THAI_DIGITS).casefold().split()) for m in matches]
    yield from numbers[:1]
    for at, (number, following) in enumerate(pairwise(numbers)):
        joint = text[matches[at].end() : matches[at + 1].start()].strip().casefold()
        if joint in _RANGES and number.isdecimal() and following.isdecimal():
            yield from map(str, range(int(number) + 1, min(int(following), int(number) + _MAX_RANGE)))
        yield following


def without_titles(text: str) -> str:
    """Leave of references to numbered sections the number alone, and of such as "see “What is it?”" nothing."""
    return TITLED_RE.sub(r"\1", text)

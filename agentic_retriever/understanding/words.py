"""Words and names in comparable form: how texts are folded, the lexicon of restrictions, and names of people.

The lexicon is the section ``filters`` of each language. Its phrases are written without regard to letter case and
accents. Each kind of cue has a letter, so that a question becomes a short string over which small patterns run.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from agentic_retriever.text import UNDETERMINED, detect_language, stopwords
from agentic_retriever.text.language_files import listed, section
from agentic_retriever.text.numbers import number_words
from agentic_retriever.text.scripts import UNSPACED, lexical_form
from agentic_retriever.text.tokens import fold

# --- the form in which questions and metadata values are compared, with the way back to the question's characters ----

_ALIKE: Final = str.maketrans({**dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"), "’": "'", "‘": "'"})
_QUOTES: Final = str.maketrans(dict.fromkeys("“”„«»", '"'))
# Signs that belong to the letter before them although Unicode does not count them among the marks.
_SPACING_VOWELS: Final = frozenset("\u0e33\u0eb3")
_THAI_E: Final = "\u0e40"

# Vowels written behind or around a consonant, and the repetition sign: no word begins with one.
_NEVER_FIRST: Final = frozenset("ะัาำิีึืฺุูๅๆ็่้๊๋์ํ๎ະັາຳິີຶືຸູົຼ່້໊໋໌ໍ")
# Vowels written before their consonant: no word ends with one.
_NEVER_LAST: Final = frozenset("เแโใไເແໂໃໄ")


@dataclass(frozen=True, slots=True)
class Folded:
    """A text in comparable form."""

    text: str
    starts: tuple[int, ...]  # For each of its characters, where in the original the piece begins that it came from
    ends: tuple[int, ...]

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Turn a stretch of the folded text, not empty, into one of the original."""
        return self.starts[start], self.ends[end - 1]


def folded(text: str) -> str:
    """Bring a text to comparable form, white space trimmed."""
    if text.isascii():
        return " ".join(text.lower().split())
    return " ".join("".join(_fold_cluster(text[start:end]) for start, end in _clusters(text)).split())


def fold_query(text: str) -> Folded:
    """Bring a question to the same form and keep where each character came from."""
    chars: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for start, end in _clusters(text):
        for char in _fold_cluster(text[start:end]):
            blank = char.isspace()
            if blank and chars and chars[-1] == " ":
                ends[-1] = end
                continue
            chars.append(" " if blank else char)
            starts.append(start)
            ends.append(end)
    return Folded("".join(chars), tuple(starts), tuple(ends))


def has_borders(text: str, start: int, end: int, *, digits_split: bool = False) -> bool:
    """Tell whether a stretch of folded text can stand as a word of its own there."""
    if start > 0 and _glued(text[start - 1], text[start], digits_split=digits_split):
        return False
    return end >= len(text) or not _glued(text[end - 1], text[end], digits_split=digits_split)


def _glued(left: str, right: str, *, digits_split: bool) -> bool:
    if right in _NEVER_FIRST or left in _NEVER_LAST:
        return True
    if not (_is_wordlike(left) and _is_wordlike(right)):
        return False
    if left.isdigit() != right.isdigit() and (digits_split or UNSPACED.match(left) or UNSPACED.match(right)):
        return False
    return not (UNSPACED.match(left) or UNSPACED.match(right))


def _is_wordlike(char: str) -> bool:
    return char.isalnum() or unicodedata.category(char)[0] == "M"


def _clusters(text: str) -> Iterator[tuple[int, int]]:
    """Cut a text into letters with the signs that belong to them."""
    start = 0
    for at in range(1, len(text) + 1):
        if at < len(text) and _belongs(text[at], text[at - 1]):
            continue
        yield start, at
        start = at


def _belongs(char: str, before: str) -> bool:
    if char < "\u0300":
        return False
    if char == _THAI_E:
        return before == _THAI_E
    return char in _SPACING_VOWELS or unicodedata.category(char)[0] == "M"


@lru_cache(1 << 15)
def _fold_cluster(piece: str) -> str:
    return fold(lexical_form(piece).casefold()).translate(_ALIKE).translate(_QUOTES)


# --- the lexicon ----------------------------------------------------------------------------------------------------

_SYMBOLS: Final[dict[str, str]] = {
    "compare": "O", "time": "R", "either": "H", "from": "G", "postfix": "P", "in": "I", "year": "Y", "era": "E",
    "between": "B", "to": "T", "and": "A", "or": "C", "not": "K", "by": "J", "others": "L", "decade": "S",
    "topic": "?", "filler": "-",
}  # fmt: skip
"""The letter of each kind of cue. Beside them: M a month, N a number, X a multiplier, U a unit."""

_MIN_WORDS: Final = 3

# A phrase with several readings takes the one that fits behind a number there, and elsewhere the other.
_BEHIND_NUMBER: Final = "TPUXACEM"


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a cue."""

    language: str  # ISO 639-1 code of the language it belongs to
    symbol: str
    value: str | float


@lru_cache(1)
def tables() -> Mapping[str, Mapping[str, Any]]:
    """Read the data of every language, by its code."""
    return section("filters")


@lru_cache(1)
def phrases() -> Mapping[str, tuple[Reading, ...]]:
    """Give every cue of every language, by its folded phrase."""
    found: dict[str, list[Reading]] = {}
    for code, table in tables().items():
        for phrase, symbol, value in _cues(code, table):
            found.setdefault(folded(phrase), []).append(Reading(code, symbol, value))
    return {phrase: tuple(readings) for phrase, readings in found.items()}


def _cues(code: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str, str | float]]:
    """Go through the cues of one language: phrase, letter and value."""
    numbers, months = section("numbers")[code], section("dates")[code]["months"]
    lists = [(_SYMBOLS[kind], by_value) for kind, by_value in table["cues"].items()]
    for symbol, by_value in (*lists, ("M", months), ("U", numbers["units"])):
        for value, phrases_of_value in by_value.items():
            yield from ((phrase, symbol, value) for phrase in phrases_of_value)
    for symbol, by_phrase in (("N", number_words(code)), ("X", numbers["scales"])):
        yield from ((phrase, symbol, float(number)) for phrase, number in by_phrase.items())


def choose_reading(readings: tuple[Reading, ...], languages: frozenset[str], *, behind_number: bool) -> Reading | None:
    """Choose the reading of a phrase that fits its place; ``None`` where no language in use has it."""
    usable = [reading for reading in readings if reading.language in languages]
    fitting = [reading for reading in usable if (reading.symbol in _BEHIND_NUMBER) is behind_number]
    return next(iter(fitting or usable), None)


def question_languages(query: str, language: str | None) -> tuple[str, frozenset[str]]:
    """Tell whose stems serve for a question, ``"und"`` where nobody knows, and whose cues to look for.

    These are those of its language, of Thai, which cannot be mistaken, and of what else it may be.
    """
    code = (language or detect_language(query)).lower().replace("_", "-").split("-")[0]
    # One or two words are too few to tell a language by.
    if code in {"en", "es"} and (language is not None or len(query.split()) >= _MIN_WORDS):
        return code, frozenset({code, "th"})
    # Short questions are often taken for a neighbour of Spanish; Thai ones hold English words.
    return code or UNDETERMINED, frozenset({"en", "th"} if code == "th" else tables())


@lru_cache(1)
def concept_words() -> Mapping[str, tuple[str, ...]]:
    """Give the words for what a field holds, in every language, by its English name."""
    found: dict[str, dict[str, None]] = {}
    for table in tables().values():
        for concept, words in table["concepts"].items():
            found.setdefault(concept, {}).update(dict.fromkeys(folded(word) for word in words))
    return {concept: tuple(words) for concept, words in found.items()}


@lru_cache(1)
def common_words() -> frozenset[str]:
    """Give words too common for a value to be recognised by them alone, folded."""
    return frozenset(map(folded, listed("filters", "common")))


@lru_cache(1)
def grammar_words() -> frozenset[str]:
    """Give the stop words of every language here and the cues, folded: never taken for a value unless it is named."""
    ignored = {folded(word) for code in tables() for word in stopwords(code)}
    cues = {phrase for phrase, readings in phrases().items() if any(r.symbol not in "MUNX" for r in readings)}
    return frozenset(ignored | cues)


@lru_cache(1)
def titles() -> frozenset[str]:
    """Give the forms of address that stand before a name, folded."""
    return frozenset(map(folded, listed("filters", "titles")))


# --- names of people, as bibliographies write them and as questions do ----------------------------------------------

_SUFFIX: Final = re.compile(r"[ ,]+(?:jr|sr|ii|iii|iv)\.?$")
_WORD: Final = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
# Both can read a text in one way only: any value of an index is held against them, such as "j. ae. scs. 25, 1958".
_LISTED: Final = re.compile(r"[^\W\d_][^,\d]{0,60}, ?[^\W\d_]\.?(?:-?[^\W\d_][\w.'-]*)?(?: [^\W\d_][\w.'-]*)*\.?")
_PLAIN: Final = re.compile(r"(?:[^\W\d_](?:\.{1,2} ?|[\w'-]+(?:\. ?| ))){1,3}[^\W\d_][\w'-]+")
_PARTICLES: Final = frozenset({"de", "del", "der", "den", "van", "von", "la", "le", "di", "da", "du", "ter", "dos"})


@dataclass(frozen=True, slots=True)
class PersonName:
    """A name taken apart."""

    family: str
    given: tuple[str, ...]  # Given names or their initials, folded, in order; () where none are known


def parse_listed(name: str) -> PersonName | None:
    """Take apart ``Last, F. M.`` or ``First Last``."""
    if len(name) > 80 or not name[:1].isalpha():
        return None
    if _LISTED.fullmatch(name):
        family, _, given = name.partition(",")
        if len(family.split()) > 4:
            return None
        return PersonName(_SUFFIX.sub("", folded(family)), tuple(_WORD.findall(folded(given))))
    if name.isascii() is False and not name[0].isupper():  # scripts without capitals
        return None
    if _PLAIN.fullmatch(name) and all(word[0].isupper() or word in _PARTICLES for word in name.split()):
        words = _WORD.findall(_SUFFIX.sub("", folded(name)))
        return _first_last(words) if len(words) >= 2 else None
    return None


def _first_last(words: list[str]) -> PersonName:
    at = len(words) - 1
    while at > 1 and words[at - 1] in _PARTICLES:
        at -= 1
    return PersonName(" ".join(words[at:]), tuple(words[:at]))


def is_listed_form(name: str) -> bool:
    """Tell whether a value is written ``Last, F.``, which hardly anything but a name is."""
    return bool(_LISTED.fullmatch(name)) and len(name.partition(",")[0].split()) <= 4


def fits_given_names(given: tuple[str, ...], stored: tuple[str, ...]) -> bool:
    """Tell whether given names of a question can be those of a stored name.

    Names are compared in order, initials by their letter, so ``udo`` fits ``u w`` and ``uwe`` does not fit ``udo``.
    """
    for asked, known in zip(given, stored, strict=False):
        shorter = min(len(asked), len(known))
        if asked[0] != known[0] or (shorter > 1 and asked != known):
            return False
    return True

"""From a word as it stands in a text to the terms under which it is found: the rules below the tokenizer.

Stems are those of Snowball (M. F. Porter, "Snowball: a language for stemming algorithms", 2001). Accents are taken
off on both sides, so that a query typed without them finds the word written with them.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import Stemmer

from agentic_retriever.text.stopwords import stopwords

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_TERM: Final = 64
"""Longest term, in characters; longer ones (encoded data, mostly) are cut there, in documents and queries alike."""

_MAX_CACHED: Final = 1 << 16
_MAX_SEGMENTS: Final = 5

_STEMMERS: Final = {
    "ar": "arabic",
    "ca": "catalan",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "eu": "basque",
    "fi": "finnish",
    "fr": "french",
    "ga": "irish",
    "hi": "hindi",
    "hu": "hungarian",
    "hy": "armenian",
    "id": "indonesian",
    "it": "italian",
    "lt": "lithuanian",
    "ne": "nepali",
    "nl": "dutch",
    "no": "norwegian",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sr": "serbian",
    "sv": "swedish",
    "ta": "tamil",
    "tr": "turkish",
    "yi": "yiddish",
}
# The stemmers of these languages need the accents in the endings. Everywhere else the stem is taken after the accents
# are off, so that it cannot depend on them.
_ACCENTS_IN_ENDINGS: Final = frozenset({"fi", "ga", "hu", "lt", "ro", "sr", "tr"})
# Endings that the stemmer knows only with the accent; put back on words with and without it alike.
_ENDINGS: Final = {
    "es": ((re.compile("(?<=[cgsx])ion$"), "ión"),),
    "fr": ((re.compile("ite(?=s?$)"), "ité"),),
    "it": ((re.compile("ita$"), "ità"),),
    "pt": ((re.compile("cao$"), "ção"), (re.compile("coes$"), "ções")),
}
_ELIDING: Final = frozenset({"ca", "fr", "it"})

_APOSTROPHE_RE: Final = re.compile("[\u2018\u2019\u02bc\u02b9\uff07]")
# Vowel signs of Arabic and points of Hebrew, which most texts leave out, and the Arabic stretching stroke.
_POINTS_RE: Final = re.compile(
    "[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670]+"
)
_ACCENT_RE: Final = re.compile("(?<=[A-Za-z\u0370-\u03ff])[\u0300-\u036f]+")
_ONE_FORM: Final = str.maketrans(
    {
        "ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ı": "i", "ё": "е",
        "أ": "ا", "إ": "ا", "آ": "ا", "ٱ": "ا", "ی": "ي", "ى": "ي", "ک": "ك",
    }
)  # fmt: skip

_SEPARATOR_RE: Final = re.compile("[-/._,@]")
_SEPARATOR_SPLIT_RE: Final = re.compile("([-/._,@])")
_LAST_PART_RE: Final = re.compile("[^-/._,@]+$")
_NUMBER_RE: Final = re.compile("[0-9]+(?:[.,][0-9]+)+")
_THOUSANDS_RE: Final = re.compile("[0-9]{1,3}(?:,[0-9]{3})+(?:[.][0-9]+)?|[0-9]{1,3}(?:[.][0-9]{3})+(?:,[0-9]+)?")
_MIXED_RE: Final = re.compile(r"([0-9]+)([^\W\d_]+)|([^\W\d_]+)([0-9]+)")
_DIGIT_RE: Final = re.compile("[0-9]")


def fold(word: str) -> str:
    """Take off what the same word is also written without.

    Args:
        word: A word in lower case.

    Returns:
        The word without the accents of Latin and Greek letters and without Arabic and Hebrew vowel signs, and with the
        letters that have several forms in one of them. Marks of other scripts, and ``й``, stay.
    """
    if word.isascii():
        return word
    word = _POINTS_RE.sub("", word.translate(_ONE_FORM))
    return unicodedata.normalize("NFC", _ACCENT_RE.sub("", unicodedata.normalize("NFD", word)))


class WordRules:
    """How the words of one language become terms; safe to share between threads.

    Args:
        language: ISO 639-1 code; a language without rules, or ``"und"``, gets neither stems nor stop words.
    """

    def __init__(self, language: str) -> None:
        self._eliding = language in _ELIDING
        self._accents_first = language not in _ACCENTS_IN_ENDINGS
        self._endings = _ENDINGS.get(language, ())
        self._stopwords = frozenset(fold(word) for word in stopwords(language))
        # A Snowball stemmer works in a buffer of its own, so only one thread may be inside it.
        self._stemmer = Stemmer.Stemmer(_STEMMERS[language], 0) if language in _STEMMERS else None
        self._lock = threading.Lock()
        self.terms: Callable[[str], tuple[str, ...]] = lru_cache(_MAX_CACHED)(self.terms_uncached)
        """``terms_uncached`` with a memory, for words of ordinary length."""

    @property
    def rules(self) -> str:
        """All that the terms depend on besides code: lists, patterns and the stemmer's version."""
        endings = [(pattern.pattern, ending) for pattern, ending in self._endings]
        stemmer = f"snowball {Stemmer.version()}" if self._stemmer else "none"
        return repr((sorted(self._stopwords), self._accents_first, self._eliding, endings, stemmer))

    def terms_uncached(self, word: str) -> tuple[str, ...]:
        """Give the terms of a word.

        Args:
            word: The word as it stands in the text, not empty.

        Returns:
            Its terms, a compound's with those of its parts; ``()`` for a stop word.
        """
        word = _APOSTROPHE_RE.sub("'", word.replace("\u2010", "-").casefold())
        if word[-1] in "+#":
            found = self._with_sign(word)
        else:
            found = self._compound(word) if _SEPARATOR_RE.search(word) else self._simple(word)
        return tuple(dict.fromkeys(term[:MAX_TERM] for term in found if term))

    def _simple(self, word: str) -> list[str]:
        """Terms of a word without a separator; apostrophes and digits may be in it."""
        bare = fold(word)
        if bare in self._stopwords:
            return []
        if "'" in word:
            if self._eliding:
                return [term for part in word.split("'") if part for term in self._simple(part)]
            return self._simple(word.removesuffix("'s").replace("'", ""))
        mixed = _MIXED_RE.fullmatch(bare)
        if mixed:
            return [bare, *(part for part in mixed.groups() if part and part not in self._stopwords)]
        return [self._stem(word)] if bare else []

    def _stem(self, word: str) -> str:
        if self._accents_first:
            word = fold(word)
        if self._stemmer is None or len(word) > MAX_TERM or _DIGIT_RE.search(word):
            return fold(word)
        for pattern, ending in self._endings:
            word = pattern.sub(ending, word)
        with self._lock:
            stem: str = self._stemmer.stemWord(word)
        return fold(stem)

    def _compound(self, word: str) -> list[str]:
        """Terms of a word with separators: a number, a code, an address or a hyphenated word."""
        if _NUMBER_RE.fullmatch(word):
            return _number(word)
        parts = _SEPARATOR_RE.split(word)
        if "." in word and all(len(part) == 1 and part.isalpha() for part in parts):  # U.S.A.
            return [fold("".join(parts))]
        terms = [term for part in parts for term in self._simple(part)]
        if "-" in word and min(map(len, parts)) == 1 and word.replace("-", "").isalpha():  # e-mail, X-ray
            terms.append(self._stem(word.replace("-", "")))
        return [*map(fold, _wholes(word)), *terms]

    def _with_sign(self, word: str) -> list[str]:
        """Terms of a word that ends in ``++`` or ``#``, as the name of a programming language may."""
        name = _LAST_PART_RE.search(word)
        start = name.start() if name else 0
        return [*(self.terms(word[: start - 1]) if start > 1 else ()), fold(word[start:])]


def _number(word: str) -> list[str]:
    """Terms of digits with dots and commas between them: an amount, a section, a version, a list.

    An amount is written with a dot before its decimals and without a mark between its thousands. ``1.234`` and
    ``1,234`` can be either, so they stand for both.
    """
    if _THOUSANDS_RE.fullmatch(word):
        grouping = "," if "," in word and word.find(",") < (word + ".").find(".") else "."
        terms = [word.replace(grouping, "").replace(",", ".")]
        if "," not in word or len(_SEPARATOR_RE.findall(word)) == 1:
            terms.append(word.replace(",", "."))
        return terms
    if "," not in word:
        sections = word.split(".")
        shortest = 2 if len(sections) <= _MAX_SEGMENTS else len(sections)
        return [".".join(sections[:length]) for length in range(len(sections), shortest - 1, -1)]
    if word.count(",") == 1 and "." not in word:
        return [word.replace(",", ".")]
    return [term for piece in word.split(",") for term in (_number(piece) if "." in piece else [piece])]


def _wholes(word: str) -> list[str]:
    """The stretches of a compound that are kept as they are: addresses, codes, dotted and underscored names."""
    if "@" in word:
        return [word, *word.split("@")]
    if _DIGIT_RE.search(word) or "_" in word:
        return _stretches(word)
    return [word] if "." in word else []


def _stretches(word: str) -> list[str]:
    """A code and every stretch of two or more of its parts: ``RD-750/2010``, ``RD-750``, ``750/2010``."""
    pieces = _SEPARATOR_SPLIT_RE.split(word)
    count = len(pieces) // 2 + 1
    if count > _MAX_SEGMENTS:
        return [word]
    found = [
        "".join(pieces[2 * start : 2 * (start + width) - 1])
        for width in range(count, 1, -1)
        for start in range(count - width + 1)
    ]
    if count == 2 and pieces[1] == "-":
        found.append(pieces[0] + pieces[2])  # NS-3 is also written NS3
    return found

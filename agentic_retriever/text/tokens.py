"""Terms for BM25 and keyword overlap, from text in any language.

Words of alphabets are stemmed; scripts written without spaces become overlapping character n-grams, which need no
dictionary and find a word wherever it stands (P. McNamee and J. Mayfield, "Character N-Gram Tokenization for European
Language Text Retrieval", Information Retrieval 7, 2004).
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from agentic_retriever.text.cleaning import lexical_form
from agentic_retriever.text.scripts import Script, character_class
from agentic_retriever.text.words import MAX_TERM, WordRules

if TYPE_CHECKING:
    from collections.abc import Iterable

TOKENIZER_VERSION: Final = 1
"""Grows by one with every change of the rules that changes the terms of some text."""

_TRIGRAM_CHARS: Final = character_class(Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR)
_BIGRAM_CHARS: Final = character_class(Script.HAN, Script.KANA, Script.HANGUL)

# Where Unicode keeps its combining marks; read from the database of the running Python, below.
_MARK_BLOCKS: Final = ((0x0300, 0x2000), (0x20D0, 0x2100), (0x2CE0, 0x3100), (0xA660, 0xAC00), (0xFB1E, 0xFE30),
                       (0x10A00, 0x12000), (0x1E000, 0x1E950))  # fmt: skip


def _mark_class() -> str:
    """Combining marks, as the inside of ``[...]``: ``re`` does not count them among the word characters."""
    marks = (chr(c) for first, behind in _MARK_BLOCKS for c in range(first, behind))
    taken = re.compile(f"[{_TRIGRAM_CHARS}{_BIGRAM_CHARS}]")
    return "".join(mark for mark in marks if unicodedata.category(mark)[0] == "M" and not taken.match(mark))


@lru_cache(1)
def _units_re() -> re.Pattern[str]:
    """Pattern of a unit of text: an abbreviation, a run of either kind, or a word with its separators."""
    letter = rf"[^\W_{_TRIGRAM_CHARS}{_BIGRAM_CHARS}]"
    word = rf"{letter}+(?:[{_mark_class()}]+{letter}*)*"
    separator = r"(?:[-\u2010/._@'\u2018\u2019\uff07]|(?<=[0-9]),(?=[0-9]))"
    sign = r"(?:(?<=[^\W\d_])(?:\+\+|#(?!\w)))?"
    return re.compile(
        rf"(?P<trigrams>(?:[\u0e01-\u0e2e]\.){{2,}}[0-9]*|[{_TRIGRAM_CHARS}]+)|(?P<bigrams>[{_BIGRAM_CHARS}]+)"
        rf"|{word}(?:{separator}{word})*{sign}"
    )


# The same units where a text is ASCII throughout, found in a third of the time.
_ASCII_UNITS_RE: Final = re.compile(
    r"[A-Za-z0-9]+(?:(?:[-/._@']|(?<=[0-9]),(?=[0-9]))[A-Za-z0-9]+)*(?:(?<=[A-Za-z])(?:\+\+|#(?!\w)))?", re.ASCII
)


@lru_cache(64)
def _rules(language: str) -> WordRules:
    return WordRules(language)


@dataclass(frozen=True)
class Tokenizer:
    """Cuts text into terms; one object serves documents and queries, and any number of threads.

    - Text is compared in NFKC form and without letter case, accents of Latin and Greek letters, Arabic and Hebrew vowel
      signs; every decimal digit counts as its ASCII one.
    - A word is letters, marks and digits. It is stemmed when Snowball knows the language; its stop words are dropped,
      save where they are written as a code is (``IT``, ``vitamin A``).
    - A run of Thai, Lao, Khmer or Burmese letters becomes its trigrams and bigrams, one of Chinese, Japanese or Korean
      its bigrams and characters, whatever the language.
    - A code, number, version or address (``6.2.1``, ``C++``, ``NS-3``, ``2007/46/CE``, ``1,234.5``) is kept whole, and
      its parts follow.

    Attributes:
        language: ISO 639-1 code of the words, region and letter case ignored; ``"und"`` for neither stems nor stop
            words.
    """

    language: str = "und"

    @property
    def _words(self) -> WordRules:
        return _rules(re.split("[-_]", self.language.lower(), maxsplit=1)[0])

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change when a text might be cut otherwise than before."""
        parts = (TOKENIZER_VERSION, self._words.rules, _TRIGRAM_CHARS, _BIGRAM_CHARS)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def tokens(self, text: str) -> list[str]:
        """Cut a text into terms.

        Args:
            text: Any text; nothing in it makes this raise.

        Returns:
            Terms in reading order, with repetitions; ``[]`` for a text of stop words, signs or nothing.
        """
        return self._cut(text, shorter=True)

    def query_tokens(self, text: str) -> list[str]:
        """Cut a query into the terms that tell most, for a search among terms of ``tokens``.

        The shorter n-grams are there to find a word of one or two letters. In a longer run they only add noise, so this
        leaves them out there; words of alphabets are treated as in ``tokens``.

        Args:
            text: Any text; nothing in it makes this raise.

        Returns:
            A sub-list of ``tokens(text)``.
        """
        return self._cut(text, shorter=False)

    def _cut(self, text: str, *, shorter: bool) -> list[str]:
        text = lexical_form(text)
        rules = self._words
        terms_of, long_terms_of = rules.terms, rules.terms_uncached
        found: list[str] = []
        for match in (_ASCII_UNITS_RE if text.isascii() else _units_re()).finditer(text):
            kind, unit = match.lastgroup, match[0]
            if kind is None:
                terms = terms_of(unit) if len(unit) <= MAX_TERM else long_terms_of(unit)
                if terms:
                    found.extend(terms)
                elif unit.isupper() and _is_code(text, match.start(), match.end()):
                    found.append(unit.casefold())
            elif "." in unit:
                found.extend(_abbreviation(unit))
            else:
                found.extend(_grams(unit, 3 if kind == "trigrams" else 2, shorter=shorter))
        return found


def _grams(run: str, size: int, *, shorter: bool) -> list[str]:
    """Every stretch of ``size`` characters and, if wanted, of one less; a run that is too short as it is."""
    if len(run) < size:
        return [run]
    grams = [run[at : at + size] for at in range(len(run) - size + 1)]
    if shorter:
        grams.extend(run[at : at + size - 1] for at in range(len(run) - size + 2))
    return grams


def _abbreviation(unit: str) -> list[str]:
    """Terms of Thai letters with a full stop behind each, and perhaps a number: ``น.ส.3``."""
    letters, _, number = unit.rpartition(".")
    joined = letters.replace(".", "")
    return [joined, unit, number] if number else [joined]


def _is_code(text: str, start: int, end: int) -> bool:
    """Tell whether a stop word in capitals is meant as a name: ``IT`` is, in a text that is not all in capitals.

    One letter must also stand behind a word, for at the start of a sentence it has its capital from there; ``I`` never
    counts.
    """
    if end - start == 1:
        before = text[max(0, start - 2) : start]
        return text[start] != "I" and len(before) == 2 and before[0].isalnum() and before[1] in " -"
    around = text[max(0, start - 40) : end + 40]
    return any(char.islower() for char in around)


def count_overlap(query_tokens: Iterable[str], text_tokens: Iterable[str]) -> float:
    """Tell how much of a query occurs in a text.

    Args:
        query_tokens: Terms of the query.
        text_tokens: Terms of the text, from the same tokenizer.

    Returns:
        The share of distinct query terms that are among the text's, in [0, 1]; 0.0 for a query without terms.
    """
    wanted = set(query_tokens)
    return len(wanted.intersection(text_tokens)) / len(wanted) if wanted else 0.0

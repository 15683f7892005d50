"""Terms for BM25 and keyword overlap, from text in any language.

Words of alphabets are stemmed; scripts written without spaces become overlapping character n-grams, which need no
dictionary and find a word wherever it stands (P. McNamee and J. Mayfield, "Character N-Gram Tokenization for European
Language Text Retrieval", Information Retrieval 7, 2004).
"""

import hashlib
import re
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import Stemmer

from agentic_retriever.text.language_files import any_listed, listed, section, stopwords
from agentic_retriever.text.numbers import MONTHS
from agentic_retriever.text.scripts import (
    ENDINGS,
    MARK_BLOCKS,
    ONE_FORM,
    STEMMERS,
    UNDETERMINED,
    UNSPACED_CHARS,
    Script,
    character_class,
    detect_language,
    lexical_form,
)

# From a word as it stands in a text to the terms under which it is found: the rules below the tokenizer.
# Stems are those of Snowball (M. F. Porter, "Snowball: a language for stemming algorithms", 2001). Accents are taken
# off on both sides, so that a query typed without them finds the word written with them.

# Longest term, in characters; longer ones (encoded data, mostly) are cut there, in documents and queries alike.
MAX_TERM: Final = 64
_MAX_CACHED: Final = 1 << 16
_MAX_SEGMENTS: Final = 5
_MOST_TIMES: Final = {2: 2, 3: 6}  # that a word counts beside bigrams or trigrams, which are several for one word

# The stemmers of these languages need the accents in the endings. Everywhere else the stem is taken after the accents
# are off, so that it cannot depend on them.
_ACCENTS_IN_ENDINGS: Final = frozenset({"fi", "ga", "hu", "lt", "ro", "sr", "tr"})
# Endings that the stemmer knows only with the accent; put back on words with and without it alike.
_ENDINGS: Final = {code: [(re.compile(bare), ending) for bare, ending in pairs] for code, pairs in ENDINGS.items()}
_ELIDING: Final = frozenset({"ca", "fr", "it"})

_APOSTROPHE_RE: Final = re.compile("[\u2018\u2019\u02bc\u02b9\uff07]")
# Vowel signs of Arabic and points of Hebrew, which most texts leave out, and the Arabic stretching stroke.
_POINTS_RE: Final = re.compile(
    "[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670]+"
)
_ACCENT_RE: Final = re.compile("(?<=[A-Za-z\u0370-\u03ff])[\u0300-\u036f]+")

_WORD_RE: Final = re.compile(r"[^\W\d_]+")
_SEPARATOR_RE: Final = re.compile("[-/._,@]")
_SEPARATOR_SPLIT_RE: Final = re.compile("([-/._,@])")
_LAST_PART_RE: Final = re.compile("[^-/._,@]+$")
_NUMBER_RE: Final = re.compile("[0-9]+(?:[.,][0-9]+)+")
_VERSION_RE: Final = re.compile("v([0-9]+(?:[.][0-9]+)+)")
_THOUSANDS_RE: Final = re.compile("[0-9]{1,3}(?:,[0-9]{3})+(?:[.][0-9]+)?|[0-9]{1,3}(?:[.][0-9]{3})+(?:,[0-9]+)?")
_MIXED_RE: Final = re.compile(r"([0-9]+)([^\W\d_]+)|([^\W\d_]+)([0-9]+)")
_DIGIT_RE: Final = re.compile("[0-9]")
_DATE_RE: Final = re.compile("[12][0-9]{3}[-/](0?[1-9]|1[0-2])(?:[-/]0?([1-9]|[12][0-9]|3[01])(?:t[0-9]+)?)?")
_YEAR_RE: Final = re.compile(r"(?<![\w./-])[12][0-9]{3}(?![\w/-])")
_DAY_RE: Final = re.compile("0?([1-9]|[12][0-9]|3[01])(?:st|nd|rd|th|er)?")
_DATE_JOINTS: Final = frozenset(["d", *listed("dates", "joints")])
_BEFORE_YEAR: Final = 30  # characters that day and month take at most


def fold(word: str) -> str:
    """Take off what the same word is also written without."""
    if word.isascii():
        return word
    word = _POINTS_RE.sub("", word.translate(ONE_FORM))
    return unicodedata.normalize("NFC", _ACCENT_RE.sub("", unicodedata.normalize("NFD", word)))


class WordRules:
    """How the words of one language become terms; safe to share between threads."""

    def __init__(self, language: str) -> None:
        self._eliding = language in _ELIDING
        self._accents_first = language not in _ACCENTS_IN_ENDINGS
        self._endings = _ENDINGS.get(language, ())
        self.stopwords = frozenset(fold(word) for word in stopwords(language))
        self._months: Mapping[str, list[str]] = section("dates").get(language, {"months": {}})["months"]
        self._short = {form[:-1]: forms[0] for forms in self._months.values() for form in forms if form[-1] == "."}
        # A Snowball stemmer works in a buffer of its own, so only one thread may be inside it.
        self._stemmer = Stemmer.Stemmer(STEMMERS[language], 0) if language in STEMMERS else None
        self._lock = threading.Lock()
        # With a memory, for words of ordinary length.
        self.terms: Callable[[str], tuple[str, ...]] = lru_cache(_MAX_CACHED)(self.terms_uncached)

    @property
    def rules(self) -> str:
        """All that the terms depend on besides code: lists, patterns and the stemmer's version."""
        endings = [(pattern.pattern, ending) for pattern, ending in self._endings]
        stemmer = f"snowball {Stemmer.version()}" if self._stemmer else "none"
        return repr((sorted(self.stopwords), self._accents_first, self._eliding, endings, stemmer))

    def terms_uncached(self, word: str) -> tuple[str, ...]:
        word = _APOSTROPHE_RE.sub("'", word.replace("\u2010", "-").casefold())
        if word[-1] in "+#":
            # The name of a programming language may end so.
            name = _LAST_PART_RE.search(word)
            start = name.start() if name else 0
            found = [*(self.terms(word[: start - 1]) if start > 1 else ()), fold(word[start:])]
        else:
            found = self._compound(word) if _SEPARATOR_RE.search(word) else self._simple(word)
        return tuple(dict.fromkeys(term[:MAX_TERM] for term in found if term))

    def _simple(self, word: str) -> list[str]:
        """Terms of a word without a separator; apostrophes and digits may be in it."""
        bare = fold(word)
        if bare in self.stopwords:
            return []
        if "'" in word:
            if self._eliding:
                return [term for part in word.split("'") if part for term in self._simple(part)]
            return self._simple(word.removesuffix("'s").replace("'", ""))
        mixed = _MIXED_RE.fullmatch(bare)
        if mixed:
            return [bare, *(part for part in mixed.groups() if part and part not in self.stopwords)]
        return [self._stem(one) for one in (word, self._short.get(word)) if one] if bare else []

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
        if date := _DATE_RE.fullmatch(word):  # 2012-01-04 is also found as 2012/1/4, as January and as 4
            terms += [_iso_date(word[:4], date[1], date[2])] if date[2] else []
            terms += [*self._simple(self._months[date[1].lstrip("0")][0]), date[2] or ""] if self._months else []
        if "-" in word and min(map(len, parts)) == 1 and word.replace("-", "").isalpha():  # e-mail, X-ray
            terms.append(self._stem(word.replace("-", "")))
        version = _VERSION_RE.fullmatch(word)  # v1.2.3 is also found as 1.2.3
        return [*map(fold, _wholes(word)), *(_number(version[1]) if version else ()), *terms]


def _iso_date(year: str, month: str | int, day: str) -> str:
    return f"{year}-{int(month):02}-{int(day):02}"


def _named_dates(text: str) -> Iterator[str]:
    """Find the dates with the name of a month, in any language, as ISO 8601 has them."""
    for year in _YEAR_RE.finditer(text):
        words = re.findall(r"\w+", text[max(0, year.start() - _BEFORE_YEAR) : year.start()].casefold())
        parts = [word for word in words if word not in _DATE_JOINTS][-2:]
        months, days = [MONTHS[one] for one in parts if one in MONTHS], list(map(_DAY_RE.fullmatch, parts))
        if months and any(days):
            yield _iso_date(year[0], months[0], next(day[1] for day in days if day))


def _number(word: str) -> list[str]:
    """Terms of digits with dots and commas between them; ``1.234`` and ``1,234`` are thousands or not: both count."""
    if _THOUSANDS_RE.fullmatch(word):
        grouping = "," if "," in word and word.find(",") < (word + ".").find(".") else "."
        terms = [word.replace(grouping, "").replace(",", ".")]
        if "," not in word or len(_SEPARATOR_RE.findall(word)) == 1:
            terms.append(word.replace(",", "."))
        return terms
    if "," not in word:
        sections = word.split(".")
        shortest = 2 if len(sections) <= _MAX_SEGMENTS else len(sections)
        shortest = 1 if set("".join(sections[1:])) == {"0"} else shortest  # version 3.0.0 is also version 3
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


TOKENIZER_VERSION: Final = 4  # grows by one with every change of the rules that changes the terms of some text

_TRIGRAM_CHARS: Final = character_class(Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR)
_BIGRAM_CHARS: Final = character_class(Script.HAN, Script.KANA, Script.HANGUL)


@lru_cache(1)
def _units_re() -> re.Pattern[str]:
    """Pattern of a unit of text: an abbreviation, a run of either kind, or a word with its separators."""
    # ``re`` does not count combining marks among the word characters.
    chars = (chr(c) for first, last in MARK_BLOCKS for c in range(int(first, 16), int(last, 16) + 1))
    taken = re.compile(f"[{_TRIGRAM_CHARS}{_BIGRAM_CHARS}]")
    marks = "".join(char for char in chars if unicodedata.category(char)[0] == "M" and not taken.match(char))
    letter = rf"[^\W_{_TRIGRAM_CHARS}{_BIGRAM_CHARS}]"
    word = rf"{letter}+(?:[{marks}]+{letter}*)*"
    separator = r"(?:[-\u2010/._@'\u2018\u2019\uff07]|(?<=[0-9]),(?=[0-9]))"
    sign = r"(?:(?<=[^\W\d_])(?:\+\+|#(?!\w)))?"
    return re.compile(
        rf"(?P<trigrams>(?:[\u0e01-\u0e2e]\.){{2,}}[0-9]*|[{_TRIGRAM_CHARS}]+)|(?P<bigrams>[{_BIGRAM_CHARS}]+)"
        rf"|{word}(?:{separator}{word})*{sign}"
    )


_rules: Final = lru_cache(64)(WordRules)

# The same units where a text is ASCII throughout, found in a third of the time.
_ASCII_UNITS_RE: Final = re.compile(
    r"[A-Za-z0-9]+(?:(?:[-/._@']|(?<=[0-9]),(?=[0-9]))[A-Za-z0-9]+)*(?:(?<=[A-Za-z])(?:\+\+|#(?!\w)))?", re.ASCII
)


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
        return self._cut(text, shorter=True)

    def query_tokens(self, text: str) -> list[str]:
        """Cut a query into the terms that tell most, for a search among terms of ``tokens``.

        The shorter n-grams are there to find a word of one or two letters. In a longer run they only add noise, so this
        leaves them out there; words of alphabets are treated as in ``tokens``.
        """
        return self._cut(text, shorter=False)

    def telling_tokens(self, question: str) -> list[str]:
        """Cut a question as ``query_tokens`` does, but for the function words of another language."""
        return self._cut(question, shorter=False, left_out=self._foreign_function_words(question))

    def weighed_tokens(self, text: str) -> list[str]:
        """Cut a query as ``query_tokens`` does, for scores that add up over terms.

        Beside n-grams a word or a number comes more than once; of Chinese and the like nothing is left that only asks.
        """
        size = 0 if text.isascii() else _size_of_grams(text)
        left = self._cut(without_asking(text), shorter=False, size=size) if size == 2 else ()
        return left or self._cut(text, shorter=False, size=size, left_out=self._foreign_function_words(text))

    def _foreign_function_words(self, question: str) -> AbstractSet[str]:
        """Those of a question in another language: rare where few texts are in it, they would seem to tell much."""
        rules = _rules(detect_language(question))
        if self.language == UNDETERMINED or rules is self._words:
            return frozenset()
        words = (word for word in _WORD_RE.findall(question) if len(word) == 1 or not word.isupper())
        found = {word for word in words if fold(word.casefold()) in rules.stopwords}
        return found if len(found) > 1 else frozenset()  # one alone may be a word of this language, too

    def _cut(self, text: str, *, shorter: bool, size: int = 0, left_out: AbstractSet[str] = frozenset()) -> list[str]:
        text = lexical_form(text)
        rules = self._words
        terms_of, long_terms_of = rules.terms, rules.terms_uncached
        found: list[str] = []
        for match in (_ASCII_UNITS_RE if text.isascii() else _units_re()).finditer(text):
            kind, unit = match.lastgroup, match[0]
            if unit in left_out:
                continue
            if kind is None:
                terms = terms_of(unit) if len(unit) <= MAX_TERM else long_terms_of(unit)
                if terms:
                    found.extend(terms * max(1, min(len(unit) - size + 1, _MOST_TIMES[size])) if size else terms)
                elif unit.isupper() and _is_code(text, match.start(), match.end()):
                    found.append(unit.casefold())
            elif "." in unit:
                # Thai letters with a full stop behind each, and perhaps a number: ``น.ส.3``.
                letters, _, number = unit.rpartition(".")
                found.extend([letters.replace(".", ""), *([unit, number] if number else [])])
            else:
                found.extend(_grams(unit, 3 if kind == "trigrams" else 2, shorter=shorter))
        return [*found, *_named_dates(text)]


def _size_of_grams(text: str) -> int:
    """Return how long the n-grams of a text are; 0 where it has none."""
    return 3 if re.search(f"[{_TRIGRAM_CHARS}]", text) else 2 if re.search(f"[{_BIGRAM_CHARS}]", text) else 0


def _grams(run: str, size: int, *, shorter: bool) -> list[str]:
    """Every stretch of ``size`` characters and, if wanted, of one less; a run that is too short as it is."""
    if len(run) < size:
        return [run]
    grams = [run[at : at + size] for at in range(len(run) - size + 1)]
    if shorter:
        grams.extend(run[at : at + size - 1] for at in range(len(run) - size + 2))
    return grams


def _is_code(text: str, start: int, end: int) -> bool:
    """Tell whether a stop word in capitals is meant as a name: ``IT`` is in other text, one letter behind a word."""
    if end - start == 1:
        before = text[max(0, start - 2) : start]
        return text[start] != "I" and len(before) == 2 and before[0].isalnum() and before[1] in " -"
    around = text[max(0, start - 40) : end + 40]
    return any(char.islower() for char in around)


def count_overlap(query_tokens: Iterable[str], text_tokens: Iterable[str]) -> float:
    """Tell how much of a query occurs in a text."""
    wanted = set(query_tokens)
    return len(wanted.intersection(text_tokens)) / len(wanted) if wanted else 0.0


# Names with numbers in them that stand for one thing: codes, and numbered things such as articles and deeds.
# A question for ``NS-7`` or ``article 57`` that is asked of an index with many identifiers of that kind, but not this
# one, asks for something that is not there.

MAX_IDENTIFIER: Final = 40  # characters; what is longer is no code
_NUMBERED: Final = listed("names", "numbered")  # words in front of the number of a thing: an article, a form, a deed


@lru_cache(1)
def _code_re() -> re.Pattern[str]:
    """Pattern of a code in a text without letter case."""
    letter = rf"[^\W\d_{UNSPACED_CHARS}]"
    other = f"[{UNSPACED_CHARS}]"
    start = r"(?<![\w./-])"
    return re.compile(
        # ns-3, e42, fy2026, rd-ab-12: letters, perhaps in parts, then a number.
        rf"{start}{letter}{{1,12}}(?:[-./]{letter}{{1,12}}){{0,3}}[-./]?[0-9][0-9a-z./-]*"
        # 3a-20000
        rf"|{start}[0-9]{{1,6}}{letter}{{1,3}}[-./][0-9][0-9a-z./-]*"
        # A few letters of a script without spaces count only with a separator: its words touch numbers freely.
        rf"|(?<![{UNSPACED_CHARS}\w./-]){other}{{1,5}}(?:[-.]{other}{{1,5}}){{0,5}}"
        rf"[-.][0-9][0-9./-]*(?:{other}(?!{other}))?"
    )


@lru_cache(1)
def _numbered_re() -> re.Pattern[str]:
    """Pattern of a word that numbers things, at the end of what stands before a number."""
    words = "|".join(lexical_form(word) for word in sorted(_NUMBERED, key=len, reverse=True))
    return re.compile(rf"(?<![a-zà-ɏ])({words})\s{{0,2}}$")


_LONGEST_WORD: Final = max(map(len, _NUMBERED)) + 3
_NUMBER: Final = re.compile(r"(?<![0-9.,])[0-9]{1,18}(?:\.[0-9]{1,9}){0,6}(?![0-9]|[.,][0-9])")
_LONG_NUMBER: Final = re.compile(r"(?<![0-9.,])(?:[0-9]{4,18}|[0-9]{1,4}(?:\.[0-9]{1,4}){2,6})(?![0-9])")
_JOINTS: Final = re.compile(r"[-./\s]")
_DIGITS: Final = re.compile(r"[0-9]+")
_LETTERS: Final = re.compile(r"[^\W\d_]+")


def identifiers(text: str) -> list[str]:
    plain = lexical_form(text).casefold()
    found: dict[str, None] = {}
    for word in plain.split():
        for match in _code_re().finditer(word) if _DIGITS.search(word) else ():
            code = match[0].rstrip(".-/")
            if len(code) <= MAX_IDENTIFIER:
                found.setdefault(_JOINTS.sub("", code))
    for number in _NUMBER.finditer(plain):
        before = _numbered_re().search(plain[max(0, number.start() - _LONGEST_WORD) : number.start()])
        if before:
            found.setdefault(f"{before[1]} {number[0]}")
    return list(found)


def numbers(text: str) -> list[str]:
    """Find the numbers that may name a thing wherever they stand: from four digits on."""
    return list(dict.fromkeys(match[0] for match in _LONG_NUMBER.finditer(lexical_form(text))))


def kind_of(identifier: str) -> str:
    """Return what identifiers of one kind share: ``a9`` for ``ns3`` and ``e42``, ``article 9`` for ``article 57``."""
    word, _, number = identifier.partition(" ")
    return f"{word} 9" if number else _DIGITS.sub("9", _LETTERS.sub("a", identifier))


def absent(wanted: Iterable[str], known: Mapping[str, frozenset[str]], *, least: int = 3) -> list[str]:
    """Find the identifiers that a collection does not have although it has others of their kind."""
    missing = []
    for name in wanted:
        number = name.partition(" ")[2]
        same_kind = known.get(kind_of(name), ())
        stands_alone = number in known.get(kind_of(number), ())
        if len(same_kind) >= least and name not in same_kind and not stands_alone:
            missing.append(name)
    return missing


# The words of a question that only ask, and say nothing of what it is about.
# Their n-grams would count as content. Words of alphabets need no list here, since the tokenizer drops stop words.
_ASKING: Final = any_listed("questions", "asking")
# What is said to whom answers, before it is said what about.
_REQUESTS: Final = any_listed("questions", "requests")


def without_requests(query: str) -> str:
    """Replace the words that only address whom is asked, such as ``give me an overview of``, by spaces."""
    return _REQUESTS.sub(" ", query)


def without_asking(query: str) -> str:
    """Replace the words that only ask, such as ``อะไร`` or ``什么``, by spaces."""
    return _ASKING.sub(" ", query)

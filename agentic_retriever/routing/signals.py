"""Words and patterns that tell what a question asks for: the sections ``signals`` and ``complexity`` of a language.

A program adds a language with ``agentic_retriever.register_language``. Entries are written without regard to letter
case and accents. A word may hold spaces and end in ``*`` for any ending; in scripts without spaces between words it is
found anywhere. A pattern is a regular expression over ``matching_form``; it must take linear time, so repetitions of
more than one character are bounded.
"""

from __future__ import annotations

import math
import re
import threading
import unicodedata
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from agentic_retriever.errors import ConfigError, RoutingError
from agentic_retriever.schema import Selection
from agentic_retriever.text import Tokenizer, detect_language
from agentic_retriever.text.language_files import NEVER, check_keys, check_strings, language_files, languages_with

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentic_retriever.indices.profile import IndexProfile


SourceT = TypeVar("SourceT")
MadeT = TypeVar("MadeT")


# Metadata values that a query names: the same words in the same order, whatever their endings.

MAX_EXAMINED: Final = 2_000
"""Characters of a query that routing looks at."""

_YEAR_DIGITS: Final = 4


def examined(query: str) -> str:
    """Return the part of a query that routing looks at: all of it, or both ends of a long one.

    In front of or behind a long pasted text stands what is asked about it.
    """
    half = MAX_EXAMINED // 2
    return query if len(query) <= MAX_EXAMINED else f"{query[:half]}\n{query[-half:]}"


@dataclass(frozen=True, slots=True)
class ValueHit:
    """A metadata value that occurs in a query."""

    field: str
    value: str


class ValueTable:
    """The values of one index, by the first term of each; immutable, safe to share between threads."""

    def __init__(self, field_values: Mapping[str, frozenset[str]], language: str) -> None:
        tokenizer = Tokenizer(language=language)
        self._by_first: dict[str, list[tuple[tuple[str, ...], ValueHit]]] = {}
        for field, values in sorted(field_values.items()):
            for value in sorted(values):
                terms = tuple(tokenizer.query_tokens(value))
                if terms and _tells_something(value):
                    self._by_first.setdefault(terms[0], []).append((terms, ValueHit(field, value)))

    def hits(self, terms: Sequence[str]) -> list[ValueHit]:
        """Find the values that occur among the terms of a query."""
        found: dict[ValueHit, None] = {}
        for at, term in enumerate(terms):
            for wanted, hit in self._by_first.get(term, ()):
                if tuple(terms[at : at + len(wanted)]) == wanted:
                    found.setdefault(hit)
        return list(found)


def _tells_something(value: str) -> bool:
    """Tell whether a value can be recognised in a sentence: a lone letter or a number that is no year cannot."""
    if any(char.isalpha() for char in value):
        return len(value.strip()) > 1
    return value.isdigit() and len(value) == _YEAR_DIGITS


class LastMade(Generic[SourceT, MadeT]):
    """What was made last of things that cannot be keys; an entry holds its source, so that its ``id`` stays taken."""

    def __init__(self, make: Callable[[SourceT, Any], MadeT], most: int) -> None:
        self._make = make
        self._most = most
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[int, Any], tuple[SourceT, MadeT]] = OrderedDict()

    def get(self, source: SourceT, detail: Any) -> MadeT:  # noqa: ANN401 - whatever else it is made of
        """Return what is made of a source and a detail."""
        key = (id(source), detail)
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key][1]
        made = self._make(source, detail)
        with self._lock:
            self._made[key] = (source, made)
            while len(self._made) > self._most:
                self._made.popitem(last=False)
        return made


_TABLES: Final = LastMade(ValueTable, 128)


def value_hits(profile: IndexProfile, terms: Sequence[str]) -> list[ValueHit]:
    """Find the metadata values of an index that a query names."""
    return _TABLES.get(profile.field_values, profile.language).hits(terms) if profile.field_values else []


WORDED: Final = ("comparison", "analysis", "overview", "procedure", "whole", "detail", "listing", "references")
"""Signals that are strong where a word or pattern of them occurs."""

SIGNALS: Final = (*WORDED, "range", "authorship")
"""Signals that every language describes."""

COMPLEXITY_LISTS: Final = (
    "complex_patterns",
    "strong_keywords",
    "medium_keywords",
    "simple_patterns",
    "conjunctions",
    "question_words",
)
"""Lists about complexity that every language has."""

HOPS: Final = "hops"
"""Key of the cues about questions in several steps, beside the lists about complexity."""

_ACCENTS: Final = re.compile("[\u0300-\u036f]+")


@dataclass(frozen=True, slots=True)
class HopCue:
    """A trait of wording that questions in several steps have more often than others."""

    name: str
    weight: float  # What each of its patterns adds when it occurs, in (0, 1]
    patterns: tuple[re.Pattern[str], ...]


@dataclass(frozen=True, slots=True)
class SignalTable:
    """The table of one language, compiled."""

    language: str  # ISO 639-1 code
    spaced: bool
    words: Mapping[str, re.Pattern[str]]
    patterns: Mapping[str, tuple[re.Pattern[str], ...]]
    hops: tuple[HopCue, ...]

    def matches(self, name: str, text: str) -> bool:
        """Tell whether a word or pattern of a list or signal occurs in a text in ``matching_form``."""
        found = self.words.get(name, NEVER).search(text) is not None
        return found or any(pattern.search(text) for pattern in self.patterns.get(name, ()))

    def found_words(self, name: str, text: str) -> list[str]:
        """Return the words of a list that occur in a text, in order, with repetitions."""
        return [match[0] for match in self.words.get(name, NEVER).finditer(text)]

    def found_patterns(self, name: str, text: str) -> list[re.Match[str]]:
        """Return the first match of each pattern of a list or signal that occurs in a text."""
        matches = (pattern.search(text) for pattern in self.patterns.get(name, ()))
        return [match for match in matches if match is not None]


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """A query as the tables see it."""

    text: str
    tables: tuple[SignalTable, ...]


@lru_cache(16)
def read_query(query: str) -> ReadQuery:
    """Bring a query into matching form and find its tables; remembered for the steps that ask for the same query."""
    language = detect_language(query)
    known = table_languages()
    tables = [load_table(code) for code in ((language,) if language in known else known)]
    # Nothing that is written in ASCII can hold a word of a script without spaces.
    fitting = [table for table in tables if table.spaced or not query.isascii()]
    return ReadQuery(matching_form(query), tuple(fitting or tables))


def matching_form(query: str) -> str:
    """Bring a query to the form that tables match: no accents or capitals, single spaces, both ends of a long one."""
    return " ".join(_unaccented(examined(query)).casefold().split())


def shown_form(query: str) -> str:
    """Bring a query to matching form with its capitals kept."""
    return " ".join(_unaccented(examined(query)).split())


_added: Final[dict[str, SignalTable]] = {}


def table_languages() -> tuple[str, ...]:
    """Return the codes of the languages that have a table, sorted."""
    return tuple(sorted({*packaged_languages(), *_added}))


def packaged_languages() -> tuple[str, ...]:
    """Return the codes of the languages that have a table in the package, sorted."""
    return languages_with("signals")


def load_table(language: str) -> SignalTable:
    """Return the table of a language, read and compiled once."""
    return _added.get(language) or _packaged_table(language)


def add_table(table: SignalTable) -> None:
    """Add a table for the whole process, or replace one that was added before."""
    _added[table.language] = table
    read_query.cache_clear()


def remove_table(language: str) -> None:
    """Take away a table that was added."""
    if language not in _added:
        raise ConfigError(f"no table was added for {language[:40]!r}; added: {', '.join(sorted(_added)) or 'none'}")
    del _added[language]
    read_query.cache_clear()


@lru_cache(64)
def _packaged_table(language: str) -> SignalTable:
    return parse_table(language_files()[language], file=f"languages/{language}.json")


def parse_table(data: Mapping[str, Any], *, file: str) -> SignalTable:
    """Compile a table."""
    check_keys(data["complexity"], (*COMPLEXITY_LISTS, HOPS), where=f"{file}: complexity")
    check_keys(data["signals"], SIGNALS, where=f"{file}: signals")
    words: dict[str, re.Pattern[str]] = {}
    patterns: dict[str, tuple[re.Pattern[str], ...]] = {}
    for name in COMPLEXITY_LISTS:
        key, entries = f"complexity.{name}", data["complexity"][name]
        if name.endswith("_patterns"):
            patterns[name] = _compiled(entries, file=file, key=key)
        else:
            words[name] = _word_pattern(entries, spaced=data["spaced"], file=file, key=key)
    for name, entry in data["signals"].items():
        check_keys(entry, ("words", "patterns"), where=f"{file}: signals.{name}")
        words[name] = _word_pattern(entry["words"], spaced=data["spaced"], file=file, key=f"signals.{name}.words")
        patterns[name] = _compiled(entry["patterns"], file=file, key=f"signals.{name}.patterns")
    hops = _hop_cues(data["complexity"][HOPS], file=file)
    return SignalTable(data["language"], data["spaced"], words, patterns, hops)


def _hop_cues(data: object, *, file: str) -> tuple[HopCue, ...]:
    """Compile the cues; a language may name its own."""
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: complexity.{HOPS} must be an object of cues by their names")
    cues = []
    for name, entry in data.items():
        key = f"complexity.{HOPS}.{name}"
        check_keys(entry, ("weight", "patterns"), where=f"{file}: {key}")
        weight = entry["weight"]
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0.0 < weight <= 1.0:
            raise ConfigError(f"{file}: {key}.weight must be a number above 0 and at most 1, not {weight!r}")
        cues.append(HopCue(name, float(weight), _compiled(entry["patterns"], file=file, key=f"{key}.patterns")))
    return tuple(cues)


def _compiled(entries: Any, *, file: str, key: str) -> tuple[re.Pattern[str], ...]:  # noqa: ANN401 - decoded JSON
    patterns = enumerate(check_strings(entries, where=f"{file}: {key}"))
    return tuple(_regex(pattern, where=f"{file}: {key}[{at}]") for at, pattern in patterns)


def _regex(pattern: str, *, where: str) -> re.Pattern[str]:
    try:
        return re.compile(_unaccented(pattern), re.IGNORECASE)
    except re.error as err:
        raise ConfigError(f"{where} is no regular expression: {err}") from err


def _word_pattern(entries: Any, *, spaced: bool, file: str, key: str) -> re.Pattern[str]:  # noqa: ANN401 - decoded JSON
    """One pattern for all words, longest first, so that the longest that fits is the one found."""
    words = sorted(check_strings(entries, where=f"{file}: {key}"), key=len, reverse=True)
    if not words:
        return NEVER
    ending = r"\w{0,20}" if spaced else ""
    options = "|".join(
        re.escape(_unaccented(word.removesuffix("*")).casefold()) + (ending if word.endswith("*") else "")
        for word in words
    )
    return re.compile(rf"(?<!\w)(?:{options})(?!\w)" if spaced else options)


def _unaccented(text: str) -> str:
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", text))


# The terms of a query, cut once for all steps of routing that ask for them.


@lru_cache(16)
def query_terms(query: str, language: str) -> tuple[str, ...]:
    """Cut a query into terms; remembered for the steps that ask for the same query."""
    return tuple(Tokenizer(language=language).query_tokens(examined(query)))


# Checking thresholds that are probabilities.


def checked_share(name: str, value: object) -> float:
    """Return a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{name} must be a number from 0 to 1, got {str(value)[:40]!r}")
    return float(value)


# From probabilities of indexes to a selection.


def check_names(profiles: Sequence[IndexProfile]) -> None:
    """Refuse no index at all, and two of one name."""
    names = [profile.name for profile in profiles]
    if not names:
        raise RoutingError("there is no index to choose from; add one first")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise RoutingError(f"several indexes have the same name: {', '.join(twice)}; give each its own")


def only_choice(profile: IndexProfile) -> Selection:
    """Settle what needs no classifier."""
    name = profile.name
    return Selection(name=name, confidence=1.0, scores={name: 1.0}, margin=1.0, reason="the only index", mode="only")


def pick(profiles: Sequence[IndexProfile], shares: Sequence[float], *, mode: str, index_margin: float) -> Selection:
    """Pick by probability; equals in order of registration."""
    order = sorted(range(len(profiles)), key=lambda at: (-shares[at], at))
    first, second = order[0], order[1]
    margin = shares[first] - shares[second]
    # An index without nodes has nothing to add, so it never comes along as the second.
    close = margin < index_margin and profiles[second].nodes > 0
    return Selection(
        name=profiles[first].name,
        names=tuple(profiles[at].name for at in order[: 2 if close else 1]),
        confidence=shares[first],
        scores={profiles[at].name: shares[at] for at in order},
        margin=margin,
        reason="",
        mode=mode,
    )


def softmax(logits: Sequence[float]) -> list[float]:
    """Turn logarithms of odds into probabilities."""
    top = max(logits)
    if top == -math.inf:
        return [1.0 / len(logits)] * len(logits)
    powers = [math.exp(logit - top) for logit in logits]
    total = math.fsum(powers)
    return [power / total for power in powers]

"""Words and patterns per language that tell what a question asks for; one JSON file per language in ``signals/``.

To add a language to the package, add ``signals/CODE.json`` with the keys of the others; a program adds one with
``agentic_retriever.register_language``. Entries are written without regard to letter
case and accents. A word may hold spaces and end in ``*`` for any ending; ``spaced: false`` is for scripts without
spaces between words, where a word is found anywhere. A pattern is a regular expression over ``matching_form``; it must
take linear time, so repetitions of more than one character are bounded.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import ConfigError
from agentic_retriever.routing.values import examined
from agentic_retriever.text import detect_language

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SIGNALS: Final = (
    "comparison",
    "analysis",
    "overview",
    "procedure",
    "whole",
    "detail",
    "listing",
    "references",
    "range",
    "authorship",
)
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
_NEVER: Final = re.compile(r"(?!)")


@dataclass(frozen=True, slots=True)
class HopCue:
    """A trait of wording that questions in several steps have more often than others.

    Attributes:
        name: Short name, for explanations.
        weight: What each of its patterns adds when it occurs, in (0, 1].
        patterns: Patterns over ``matching_form``.
    """

    name: str
    weight: float
    patterns: tuple[re.Pattern[str], ...]


@dataclass(frozen=True, slots=True)
class SignalTable:
    """The table of one language, compiled.

    Attributes:
        language: ISO 639-1 code.
        spaced: Whether words stand between spaces.
        words: Patterns of words, by name of the list or signal.
        patterns: Further patterns, by the same names.
        hops: Cues of questions in several steps.
    """

    language: str
    spaced: bool
    words: Mapping[str, re.Pattern[str]]
    patterns: Mapping[str, tuple[re.Pattern[str], ...]]
    hops: tuple[HopCue, ...]

    def matches(self, name: str, text: str) -> bool:
        """Tell whether a word or pattern of a list or signal occurs in a text in ``matching_form``."""
        found = self.words.get(name, _NEVER).search(text) is not None
        return found or any(pattern.search(text) for pattern in self.patterns.get(name, ()))

    def found_words(self, name: str, text: str) -> list[str]:
        """Return the words of a list that occur in a text, in order, with repetitions."""
        return [match[0] for match in self.words.get(name, _NEVER).finditer(text)]

    def found_patterns(self, name: str, text: str) -> list[re.Match[str]]:
        """Return the first match of each pattern of a list or signal that occurs in a text."""
        matches = (pattern.search(text) for pattern in self.patterns.get(name, ()))
        return [match for match in matches if match is not None]


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """A query as the tables see it.

    Attributes:
        text: In ``matching_form``.
        tables: The table of its language, or all tables when that language has none.
    """

    text: str
    tables: tuple[SignalTable, ...]


@lru_cache(16)
def read_query(query: str) -> ReadQuery:
    """Bring a query into matching form and find its tables; remembered for the steps that ask for the same query.

    Raises:
        ConfigError: If a table is damaged; file and key are named.
    """
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
    """Bring a query to matching form with its capitals kept; of the same length unless a capital has two small letters.

    Args:
        query: Any text.

    Returns:
        The text, whose characters stand where those of ``matching_form`` do when both are equally long.
    """
    return " ".join(_unaccented(examined(query)).split())


_added: Final[dict[str, SignalTable]] = {}


def table_languages() -> tuple[str, ...]:
    """Return the codes of the languages that have a table, sorted."""
    return tuple(sorted({*packaged_languages(), *_added}))


@lru_cache(1)
def packaged_languages() -> tuple[str, ...]:
    """Return the codes of the languages that have a table in the package, sorted."""
    names = (entry.name for entry in files("agentic_retriever.routing").joinpath("signals").iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def load_table(language: str) -> SignalTable:
    """Return the table of a language, read and compiled once.

    Raises:
        ConfigError: If the file is damaged; file and key are named.
    """
    return _added.get(language) or _packaged_table(language)


def add_table(table: SignalTable) -> None:
    """Add a table for the whole process, or replace one that was added before."""
    _added[table.language] = table
    read_query.cache_clear()


def remove_table(language: str) -> None:
    """Take away a table that was added.

    Raises:
        ConfigError: If none was added for the language.
    """
    if language not in _added:
        raise ConfigError(f"no table was added for {language[:40]!r}; added: {', '.join(sorted(_added)) or 'none'}")
    del _added[language]
    read_query.cache_clear()


@lru_cache(64)
def _packaged_table(language: str) -> SignalTable:
    file = files("agentic_retriever.routing").joinpath("signals").joinpath(f"{language}.json")
    return parse_table(file.read_text(encoding="utf-8"), file=f"signals/{language}.json")


def parse_table(text: str, *, file: str) -> SignalTable:
    """Compile a table.

    Args:
        text: The JSON.
        file: Name of the file for messages.

    Returns:
        The table.

    Raises:
        ConfigError: If it is no JSON, a key is missing, unknown or ill-typed, or a pattern is no regular expression.
    """
    try:
        data = json.loads(text)
    except ValueError as err:
        raise ConfigError(f"{file} is no JSON: {err}") from err
    _check_keys(data, ("language", "spaced", "complexity", "signals"), file=file, key="the table")
    if not isinstance(data["language"], str) or not isinstance(data["spaced"], bool):
        raise ConfigError(f"{file}: language must be a string and spaced true or false")
    _check_keys(data["complexity"], (*COMPLEXITY_LISTS, HOPS), file=file, key="complexity")
    _check_keys(data["signals"], SIGNALS, file=file, key="signals")
    words: dict[str, re.Pattern[str]] = {}
    patterns: dict[str, tuple[re.Pattern[str], ...]] = {}
    for name in COMPLEXITY_LISTS:
        key, entries = f"complexity.{name}", data["complexity"][name]
        if name.endswith("_patterns"):
            patterns[name] = _compiled(entries, file=file, key=key)
        else:
            words[name] = _word_pattern(entries, spaced=data["spaced"], file=file, key=key)
    for name, entry in data["signals"].items():
        _check_keys(entry, ("words", "patterns"), file=file, key=f"signals.{name}")
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
        _check_keys(entry, ("weight", "patterns"), file=file, key=key)
        weight = entry["weight"]
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0.0 < weight <= 1.0:
            raise ConfigError(f"{file}: {key}.weight must be a number above 0 and at most 1, not {weight!r}")
        cues.append(HopCue(name, float(weight), _compiled(entry["patterns"], file=file, key=f"{key}.patterns")))
    return tuple(cues)


def _check_keys(data: object, wanted: Iterable[str], *, file: str, key: str) -> None:
    allowed = set(wanted)
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: {key} must be an object with the keys {', '.join(sorted(allowed))}")
    if set(data) != allowed:
        odd = ", ".join(sorted(set(data) ^ allowed))
        raise ConfigError(f"{file}: {key} must have the keys {', '.join(sorted(allowed))}; missing or unknown: {odd}")


def _strings(entries: Any, *, file: str, key: str) -> list[str]:  # noqa: ANN401 - decoded JSON
    if not isinstance(entries, list) or not all(isinstance(entry, str) and entry for entry in entries):
        raise ConfigError(f"{file}: {key} must be a list of strings, none empty")
    return entries


def _compiled(entries: Any, *, file: str, key: str) -> tuple[re.Pattern[str], ...]:  # noqa: ANN401 - decoded JSON
    patterns = enumerate(_strings(entries, file=file, key=key))
    return tuple(_regex(pattern, where=f"{file}: {key}[{at}]") for at, pattern in patterns)


def _regex(pattern: str, *, where: str) -> re.Pattern[str]:
    try:
        return re.compile(_unaccented(pattern), re.IGNORECASE)
    except re.error as err:
        raise ConfigError(f"{where} is no regular expression: {err}") from err


def _word_pattern(entries: Any, *, spaced: bool, file: str, key: str) -> re.Pattern[str]:  # noqa: ANN401 - decoded JSON
    """One pattern for all words, longest first, so that the longest that fits is the one found."""
    words = sorted(_strings(entries, file=file, key=key), key=len, reverse=True)
    if not words:
        return _NEVER
    ending = r"\w{0,20}" if spaced else ""
    options = "|".join(
        re.escape(_unaccented(word.removesuffix("*")).casefold()) + (ending if word.endswith("*") else "")
        for word in words
    )
    return re.compile(rf"(?<!\w)(?:{options})(?!\w)" if spaced else options)


def _unaccented(text: str) -> str:
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", text))

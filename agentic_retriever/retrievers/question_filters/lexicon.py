"""Words that make a restriction out of a number or a value, per language; the data stands in ``languages/``.

To add a language, add ``languages/CODE.json`` with the keys of the others and its code to ``LANGUAGES``. Phrases are
written without regard to letter case and accents. Each kind of cue has a letter, so that a question becomes a short
string of letters over which small patterns run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.retrievers.question_filters.folding import folded
from agentic_retriever.text import UNDETERMINED, detect_language, stopwords

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LANGUAGES: Final = ("en", "es", "th")

SYMBOLS: Final[dict[str, str]] = {
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
    """One reading of a cue.

    Attributes:
        language: ISO 639-1 code of the language it belongs to.
        symbol: Its letter.
        value: What it says, such as ``"gte"``, a unit's id, a month or a factor.
    """

    language: str
    symbol: str
    value: str | float


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of measure: what it measures, and how much one is of that dimension's base unit."""

    dimension: str
    factor: float


@lru_cache(1)
def tables() -> Mapping[str, Mapping[str, Any]]:
    """Read the data of every language, by its code."""
    folder = files(__package__).joinpath("languages")
    return {code: json.loads(folder.joinpath(f"{code}.json").read_text(encoding="utf-8")) for code in LANGUAGES}


@lru_cache(1)
def units() -> Mapping[str, Unit]:
    """Read the known units, by id."""
    content = json.loads(files(__package__).joinpath("units.json").read_text(encoding="utf-8"))
    return {name: Unit(dimension, float(factor)) for name, (dimension, factor) in content.items()}


@lru_cache(1)
def phrases() -> Mapping[str, tuple[Reading, ...]]:
    """Give every cue of every language, by its folded phrase."""
    found: dict[str, list[Reading]] = {}
    for code, table in tables().items():
        for phrase, symbol, value in _cues(table):
            found.setdefault(folded(phrase), []).append(Reading(code, symbol, value))
    return {phrase: tuple(readings) for phrase, readings in found.items()}


def _cues(table: Mapping[str, Any]) -> Iterator[tuple[str, str, str | float]]:
    """Go through the cues of one language: phrase, letter and value."""
    lists = [(SYMBOLS[kind], by_value) for kind, by_value in table["cues"].items()]
    for symbol, by_value in (*lists, ("M", table["months"]), ("U", table["units"])):
        for value, listed in by_value.items():
            yield from ((phrase, symbol, value) for phrase in listed)
    for symbol, numbers in (("N", table["numbers"]), ("X", table["multipliers"])):
        yield from ((phrase, symbol, float(number)) for phrase, number in numbers.items())


def choose(readings: tuple[Reading, ...], languages: frozenset[str], *, behind_number: bool) -> Reading | None:
    """Choose the reading of a phrase that fits its place; ``None`` where no language in use has it."""
    usable = [reading for reading in readings if reading.language in languages]
    fitting = [reading for reading in usable if (reading.symbol in _BEHIND_NUMBER) is behind_number]
    return next(iter(fitting or usable), None)


def languages_in_use(query: str, language: str | None) -> frozenset[str]:
    """Tell whose cues to look for: the question's language, Thai, which cannot be mistaken, and what else it may be.

    Args:
        query: The question.
        language: ISO 639-1 code as the caller knows it, or ``None`` to find out.
    """
    code = (language or detect_language(query)).lower().replace("_", "-").split("-")[0]
    # One or two words are too few to tell a language by.
    if code in {"en", "es"} and (language is not None or len(query.split()) >= _MIN_WORDS):
        return frozenset({code, "th"})
    # Short questions are often taken for a neighbour of Spanish; Thai ones hold English words.
    return frozenset({"en", "th"}) if code == "th" else frozenset(LANGUAGES)


def decimal_sign(language: str) -> str:
    """Return the sign before decimals in a language, ``"."`` where it is not known."""
    return str(tables().get(language, {}).get("decimal", "."))


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
    return frozenset(folded(word) for table in tables().values() for word in table["common"])


@lru_cache(1)
def grammar_words() -> frozenset[str]:
    """Give the stop words of every language here and the cues, folded: never taken for a value unless it is named."""
    listed = {folded(word) for code in LANGUAGES for word in stopwords(code)}
    cues = {phrase for phrase, readings in phrases().items() if any(r.symbol not in "MUNX" for r in readings)}
    return frozenset(listed | cues)


@lru_cache(1)
def titles() -> frozenset[str]:
    """Give the forms of address that stand before a name, folded."""
    return frozenset(folded(word) for table in tables().values() for word in table["titles"])


def stem_language(query: str, language: str | None) -> str:
    """Tell whose stems serve for a question."""
    code = (language or detect_language(query)).lower().replace("_", "-").split("-")[0]
    return "und" if code in {"", UNDETERMINED} else code

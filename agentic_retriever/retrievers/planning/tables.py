"""How each language joins what a question asks for; one JSON file per language in ``languages/``.

To add a language, add ``languages/CODE.json`` with the keys of the others. Every entry is a regular expression without
capitals and, in Latin script, without accents (save in ``asks`` and ``relatives``, where accents tell a question word
from others); it must take linear time, so repetitions of more than one character are bounded. ``spaced: false`` is for
scripts without spaces between words, where an entry is found anywhere.
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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LISTS: Final = (
    "openers",
    "versus",
    "strong_joints",
    "joints",
    "about",
    "belongs",
    "clause_joints",
    "joins",
    "asks",
    "relatives",
    "not_names",
    "inside_names",
)
"""The lists that every language has."""

_NEVER: Final = re.compile("(?!)")


@dataclass(frozen=True, slots=True)
class ClauseTable:
    """The table of one language, compiled.

    The patterns match text in :func:`folded` form; ``asks``, ``relatives`` and ``clause_starts`` such in
    :func:`lowered` form.

    Attributes:
        language: ISO 639-1 code.
        spaced: Whether words stand between spaces.
        openers: What a comparison begins with.
        versus: What stands between two things compared, in any sentence.
        strong_joints: What stands between two things behind an opener, and nowhere within one of them.
        joints: What stands between two or more things behind an opener.
        about: What begins that which things are compared in.
        belongs: What stands between something asked and the thing that it is asked of.
        clause_joints: What stands between two clauses.
        joins: What may stand before the question word of a further clause.
        asks: Question words.
        relatives: Question words that behind a bare comma begin a relative clause.
        clause_starts: What stands between a clause and a further one that asks.
        not_names: Words that are no names though a question begins with them.
        inside_names: Small words that may stand within a name.
    """

    language: str
    spaced: bool
    openers: re.Pattern[str]
    versus: re.Pattern[str]
    strong_joints: re.Pattern[str]
    joints: re.Pattern[str]
    about: re.Pattern[str]
    belongs: re.Pattern[str]
    clause_joints: re.Pattern[str]
    joins: re.Pattern[str]
    asks: re.Pattern[str]
    relatives: re.Pattern[str]
    clause_starts: re.Pattern[str]
    not_names: re.Pattern[str]
    inside_names: re.Pattern[str]


def lowered(text: str) -> str:
    """Return a text without capitals, each character at its old place.

    Args:
        text: Any text.

    Returns:
        A text of the same length.
    """
    return "".join(low if len(low := char.lower()) == 1 else char for char in text)


def folded(text: str) -> str:
    """Return a text without capitals and Latin accents, each character at its old place.

    Args:
        text: Any text in NFC form.

    Returns:
        A text of the same length.
    """
    return "".join(map(_folded, text))


@lru_cache(4096)
def _folded(char: str) -> str:
    if char.isascii():
        return char.lower()
    lower = char.lower()
    base = unicodedata.normalize("NFD", lower)[0] if unicodedata.name(char, "").startswith("LATIN") else lower
    return base if len(base) == 1 else char


@lru_cache(1)
def table_languages() -> tuple[str, ...]:
    """Return the codes of the languages that have a table, sorted."""
    names = (entry.name for entry in files("agentic_retriever.retrievers.planning").joinpath("languages").iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


@lru_cache(64)
def load_table(language: str) -> ClauseTable:
    """Read and compile the table of a language, once.

    Raises:
        ConfigError: If the file is damaged; file and key are named.
    """
    file = files("agentic_retriever.retrievers.planning").joinpath("languages").joinpath(f"{language}.json")
    return parse_table(file.read_text(encoding="utf-8"), file=f"languages/{language}.json")


def parse_table(text: str, *, file: str) -> ClauseTable:
    """Compile a table.

    Args:
        text: The JSON.
        file: Name of the file for messages.

    Raises:
        ConfigError: If it is no JSON, a key is missing, unknown or ill-typed, or an entry is no regular expression.
    """
    try:
        data = json.loads(text)
    except ValueError as err:
        raise ConfigError(f"{file} is no JSON: {err}") from err
    wanted = {"language", "spaced", *LISTS}
    if not isinstance(data, dict) or set(data) != wanted:
        odd = ", ".join(sorted(set(data) ^ wanted)) if isinstance(data, dict) else "no object"
        raise ConfigError(f"{file} must have the keys {', '.join(sorted(wanted))}; missing or unknown: {odd}")
    if not isinstance(data["language"], str) or not isinstance(data["spaced"], bool):
        raise ConfigError(f"{file}: language must be a string and spaced true or false")
    patterns = {name: _compiled(data[name], spaced=data["spaced"], where=f"{file}: {name}") for name in LISTS}
    starts = _clause_starts(patterns) if data["spaced"] else _NEVER
    return ClauseTable(language=data["language"], spaced=data["spaced"], clause_starts=starts, **patterns)


def _clause_starts(patterns: Mapping[str, re.Pattern[str]]) -> re.Pattern[str]:
    """A comma or a joining word; a preposition or two may stand before the question word behind it."""
    joins, asks, relatives = (patterns[name].pattern for name in ("joins", "asks", "relatives"))
    asking = rf"(?:\w{{1,4}}\s){{0,2}}(?:{asks})"
    return re.compile(rf"(?:[,;]\s*|\s)(?:{joins})\s+(?={asking})|[,;]\s*(?!{relatives})(?={asking})")


def _compiled(entries: Any, *, spaced: bool, where: str) -> re.Pattern[str]:  # noqa: ANN401 - decoded JSON
    """Make one pattern of all entries, longest first, so that the longest that fits is the one found."""
    ordered = sorted(_strings(entries, where), key=len, reverse=True)
    if not ordered:
        return _NEVER
    options = "|".join(f"(?:{entry})" for entry in ordered)
    try:
        return re.compile(rf"(?<!\w)(?:{options})(?!\w)" if spaced else options)
    except re.error as err:
        raise ConfigError(f"{where} holds something that is no regular expression: {err}") from err


def _strings(entries: Any, where: str) -> Sequence[str]:  # noqa: ANN401 - decoded JSON
    if not isinstance(entries, list) or not all(isinstance(entry, str) and entry for entry in entries):
        raise ConfigError(f"{where} must be a list of strings, none empty")
    return entries

"""All words and patterns of a language stand in one file, ``languages/CODE.json``; adding a language is adding one.

A file has ``language`` (its code), ``spaced`` (whether words stand between spaces) and any of the sections:
``complexity`` and ``signals`` for routing; ``clauses`` for questions that are several; ``filters`` for what restricts
a search; ``answers`` for the kinds of answers; ``numbers`` and ``dates`` for their reader; ``names``; ``questions``
for words that only ask; ``follow_ups`` for what leans on the question before; ``polarity`` for what turns a sentence
round; ``sentences`` for where one ends; ``not_found`` for what is said when there is no answer; ``intents`` for the
questions that a benchmark makes; and ``stopwords``. Who uses a section reads and compiles it.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from importlib.resources import files
from typing import Any, Final

import ahocorasick

from agentic_retriever.errors import ConfigError

SECTIONS: Final = (
    "stopwords", "complexity", "signals", "clauses", "filters", "answers",
    "numbers", "dates", "names", "questions", "polarity", "sentences", "not_found", "intents", "follow_ups",
)  # fmt: skip

NEVER: Final = re.compile(r"(?!)")


def packaged_json(path: str) -> Any:  # noqa: ANN401 - as the file says
    """Read a file of facts that lies beside the code which knows what it holds, such as ``text/units.json``."""
    return json.loads(files("agentic_retriever").joinpath(path).read_text(encoding="utf-8"))


@lru_cache(1)
def language_files() -> Mapping[str, Mapping[str, Any]]:
    """Read the file of every language, once, by its code."""
    entries = [one for one in files("agentic_retriever").joinpath("languages").iterdir() if one.name.endswith(".json")]
    return {
        entry.name.removesuffix(".json"): parse_language(entry.read_text("utf-8"), file=f"languages/{entry.name}")
        for entry in sorted(entries, key=lambda entry: entry.name)
    }


def parse_language(text: str, *, file: str) -> Mapping[str, Any]:
    """Read the text of one file; the sections are checked by those who compile them."""
    try:
        data = json.loads(text)
    except ValueError as err:
        raise ConfigError(f"{file} is no JSON: {err}") from err
    if not isinstance(data, dict) or not isinstance(data.get("language"), str):
        raise ConfigError(f"{file} must be an object whose language is a code such as en")
    if not isinstance(data.get("spaced"), bool):
        raise ConfigError(f"{file}: spaced must be true or false")
    odd = sorted(set(data) - {"language", "spaced", *SECTIONS})
    if odd:
        raise ConfigError(f"{file} has unknown sections: {', '.join(odd)}; allowed: {', '.join(SECTIONS)}")
    return data


@cache
def languages_with(section: str) -> tuple[str, ...]:
    """Codes of the languages that have a section, sorted."""
    return tuple(code for code, data in language_files().items() if section in data)


# The lists of stop words are short on purpose: a rare word wrongly kept costs BM25 little (its weight is its rarity),
# one wrongly dropped can never be found. They are written in lower case with accents, question words among them.
_OF_BM25S: Final = {"da": "DANISH", "no": "NORWEGIAN", "sv": "SWEDISH", "tr": "TURKISH"}  # where no file has a list


@cache
def stopwords(language: str) -> frozenset[str]:
    if language in _OF_BM25S and language not in languages_with("stopwords"):
        return frozenset(getattr(import_module("bm25s.stopwords"), f"STOPWORDS_{_OF_BM25S[language]}"))
    return frozenset(language_files().get(language, {}).get("stopwords", ()))


@cache
def section(name: str) -> Mapping[str, Any]:
    """One section of every language that has it, by its code."""
    return {code: language_files()[code][name] for code in languages_with(name)}


def listed(name: str, key: str) -> list[Any]:
    """The entries of all languages under a key of a section."""
    return [entry for table in section(name).values() for entry in table.get(key, ())]


def any_listed(name: str, key: str) -> re.Pattern[str]:
    """One pattern for all that the languages list under a key, whatever the letter case."""
    return re.compile("|".join(listed(name, key)), re.IGNORECASE)


def check_keys(data: object, wanted: Iterable[str], *, where: str) -> Mapping[str, Any]:
    """Return an object of a file if it has just the wanted keys."""
    allowed = set(wanted)
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be an object with the keys {', '.join(sorted(allowed))}")
    if set(data) != allowed:
        odd = ", ".join(sorted(set(data) ^ allowed))
        raise ConfigError(f"{where} must have the keys {', '.join(sorted(allowed))}; missing or unknown: {odd}")
    return data


def check_strings(entries: object, *, where: str) -> list[str]:
    """Return a list of a file if it holds strings alone, none of them empty."""
    if not isinstance(entries, (list, tuple)) or not all(isinstance(entry, str) and entry for entry in entries):
        raise ConfigError(f"{where} must be a list of strings, none empty")
    return list(entries)


def any_of(entries: object, *, spaced: bool, where: str) -> re.Pattern[str]:
    """One pattern for all entries, longest first, so that the longest that fits is found; whole words if spaced."""
    joined = "|".join(f"(?:{option})" for option in sorted(check_strings(entries, where=where), key=len, reverse=True))
    if not joined:
        return NEVER
    try:
        return re.compile(rf"(?<!\w)(?:{joined})(?!\w)" if spaced else joined)
    except re.error as err:
        raise ConfigError(f"{where} holds something that is no regular expression: {err}") from err


_START: Final = "\0"  # put before each text, for the patterns that need no letters
_PARSER: Final = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


class PatternTable:
    """Many patterns by name; one pass over a text leaves few of them to search it for."""

    def __init__(self, patterns: Mapping[str, Sequence[re.Pattern[str]]]) -> None:
        self.listed = [(name, pattern) for name, listed in patterns.items() for pattern in listed]
        needed: dict[str, set[int]] = {_START: set()}
        for at, (_, pattern) in enumerate(self.listed):
            for text in _needed(_PARSER.parse(pattern.pattern, pattern.flags)) or {_START}:
                needed.setdefault(_folded(text), set()).add(at)
        self._automaton = ahocorasick.Automaton()
        for text, places in needed.items():
            self._automaton.add_word(text, places)
        self._automaton.make_automaton()
        self.likely = lru_cache(4)(self._likely)  # each step that reads a question asks for another name

    def _likely(self, text: str) -> Mapping[str, Sequence[re.Pattern[str]]]:
        """Return the patterns that may occur in a text, by name and in order: all others do not."""
        places = set[int]().union(*(found for _, found in self._automaton.iter(_START + _folded(text))))
        likely: dict[str, list[re.Pattern[str]]] = {}
        for name, pattern in map(self.listed.__getitem__, sorted(places)):
            likely.setdefault(name, []).append(pattern)
        return likely

    def found(self, name: str, text: str) -> list[re.Match[str]]:
        """Return the first match of each pattern of a name that occurs in a text."""
        return [match for pattern in self.likely(text).get(name, ()) if (match := pattern.search(text))]


def _folded(text: str) -> str:
    """Bring a text to a form that is the same for all that a pattern takes for the same without regard to case."""
    return text.replace("\u0130", "i").replace("\u0131", "i").casefold()


def _needed(parsed: Iterable[tuple[Any, Any]]) -> set[str]:
    """Find texts of which one occurs wherever a parsed pattern does, long ones if possible; none if there are none."""
    found, run = list[set[str]](), ""
    for kind, value in (*parsed, (_PARSER.AT, None)):
        if kind is _PARSER.LITERAL:
            run += chr(value)
            continue
        found, run = [*found, {run} if run else set()], ""
        if kind is _PARSER.SUBPATTERN:
            found.append(_needed(value[-1]))
        elif kind is _PARSER.BRANCH:
            options = [_needed(option) for option in value[1]]
            found.append(set().union(*options) if all(options) else set())
        elif kind in {_PARSER.MAX_REPEAT, _PARSER.MIN_REPEAT} and value[0] > 0:
            found.append(_needed(value[-1]))
    return max(found, key=lambda texts: min(map(len, texts), default=0))

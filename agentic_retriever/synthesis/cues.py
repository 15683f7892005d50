"""What a question asks for and what shows that a sentence has it: the section ``answers`` of each language.

``asks`` and ``shows`` hold regular expressions by kind, ``joints`` those between the parts of a question, ``leans``
those with which a sentence begins that leans on the one before it. All languages are tried on every text, since
questions and documents may differ in theirs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from agentic_retriever.text.language_files import language_files, languages_with
from agentic_retriever.text.numbers import numbers_in

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


NUMERIC: Final = frozenset({"number", "amount", "date", "duration", "percent", "time"})
"""Kinds of answers that hold a number."""

NAMED: Final = frozenset({"person", "place"})
"""Kinds of answers that hold a name."""

LISTING: Final = "listing"
OVERVIEW: Final = "overview"

_ANY_NUMBER: Final = 0.6
_NUMBER_WORD: Final = 0.5
_ENUMERATION: Final = re.compile(r"^\s*(?:[-*•]\s*)?\(?(?:\d{1,3}[.)]|(?:\d+\.)+\d+)\s+")
_EMPHASIS: Final = re.compile(r"[*_`]+")


@dataclass(frozen=True, slots=True)
class Cues:
    """The patterns of all languages."""

    asks: Mapping[str, re.Pattern[str]]
    shows: Mapping[str, re.Pattern[str]]
    joints: re.Pattern[str]
    leans: re.Pattern[str]


@lru_cache(1)
def answer_cues() -> Cues:
    """Read the patterns of all languages, once."""
    tables = [language_files()[code]["answers"] for code in languages_with("answers")]
    return Cues(
        asks={kind: _any(tables, "asks", kind, re.IGNORECASE) for kind in _kinds(tables, "asks")},
        # A name is known by its capital.
        shows={
            kind: _any(tables, "shows", kind, 0 if kind in NAMED else re.IGNORECASE) for kind in _kinds(tables, "shows")
        },
        joints=re.compile("|".join(p for table in tables for p in table["joints"]), re.IGNORECASE),
        leans=re.compile(r"\W*(?:" + "|".join(p for table in tables for p in table["leans"]) + ")", re.IGNORECASE),
    )


def asked_kinds(query: str) -> frozenset[str]:
    """Tell what kinds of answers a question asks for."""
    return frozenset(kind for kind, pattern in answer_cues().asks.items() if pattern.search(query))


def satisfaction(kinds: Collection[str], text: str, query: str) -> float:
    """Tell how far a text has what is asked for."""
    wanted = [kind for kind in kinds if kind in answer_cues().shows]
    if not wanted:
        return 0.0
    body = _EMPHASIS.sub("", _ENUMERATION.sub("", text))
    return max(_has(kind, body, query) for kind in wanted)


def _has(kind: str, body: str, query: str) -> float:
    cues = answer_cues()
    shown = cues.shows[kind]
    if kind in NUMERIC:
        if numbers_in(body) - numbers_in(query):
            return 1.0 if kind == "number" or shown.search(body) else _ANY_NUMBER
        return _NUMBER_WORD if shown.search(body) or cues.shows["number"].search(body) else 0.0
    if kind in NAMED:
        asked = query.casefold()
        return 1.0 if any(match[0].casefold() not in asked for match in shown.finditer(body)) else 0.0
    return 1.0 if shown.search(body) else 0.0


def split_parts(query: str) -> list[str]:
    """Cut a question at commas, conjunctions and question marks."""
    return [part for part in answer_cues().joints.split(query) if part and part.strip()]


def leans(sentence: str) -> bool:
    """Tell whether a sentence begins with a word that points back, such as "This" or "Dicho"."""
    return answer_cues().leans.match(sentence) is not None


def _kinds(tables: Collection[Mapping[str, Mapping[str, list[str]]]], key: str) -> list[str]:
    return sorted({kind for table in tables for kind in table[key]})


def _any(tables: Collection[Mapping[str, Mapping[str, list[str]]]], key: str, kind: str, flags: int) -> re.Pattern[str]:
    return re.compile("|".join(p for table in tables for p in table[key].get(kind, ())), flags)

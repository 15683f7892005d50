"""A question as it is matched against text: its terms and how much each tells, and the kind of answer it asks for.

In the section ``answers`` of each language ``asks`` and ``shows`` hold patterns by kind, ``joints`` those between parts
of a question, ``leans`` those with which a sentence begins that leans on the one before. All are tried on every text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

from agentic_retriever.text import Tokenizer
from agentic_retriever.text.language_files import any_listed, section
from agentic_retriever.text.numbers import numbers_in
from agentic_retriever.text.references import any_of
from agentic_retriever.text.tokens import without_asking

Weights = Mapping[str, float]

LISTING: Final = "listing"
OVERVIEW: Final = "overview"
WHICH: Final = "which"  # one thing among others, which a heading may name; no kind that a sentence shows
PROCEDURE: Final = "procedure"  # how to do something, step by step; no kind that a sentence shows either
POLAR: Final = "polar"  # yes or no
REASON: Final = "reason"
FREQUENCY: Final = "frequency"  # how often, in figures or words
DEFAULT: Final = "default"  # what holds where nobody sets anything; asked for besides a kind
NUMERIC: Final = frozenset({"count", "number", "amount", "price", "date", "duration", "percent", "time", "version"})
_NAMED: Final = frozenset({"person", "place"})
_ANY_NUMBER: Final = 0.6
NUMBER_WORD: Final = 0.5
_FLOOR: Final = 0.5
_MAX_PARTED: Final = 1_000
_MAX_PARTS: Final = 6
UNDATED: Final = r"\s+(?!\W?(?:19|20)\d\d\b)"  # "12.1 2022/01" is a release
_ENUMERATION: Final = re.compile(rf"^\s*(?:[-*•]\s*)?\(?(?:\d{{1,3}}[.)]|(?:\d+\.)+\d+){UNDATED}")
_EMPHASIS: Final = re.compile(r"[*_`]+")
_JOINTS: Final = any_listed("answers", "joints")
_LABELS: Final = re.compile(rf"\b(?:{any_of('labels')})(?!\w)", re.IGNORECASE)
# "Table 4.2"
LABEL: Final = re.compile(rf"{_LABELS.pattern}\s+(?:\d+|(?-i:[A-Z])\b)(?:[.-]\d+)*(?!\w)\W*", re.IGNORECASE)


@cache
def patterns_of(key: str) -> Mapping[str, re.Pattern[str]]:
    """One pattern a kind of answer, of all languages; a name is known by its capital."""
    by_kind: dict[str, list[str]] = {}
    for table in section("answers").values():
        for kind, patterns in table[key].items():
            by_kind.setdefault(kind, []).extend(patterns)
    return {
        kind: re.compile("|".join(patterns), 0 if key == "shows" and kind in _NAMED else re.IGNORECASE)
        for kind, patterns in sorted(by_kind.items())
    }


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    terms: tuple[str, ...]
    kinds: frozenset[str]
    parts: tuple[Question, ...] = ()  # What it asks one after the other; () when that is one thing

    @classmethod
    def of(cls, query: str, tokenizer: Tokenizer) -> Question:
        return cls(query, _terms_of(query, tokenizer), asked_kinds(query), _parts_of(query, tokenizer))

    def satisfaction(self, text: str, kinds: AbstractSet[str] | None = None) -> float:
        """How far a text has one of the kinds of answer that are asked for, or of those given."""
        kinds, query = self.kinds if kinds is None else kinds, self.text
        if not kinds:
            return 0.0
        body = _EMPHASIS.sub("", _ENUMERATION.sub("", text))
        body = body if _LABELS.search(query) else LABEL.sub(" ", body)
        counts = "count" in kinds and (counted := _counted(query)) is not None and counted.search(body) is not None
        defaults = DEFAULT in kinds and patterns_of("shows")[DEFAULT].search(body) is not None
        shown = (_has(kind, body, query) for kind in kinds - {DEFAULT} if kind in patterns_of("shows"))
        return max(shown, default=0.0) + counts + defaults

    def weights(self, texts: Sequence[Collection[str]]) -> dict[str, float]:
        """Weigh the terms by inverse document frequency; one that is everywhere brought the texts, and counts half."""
        size = len(texts)
        rarest = math.log(size + 1) or 1.0
        found = _without_parts({term: sum(term in text for text in texts) for term in self.terms})
        rarity = {term: math.log((size + 1) / (count + 1)) / rarest if size else 1.0 for term, count in found.items()}
        return {term: _FLOOR + (1 - _FLOOR) * rare for term, rare in rarity.items()}


def coverage(weights: Weights, terms: Collection[str]) -> float:
    total = sum(weights.values())
    return min(1.0, sum(weight for term, weight in weights.items() if term in terms) / total) if total else 0.0


def lacks_measure(query: str, texts: Sequence[str], *, foreign: bool) -> bool:
    """Tell whether a price, or so many of a unit, is asked for and no text has one; units of its language alone."""
    wanted = [patterns_of("shows")["price"]] if "price" in asked_kinds(query) else []
    if not foreign and (names := _counted_noun(query)[1]):
        word = "|".join(re.escape(name) for name in names if len(name) > 1)  # in the head of a table, and in "gigatons"
        symbol = "|".join(map(re.escape, names))
        wanted.append(re.compile(rf"(?:\d\s*(?:{symbol})|{word})(?![^\W\d_])", re.IGNORECASE))
    return not all(any(map(pattern.search, texts)) for pattern in wanted)


@lru_cache(1_000)
def _counted_noun(query: str) -> tuple[str, tuple[str, ...]]:
    """What "how many" asks for, and the names and symbols of the unit that it is: "metres", and "m", "metre", ..."""
    asked = patterns_of("asks")["count"].search(query)
    noun = asked and re.compile(r"\s+([^\W\d_]{4,})").match(query, asked.end())
    units = [names for table in section("numbers").values() for names in table.get("units", {}).values()]
    return (noun[1], tuple(n for names in units if noun[1].casefold() in names for n in names)) if noun else ("", ())


@lru_cache(1_000)
def _counted(query: str) -> re.Pattern[str] | None:
    """What says how many: "how many servers" wants "three servers", or "3 or more servers", "how many metres" "3 m"."""
    noun, units = _counted_noun(query)
    named = rf"[\s-]+(?:\w+\s+){{0,2}}?{re.escape(noun[: -1 - len(noun) // 7])}"
    symbol = rf"|\s*(?:{'|'.join(map(re.escape, units))})(?![^\W\d_])" if units else ""
    number = rf"(?:\d|{patterns_of('shows')['number'].pattern})"
    return re.compile(rf"{number}(?:{named}{symbol})", re.IGNORECASE) if noun else None


def _has(kind: str, body: str, query: str) -> float:
    shown = patterns_of("shows")[kind]
    if kind in NUMERIC:
        if numbers_in(body) - numbers_in(query):
            return 1.0 if kind == "number" or shown.search(body) else _ANY_NUMBER
        unit, word = shown.search(body), patterns_of("shows")["number"].search(body)
        return 1.0 if kind == "duration" and unit and word else NUMBER_WORD if unit or word else 0.0
    if kind in _NAMED:
        return 1.0 if any(match[0].casefold() not in query.casefold() for match in shown.finditer(body)) else 0.0
    return 1.0 if shown.search(body) else 0.0


@lru_cache(1_000)
def asked_kinds(query: str) -> frozenset[str]:
    return frozenset(kind for kind, asks in patterns_of("asks").items() if asks.search(query)) - {WHICH, PROCEDURE}


def _terms_of(query: str, tokenizer: Tokenizer) -> tuple[str, ...]:
    asked = patterns_of("asks")["count"].sub(" ", without_asking(query))
    return tuple(dict.fromkeys(tokenizer.telling_tokens(asked) or tokenizer.telling_tokens(query)))


def _parts_of(query: str, tokenizer: Tokenizer) -> tuple[Question, ...]:
    """Find the parts that say something of their own, each with its own terms only."""
    parts: list[Question] = []
    seen: set[str] = set()
    for text in _JOINTS.split(query[:_MAX_PARTED]):
        terms = tuple(term for term in _terms_of(text, tokenizer) if term not in seen) if text and text.strip() else ()
        seen.update(terms)
        if terms:
            parts.append(Question(text, terms, asked_kinds(text)))
    return tuple(parts) if 1 < len(parts) <= _MAX_PARTS else ()


def _without_parts(found: Mapping[str, int]) -> dict[str, int]:
    """Count a code such as ``fy2024`` once: as a whole where it occurs so, else by its parts."""
    kept = dict(found)
    for whole in found:
        parts = [term for term in found if term != whole and term in whole]
        if parts and any(map(str.isdecimal, whole)):
            for term in parts if found[whole] else [whole]:
                kept.pop(term, None)
    return kept

"""The dictionary of an index's own fields: their kinds, all their values, and the words they go by in a question."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Final

import ahocorasick

from agentic_retriever.filters import MAX_KEY_LENGTH, elements, parse_moment
from agentic_retriever.indices.profile import PERSON_FIELD_WORDS, STRUCTURAL_FIELDS
from agentic_retriever.text import Tokenizer
from agentic_retriever.text.numbers import units
from agentic_retriever.text.scripts import UNSPACED
from agentic_retriever.understanding.words import (
    Folded,
    PersonName,
    Reading,
    concept_words,
    folded,
    has_borders,
    is_listed_form,
    parse_listed,
    phrases,
)

_MAX_VALUES: Final = 50_000
"""Most distinct values that are kept of one field."""

_MAX_FIELDS: Final = 256
_MAX_VALUE_CHARS: Final = 80
_MAX_NUMBER: Final = 1e15
_TOPICAL_FROM: Final = 50
_PERSON_SHARE: Final = 0.6

_SEPARATORS: Final = re.compile(r"[\s_./-]+")
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_UNITS_IN_NAMES: Final = {
    "sqm": "m2", "pct": "percent", "baht": "thb", "euro": "eur", "hours": "h", "minutes": "min",
    "seconds": "s", "days": "day", "years": "yr", "months": "month", "weeks": "week", "hectares": "ha", "acres": "acre",
    "metres": "m", "meters": "m", "miles": "mile", "tonnes": "t", "litres": "l", "liters": "l",
}  # fmt: skip
_TOPICS: Final = frozenset(
    ["keyword", "keywords", "tag", "tags", "topic", "topics", "subject", "subjects", "term", "terms", "title",
     "summary", "abstract", "description", "text", "note", "notes", "palabras", "etiquetas", "temas"]
)  # fmt: skip
_YEARS: Final = frozenset(["year", "years", "ano", "anos", "annee", "jahr", "ปี"])


class FieldKind(str, Enum):
    """What a field holds."""

    KEYWORD = "keyword"
    NUMBER = "number"
    DATE = "date"
    BOOL = "bool"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldInfo:
    """What is known of one field."""

    name: str
    kind: FieldKind
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    unit: str | None = None  # Id of the unit of its numbers, or None
    words: tuple[str, ...] = ()
    person: bool = False
    topical: bool = False
    year: bool = False


@dataclass(frozen=True)
class FieldDictionary:
    """The fields of an index, ready to be found in questions; immutable, safe to share between threads."""

    fields: Mapping[str, FieldInfo]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))

    @cached_property
    def matcher(self) -> ValueMatcher:
        """The automaton over all values, names and cues; built when first asked for."""
        return ValueMatcher(self)

    def of_kind(self, *kinds: FieldKind) -> list[FieldInfo]:
        """Return the fields of some kinds, in order of their names."""
        return [info for _, info in sorted(self.fields.items()) if info.kind in kinds]

    @classmethod
    def build(cls, rows: Iterable[Mapping[str, object]]) -> FieldDictionary:
        """Make the dictionary from the metadata of all nodes."""
        gathered: dict[str, _Gathered] = {}
        for metadata in rows:
            for name, value in metadata.items():
                if name not in gathered:
                    full = len(gathered) >= _MAX_FIELDS
                    if full or name in STRUCTURAL_FIELDS or not _is_usable(name, MAX_KEY_LENGTH):
                        continue
                    gathered[name] = _Gathered()
                gathered[name].add(value)
        return cls({name: found.info(name) for name, found in gathered.items() if found.kinds})


class _Gathered:
    """The values of one field while they are collected."""

    def __init__(self) -> None:
        self.kinds: Counter[FieldKind] = Counter()
        self._texts: Counter[str] = Counter()
        self._low: dict[FieldKind, float] = {}
        self._high: dict[FieldKind, float] = {}
        self._listed = False

    def add(self, value: object) -> None:
        self._listed = self._listed or isinstance(value, (list, tuple, set, frozenset))
        for item in elements(value):
            if isinstance(item, bool):
                self.kinds[FieldKind.BOOL] += 1
            elif not isinstance(item, str):
                if abs(item) < _MAX_NUMBER:  # also refuses NaN
                    self._add_number(FieldKind.NUMBER, float(item))
            elif (moment := parse_moment(item)) is not None:
                self._add_number(FieldKind.DATE, float(moment[0].year))
            else:
                self.kinds[FieldKind.KEYWORD] += 1
                known = item in self._texts or len(self._texts) < _MAX_VALUES
                if known and _is_usable(item, _MAX_VALUE_CHARS):
                    self._texts[item] += 1

    def _add_number(self, kind: FieldKind, number: float) -> None:
        self.kinds[kind] += 1
        self._low[kind] = min(number, self._low.get(kind, number))
        self._high[kind] = max(number, self._high.get(kind, number))

    def info(self, name: str) -> FieldInfo:
        kind = max(self.kinds, key=lambda k: (self.kinds[k], k.value))
        parts = [folded(part) for part in _SEPARATORS.split(_CAMEL.sub("_", name)) if part]
        unit = _guess_unit(parts)
        values = _by_folded(self._texts) if kind is FieldKind.KEYWORD else {}
        person = bool(values) and _is_person(parts, values)
        # Years written as text, all of them.
        years = list(values) if all(len(key) == 4 and key.isdigit() for key in values) else []
        return FieldInfo(
            name=name,
            kind=kind,
            values=MappingProxyType(values),
            low=self._low.get(kind, float(min(years)) if years else None),
            high=self._high.get(kind, float(max(years)) if years else None),
            unit=unit if kind is FieldKind.NUMBER else None,
            words=_words(parts, unit),
            person=person,
            topical=not person and (not _TOPICS.isdisjoint(parts) or (self._listed and len(values) > _TOPICAL_FROM)),
            year=not _YEARS.isdisjoint(parts) and (kind is FieldKind.NUMBER or bool(years)),
        )


def _is_usable(text: str, max_chars: int) -> bool:
    """Tell whether a key or value can stand in a filter."""
    if not text.strip() or len(text) > max_chars:
        return False
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _by_folded(texts: Counter[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for text, _ in texts.most_common():
        key = folded(text)
        if key:
            found.setdefault(key, []).append(text)
    return {key: tuple(originals) for key, originals in found.items()}


def _is_person(parts: list[str], values: Mapping[str, tuple[str, ...]]) -> bool:
    if not PERSON_FIELD_WORDS.isdisjoint(parts):
        return True
    sample = [originals[0] for _, originals in zip(range(500), values.values(), strict=False)]
    return len(sample) >= 3 and sum(map(is_listed_form, sample)) >= _PERSON_SHARE * len(sample)


def _guess_unit(parts: list[str]) -> str | None:
    """Read the unit off the end of a field's name: ``area_rai``, ``weight_kg``."""
    if len(parts) < 2:
        return None
    last = _UNITS_IN_NAMES.get(parts[-1], parts[-1])
    return last if last in units() else None


def _words(parts: list[str], unit: str | None) -> tuple[str, ...]:
    """Collect what a question may call a field: its name, and what the name means in each language."""
    bare = parts[:-1] if unit else parts
    if len(bare) > 1 and bare[0] in {"is", "has"}:
        bare = bare[1:]
    found = {" ".join(bare): None}
    for part in bare[-1:]:
        for concept, words in concept_words().items():
            if part == concept or part in words:
                found.update(dict.fromkeys(words))
    return tuple(word for word in found if word)


# --- what a question may say: one pass that finds values, names of fields and cues ------------------------------------
#
# The automaton is that of A. V. Aho and M. J. Corasick, "Efficient String Matching: An Aid to Bibliographic Search",
# Communications of the ACM 18(6), 1975: its time grows with the question and with what is found, not with the number
# of values.

_MAX_STEMMED: Final = 2_000
_MAX_STEM_TABLES: Final = 8
_MIN_STEMMED: Final = 4
_LATIN_WORD: Final = re.compile(r"[^\W\d_]+")
_THAI_CODE: Final = re.compile("(?=.*[\u0e01-\u0e2e]\\.)[\u0e01-\u0e4e.0-9 /-]+")
_DIGITS: Final = re.compile("([0-9][0-9/-]*)")


@dataclass(frozen=True, slots=True)
class ValueRef:
    """What a stretch of text stands for in one field."""

    field: str
    originals: tuple[str, ...]
    how: str  # "exact", "flag", "family" or "stem"


@dataclass(frozen=True, slots=True)
class Match:
    """A stretch of the folded question and all that it may be."""

    start: int
    end: int
    values: tuple[ValueRef, ...] = ()
    fields: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()


@dataclass(slots=True)
class _Pattern:
    """All that one pattern stands for, while the automaton is made."""

    values: tuple[ValueRef, ...] = ()
    fields: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()


class ValueMatcher:
    """The automaton of one field dictionary; safe to share between threads."""

    def __init__(self, dictionary: FieldDictionary) -> None:
        self._fields = dictionary.fields
        self.families: dict[str, Mapping[str, list[tuple[PersonName, str]]]] = {}
        """Family names of each field of people: by folded family name, the names taken apart and as stored."""
        self._stems: dict[str, Mapping[str, tuple[ValueRef, ...]]] = {}
        patterns = {phrase: _Pattern(readings=readings) for phrase, readings in phrases().items()}
        for info in dictionary.fields.values():
            self._add_field(info, patterns)
        self._automaton = ahocorasick.Automaton()
        for phrase, pattern in patterns.items():
            self._automaton.add_word(phrase, (len(phrase), pattern))
        self._automaton.make_automaton()

    def _add_field(self, info: FieldInfo, patterns: dict[str, _Pattern]) -> None:
        for word in info.words:
            pattern = patterns.setdefault(word, _Pattern())
            pattern.fields = (*pattern.fields, info.name)
        if info.person:
            self.families[info.name] = _families(info)
        for phrase, ref in _phrases_of(info, self.families.get(info.name, {})):
            pattern = patterns.setdefault(phrase, _Pattern())
            if ref not in pattern.values:
                pattern.values = (*pattern.values, ref)

    def matches(self, text: str) -> Iterator[Match]:
        """Go through all matches in a folded text that stand as words of their own, overlapping ones included."""
        for last, (length, pattern) in self._automaton.iter(text):
            start, end = last + 1 - length, last + 1
            if has_borders(text, start, end):
                yield Match(start, end, pattern.values, pattern.fields, pattern.readings)
            elif pattern.readings and has_borders(text, start, end, digits_split=True):
                yield Match(start, end, readings=pattern.readings)

    def inflected(self, question: Folded, language: str, taken: Sequence[tuple[int, int]]) -> list[Match]:
        """Find one-word values by their stems, where nothing else was found."""
        table = self._stem_table(language)
        if not table:
            return []
        covered = {at for start, end in taken for at in range(start, end)}
        found: list[Match] = []
        tokenizer = Tokenizer(language=language)
        for word in _LATIN_WORD.finditer(question.text):
            if len(word[0]) < _MIN_STEMMED or word.start() in covered or UNSPACED.search(word[0]):
                continue
            stems = tokenizer.query_tokens(word[0])
            refs = _inflections(word[0], table.get(stems[0], ())) if len(stems) == 1 else ()
            if refs and has_borders(question.text, word.start(), word.end()):
                found.append(Match(word.start(), word.end(), refs))
        return found

    def _stem_table(self, language: str) -> Mapping[str, tuple[ValueRef, ...]]:
        if language not in self._stems:
            if len(self._stems) >= _MAX_STEM_TABLES:
                return {}
            # Two threads may make the same table; either is right.
            self._stems[language] = self._make_stems(language)
        return self._stems[language]

    def _make_stems(self, language: str) -> Mapping[str, tuple[ValueRef, ...]]:
        tokenizer = Tokenizer(language=language)
        table: dict[str, tuple[ValueRef, ...]] = {}
        for info in self._fields.values():
            if info.person or info.topical or len(info.values) > _MAX_STEMMED:
                continue
            for key, originals in info.values.items():
                if len(key) < _MIN_STEMMED or not _LATIN_WORD.fullmatch(key) or UNSPACED.search(key):
                    continue
                for stem in tokenizer.query_tokens(key)[:1]:
                    table[stem] = (*table.get(stem, ()), ValueRef(info.name, originals, "stem"))
        return table


def _phrases_of(
    info: FieldInfo, families: Mapping[str, list[tuple[PersonName, str]]]
) -> Iterator[tuple[str, ValueRef]]:
    """Go through all that stands for a value of a field in a question."""
    if info.kind is FieldKind.BOOL:
        yield from ((word, ValueRef(info.name, ("true",), "flag")) for word in info.words)
    for key, originals in info.values.items():
        yield from ((spelling, ValueRef(info.name, originals, "exact")) for spelling in _spellings(key))
    for family, names in families.items():
        yield family, ValueRef(info.name, tuple(stored for _, stored in names), "family")


def _inflections(word: str, refs: tuple[ValueRef, ...]) -> tuple[ValueRef, ...]:
    """Keep the values that differ from a word in its ending only: ``policies`` and ``policy``.

    Stems go further than that: ``operating`` and ``operations`` share one.
    """

    def alike(value: str) -> bool:
        same = min(len(word), len(value)) - 1
        return word[:same] == value[:same]

    return tuple(ref for ref in refs if any(alike(folded(original)) for original in ref.originals))


def _spellings(key: str) -> tuple[str, ...]:
    """Give the ways in which a folded value is written.

    A Thai abbreviation with a number is written with and without its stops and with spaces around the number:
    ``น.ส.3ก``, ``นส.3ก``, ``น.ส. 3 ก``.
    """
    if not _THAI_CODE.fullmatch(key):
        return (key,)
    letters, dot, rest = _split_code(key)
    tight = rest.replace(" ", "")
    loose = " ".join(part for part in _DIGITS.split(tight) if part)
    bare = letters.replace(".", "")
    heads = dict.fromkeys((f"{letters}{dot}", f"{bare}{dot}", bare))
    tails = dict.fromkeys((rest, tight, loose, f" {tight}", f" {loose}"))
    found = dict.fromkeys((key, *(f"{head}{tail}".strip() for head in heads for tail in tails)))
    return tuple(spelling for spelling in found if len(spelling) > 2)


def _split_code(key: str) -> tuple[str, str, str]:
    """Cut a code into its letters, the stop behind them, and the rest, which begins at its first digit."""
    at = _DIGITS.search(key)
    if at is None:
        return key.rpartition(".")
    head, rest = key[: at.start()], key[at.start() :]
    letters, dot, behind = head.rstrip().rpartition(".")
    return (letters, dot, rest) if dot and not behind else (head, "", rest)


def _families(info: FieldInfo) -> dict[str, list[tuple[PersonName, str]]]:
    found: dict[str, list[tuple[PersonName, str]]] = {}
    for originals in info.values.values():
        for stored in originals:
            name = parse_listed(stored)
            if name is not None and len(name.family) > 1:
                found.setdefault(name.family, []).append((name, stored))
    return found

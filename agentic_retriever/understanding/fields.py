"""The dictionary of an index's own fields: their kinds, all their values, and the words they go by."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import ahocorasick

from agentic_retriever.errors import ConfigError, unknown_name
from agentic_retriever.filters import MAX_KEY_LENGTH, elements, parse_moment
from agentic_retriever.indices.profile import STRUCTURAL_FIELDS
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

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


# One pass over a question that finds values, names of fields, aliases and cues.
#
# The automaton is that of A. V. Aho and M. J. Corasick, "Efficient String Matching: An Aid to Bibliographic Search",
# Communications of the ACM 18(6), 1975: its time grows with the question and with what is found, not with the number
# of
# values.

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
    how: str


@dataclass(frozen=True, slots=True)
class Match:
    """A stretch of the folded question and all that it may be."""

    start: int
    end: int
    values: tuple[ValueRef, ...] = ()
    fields: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()


class _Entry:
    """All that one pattern stands for."""

    __slots__ = ("fields", "readings", "values")

    def __init__(self) -> None:
        self.values: tuple[ValueRef, ...] = ()
        self.fields: tuple[str, ...] = ()
        self.readings: tuple[Reading, ...] = ()


class ValueMatcher:
    """The automaton of one field dictionary; safe to share between threads."""

    def __init__(self, dictionary: FieldDictionary) -> None:
        self._fields = dictionary.fields
        self.families: dict[str, Mapping[str, list[tuple[PersonName, str]]]] = {}
        """Family names of each field of people: by folded family name, the names taken apart and as stored."""
        self._stems: dict[str, Mapping[str, tuple[ValueRef, ...]]] = {}
        entries: dict[str, _Entry] = {}
        for phrase, readings in phrases().items():
            entries.setdefault(phrase, _Entry()).readings = readings
        for info in dictionary.fields.values():
            self._add_field(info, entries)
        for name, words in dictionary.aliases.items():
            for ref_word, ref in alias_refs(dictionary, name, words):
                _add(entries, ref_word, ref)
        self._automaton = _automaton(entries)

    def _add_field(self, info: FieldInfo, entries: dict[str, _Entry]) -> None:
        for word in info.words:
            entry = entries.setdefault(word, _Entry())
            entry.fields = (*entry.fields, info.name)
        if info.kind == "bool":
            for word in info.words:
                _add(entries, word, ValueRef(info.name, ("true",), "flag"))
        for key, originals in info.values.items():
            for spelling in spellings(key):
                _add(entries, spelling, ValueRef(info.name, originals, "exact"))
        if info.person:
            families = _families(info)
            self.families[info.name] = families
            for family, names in families.items():
                _add(entries, family, ValueRef(info.name, tuple(stored for _, stored in names), "family"))

    def matches(self, text: str) -> Iterator[Match]:
        """Go through all matches in a folded text that stand as words of their own, overlapping ones included."""
        for last, (length, entry) in self._automaton.iter(text):
            start, end = last + 1 - length, last + 1
            if has_borders(text, start, end):
                yield Match(start, end, entry.values, entry.fields, entry.readings)
            elif entry.readings and has_borders(text, start, end, digits_split=True):
                yield Match(start, end, readings=entry.readings)

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


def _inflections(word: str, refs: tuple[ValueRef, ...]) -> tuple[ValueRef, ...]:
    """Keep the values that differ from a word in its ending only: ``policies`` and ``policy``.

    Stems go further than that: ``operating`` and ``operations`` share one.
    """

    def alike(value: str) -> bool:
        same = min(len(word), len(value)) - 1
        return word[:same] == value[:same]

    return tuple(ref for ref in refs if any(alike(folded(original)) for original in ref.originals))


def alias_refs(dictionary: FieldDictionary, field: str, words: Mapping[str, str]) -> Iterator[tuple[str, ValueRef]]:
    """Look up what other words for values stand for; words for what the index does not have are left out."""
    info = dictionary.fields.get(field)
    for word, value in words.items() if info else ():
        originals = info.values.get(folded(value)) if info else None
        if originals and folded(word):
            yield folded(word), ValueRef(field, originals, "alias")


def alias_matches(dictionary: FieldDictionary, aliases: Mapping[str, Mapping[str, str]], text: str) -> Iterator[Match]:
    """Find words for values that were given for one question only."""
    entries: dict[str, _Entry] = {}
    for name, words in aliases.items():
        for word, ref in alias_refs(dictionary, name, words):
            _add(entries, word, ref)
    for last, (length, entry) in _automaton(entries).iter(text) if entries else ():
        if has_borders(text, last + 1 - length, last + 1):
            yield Match(last + 1 - length, last + 1, entry.values)


def spellings(key: str) -> tuple[str, ...]:
    """Give the ways in which a folded value is written.

    A Thai abbreviation with a number is written with and without its stops and with spaces around the number:
    ``น.ส.3ก``, ``นส.3ก``, ``น.ส. 3 ก``.
    """
    if not _THAI_CODE.fullmatch(key):
        return (key,)
    letters, dot, rest = key.rpartition(".") if not _DIGITS.search(key) else _split_code(key)
    tight = rest.replace(" ", "")
    loose = " ".join(part for part in _DIGITS.split(tight) if part)
    bare = letters.replace(".", "")
    heads = dict.fromkeys((f"{letters}{dot}", f"{bare}{dot}", bare))
    tails = dict.fromkeys((rest, tight, loose, f" {tight}", f" {loose}"))
    found = dict.fromkeys((key, *(f"{head}{tail}".strip() for head in heads for tail in tails)))
    return tuple(spelling for spelling in found if len(spelling) > 2)


def _split_code(key: str) -> tuple[str, str, str]:
    at = _DIGITS.search(key)
    head = key[: at.start()] if at else key
    letters, dot, behind = head.rstrip().rpartition(".")
    return (letters, dot, behind + key[len(head) :]) if dot and not behind else (head, "", key[len(head) :])


def _families(info: FieldInfo) -> dict[str, list[tuple[PersonName, str]]]:
    found: dict[str, list[tuple[PersonName, str]]] = {}
    for originals in info.values.values():
        for stored in originals:
            name = parse_listed(stored)
            if name is not None and len(name.family) > 1:
                found.setdefault(name.family, []).append((name, stored))
    return found


def _add(entries: dict[str, _Entry], phrase: str, ref: ValueRef) -> None:
    entry = entries.setdefault(phrase, _Entry())
    if ref not in entry.values:
        entry.values = (*entry.values, ref)


def _automaton(entries: dict[str, _Entry]) -> ahocorasick.Automaton:
    automaton = ahocorasick.Automaton()
    for phrase, entry in entries.items():
        automaton.add_word(phrase, (len(phrase), entry))
    automaton.make_automaton()
    return automaton


MAX_VALUES: Final = 50_000
"""Most distinct values that are kept of one field."""

MAX_FIELDS: Final = 256
MAX_VALUE_CHARS: Final = 80
_MAX_NUMBER: Final = 1e15
_TOPICAL_FROM: Final = 50
_PERSON_SHARE: Final = 0.6

_SEPARATORS: Final = re.compile(r"[\s_./-]+")
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_SPELLINGS: Final = {
    "sqm": "m2", "pct": "percent", "baht": "thb", "usd": "usd", "euro": "eur", "hours": "h", "minutes": "min",
    "seconds": "s", "days": "day", "years": "yr", "months": "month", "weeks": "week", "hectares": "ha", "acres": "acre",
    "metres": "m", "meters": "m", "miles": "mile", "tonnes": "t", "litres": "l", "liters": "l",
}  # fmt: skip
_PERSONS: Final = frozenset(
    ["author", "authors", "owner", "owners", "writer", "writers", "editor", "editors", "creator", "creators", "speaker",
     "speakers", "inventor", "inventors", "translator", "person", "contributor", "contributors", "autor", "autora",
     "autores", "propietario", "propietarios", "titular"]
)  # fmt: skip
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
    complete: bool = True


@dataclass(frozen=True)
class FieldDictionary:
    """The fields of an index, ready to be found in questions; immutable, safe to share between threads."""

    fields: Mapping[str, FieldInfo]
    aliases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))
        object.__setattr__(self, "aliases", MappingProxyType({k: dict(v) for k, v in self.aliases.items()}))

    @cached_property
    def matcher(self) -> ValueMatcher:
        """The automaton over all values, names, aliases and cues; built when first asked for."""
        return ValueMatcher(self)

    def of_kind(self, *kinds: FieldKind) -> list[FieldInfo]:
        """Return the fields of some kinds, in order of their names."""
        return [info for _, info in sorted(self.fields.items()) if info.kind in kinds]

    @classmethod
    def build(
        cls,
        items: Iterable[tuple[str, Mapping[str, object]]],
        *,
        units_of: Mapping[str, str] = MappingProxyType({}),
        words_of: Mapping[str, Sequence[str]] = MappingProxyType({}),
        aliases: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
        exclude: Collection[str] = STRUCTURAL_FIELDS,
        max_values: int = MAX_VALUES,
    ) -> FieldDictionary:
        """Make the dictionary from the metadata of all nodes."""
        for unit in units_of.values():
            if unit and unit not in units():
                raise ConfigError(unknown_name("unit", unit, units()))
        if max_values < 1:
            raise ConfigError(f"max_values must be at least 1, got {max_values}")
        gathered: dict[str, _Gathered] = {}
        for _, metadata in items:
            for name, value in metadata.items():
                if name not in gathered:
                    if name in exclude or len(gathered) >= MAX_FIELDS or not _usable(name, MAX_KEY_LENGTH):
                        continue
                    gathered[name] = _Gathered(max_values)
                gathered[name].add(value)
        fields = {
            name: found.info(name, units_of.get(name), words_of.get(name, ()))
            for name, found in gathered.items()
            if found.kinds
        }
        return cls(fields, aliases)


class _Gathered:
    """The values of one field while they are collected."""

    def __init__(self, max_values: int) -> None:
        self.kinds: Counter[FieldKind] = Counter()
        self.texts: Counter[str] = Counter()
        self.low: dict[FieldKind, float] = {}
        self.high: dict[FieldKind, float] = {}
        self.listed = False
        self.complete = True
        self._max_values = max_values

    def add(self, value: object) -> None:
        self.listed = self.listed or isinstance(value, (list, tuple, set, frozenset))
        for item in elements(value):
            if isinstance(item, bool):
                self.kinds[FieldKind.BOOL] += 1
            elif not isinstance(item, str):
                if abs(item) < _MAX_NUMBER:  # also refuses NaN
                    self._range(FieldKind.NUMBER, float(item))
            elif (moment := parse_moment(item)) is not None:
                self._range(FieldKind.DATE, float(moment[0].year))
            else:
                self._text(item)

    def _range(self, kind: FieldKind, number: float) -> None:
        self.kinds[kind] += 1
        self.low[kind] = min(number, self.low.get(kind, number))
        self.high[kind] = max(number, self.high.get(kind, number))

    def _text(self, item: str) -> None:
        self.kinds[FieldKind.KEYWORD] += 1
        if not _usable(item, MAX_VALUE_CHARS):
            return
        if item in self.texts or len(self.texts) < self._max_values:
            self.texts[item] += 1
        else:
            self.complete = False

    def info(self, name: str, unit: str | None, words: Sequence[str]) -> FieldInfo:
        kind = max(self.kinds, key=lambda k: (self.kinds[k], k.value))
        parts = [folded(part) for part in _SEPARATORS.split(_CAMEL.sub("_", name)) if part]
        guessed = _guess_unit(parts) if unit is None else unit or None
        values = _by_folded(self.texts) if kind is FieldKind.KEYWORD else {}
        person = bool(values) and _is_person(parts, values)
        years = _years(values)
        return FieldInfo(
            name=name,
            kind=kind,
            values=MappingProxyType(values),
            low=self.low.get(kind, years[0] if years else None),
            high=self.high.get(kind, years[1] if years else None),
            unit=guessed if kind is FieldKind.NUMBER else None,
            words=_words(parts, guessed, words),
            person=person,
            topical=not person and (not _TOPICS.isdisjoint(parts) or (self.listed and len(values) > _TOPICAL_FROM)),
            year=not _YEARS.isdisjoint(parts) and (kind is FieldKind.NUMBER or bool(years)),
            complete=self.complete,
        )


def _usable(text: str, max_chars: int) -> bool:
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
    if not _PERSONS.isdisjoint(parts):
        return True
    sample = [originals[0] for _, originals in zip(range(500), values.values(), strict=False)]
    return len(sample) >= 3 and sum(map(is_listed_form, sample)) >= _PERSON_SHARE * len(sample)


def _years(values: Mapping[str, tuple[str, ...]]) -> tuple[float, float] | None:
    """Give the least and greatest of values that are all years written as text."""
    if not values or not all(len(key) == 4 and key.isdigit() for key in values):
        return None
    return float(min(values)), float(max(values))


def _guess_unit(parts: list[str]) -> str | None:
    """Read the unit off the end of a field's name: ``area_rai``, ``weight_kg``."""
    if len(parts) < 2:
        return None
    last = _SPELLINGS.get(parts[-1], parts[-1])
    return last if last in units() else None


def _words(parts: list[str], unit: str | None, given: Sequence[str]) -> tuple[str, ...]:
    """Collect what a question may call a field: its name, what the name means in each language, what was configured."""
    bare = parts[:-1] if unit and len(parts) > 1 else list(parts)
    if len(bare) > 1 and bare[0] in {"is", "has"}:
        bare = bare[1:]
    found = dict.fromkeys(folded(word) for word in given)
    found[" ".join(bare)] = None
    concepts = concept_words()
    for part in bare[-1:]:
        for concept, words in concepts.items():
            if part == concept or part in words:
                found.update(dict.fromkeys(words))
    return tuple(word for word in found if word)

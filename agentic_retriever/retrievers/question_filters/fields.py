"""The dictionary of an index's own fields: their kinds, all their values, and the words they go by."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import ConfigError, unknown_name
from agentic_retriever.filters.check import MAX_KEY_LENGTH
from agentic_retriever.filters.values import elements, parse_moment
from agentic_retriever.indices.profile import STRUCTURAL_FIELDS
from agentic_retriever.retrievers.question_filters.folding import folded
from agentic_retriever.retrievers.question_filters.lexicon import concept_words, units
from agentic_retriever.retrievers.question_filters.matcher import ValueMatcher
from agentic_retriever.retrievers.question_filters.names import is_listed_form

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

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
    """What is known of one field.

    Attributes:
        name: Its name in the metadata.
        kind: What it holds; for mixed values the commonest kind, the others being left out.
        values: Stored spellings by folded form, commonest first; empty for numbers and dates.
        low: Least number, or the earliest year of dates and of years kept as text; ``None`` for other values.
        high: Greatest number, or the latest year likewise.
        unit: Id of the unit of its numbers, or ``None``.
        words: Folded words and phrases by which a question names it.
        person: Whether its values are names of people.
        topical: Whether its values are free subject words, which must be named or quoted to count.
        year: Whether it holds years.
        complete: Whether all values were kept.
    """

    name: str
    kind: FieldKind
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    unit: str | None = None
    words: tuple[str, ...] = ()
    person: bool = False
    topical: bool = False
    year: bool = False
    complete: bool = True


@dataclass(frozen=True)
class FieldDictionary:
    """The fields of an index, ready to be found in questions; immutable, safe to share between threads.

    Attributes:
        fields: What is known of each field, by name.
        aliases: Other words for values: by field, from the word to the stored value. Fields and values that the
            index does not have are left out, so that one table serves several indexes.
    """

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
        """Make the dictionary from the metadata of all nodes.

        Args:
            items: Id and metadata of each node.
            units_of: Unit ids by field, where the field's name does not end in its unit; ``""`` for none.
            words_of: Further words by which questions name a field.
            aliases: Other words for values, by field.
            exclude: Fields to leave out; by default those that ingestion sets itself.
            max_values: Most distinct values kept of one field.

        Raises:
            ConfigError: If a unit is not known or ``max_values`` is below 1.
        """
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

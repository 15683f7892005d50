"""One pass over a question that finds values, names of fields, aliases and cues.

The automaton is that of A. V. Aho and M. J. Corasick, "Efficient String Matching: An Aid to Bibliographic Search",
Communications of the ACM 18(6), 1975: its time grows with the question and with what is found, not with the number of
values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import ahocorasick

from agentic_retriever.retrievers.question_filters.folding import UNSPACED, Folded, folded, has_borders
from agentic_retriever.retrievers.question_filters.lexicon import Reading, phrases
from agentic_retriever.retrievers.question_filters.names import PersonName, parse_listed
from agentic_retriever.text import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentic_retriever.retrievers.question_filters.fields import FieldDictionary, FieldInfo

_MAX_STEMMED: Final = 2_000
_MAX_STEM_TABLES: Final = 8
_MIN_STEMMED: Final = 4
_LATIN_WORD: Final = re.compile(r"[^\W\d_]+")
_THAI_CODE: Final = re.compile("(?=.*[\u0e01-\u0e2e]\\.)[\u0e01-\u0e4e.0-9 /-]+")
_DIGITS: Final = re.compile("([0-9][0-9/-]*)")


@dataclass(frozen=True, slots=True)
class ValueRef:
    """What a stretch of text stands for in one field.

    Attributes:
        field: Name of the field.
        originals: The stored spellings.
        how: ``"exact"``, ``"alias"``, ``"family"``, ``"stem"`` or ``"flag"`` for the name of a true-or-false field.
    """

    field: str
    originals: tuple[str, ...]
    how: str


@dataclass(frozen=True, slots=True)
class Match:
    """A stretch of the folded question and all that it may be.

    Attributes:
        start: Where it begins.
        end: Where it ends.
        values: The values that it names.
        fields: The fields that it names.
        readings: Its readings as a cue.
    """

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
    """The automaton of one field dictionary; safe to share between threads.

    Args:
        dictionary: The fields.
    """

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
        for field, words in dictionary.aliases.items():
            for ref_word, ref in alias_refs(dictionary, field, words):
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
        """Find one-word values by their stems, where nothing else was found.

        Args:
            question: The question.
            language: Whose stems to use, ISO 639-1.
            taken: Stretches that are known already.
        """
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
    for field, words in aliases.items():
        for word, ref in alias_refs(dictionary, field, words):
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

"""What a question's words are held against: fields of an index, and a lexicon of cues, each kind of them a letter."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import cache, cached_property, lru_cache, partial
from itertools import chain, islice, pairwise
from typing import Any, Final

import ahocorasick

from agentic_retriever.filters import MAX_KEY_LENGTH, elements, parse_moment
from agentic_retriever.indices.derived import DerivedView
from agentic_retriever.indices.profile import FIELD_WORDS, STRUCTURAL_FIELDS
from agentic_retriever.indices.stored_nodes import StoredNodes
from agentic_retriever.json_files import load_model, write_atomically
from agentic_retriever.schema import frozen
from agentic_retriever.text import UNDETERMINED, Tokenizer, detect_language, stopwords
from agentic_retriever.text.language_files import listed, section
from agentic_retriever.text.numbers import number_words, units
from agentic_retriever.text.scripts import LEADING_VOWELS, UNSPACED, lexical_form
from agentic_retriever.text.tokens import fold

# --- the form in which questions and metadata values are compared, with the way back to the question's characters ----

_ALIKE: Final = str.maketrans({**dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"), "’": "'", "‘": "'"})
_QUOTES: Final = str.maketrans(dict.fromkeys("“”„«»", '"'))
# Signs that belong to the letter before them although Unicode does not count them among the marks.
_SPACING_VOWELS: Final = frozenset("\u0e33\u0eb3")
_THAI_E: Final = "\u0e40"

# Vowels written behind or around a consonant, and the repetition sign: no word begins with one.
_NEVER_FIRST: Final = frozenset("ะัาำิีึืฺุูๅๆ็่้๊๋์ํ๎ະັາຳິີຶືຸູົຼ່້໊໋໌ໍ")


@dataclass(frozen=True, slots=True)
class Folded:
    text: str
    starts: tuple[int, ...]  # For each of its characters, where in the original the piece begins that it came from
    ends: tuple[int, ...]

    def origin(self, start: int, end: int) -> tuple[int, int]:
        return self.starts[start], self.ends[end - 1]


def folded(text: str) -> str:
    if text.isascii():
        return " ".join(text.lower().split())
    return " ".join("".join(_fold_cluster(text[start:end]) for start, end in _clusters(text)).split())


def fold_query(text: str) -> Folded:
    """Bring a question to the same form and keep where each character came from."""
    chars: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for start, end in _clusters(text):
        for char in _fold_cluster(text[start:end]):
            blank = char.isspace()
            if blank and chars and chars[-1] == " ":
                ends[-1] = end
                continue
            chars.append(" " if blank else char)
            starts.append(start)
            ends.append(end)
    return Folded("".join(chars), tuple(starts), tuple(ends))


def has_borders(text: str, start: int, end: int, *, digits_split: bool = False) -> bool:
    if start > 0 and _glued(text[start - 1], text[start], digits_split=digits_split):
        return False
    return end >= len(text) or not _glued(text[end - 1], text[end], digits_split=digits_split)


def _glued(left: str, right: str, *, digits_split: bool) -> bool:
    if right in _NEVER_FIRST or left in LEADING_VOWELS:
        return True
    if not all(char.isalnum() or _is_mark(char) for char in (left, right)):
        return False
    split = digits_split and left.isdigit() != right.isdigit()
    return not (split or UNSPACED.match(left) or UNSPACED.match(right))


def _is_mark(char: str) -> bool:
    return unicodedata.category(char)[0] == "M"


def _clusters(text: str) -> Iterator[tuple[int, int]]:
    starts = (at for at in range(1, len(text)) if not _belongs(text[at], text[at - 1]))
    return pairwise((0, *starts, len(text)))


def _belongs(char: str, before: str) -> bool:
    if char < "\u0300":
        return False
    if char == _THAI_E:
        return before == _THAI_E
    return char in _SPACING_VOWELS or _is_mark(char)


@lru_cache(1 << 15)
def _fold_cluster(piece: str) -> str:
    return fold(lexical_form(piece).casefold()).translate(_ALIKE).translate(_QUOTES)


# --- the lexicon ----------------------------------------------------------------------------------------------------

# The letter of each kind of cue. Beside them: M a month, N a number, X a multiplier, U a unit.
_SYMBOLS: Final[dict[str, str]] = {
    "compare": "O", "time": "R", "either": "H", "from": "G", "postfix": "P", "in": "I", "year": "Y", "era": "E",
    "between": "B", "to": "T", "and": "A", "or": "C", "not": "K", "by": "J", "others": "L", "decade": "S",
    "topic": "?", "filler": "-",
}  # fmt: skip
_MIN_WORDS: Final = 3
# A phrase with several readings takes the one that fits behind a number there, and elsewhere the other.
_BEHIND_NUMBER: Final = "TPUXACEM"


@dataclass(frozen=True, slots=True)
class Reading:
    language: str  # ISO 639-1 code of the language it belongs to
    symbol: str
    value: str | float


@lru_cache(1)
def phrases() -> Mapping[str, tuple[Reading, ...]]:
    """Give every cue of every language, by its folded phrase."""
    found: dict[str, list[Reading]] = {}
    for code, table in section("filters").items():
        for phrase, symbol, value in _cues(code, table):
            found.setdefault(folded(phrase), []).append(Reading(code, symbol, value))
    return {phrase: tuple(readings) for phrase, readings in found.items()}


def _cues(code: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str, str | float]]:
    numbers, months = section("numbers")[code], section("dates")[code]["months"]
    lists = [(_SYMBOLS[kind], by_value) for kind, by_value in table["cues"].items()]
    for symbol, by_value in (*lists, ("M", months), ("U", numbers["units"])):
        for value, phrases_of_value in by_value.items():
            yield from ((phrase, symbol, value) for phrase in phrases_of_value)
    for symbol, by_phrase in (("N", number_words(code)), ("X", numbers["scales"])):
        yield from ((phrase, symbol, float(number)) for phrase, number in by_phrase.items())


def choose_reading(readings: tuple[Reading, ...], languages: frozenset[str], *, behind_number: bool) -> Reading | None:
    """Choose the reading of a phrase that fits its place; ``None`` where no language in use has it."""
    usable = [reading for reading in readings if reading.language in languages]
    fitting = [reading for reading in usable if (reading.symbol in _BEHIND_NUMBER) is behind_number]
    return next(iter(fitting or usable), None)


def question_languages(query: str, language: str | None) -> tuple[str, frozenset[str]]:
    """Tell whose stems serve for a question, and whose cues to look for: also Thai, which cannot be mistaken."""
    code = (language or detect_language(query)).lower().replace("_", "-").split("-")[0]
    # One or two words are too few to tell a language by.
    if code in {"en", "es"} and (language is not None or len(query.split()) >= _MIN_WORDS):
        return code, frozenset({code, "th"})
    # Short questions are often taken for a neighbour of Spanish; Thai ones hold English words.
    return code or UNDETERMINED, frozenset({"en", "th"} if code == "th" else section("filters"))


@lru_cache(1)
def concept_words() -> Mapping[str, dict[str, None]]:
    """Give the words for what a field holds, in every language, by its English name."""
    found: dict[str, dict[str, None]] = {}
    for table in section("filters").values():
        for concept, words in table["concepts"].items():
            found.setdefault(concept, {}).update(dict.fromkeys(map(folded, words)))
    return found


@cache
def listed_words(key: str) -> frozenset[str]:
    """``common``: words too common for a value to be recognised by them alone; ``titles``: forms of address; folded."""
    return frozenset(map(folded, listed("filters", key)))


@lru_cache(1)
def grammar_words() -> frozenset[str]:
    """Give the stop words of every language here and the cues, folded: never taken for a value unless it is named."""
    ignored = {folded(word) for code in section("filters") for word in stopwords(code)}
    cues = {phrase for phrase, readings in phrases().items() if any(r.symbol not in "MUNX" for r in readings)}
    return frozenset(ignored | cues)


# --- names of people, as bibliographies write them and as questions do ----------------------------------------------

_SUFFIX: Final = re.compile(r"[ ,]+(?:jr|sr|ii|iii|iv)\.?$")
_WORD: Final = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
# Both can read a text in one way only: any value of an index is held against them, such as "j. ae. scs. 25, 1958".
_LISTED: Final = re.compile(r"[^\W\d_][^,\d]{0,60}, ?[^\W\d_]\.?(?:-?[^\W\d_][\w.'-]*)?(?: [^\W\d_][\w.'-]*)*\.?")
_PLAIN: Final = re.compile(r"(?:[^\W\d_](?:\.{1,2} ?|[\w'-]+(?:\. ?| ))){1,3}[^\W\d_][\w'-]+")
_NEXT_NAME: Final = re.compile(r" *; *| and | & |(?<=\.) (?=[^\W\d_][\w'-]+,)")  # between several in one value
_PERSONS: Final = frozenset(FIELD_WORDS["people"])
_PARTICLES: Final = frozenset(FIELD_WORDS["family_particles"])


@dataclass(frozen=True, slots=True)
class PersonName:
    family: str
    given: tuple[str, ...]  # Given names or their initials, folded, in order; () where none are known


def parse_listed(name: str) -> PersonName | None:
    if len(name) > 80 or not name[:1].isalpha():
        return None
    if is_listed_form(name):
        family, _, given = name.partition(",")
        return PersonName(_SUFFIX.sub("", folded(family)), tuple(_WORD.findall(folded(given))))
    if not name.isascii() and not name[0].isupper():  # scripts without capitals
        return None
    if not _PLAIN.fullmatch(name) or not all(word[0].isupper() or word in _PARTICLES for word in name.split()):
        return None
    words = _WORD.findall(_SUFFIX.sub("", folded(name)))
    at = len(words) - 1
    while at > 1 and words[at - 1] in _PARTICLES:
        at -= 1
    return PersonName(" ".join(words[at:]), tuple(words[:at])) if len(words) >= 2 else None


def is_listed_form(name: str) -> bool:
    """Tell whether a value is written ``Last, F.``, which hardly anything but a name is."""
    return bool(_LISTED.fullmatch(name)) and len(name.partition(",")[0].split()) <= 4


def fits_given_names(given: tuple[str, ...], stored: tuple[str, ...]) -> bool:
    """Compare given names in order, initials by their letter: ``udo`` fits ``u w``, ``uwe`` does not fit ``udo``."""
    pairs = zip(given, stored, strict=False)
    return all(one == other or (1 in {len(one), len(other)} and one[0] == other[0]) for one, other in pairs)


# --- the fields of an index: their kinds, all their values, and the words they go by in a question -------------------

FIELDS_FILE: Final = "fields.json"
FIELDS_FORMAT: Final = 3  # raised whenever the same metadata would give another dictionary than before
_MAX_VALUES: Final = 50_000  # most distinct values that are kept of one field
_MAX_FIELDS: Final = 256
_MAX_VALUE_CHARS: Final = 80
_MAX_NUMBER: Final = 1e15
_TOPICAL_FROM: Final = 50
_PERSON_SHARE: Final = 0.6
_SEPARATORS: Final = re.compile(r"[\s_./-]+")
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_UNITS_IN_NAMES: Final[Mapping[str, str]] = FIELD_WORDS["units"]
_TOPICS: Final = frozenset(FIELD_WORDS["topics"])
_YEARS: Final = frozenset(FIELD_WORDS["years"])


class FieldKind(str, Enum):
    KEYWORD = "keyword"
    NUMBER = "number"
    DATE = "date"
    BOOL = "bool"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldInfo:
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
    rare: bool = False  # Most nodes do not have it


@dataclass(frozen=True)
class FieldDictionary:
    """The fields of an index, ready to be found in questions; immutable, safe to share between threads."""

    fields: Mapping[str, FieldInfo]

    @cached_property
    def matcher(self) -> ValueMatcher:
        return ValueMatcher(self)

    def of_kind(self, *kinds: FieldKind) -> list[FieldInfo]:
        return [info for _, info in sorted(self.fields.items()) if info.kind in kinds]

    @classmethod
    def build(cls, rows: Iterable[Mapping[str, object]]) -> FieldDictionary:
        gathered: dict[str, _Gathered] = {}
        size = 0
        for size, metadata in enumerate(rows, start=1):  # noqa: B007 - read behind the loop
            for name, value in metadata.items():
                if name not in gathered:
                    full = len(gathered) >= _MAX_FIELDS
                    if full or name in STRUCTURAL_FIELDS or not _is_usable(name, MAX_KEY_LENGTH):
                        continue
                gathered.setdefault(name, _Gathered()).add(value)
        made = cls(frozen({name: found.info(name, size) for name, found in gathered.items() if found.kinds}))
        _ = made.matcher  # so that no question has to make it
        return made


def fields_view(index: StoredNodes) -> DerivedView[FieldDictionary]:
    """The dictionary of a stored index, in a file beside its profile."""
    path = index.folder / FIELDS_FILE

    def read(version: int, data: Any) -> FieldDictionary | None:  # noqa: ANN401 - JSON
        try:
            is_current = (data["format"], data["version"]) == (FIELDS_FORMAT, version)
            fields = {one["name"]: _field_of(one) for one in data["fields"]} if is_current else {}
        except (AttributeError, KeyError, TypeError) as err:
            raise ValueError(f"not what was written: {err!r}") from err
        return FieldDictionary(frozen(fields)) if is_current else None

    def save(version: int, dictionary: FieldDictionary) -> None:
        plain = [asdict(replace(one, values=dict(one.values))) for one in dictionary.fields.values()]
        data = {"format": FIELDS_FORMAT, "version": version, "fields": plain}
        write_atomically(path, json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogatepass"))

    view = DerivedView(
        f"values of index {index.name!r}",
        index.catalog.version,
        load=lambda version: load_model(path, partial(read, version), advice="remove it"),
        build=lambda _version: FieldDictionary.build(node.metadata for node in index.known_nodes()),
        write=lambda dictionary: save(view.version, dictionary),
    )
    return view


def _field_of(data: dict[str, Any]) -> FieldInfo:
    values = frozen({key: tuple(texts) for key, texts in data["values"].items()})
    return FieldInfo(**{**data, "kind": FieldKind(data["kind"]), "values": values, "words": tuple(data["words"])})


class _Gathered:
    def __init__(self) -> None:
        self.kinds: Counter[FieldKind] = Counter()
        self._texts: Counter[str] = Counter()
        self._ranges: dict[FieldKind, tuple[float, float]] = {}
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
        low, high = self._ranges.get(kind, (number, number))
        self._ranges[kind] = min(number, low), max(number, high)

    def info(self, name: str, size: int) -> FieldInfo:
        kind = max(self.kinds, key=lambda k: (self.kinds[k], k.value))
        parts = [folded(part) for part in _SEPARATORS.split(_CAMEL.sub("_", name)) if part]
        last = _UNITS_IN_NAMES.get(parts[-1], parts[-1]) if len(parts) > 1 else ""
        unit = last if last in units() else None  # area_rai, weight_kg
        originals: dict[str, list[str]] = {}
        for text, _ in self._texts.most_common() if kind is FieldKind.KEYWORD else ():
            originals.setdefault(folded(text), []).append(text)
        values = {key: tuple(texts) for key, texts in originals.items() if key}
        sample = [texts[0] for texts in islice(values.values(), 500)]
        listed_form = len(sample) >= 3 and sum(map(is_listed_form, sample)) >= _PERSON_SHARE * len(sample)
        person = bool(values) and (listed_form or not _PERSONS.isdisjoint(parts))
        # Years written as text, all of them.
        years = sorted(values) if all(len(key) == 4 and key.isdigit() for key in values) else []
        low, high = self._ranges.get(kind) or ((float(years[0]), float(years[-1])) if years else (None, None))
        return FieldInfo(
            name=name,
            kind=kind,
            values=frozen(values),
            low=low,
            high=high,
            unit=unit if kind is FieldKind.NUMBER else None,
            words=_words(parts, unit),
            person=person,
            topical=not person and (not _TOPICS.isdisjoint(parts) or (self._listed and len(values) > _TOPICAL_FROM)),
            year=not _YEARS.isdisjoint(parts) and (kind is FieldKind.NUMBER or bool(years)),
            rare=2 * sum(self.kinds.values()) < size,
        )


def _is_usable(text: str, max_chars: int) -> bool:
    return bool(text.strip()) and len(text) <= max_chars and not any("\ud800" <= char <= "\udfff" for char in text)


def _words(parts: list[str], unit: str | None) -> tuple[str, ...]:
    """Collect what a question may call a field: its name, and what the name means in each language."""
    bare = parts[:-1] if unit else parts
    if len(bare) > 1 and bare[0] in {"is", "has"}:
        bare = bare[1:]
    same = [words for concept, words in concept_words().items() if bare and bare[-1] in (concept, *words)]
    return tuple(filter(None, dict.fromkeys(chain([" ".join(bare), " ".join(parts)], *same))))


# --- what a question may say: one pass that finds values, names of fields and cues ------------------------------------
# The automaton is that of A. V. Aho and M. J. Corasick, "Efficient String Matching: An Aid to Bibliographic Search",
# Communications of the ACM 18(6), 1975: its time grows with the question and with what is found, not with the number
# of values.

_MAX_STEMMED: Final = 2_000
_MAX_STEM_TABLES: Final = 8
_MIN_STEMMED: Final = 4
_LATIN_WORD: Final = re.compile(r"[^\W\d_]+")
_THAI_CODE: Final = re.compile("(?=.*[\u0e01-\u0e2e]\\.)[\u0e01-\u0e4e.0-9 /-]+")
_NUMBERED_CODE: Final = re.compile(r"([^0-9]*?)(?:(\.) *)?([0-9].*)")
_DIGITS: Final = re.compile("([0-9][0-9/-]*)")

Families = Mapping[str, list[tuple[PersonName, str]]]


@dataclass(frozen=True, slots=True)
class ValueRef:
    field: str
    originals: tuple[str, ...]
    how: str  # "exact", "flag", "family" or "stem"


@dataclass(frozen=True, slots=True)
class Match:
    """A stretch of the folded question and all that it may be; a pattern of the automaton while it has no place."""

    start: int = 0
    end: int = 0
    values: tuple[ValueRef, ...] = ()
    fields: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()


class ValueMatcher:
    def __init__(self, dictionary: FieldDictionary) -> None:
        self._fields = dictionary.fields
        # Family names of each field of people: by folded family name, the names taken apart and as stored.
        self.families: dict[str, Families] = {}
        self._stems: dict[str, Mapping[str, tuple[ValueRef, ...]]] = {}
        patterns = {phrase: Match(readings=readings) for phrase, readings in phrases().items()}
        for info in dictionary.fields.values():
            for word in info.words:
                pattern = patterns.get(word, Match())
                patterns[word] = replace(pattern, fields=(*pattern.fields, info.name))
            if info.person:
                self.families[info.name] = _families(info)
            for phrase, ref in _phrases_of(info, self.families.get(info.name, {})):
                pattern = patterns.get(phrase, Match())
                if ref not in pattern.values:
                    patterns[phrase] = replace(pattern, values=(*pattern.values, ref))
        self._automaton = ahocorasick.Automaton()
        for phrase, pattern in patterns.items():
            self._automaton.add_word(phrase, (len(phrase), pattern))
        self._automaton.make_automaton()

    def matches(self, text: str) -> Iterator[Match]:
        """Go through all matches in a folded text that stand as words of their own, overlapping ones included."""
        for last, (length, pattern) in self._automaton.iter(text):
            start, end = last + 1 - length, last + 1
            if has_borders(text, start, end):
                yield replace(pattern, start=start, end=end)
            elif pattern.readings and has_borders(text, start, end, digits_split=True):
                yield Match(start, end, readings=pattern.readings)

    def inflected(self, question: Folded, language: str, taken: Sequence[tuple[int, int]]) -> list[Match]:
        """Find one-word values by their stems, where nothing else was found."""
        if language not in self._stems and len(self._stems) < _MAX_STEM_TABLES:
            self._stems[language] = self._make_stems(language)  # two threads may make the same table; either is right
        table = self._stems.get(language)
        if not table:
            return []
        covered = {at for start, end in taken for at in range(start, end)}
        found: list[Match] = []
        tokenizer = Tokenizer(language=language)
        for word in _LATIN_WORD.finditer(question.text):
            if not _has_stem(word[0]) or word.start() in covered:
                continue
            stems = tokenizer.query_tokens(word[0])
            refs = _inflections(word[0], table.get(stems[0], ())) if len(stems) == 1 else ()
            if refs and has_borders(question.text, word.start(), word.end()):
                found.append(Match(word.start(), word.end(), refs))
        return found

    def _make_stems(self, language: str) -> Mapping[str, tuple[ValueRef, ...]]:
        tokenizer = Tokenizer(language=language)
        table: dict[str, tuple[ValueRef, ...]] = {}
        for info in self._fields.values():
            if info.person or info.topical or len(info.values) > _MAX_STEMMED:
                continue
            for key in filter(_has_stem, info.values):
                for stem in tokenizer.query_tokens(key)[:1]:
                    table[stem] = (*table.get(stem, ()), ValueRef(info.name, info.values[key], "stem"))
        return table


def _has_stem(word: str) -> bool:
    return len(word) >= _MIN_STEMMED and bool(_LATIN_WORD.fullmatch(word)) and not UNSPACED.search(word)


def _phrases_of(info: FieldInfo, families: Families) -> Iterator[tuple[str, ValueRef]]:
    if info.kind is FieldKind.BOOL:
        yield from ((word, ValueRef(info.name, ("true",), "flag")) for word in info.words)
    for key, originals in info.values.items():
        yield from ((spelling, ValueRef(info.name, originals, "exact")) for spelling in _spellings(key))
    for family, names in families.items():
        yield family, ValueRef(info.name, tuple(stored for _, stored in names), "family")


def _inflections(word: str, refs: tuple[ValueRef, ...]) -> tuple[ValueRef, ...]:
    """Keep the values that differ from a word in its ending only; ``operating`` and ``operations`` share a stem."""
    alike = ((ref, value, min(len(word), len(value)) - 1) for ref in refs for value in map(folded, ref.originals))
    return tuple(dict.fromkeys(ref for ref, value, same in alike if word[:same] == value[:same]))


def _spellings(key: str) -> tuple[str, ...]:
    """A Thai code with a number is also written without stops or spaced: ``น.ส.3ก``, ``นส.3ก``, ``น.ส. 3 ก``."""
    if not _THAI_CODE.fullmatch(key):
        return (key,)
    # Its letters, the stop behind them, and the rest, which begins at its first digit.
    parts = _NUMBERED_CODE.fullmatch(key)
    letters, dot, rest = parts.groups("") if parts else key.rpartition(".")
    tight = rest.replace(" ", "")
    loose = " ".join(part for part in _DIGITS.split(tight) if part)
    bare = letters.replace(".", "")
    heads = dict.fromkeys((f"{letters}{dot}", f"{bare}{dot}", bare))
    tails = dict.fromkeys((rest, tight, loose, f" {tight}", f" {loose}"))
    found = dict.fromkeys((key, *(f"{head}{tail}".strip() for head in heads for tail in tails)))
    return tuple(spelling for spelling in found if len(spelling) > 2)


def _families(info: FieldInfo) -> Families:
    found: dict[str, list[tuple[PersonName, str]]] = {}
    for stored in chain.from_iterable(info.values.values()):
        for name in filter(None, map(parse_listed, _NEXT_NAME.split(stored))):
            if len(name.family) > 1:
                found.setdefault(name.family, []).append((name, stored))
    return found

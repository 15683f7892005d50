"""A question in comparable form: the values and people it names, and its letters, over which restrictions are found."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from agentic_retriever.indices import fields
from agentic_retriever.text.numbers import Moment, add_up, decimal_sign, make_date, read_figures, units
from agentic_retriever.text.scripts import UNSPACED

MAX_EXAMINED: Final = 4_000  # characters of a question that are looked at; what stands behind them makes no clause
_MAX_GAP: Final = 16
_LINK: Final = re.compile(r"[\s:=\"'(]*(?:(?:of|is|in|the|de|del|la|el|es|คือ|เป็น|ชื่อ)[\s:=\"'(]*){0,2}")
_TIGHT_LINK: Final = re.compile(r"[\s:=\"'(]*(?:(?:is|are|es|est|คือ|เป็น)[\s:=\"'(]*)?")
_SET_OFF_RE: Final = re.compile(r"(?:[,;:] ?| ?[(\[]| - ?)\"?\Z")  # before what stands alone
_CLOSING_RE: Final = re.compile(r"\W*(?:[12][0-9]{3}\W*)?")  # behind it
_SENTENCE_END_RE: Final = re.compile(r"\w\w[.?!] ")
_WORD_RE: Final = re.compile(r"\w")


class Question:
    def __init__(self, query: str, dictionary: fields.FieldDictionary, language: str | None) -> None:
        examined = query[:MAX_EXAMINED]
        self.query, self.dictionary = query, dictionary
        self.folded: fields.Folded = fields.fold_query(examined)
        self.text = self.folded.text
        code, self.languages = fields.question_languages(examined, language)
        self.stems = (code, *sorted(self.languages - {"th", code}))
        self.decimal = decimal_sign(code)
        self.matches = tuple(dictionary.matcher.matches(self.text))
        self._ends: dict[int, list[fields.Match]] = {}
        self._starts: dict[int, list[fields.Match]] = {}
        for match in self.matches:
            if match.fields:
                self._ends.setdefault(match.end, []).append(match)
                self._starts.setdefault(match.start, []).append(match)

    def as_written(self, start: int, end: int) -> str:
        first, last = self.folded.origin(start, end)
        return self.query[first:last]

    def certainty_alone(self, start: int, end: int) -> float | None:
        """Return how sure a value is at least that is all that is asked, or stands apart, as in "paging (Denning)"."""
        opens = _WORD_RE.search(self.text, 0, start) is None
        if opens and self.is_last(end):
            return _WHOLE
        is_marked = opens or _SET_OFF_RE.search(self.text, max(0, start - 4), start)
        if is_marked and _SENTENCE_END_RE.search(self.text, 0, start):
            return None
        closes = _CLOSING_RE.fullmatch(self.text, end) or (opens and self.text[end : end + 1] == ":")
        return _SET_OFF if is_marked and closes else None

    def is_last(self, end: int) -> bool:
        return _WORD_RE.search(self.text, end) is None

    def named_before(self, start: int, *, tight: bool = False) -> tuple[frozenset[str], int]:
        """Return the fields named right before a place, and where the name begins; no word between if ``tight``."""
        for end in range(start, max(-1, start - _MAX_GAP), -1):
            if end in self._ends and (_TIGHT_LINK if tight else _LINK).fullmatch(self.text, end, start):
                named = self._ends[end]
                return _fields(named), min(match.start for match in named)
        return frozenset(), start

    def named_after(self, end: int) -> tuple[frozenset[str], int]:
        """Return the fields named right behind a place, as in ``finance department``, and where the name ends."""
        named = self._starts.get(end + 1, ()) if self.text[end : end + 1] == " " else ()
        return _fields(named), max((match.end for match in named), default=end)


def _fields(matches: Iterable[fields.Match]) -> frozenset[str]:
    return frozenset(name for match in matches for name in match.fields)


# --- values: which of those that stand in a question are meant, and how sure that is ---------------------------------
# A value is surest where its field is named beside it. Numbers alone, single letters, roman numerals, stop words and
# the free subject words of a topical field count only there (or, for the last, in quotation marks): ``text`` or
# ``1960`` in a question is rarely a value. The longest match wins, so ``น.ส.3ก`` is never taken for ``น.ส.3``. A
# value of several fields counts for the field that is named, else for any of them, with less certainty.

_NAMED: Final = 0.95
_QUOTED: Final = 0.9
_PLAIN: Final = {"exact": 0.8, "stem": 0.7, "flag": 0.6}
_DISTINCT_BONUS: Final = 0.1
_WHOLE: Final = 0.75  # at least, where nothing else is asked
_SET_OFF: Final = 0.85  # at least, where it stands alone beside other words
_UNSURE: Final = 0.5
_COMMON: Final = 0.35
_SEVERAL_FIELDS: Final = 0.7
_OTHER_FIELD: Final = 0.8  # factor where another field is named beside a value than the one that has it
_MAX_FIELDS: Final = 4
_SHORT_CAPITALS: Final = 5
_ROMAN: Final = re.compile(r"[ivxlc]{1,6}")


@dataclass(frozen=True, slots=True)
class NamedValue:
    refs: tuple[fields.ValueRef, ...]
    certainty: float  # In (0, 1]
    place: tuple[int, int]  # Where the value itself stands in the folded text
    span: tuple[int, int]  # The same with the name of its field or the word that negates it


def find_values(question: Question) -> list[NamedValue]:
    """Find the values that a question names, in reading order, without overlap."""
    chosen = _longest([*_judge(question, question.matches), *_find_people(question)])
    for language in question.stems:
        taken = [value.place for value in chosen]
        inflected = question.dictionary.matcher.inflected(question.folded, language, taken)
        chosen = _longest([*chosen, *_judge(question, inflected)])
    return chosen


def _longest(values: list[NamedValue]) -> list[NamedValue]:
    kept: list[NamedValue] = []
    covered: set[int] = set()
    for value in sorted(values, key=lambda v: (v.place[0] - v.place[1], v.place[0], -v.certainty)):
        if covered.isdisjoint(range(*value.place)):
            covered.update(range(*value.place))
            kept.append(value)
    return sorted(kept, key=lambda value: value.place)


def _judge(question: Question, matches: Iterable[fields.Match]) -> list[NamedValue]:
    return [value for match in matches if (value := _judge_one(question, match)) is not None]


def _judge_one(question: Question, match: fields.Match) -> NamedValue | None:
    refs = [ref for ref in match.values if ref.how != "family"]
    if not refs:
        return None
    own = match.start, match.end
    named, span = _fields_beside(question, match)
    meant = tuple(ref for ref in refs if ref.field in named)
    if meant:
        return NamedValue(meant, _NAMED * (_SEVERAL_FIELDS if len(meant) > 1 else 1.0), own, span)
    alone = question.certainty_alone(*own) or 0.0
    # Free subject words are less sure, and what opens "paging, Denning" is the subject indeed.
    topic = min(alone, _WHOLE) if question.is_last(match.end) else 0.0
    least = [topic if question.dictionary.fields[ref.field].topical else alone for ref in refs]
    judged = [(ref, _certainty_unnamed(question, match, ref) or low, low) for ref, low in zip(refs, least, strict=True)]
    usable = [(ref, max(certainty, low)) for ref, certainty, low in judged if certainty]
    if not usable or len(usable) > _MAX_FIELDS:
        return None
    certainty = min(certainty for _, certainty in usable)
    certainty *= (_SEVERAL_FIELDS if len(usable) > 1 else 1.0) * (_OTHER_FIELD if named else 1.0)
    certainty = max(certainty, min(alone, _WHOLE))
    return NamedValue(tuple(ref for ref, _ in usable), certainty, own, own)


def _fields_beside(question: Question, match: fields.Match) -> tuple[frozenset[str], tuple[int, int]]:
    """Fields named before a match or, where words stand between spaces, behind it; with the whole stretch."""
    own = match.start, match.end
    text = question.text[match.start : match.end]
    grammar = text in fields.grammar_words()
    if grammar and not _as_stored(question, match):
        return frozenset(), own
    before, start = question.named_before(match.start, tight=grammar or sum(map(str.isalpha, text)) < 2)
    if before or grammar or UNSPACED.search(text):
        return before, (start, match.end)
    after, end = question.named_after(match.end)
    return after, (match.start, end)


def _as_stored(question: Question, match: fields.Match) -> bool:
    shown = question.as_written(match.start, match.end)
    return any(shown in ref.originals for ref in match.values)


def _certainty_unnamed(question: Question, match: fields.Match, ref: fields.ValueRef) -> float | None:
    """How sure a value is whose field is not named; ``None`` where it does not count."""
    text = question.text[match.start : match.end]
    around = question.text[match.start - 1 : match.start] + question.text[match.end : match.end + 1]
    info = question.dictionary.fields[ref.field]
    if around == '""':
        return _UNSURE if info.topical else _QUOTED
    if info.topical or text in fields.grammar_words() or sum(map(str.isalpha, text)) < 2 or _ROMAN.fullmatch(text):
        return None
    if text in fields.listed_words("common"):
        return _COMMON
    if _is_short(text) or _other_capitals(question.as_written(match.start, match.end), ref):
        return _UNSURE if _as_stored(question, match) else None
    return _PLAIN[ref.how] + (_DISTINCT_BONUS if " " in text or any(map(str.isdigit, text)) else 0.0)


def _is_short(text: str) -> bool:
    """Tell whether a value is so short that it often stands inside or for something else."""
    if UNSPACED.match(text) is None:
        return len(text) <= 2
    return len(text) <= (3 if "\u0e00" <= text[0] < "\u1100" else 1)


def _other_capitals(shown: str, ref: fields.ValueRef) -> bool:
    """Tell whether an abbreviation in capitals stands in the question as a word in small letters: ``IT`` and ``it``."""
    short = all(original.isupper() and len(original) <= _SHORT_CAPITALS for original in ref.originals)
    return short and shown not in ref.originals and not UNSPACED.match(shown)


# --- people: a family name stands for the stored names that have it, a given name narrows them ----------------------

_CUED: Final = 0.85
_ALONE: Final = 0.5
_GIVEN_BONUS: Final = 0.1  # added where a given name or an initial stands beside the family name
_MAX_GIVEN: Final = 3
_MIN_ALONE: Final = 4
_WORD_BEFORE: Final = re.compile(r"(?:^|[\s,;:(\"'.-])(?P<word>[^\W\d_]{1,24})(?P<stop>\.?)[ -]?\Z")
_INITIALS_BEHIND: Final = re.compile(r",? ?(?P<initials>(?:[^\W\d_]\.[ -]?){1,3})")
_BETWEEN_NAMES: Final = re.compile(r"[ ,]*(?:and|or|y|e|o|u|ni|nor|&|และ|หรือ)?[ ]*")
_SENTENCE_START: Final = re.compile(r"(?:^|[.?!:;\n(])[ \"'¿¡]*\Z")
_MAX_NAME_CHARS: Final = 80


def _find_people(question: Question) -> list[NamedValue]:
    found: list[NamedValue] = []
    last_cued = -1  # Where the last name ends that a word such as "by" announced
    for match in sorted(question.matches, key=lambda m: (m.start, -m.end)):
        refs = [ref for ref in match.values if ref.how == "family"]
        if not refs:
            continue
        start, end, given = _find_given(question, match)
        kept = tuple(filter(None, (_narrow(question, match, ref, given) for ref in refs)))
        stored = any(question.as_written(match.start, match.end) in one for ref in refs for one in ref.originals)
        alone = stored and question.certainty_alone(start, match.end) is not None
        cued = alone or _is_cued(question, start, refs, last_cued)
        if kept and _is_person(question, match, cued=cued, given=bool(given)):
            last_cued = match.end if cued else last_cued
            certainty = (_CUED if cued else _ALONE) + (_GIVEN_BONUS if given else 0.0)
            found.append(NamedValue(kept, certainty, (start, end), (start, end)))
    return found


def _is_cued(question: Question, start: int, refs: Sequence[fields.ValueRef], last_cued: int) -> bool:
    """Tell whether a name stands behind its field or a word such as ``by``, or in a list that began behind one."""
    if 0 <= last_cued <= start and _BETWEEN_NAMES.fullmatch(question.text, last_cued, start):
        return True
    named = question.named_before(start)[0]
    before = question.text[max(0, start - _MAX_NAME_CHARS) : start]
    return any(ref.field in named for ref in refs) or _by_words().search(before) is not None


def _is_person(question: Question, match: fields.Match, *, cued: bool, given: bool) -> bool:
    """A family name counts behind a cue, elsewhere with a capital inside a sentence unless it is a common word."""
    text = question.text[match.start : match.end]
    capital = question.as_written(match.start, match.end)[:1].isupper()
    if text in fields.grammar_words():
        return capital and given and cued
    if cued:
        return capital or text not in fields.listed_words("common")
    ordinary = len(text) < _MIN_ALONE or text in fields.listed_words("common") or question.query.isupper()
    first = _SENTENCE_START.search(question.text, max(0, match.start - 8), match.start) is not None
    return capital and not ordinary and (given or not first)


def _find_given(question: Question, match: fields.Match) -> tuple[int, int, tuple[str, ...]]:
    """Find the given names around a family name: where the whole name begins and ends, and what they are."""
    behind = _INITIALS_BEHIND.match(question.text, match.end)
    if behind is not None:
        return match.start, behind.end("initials"), tuple(re.findall(r"[^\W\d_]", behind["initials"]))
    start, words = match.start, list[str]()
    lower = not any(char.isupper() for char in question.query)
    while len(words) < _MAX_GIVEN:
        found = _WORD_BEFORE.search(question.text, max(0, start - 28), start)
        if found is None:
            break
        capital = question.as_written(found.start("word"), found.end("word"))[:1].isupper()
        initial = len(found["word"]) == 1
        other = found["word"] in fields.grammar_words() or found["word"] in fields.listed_words("titles")
        abbreviated = initial and found["stop"]
        if (
            (other and not abbreviated)
            or not (capital or lower)
            or (not initial and (found["stop"] or (lower and words)))
        ):
            break
        words.insert(0, found["word"])
        start = found.start("word")
    return start, match.end, tuple(words)


def _narrow(
    question: Question, match: fields.Match, ref: fields.ValueRef, given: tuple[str, ...]
) -> fields.ValueRef | None:
    names = question.dictionary.matcher.families[ref.field].get(question.text[match.start : match.end], [])
    kept = tuple(stored for name, stored in names if fields.fits_given_names(given, name.given))
    return fields.ValueRef(ref.field, kept, "family") if kept else None


@lru_cache(1)
def _by_words() -> re.Pattern[str]:
    """Words right before a name that say it is a person's: by, de, โดย."""
    words = {phrase for phrase, readings in fields.phrases().items() if any(r.symbol == "J" for r in readings)}
    listed = "|".join(re.escape(word) for word in sorted({*words, "de", "del", "either"}, key=len, reverse=True))
    forms = "|".join(re.escape(word) for word in sorted(fields.listed_words("titles"), key=len, reverse=True))
    return re.compile(rf"(?:^|[\s,(]|[\u0e00-\u0e7f])(?:{listed}) *(?:(?:{forms}) *)?\Z")


# --- letters: a question as a string, one letter for each thing in it, over which patterns of restrictions run --------
# The letters are those of the lexicon; beside them ``V`` is a value, ``F`` the name of a field, ``N`` a number, ``4``
# a number of four digits that may be a year, ``Z`` a decade, ``Q`` an amount with a unit, ``D`` a date, ``m`` a month
# of a year, ``W`` any other word, ``,`` a comma and ``.`` the end of a sentence. Every repetition in the patterns
# over them is bounded, so they take linear time.

_PIECE: Final = re.compile(r"[0-9](?:[0-9.,/-]*[0-9])?|[,.;:!?()]|[^\W\d_]+|[<>=≤≥]+")
_SIGNS: Final = {">": "gt", ">=": "gte", "≥": "gte", "<": "lt", "<=": "lte", "≤": "lte"}
_NUMERIC: Final = frozenset("N4QXUE")
_DECADE: Final = re.compile(r"[12][0-9]{2}0")
_DECADE_END: Final = re.compile(r"'?s\b")


@dataclass(frozen=True, slots=True)
class Item:
    symbol: str
    start: int
    end: int
    value: Any = None


@dataclass(frozen=True)
class Stream:
    """The things in a question, in reading order, and their letters, one an item."""

    items: tuple[Item, ...]

    @cached_property
    def symbols(self) -> str:
        return "".join(item.symbol for item in self.items)

    def rewrite(self, pattern: re.Pattern[str], make: Callable[[Sequence[Item]], Item | None]) -> "Stream":
        """Replace every stretch that fits a pattern by one item, where ``make`` gives one."""
        items: list[Item] = []
        done = 0
        for found in pattern.finditer(self.symbols):
            made = make(self.items[found.start() : found.end()])
            if made is not None:
                items += [*self.items[done : found.start()], made]
                done = found.end()
        return Stream((*items, *self.items[done:]))


def read_stream(question: Question, values: Sequence[NamedValue]) -> Stream:
    items = [Item("V", *value.place, value) for value in values]
    covered = {at for value in values for at in range(*value.place)}
    cues: list[fields.Match] = []
    for match in sorted(question.matches, key=lambda m: (m.start - m.end, m.start)):
        usable = match.fields or any(reading.language in question.languages for reading in match.readings)
        if usable and covered.isdisjoint(range(match.start, match.end)):
            covered.update(range(match.start, match.end))
            cues.append(match)
    edges = {cue.end for cue in cues}, {cue.start for cue in cues}
    for found in _PIECE.finditer(question.text):
        if found.start() not in covered:
            items.extend(_read_piece(question, found, edges))
    stream = Stream(tuple(_read_cues(question, sorted([*items, *cues], key=lambda item: item.start))))
    for pattern, make in _COMPOSITIONS:
        stream = stream.rewrite(pattern, make)
    return stream


def _read_piece(question: Question, found: re.Match[str], edges: tuple[set[int], set[int]]) -> list[Item]:
    text, start, end = found[0], found.start(), found.end()
    if text[0].isdigit():
        return _read_figures(question, found, edges)
    if text[0] in "<>=≤≥":
        return [Item("O", start, end, _SIGNS[text])] if text in _SIGNS else []
    if text in ".:" and question.text[end : end + 1].isalnum():
        return []
    return [Item("," if text in ",;" else "." if text in ".:!?()" else "W", start, end)]


def _read_figures(question: Question, found: re.Match[str], edges: tuple[set[int], set[int]]) -> list[Item]:
    text, start, end = found[0], found.start(), found.end()
    decade = _DECADE_END.match(question.text, end) if _DECADE.fullmatch(text) else None
    if decade:
        return [Item("Z", start, decade.end(), Moment(int(text), years=10))]
    if _is_code(question.text, start, end, edges):
        return [Item("W", start, end)]
    figures = read_figures(text, question.decimal, question.languages)
    return [Item(symbol, start + first, start + last, value) for symbol, first, last, value in figures]


def _is_code(text: str, start: int, end: int, edges: tuple[set[int], set[int]]) -> bool:
    """Tell whether figures belong to a code, such as ``NS-3``, ``E42`` or ``T/12``."""
    cue_ends, cue_starts = edges
    before, behind = text[start - 1 : start] if start else "", text[end : end + 1]
    joined = start > 1 and before in "-/#_." and text[start - 2].isalnum()
    glued = start not in cue_ends and (joined or (before.isascii() and before.isalpha()))
    return glued or (behind.isascii() and behind.isalpha() and end not in cue_starts)


def _read_cues(question: Question, mixed: Sequence[Item | fields.Match]) -> list[Item]:
    """Give each cue the reading that fits its place, and leave out fillers."""
    items: list[Item] = []
    for thing in mixed:
        if isinstance(thing, Item):
            items.append(thing)
            continue
        behind_number = bool(items) and items[-1].symbol in _NUMERIC
        reading = fields.choose_reading(thing.readings, question.languages, behind_number=behind_number)
        if thing.fields and (reading is None or reading.symbol not in "YU"):
            items.append(Item("F", thing.start, thing.end, thing.fields))
        elif reading is None:
            items.append(Item("W", thing.start, thing.end))
        elif reading.symbol != "-":
            items.append(Item(reading.symbol, thing.start, thing.end, reading.value))
    return items


def _multiply(items: Sequence[Item]) -> Item:
    return Item("N", items[0].start, items[-1].end, math.prod(item.value for item in items))


def _join_amount(items: Sequence[Item]) -> Item | None:
    if items[0].symbol == "U":
        if not units()[items[0].value].is_money:
            return None
        items = [*items[1:], items[0]]
    amount = add_up([(items[at].value, items[at + 1].value) for at in range(0, len(items) - 1, 2)])
    if amount is None:
        return None
    return Item("Q", min(item.start for item in items), max(item.end for item in items), amount)


def _join_date(items: Sequence[Item]) -> Item | None:
    said = {item.symbol: item.value for item in reversed(items)}  # the first of each kind counts
    day = said.get("N")
    if day is not None and not float(day).is_integer():
        return None
    moment = make_date(int(said["4"]), int(said["M"]), None if day is None else int(day), said.get("E"))
    if moment is None:
        return None
    return Item("m" if day is None else "D", items[0].start, items[-1].end, moment)


def _join_decade(items: Sequence[Item]) -> Item | None:
    year = int(items[-1].value)
    if items[-1].symbol == "N":
        year = 1900 + year if 20 <= year <= 90 and float(items[-1].value).is_integer() else 0
    return Item("Z", items[0].start, items[-1].end, Moment(year, years=10)) if year and year % 10 == 0 else None


_COMPOSITIONS: Final[tuple[tuple[re.Pattern[str], Callable[[Sequence[Item]], Item | None]], ...]] = (
    (re.compile(r"[N4]X{1,2}"), _multiply),
    (re.compile(r"(?:[N4]U){1,3}"), _join_amount),
    (re.compile(r"U[N4](?![XU])"), _join_amount),
    (re.compile(r"N[IG]?M[IGYE,]{0,3}4E?|MN,?[IG]?4E?|M[IGYE,]{0,3}4E?"), _join_date),
    (re.compile(r"S[N4]"), _join_decade),
)

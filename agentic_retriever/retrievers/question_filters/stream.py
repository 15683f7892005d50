"""A question as a string of letters, one for each thing in it, over which patterns of restrictions run.

The letters are those of the lexicon; beside them ``V`` is a value, ``F`` the name of a field, ``N`` a number, ``4`` a
number of four digits that may be a year, ``Z`` a decade, ``Q`` an amount with a unit, ``D`` a date, ``m`` a month of a
year, ``W`` any other word, ``,`` a comma and ``.`` the end of a sentence. Every repetition in the patterns over them
is bounded, so they take linear time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.retrievers.question_filters.amounts import Moment, add_up, make_date, split_figures
from agentic_retriever.retrievers.question_filters.lexicon import choose

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentic_retriever.retrievers.question_filters.matcher import Match
    from agentic_retriever.retrievers.question_filters.question import Question
    from agentic_retriever.retrievers.question_filters.recognition import ValueHit

_PIECE: Final = re.compile(r"[0-9](?:[0-9.,/-]*[0-9])?|[,.;:!?()]|[^\W\d_]+|[<>=≤≥]+")
_SIGNS: Final = {">": "gt", ">=": "gte", "≥": "gte", "<": "lt", "<=": "lte", "≤": "lte"}
_NUMERIC: Final = frozenset("N4QXUE")
_MONEY: Final = frozenset({"eur", "usd", "thb", "gbp", "jpy"})
_DECADE: Final = re.compile(r"[12][0-9]{2}0")
_DECADE_END: Final = re.compile(r"'?s\b")


@dataclass(frozen=True, slots=True)
class Item:
    """One thing in a question.

    Attributes:
        symbol: Its letter.
        start: Where it begins in the folded question.
        end: Where it ends.
        value: What it is; depends on the letter.
    """

    symbol: str
    start: int
    end: int
    value: Any = None


@dataclass(frozen=True)
class Stream:
    """The things in a question, in reading order, and their letters, one an item."""

    items: tuple[Item, ...]
    symbols: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "symbols", "".join(item.symbol for item in self.items))

    def rewritten(self, pattern: re.Pattern[str], make: Callable[[Sequence[Item]], Item | None]) -> Stream:
        """Replace every stretch that fits a pattern by one item, where ``make`` gives one."""
        items: list[Item] = []
        done = 0
        for found in pattern.finditer(self.symbols):
            made = make(self.items[found.start() : found.end()])
            if made is not None:
                items.extend(self.items[done : found.start()])
                items.append(made)
                done = found.end()
        return Stream((*items, *self.items[done:]))


def read_stream(question: Question, hits: Sequence[ValueHit]) -> Stream:
    """Cut a question into things.

    Args:
        question: The question.
        hits: The values in it; what they cover is nothing else.
    """
    items = [Item("V", hit.start, hit.end, hit) for hit in hits]
    covered = {at for hit in hits for at in range(hit.start, hit.end)}
    cues = _cues(question, covered)
    covered.update(at for cue in cues for at in range(cue.start, cue.end))
    edges = {cue.end for cue in cues}, {cue.start for cue in cues}
    for found in _PIECE.finditer(question.text):
        if found.start() not in covered:
            items.extend(_piece(question, found, edges))
    stream = Stream(tuple(_read(question, sorted([*items, *cues], key=lambda item: item.start))))
    for pattern, make in _COMPOSITIONS:
        stream = stream.rewritten(pattern, make)
    return stream


def _cues(question: Question, covered: set[int]) -> list[Match]:
    """Choose the longest among overlapping cues and names of fields."""
    taken = set(covered)
    chosen: list[Match] = []
    for match in sorted(question.matches, key=lambda m: (m.start - m.end, m.start)):
        usable = match.fields or any(reading.language in question.languages for reading in match.readings)
        if usable and taken.isdisjoint(range(match.start, match.end)):
            taken.update(range(match.start, match.end))
            chosen.append(match)
    return chosen


def _piece(question: Question, found: re.Match[str], edges: tuple[set[int], set[int]]) -> list[Item]:
    text, start, end = found[0], found.start(), found.end()
    if text[0].isdigit():
        return _figures(question, found, edges)
    if text[0] in "<>=≤≥":
        return [Item("O", start, end, _SIGNS[text])] if text in _SIGNS else []
    if text in ".:" and question.text[end : end + 1].isalnum():
        return []
    return [Item("," if text in ",;" else "." if text in ".:!?()" else "W", start, end)]


def _figures(question: Question, found: re.Match[str], edges: tuple[set[int], set[int]]) -> list[Item]:
    text, start, end = found[0], found.start(), found.end()
    decade = _DECADE_END.match(question.text, end) if _DECADE.fullmatch(text) else None
    if decade is not None:
        return [Item("Z", start, decade.end(), Moment(int(text), years=10))]
    if _is_code(question.text, start, end, edges):
        return [Item("W", start, end)]
    figures = split_figures(text, question.decimal, day_first="en" not in question.languages)
    return [Item(symbol, start + first, start + last, value) for symbol, first, last, value in figures]


def _is_code(text: str, start: int, end: int, edges: tuple[set[int], set[int]]) -> bool:
    """Tell whether figures belong to a code, such as ``NS-3``, ``E42`` or ``T/12``."""
    cue_ends, cue_starts = edges
    before, behind = text[start - 1 : start] if start else "", text[end : end + 1]
    if start not in cue_ends:
        if before.isascii() and before.isalpha():
            return True
        if start > 1 and before in "-/#_." and text[start - 2].isalnum():
            return True
    return behind.isascii() and behind.isalpha() and end not in cue_starts


def _read(question: Question, mixed: Sequence[Item | Match]) -> list[Item]:
    """Give each cue the reading that fits its place, and leave out fillers."""
    items: list[Item] = []
    for thing in mixed:
        item = thing if isinstance(thing, Item) else _as_item(question, thing, items)
        if item.symbol != "-":
            items.append(item)
    return items


def _as_item(question: Question, match: Match, before: Sequence[Item]) -> Item:
    behind_number = bool(before) and before[-1].symbol in _NUMERIC
    reading = choose(match.readings, question.languages, behind_number=behind_number)
    if match.fields and (reading is None or reading.symbol not in "YU"):
        return Item("F", match.start, match.end, match.fields)
    if reading is None:
        return Item("W", match.start, match.end)
    return Item(reading.symbol, match.start, match.end, reading.value)


def _times_factor(items: Sequence[Item]) -> Item:
    value = items[0].value
    for item in items[1:]:
        value *= item.value
    return Item("N", items[0].start, items[-1].end, value)


def _amount(items: Sequence[Item]) -> Item | None:
    if items[0].symbol == "U":
        if items[0].value not in _MONEY:
            return None
        items = [*items[1:], items[0]]
    pairs = [(items[at].value, items[at + 1].value) for at in range(0, len(items) - 1, 2)]
    amount = add_up(pairs)
    if amount is None:
        return None
    return Item("Q", min(item.start for item in items), max(item.end for item in items), amount)


def _dated(items: Sequence[Item]) -> Item | None:
    month = next(int(item.value) for item in items if item.symbol == "M")
    year = next(int(item.value) for item in items if item.symbol == "4")
    day = next((item.value for item in items if item.symbol == "N"), None)
    era = next((item.value for item in items if item.symbol == "E"), None)
    if day is not None and not float(day).is_integer():
        return None
    moment = make_date(year, month, None if day is None else int(day), era)
    if moment is None:
        return None
    return Item("m" if day is None else "D", items[0].start, items[-1].end, moment)


def _decade(items: Sequence[Item]) -> Item | None:
    year = int(items[-1].value)
    if items[-1].symbol == "N":
        year = 1900 + year if 20 <= year <= 90 and float(items[-1].value).is_integer() else 0
    return Item("Z", items[0].start, items[-1].end, Moment(year, years=10)) if year and year % 10 == 0 else None


_COMPOSITIONS: Final[tuple[tuple[re.Pattern[str], Callable[[Sequence[Item]], Item | None]], ...]] = (
    (re.compile(r"[N4]X{1,2}"), _times_factor),
    (re.compile(r"(?:[N4]U){1,3}"), _amount),
    (re.compile(r"U[N4](?![XU])"), _amount),
    (re.compile(r"N[IG]?M[IGYE,]{0,3}4E?|MN,?[IG]?4E?|M[IGYE,]{0,3}4E?"), _dated),
    (re.compile(r"S[N4]"), _decade),
)

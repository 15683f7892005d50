"""Comparisons and ranges of number fields: ``5 to 10 rai``, ``más de 100 m2``, ``ไม่เกิน 3 ไร่``.

The unit decides which field is meant, or its name beside the number where several have that unit or the number has
none. A number without unit and name makes no clause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agentic_retriever.text.numbers import BUDDHIST, Amount, Moment, units
from agentic_retriever.understanding.clauses import (
    Bound,
    Part,
    Restriction,
    Wanted,
    any_part,
    fields_before,
    fields_behind,
    named_around,
    none_part,
    number_of,
    range_part,
    surest,
    values_part,
)
from agentic_retriever.understanding.fields import FieldInfo, FieldKind
from agentic_retriever.understanding.question import Item, Question, Stream

COMPARED: Final = 0.9
EQUAL: Final = 0.55
ABOUT: Final = 0.6
NO_UNIT_KNOWN: Final = 0.7
"""Factor where the field has no unit, so that the question's unit cannot be checked."""

_TOLERANCE: Final = 0.1
_BORROWS: Final = 4
_EXPRESSION: Final = re.compile(
    r"(?P<range>[BGIO]?[N4Q][TA][N4Q])|(?P<compared>[OHG]I?[N4Q]P?)|(?P<post>[N4Q]P)|(?P<equal>[N4Q])"
)


def find_quantities(question: Question, stream: Stream) -> tuple[list[Restriction], frozenset[int]]:
    """Find the restrictions of number fields."""
    found: list[Restriction] = []
    equal: dict[str, list[Wanted]] = {}
    used: set[int] = set()
    for match in _EXPRESSION.finditer(stream.symbols):
        resolved = _resolve(question, stream, match.start(), match.end())
        if resolved is None:
            continue
        info, doubt, start = resolved
        items = stream.items[match.start() : match.end()]
        bounds = _bounds(info, items, match.lastgroup or "")
        if bounds is None:
            continue
        used.update(range(match.start(), match.end()))
        span = (start, items[-1].end)
        low, high, certainty = bounds
        if match.lastgroup == "equal" and low is not None:
            equal.setdefault(info.name, []).append(Wanted(low.value, certainty * doubt, span))
        else:
            part = range_part(info.name, low, high)
            found.append(Restriction(part=part, certainty=certainty * doubt, spans=(span,)))
    return [*found, *(_one_of(name, wanted) for name, wanted in equal.items())], frozenset(used)


def _one_of(name: str, wanted: Sequence[Wanted]) -> Restriction:
    kept = surest(wanted)
    part: Part = values_part(name, [float(str(one.value)) for one in kept])
    return Restriction(part=part, certainty=min(one.certainty for one in kept), spans=tuple(one.span for one in kept))


def _bounds(info: FieldInfo, items: Sequence[Item], kind: str) -> tuple[Bound | None, Bound | None, float] | None:
    numbers = [item for item in items if item.symbol in "N4Q"]
    amounts = [item.value for item in numbers]
    if kind == "range":
        joined_by_and = any(item.symbol == "A" for item in items)
        if joined_by_and and items[0].symbol != "B":
            return None
        # Of "5 to 10 rai" the first number has the unit of the second.
        unit = next((one for one in reversed(amounts) if isinstance(one, Amount)), None)
        low, high = sorted(_in_unit(info, one, unit) for one in amounts)
        return Bound(low), Bound(high), COMPARED
    operators = [_operator(item) for item in items if item.symbol in "OHGP"]
    operator = operators[-1] if operators else "eq"
    value = _in_unit(info, amounts[0], None)
    if operator == "about":
        slack = abs(value) * _TOLERANCE
        return Bound(float(f"{value - slack:.12g}")), Bound(float(f"{value + slack:.12g}")), ABOUT
    if operator in {"gt", "gte"}:
        return Bound(value, operator == "gte"), None, COMPARED
    if operator in {"lt", "lte"}:
        return None, Bound(value, operator == "lte"), COMPARED
    return Bound(value), Bound(value), EQUAL


def _operator(item: Item) -> str:
    # "from" says one thing before a year and another before an amount.
    said = str(item.value)
    return said.split()[1] if item.symbol == "G" else said


def _in_unit(info: FieldInfo, amount: Amount | float, like: Amount | None) -> float:
    """Turn an amount into the field's unit; a bare number is in that of ``like``, or of the field."""
    if not isinstance(amount, Amount):
        if like is None:
            return number_of(info, float(amount), None)
        amount = Amount(float(amount), like.unit, float(amount) * units()[like.unit].factor, like.dimension)
    simple = amount.base == amount.number * units()[amount.unit].factor
    if info.unit is None or (simple and info.unit == amount.unit):
        return amount.number
    return number_of(info, amount.base, units()[info.unit].factor)


def _resolve(question: Question, stream: Stream, first: int, behind: int) -> tuple[FieldInfo, float, int] | None:
    """Find the field that an expression is about: with a factor for its certainty and where its text begins."""
    at, before = fields_before(stream, first)
    named = before or fields_behind(stream, behind)
    numeric = [info for info in question.dictionary.of_kind(FieldKind.NUMBER) if not info.year]
    by_name = [info for info in numeric if info.name in named]
    amount = _amount_of(stream, first, behind)
    start = stream.items[at if by_name and before else first].start
    if amount is None:
        return (by_name[0], 1.0, start) if len(by_name) == 1 else None
    fitting = [info for info in numeric if info.unit and units()[info.unit].dimension == amount.dimension]
    meant = [info for info in fitting if info in by_name] or fitting
    meant = meant if len(meant) == 1 else [info for info in meant if info.unit == amount.unit]
    if len(meant) == 1:
        return meant[0], 1.0, start
    unitless = [info for info in by_name if info.unit is None]
    return (unitless[0], NO_UNIT_KNOWN, start) if len(unitless) == 1 and not fitting else None


def _amount_of(stream: Stream, first: int, behind: int) -> Amount | None:
    """The amount with a unit in an expression, or the next one soon behind: ``more than 5 and at most 10 rai``."""
    inside = [item.value for item in stream.items[first:behind] if item.symbol == "Q"]
    if inside:
        return inside[-1] if isinstance(inside[-1], Amount) else None
    if stream.symbols[first] not in "OH":
        return None
    for item in stream.items[behind : behind + _BORROWS]:
        if item.symbol == "Q" and isinstance(item.value, Amount):
            return item.value
        if item.symbol not in "ACWOH,":
            break
    return None


# Years and dates: ``since 2019``, ``de 2021``, ``หลังปี 2560``, ``in the 1960s``, ``5 May 2021``.
#
# A year counts when a word says that it is one, or a preposition or a value stands beside it and it is near the years
# that the field has. Buddhist and common years are told apart by the field's own range: where it holds 2530 to 2567,
# 2017 is read as 2560, and the other way round.

SAID: Final = 0.9
"""Certainty where a word says that it is a year or date, or how it compares."""

PREPOSITION: Final = 0.75
BESIDE_VALUE: Final = 0.55
ROUGH: Final = 0.7
"""Factor where a day or month is asked of a field that has years only."""

_NEAR_YEARS: Final = 60
_BUDDHIST_FROM: Final = 2300

_ONE: Final = "[YEI]{0,3}[4DmZ]E?"
_TIME: Final = re.compile(
    rf"(?P<range>[BG]?{_ONE}[TA]{_ONE})|(?P<compared>[RHGO]{_ONE}P?)|(?P<post>{_ONE}P)"
    rf"|(?P<equal>K?[GF]?{_ONE}(?:(?:,|,?[AC])G?{_ONE}){{0,9}})"
)


@dataclass(frozen=True, slots=True)
class _Found:
    """An expression of time and the field that it is about."""

    kind: str
    items: tuple[Item, ...]
    info: FieldInfo
    certainty: float

    @property
    def moments(self) -> list[Moment]:
        return [_moment(self.items, at) for at, item in enumerate(self.items) if item.symbol in "4DmZ"]

    @property
    def span(self) -> tuple[int, int]:
        return self.items[0].start, self.items[-1].end


def find_times(question: Question, stream: Stream, used: frozenset[int]) -> list[Restriction]:
    """Find the restrictions of years and dates."""
    found: list[Restriction] = []
    equal: dict[tuple[str, bool], list[Wanted]] = {}
    infos: dict[str, FieldInfo] = {}
    for match in _TIME.finditer(stream.symbols):
        if not used.isdisjoint(range(match.start(), match.end())):
            continue
        one = _find(question, stream, match)
        if one is None:
            continue
        infos[one.info.name] = one.info
        part = _compared(one)
        if part is not None:
            found.append(Restriction(part=part, certainty=one.certainty * _roughness(one), spans=(one.span,)))
            continue
        negated = one.items[0].symbol == "K"
        wanted = [Wanted(moment, one.certainty * _roughness(one), one.span) for moment in one.moments]
        equal.setdefault((one.info.name, negated), []).extend(wanted)
    return [*found, *(_one_of_times(infos[name], kept, negated=negated) for (name, negated), kept in equal.items())]


def year_in(info: FieldInfo, year: int, era: str | None = None) -> int:
    """Turn a year of either era into the era of a field."""
    if info.low is None or info.high is None:
        return year
    if era is not None:
        buddhist = info.high >= _BUDDHIST_FROM
        return year + BUDDHIST * (buddhist - (era == "be"))
    low, high = info.low, info.high
    return min((year, year - BUDDHIST, year + BUDDHIST), key=lambda y: max(low - y, y - high, 0.0))


def _find(question: Question, stream: Stream, match: re.Match[str]) -> _Found | None:
    kind = match.lastgroup or ""
    items = stream.items[match.start() : match.end()]
    if kind == "range" and any(item.symbol == "A" for item in items) and items[0].symbol != "B":
        kind = "equal"
    info = _field(question, stream, match, items)
    if info is None:
        return None
    certainty = _certainty(stream, match, items, info, kind, thai="th" in question.stems)
    return None if certainty is None else _Found(kind, items, info, certainty)


def _field(question: Question, stream: Stream, match: re.Match[str], items: Sequence[Item]) -> FieldInfo | None:
    years = [info for info in question.dictionary.of_kind(FieldKind.NUMBER, FieldKind.KEYWORD) if info.year]
    dates = question.dictionary.of_kind(FieldKind.DATE)
    inner = tuple(name for item in items if item.symbol == "F" for name in item.value)
    named = inner or named_around(stream, match.start(), match.end())
    by_name = [info for info in (*years, *dates) if info.name in named]
    if len(by_name) == 1:
        return by_name[0]
    exact = any(item.symbol in "Dm" for item in items)
    for group in (dates, years) if exact else (years, dates):
        meant = [info for info in group if not by_name or info in by_name]
        if len(meant) == 1:
            return meant[0]
        plain = [info for info in meant if info.name.casefold() in {"year", "date"}]
        if meant:
            return plain[0] if len(plain) == 1 else None
    return None


def _certainty(
    stream: Stream, match: re.Match[str], items: Sequence[Item], info: FieldInfo, kind: str, *, thai: bool
) -> float | None:
    """How sure it is that an expression is about time; ``None`` where it is not."""
    symbols = {item.symbol for item in items}
    named = {name for item in items if item.symbol == "F" for name in item.value}
    if symbols & set("YEDmZ") or info.name in {*named, *named_around(stream, match.start(), match.end())}:
        return SAID
    if not all(_near(info, _moment(items, at), thai=thai) for at in _places(items)):
        return None
    if kind in {"range", "post"} or symbols & set("RH") or any(item.value == "gte gte" for item in items):
        return SAID
    if "O" in symbols:
        return None
    if any(item.symbol in "GK" or (item.symbol == "I" and item.value == "time") for item in items):
        return PREPOSITION
    beside = stream.symbols[max(0, match.start() - 1) : match.start()] + stream.symbols[match.end() : match.end() + 1]
    return BESIDE_VALUE if set(beside) & set("VM") else None


def _places(items: Sequence[Item]) -> list[int]:
    return [at for at, item in enumerate(items) if item.symbol in "4DmZ"]


def _moment(items: Sequence[Item], at: int) -> Moment:
    """Read the thing at a place as a moment, with the era said beside it."""
    item = items[at]
    if isinstance(item.value, Moment):
        return item.value
    beside = [items[near] for near in (at - 1, at + 1) if 0 <= near < len(items)]
    era = next((str(one.value) for one in beside if one.symbol == "E"), None)
    return Moment(int(item.value), era=era)


def _near(info: FieldInfo, moment: Moment, *, thai: bool) -> bool:
    """Tell whether a number that nothing calls a year can be one of a field's."""
    if moment.year >= _BUDDHIST_FROM and not thai and (info.high or 0) < _BUDDHIST_FROM:
        return False  # "in 2500 words"
    year = year_in(info, moment.year, moment.era)
    if info.low is None or info.high is None:
        return True
    return info.low - _NEAR_YEARS <= year <= info.high + _NEAR_YEARS


def _roughness(one: _Found) -> float:
    exact = any(item.symbol in "Dm" for item in one.items)
    return ROUGH if exact and one.info.kind is not FieldKind.DATE else 1.0


def _compared(one: _Found) -> Part | None:
    """Make the part of a range or comparison; ``None`` for an equality."""
    moments, info = one.moments, one.info
    if one.kind == "range":
        first, last = sorted(moments, key=lambda moment: _first(info, moment))[:: len(moments) - 1]
        return range_part(info.name, Bound(_edge(info, first)), Bound(_edge(info, last, last=True)))
    operators = [_time_operator(item) for item in one.items if item.symbol in "RHGOP"]
    operator = operators[-1] if operators and one.kind != "equal" else "eq"
    # A year field cannot tell the days before one in May from those after it, so the whole year stays in.
    whole = info.kind is not FieldKind.DATE and moments[0].month is not None
    if operator in {"gt", "gte"}:
        return range_part(
            info.name, Bound(_edge(info, moments[0], last=operator == "gt"), operator == "gte" or whole), None
        )
    if operator in {"lt", "lte"}:
        return range_part(
            info.name, None, Bound(_edge(info, moments[0], last=operator == "lte"), operator == "lte" or whole)
        )
    return None


def _time_operator(item: Item) -> str:
    said = str(item.value)
    return said.split(maxsplit=1)[0] if item.symbol == "G" else said


def _first(info: FieldInfo, moment: Moment) -> str:
    return moment.first_day(max(1, year_in(info, moment.year, moment.era)))


def _edge(info: FieldInfo, moment: Moment, *, last: bool = False) -> float | str:
    """Return the first or last day of a moment, or the year where the field holds years."""
    year = max(1, year_in(info, moment.year, moment.era))
    if info.kind is FieldKind.DATE:
        return moment.last_day(year) if last else moment.first_day(year)
    return _year_value(info, year + (moment.years - 1 if last else 0))


def _year_value(info: FieldInfo, year: int) -> float | str:
    return f"{year:04d}" if info.kind is FieldKind.KEYWORD else float(year)


def _one_of_times(info: FieldInfo, wanted: Sequence[Wanted], *, negated: bool) -> Restriction:
    """Join the years and dates that a field shall have, or shall not."""
    kept = surest(wanted)
    moments = [one.value for one in kept if isinstance(one.value, Moment)]
    plain = [moment for moment in moments if moment.years == 1] if info.kind is not FieldKind.DATE else []
    spans = [moment for moment in moments if moment not in plain]
    parts = [range_part(info.name, Bound(_edge(info, one)), Bound(_edge(info, one, last=True))) for one in spans]
    if plain:
        years = [_edge(info, moment) for moment in plain]
        if negated and not spans:
            return _joined(values_part(info.name, years, negated=True), kept)
        parts.append(values_part(info.name, years))
    part = none_part(parts) if negated else any_part(parts)
    return _joined(part, kept)


def _joined(part: Part, kept: Sequence[Wanted]) -> Restriction:
    spans = tuple(dict.fromkeys(one.span for one in kept))
    return Restriction(part=part, certainty=min(one.certainty for one in kept), spans=spans)

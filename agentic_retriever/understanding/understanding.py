"""From a question to clauses, without a model: values, quantities and times become restrictions of fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from agentic_retriever.text.numbers import BUDDHIST, Amount, Moment, units
from agentic_retriever.understanding.clauses import (
    Clause,
    Restriction,
    Understood,
    all_of,
    any_of,
    in_reading_order,
    none_of,
    one_of,
    within,
)
from agentic_retriever.understanding.fields import FieldDictionary, FieldInfo, FieldKind
from agentic_retriever.understanding.question import (
    Item,
    NamedValue,
    Question,
    Stream,
    find_values,
    read_question,
    read_stream,
)

_SURE: Final = 0.7
_UNSURE_BELOW: Final = 0.5


def understand(query: str, fields: FieldDictionary, *, language: str | None = None) -> Understood:
    """Find the restrictions that a question asks for, in the words of the index's own fields."""
    question = read_question(query, fields, language)
    stream = read_stream(question, find_values(question))
    quantities, used = _find_quantities(question, stream)
    times = _find_times(question, stream, used)
    clauses = [
        *_restrict_values(question, stream),
        *_restrict_ordered(question, quantities),
        *_restrict_ordered(question, times),
    ]
    return Understood(clauses=in_reading_order(clauses))


_Said = TypeVar("_Said", "_Ordered", NamedValue)


def _clause(question: Question, restriction: Restriction, said: Sequence[_Said]) -> Clause:
    """A clause as sure as the least sure of the things said that make it."""
    return restriction.clause(
        certainty=min(one.certainty for one in said),
        spans=[question.folded.origin(*one.span) for one in said],
        known_fields=question.dictionary.fields,
    )


def _surest(said: Sequence[_Said]) -> list[_Said]:
    """Leave out what is unsure where something else for the same field is sure, so that it cannot widen that."""
    if max((one.certainty for one in said), default=0.0) < _SURE:
        return list(said)
    return [one for one in said if one.certainty >= _UNSURE_BELOW]


# --- values ---------------------------------------------------------------------------------------------------------
#
# Values of one field are joined to "one of" wherever they stand, also behind ``and``: a question for "deeds in Chiang
# Mai and Lamphun" wants either. ``X or Y`` with values of different fields becomes one restriction that either
# satisfies. A value whose words belong to several fields counts for any of them. ``not`` and its like turn them round.

_ABOUT_IT: Final = 0.5
"""Factor for a value that a question is about, as in ``what is a freehold`` and ``compare Berlin and Madrid``."""

_NEGATED: Final = re.compile(r"K[IGFJYA]{0,4}V(?:(?:,?[AC][IGFJ]{0,3}|,[FJ]{0,2})V){0,30}")
_WITH_OTHERS: Final = re.compile(r"V(?:(?:,?[AC]|,)[IGFJ]{0,3}V){0,30},?L")
_LISTED: Final = re.compile(r"V(?:(?:,?[AC]|,)[IGFJ]{0,3}V){1,30}")
_EITHER: Final = re.compile(r"V(?:,?C[IGFJ]{0,3}V){1,30}")
_TOPIC: Final = re.compile(r"\?[IGFJAB]{0,3}V(?:(?:,?[AC]|,)?[IGFJ]{0,3}V){0,30}|V(?:(?:,?[AC]|,)[IGFJ]{0,3}V){0,30}\?")
_NEGATED_FLAG: Final = "false"


def _restrict_values(question: Question, stream: Stream) -> list[Clause]:
    open_lists = _places(_WITH_OTHERS, stream)
    negated = _places(_NEGATED, stream)
    value_at = _weigh(stream)
    alone = [at for at in value_at if at not in open_lists]
    clauses: list[Clause] = []
    for match in _EITHER.finditer(stream.symbols):
        group = [at for at in _values_in(match) if at not in negated | open_lists]
        joined = [value_at[at] for at in group]
        if len(group) > 1 and len({ref.field for value in joined for ref in value.refs}) > 1:
            clauses.append(_clause(question, _any_value(joined), joined))
            alone = [at for at in alone if at not in group]
    by_fields: dict[tuple[tuple[str, ...], bool], list[NamedValue]] = {}
    for at in alone:
        fields = tuple(sorted({ref.field for ref in value_at[at].refs}))
        by_fields.setdefault((fields, at in negated), []).append(value_at[at])
    for (_, is_negated), members in by_fields.items():
        joined = _surest(members)
        restriction = _no_value(joined) if is_negated else _any_value(joined)
        clauses.append(_clause(question, restriction, joined))
    return clauses


def _weigh(stream: Stream) -> dict[int, NamedValue]:
    """The values by their places, weighed by what stands around them; a negated one with the word that negates it."""
    value_at: dict[int, NamedValue] = {at: one.value for at, one in enumerate(stream.items) if one.symbol == "V"}
    weighed = dict(value_at)
    for match in _LISTED.finditer(stream.symbols):
        # One sure value vouches for the others of its list: "memo or text".
        members = _values_in(match)
        best = min(_SURE, max(value_at[at].certainty for at in members))
        weighed.update((at, replace(value_at[at], certainty=max(best, value_at[at].certainty))) for at in members)
    for match in _NEGATED.finditer(stream.symbols):
        at = stream.symbols.index("V", match.start())
        weighed[at] = replace(weighed[at], span=(stream.items[match.start()].start, weighed[at].span[1]))
    for at in _places(_TOPIC, stream):
        weighed[at] = replace(weighed[at], certainty=weighed[at].certainty * _ABOUT_IT)
    return weighed


def _places(pattern: re.Pattern[str], stream: Stream) -> set[int]:
    """Where the values stand that a pattern covers."""
    return {at for match in pattern.finditer(stream.symbols) for at in _values_in(match)}


def _values_in(match: re.Match[str]) -> list[int]:
    return [at for at, symbol in enumerate(match[0], match.start()) if symbol == "V"]


def _any_value(values: Sequence[NamedValue]) -> Restriction:
    wanted: dict[str, list[str]] = {}
    for ref in (ref for value in values for ref in value.refs):
        wanted.setdefault(ref.field, []).extend(ref.originals)
    return any_of([one_of(field, originals) for field, originals in wanted.items()])


def _no_value(values: Sequence[NamedValue]) -> Restriction:
    """Refuse some values; a flag shall be false instead."""
    refs = [ref for value in values for ref in value.refs]
    flags = {ref.field for ref in refs if ref.how == "flag"}
    refused: dict[str, list[str]] = {}
    for ref in refs:
        refused.setdefault(ref.field, []).extend((_NEGATED_FLAG,) if ref.how == "flag" else ref.originals)
    return all_of([one_of(field, words, negated=field not in flags) for field, words in refused.items()])


# --- what quantities and times share --------------------------------------------------------------------------------


_SKIPPED: Final = frozenset("IGBOHRYEJ")
_MAX_LOOK: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ordered:
    """A comparison, a range or values of a field of numbers or dates, as one expression of a question says it."""

    info: FieldInfo
    certainty: float
    span: tuple[int, int]
    ends: Mapping[str, float | str] = field(default_factory=dict)  # As for `within`; empty where values are said
    values: tuple[float | str, ...] = ()
    ranges: tuple[tuple[float | str, float | str], ...] = ()  # Values that are stretches: a month, a decade
    negated: bool = False


def _restrict_ordered(question: Question, expressions: Iterable[_Ordered]) -> list[Clause]:
    """One clause for each comparison and range, and one for all values of a field."""
    clauses: list[Clause] = []
    by_field: dict[tuple[str, bool], list[_Ordered]] = {}
    for one in expressions:
        if one.ends:
            clauses.append(_clause(question, within(one.info.name, **one.ends), [one]))
        else:
            by_field.setdefault((one.info.name, one.negated), []).append(one)
    for (name, negated), members in by_field.items():
        joined = _surest(members)
        clauses.append(_clause(question, _any_ordered(name, joined, negated=negated), joined))
    return clauses


def _any_ordered(name: str, expressions: Sequence[_Ordered], *, negated: bool) -> Restriction:
    restrictions = [within(name, gte=low, lte=high) for one in expressions for low, high in one.ranges]
    values = [value for one in expressions for value in one.values]
    if values and negated and not restrictions:
        return one_of(name, values, negated=True)
    if values:
        restrictions.append(one_of(name, values))
    return none_of(restrictions) if negated else any_of(restrictions)


def _joined_by_and(items: Sequence[Item]) -> bool:
    """Tell whether "5 and 10" is no range, as it is in "between 5 and 10"."""
    return any(item.symbol == "A" for item in items) and items[0].symbol != "B"


def _operator(items: Sequence[Item], symbols: str, meaning_of_from: Callable[[str], str]) -> str:
    """How the last cue among items compares; "from" says one thing before a year and another before an amount."""
    cues = [item for item in items if item.symbol in symbols]
    if not cues:
        return "eq"
    said = str(cues[-1].value)
    return meaning_of_from(said) if cues[-1].symbol == "G" else said


def _fields_before(stream: Stream, first: int) -> tuple[int, tuple[str, ...]]:
    """Where the name of a field stands before a stretch, small words aside, and the fields; else ``first, ()``."""
    for at in range(first - 1, max(-1, first - 1 - _MAX_LOOK), -1):
        item = stream.items[at]
        if item.symbol == "F":
            return at, item.value
        if item.symbol not in _SKIPPED:
            break
    return first, ()


def _fields_around(stream: Stream, first: int, behind: int) -> tuple[str, ...]:
    """The fields named before a stretch, small words aside, or right behind it."""
    before = _fields_before(stream, first)[1]
    follows = behind < len(stream.items) and stream.items[behind].symbol == "F"
    return before or (stream.items[behind].value if follows else ())


# --- quantities: ``5 to 10 rai``, ``más de 100 m2``, ``ไม่เกิน 3 ไร่`` ------------------------------------------------
#
# The unit decides which field is meant, or its name beside the number where several have that unit or the number has
# none. A number without unit and name makes no clause.

_COMPARED: Final = 0.9
_EQUAL: Final = 0.55
_ROUGHLY: Final = 0.6
_NO_UNIT_KNOWN: Final = 0.7
"""Factor where the field has no unit, so that the question's unit cannot be checked."""

_TOLERANCE: Final = 0.1
_MAX_BORROWED: Final = 4
_QUANTITY: Final = re.compile(
    r"(?P<range>[BGIO]?[N4Q][TA][N4Q])|(?P<compared>[OHG]I?[N4Q]P?)|(?P<post>[N4Q]P)|(?P<equal>[N4Q])"
)


def _find_quantities(question: Question, stream: Stream) -> tuple[list[_Ordered], set[int]]:
    """Find the restrictions of number fields, and the places of what makes them."""
    found: list[_Ordered] = []
    used: set[int] = set()
    for match in _QUANTITY.finditer(stream.symbols):
        resolved = _quantity_field(question, stream, match.start(), match.end())
        items = stream.items[match.start() : match.end()]
        if resolved is None or (match["range"] and _joined_by_and(items)):
            continue
        info, doubt, start = resolved
        used.update(range(match.start(), match.end()))
        ends, certainty = _quantity_ends(info, items)
        span = start, items[-1].end
        if match["equal"]:
            found.append(_Ordered(info=info, certainty=certainty * doubt, span=span, values=(ends["gte"],)))
        else:
            found.append(_Ordered(info=info, certainty=certainty * doubt, span=span, ends=ends))
    return found, used


def _quantity_ends(info: FieldInfo, items: Sequence[Item]) -> tuple[dict[str, float], float]:
    """The ends of a range or comparison, in the field's unit, and how sure it is."""
    amounts: list[Amount | float] = [item.value for item in items if item.symbol in "N4Q"]
    if len(amounts) > 1:
        # Of "5 to 10 rai" the first number has the unit of the second.
        unit = next((one for one in reversed(amounts) if isinstance(one, Amount)), None)
        low, high = sorted(_in_unit(info, one, unit) for one in amounts)
        return {"gte": low, "lte": high}, _COMPARED
    operator = _operator(items, "OHGP", lambda said: said.split()[1])
    value = _in_unit(info, amounts[0], None)
    if operator == "about":
        slack = abs(value) * _TOLERANCE
        return {"gte": float(f"{value - slack:.12g}"), "lte": float(f"{value + slack:.12g}")}, _ROUGHLY
    if operator == "eq":
        return {"gte": value, "lte": value}, _EQUAL
    return {operator: value}, _COMPARED


def _in_unit(info: FieldInfo, amount: Amount | float, like: Amount | None) -> float:
    """Turn an amount into the field's unit; a bare number is in that of ``like``, or of the field."""
    if not isinstance(amount, Amount):
        if like is None:
            return float(f"{amount:.12g}") if info.unit else float(amount)
        amount = Amount(float(amount), like.unit, float(amount) * units()[like.unit].factor, like.dimension)
    simple = amount.base == amount.number * units()[amount.unit].factor
    if info.unit is None or (simple and info.unit == amount.unit):
        return amount.number
    return float(f"{amount.base / units()[info.unit].factor:.12g}")


def _quantity_field(question: Question, stream: Stream, first: int, behind: int) -> tuple[FieldInfo, float, int] | None:
    """Find the field that an expression is about: with a factor for its certainty and where its text begins."""
    at, before = _fields_before(stream, first)
    named = _fields_around(stream, first, behind)
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
    return (unitless[0], _NO_UNIT_KNOWN, start) if len(unitless) == 1 and not fitting else None


def _amount_of(stream: Stream, first: int, behind: int) -> Amount | None:
    """The amount with a unit in an expression, or the next one soon behind: ``more than 5 and at most 10 rai``."""
    inside: list[Amount] = [item.value for item in stream.items[first:behind] if item.symbol == "Q"]
    if inside:
        return inside[-1]
    if stream.symbols[first] not in "OH":
        return None
    for item in stream.items[behind : behind + _MAX_BORROWED]:
        if item.symbol == "Q":
            borrowed: Amount = item.value
            return borrowed
        if item.symbol not in "ACWOH,":
            break
    return None


# --- years and dates: ``since 2019``, ``de 2021``, ``หลังปี 2560``, ``in the 1960s``, ``5 May 2021`` ------------------
#
# A year counts when a word says that it is one, or a preposition or a value stands beside it and it is near the years
# that the field has. Buddhist and common years are told apart by the field's own range: where it holds 2530 to 2567,
# 2017 is read as 2560, and the other way round.

_SAID: Final = 0.9
"""Certainty where a word says that it is a year or date, or how it compares."""

_PREPOSITION: Final = 0.75
_BESIDE_VALUE: Final = 0.55
_ROUGH: Final = 0.7
"""Factor where a day or month is asked of a field that has years only."""

_NEAR_YEARS: Final = 60
_BUDDHIST_FROM: Final = 2300

_ONE_TIME: Final = "[YEI]{0,3}[4DmZ]E?"
_TIME: Final = re.compile(
    rf"(?P<range>[BG]?{_ONE_TIME}[TA]{_ONE_TIME})|(?P<compared>[RHGO]{_ONE_TIME}P?)|(?P<post>{_ONE_TIME}P)"
    rf"|(?P<equal>K?[GF]?{_ONE_TIME}(?:(?:,|,?[AC])G?{_ONE_TIME}){{0,9}})"
)


def _find_times(question: Question, stream: Stream, used: set[int]) -> list[_Ordered]:
    """Find the restrictions of years and dates among what makes no quantity."""
    found: list[_Ordered] = []
    for match in _TIME.finditer(stream.symbols):
        items = stream.items[match.start() : match.end()]
        info = _time_field(question, stream, match) if used.isdisjoint(range(match.start(), match.end())) else None
        if info is None:
            continue
        kind = "equal" if match["range"] and _joined_by_and(items) else match.lastgroup or ""
        certainty = _time_certainty(stream, match, info, kind, thai="th" in question.stems)
        if certainty is None:
            continue
        if info.kind is not FieldKind.DATE and any(item.symbol in "Dm" for item in items):
            certainty *= _ROUGH
        span = items[0].start, items[-1].end
        moments = _moments(items)
        ends = _time_ends(info, kind, items, moments)
        # Years of a field of years are values; everything else is a stretch of time.
        plain = [one for one in moments if one.years == 1 and info.kind is not FieldKind.DATE]
        found.append(
            _Ordered(
                info=info,
                certainty=certainty,
                span=span,
                ends=ends,
                values=tuple(_edge(info, one) for one in plain),
                ranges=tuple((_edge(info, one), _edge(info, one, last=True)) for one in moments if one not in plain),
                negated=items[0].symbol == "K",
            )
        )
    return found


def year_in(info: FieldInfo, year: int, era: str | None = None) -> int:
    """Turn a year of either era into the era of a field."""
    if info.low is None or info.high is None:
        return year
    if era is not None:
        buddhist = info.high >= _BUDDHIST_FROM
        return year + BUDDHIST * (buddhist - (era == "be"))
    low, high = info.low, info.high
    return min((year, year - BUDDHIST, year + BUDDHIST), key=lambda y: max(low - y, y - high, 0.0))


def _time_field(question: Question, stream: Stream, match: re.Match[str]) -> FieldInfo | None:
    items = stream.items[match.start() : match.end()]
    years = [info for info in question.dictionary.of_kind(FieldKind.NUMBER, FieldKind.KEYWORD) if info.year]
    dates = question.dictionary.of_kind(FieldKind.DATE)
    named = _fields_in(items) or _fields_around(stream, match.start(), match.end())
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


def _fields_in(items: Sequence[Item]) -> tuple[str, ...]:
    return tuple(name for item in items if item.symbol == "F" for name in item.value)


def _time_certainty(stream: Stream, match: re.Match[str], info: FieldInfo, kind: str, *, thai: bool) -> float | None:
    """How sure it is that an expression is about time; ``None`` where it is not."""
    items = stream.items[match.start() : match.end()]
    symbols = set(match[0])
    named = {*_fields_in(items), *_fields_around(stream, match.start(), match.end())}
    if symbols & set("YEDmZ") or info.name in named:
        return _SAID
    if not all(_is_near(info, moment, thai=thai) for moment in _moments(items)):
        return None
    if kind in {"range", "post"} or symbols & set("RH") or any(item.value == "gte gte" for item in items):
        return _SAID
    if "O" in symbols:
        return None
    if any(item.symbol in "GK" or (item.symbol == "I" and item.value == "time") for item in items):
        return _PREPOSITION
    beside = stream.symbols[max(0, match.start() - 1) : match.start()] + stream.symbols[match.end() : match.end() + 1]
    return _BESIDE_VALUE if set(beside) & set("VM") else None


def _moments(items: Sequence[Item]) -> list[Moment]:
    """The years and dates among items, with the era said beside each."""
    moments: list[Moment] = []
    for at, item in enumerate(items):
        if isinstance(item.value, Moment):
            moments.append(item.value)
        elif item.symbol == "4":
            beside = [items[near] for near in (at - 1, at + 1) if 0 <= near < len(items)]
            era = next((str(one.value) for one in beside if one.symbol == "E"), None)
            moments.append(Moment(int(item.value), era=era))
    return moments


def _is_near(info: FieldInfo, moment: Moment, *, thai: bool) -> bool:
    """Tell whether a number that nothing calls a year can be one of a field's."""
    if moment.year >= _BUDDHIST_FROM and not thai and (info.high or 0) < _BUDDHIST_FROM:
        return False  # "in 2500 words"
    if info.low is None or info.high is None:
        return True
    return info.low - _NEAR_YEARS <= year_in(info, moment.year, moment.era) <= info.high + _NEAR_YEARS


def _time_ends(info: FieldInfo, kind: str, items: Sequence[Item], moments: Sequence[Moment]) -> dict[str, float | str]:
    """The ends of a range or comparison; none of an equality."""
    if kind == "range":
        first, last = sorted(moments, key=lambda moment: moment.first_day(_year_of(info, moment)))
        return {"gte": _edge(info, first), "lte": _edge(info, last, last=True)}
    operator = "eq" if kind == "equal" else _operator(items, "RHGOP", lambda said: said.split()[0])
    if operator not in {"gt", "gte", "lt", "lte"}:
        return {}
    end = _edge(info, moments[0], last=operator in {"gt", "lte"})
    # A year field cannot tell the days before one in May from those after it, so the whole year stays in.
    whole = info.kind is not FieldKind.DATE and moments[0].month is not None
    return {f"{operator[:2]}e" if whole else operator: end}


def _year_of(info: FieldInfo, moment: Moment) -> int:
    return max(1, year_in(info, moment.year, moment.era))


def _edge(info: FieldInfo, moment: Moment, *, last: bool = False) -> float | str:
    """Return the first or last day of a moment, or the year where the field holds years."""
    year = _year_of(info, moment)
    if info.kind is FieldKind.DATE:
        return moment.last_day(year) if last else moment.first_day(year)
    year += moment.years - 1 if last else 0
    return f"{year:04d}" if info.kind is FieldKind.KEYWORD else float(year)

"""From a question to clauses, checked filters of an index's own fields: by its words alone, or by a model."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, takewhile
from typing import Any, Final, TypeVar

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from rapidfuzz import process

from agentic_retriever.errors import DeadlineExceededError, FilterError, LLMError, unknown_name
from agentic_retriever.filters import MAX_VALUES, check_filters, merge_and, parse_moment, walk_clauses
from agentic_retriever.indices.fields import FieldDictionary, FieldInfo, FieldKind, fold_query, folded
from agentic_retriever.llm import ModelClient, ask, containers, json_values, random_boundary, without_thoughts
from agentic_retriever.llm.prompts import filter_prompt
from agentic_retriever.schema import Degradation
from agentic_retriever.text.numbers import BUDDHIST, Amount, Moment, units
from agentic_retriever.understanding.question import (
    MAX_EXAMINED,
    Item,
    NamedValue,
    Question,
    Stream,
    find_values,
    read_stream,
)

_MAX_SAID: Final = 5
_ENDS: Final = {
    "gt": (FilterOperator.GT, "above"),
    "gte": (FilterOperator.GTE, "at least"),
    "lt": (FilterOperator.LT, "below"),
    "lte": (FilterOperator.LTE, "at most"),
}
Filter = MetadataFilter | MetadataFilters


@dataclass(frozen=True, slots=True)
class Clause:
    """A filter with the line that says it."""

    filter: Filter
    say: str
    certainty: float = 1.0  # How sure it is that the question means it, in (0, 1]
    spans: tuple[tuple[int, int], ...] = ()  # Where it stands in the question, in order; () where a model says it alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    clauses: tuple[Clause, ...]
    degraded: tuple[Degradation, ...] = ()

    def at_least(self, certainty: float) -> tuple[Clause, ...]:
        return tuple(clause for clause in self.clauses if clause.certainty >= certainty)

    def unread(self, query: str) -> str:
        """Return what a question says besides the conditions."""
        spans = [span for clause in self.clauses for span in clause.spans]
        return "".join(char for at, char in enumerate(query) if not any(start <= at < end for start, end in spans))


# --- from restrictions to filters -----------------------------------------------------------------------------------


def _checked(clause: Clause, certainty: float, spans: Iterable[tuple[int, int]], fields: FieldDictionary) -> Clause:
    """Check the filter of a restriction and note where it stands in the question."""
    check_filters(_group([clause.filter]), known_fields=fields.fields)
    bounded = min(1.0, max(0.01, round(certainty, 2)))
    return replace(clause, certainty=bounded, spans=tuple(sorted(set(spans))))


def in_reading_order(clauses: Iterable[Clause]) -> tuple[Clause, ...]:
    """Sort clauses by where they begin and end in the question, those that stand nowhere in it first."""

    def place(clause: Clause) -> tuple[int, int, str]:
        spans = clause.spans or ((0, 0),)
        return spans[0][0], spans[-1][1], clause.say

    return tuple(sorted(clauses, key=place))


def one_of(field: str, values: Iterable[str | float], *, negated: bool = False) -> Clause:
    listed = [_without_zero(value) for value in dict.fromkeys(values)][:MAX_VALUES]
    said = ", ".join(str(value) for value in listed[:_MAX_SAID])
    if len(listed) > _MAX_SAID:
        said += f" and {len(listed) - _MAX_SAID} more"
    if len(listed) == 1:
        operator = FilterOperator.NE if negated else FilterOperator.EQ
        only = MetadataFilter(key=field, operator=operator, value=listed[0])
        return Clause(only, f"{field} is {'not ' * negated}{said}")
    operator = FilterOperator.NIN if negated else FilterOperator.IN
    several = MetadataFilter(key=field, operator=operator, value=_of_one_type(listed))
    return Clause(several, f"{field} is {'none' if negated else 'one'} of {said}")


def within(field: str, **ends: float | str) -> Clause:
    """Restrict a field to a range of one or two ends, lower first: ``gt`` or ``gte``, ``lt`` or ``lte``."""
    plain = {end: _without_zero(value) for end, value in ends.items()}
    filters = [MetadataFilter(key=field, operator=_ENDS[end][0], value=value) for end, value in plain.items()]
    said = " and ".join(f"{_ENDS[end][1]} {value}" for end, value in plain.items())
    if list(plain) == ["gte", "lte"]:
        said = f"from {plain['gte']} to {plain['lte']}"
    return Clause(filters[0] if len(filters) == 1 else _group(filters), f"{field} is {said}")


def any_of(restrictions: Sequence[Clause], condition: FilterCondition = FilterCondition.OR) -> Clause:
    """Accept what any of several restrictions accepts, or all of them."""
    if len(restrictions) == 1:
        return restrictions[0]
    group = _group([one.filter for one in restrictions], condition)
    return Clause(group, f" {condition.value} ".join(one.say for one in restrictions))


def none_of(restrictions: Sequence[Clause]) -> Clause:
    """Refuse what any of several restrictions accepts, and what has none of their fields."""
    refused = _group([one.filter for one in restrictions], FilterCondition.NOT)
    fields = sorted({clause.key for clause in walk_clauses(refused)})
    empty = [MetadataFilter(key=field, operator=FilterOperator.IS_EMPTY, value=None) for field in fields]
    say = "not: " + " or ".join(one.say for one in restrictions)
    return Clause(_group([refused, _group(empty, FilterCondition.NOT)]), say)


def _group(filters: Sequence[Filter], condition: FilterCondition = FilterCondition.AND) -> MetadataFilters:
    return MetadataFilters(filters=list(filters), condition=condition)


def _without_zero(value: float | str) -> str | int | float:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _of_one_type(values: Sequence[str | float]) -> list[str] | list[int] | list[float]:
    """LlamaIndex's lists hold one type each; integers among floats become floats of the same worth."""
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        return texts
    integers = [value for value in values if isinstance(value, int)]
    return integers if len(integers) == len(values) else [float(value) for value in values]


# --- by the words of the question: values, quantities and times become restrictions of fields -----------------------

_SURE: Final = 0.7
_UNSURE: Final = 0.5


def understand(query: str, fields: FieldDictionary, *, language: str | None = None) -> Understood:
    """Find the restrictions that a question asks for, in the words of the index's own fields."""
    question = Question(query, fields, language)
    stream = read_stream(question, find_values(question))
    quantities, used = _find_quantities(question, stream)
    times = _find_times(question, stream, used)
    ordered = [clause for found in (quantities, times) for clause in _restrict_ordered(question, found)]
    return Understood(clauses=in_reading_order([*_restrict_values(question, stream), *ordered]))


_Said = TypeVar("_Said", "_Ordered", NamedValue)


def _clause(question: Question, restriction: Clause, said: Sequence[_Said]) -> Clause:
    """A clause as sure as the least sure of the things said that make it."""
    spans = [question.folded.origin(*one.span) for one in said]
    return _checked(restriction, min(one.certainty for one in said), spans, question.dictionary)


def _surest(said: Sequence[_Said]) -> list[_Said]:
    """Leave out what is unsure where something else for the same field is sure, so that it cannot widen that."""
    if max((one.certainty for one in said), default=0.0) < _SURE:
        return list(said)
    return [one for one in said if one.certainty > _UNSURE]


# --- values ---------------------------------------------------------------------------------------------------------
# Values of one field are joined to "one of" wherever they stand, also behind ``and``: a question for "deeds in Chiang
# Mai and Lamphun" wants either. ``X or Y`` with values of different fields becomes one restriction that either
# satisfies. A value whose words belong to several fields counts for any of them. ``not`` and its like turn them round.

# Factor for a value that a question is about, as in ``what is a freehold`` and ``compare Berlin and Madrid``.
_ABOUT_IT: Final = 0.5
_NEGATED: Final = re.compile(r"K[IGFJYA]{0,4}V(?:(?:,?[AC][IGFJ]{0,3}|,[FJ]{0,2})V){0,30}")
_WITH_OTHERS: Final = re.compile(r"V(?:(?:,?[AC]|,)[IGFJ]{0,3}V){0,30},?L")
_LISTED: Final = re.compile(r"V(?:(?:,?[AC]|,)[IGFJ]{0,3}V){1,30}")
_EITHER: Final = re.compile(r"V(?:,?C[IGFJ]{0,3}V){1,30}")
_TOPIC: Final = re.compile(r"\?[IGFJAB]{0,3}V(?:(?:,?[AC]|,)?[IGFJ]{0,3}V){0,30}|V(?:(?:,?[AC]|,)[IGFJ]{0,3}V){0,30}\?")


def _restrict_values(question: Question, stream: Stream) -> list[Clause]:
    open_lists = _places(_WITH_OTHERS, stream)
    negated = _places(_NEGATED, stream)
    value_at = _weigh(stream)
    alone = [at for at in value_at if at not in open_lists]
    clauses: list[Clause] = []
    for match in _EITHER.finditer(stream.symbols):
        group = [at for at in _values_in(match) if at not in negated | open_lists]
        either = [value_at[at] for at in group]
        if len(group) > 1 and len({ref.field for value in either for ref in value.refs}) > 1:
            clauses.append(_clause(question, _valued(either, negated=False), either))
            alone = [at for at in alone if at not in group]
    by_fields: dict[tuple[tuple[str, ...], bool], list[NamedValue]] = {}
    for at in alone:
        fields = tuple(sorted({ref.field for ref in value_at[at].refs}))
        by_fields.setdefault((fields, at in negated), []).append(value_at[at])
    for (_, is_negated), members in by_fields.items():
        joined = _surest(members)
        clauses.append(_clause(question, _valued(joined, negated=is_negated), joined))
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
    return {at for match in pattern.finditer(stream.symbols) for at in _values_in(match)}


def _values_in(match: re.Match[str]) -> list[int]:
    return [at for at, symbol in enumerate(match[0], match.start()) if symbol == "V"]


def _valued(values: Sequence[NamedValue], *, negated: bool) -> Clause:
    """Accept or refuse some values; a flag that is refused shall be false instead."""
    said: dict[tuple[str, bool], list[str]] = {}
    for ref in (ref for value in values for ref in value.refs):
        off = negated and ref.how == "flag"
        said.setdefault((ref.field, off), []).extend(("false",) if off else ref.originals)
    parts = [one_of(field, words, negated=negated and not off) for (field, off), words in said.items()]
    return any_of(parts, FilterCondition.AND if negated else FilterCondition.OR)


# --- what quantities and times share --------------------------------------------------------------------------------

_SKIPPED: Final = frozenset("IGBOHRYEJ")
_MAX_LOOK: Final = 4


@dataclass(frozen=True, slots=True)
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
    clauses: list[Clause] = []
    by_field: dict[tuple[str, bool], list[_Ordered]] = {}
    for one in expressions:
        if one.ends:
            clauses.append(_clause(question, within(one.info.name, **one.ends), [one]))
        else:
            by_field.setdefault((one.info.name, one.negated), []).append(one)
    for (name, negated), members in by_field.items():
        joined = _surest(members)
        ranges = [within(name, gte=low, lte=high) for one in joined for low, high in one.ranges]
        values = [value for one in joined for value in one.values]
        if values and negated and not ranges:
            restriction = one_of(name, values, negated=True)
        else:
            restrictions = [*ranges, one_of(name, values)] if values else ranges
            restriction = none_of(restrictions) if negated else any_of(restrictions)
        clauses.append(_clause(question, restriction, joined))
    return clauses


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
# The unit decides which field is meant, or its name beside the number where several have that unit or the number has
# none. A number without unit and name makes no clause.

_COMPARED: Final = 0.9
_EQUAL: Final = 0.55
_ROUGHLY: Final = 0.6
_NO_UNIT_KNOWN: Final = 0.7  # factor where the field has no unit, so that the question's unit cannot be checked
_TOLERANCE: Final = 0.1
_MAX_BORROWED: Final = 4
_QUANTITY: Final = re.compile(
    r"(?P<range>[BGIO]?[N4Q][TA][N4Q])|(?P<compared>[OHG]I?[N4Q]P?)|(?P<post>[N4Q]P)|(?P<equal>[N4Q])"
)


def _find_quantities(question: Question, stream: Stream) -> tuple[list[_Ordered], set[int]]:
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
        one = _Ordered(info, certainty * doubt, (start, items[-1].end), ends)
        found.append(replace(one, ends={}, values=(ends["gte"],)) if match["equal"] else one)
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
    amounts: list[Amount] = [item.value for item in stream.items[first:behind] if item.symbol == "Q"]
    if not amounts and stream.symbols[first] in "OH":
        # The next one soon behind: "more than 5 and at most 10 rai".
        soon = takewhile(lambda item: item.symbol in "QACWOH,", stream.items[behind : behind + _MAX_BORROWED])
        amounts = [item.value for item in soon if item.symbol == "Q"][:1]
    amount = amounts[-1] if amounts else None
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


# --- years and dates: ``since 2019``, ``de 2021``, ``หลังปี 2560``, ``in the 1960s``, ``5 May 2021`` ------------------
# A year counts when a word says that it is one, or a preposition or a value stands beside it and it is near those of
# the field, which also tell Buddhist from common years: where it holds 2530 to 2567, 2017 is read as 2560.

_SAID: Final = 0.9  # where a word says that it is a year or date, or how it compares
_PREPOSITION: Final = 0.75
_BESIDE_VALUE: Final = 0.55
_ROUGH: Final = 0.7  # factor where a day or month is asked of a field of years, or a field that most nodes lack
_NEAR_YEARS: Final = 60
_BUDDHIST_FROM: Final = 2300
_ONE_TIME: Final = "[YEI]{0,3}[4DmZ]E?"
_TIME: Final = re.compile(
    rf"(?P<range>[BG]?{_ONE_TIME}[TA]{_ONE_TIME})|(?P<compared>[RHGO]{_ONE_TIME}P?)|(?P<post>{_ONE_TIME}P)"
    rf"|(?P<equal>K?[GF]?{_ONE_TIME}(?:(?:,|,?[AC])G?{_ONE_TIME}){{0,9}})"
)


def _find_times(question: Question, stream: Stream, used: set[int]) -> list[_Ordered]:
    found: list[_Ordered] = []
    for match in _TIME.finditer(stream.symbols):
        items = stream.items[match.start() : match.end()]
        info = _time_field(question, stream, match) if used.isdisjoint(range(match.start(), match.end())) else None
        if info is None:
            continue
        kind = "equal" if match["range"] and _joined_by_and(items) else match.lastgroup or ""
        certainty = _time_certainty(question, stream, match, info, kind)
        if certainty is None:
            continue
        if info.kind is not FieldKind.DATE and any(item.symbol in "Dm" for item in items):
            certainty *= _ROUGH
        if info.rare and info.name not in _named_fields(stream, match):
            certainty *= _ROUGH
        span, negated = (items[0].start, items[-1].end), items[0].symbol == "K"
        moments = _moments(items)
        ends = _time_ends(info, kind, items, moments)
        # Years of a field of years are values; everything else is a stretch of time.
        plain = [one for one in moments if one.years == 1 and info.kind is not FieldKind.DATE]
        values = tuple(_edge(info, one) for one in plain)
        ranges = tuple((_edge(info, one), _edge(info, one, last=True)) for one in moments if one not in plain)
        found.append(_Ordered(info, certainty, span, ends, values, ranges, negated))
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
    inside = tuple(name for item in items if item.symbol == "F" for name in item.value)
    named = inside or _fields_around(stream, match.start(), match.end())
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


def _time_certainty(asked: Question, stream: Stream, match: re.Match[str], info: FieldInfo, kind: str) -> float | None:
    """How sure it is that an expression is about time; ``None`` where it is not."""
    items = stream.items[match.start() : match.end()]
    symbols = set(match[0])
    if symbols & set("YEDmZ") or info.name in _named_fields(stream, match):
        return _SAID
    moments = _moments(items)
    if not all(_is_near(info, moment, thai="th" in asked.stems) for moment in moments):
        return None
    if kind in {"range", "post"} or symbols & set("RH") or any(item.value == "gte gte" for item in items):
        return _SAID
    if "O" in symbols:
        return None
    held = all((info.low or 0) <= year_in(info, one.year) <= (info.high or 0) for one in moments)
    alone = asked.certainty_alone(items[0].start, items[-1].end)
    if held and alone and items[0].start:
        return alone
    behind = any(item.symbol in "GK" or (item.symbol == "I" and (held or item.value == "time")) for item in items)
    beside = stream.symbols[max(0, match.start() - 1) : match.start()] + stream.symbols[match.end() : match.end() + 1]
    return _PREPOSITION if behind else _BESIDE_VALUE if set(beside) & set("VM") else None


def _named_fields(stream: Stream, match: re.Match[str]) -> set[str]:
    inside = {name for item in stream.items[match.start() : match.end()] if item.symbol == "F" for name in item.value}
    return inside.union(_fields_around(stream, match.start(), match.end()))


def _moments(items: Sequence[Item]) -> list[Moment]:
    moments: list[Moment] = []
    for at, item in enumerate(items):
        if isinstance(item.value, Moment):
            moments.append(item.value)
        elif item.symbol == "4":
            beside = (*items[max(0, at - 1) : at], *items[at + 1 : at + 2])
            era = next((str(one.value) for one in beside if one.symbol == "E"), None)
            moments.append(Moment(int(item.value), era=era))
    return moments


def _is_near(info: FieldInfo, moment: Moment, *, thai: bool) -> bool:
    if moment.year >= _BUDDHIST_FROM and not thai and (info.high or 0) < _BUDDHIST_FROM:
        return False  # "in 2500 words"
    if info.low is None or info.high is None:
        return True
    return info.low - _NEAR_YEARS <= year_in(info, moment.year, moment.era) <= info.high + _NEAR_YEARS


def _time_ends(info: FieldInfo, kind: str, items: Sequence[Item], moments: Sequence[Moment]) -> dict[str, float | str]:
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


# --- by a model, held to the index's own fields and values ----------------------------------------------------------

MAX_CLAUSES: Final = 20
OPERATORS: Final = frozenset({"eq", "ne", "in", "nin", "gt", "gte", "lt", "lte", "between"})
_OTHER_OPERATORS: Final = {
    "=": "eq", "==": "eq", "!=": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte", "equals": "eq", "is": "eq",
    "not_in": "nin", "not in": "nin", "any": "in", "range": "between",
}  # fmt: skip
_MAX_LISTED: Final = 100
_MAX_TEXT: Final = 500
_MAX_NUMBER: Final = 1e15
_SHOWN_VALUES: Final = 30
_SHOWN_FIELDS: Final = 60
_SHOWN_NAMES: Final = 20
_CLOSE: Final = 70.0
_IN_QUESTION: Final = 0.85  # certainty of a model's clause whose words stand in the question
_ELSEWHERE: Final = 0.55


def extract_with_llm(
    client: ModelClient,
    query: str,
    fields: FieldDictionary,
    *,
    timeout_s: float | None = None,
    boundary: Callable[[], str] = random_boundary,
) -> Understood:
    """Ask a model for the restrictions in a question, refusing fields and values that the index does not have."""

    def without_model(*why: Degradation) -> Understood:
        return replace(understand(query, fields), degraded=why)

    examined, lines = query[:MAX_EXAMINED], [_line(info) for info in list(fields.fields.values())[:_SHOWN_FIELDS]]
    try:
        reply = ask(client, lambda mark: filter_prompt(examined, lines, mark), timeout_s=timeout_s, boundary=boundary)
    except (LLMError, DeadlineExceededError) as err:
        return without_model(_degraded(str(err)))
    wishes = read_reply(reply.text)
    if wishes is None:
        return without_model(_degraded("the model's reply holds no JSON with clauses; try another model"))
    compiled = [_compile(query, wish, fields) for wish in wishes]
    refused = [_degraded(one, "left out") for one in compiled if isinstance(one, str)]
    clauses = [one for one in compiled if isinstance(one, Clause)]
    if refused and not clauses:
        return without_model(*refused)
    return Understood(clauses=in_reading_order(clauses), degraded=tuple(refused))


def _degraded(reason: str, fallback: str = "filters from the words of the question") -> Degradation:
    return Degradation(step="filters.llm", reason=reason, fallback=fallback)


def _line(info: FieldInfo) -> str:
    if info.kind is FieldKind.BOOL:
        return f"{info.name}: true or false"
    if info.kind is not FieldKind.KEYWORD:
        unit = f" {info.unit}" if info.unit else ""
        span = "" if info.low is None else f" from {info.low:g} to {info.high:g}{unit}"
        return f"{info.name}: {'date, years' if info.kind is FieldKind.DATE else 'number'}{span}"
    shown = [originals[0] for originals in islice(info.values.values(), _SHOWN_VALUES)]
    more = f" and {len(info.values) - len(shown)} more of that kind" if len(info.values) > len(shown) else ""
    return f"{info.name}: {'; '.join(shown)}{more}"


@dataclass(frozen=True, slots=True)
class Wish:
    """A restriction as a model wrote it, not yet held against the index."""

    field: str
    op: str
    values: tuple[object, ...]
    words: str


def read_reply(text: str) -> list[Wish] | None:
    """Read what a model wishes out of whatever it replied: fenced, chatty, cut short or hostile."""
    for found in containers(json_values(without_thoughts(text))):
        listed = found.get("clauses", [found] if "field" in found else None) if isinstance(found, dict) else found
        if isinstance(listed, list) and all(isinstance(one, dict) for one in listed):
            wishes = [one for one in map(_wish, listed[:MAX_CLAUSES]) if one is not None]
            return wishes if wishes or not listed else None
    return None


def _wish(raw: dict[str, Any]) -> Wish | None:
    field, op, words = raw.get("field"), raw.get("op", "eq"), raw.get("words", "")
    if not isinstance(field, str) or not isinstance(op, str):
        return None
    op = op.strip().lower()
    op = _OTHER_OPERATORS.get(op, op)
    given = raw.get("value")
    values = given if isinstance(given, list) else [given]
    usable = all(isinstance(value, (str, int, float)) for value in values)
    if op not in OPERATORS or not usable or not 0 < len(values) <= _MAX_LISTED:
        return None
    cut = tuple(value[:_MAX_TEXT] if isinstance(value, str) else value for value in values)
    return Wish(field[:_MAX_TEXT], op, cut, words[:_MAX_TEXT] if isinstance(words, str) else "")


def _compile(query: str, wish: Wish, fields: FieldDictionary) -> Clause | str:
    info = fields.fields.get(wish.field)
    if info is None:
        return unknown_name("field", wish.field, list(fields.fields)[:_SHOWN_NAMES])
    # Where its words stand in the question first, whatever their case, accents and white space.
    wanted, question = folded(wish.words), fold_query(query[:MAX_EXAMINED])
    at = question.text.find(wanted) if wanted else -1
    spans = [question.origin(at, at + len(wanted))] if at >= 0 else []
    try:
        return _checked(_restriction(info, wish), _IN_QUESTION if spans else _ELSEWHERE, spans, fields)
    except (FilterError, ValueError, OverflowError) as err:
        return str(err)


def _restriction(info: FieldInfo, wish: Wish) -> Clause:
    values = [one for value in wish.values for one in _values(info, value)]
    if wish.op in {"eq", "in", "ne", "nin"}:
        return one_of(info.name, values, negated=wish.op in {"ne", "nin"})
    if info.kind not in {FieldKind.NUMBER, FieldKind.DATE} and not info.year:
        raise FilterError(f"the field {info.name!r} has no order; {wish.op} needs a field of numbers or dates")
    if wish.op != "between":
        return within(info.name, **{wish.op: values[0]})
    if len(values) != 2:
        raise FilterError(f"between needs two values for {info.name!r}, got {len(values)}")
    low, high = sorted(values, key=lambda value: (isinstance(value, str), value))
    return within(info.name, gte=low, lte=high)


def _values(info: FieldInfo, value: object) -> list[float | str]:
    if info.kind is FieldKind.NUMBER:
        return [_number(info, value)]
    if info.kind is FieldKind.DATE:
        if not isinstance(value, str) or parse_moment(value) is None:
            raise FilterError(f"the field {info.name!r} needs a date as YYYY-MM-DD, got {str(value)[:40]!r}")
        return [value]
    if info.kind is FieldKind.BOOL:
        said = str(value).casefold()
        if said not in {"true", "false"}:
            raise FilterError(f"the field {info.name!r} needs true or false, got {str(value)[:40]!r}")
        return [said]
    key = folded(str(value))
    if key in info.values:
        return list(info.values[key])
    close = process.extractOne(key, info.values.keys(), score_cutoff=_CLOSE)
    hint = f"; did you mean {info.values[close[0]][0]!r}?" if close else ""
    raise FilterError(f"the field {info.name!r} has no value {str(value)[:80]!r}{hint}")


def _number(info: FieldInfo, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise FilterError(f"the field {info.name!r} needs a number, got a {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number) or abs(number) > _MAX_NUMBER:
        raise FilterError(f"the field {info.name!r} needs a number of ordinary size")
    return float(year_in(info, int(number))) if info.year and number.is_integer() else number


# --- what to try when a question's clauses leave nothing: the same with as few clauses less as will do ---------------

_MAX_COMBINED: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    filters: MetadataFilters | None
    kept: tuple[Clause, ...]
    dropped: tuple[str, ...]


def relaxed(clauses: Sequence[Clause], filters: MetadataFilters | None = None) -> Iterator[Rung]:
    """Go through filters for a question: with all clauses, then without the least certain one, then without two."""
    order = sorted(range(len(clauses)), key=lambda at: (clauses[at].certainty, -at))
    for count in range(len(order) + 1):
        together = len(order) > _MAX_COMBINED and count > 1
        # Positions in order of certainty come out of combinations() in order of certainty, too.
        for lost in [order[:count]] if together else combinations(order, count):
            kept = tuple(clause for at, clause in enumerate(clauses) if at not in lost)
            wanted = _group([clause.filter for clause in kept])
            dropped = tuple(clauses[at].say for at in lost)
            yield Rung(filters=merge_and(filters, wanted), kept=kept, dropped=dropped)

"""Comparisons and ranges of number fields: ``5 to 10 rai``, ``más de 100 m2``, ``ไม่เกิน 3 ไร่``.

The unit decides which field is meant, or its name beside the number where several have that unit or the number has
none. A number without unit and name makes no clause.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agentic_retriever.retrievers.question_filters.amounts import Amount
from agentic_retriever.retrievers.question_filters.compiler import Bound, Part, number_of, range_part, values_part
from agentic_retriever.retrievers.question_filters.fields import FieldInfo, FieldKind
from agentic_retriever.retrievers.question_filters.lexicon import units
from agentic_retriever.retrievers.question_filters.restrictions import (
    Restriction,
    Wanted,
    fields_before,
    fields_behind,
    surest,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.retrievers.question_filters.question import Question
    from agentic_retriever.retrievers.question_filters.stream import Item, Stream

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
    """Find the restrictions of number fields.

    Returns:
        The restrictions, and the numbers of the things in the stream that they use.
    """
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

"""The one way in which restrictions become filters, whoever found them: rules or a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever.filters import MAX_VALUES, check_filters
from agentic_retriever.filters.check import walk_clauses
from agentic_retriever.retrievers.question_filters.clauses import Clause

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from agentic_retriever.retrievers.question_filters.fields import FieldInfo

_SAID: Final = 5
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range.

    Attributes:
        value: A number, or a year or ISO date as text.
        inclusive: Whether the value itself belongs to the range.
    """

    value: float | str
    inclusive: bool = True


@dataclass(frozen=True, slots=True)
class Part:
    """A filter with the line that says it."""

    filter: MetadataFilter | MetadataFilters
    say: str


def values_part(field: str, values: Sequence[str | float], *, negated: bool = False) -> Part:
    """Restrict a field to some values, or to any other.

    Args:
        field: Name of the field.
        values: Stored values, not empty; those beyond the 10,000 that a filter may list are left out.
        negated: Whether the values are the ones that are not wanted.
    """
    listed = [_plain(value) for value in dict.fromkeys(values)][:MAX_VALUES]
    said = ", ".join(str(value) for value in listed[:_SAID])
    if len(listed) > _SAID:
        said += f" and {len(listed) - _SAID} more"
    if len(listed) == 1:
        operator = FilterOperator.NE if negated else FilterOperator.EQ
        return Part(
            MetadataFilter(key=field, operator=operator, value=listed[0]), f"{field} is {'not ' * negated}{said}"
        )
    operator = FilterOperator.NIN if negated else FilterOperator.IN
    clause = MetadataFilter(key=field, operator=operator, value=_of_one_type(listed))
    return Part(clause, f"{field} is {'none' if negated else 'one'} of {said}")


def range_part(field: str, low: Bound | None, high: Bound | None) -> Part:
    """Restrict a field to a range with at least one end."""
    parts: list[MetadataFilter | MetadataFilters] = []
    if low is not None:
        operator = FilterOperator.GTE if low.inclusive else FilterOperator.GT
        parts.append(MetadataFilter(key=field, operator=operator, value=_plain(low.value)))
    if high is not None:
        operator = FilterOperator.LTE if high.inclusive else FilterOperator.LT
        parts.append(MetadataFilter(key=field, operator=operator, value=_plain(high.value)))
    if len(parts) == 1:
        return Part(parts[0], f"{field} is {_said_end(low, high)}")
    return Part(MetadataFilters(filters=parts, condition=FilterCondition.AND), f"{field} is {_said_both(low, high)}")


def any_part(parts: Sequence[Part]) -> Part:
    """Accept what any of several parts accepts."""
    if len(parts) == 1:
        return parts[0]
    group = MetadataFilters(filters=[part.filter for part in parts], condition=FilterCondition.OR)
    return Part(group, " or ".join(part.say for part in parts))


def all_part(parts: Sequence[Part]) -> Part:
    """Accept what all of several parts accept."""
    if len(parts) == 1:
        return parts[0]
    group = MetadataFilters(filters=[part.filter for part in parts], condition=FilterCondition.AND)
    return Part(group, " and ".join(part.say for part in parts))


def none_part(parts: Sequence[Part]) -> Part:
    """Refuse what any of several parts accepts, and what has none of their fields."""
    fields = {clause.key for part in parts for clause in walk_clauses(as_filters(part.filter))}
    refused = MetadataFilters(filters=[part.filter for part in parts], condition=FilterCondition.NOT)
    empty: list[MetadataFilter | MetadataFilters] = [
        MetadataFilter(key=field, operator=FilterOperator.IS_EMPTY, value=None) for field in sorted(fields)
    ]
    missing = MetadataFilters(filters=empty, condition=FilterCondition.NOT)
    say = "not: " + " or ".join(part.say for part in parts)
    return Part(MetadataFilters(filters=[refused, missing], condition=FilterCondition.AND), say)


def make_clause(
    query: str, part: Part, *, certainty: float, spans: Sequence[tuple[int, int]], known: Collection[str]
) -> Clause:
    """Turn a part into a checked clause.

    Args:
        query: The question.
        part: The filter and what it says.
        certainty: In (0, 1]; rounded to two decimals.
        spans: The stretches of the question that it came from.
        known: The index's fields.

    Raises:
        FilterError: If the filter names another field or holds what no filter can.
    """
    check_filters(as_filters(part.filter), known_fields=known)
    ordered = tuple(sorted(set(spans)))
    text = " … ".join(query[start:end] for start, end in ordered)
    bounded = min(1.0, max(0.01, round(certainty, 2)))
    return Clause(filter=part.filter, certainty=bounded, text=text, spans=ordered, say=part.say)


def as_filters(item: MetadataFilter | MetadataFilters) -> MetadataFilters:
    """Put a single filter into a group of its own."""
    return item if isinstance(item, MetadataFilters) else MetadataFilters(filters=[item])


def number_of(info: FieldInfo, base: float, factor: float | None) -> float:
    """Turn an amount in base units into the unit of a field; unchanged where ``factor`` is ``None``."""
    value = base if factor is None else base / factor
    return float(f"{value:.{_DIGITS}g}") if info.unit else value


def _plain(value: float | str) -> str | int | float:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _of_one_type(values: Sequence[str | float]) -> list[str] | list[int] | list[float]:
    """LlamaIndex's lists hold one type each; integers among floats become floats of the same worth."""
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        return texts
    integers = [value for value in values if isinstance(value, int)]
    return integers if len(integers) == len(values) else [float(value) for value in values]


def _said_end(low: Bound | None, high: Bound | None) -> str:
    if low is not None:
        return f"{'at least' if low.inclusive else 'above'} {_plain(low.value)}"
    return "" if high is None else f"{'at most' if high.inclusive else 'below'} {_plain(high.value)}"


def _said_both(low: Bound | None, high: Bound | None) -> str:
    if low is None or high is None:
        return _said_end(low, high)
    if low.inclusive and high.inclusive:
        return f"from {_plain(low.value)} to {_plain(high.value)}"
    return f"{_said_end(low, None)} and {_said_end(None, high)}"

"""Joining filters, and writing them in one form whatever their order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever.filters.check import LIST_OPERATORS, check_filters, is_empty

if TYPE_CHECKING:
    from agentic_retriever.filters.values import Scalar

_SAME: dict[FilterOperator, FilterOperator] = {
    FilterOperator.CONTAINS: FilterOperator.EQ,
    FilterOperator.ANY: FilterOperator.IN,
}


def merge_and(first: MetadataFilters | None, second: MetadataFilters | None) -> MetadataFilters | None:
    """Join two filters so that a node must satisfy both; the result can only be narrower than either.

    Args:
        first: One filter, or ``None``.
        second: Another, or ``None``.

    Returns:
        A new filter, one of the two where the other restricts nothing, or ``None``.

    Raises:
        FilterError: Nested deeper than 32.
    """
    parts = [part for part in (first, second) if part is not None and not is_empty(part)]
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    children: list[MetadataFilter | MetadataFilters] = []
    for part in parts:
        # A group that is joined by AND already is opened, so that repeated joining does not nest ever deeper.
        joined_by_and = part.condition in {None, FilterCondition.AND}
        children.extend(part.filters if joined_by_and else [part])
    return MetadataFilters(filters=children, condition=FilterCondition.AND)


def normalise(filters: MetadataFilters | None) -> str:
    """Write filters so that equal ones are written alike, for use in cache keys.

    The order of clauses and of listed values, repetitions, needless nesting and ``2020`` against ``2020.0`` make no
    difference; ``1`` against ``"1"`` does.

    Args:
        filters: The filters.

    Returns:
        JSON text; ``""`` where nothing is restricted.

    Raises:
        FilterError: The filters cannot be evaluated.
    """
    check_filters(filters)
    if filters is None or is_empty(filters):
        return ""
    return _write(_canonical(filters))


def _canonical(item: MetadataFilter | MetadataFilters) -> list[Any]:
    if isinstance(item, MetadataFilter):
        operator = _SAME.get(item.operator, item.operator)
        return [operator.value, item.key, _canonical_value(item)]
    condition = item.condition or FilterCondition.AND
    parts: dict[str, list[Any]] = {}
    for child in item.filters:
        if isinstance(child, MetadataFilters) and is_empty(child):
            continue
        written = _canonical(child)
        inner = written[1] if written[0] == condition.value != FilterCondition.NOT.value else [written]
        parts.update((_write(part), part) for part in inner)
    ordered = [parts[text] for text in sorted(parts)]
    if len(ordered) == 1 and condition is not FilterCondition.NOT:
        return ordered[0]
    return [condition.value, ordered]


def _canonical_value(clause: MetadataFilter) -> Any:  # noqa: ANN401 - JSON of any shape
    if clause.operator not in LIST_OPERATORS:
        return _canonical_scalar(clause.value)
    values = {_write(_canonical_scalar(value)) for value in clause.value or []}  # type: ignore[union-attr]  # checked to be a list
    return [json.loads(text) for text in sorted(values)]


def _canonical_scalar(value: object) -> Scalar | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, (str, int, float)) else None


def _write(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

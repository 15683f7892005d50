"""The one evaluator of metadata filters."""

from __future__ import annotations

import operator as op
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever.filters.check import LIST_OPERATORS, RANGE_OPERATORS, check_filters, is_empty
from agentic_retriever.filters.values import (
    Key,
    Scalar,
    elements,
    field_key,
    is_missing,
    parse_moment,
    wanted_keys,
)

if TYPE_CHECKING:
    import datetime as dt

    from llama_index.core.schema import BaseNode

Predicate = Callable[[Mapping[str, object]], bool]
_Test = Callable[[object], bool]
_Compare = Callable[[Any, Any], bool]

_COMPARE: Final[dict[FilterOperator, _Compare]] = {
    FilterOperator.GT: op.gt,
    FilterOperator.GTE: op.ge,
    FilterOperator.LT: op.lt,
    FilterOperator.LTE: op.le,
}


def matches(metadata: Mapping[str, object], filters: MetadataFilters | None) -> bool:
    """Tell whether metadata satisfies filters. The rules stand in the package's docstring.

    Args:
        metadata: Field names and values.
        filters: The filters; ``None`` or empty accepts everything.

    Returns:
        Whether it does.

    Raises:
        FilterError: The filters cannot be evaluated.
    """
    return predicate(filters)(metadata)


def predicate(filters: MetadataFilters | None) -> Predicate:
    """Compile filters into a function, for use on many nodes.

    Args:
        filters: The filters; ``None`` or empty accepts everything.

    Returns:
        A function from metadata to whether it satisfies the filters.

    Raises:
        FilterError: The filters cannot be evaluated.
    """
    check_filters(filters)
    if filters is None or is_empty(filters):
        return lambda _metadata: True
    return _group(filters)


def node_fields(node: BaseNode) -> dict[str, object]:
    """Give what a filter sees of a node: its metadata, and its source's id as ``doc_id``.

    Args:
        node: Any node.

    Returns:
        A new mapping. ``document_id`` and ``ref_doc_id`` are there too, as other LlamaIndex stores name it.
    """
    fields: dict[str, object] = dict(node.metadata)
    fields.update(dict.fromkeys(("doc_id", "document_id", "ref_doc_id"), node.ref_doc_id))
    return fields


def _group(group: MetadataFilters) -> Predicate:
    parts = [_part(child) for child in group.filters if isinstance(child, MetadataFilter) or not is_empty(child)]
    if group.condition is FilterCondition.OR:
        return lambda metadata: any(part(metadata) for part in parts)
    if group.condition is FilterCondition.NOT:
        return lambda metadata: not any(part(metadata) for part in parts)
    return lambda metadata: all(part(metadata) for part in parts)


def _part(item: MetadataFilter | MetadataFilters) -> Predicate:
    if isinstance(item, MetadataFilters):
        return _group(item)
    key = item.key
    if item.operator is FilterOperator.IS_EMPTY:
        return lambda metadata: is_missing(metadata.get(key))
    test = _test(item)

    def present_and_true(metadata: Mapping[str, object]) -> bool:
        value = metadata.get(key)
        return not is_missing(value) and test(value)

    return present_and_true


def _test(clause: MetadataFilter) -> _Test:
    operator = clause.operator
    if operator in RANGE_OPERATORS:
        return _range_test(_COMPARE[operator], cast("Scalar", clause.value))
    if operator is FilterOperator.TEXT_MATCH:
        return _text_test(str(clause.value), fold=False)
    if operator is FilterOperator.TEXT_MATCH_INSENSITIVE:
        return _text_test(str(clause.value), fold=True)
    values = cast("list[Scalar]", clause.value if operator in LIST_OPERATORS else [clause.value])
    wanted = [wanted_keys(value) for value in values]
    if operator is FilterOperator.ALL:
        return lambda value: _has_all(_keys(value), wanted)
    accepted = frozenset().union(*wanted)
    if operator in {FilterOperator.NE, FilterOperator.NIN}:
        return lambda value: accepted.isdisjoint(_keys(value))
    return lambda value: not accepted.isdisjoint(_keys(value))


def _keys(value: object) -> list[Key]:
    return [field_key(item) for item in elements(value)]


def _has_all(keys: list[Key], wanted: list[frozenset[Key]]) -> bool:
    return all(not accepted.isdisjoint(keys) for accepted in wanted)


def _text_test(wanted: str, *, fold: bool) -> _Test:
    if fold:
        folded = wanted.casefold()
        return lambda value: any(isinstance(item, str) and folded in item.casefold() for item in elements(value))
    return lambda value: any(isinstance(item, str) and wanted in item for item in elements(value))


def _range_test(compare: _Compare, bound: Scalar) -> _Test:
    if not isinstance(bound, str):
        return lambda value: any(not isinstance(item, (str, bool)) and compare(item, bound) for item in elements(value))
    moment = parse_moment(bound)
    if moment is None:
        return lambda value: any(isinstance(item, str) and compare(item, bound) for item in elements(value))
    return lambda value: any(
        isinstance(item, str) and _moment_satisfies(compare, item, moment) for item in elements(value)
    )


def _moment_satisfies(compare: _Compare, text: str, bound: tuple[dt.datetime, bool]) -> bool:
    found = parse_moment(text)
    if found is None:
        return False
    if found[1] or bound[1]:  # a date against a date-time is compared by the day
        return compare(found[0].date(), bound[0].date())
    return compare(found[0], bound[0])

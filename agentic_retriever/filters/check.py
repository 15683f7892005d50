"""Refuse filters that cannot be evaluated, before anything is searched."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever.errors import FilterError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from enum import Enum

MAX_DEPTH: Final = 32
MAX_CLAUSES: Final = 1_000
MAX_VALUES: Final = 10_000
MAX_KEY_LENGTH: Final = 256

LIST_OPERATORS: Final = frozenset({FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL})
RANGE_OPERATORS: Final = frozenset({FilterOperator.GT, FilterOperator.GTE, FilterOperator.LT, FilterOperator.LTE})
TEXT_OPERATORS: Final = frozenset({FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE})


def check_filters(filters: MetadataFilters | None, *, known_fields: Collection[str] | None = None) -> None:
    """Refuse filters that cannot be evaluated.

    Args:
        filters: What a caller or a model asked for; ``None`` is fine.
        known_fields: The fields that may be filtered on; ``None`` allows any.

    Raises:
        FilterError: Nested deeper than 32, more than 1,000 clauses, a list of more than 10,000 values, an empty or
            overlong key, a field that is not known, or a value that the operator cannot use.
    """
    for count, clause in enumerate(walk_clauses(filters), start=1):
        if count > MAX_CLAUSES:
            message = f"the filter has more than {MAX_CLAUSES:,} clauses; put the values of one field in one list"
            raise FilterError(message)
        _check_key(clause.key, known_fields)
        _check_value(clause)


def is_empty(filters: MetadataFilters | None) -> bool:
    """Tell whether filters restrict nothing: ``None``, or groups without any clause.

    Args:
        filters: The filters.

    Returns:
        Whether every node satisfies them for want of a clause.

    Raises:
        FilterError: Nested deeper than 32.
    """
    return next(walk_clauses(filters), None) is None


def walk_clauses(filters: MetadataFilters | None) -> Iterator[MetadataFilter]:
    """Go through every clause, however nested, without recursion.

    Args:
        filters: The filters.

    Yields:
        Each clause.

    Raises:
        FilterError: Nested deeper than 32, or something in it is neither a clause nor a group.
    """
    stack: list[tuple[object, int]] = [] if filters is None else [(filters, 1)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, MetadataFilter):
            _check_enum(item.operator, FilterOperator)
            yield item
            continue
        if not isinstance(item, MetadataFilters):
            message = f"a filter group holds a {type(item).__name__}; only MetadataFilter and MetadataFilters belong"
            raise FilterError(message)
        if depth > MAX_DEPTH:
            message = f"the filter is nested deeper than {MAX_DEPTH} groups; flatten it"
            raise FilterError(message)
        if item.condition is not None:
            _check_enum(item.condition, FilterCondition)
        stack.extend((child, depth + 1) for child in reversed(item.filters))


def _check_enum(value: object, kind: type[Enum]) -> None:
    # Models that were built without validation hold plain strings, which would be taken for another member.
    if not isinstance(value, kind):
        allowed = ", ".join(repr(member.value) for member in kind)
        message = f"unknown {kind.__name__} {str(value)[:80]!r}; allowed: {allowed}"
        raise FilterError(message)


def _check_key(key: str, known_fields: Collection[str] | None) -> None:
    if not key:
        message = "a filter has an empty key; name the metadata field to compare"
        raise FilterError(message)
    if len(key) > MAX_KEY_LENGTH:
        message = f"a filter key has {len(key):,} characters; at most {MAX_KEY_LENGTH} are allowed"
        raise FilterError(message)
    if known_fields is not None and key not in known_fields:
        raise FilterError(unknown_name("field", key, known_fields))
    _check_unicode(key, key)


def _check_value(clause: MetadataFilter) -> None:
    operator, value = clause.operator, clause.value
    if operator is FilterOperator.IS_EMPTY:
        if value is not None:
            raise _wrong(clause, "no value (None)")
    elif operator in LIST_OPERATORS:
        _check_list(clause)
    elif operator in TEXT_OPERATORS and not (isinstance(value, str) and value):
        raise _wrong(clause, "a string that is not empty")
    elif operator in RANGE_OPERATORS and isinstance(value, bool):
        raise _wrong(clause, "a number, a date or a string")
    else:
        _check_scalar(clause, value)


def _check_list(clause: MetadataFilter) -> None:
    if not isinstance(clause.value, list):
        raise _wrong(clause, "a list of strings or numbers")
    if len(clause.value) > MAX_VALUES:
        message = f"the filter on {clause.key!r} lists {len(clause.value):,} values; at most {MAX_VALUES:,} are allowed"
        raise FilterError(message)
    for item in clause.value:
        _check_scalar(clause, item)


def _check_scalar(clause: MetadataFilter, value: object) -> None:
    if isinstance(value, str):
        _check_unicode(clause.key, value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            message = f"the filter on {clause.key!r} compares with {value}; a finite number is needed"
            raise FilterError(message)
    elif not isinstance(value, int):
        raise _wrong(clause, "a string or a number")


def _check_unicode(key: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as err:
        message = f"the filter on {key[:80]!r} holds half a surrogate pair, which no stored text can contain"
        raise FilterError(message) from err


def _wrong(clause: MetadataFilter, allowed: str) -> FilterError:
    hint = "; to find nodes without the field use is_empty" if clause.value is None else ""
    got = "None" if clause.value is None else f"a {type(clause.value).__name__}"
    return FilterError(f"the filter {clause.key!r} {clause.operator.value} needs {allowed}, got {got}{hint}")

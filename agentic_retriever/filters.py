"""One meaning for metadata filters, whatever holds the nodes.

Filters are LlamaIndex's ``MetadataFilters``. Its stores disagree on what they mean, so every back-end here
is held to the evaluator in this package:

- **Keys** are literal names of top-level fields: ``a.b`` is a field with a dot in its name, not a path.
- **Missing**: a field that is absent, ``None``, NaN or an empty list satisfies ``is_empty`` and nothing else, so
  ``!=`` and ``nin`` do not return nodes without the field. An empty string is a value.
- **Lists**: a list satisfies ``==``, ``in``, ``contains``, ``any``, a range or a text match when any element does;
  ``!=`` and ``nin`` when no element is equal; ``all`` when every wanted value equals some element. A single value
  counts as a list of one. Nested lists and objects equal nothing.
- **Equality**: ``contains`` is ``==`` and ``any`` is ``in``. Text equals text, case and all. Numbers equal by worth
  (``2020`` and ``2020.0``). A number never equals text. ``in []`` is satisfied by nothing, ``nin []`` and ``all []``
  by any node that has the field.
- **Booleans**: a ``MetadataFilter`` cannot hold one, so the texts ``true`` and ``false``, in any case, equal the
  boolean as well as that text. A boolean is no number: ``1`` does not equal ``True``, and ranges skip it.
- **Ranges**: a number is compared with numbers. An ISO 8601 date or date-time is compared, in UTC, with texts that
  are one too; where either side is a date without a time the day decides, so ``<= 2024-05-31`` includes that whole
  day. Any other text is compared with texts by code point.
- **Text**: ``text_match`` finds a substring; ``text_match_insensitive`` does so whatever the case.
- **Groups**: ``and``, ``or``, and ``not``, which is satisfied when none of its parts is (so ``not`` over ``==`` does
  return nodes without the field). A group without clauses restricts nothing and is left out wherever it stands.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import operator as op
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

import numpy as np
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever.errors import FilterError, unknown_name

MAX_DEPTH: Final = 32
MAX_CLAUSES: Final = 1_000
MAX_VALUES: Final = 10_000
MAX_KEY_LENGTH: Final = 256

LIST_OPERATORS: Final = frozenset({FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL})
COMPARE: Final = {
    FilterOperator.GT: op.gt,
    FilterOperator.GTE: op.ge,
    FilterOperator.LT: op.lt,
    FilterOperator.LTE: op.le,
}
RANGE_OPERATORS: Final = frozenset(COMPARE)
TEXT_OPERATORS: Final = frozenset({FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE})


def check_filters(filters: MetadataFilters | None, *, known_fields: Collection[str] | None = None) -> None:
    """Refuse filters that cannot be evaluated."""
    for count, clause in enumerate(walk_clauses(filters), start=1):
        if count > MAX_CLAUSES:
            told = "put the values of one field in one list"
            raise FilterError(f"the filter has more than {MAX_CLAUSES:,} clauses; {told}")
        if not clause.key:
            raise FilterError("a filter has an empty key; name the metadata field to compare")
        if len(clause.key) > MAX_KEY_LENGTH:
            size = f"{len(clause.key):,} characters"
            raise FilterError(f"a filter key has {size}; at most {MAX_KEY_LENGTH} are allowed")
        if known_fields is not None and clause.key not in known_fields:
            raise FilterError(unknown_name("field", clause.key, known_fields))
        _check_unicode(clause.key, clause.key)
        _check_value(clause)


def is_empty(filters: MetadataFilters | None) -> bool:
    """Tell whether filters restrict nothing: ``None``, or groups without any clause."""
    return next(walk_clauses(filters), None) is None


def filled_parts(group: MetadataFilters) -> list[MetadataFilter | MetadataFilters]:
    """Return the parts of a group that restrict something, all but groups without any clause."""
    return [part for part in group.filters if isinstance(part, MetadataFilter) or not is_empty(part)]


def walk_clauses(filters: MetadataFilters | None) -> Iterator[MetadataFilter]:
    """Go through every clause, however nested, without recursion."""
    stack: list[tuple[object, int]] = [] if filters is None else [(filters, 1)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, MetadataFilter):
            _check_enum(item.operator, FilterOperator)
            yield item
            continue
        if not isinstance(item, MetadataFilters):
            allowed = "only MetadataFilter and MetadataFilters belong"
            raise FilterError(f"a filter group holds a {type(item).__name__}; {allowed}")
        if depth > MAX_DEPTH:
            raise FilterError(f"the filter is nested deeper than {MAX_DEPTH} groups; flatten it")
        if item.condition is not None:
            _check_enum(item.condition, FilterCondition)
        stack.extend((child, depth + 1) for child in reversed(item.filters))


def _check_enum(value: object, kind: type[Enum]) -> None:
    # Models that were built without validation hold plain strings, which would be taken for another member.
    if not isinstance(value, kind):
        allowed = ", ".join(repr(member.value) for member in kind)
        raise FilterError(f"unknown {kind.__name__} {str(value)[:80]!r}; allowed: {allowed}")


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
        count, most = f"{len(clause.value):,} values", f"at most {MAX_VALUES:,} are allowed"
        raise FilterError(f"the filter on {clause.key!r} lists {count}; {most}")
    for item in clause.value:
        _check_scalar(clause, item)


def _check_scalar(clause: MetadataFilter, value: object) -> None:
    if isinstance(value, str):
        _check_unicode(clause.key, value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise FilterError(f"the filter on {clause.key!r} compares with {value}; a finite number is needed")
    elif not isinstance(value, int):
        raise _wrong(clause, "a string or a number")


def _check_unicode(key: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as err:
        half = "half a surrogate pair, which no stored text can contain"
        raise FilterError(f"the filter on {key[:80]!r} holds {half}") from err


def _wrong(clause: MetadataFilter, allowed: str) -> FilterError:
    hint = "; to find nodes without the field use is_empty" if clause.value is None else ""
    got = "None" if clause.value is None else f"a {type(clause.value).__name__}"
    return FilterError(f"the filter {clause.key!r} {clause.operator.value} needs {allowed}, got {got}{hint}")


# Joining filters, and writing them in one form whatever their order.

_SAME = {FilterOperator.CONTAINS: FilterOperator.EQ, FilterOperator.ANY: FilterOperator.IN}


def merge_and(first: MetadataFilters | None, second: MetadataFilters | None) -> MetadataFilters | None:
    """Join two filters so that a node must satisfy both; the result can only be narrower than either."""
    parts = [part for part in (first, second) if part is not None and not is_empty(part)]
    if len(parts) < 2:
        return parts[0] if parts else None
    children: list[MetadataFilter | MetadataFilters] = []
    for part in parts:
        # A group that is joined by AND already is opened, so that repeated joining does not nest ever deeper.
        children.extend(part.filters if part.condition in {None, FilterCondition.AND} else [part])
    return MetadataFilters(filters=children, condition=FilterCondition.AND)


def normalise(filters: MetadataFilters | None) -> str:
    """Write filters so that equal ones are written alike, for use in cache keys.

    The order of clauses and of listed values, repetitions, needless nesting and ``2020`` against ``2020.0`` make no
    difference; ``1`` against ``"1"`` does.
    """
    check_filters(filters)
    return "" if filters is None or is_empty(filters) else _write(_canonical(filters))


def _canonical(item: MetadataFilter | MetadataFilters) -> list[Any]:
    if isinstance(item, MetadataFilter):
        operator = _SAME.get(item.operator, item.operator)
        if operator not in LIST_OPERATORS:
            return [operator.value, item.key, _canonical_scalar(item.value)]
        values = {_write(_canonical_scalar(value)) for value in cast("list[Scalar]", item.value)}
        return [operator.value, item.key, [json.loads(text) for text in sorted(values)]]
    condition = item.condition or FilterCondition.AND
    parts: dict[str, list[Any]] = {}
    for child in filled_parts(item):
        written = _canonical(child)
        inner = written[1] if written[0] == condition.value != FilterCondition.NOT.value else [written]
        parts.update((_write(part), part) for part in inner)
    ordered = [parts[text] for text in sorted(parts)]
    if len(ordered) == 1 and condition is not FilterCondition.NOT:
        return ordered[0]
    return [condition.value, ordered]


def _canonical_scalar(value: object) -> Scalar | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, (str, int, float)) else None


def _write(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# How metadata values and filter values are read before they are compared.

Scalar: TypeAlias = str | int | float | bool
Key: TypeAlias = tuple[str, str | int | float]

# Fewer spellings than ISO 8601 has: the ones that every back-end reads alike. An offset needs the seconds before it,
# fractions stop at microseconds.
_MOMENT: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?(Z|[+-][0-9]{2}:?[0-9]{2})?)?)?"
)


def plain_scalar(value: object) -> Scalar | None:
    """Turn one value into the string, number or boolean that it stands for in JSON; NaN into ``None``."""
    if isinstance(value, Enum):
        return plain_scalar(value.value)
    if isinstance(value, np.generic) and not isinstance(value, (str, float)):
        return plain_scalar(value.item())
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, (float, Decimal)):
        is_whole = isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value()
        number = int(value) if is_whole else float(value)
        return None if math.isnan(value) else number
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, (UUID, PurePath)):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no string, number, boolean or date")


def elements(value: object) -> Iterator[Scalar]:
    """Go through the scalars that a filter compares: the value itself, or each element of a list."""
    for item in value if isinstance(value, (list, tuple, set, frozenset)) else (value,):
        try:
            scalar = plain_scalar(item)
        except TypeError:
            continue
        if scalar is not None:
            yield scalar


def is_missing(value: object) -> bool:
    """Tell whether a field counts as absent: ``None``, NaN or an empty list."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return not value
    return math.isnan(value) if isinstance(value, (float, Decimal)) else value is None


def field_key(value: Scalar) -> Key:
    """Give the key under which a metadata scalar equals a filter value."""
    if isinstance(value, bool):
        return ("bool", int(value))
    return ("text", value) if isinstance(value, str) else ("number", value)


def wanted_keys(value: Scalar) -> frozenset[Key]:
    """Give the keys that a filter value accepts: for ``true`` and ``false`` the text and the boolean."""
    text = str(value).lower() if isinstance(value, bool) else value
    truth = as_boolean(text)
    return frozenset({field_key(text)} if truth is None else {field_key(text), ("bool", int(truth))})


def as_boolean(value: Scalar) -> bool | None:
    """Read the texts ``true`` and ``false`` in any case."""
    return {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None


def parse_moment(text: str) -> tuple[dt.datetime, bool] | None:
    """Read an ISO 8601 date or date-time."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, offset = found.groups()
    try:
        zone = dt.timezone.utc
        if offset is not None and offset != "Z":
            size = dt.timedelta(hours=int(offset[1:3]), minutes=int(offset[-2:]))
            zone = dt.timezone(-size if offset[0] == "-" else size)
        moment = dt.datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0),
            int((fraction or "").ljust(6, "0")), tzinfo=zone,
        )  # fmt: skip
        return moment.astimezone(dt.timezone.utc), hour is None
    except (ValueError, OverflowError):
        return None


# The one evaluator of metadata filters.

Predicate = Callable[[Mapping[str, object]], bool]
_Test = Callable[[object], bool]
_Compare = Callable[[Any, Any], bool]


def matches(metadata: Mapping[str, object], filters: MetadataFilters | None) -> bool:
    """Tell whether metadata satisfies filters."""
    return predicate(filters)(metadata)


def predicate(filters: MetadataFilters | None) -> Predicate:
    """Compile filters into a function, for use on many nodes."""
    check_filters(filters)
    return (lambda _metadata: True) if filters is None or is_empty(filters) else _compiled(filters)


def node_fields(node: BaseNode) -> dict[str, object]:
    """Give what a filter sees of a node: its metadata, and its source's id as ``doc_id``."""
    fields: dict[str, object] = dict(node.metadata)
    fields.update(dict.fromkeys(("doc_id", "document_id", "ref_doc_id"), node.ref_doc_id))
    return fields


def _compiled(item: MetadataFilter | MetadataFilters) -> Predicate:
    if isinstance(item, MetadataFilters):
        parts = list(map(_compiled, filled_parts(item)))
        if item.condition is FilterCondition.OR:
            return lambda metadata: any(part(metadata) for part in parts)
        if item.condition is FilterCondition.NOT:
            return lambda metadata: not any(part(metadata) for part in parts)
        return lambda metadata: all(part(metadata) for part in parts)
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
        return _range_test(COMPARE[operator], cast("Scalar", clause.value))
    if operator in TEXT_OPERATORS:
        fold = str.casefold if operator is FilterOperator.TEXT_MATCH_INSENSITIVE else str
        text = fold(str(clause.value))
        return lambda value: any(isinstance(item, str) and text in fold(item) for item in elements(value))
    values = cast("list[Scalar]", clause.value if operator in LIST_OPERATORS else [clause.value])
    wanted = [wanted_keys(value) for value in values]
    if operator is FilterOperator.ALL:
        return lambda value: not any(map(frozenset(_keys(value)).isdisjoint, wanted))
    accepted = frozenset().union(*wanted)
    if operator in {FilterOperator.NE, FilterOperator.NIN}:
        return lambda value: accepted.isdisjoint(_keys(value))
    return lambda value: not accepted.isdisjoint(_keys(value))


def _keys(value: object) -> list[Key]:
    return [field_key(item) for item in elements(value)]


def _range_test(compare: _Compare, bound: Scalar) -> _Test:
    if not isinstance(bound, str):
        return lambda value: any(not isinstance(item, (str, bool)) and compare(item, bound) for item in elements(value))
    limit = parse_moment(bound)

    def satisfies(text: str) -> bool:
        if limit is None:
            return compare(text, bound)
        found = parse_moment(text)
        if found is None:
            return False
        if found[1] or limit[1]:  # a date against a date-time is compared by the day
            return compare(found[0].date(), limit[0].date())
        return compare(found[0], limit[0])

    return lambda value: any(isinstance(item, str) and satisfies(item) for item in elements(value))

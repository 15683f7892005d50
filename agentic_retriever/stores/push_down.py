"""Metadata filters as conditions of Qdrant, and which metadata field gets which payload index.

What the engine is told always lets through every node that the evaluator of :mod:`agentic_retriever.filters` accepts.
Where it lets through exactly those the translation is *exact*; elsewhere the evaluator sorts out the rest.

A kind of index is never wrong for what it answers, but an index of numbers or of dates answers *only* for these: on a
field that holds both, the engine would overlook the rest. Filters are translated with the kinds at hand, so that this
cannot happen.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import numpy as np
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from qdrant_edge import (
    FieldCondition,
    Filter,
    HasIdCondition,
    IsEmptyCondition,
    MatchAny,
    MatchSubstring,
    MatchValue,
    RangeDateTime,
    RangeFloat,
)

from agentic_retriever.filters import (
    LIST_OPERATORS,
    RANGE_OPERATORS,
    Scalar,
    as_boolean,
    is_empty,
    parse_moment,
)
from agentic_retriever.stores.payload import ID_FIELDS, NO_SOURCE, PRIVATE_FIELDS

FieldKind = Literal["keyword", "float", "bool", "datetime"]
FIELD_KINDS: Final[tuple[str, ...]] = get_args(FieldKind)
MAX_INDEXED_FIELDS: Final = 64
MAX_INDEXED_LENGTH: Final = 128  # characters; longer texts are read, not filtered on

Condition: TypeAlias = FieldCondition | IsEmptyCondition | HasIdCondition | Filter

_UNQUOTABLE: Final = frozenset('"\\')
_EQUALITY: Final = frozenset({FilterOperator.EQ, FilterOperator.CONTAINS, FilterOperator.IN, FilterOperator.ANY})
_INEQUALITY: Final = frozenset({FilterOperator.NE, FilterOperator.NIN})
_SAFE_INTEGER: Final = 2**53  # beyond it the engine, which compares as float64, cannot tell neighbours apart
_MAX_NUMBERS: Final = 64  # longer lists of numbers are narrowed by their ends only
_DAY: Final = dt.timedelta(days=1)


def payload_path(field: str) -> str | None:
    """Write a field's literal name as the engine's path; ``None`` for a name that has none."""
    return None if not field or _UNQUOTABLE.intersection(field) else f'"{field}"'


def path_field(path: str) -> str:
    """Read a field's literal name from the engine's path."""
    return path[1:-1] if path.startswith('"') else path


def infer_kinds(rows: Sequence[Mapping[str, object]], skip: Collection[str]) -> dict[str, FieldKind | None]:
    """Choose a kind of index for each field from its values; ``None`` where no kind suits all of them."""
    seen: dict[str, set[str]] = {}
    for row in rows:
        for field, value in row.items():
            if field in skip:
                continue
            for item in value if isinstance(value, list) else [value]:
                if item is not None:
                    seen.setdefault(field, set()).add(_kind(item))
    return {field: _joined(kinds) for field, kinds in seen.items() if payload_path(field) is not None}


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "float"
    if not isinstance(value, str) or len(value) > MAX_INDEXED_LENGTH:
        return "other"
    return "keyword" if parse_moment(value) is None else "datetime"


def _joined(kinds: set[str]) -> FieldKind | None:
    if kinds == {"keyword", "datetime"}:
        return "keyword"
    [kind] = kinds if len(kinds) == 1 else ["other"]
    return None if kind == "other" else cast("FieldKind", kind)


@dataclass(frozen=True, slots=True)
class Pushed:
    """A filter as the engine understands it."""

    condition: Condition | None  # What the engine checks; None lets everything through
    exact: bool


_EVERYTHING: Final = Pushed(None, exact=False)


def push_down(filters: MetadataFilters | None, kinds: Mapping[str, str], *, substrings: bool = True) -> Pushed:
    """Translate filters as far as the engine's meaning is ours; ``substrings`` tells whether it finds these itself."""
    if filters is None or is_empty(filters):
        return Pushed(None, exact=True)
    return _Translator(kinds, substrings).group(filters, negated=False)


def nothing() -> Condition:
    """A condition that no node satisfies."""
    return HasIdCondition(set())


@dataclass(frozen=True, slots=True)
class _Translator:
    kinds: Mapping[str, str]
    substrings: bool

    def group(self, group: MetadataFilters, *, negated: bool) -> Pushed:
        is_or, is_not = group.condition is FilterCondition.OR, group.condition is FilterCondition.NOT
        # "not" means none of its parts, so it is an AND of negated parts. Negation is carried down to the clauses,
        # because the negation of a condition that lets too much through would let too little through.
        parts = [
            self._part(child, negated=negated != is_not)
            for child in group.filters
            if isinstance(child, MetadataFilter) or not is_empty(child)
        ]
        return _any(parts) if is_or != negated else _all(parts)

    def _part(self, item: MetadataFilter | MetadataFilters, *, negated: bool) -> Pushed:
        if isinstance(item, MetadataFilters):
            return self.group(item, negated=negated)
        pushed = self._clause(item)
        if not negated:
            return pushed
        if not pushed.exact or pushed.condition is None:
            return _EVERYTHING
        return Pushed(Filter(must_not=[pushed.condition]), exact=True)

    def _clause(self, clause: MetadataFilter) -> Pushed:
        path = payload_path(clause.key)
        if path is None or clause.key in PRIVATE_FIELDS:
            return _EVERYTHING
        kind = self.kinds.get(clause.key, "")
        if clause.key in ID_FIELDS:
            return _source_clause(clause, path)
        if clause.operator is FilterOperator.IS_EMPTY:
            return Pushed(IsEmptyCondition(path), exact=True)
        if kind == "other":
            return _present(path)
        if clause.operator is FilterOperator.TEXT_MATCH and self.substrings:
            return Pushed(FieldCondition(path, match=MatchSubstring(str(clause.value))), exact=True)
        return _value_clause(clause, path, kind)


def _all(parts: list[Pushed]) -> Pushed:
    conditions = [part.condition for part in parts if part.condition is not None]
    exact = all(part.exact for part in parts)
    if len(conditions) < 2:
        return Pushed(conditions[0] if conditions else None, exact)
    return Pushed(Filter(must=cast("Any", conditions)), exact)


def _any(parts: list[Pushed]) -> Pushed:
    conditions = [part.condition for part in parts if part.condition is not None]
    if len(conditions) < len(parts):
        return _EVERYTHING
    exact = all(part.exact for part in parts)
    return Pushed(conditions[0] if len(conditions) == 1 else Filter(should=cast("Any", conditions)), exact)


def _source_clause(clause: MetadataFilter, path: str) -> Pushed:
    if clause.operator not in _EQUALITY:
        return _EVERYTHING
    values = [value for value in _values(clause) if isinstance(value, str) and value != NO_SOURCE]
    return Pushed(_match_texts(path, values) if values else nothing(), exact=True)


def _value_clause(clause: MetadataFilter, path: str, kind: str) -> Pushed:
    operator = clause.operator
    if operator in _EQUALITY or operator in _INEQUALITY:
        compare = _equal if operator in _EQUALITY else _not_equal
        return compare(path, _values(clause), kind)
    if operator is FilterOperator.ALL:
        return _all([Pushed(_present(path).condition, exact=True), *(_equal(path, [v], kind) for v in _values(clause))])
    if operator in RANGE_OPERATORS:
        return _range(path, operator, _values(clause)[0], kind)
    return _present(path)


def _not_equal(path: str, values: list[Scalar], kind: str) -> Pushed:
    equal = _equal(path, values, kind)
    if equal.condition is None or not equal.exact:
        return _present(path)
    return Pushed(Filter(must_not=cast("Any", [IsEmptyCondition(path), equal.condition])), exact=True)


def _present(path: str) -> Pushed:
    return Pushed(Filter(must_not=[IsEmptyCondition(path)]), exact=False)


def _values(clause: MetadataFilter) -> list[Scalar]:
    listed = clause.value if clause.operator in LIST_OPERATORS else [clause.value]
    return [str(value).lower() if isinstance(value, bool) else value for value in cast("list[Scalar]", listed)]


def _equal(path: str, values: list[Scalar], kind: str) -> Pushed:
    texts = [value for value in values if isinstance(value, str)]
    numbers = sorted({value for value in values if not isinstance(value, str)})
    if numbers and (kind == "datetime" or max(abs(number) for number in numbers) >= _SAFE_INTEGER):
        return _present(path)
    parts = [Pushed(_match_texts(path, texts), exact=True)] if texts else []
    booleans = {truth for truth in map(as_boolean, texts) if truth is not None}
    # A Python bool is an int to the engine's binding, which would look for 1 or 0; numpy's is a boolean to it.
    parts.extend(
        Pushed(FieldCondition(path, match=MatchValue(cast("bool", np.bool_(truth)))), exact=True) for truth in booleans
    )
    if len(numbers) > _MAX_NUMBERS:
        parts.append(Pushed(_between(path, numbers[0], numbers[-1]), exact=False))
    else:
        parts.extend(Pushed(_between(path, number, number), exact=True) for number in numbers)
    return _any(parts) if parts else Pushed(nothing(), exact=True)


def _match_texts(path: str, texts: list[str]) -> Condition:
    return FieldCondition(path, match=MatchValue(texts[0]) if len(texts) == 1 else MatchAny(texts))


def _between(path: str, low: float, high: float) -> Condition:
    return FieldCondition(path, range=RangeFloat(gte=float(low), lte=float(high)))


def _range(path: str, operator: FilterOperator, bound: Scalar, kind: str) -> Pushed:
    side = {FilterOperator.GT: "gt", FilterOperator.GTE: "gte", FilterOperator.LT: "lt"}.get(operator, "lte")
    if not isinstance(bound, str):
        if kind == "datetime" or abs(bound) >= _SAFE_INTEGER:
            return _present(path)
        return Pushed(FieldCondition(path, range=RangeFloat(**{side: float(bound)})), exact=True)
    moment = parse_moment(bound)
    if moment is None or kind == "float":
        return _present(path)
    limit = _moment_limit(side, *moment)
    if limit is None:
        return _present(path)
    # Never called exact: the engine takes some texts for dates that are none to the evaluator.
    return Pushed(FieldCondition(path, range=RangeDateTime(**{limit[0]: limit[1].isoformat()})), exact=False)


def _moment_limit(side: str, moment: dt.datetime, is_date: bool) -> tuple[str, dt.datetime] | None:
    """Widen a comparison by the day to one of moments, since dates are stored as their midnight."""
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if side == "gte":
        return "gte", midnight
    if not is_date or side == "lt":
        return side, moment
    if midnight.date() == dt.date.max:
        return None
    return {"gt": "gte", "lte": "lt"}[side], midnight + _DAY

"""From filters to tests over a snapshot, with the meaning of :mod:`agentic_retriever.filters`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever.filters import (
    LIST_OPERATORS,
    RANGE_OPERATORS,
    TEXT_OPERATORS,
    Scalar,
    as_boolean,
    is_empty,
    parse_moment,
)
from agentic_retriever.indices.prefilter.clauses import AnyOf, Both, Compared, Either, Without
from agentic_retriever.indices.prefilter.ordered import Side
from agentic_retriever.indices.prefilter.values import DAY_US, microseconds_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping

    from pyroaring import BitMap

    from agentic_retriever.indices.prefilter.clauses import Test
    from agentic_retriever.indices.prefilter.fields import FieldIndex

_UPPER: Final = frozenset({FilterOperator.GT, FilterOperator.GTE})
_INCLUSIVE: Final = frozenset({FilterOperator.GTE, FilterOperator.LTE})


class Compiler:
    """Makes tests of filters.

    Args:
        fields: The indexed fields.
        alive: All rows there are.
    """

    def __init__(self, fields: Mapping[str, FieldIndex], alive: BitMap) -> None:
        self._fields = fields
        self._alive = alive
        self._total = len(alive)

    def compile(self, filters: MetadataFilters | None) -> Test:
        """Make the test of filters that ``check_filters`` accepts.

        Args:
            filters: The filters; ``None`` or empty for no restriction.

        Returns:
            The test.
        """
        if filters is None or is_empty(filters):
            return self._any([self._alive])
        return self._group(filters, negated=False)

    def _group(self, group: MetadataFilters, *, negated: bool) -> Test:
        is_or, is_not = group.condition is FilterCondition.OR, group.condition is FilterCondition.NOT
        # "not" means none of its parts. Negation is carried down to the clauses, since the negation of a test that
        # lets too many rows through would let too few through.
        parts = [
            self._part(child, negated=negated != is_not)
            for child in group.filters
            if isinstance(child, MetadataFilter) or not is_empty(child)
        ]
        if len(parts) == 1:
            return parts[0]
        return Either(parts, self._total) if is_or != negated else Both(parts, self._total)

    def _part(self, item: MetadataFilter | MetadataFilters, *, negated: bool) -> Test:
        if isinstance(item, MetadataFilters):
            return self._group(item, negated=negated)
        test = self._clause(item)
        if not negated:
            return test
        return Without(self._alive, True, test) if test.exact else self._any([self._alive], exact=False)

    def _clause(self, clause: MetadataFilter) -> Test:
        field = self._fields.get(clause.key)
        if clause.operator is FilterOperator.IS_EMPTY:
            present = [] if field is None else [field.present]
            return Without(self._alive, True, self._any(present))
        if field is None:
            return self._any([])
        if clause.operator in RANGE_OPERATORS:
            return self._range(field, clause)
        if clause.operator in TEXT_OPERATORS:
            return self._texts(field, _text_test(clause))
        return self._equality(field, clause)

    def _equality(self, field: FieldIndex, clause: MetadataFilter) -> Test:
        operator = clause.operator
        values = cast("list[Scalar]", clause.value if operator in LIST_OPERATORS else [clause.value])
        if operator is FilterOperator.ALL:
            tests = [self._equal(field, [value]) for value in values]
            return Both(tests, self._total) if tests else self._any([field.present])
        test = self._equal(field, values)
        if operator not in {FilterOperator.NE, FilterOperator.NIN}:
            return test
        if not test.exact:
            return self._any([field.present], exact=False)
        return Without(field.present, len(field.present) == self._total, test)

    def _equal(self, field: FieldIndex, values: Iterable[Scalar]) -> Test:
        found: list[BitMap | None] = []
        unknown = False
        for value in dict.fromkeys(str(value).lower() if isinstance(value, bool) else value for value in values):
            if not isinstance(value, str):
                found.append(field.numbers.equal(value))
                continue
            unknown = unknown or not field.whole
            found.append(field.words.get(value))
            truth = as_boolean(value)
            if truth is not None:
                found.append(field.words.get(truth))
        if unknown and field.text_rows:
            return self._any([*found, field.text_rows], exact=False)
        return self._any(found)

    def _texts(self, field: FieldIndex, accepts: Callable[[str], bool]) -> Test:
        if not field.whole:
            return self._any([field.text_rows], exact=not field.text_rows)
        return self._any(rows for text, rows in field.words.texts() if accepts(text))

    def _range(self, field: FieldIndex, clause: MetadataFilter) -> Test:
        bound = cast("Scalar", clause.value)
        above, inclusive = clause.operator in _UPPER, clause.operator in _INCLUSIVE
        if not isinstance(bound, str):
            side = Side(bound, above, inclusive)
            return Compared.of(field.numbers, side) if field.numbers else self._any([])
        moment = parse_moment(bound)
        if moment is None:
            return self._texts(field, _order_test(bound, above=above, inclusive=inclusive))
        days, moments = _moment_sides(*moment, above=above, inclusive=inclusive)
        tests = [Compared.of(keys, side) for keys, side in ((field.days, days), (field.moments, moments)) if keys]
        return tests[0] if len(tests) == 1 else Either(tests, self._total)

    def _any(self, bitmaps: Iterable[BitMap | None], *, exact: bool = True) -> AnyOf:
        return AnyOf([bitmap for bitmap in bitmaps if bitmap], self._total, exact)


def _moment_sides(moment: dt.datetime, is_date: bool, *, above: bool, inclusive: bool) -> tuple[Side, Side]:
    """Say a comparison with a moment in days, for dates, and in microseconds, for date-times."""
    microseconds = microseconds_of(moment)
    day = microseconds // DAY_US
    days = Side(day, above, inclusive)
    if not is_date:
        return days, Side(microseconds, above, inclusive)
    # By the day: after it begins with the next midnight, and so does all that is no longer up to it.
    midnight = (day + 1 if above != inclusive else day) * DAY_US
    return days, Side(midnight, above, inclusive=above)


def _text_test(clause: MetadataFilter) -> Callable[[str], bool]:
    wanted = str(clause.value)
    if clause.operator is FilterOperator.TEXT_MATCH:
        return lambda text: wanted in text
    folded = wanted.casefold()
    return lambda text: folded in text.casefold()


def _order_test(bound: str, *, above: bool, inclusive: bool) -> Callable[[str], bool]:
    if above:
        return (lambda text: text >= bound) if inclusive else (lambda text: text > bound)
    return (lambda text: text <= bound) if inclusive else (lambda text: text < bound)

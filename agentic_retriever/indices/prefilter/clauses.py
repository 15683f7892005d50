"""What a filter becomes before it is run: matchers over bitmaps that know about how many rows will pass.

A matcher is *exact*, or it lets too many rows through where a field's texts are not indexed; never too few. Filters
mean what :mod:`agentic_retriever.filters` says.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from pyroaring import BitMap

from agentic_retriever.filters import LIST_OPERATORS, TEXT_OPERATORS, Scalar, as_boolean, is_empty, parse_moment
from agentic_retriever.indices.prefilter.btree import MANY, Side, union
from agentic_retriever.indices.prefilter.snapshot import DAY_US, microseconds_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from agentic_retriever.indices.prefilter.btree import BPlusTree
    from agentic_retriever.indices.prefilter.snapshot import FieldIndex

_CONTAINER: Final = 2**16  # rows that one container of a bitmap spans
_DENSE: Final = 4_096  # from so many rows on, a container keeps a bit for every row it spans
_DENSE_COST: Final = 750  # what such a one costs to go through, in single rows; measured
_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip


class Matcher(NamedTuple):
    """Something that rows pass or fail; a named tuple, as a dataclass takes longer to make and each clause is one."""

    rows: Callable[[BitMap | None], BitMap]  # those that pass, of the given ones or of all; not to be changed
    low: int  # at least so many rows pass
    high: int  # at most so many rows pass
    cost: int  # how much work it is to find them, in single rows of a bitmap
    exact: bool = True  # whether it lets through nothing but what the filter means


class Compiler:
    """Makes matchers of filters over the indexed fields and all rows there are."""

    def __init__(self, fields: Mapping[str, FieldIndex], alive: BitMap) -> None:
        self._fields = fields
        self._alive = alive
        self._total = len(alive)

    def compile(self, filters: MetadataFilters | None) -> Matcher:
        """Make the matcher of filters that ``check_filters`` accepts; no filter is no restriction."""
        if filters is None or is_empty(filters):
            return self._any([self._alive])
        return self._part(filters, negated=False)

    def _part(self, item: MetadataFilter | MetadataFilters, *, negated: bool) -> Matcher:
        if isinstance(item, MetadataFilter):
            matcher = self._clause(item)
            return self._without(self._alive, matcher) if negated else matcher
        is_or, is_not = item.condition is FilterCondition.OR, item.condition is FilterCondition.NOT
        # "not" means none of its parts. Negation is carried down to the clauses, since the negation of a matcher that
        # lets too many rows through would let too few through.
        parts = [
            self._part(child, negated=negated != is_not)
            for child in item.filters
            if isinstance(child, MetadataFilter) or not is_empty(child)
        ]
        return self._either(parts) if is_or != negated else self._both(parts)

    def _clause(self, clause: MetadataFilter) -> Matcher:
        field = self._fields.get(clause.key)
        if clause.operator is FilterOperator.IS_EMPTY:
            return self._without(self._alive, self._any([] if field is None else [field.present]))
        if field is None:
            return self._any([])
        if clause.operator.value in _ORDERS:
            return self._range(field, clause)
        if clause.operator in TEXT_OPERATORS:
            wanted = str(clause.value)
            if clause.operator is FilterOperator.TEXT_MATCH:
                return self._texts(field, lambda text: wanted in text)
            folded = wanted.casefold()
            return self._texts(field, lambda text: folded in text.casefold())
        return self._equality(field, clause)

    def _equality(self, field: FieldIndex, clause: MetadataFilter) -> Matcher:
        values = cast("list[Scalar]", clause.value if clause.operator in LIST_OPERATORS else [clause.value])
        if clause.operator is FilterOperator.ALL:
            matchers = [self._equal(field, [value]) for value in values]
            return self._both(matchers or [self._any([field.present])])
        matcher = self._equal(field, values)
        negative = clause.operator in {FilterOperator.NE, FilterOperator.NIN}
        return self._without(field.present, matcher) if negative else matcher

    def _equal(self, field: FieldIndex, values: Iterable[Scalar]) -> Matcher:
        wanted = dict.fromkeys(str(value).lower() if isinstance(value, bool) else value for value in values)
        texts = [value for value in wanted if isinstance(value, str)]
        found: list[BitMap | None] = [field.numbers.equal(value) for value in wanted if not isinstance(value, str)]
        for value in texts:
            truth = as_boolean(value)
            found += [field.words.postings.get(key) for key in (value, truth) if key is not None]
        if texts and field.unindexed:
            return self._any([*found, field.unindexed], exact=False)
        return self._any(found)

    def _texts(self, field: FieldIndex, accepts: Callable[[str], bool]) -> Matcher:
        if field.unindexed:
            return self._any([field.unindexed], exact=False)
        return self._any(rows for text, rows in field.words.texts() if accepts(text))

    def _range(self, field: FieldIndex, clause: MetadataFilter) -> Matcher:
        bound, compare = cast("Scalar", clause.value), _ORDERS[clause.operator.value]
        above, inclusive = compare(1, 0), compare(0, 0)
        if not isinstance(bound, str):
            return _compared(field.numbers, Side(bound, above, inclusive))
        moment = parse_moment(bound)
        if moment is None:
            return self._texts(field, lambda text: compare(text, bound))
        days, moments = _moment_sides(*moment, above=above, inclusive=inclusive)
        pairs = ((field.days, days), (field.moments, moments))
        return self._either([_compared(keys, side) for keys, side in pairs if keys])

    def _any(self, given: Iterable[BitMap | None], *, exact: bool = True) -> Matcher:
        """Passed by the rows of any of some bitmaps."""
        bitmaps = [bitmap for bitmap in given if bitmap]

        def rows(within: BitMap | None) -> BitMap:
            if within is None:
                return union(bitmaps)
            if len(bitmaps) < MANY:
                return union([bitmap & within for bitmap in bitmaps])
            return union(bitmaps) & within

        sizes = [len(bitmap) for bitmap in bitmaps]
        return Matcher(
            rows,
            low=max(sizes, default=0) if exact else 0,
            high=min(self._total, sum(sizes)),
            cost=sum(size if size <= _DENSE else _cost(bitmap) for size, bitmap in zip(sizes, bitmaps, strict=True)),
            exact=exact,
        )

    def _without(self, base: BitMap, matcher: Matcher) -> Matcher:
        """Passed by the rows of a bitmap that fail a matcher; by all of them where it cannot say which."""
        if not matcher.exact:
            return self._any([base], exact=False)
        every = len(base) == self._total

        def rows(within: BitMap | None) -> BitMap:
            start = base
            if within is not None:
                start = within if every else base & within
            return start - matcher.rows(start)

        return Matcher(
            rows,
            low=max(0, len(base) - matcher.high),
            # Some of those that pass the other may lie outside the base, but for all clauses made here they do not.
            high=max(0, len(base) - matcher.low),
            cost=matcher.cost + (0 if every else _cost(base)),
        )

    def _either(self, matchers: Sequence[Matcher]) -> Matcher:
        """Passed by the rows that pass any of some matchers."""
        if len(matchers) == 1:
            return matchers[0]
        return Matcher(
            lambda within: union([matcher.rows(within) for matcher in matchers]),
            low=max((matcher.low for matcher in matchers), default=0),
            high=min(self._total, sum(matcher.high for matcher in matchers)),
            cost=sum(matcher.cost for matcher in matchers),
            exact=all(matcher.exact for matcher in matchers),
        )

    def _both(self, matchers: Sequence[Matcher]) -> Matcher:
        """Passed by the rows that pass every one of some matchers, at least one, the cheapest and strictest first."""
        if len(matchers) == 1:
            return matchers[0]

        def rank(matcher: Matcher) -> float:
            # The order that costs least when matchers are independent: cost over the share of rows that one removes
            # (Hellerstein and Stonebraker 1993, "Predicate Migration").
            removed = 1.0 - matcher.high / max(1, self._total)
            return matcher.cost / (removed + 0.01)

        def rows(within: BitMap | None) -> BitMap:
            running = within
            for matcher in sorted(matchers, key=rank):
                running = matcher.rows(running)
                if not running:
                    break  # nothing can pass any more
            return BitMap() if running is None else running

        return Matcher(
            rows,
            low=max(0, sum(matcher.low for matcher in matchers) - self._total * (len(matchers) - 1)),
            high=min(matcher.high for matcher in matchers),
            cost=min(matcher.cost for matcher in matchers),  # the others see little of what the cheapest leaves
            exact=all(matcher.exact for matcher in matchers),
        )


def _compared(keys: BPlusTree, side: Side) -> Matcher:
    low, high = keys.count(side)
    return Matcher(lambda within: keys.find(side, within), low, high, cost=min(high, _cost(keys.bitmap)))


def _cost(bitmap: BitMap) -> int:
    """Estimate what it costs to go through a bitmap: its rows, or less where they are so dense that bits are kept."""
    if not bitmap:
        return 0
    containers = (bitmap.max() - bitmap.min()) // _CONTAINER + 1
    return len(bitmap) if len(bitmap) <= _DENSE * containers else _DENSE_COST * containers


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

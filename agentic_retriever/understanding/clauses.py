"""Clauses: the restrictions that a question asks for, as checked filters, and what to give up when they leave nothing.

Restrictions become filters in this one way, whoever found them: rules or a model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever.filters import MAX_VALUES, check_filters, merge_and, walk_clauses
from agentic_retriever.schema import Degradation

_MAX_SAID: Final = 5
_MAX_COMBINED: Final = 6
_ENDS: Final = {
    "gt": (FilterOperator.GT, "above"),
    "gte": (FilterOperator.GTE, "at least"),
    "lt": (FilterOperator.LT, "below"),
    "lte": (FilterOperator.LTE, "at most"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One restriction that a question asks for."""

    filter: MetadataFilter | MetadataFilters
    certainty: float  # How sure it is that the question means it, in (0, 1]
    spans: tuple[tuple[int, int], ...]  # Where it stands in the question, in order; () where a model says it alone
    say: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """What was understood of a question."""

    clauses: tuple[Clause, ...]
    degraded: tuple[Degradation, ...] = ()

    def at_least(self, certainty: float) -> tuple[Clause, ...]:
        """Return the clauses of that certainty or more, in reading order."""
        return tuple(clause for clause in self.clauses if clause.certainty >= certainty)


# --- from restrictions to filters -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Restriction:
    """A filter with the line that says it."""

    filter: MetadataFilter | MetadataFilters
    say: str

    def clause(self, *, certainty: float, spans: Iterable[tuple[int, int]], known_fields: Collection[str]) -> Clause:
        """Check the filter and keep it with where it stands in the question."""
        check_filters(_as_group(self.filter), known_fields=known_fields)
        bounded = min(1.0, max(0.01, round(certainty, 2)))
        return Clause(filter=self.filter, certainty=bounded, spans=tuple(sorted(set(spans))), say=self.say)


def in_reading_order(clauses: Iterable[Clause]) -> tuple[Clause, ...]:
    """Sort clauses by where they begin and end in the question, those that stand nowhere in it first."""

    def place(clause: Clause) -> tuple[int, int, str]:
        spans = clause.spans or ((0, 0),)
        return spans[0][0], spans[-1][1], clause.say

    return tuple(sorted(clauses, key=place))


def one_of(field: str, values: Iterable[str | float], *, negated: bool = False) -> Restriction:
    """Restrict a field to some values, or to any other."""
    listed = [_without_zero(value) for value in dict.fromkeys(values)][:MAX_VALUES]
    said = ", ".join(str(value) for value in listed[:_MAX_SAID])
    if len(listed) > _MAX_SAID:
        said += f" and {len(listed) - _MAX_SAID} more"
    if len(listed) == 1:
        operator = FilterOperator.NE if negated else FilterOperator.EQ
        only = MetadataFilter(key=field, operator=operator, value=listed[0])
        return Restriction(only, f"{field} is {'not ' * negated}{said}")
    operator = FilterOperator.NIN if negated else FilterOperator.IN
    several = MetadataFilter(key=field, operator=operator, value=_of_one_type(listed))
    return Restriction(several, f"{field} is {'none' if negated else 'one'} of {said}")


def within(field: str, **ends: float | str) -> Restriction:
    """Restrict a field to a range of one or two ends, lower first: ``gt`` or ``gte``, ``lt`` or ``lte``."""
    plain = {end: _without_zero(value) for end, value in ends.items()}
    filters: list[MetadataFilter | MetadataFilters] = [
        MetadataFilter(key=field, operator=_ENDS[end][0], value=value) for end, value in plain.items()
    ]
    said = " and ".join(f"{_ENDS[end][1]} {value}" for end, value in plain.items())
    if len(filters) == 1:
        return Restriction(filters[0], f"{field} is {said}")
    if list(plain) == ["gte", "lte"]:
        said = f"from {plain['gte']} to {plain['lte']}"
    return Restriction(MetadataFilters(filters=filters, condition=FilterCondition.AND), f"{field} is {said}")


def any_of(restrictions: Sequence[Restriction]) -> Restriction:
    """Accept what any of several restrictions accepts."""
    return _joined(restrictions, FilterCondition.OR)


def all_of(restrictions: Sequence[Restriction]) -> Restriction:
    """Accept what all of several restrictions accept."""
    return _joined(restrictions, FilterCondition.AND)


def _joined(restrictions: Sequence[Restriction], condition: FilterCondition) -> Restriction:
    if len(restrictions) == 1:
        return restrictions[0]
    group = MetadataFilters(filters=[one.filter for one in restrictions], condition=condition)
    return Restriction(group, f" {condition.value} ".join(one.say for one in restrictions))


def none_of(restrictions: Sequence[Restriction]) -> Restriction:
    """Refuse what any of several restrictions accepts, and what has none of their fields."""
    fields = {clause.key for one in restrictions for clause in walk_clauses(_as_group(one.filter))}
    refused = MetadataFilters(filters=[one.filter for one in restrictions], condition=FilterCondition.NOT)
    empty: list[MetadataFilter | MetadataFilters] = [
        MetadataFilter(key=field, operator=FilterOperator.IS_EMPTY, value=None) for field in sorted(fields)
    ]
    missing = MetadataFilters(filters=empty, condition=FilterCondition.NOT)
    say = "not: " + " or ".join(one.say for one in restrictions)
    return Restriction(MetadataFilters(filters=[refused, missing], condition=FilterCondition.AND), say)


def _as_group(item: MetadataFilter | MetadataFilters) -> MetadataFilters:
    return item if isinstance(item, MetadataFilters) else MetadataFilters(filters=[item])


def _without_zero(value: float | str) -> str | int | float:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _of_one_type(values: Sequence[str | float]) -> list[str] | list[int] | list[float]:
    """LlamaIndex's lists hold one type each; integers among floats become floats of the same worth."""
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        return texts
    integers = [value for value in values if isinstance(value, int)]
    return integers if len(integers) == len(values) else [float(value) for value in values]


# --- what to try when a question's clauses leave nothing: the same with as few clauses less as will do ---------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One set of filters to try."""

    filters: MetadataFilters | None
    kept: tuple[Clause, ...]
    dropped: tuple[str, ...]


class RelaxationLadder:
    """Successive filters for a question: all clauses, then without one, then without two, and so on.

    Among those that give up as many, the ones that give up the least certain come first; of clauses that are as
    certain the one that stands last in the question goes first. So the first rung that leaves anything has lost the
    fewest clauses: an impossible one goes, and those that are right stay. With more than 6 clauses only the least
    certain ones are given up together, so that the ladder stays short.

    The caller's own filters are part of every rung, are never relaxed, and can only be narrowed. The last rung has
    them alone.
    """

    def __init__(self, clauses: Sequence[Clause], filters: MetadataFilters | None = None) -> None:
        self._clauses = tuple(clauses)
        self._filters = filters

    def __len__(self) -> int:
        return sum(1 for _ in self._losses())

    def __iter__(self) -> Iterator[Rung]:
        """Go down the ladder."""
        for lost in self._losses():
            kept = tuple(clause for at, clause in enumerate(self._clauses) if at not in lost)
            wanted = MetadataFilters(filters=[clause.filter for clause in kept], condition=FilterCondition.AND)
            dropped = tuple(self._clauses[at].say for at in lost)
            yield Rung(filters=merge_and(self._filters, wanted), kept=kept, dropped=dropped)

    def _losses(self) -> Iterator[tuple[int, ...]]:
        """Yield the positions of the clauses to give up, least certain first within each."""
        order = sorted(range(len(self._clauses)), key=lambda at: (self._clauses[at].certainty, -at))
        for count in range(len(order) + 1):
            if len(order) > _MAX_COMBINED and count > 1:
                yield tuple(order[:count])
            else:
                # Positions in order of certainty come out of combinations() in order of certainty, too.
                yield from combinations(order, count)

"""What is understood of a question: clauses, and what is left of its text."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, TypeVar

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever.errors import ConfigError
from agentic_retriever.filters import MAX_VALUES, check_filters, merge_and, walk_clauses

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from agentic_retriever.schema import Degradation
    from agentic_retriever.understanding.fields import FieldInfo
    from agentic_retriever.understanding.question import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One restriction that a question asks for."""

    filter: MetadataFilter | MetadataFilters
    certainty: float  # How sure it is that the question means it, in (0, 1]
    text: str
    spans: tuple[tuple[int, int], ...]
    say: str

    def __post_init__(self) -> None:
        if not 0.0 < self.certainty <= 1.0:
            raise ConfigError(f"the certainty of a clause must be above 0 and at most 1, got {self.certainty!r}")

    @property
    def start(self) -> int:
        """Offset of its first word in the question, in characters; 0 without a stretch."""
        return self.spans[0][0] if self.spans else 0

    @property
    def end(self) -> int:
        """Offset behind its last word in the question; 0 without a stretch."""
        return self.spans[-1][1] if self.spans else 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"say": self.say, "certainty": self.certainty, "text": self.text, "start": self.start, "end": self.end}


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """What was understood of a question."""

    clauses: tuple[Clause, ...]
    text_left: str
    degraded: tuple[Degradation, ...] = ()

    def at_least(self, certainty: float) -> tuple[Clause, ...]:
        """Return the clauses of that certainty or more, in reading order."""
        return tuple(clause for clause in self.clauses if clause.certainty >= certainty)


# The one way in which restrictions become filters, whoever found them: rules or a model.

_SAID: Final = 5
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range."""

    value: float | str  # A number, or a year or ISO date as text
    inclusive: bool = True


@dataclass(frozen=True, slots=True)
class Part:
    """A filter with the line that says it."""

    filter: MetadataFilter | MetadataFilters
    say: str


def values_part(field: str, values: Sequence[str | float], *, negated: bool = False) -> Part:
    """Restrict a field to some values, or to any other."""
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
    """Turn a part into a checked clause."""
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


# What the parts of a question ask for, before it becomes clauses.

SURE: Final = 0.7
UNSURE_BELOW: Final = 0.5

_SKIPPED: Final = frozenset("IGBOHRYEJ")
_MAX_LOOK: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """A restriction that a part of a question asks for."""

    part: Part
    certainty: float  # In (0, 1]
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A value that a field shall have: one of those that are joined to "one of"."""

    value: object
    certainty: float  # In (0, 1]
    span: tuple[int, int]


def named_around(stream: Stream, first: int, behind: int) -> tuple[str, ...]:
    """Return the fields named before a stretch of a question, small words aside, or right behind it."""
    return fields_before(stream, first)[1] or fields_behind(stream, behind)


def fields_before(stream: Stream, first: int) -> tuple[int, tuple[str, ...]]:
    """Return where the name of a field stands before a stretch, and the fields; ``first`` and ``()`` without one."""
    for at in range(first - 1, max(-1, first - 1 - _MAX_LOOK), -1):
        item = stream.items[at]
        if item.symbol == "F":
            return at, item.value
        if item.symbol not in _SKIPPED:
            break
    return first, ()


def fields_behind(stream: Stream, behind: int) -> tuple[str, ...]:
    """Return the fields that are named right behind a stretch."""
    if behind < len(stream.items) and stream.items[behind].symbol == "F":
        names: tuple[str, ...] = stream.items[behind].value
        return names
    return ()


HasCertainty = TypeVar("HasCertainty")


def surest(things: Sequence[HasCertainty]) -> list[HasCertainty]:
    """Leave out what is unsure where something else for the same field is sure, so that it cannot widen that."""
    certainties = [float(getattr(thing, "certainty", 0.0)) for thing in things]
    if max(certainties, default=0.0) < SURE:
        return list(things)
    return [thing for thing, certainty in zip(things, certainties, strict=True) if certainty >= UNSURE_BELOW]


# What to try when a question's clauses leave nothing: the same with as few clauses less as will do.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One set of filters to try."""

    filters: MetadataFilters | None
    kept: tuple[Clause, ...]
    dropped: tuple[str, ...]


_MAX_COMBINED = 6


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
            yield Rung(
                filters=merge_and(self._filters, wanted),
                kept=kept,
                dropped=tuple(self._clauses[at].say for at in lost),
            )

    def _losses(self) -> Iterator[tuple[int, ...]]:
        """Yield the positions of the clauses to give up, least certain first within each."""
        order = sorted(range(len(self._clauses)), key=lambda at: (self._clauses[at].certainty, -at))
        for count in range(len(order) + 1):
            if len(order) > _MAX_COMBINED and count > 1:
                yield tuple(order[:count])
            else:
                # Positions in order of certainty come out of combinations() in order of certainty, too.
                yield from combinations(order, count)

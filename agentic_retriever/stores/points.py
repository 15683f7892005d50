"""From points that an engine found to hits in order, for the engine in this process and on a server alike."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, cast, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)
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
    Predicate,
    Scalar,
    as_boolean,
    is_empty,
    parse_moment,
    predicate,
    walk_clauses,
)
from agentic_retriever.stores.payload import (
    ID_FIELDS,
    NO_SOURCE,
    PRIVATE_FIELDS,
    SOURCE_FIELD,
    payload_fields,
    point_id,
    stored_node,
    stored_node_id,
)

# Metadata filters as conditions of Qdrant, and which metadata field gets which payload index.
#
# What the engine is told always lets through every node that the evaluator of :mod:`agentic_retriever.filters`
# accepts.
# Where it lets through exactly those the translation is *exact*; elsewhere the evaluator sorts out the rest.
#
# A kind of index is never wrong for what it answers, but an index of numbers or of dates answers *only* for these: on
# a
# field that holds both, the engine would overlook the rest. Filters are translated with the kinds at hand, so that
# this
# cannot happen.

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


logger = logging.getLogger(__name__)

FactT = TypeVar("FactT")
PointT = TypeVar("PointT", bound="Point")

Payload: TypeAlias = bool | list[str]
"""What of a payload is read: nothing, all of it, or fields by the engine's paths."""

MAX_KNOWN: Final = 20_000
"""Points that are remembered at a time, 10 MB at most; beyond, remembering begins anew."""


class Point(Protocol):
    """A point as it was stored, in either engine's type."""

    @property
    def id(self) -> Any: ...  # noqa: ANN401 - a number, a text or a UUID

    @property
    def payload(self) -> dict[str, Any] | None: ...


class EnginePoint(Point, Protocol):
    """A point that was found."""

    @property
    def score(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Hit:
    """A node that was found; the higher its score, the better."""

    node: BaseNode
    score: float


# Reading points.


def read_nodes(records: Iterable[Point]) -> list[BaseNode]:
    """Read the nodes of points; those that are broken or not ours are left out with one warning."""
    found = [stored_node(record.payload) for record in records]
    nodes = [node for node in found if node is not None]
    warn_of_foreign(len(found) - len(nodes))
    return nodes


def vector_table(
    node_ids: Sequence[str], rows: Mapping[str, npt.ArrayLike], dimension: int
) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Put vectors by point id in the order of node ids; ids without a vector are left out."""
    found = [node_id for node_id in node_ids if point_id(node_id) in rows]
    matrix = np.empty((len(found), dimension), dtype=np.float32)
    for row, node_id in zip(matrix, found, strict=True):
        row[:] = rows[point_id(node_id)]
    return found, matrix


def rank_points(points: Sequence[EnginePoint], whole: bool, *, accepts: Predicate, top_k: int) -> tuple[list[Hit], int]:
    """Read the best ``top_k`` of points, by falling score and then by id, and count those that are not ours.

    Unless these are the whole list, points with the lowest score are left out: others with it may be missing.
    """
    floor = float("-inf") if whole or not points else points[-1].score
    ranked: list[tuple[float, str, dict[str, Any]]] = []
    foreign = 0
    for point in points:
        if point.score <= floor:
            break
        payload = point.payload or {}
        node_id = stored_node_id(payload)
        if node_id is None:
            foreign += 1
        elif accepts(payload_fields(payload)):
            ranked.append((point.score, node_id, payload))
    ranked.sort(key=lambda item: (-item[0], item[1]))
    hits: list[Hit] = []
    for score, _, payload in ranked:
        if len(hits) == top_k:
            break
        node = stored_node(payload)
        if node is None:
            foreign += 1
        else:
            hits.append(Hit(node, score))
    return hits, foreign


def warn_of_foreign(number: int) -> None:
    """Log that so many points were skipped, if any were."""
    if number:
        logger.warning("skipped %d stored points that are broken or were not written by LlamaIndex", number)


# Which points are wanted.


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPoints:
    """What the engine checks of points, and what is left to check of those that it lets through."""

    filter: Filter | None
    exact: bool  # Whether the engine lets through nothing else
    accepts: Predicate
    keys: tuple[str, ...]  # Metadata fields that the filters look at

    def among(self, records: Sequence[PointT]) -> list[PointT]:
        """Return those that are wanted of points that the engine let through, in the same order."""
        if self.exact:
            return list(records)
        return [record for record in records if self.accepts(payload_fields(record.payload or {}))]

    def narrowed(self, ids: Iterable[Any]) -> WantedPoints:
        """Return the same points, named one by one."""
        return replace(self, filter=Filter(must=[HasIdCondition(set(ids))]), exact=True)

    @property
    def payload(self) -> Payload:
        """What of a payload decides."""
        if self.exact:
            return False
        paths = [payload_path(key) for key in self.keys]
        return True if None in paths else [path for path in paths if path is not None]


def wanted_points(
    filters: MetadataFilters | None,
    kinds: Mapping[str, str],
    *,
    node_ids: Sequence[str] | None = None,
    doc_ids: Sequence[str] | None = None,
    substrings: bool = True,
) -> WantedPoints:
    """Say which points are wanted; every restriction narrows the others."""
    accepts = predicate(filters)
    pushed = push_down(filters, kinds, substrings=substrings)
    must: list[Any] = []
    if node_ids is not None:
        must.append(HasIdCondition({point_id(node_id) for node_id in node_ids}))
    if doc_ids is not None:
        sources = sorted({doc_id for doc_id in doc_ids if doc_id != NO_SOURCE})
        must.append(FieldCondition(SOURCE_FIELD, match=MatchAny(sources)) if sources else nothing())
    if pushed.condition is not None:
        must.append(pushed.condition)
    keys = tuple(sorted({clause.key for clause in walk_clauses(filters)}))
    return WantedPoints(filter=Filter(must=must) if must else None, exact=pushed.exact, accepts=accepts, keys=keys)


# Facts about points, so that a search need not read them again.


class KnownPoints(Generic[FactT]):
    """Facts about the nodes of one version of a collection, by point. Safe to use from many threads.

    Reading a point's payload and making a node of it takes ten times as long as finding the point. Where a search wants
    no more than a few facts that stay as they are, such as which chunk a leaf belongs to, they are read once.
    """

    def __init__(self, read: Callable[[BaseNode], FactT | None]) -> None:
        self.read = read
        self._known: dict[str, tuple[str, FactT] | None] = {}

    def of(
        self, point_ids: Sequence[str], retrieve: Callable[[list[str]], Iterable[Point]]
    ) -> dict[str, tuple[str, FactT]]:
        """Return node id and fact of points, by point id, once those that are not known were retrieved."""
        known = self._known
        found = {point_id: known[point_id] for point_id in point_ids if point_id in known}
        missing = [point_id for point_id in point_ids if point_id not in found]
        if missing:
            fresh = {str(record.id): self._fact(record) for record in retrieve(missing)}
            if len(known) + len(fresh) > MAX_KNOWN:
                known = self._known = {}
            known.update(fresh)
            found |= fresh
        return {point_id: fact for point_id, fact in found.items() if fact is not None}

    def _fact(self, record: Point) -> tuple[str, FactT] | None:
        node = stored_node(record.payload)
        fact = None if node is None else self.read(node)
        return None if node is None or fact is None else (node.node_id, fact)


@runtime_checkable
class _FindsKnown(Protocol):
    def query_known(self, query: VectorStoreQuery, known: KnownPoints[FactT]) -> list[tuple[FactT, float]]: ...


def found_facts(
    store: BasePydanticVectorStore, query: VectorStoreQuery, known: KnownPoints[FactT]
) -> list[tuple[FactT, float]]:
    """Search any store for facts about its nodes, best first."""
    if isinstance(store, _FindsKnown):
        return store.query_known(query, known)
    result = store.query(query)
    # Some stores leave scores out, whatever the type says.
    scored: Iterable[tuple[BaseNode, float | None]] = zip(result.nodes or (), result.similarities or (), strict=False)
    facts = [(known.read(node), score) for node, score in scored]
    return [(fact, float(score)) for fact, score in facts if fact is not None and score is not None]

"""From points that an engine found to hits in order, for the engine in this process and on a server alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters, VectorStoreQuery
from qdrant_edge import FieldCondition, Filter, HasIdCondition, MatchAny

from agentic_retriever.filters import Predicate, predicate, walk_clauses
from agentic_retriever.stores.payload import (
    NO_SOURCE,
    SOURCE_FIELD,
    payload_fields,
    point_id,
    stored_node,
    stored_node_id,
)
from agentic_retriever.stores.push_down import nothing, payload_path, push_down

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


class ScoredPoint(Point, Protocol):
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


def rank_points(points: Sequence[ScoredPoint], whole: bool, *, accepts: Predicate, top_k: int) -> tuple[list[Hit], int]:
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

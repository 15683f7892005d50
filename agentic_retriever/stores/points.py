"""From points that an engine found to hits in order; the same for the engine in this process and on a server."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeVar, runtime_checkable

import numpy as np
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryMode

from agentic_retriever.errors import InvalidQueryError, StoreError
from agentic_retriever.filters import walk_clauses
from agentic_retriever.stores.payload import (
    NO_SOURCE,
    payload_fields,
    payload_path,
    point_id,
    stored_node,
    stored_node_id,
    unit_vector,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery, VectorStoreQueryResult
    from typing_extensions import Self

    from agentic_retriever.filters import Predicate
    from agentic_retriever.threads import Workers

    Ranked = tuple[float, str, Mapping[str, Any]]


# From stored points to nodes, ids and vectors; the same for the engine in this process and on a server.

logger = logging.getLogger(__name__)


class HasPayload(Protocol):
    """A point as it was stored."""

    @property
    def payload(self) -> dict[str, Any] | None:
        """What was stored with the vector."""


PointT = TypeVar("PointT", bound=HasPayload)


def read_nodes(records: Sequence[HasPayload]) -> list[BaseNode]:
    """Read the nodes of points; those that are broken or not ours are left out with one warning."""
    found = [stored_node(record.payload) for record in records]
    nodes = [node for node in found if node is not None]
    warn_of_foreign(len(found) - len(nodes))
    return nodes


def read_embedded(records: Iterable[PointT], vector: Callable[[PointT], list[float]]) -> list[BaseNode]:
    """Read the nodes of points together with their vectors."""
    nodes: list[BaseNode] = []
    for record in records:
        node = stored_node(record.payload)
        if node is not None:
            node.embedding = vector(record)
            nodes.append(node)
    return nodes


def read_ids(records: Iterable[HasPayload]) -> list[str]:
    """Return the node ids of points, sorted; those that are not ours have none."""
    found = (stored_node_id(record.payload) for record in records)
    return sorted(node_id for node_id in found if node_id is not None)


def vector_table(
    node_ids: Sequence[str], rows: Mapping[str, npt.ArrayLike], dimension: int
) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Put vectors in the order of node ids."""
    found = [node_id for node_id in node_ids if point_id(node_id) in rows]
    matrix = np.empty((len(found), dimension), dtype=np.float32)
    for row, node_id in zip(matrix, found, strict=True):
        row[:] = rows[point_id(node_id)]
    return found, matrix


def page_start(mark: str | None) -> int | str | None:
    """Read the mark of a page as the engine's id; ``None`` is the first page."""
    return int(mark) if mark is not None and mark.isdigit() else mark


def page_mark(start: object) -> str | None:
    """Write the engine's id of where a page starts as a mark; ``None`` is the end."""
    return None if start is None else str(start)


def warn_of_foreign(number: int) -> None:
    """Log that so many points were skipped, if any were."""
    if number:
        logger.warning("skipped %d stored points that are broken or were not written by LlamaIndex", number)


class Scored(HasPayload, Protocol):
    """A point that was found."""

    @property
    def score(self) -> float:
        """How good, the higher the better."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A node that was found."""

    node: BaseNode
    score: float


def rank(points: Sequence[Scored], accepts: Predicate, *, whole: bool) -> tuple[list[Ranked], int]:
    """Put points in order."""
    floor = float("-inf") if whole or not points else points[-1].score
    ranked: list[Ranked] = []
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
    return ranked, foreign


def ranked_hits(points: Sequence[Scored], whole: bool, *, accepts: Predicate, top_k: int) -> tuple[list[Hit], int]:
    """Put points in order and read the first ``top_k``; otherwise as :func:`rank` and :func:`read_hits`."""
    ranked, foreign = rank(points, accepts, whole=whole)
    return read_hits(ranked, top_k), foreign


def read_hits(ranked: Iterable[Ranked], top_k: int) -> list[Hit]:
    """Read the nodes of the first points; broken ones are left out with one warning."""
    hits: list[Hit] = []
    broken = 0
    for score, _, payload in ranked:
        if len(hits) == top_k:
            break
        node = stored_node(payload)
        if node is None:
            broken += 1
        else:
            hits.append(Hit(node, score))
    warn_of_foreign(broken)
    return hits


# Which points are wanted, and how deep to look for the best; the same for the engine in this process and on a server.
#
# An engine is asked for more than is wanted: some of what it finds may not satisfy the part of a filter that it does
# not
# understand, and of points with the lowest score it may have left out some.

PAGE: Final = 1_000
"""Points that are read at a time."""

TIE_MARGIN: Final = 8
MAX_GUESS: Final = 1_024
"""How many more points than are wanted are looked at before it is found out which points a filter lets through."""

_MAX_TIES: Final = 4_096
_GROWTH: Final = 4

FilterT = TypeVar("FilterT")
HitT = TypeVar("HitT")
SideT = TypeVar("SideT")


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPoints(Generic[FilterT]):
    """Which points are wanted."""

    filter: FilterT | None
    exact: bool
    accepts: Predicate
    keys: tuple[str, ...]

    def among(self, records: Sequence[PointT]) -> list[PointT]:
        """Return those that are wanted of points that the filter let through, in the same order."""
        if self.exact:
            return list(records)
        return [record for record in records if self.accepts(payload_fields(record.payload or {}))]

    def narrowed(self, exactly: FilterT) -> WantedPoints[FilterT]:
        """Return the same points with a filter that lets through nothing else."""
        return replace(self, filter=exactly, exact=True)

    @property
    def payload(self) -> bool | list[str]:
        """What of a payload decides: none of it, these fields as the engine's paths, or all."""
        if self.exact:
            return False
        paths = [payload_path(key) for key in self.keys]
        return True if None in paths else [path for path in paths if path is not None]


def filter_keys(filters: MetadataFilters | None) -> tuple[str, ...]:
    """Return the metadata fields that filters look at, sorted."""
    return tuple(sorted({clause.key for clause in walk_clauses(filters)}))


def source_ids(doc_ids: Iterable[str]) -> list[str]:
    """Return the ids of sources without what stands for no source, sorted."""
    return sorted({doc_id for doc_id in doc_ids if doc_id != NO_SOURCE})


def find_best(
    sides: Sequence[SideT],
    top_k: int,
    wanted: WantedPoints[FilterT],
    *,
    ask: Callable[[Sequence[SideT], int, WantedPoints[FilterT]], Sequence[Sequence[PointT]]],
    resolve: Callable[[WantedPoints[FilterT]], WantedPoints[FilterT]],
    read: Callable[[Sequence[PointT], bool], tuple[list[HitT], int]],
) -> list[list[HitT]]:
    """Find the best wanted points, looking deeper until they are known."""
    limit = top_k + TIE_MARGIN if wanted.exact else _GROWTH * top_k + 2 * TIE_MARGIN
    found: dict[int, list[HitT]] = {}
    while len(found) < len(sides):
        if not wanted.exact and limit > MAX_GUESS + top_k:
            wanted = resolve(wanted)
        waiting = [i for i in range(len(sides)) if i not in found]
        for i, points in zip(waiting, ask([sides[i] for i in waiting], limit, wanted), strict=True):
            exhausted = len(points) < limit
            hits, foreign = read(points, exhausted or limit > top_k + _MAX_TIES)
            if exhausted or len(hits) == top_k:
                warn_of_foreign(foreign)
                found[i] = hits
        limit *= _GROWTH
    return [found[i] for i in range(len(sides))]


# Writing nodes step by step: how many are stored when it is cut off.


class StoredCount:
    """Counts the nodes that are stored inside, and says so in the store's error that ends it too early."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._stored = 0

    def add(self, nodes: int) -> None:
        """Count nodes that are stored now."""
        self._stored += nodes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StoreError) and self._stored:
            raise type(error)(
                f"{error}; {self._stored:,} of the {self._total:,} nodes are stored, add all again to complete them"
            ) from error


# What is known of the points of a collection, so that a search need not read them again.
#
# Reading a point's payload and making a node of it takes ten times as long as finding the point. Where a search wants
# no
# more than a few facts that stay as they are, such as which chunk a leaf belongs to, they are read once.

FactT = TypeVar("FactT")
KnownPointT = TypeVar("KnownPointT", bound="HasPayload")

MAX_KNOWN: Final = 20_000
"""Points that are remembered at a time, 10 MB at most; beyond, remembering begins anew."""


class KnownPoints(Generic[FactT]):
    """Facts about the nodes of one version of a collection, by point. Safe to use from many threads."""

    def __init__(self, read: Callable[[BaseNode], FactT | None]) -> None:
        self.read = read
        self._known: dict[str, tuple[str, FactT] | None] = {}

    def of(
        self,
        point_ids: Sequence[str],
        retrieve: Callable[[Sequence[str]], Iterable[KnownPointT]],
        name: Callable[[KnownPointT], str],
    ) -> dict[str, tuple[str, FactT]]:
        """Return what is known of points, once those that are not known were read."""
        known = self._known
        found = {point_id: known[point_id] for point_id in point_ids if point_id in known}
        missing = [point_id for point_id in point_ids if point_id not in found]
        if missing:
            fresh = {name(record): self._fact(record) for record in retrieve(missing)}
            if len(known) + len(fresh) > MAX_KNOWN:
                known = self._known = {}
            known.update(fresh)
            found |= fresh
        return {point_id: fact for point_id, fact in found.items() if fact is not None}

    def _fact(self, record: HasPayload) -> tuple[str, FactT] | None:
        node = stored_node(record.payload)
        fact = None if node is None else self.read(node)
        return None if node is None or fact is None else (node.node_id, fact)


@runtime_checkable
class _FindsKnown(Protocol):
    def query_known(self, query: VectorStoreQuery, known: KnownPoints[FactT]) -> list[tuple[FactT, float]]: ...


def found_facts(
    store: BasePydanticVectorStore, query: VectorStoreQuery, known: KnownPoints[FactT]
) -> list[tuple[FactT, float]]:
    """Search any store for facts about its nodes."""
    if isinstance(store, _FindsKnown):
        return store.query_known(query, known)
    result = store.query(query)
    # Some stores leave scores out, whatever the type says.
    scored: Iterable[tuple[BaseNode, float | None]] = zip(result.nodes or (), result.similarities or (), strict=False)
    facts = [(known.read(node), score) for node, score in scored]
    return [(fact, float(score)) for fact, score in facts if fact is not None and score is not None]


# A query of LlamaIndex to a vector store, checked.


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """What is to be found."""

    vector: npt.NDArray[np.float32]  # A unit vector, (dim,)
    top_k: int
    filters: MetadataFilters | None
    node_ids: Sequence[str] | None  # Only these nodes; None for all
    doc_ids: Sequence[str] | None  # Only nodes of these sources; None for all

    @classmethod
    def checked(cls, query: VectorStoreQuery, unknown: Mapping[str, object], dimension: int | None) -> StoreQuery:
        """Check a query."""
        top_k = _checked_top_k(query, unknown)
        vector = unit_vector(query.query_embedding or [], dimension)
        # VectorStoreIndex.as_retriever() sends an empty list when it restricts nothing, and always the query's text.
        # Taken at its word it would find nothing in any store that keeps the text itself.
        is_unrestricted = query.node_ids == [] and query.query_str is not None
        node_ids = None if is_unrestricted else query.node_ids
        nothing_asked = node_ids == [] or query.doc_ids == []
        return cls(vector, 0 if nothing_asked else top_k, query.filters, node_ids, query.doc_ids)


def _checked_top_k(query: VectorStoreQuery, unknown: Mapping[str, object]) -> int:
    problem = None
    top_k = query.similarity_top_k
    if unknown:
        problem = f"query() got unknown arguments: {', '.join(sorted(unknown))}; none are known"
    elif query.mode != VectorStoreQueryMode.DEFAULT:
        problem = f"query mode {query.mode!s:.40} is not supported; use the default, a dense search"
    elif type(top_k) is not int or top_k < 0:
        problem = f"similarity_top_k is {top_k!r}; allowed are whole numbers from 0"
    elif query.query_embedding is None:
        problem = "the query has no embedding; embed its text first"
    if problem is not None:
        raise InvalidQueryError(problem)
    return top_k


# The async methods of a vector store: each runs its sync twin in a worker thread.

P = ParamSpec("P")
T = TypeVar("T")


class AsyncTwins(BasePydanticVectorStore, ABC):
    """A LlamaIndex vector store whose async methods run the sync ones; a subclass sets ``_workers``."""

    _workers: Workers = PrivateAttr()

    @abstractmethod
    def _check_open(self) -> None:
        """Refuse use after ``close``."""

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: object) -> list[str]:
        """Do what ``add`` does, off the event loop."""
        return await self._off_loop(self.add, nodes, **kwargs)

    async def adelete(self, ref_doc_id: str, **delete_kwargs: object) -> None:
        """Do what ``delete`` does, off the event loop."""
        await self._off_loop(self.delete, ref_doc_id, **delete_kwargs)

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: object
    ) -> None:
        """Do what ``delete_nodes`` does, off the event loop."""
        await self._off_loop(self.delete_nodes, node_ids, filters, **delete_kwargs)

    async def aclear(self) -> None:
        """Do what ``clear`` does, off the event loop."""
        await self._off_loop(self.clear)

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, limit: int | None = None
    ) -> list[BaseNode]:
        """Do what ``get_nodes`` does, off the event loop."""
        nodes = await self._off_loop(self.get_nodes, node_ids, filters)
        return nodes if limit is None else nodes[:limit]

    async def aquery(self, query: VectorStoreQuery, **kwargs: object) -> VectorStoreQueryResult:
        """Do what ``query`` does, off the event loop."""
        return await self._off_loop(self.query, query, **kwargs)

    async def _off_loop(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_open()
        return await self._workers.run(fn, *args, **kwargs)

"""What an index needs of a vector store, wherever the nodes are, in terms of the few things that engines differ in.

More points than wanted are asked for: some may not satisfy the filter, and of the lowest score some may be left out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial, wraps
from itertools import islice
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from qdrant_edge import Filter, HasIdCondition
from typing_extensions import Self

from agentic_retriever.errors import ConfigError, FilterError, InvalidQueryError, StoreError
from agentic_retriever.filters import is_empty
from agentic_retriever.stores import points
from agentic_retriever.threads import Workers

PAGE: Final = 1_000  # points that are read at a time
GRAPH_FROM: Final = 100_000  # nodes that are worth a graph; docs/scaling.md has what they cost without
MAX_GUESS: Final = 1_024  # further points that are looked at before it is found out which ones a filter lets through
TIE_MARGIN: Final = 8
_MAX_TIES: Final = 4_096
_GROWTH: Final = 4
_DIVERSE_FROM: Final = 100  # nodes among which MMR chooses at least
_MODES: Final = (VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR, VectorStoreQueryMode.HYBRID)

T = TypeVar("T")
Ids: TypeAlias = Sequence[str] | None
Vectors: TypeAlias = npt.NDArray[np.float32]
Begin: TypeAlias = Callable[[int], object]
Side: TypeAlias = Any  # what points are near to: a unit vector, or a sparse one of the client's
Offset: TypeAlias = Any  # where points begin: a number, a text or a UUID; None at the first, and after the last
Page: TypeAlias = tuple[Sequence[points.Point], Offset]  # points, and where the next ones begin
# Reads the best of points that are the whole list or not, and counts those that are not ours.
Reader: TypeAlias = Callable[[Sequence[points.EnginePoint], bool], tuple[list[T], int]]


def _off_loop(method: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Return the twin of a store's method that does the same in a worker thread."""

    @wraps(method, updated=())  # a twin of an abstract method is not abstract
    async def twin(self: "NodeStore", *args: Any, **kwargs: Any) -> T:  # noqa: ANN401 - those of the method
        self._check_open()
        result: T = await self._workers.run(getattr(self, method.__name__), *args, **kwargs)
        return result

    return twin


class NodeStore(BasePydanticVectorStore, ABC):
    """A LlamaIndex vector store that an index can live on; each async method runs its sync twin in a worker thread."""

    stores_text: bool = Field(default=True, exclude=True)
    is_embedding_query: bool = Field(default=True, exclude=True)
    flat_metadata: bool = Field(default=False, exclude=True)
    collection_name: str = "default"
    dimension: int | None = None  # Length of the vectors; None until it is known

    _step: ClassVar[int] = 256  # points handed to the engine at a time
    _finds_substrings: ClassVar[bool] = True
    _max_scanned: ClassVar[float] = float("inf")  # points read one by one for what the engine cannot check

    _workers: Workers = PrivateAttr()
    _unindexed: set[str] = PrivateAttr(default_factory=set)  # fields that suit no kind of index

    @classmethod
    def class_name(cls) -> str:
        """Name of the class in LlamaIndex's serialised form."""
        return cls.__name__

    def add(self, nodes: Sequence[BaseNode], **add_kwargs: object) -> list[str]:  # noqa: ARG002 - LlamaIndex's
        """Store nodes with their embeddings; a node whose id is stored already is replaced.

        Everything is checked before the first node is written.

        Args:
            nodes: Nodes that have embeddings.
            **add_kwargs: Ignored.

        Returns:
            The nodes' ids, in their order.

        Raises:
            IndexingError: A node cannot be stored; the message names it and the field.
            EmbeddingError: An embedding is missing, zero, or has NaN or an infinity.
            EmbeddingMismatchError: An embedding has another dimension than the collection.
            StoreError: The disk or the server failed; the message says how many nodes are stored.
        """
        self._check_open()
        if nodes:
            payloads = [points.node_payload(node) for node in nodes]
            vectors = points.unit_vectors(nodes)
            done = 0
            try:
                with self._writing("add nodes", vectors.shape[1], len(nodes)):
                    self._prepare(nodes, vectors, payloads)
                    for start in range(0, len(nodes), self._step):
                        rows = slice(start, start + self._step)
                        self._put(nodes[rows], vectors[rows], payloads[rows])
                        done += len(payloads[rows])
            except StoreError as err:
                if not done:
                    raise
                stored = f"{done:,} of the {len(nodes):,} nodes are stored"
                raise type(err)(f"{err}; {stored}, add all again to complete them") from err
            self.dimension = self._stored_dimension
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: object) -> None:  # noqa: ARG002 - LlamaIndex's signature
        """Delete the nodes of one source document.

        Args:
            ref_doc_id: The document's id. One that is not there is no error.
            **delete_kwargs: Ignored.

        Raises:
            StoreError: The id is empty, or the disk or the server failed.
        """
        if not ref_doc_id:
            raise StoreError(f"delete() needs a document's id, got {ref_doc_id!r}; to remove everything call clear()")
        self._delete(None, doc_ids=[ref_doc_id])

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: object,  # noqa: ARG002 - LlamaIndex's signature
    ) -> None:
        """Delete the nodes that have one of the ids *and* satisfy the filters.

        Args:
            node_ids: Ids; those that are not there are no error.
            filters: Metadata filters.
            **delete_kwargs: Ignored.

        Raises:
            StoreError: Nothing was given, or an empty list or filter; only ``clear`` empties a collection.
            FilterError: The filters cannot be evaluated.
        """
        if (node_ids is None and filters is None) or node_ids == [] or (filters is not None and is_empty(filters)):
            raise StoreError(
                "delete_nodes() needs node ids or a filter that are not empty, so that nothing is deleted by mistake; "
                "to remove everything call clear()"
            )
        self._delete(filters, node_ids=node_ids)

    def query(self, query: VectorStoreQuery, **kwargs: object) -> VectorStoreQueryResult:
        """Find the nodes nearest to an embedding, or without one those that satisfy the restrictions.

        Args:
            query: ``query_embedding``, ``similarity_top_k`` (0 gives nothing) and, each narrowing the result,
                ``filters``, ``node_ids`` and ``doc_ids``. An empty list gives nothing; only where ``query_str`` is set
                too does an empty ``node_ids`` restrict nothing, as that is what LlamaIndex's own retriever sends.
                ``mode`` is the default, ``mmr`` with ``mmr_threshold`` as LlamaIndex's own store has it, or, in a store
                that keeps words, ``hybrid`` with ``query_str`` and ``alpha``.
            **kwargs: ``mmr_threshold`` for that mode, which a retriever hands on so.

        Returns:
            Nodes, cosines in [-1, 1] (or the scores of the mode, or 0 without an embedding) and ids, by falling score
            and then by id.

        Raises:
            InvalidQueryError: Another mode or one that the store does not have, neither an embedding nor a restriction,
                a bad ``similarity_top_k`` or ``mmr_threshold``, or an unknown argument.
            EmbeddingError: The embedding is zero, or has NaN or an infinity.
            EmbeddingMismatchError: It has another dimension than the collection.
            FilterError: The filters cannot be evaluated.
            StoreError: The disk or the server failed.
        """
        is_diverse = query.mode == VectorStoreQueryMode.MMR
        threshold = cast("float | None", kwargs.pop("mmr_threshold", query.mmr_threshold)) if is_diverse else None
        top_k, wanted = self._checked(query, kwargs)
        if query.query_embedding is None and wanted.filter is not None:
            pages = self._pages(wanted, whole=True) if top_k else []
            found = (points.Hit(node, 0.0) for records in pages for node in points.read_nodes(records))
            return found_result(list(islice(found, top_k)))
        vector = self._unit(query)
        if query.mode == VectorStoreQueryMode.HYBRID:
            return self._hybrid(query, vector, top_k, wanted)
        depth = max(_DIVERSE_FROM, _GROWTH * top_k) if is_diverse and top_k else top_k
        [hits] = self._find([vector], depth, wanted)
        return found_result(self._diverse(hits, vector, top_k, threshold) if is_diverse else hits)

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, limit: int | None = None
    ) -> list[BaseNode]:
        """Read nodes, all of them however many there are.

        Args:
            node_ids: Only these; an empty list gives nothing.
            filters: Only those that satisfy the filters.
            limit: At most so many; ``None`` for all.

        Returns:
            The nodes; in the order of ``node_ids`` where these are given, else always in the same order.

        Raises:
            FilterError: The filters cannot be evaluated.
            InvalidQueryError: ``limit`` is negative.
        """
        if limit is not None and limit < 0:
            raise InvalidQueryError(f"limit is {limit}; allowed are 0 and more, or None for all")
        found: list[BaseNode] = []
        if node_ids is None:
            for records in self._pages(self._select(filters), whole=True):
                found.extend(points.read_nodes(records))
                if limit is not None and len(found) >= limit:
                    break
            return found[:limit]
        unique = list(dict.fromkeys(node_ids))
        for start in range(0, len(unique), PAGE):
            wanted = self._select(filters, node_ids=unique[start : start + PAGE])
            for records in self._pages(wanted, whole=True):
                found.extend(points.read_nodes(records))
        by_id = {node.node_id: node for node in found}
        return [by_id[node_id] for node_id in unique if node_id in by_id][:limit]

    def iter_nodes(self, batch: int = 256) -> Iterator[BaseNode]:
        """Go through every node without holding all in memory, ``batch`` at a time, always in the same order."""
        for records in self._pages(self._select(None), size=max(1, batch), whole=True):
            yield from points.read_nodes(records)

    def node_ids(self) -> list[str]:
        """Return the ids of all nodes, sorted."""
        pages = self._pages(self._select(None), whole=True)
        found = (points.stored_node_id(record.payload) for records in pages for record in records)
        return sorted(node_id for node_id in found if node_id is not None)

    def vectors(self, node_ids: Sequence[str]) -> tuple[list[str], Vectors]:
        """Return the ids that were found, in the given order, and their unit vectors ``(n, dimension)``."""
        unique = list(dict.fromkeys(node_ids))
        rows: dict[str, npt.ArrayLike] = {}
        for start in range(0, len(unique), PAGE):
            rows.update(self._vectors([points.point_id(node_id) for node_id in unique[start : start + PAGE]]))
        found = [node_id for node_id in unique if points.point_id(node_id) in rows]
        matrix = np.empty((len(found), self._stored_dimension or 0), dtype=np.float32)
        for row, node_id in zip(matrix, found, strict=True):
            row[:] = rows[points.point_id(node_id)]
        return found, matrix

    def count(self, filters: MetadataFilters | None = None) -> int:
        """Return how many nodes there are, or satisfy the filters."""
        wanted = self._select(filters)
        return self._count(wanted.filter) if wanted.exact else sum(len(records) for records in self._pages(wanted))

    def create_payload_index(self, field: str, kind: points.FieldKind) -> None:
        """Index a metadata field for faster filters.

        ``add`` does so by itself for up to 64 fields whose values are of one type; in this process from 500 nodes on.

        Args:
            field: Name of the field.
            kind: ``keyword`` for texts, ``float`` for numbers, ``bool``, or ``datetime`` for ISO 8601 texts. An index
                of another kind on the field is replaced.

        Raises:
            ConfigError: The kind is unknown or the field's name cannot be indexed.
            StoreError: Nothing was ever stored, or the disk or the server failed.
        """
        if kind not in points.FIELD_KINDS:
            raise ConfigError(f"unknown kind of payload index {kind!r:.40}; allowed: {', '.join(points.FIELD_KINDS)}")
        path = points.payload_path(field)
        if path is None or field in points.RESERVED_FIELDS:
            why = "its name is empty, reserved, or has a quote or backslash"
            raise ConfigError(f"the field {field!r:.60} cannot be indexed; {why}")
        with self._writing("index a field"):
            known = self._kinds().get(field)
            if known != kind:
                self._make_index(path, kind, replace=known is not None)

    @property
    def search_kind(self) -> str:
        """How nodes are searched: ``exact``, by a ``graph``, or as a ``server`` decides."""
        return "server"

    def build_graph(self, begin: Begin = int, *, from_nodes: int = GRAPH_FROM, wait: bool = True) -> int:
        """Build a graph (HNSW) for faster, approximate search if a fifth of the nodes or more are in none.

        Another process builds it in a copy of the files; writers wait for the copying only. A server does so by itself.

        Args:
            begin: Hears of how many nodes a graph is begun.
            from_nodes: A smaller collection is searched exactly.
            wait: Whether to wait for one that is being built already, and look again.

        Returns:
            Of how many nodes a graph was built; 0 where none was needed.

        Raises:
            StoreError: It could not be built, or the collection was closed or cleared; it is as before.
        """
        del begin, from_nodes, wait
        return 0

    def close(self) -> None:
        """Give the collection back. Twice does nothing."""
        self._workers.close(wait=False)

    # What engines differ in.

    @abstractmethod
    def clear(self) -> None:
        """Delete every node; the dimension stays."""

    async_add = _off_loop(add)
    adelete = _off_loop(delete)
    adelete_nodes = _off_loop(delete_nodes)
    aclear = _off_loop(clear)
    aget_nodes = _off_loop(get_nodes)
    aquery = _off_loop(query)

    @abstractmethod
    def flush(self) -> None:
        """Bring everything to disk, so that it survives a power cut as well as a crash."""

    @abstractmethod
    def _check_open(self) -> None:
        """Refuse use after ``close``."""

    @abstractmethod
    def _writing(self, what: str, dimension: int | None = None, points: int = 0) -> AbstractContextManager[object]:
        """Change the collection inside; with a dimension it is made where it is not there."""

    @abstractmethod
    def _prepare(self, nodes: Sequence[BaseNode], vectors: Vectors, payloads: Sequence[dict[str, Any]]) -> None:
        """Do what is to be done once before so many points are put."""

    @abstractmethod
    def _put(self, nodes: Sequence[BaseNode], vectors: Vectors, payloads: Sequence[dict[str, Any]]) -> None: ...

    @abstractmethod
    def _remove(self, point_ids: list[Any]) -> None: ...

    @abstractmethod
    def _kinds(self) -> Mapping[str, str]:
        """The kind of payload index of each indexed field."""

    @abstractmethod
    def _make_index(self, path: str, kind: points.FieldKind, *, replace: bool) -> None: ...

    @abstractmethod
    def _scroll(self, condition: Filter | None, offset: Offset, size: int, payload: points.Payload) -> Page:
        """Read a page of points, and where the next one begins."""

    @abstractmethod
    def _vectors(self, point_ids: list[str]) -> Mapping[str, npt.ArrayLike]: ...

    @abstractmethod
    def _count(self, condition: Filter | None) -> int: ...

    @abstractmethod
    def _ask(
        self, sides: Sequence[Side], limit: int, condition: Filter | None, payload: bool
    ) -> Sequence[Sequence[points.EnginePoint]]:
        """Find the best points of each side, by falling score."""

    def _hybrid(
        self, query: VectorStoreQuery, vector: Vectors, top_k: int, wanted: points.WantedPoints
    ) -> VectorStoreQueryResult:
        """Search by meaning and words."""
        del query, vector, top_k, wanted
        raise InvalidQueryError(
            "this store keeps no words, so it has no hybrid mode; ask a router with strategy hybrid, take a "
            "QdrantServerVectorStore with keywords=True, or the default mode"
        )

    # What is the same for all engines.

    @property
    def _stored_dimension(self) -> int | None:
        return self.dimension

    def _checked(self, query: VectorStoreQuery, unknown: Mapping[str, object]) -> tuple[int, points.WantedPoints]:
        """Check a query; return how many nodes it asks for, and which."""
        self._check_open()
        top_k = query.similarity_top_k
        if unknown:
            raise InvalidQueryError(f"query() got unknown arguments: {', '.join(sorted(unknown))}; none are known")
        if query.mode not in _MODES:
            allowed = ", ".join(mode.value for mode in _MODES)
            raise InvalidQueryError(f"query mode {query.mode!s:.40} is not supported; allowed are {allowed}")
        if type(top_k) is not int or top_k < 0:
            raise InvalidQueryError(f"similarity_top_k is {top_k!r}; allowed are whole numbers from 0")
        # VectorStoreIndex.as_retriever() sends an empty list when it restricts nothing, and always the query's text.
        # Taken at its word it would find nothing in any store that keeps the text itself.
        is_unrestricted = query.node_ids == [] and query.query_str is not None
        node_ids = None if is_unrestricted else query.node_ids
        wanted = self._select(query.filters, node_ids=node_ids, doc_ids=query.doc_ids)
        return 0 if node_ids == [] or query.doc_ids == [] else top_k, wanted

    def _unit(self, query: VectorStoreQuery) -> Vectors:
        if query.query_embedding is None:
            raise InvalidQueryError("the query has no embedding; embed its text first, or give a filter")
        return points.unit_vector(query.query_embedding, self._stored_dimension)

    def _diverse(
        self, hits: Sequence[points.Hit], vector: Vectors, top_k: int, threshold: float | None
    ) -> list[points.Hit]:
        """Choose hits that are near the vector and unlike each other, as LlamaIndex does."""
        if threshold is not None and not 0 <= threshold <= 1:
            raise InvalidQueryError(f"mmr_threshold is {threshold!r}; allowed are numbers from 0 to 1")
        nodes = {hit.node.node_id: hit.node for hit in hits}
        ids, rows = self.vectors(list(nodes))
        scores, chosen = get_top_k_mmr_embeddings(
            cast("list[float]", vector),
            cast("list[list[float]]", list(rows)),
            similarity_top_k=top_k,
            embedding_ids=ids,
            mmr_threshold=threshold,
        )
        return [points.Hit(nodes[node_id], float(score)) for node_id, score in zip(chosen, scores, strict=True)]

    def _select(
        self, filters: MetadataFilters | None, node_ids: Ids = None, doc_ids: Ids = None
    ) -> points.WantedPoints:
        """Say which points are wanted; every restriction narrows the others."""
        kinds = {} if filters is None else self._kinds()
        return points.wanted_points(filters, kinds, node_ids, doc_ids, substrings=self._finds_substrings)

    def _find(self, sides: Sequence[Side], top_k: int, wanted: points.WantedPoints) -> list[list[points.Hit]]:
        """Find the best wanted nodes of each side, by falling score and then by id."""
        if top_k > PAGE:  # engines set memory aside for as many as they are asked for
            top_k = max(1, min(top_k, self._count(None)))
        return self._find_points(sides, top_k, wanted, partial(points.rank_points, accepts=wanted.accepts, top_k=top_k))

    def _find_points(
        self, sides: Sequence[Side], top_k: int, wanted: points.WantedPoints, read: Reader[T], *, payload: bool = True
    ) -> list[list[T]]:
        """Look deeper until the best wanted points of each side are known."""
        limit = top_k + TIE_MARGIN if wanted.exact else _GROWTH * top_k + 2 * TIE_MARGIN
        found: dict[int, list[T]] = {} if top_k else {i: [] for i in range(len(sides))}
        while len(found) < len(sides):
            if not wanted.exact and limit > MAX_GUESS + top_k:
                wanted = self._resolve(wanted)
            waiting = [i for i in range(len(sides)) if i not in found]
            answers = self._ask([sides[i] for i in waiting], limit, wanted.filter, payload)
            for i, best in zip(waiting, answers, strict=True):
                exhausted = len(best) < limit
                hits, foreign = read(best, exhausted or limit > top_k + _MAX_TIES)
                if exhausted or len(hits) == top_k:
                    points.warn_of_foreign(foreign)
                    found[i] = hits
            limit *= _GROWTH
        return [found[i] for i in range(len(sides))]

    def _resolve(self, wanted: points.WantedPoints) -> points.WantedPoints:
        """Find out which points are wanted, and ask for exactly these from now on."""
        ids: list[Any] = []
        for page, records in enumerate(self._pages(wanted)):
            if page * PAGE >= self._max_scanned:
                raise FilterError(
                    f"the filter on {', '.join(wanted.keys)[:200]} has a part that a Qdrant server cannot check, and "
                    f"more than {self._max_scanned:,} nodes satisfy the rest; add a clause that narrows it, such as == "
                    "or a range of numbers"
                )
            ids += [record.id for record in records]
        return replace(wanted, filter=Filter(must=[HasIdCondition(set(ids))]), exact=True)

    def _pages(
        self, wanted: points.WantedPoints, *, size: int | None = None, whole: bool = False
    ) -> Iterator[list[points.Point]]:
        """Go through the wanted points in the engine's order, with their whole payload or what decides of it."""
        payload = True if whole else wanted.payload
        offset = None
        while True:
            records, offset = self._scroll(wanted.filter, offset, size or PAGE, payload)
            yield wanted.among(records)
            if offset is None:
                return

    def _delete(self, filters: MetadataFilters | None, node_ids: Ids = None, doc_ids: Ids = None) -> None:
        # Named one by one: a filter that was translated too widely must not delete too much.
        with self._writing("delete nodes"):
            pages = self._pages(self._select(filters, node_ids, doc_ids))
            found = [record.id for records in pages for record in records]
            for start in range(0, len(found), PAGE):
                self._remove(found[start : start + PAGE])

    def _index_fields(self, payloads: Sequence[Mapping[str, object]]) -> None:
        """Index the source's id, and fields whose values are of one type, up to 64."""
        kinds = self._kinds()
        wanted = points.infer_kinds(payloads, points.RESERVED_FIELDS | self._unindexed | kinds.keys())
        if points.SOURCE_FIELD not in kinds:
            wanted = {points.SOURCE_FIELD: "keyword", **wanted}
        room = points.MAX_INDEXED_FIELDS - len(kinds)
        for field, kind in wanted.items():
            path = points.payload_path(field)
            if kind is None or path is None or room <= 0:
                self._unindexed.add(field)
            else:
                self._make_index(path, kind, replace=False)
                room -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self.__copy__()


def found_result(hits: Sequence[points.Hit]) -> VectorStoreQueryResult:
    nodes = [hit.node for hit in hits]
    ids = [node.node_id for node in nodes]
    return VectorStoreQueryResult(nodes=nodes, similarities=[hit.score for hit in hits], ids=ids)

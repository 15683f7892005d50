"""A LlamaIndex vector store in this process, on Qdrant Edge."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import VectorStoreQuery
from qdrant_edge import (
    CountRequest,
    EdgeShard,
    Filter,
    PayloadSelector,
    Point,
    Query,
    QueryRequest,
    Record,
    ScoredPoint,
    ScrollRequest,
    SearchParams,
    UpdateOperation,
)
from typing_extensions import Self

from agentic_retriever.errors import StoreClosedError, StoreError
from agentic_retriever.stores import points as stored
from agentic_retriever.stores.edge.engine import (
    SCHEMA,
    SharedShard,
    check_collection_name,
    open_shard,
    release_shard,
)
from agentic_retriever.stores.node_store import NodeStore, Side
from agentic_retriever.stores.payload import SOURCE_FIELD, point_id
from agentic_retriever.stores.points import FactT, KnownPoints, Payload
from agentic_retriever.stores.push_down import FieldKind
from agentic_retriever.threads import Workers

# Making an index takes tens of milliseconds, more than all scans that it would spare a small collection.
INDEX_FROM: Final = 500
# The engine maps its files into memory, and writing to a map on a full disk kills the process. So stop before that.
_MIN_FREE_BYTES: Final = 64 * 1024**2
_GRAPH_EFFORT: Final = 512  # candidates that a search through the graph keeps
_WORKERS: Final = 4


class QdrantEdgeVectorStore(NodeStore):
    """Nodes and their vectors in a folder, searched exactly by cosine, with metadata filters.

    Usable by any LlamaIndex application. Safe for many threads; several stores of one process may share a collection;
    another process is refused. What ``add`` has returned survives ``kill -9``; after ``flush`` and ``close`` it
    survives a power cut too. Filters mean what :mod:`agentic_retriever.filters` says.

    Attributes:
        path: Folder of the collections.
        collection_name: Name of this collection, a folder in ``path``.
        dimension: Length of the vectors; ``None`` until the first are stored.

    Example:
        >>> with QdrantEdgeVectorStore("data", collection_name="papers") as store:  # doctest: +SKIP
        ...     index = VectorStoreIndex.from_vector_store(store, embed_model=embed_model)
        ...     index.insert_nodes(nodes)
    """

    path: str

    _shard: SharedShard = PrivateAttr()
    _closed: bool = PrivateAttr(default=False)

    def __init__(self, path: str | Path, collection_name: str = "default", dimension: int | None = None) -> None:
        """Open the collection, or make it.

        Args:
            path: Folder of the collections; made where it is missing.
            collection_name: Letters and digits of any script, spaces, ``_``, ``-`` and ``.``; at most 100 characters.
            dimension: Length of the vectors; by default what is stored, or what the first vectors have.

        Raises:
            ConfigError: The name or the dimension is not allowed.
            StoreBusyError: Another process has the collection open.
            StoreDamagedError: Files are missing or unreadable.
            EmbeddingMismatchError: The collection holds vectors of another dimension.
            StoreError: The folder cannot be used.
        """
        name = check_collection_name(collection_name)
        shard = open_shard(Path(path) / name, collection=name, dimension=dimension)
        fields: dict[str, Any] = {"path": str(path), "collection_name": name, "dimension": shard.dimension}
        super().__init__(**fields)
        self._shard = shard
        self._workers = Workers(_WORKERS, f"vector-store-{name}")

    @classmethod
    def class_name(cls) -> str:
        """Name of the class in LlamaIndex's serialised form."""
        return "QdrantEdgeVectorStore"

    @property
    def client(self) -> EdgeShard | None:
        """The engine itself; ``None`` while nothing was ever stored."""
        self._check_open()
        return self._shard.edge

    def clear(self) -> None:
        """Delete every node; the dimension stays."""
        with self._writing("clear the index"):
            if self._shard.edge is not None:
                self._shard.edge.update(UpdateOperation.delete_points_by_filter(Filter()))

    def flush(self) -> None:
        """Bring everything to disk, so that it survives a power cut as well as a crash."""
        with self._reading("flush the index"):
            self._shard.flush()

    def optimize(self) -> bool:
        """Tidy up deleted nodes and, above the engine's threshold, build a graph (HNSW) for faster, approximate search.

        Takes minutes at 100,000 nodes. Never run by ``add`` or ``query``; searching is exact until it was run.

        Returns:
            Whether there was anything to do.

        Raises:
            StoreError: The disk failed.
        """
        with self._writing("optimize the index"):
            changed = self._shard.edge is not None and self._shard.edge.optimize()
            self._shard.refresh()
            return changed

    def query_known(self, query: VectorStoreQuery, known: KnownPoints[FactT]) -> list[tuple[FactT, float]]:
        """Find as :meth:`query` does, and read only those points of which ``known`` has no fact."""
        search = self._checked(query, {})
        if not search.wanted.exact:
            return super().query_known(query, known)

        def retrieve(point_ids: list[str]) -> Sequence[Record]:
            with self._reading("read nodes") as edge:
                return [] if edge is None else edge.retrieve(list(point_ids), with_payload=True, with_vector=False)

        def read(points: Sequence[stored.ScoredPoint], whole: bool) -> tuple[list[tuple[FactT, float]], int]:
            floor = float("-inf") if whole or not points else points[-1].score
            scores = {str(point.id): point.score for point in points if point.score > floor}
            facts = known.of(list(scores), retrieve)
            order = sorted(facts, key=lambda point: (-scores[point], facts[point][0]))[: search.top_k]
            return [(facts[point][1], scores[point]) for point in order], len(scores) - len(facts)

        return self._find_points([search.vector], search.top_k, search.wanted, read, payload=False)[0]

    @property
    def _stored_dimension(self) -> int | None:
        return self._shard.dimension

    def _check_open(self) -> None:
        if self._shard.is_inherited:
            raise StoreClosedError(
                f"the index in {self._shard.folder} was opened by the parent process and cannot be used after a fork; "
                "open it in one process only, after forking"
            )
        if self._closed:
            raise StoreClosedError(f"the index in {self._shard.folder} is closed; open it again")

    def _let_go(self) -> None:
        # The last store of the process to let go closes the files.
        if not self._closed:
            self._closed = True
            release_shard(self._shard)

    def _reading(self, what: str) -> AbstractContextManager[EdgeShard | None]:
        self._check_open()
        return self._shard.reading(what)

    def _writing(self, what: str, dimension: int | None = None, points: int = 0) -> AbstractContextManager[None]:
        self._check_open()
        return self._shard.writing(what, dimension, points)

    def _engine(self) -> EdgeShard:
        if self._shard.edge is None:
            raise StoreError(f"the index in {self._shard.folder} holds nothing yet; add nodes first")
        return self._shard.edge

    def _prepare(self, vectors: npt.NDArray[np.float32], payloads: Sequence[dict[str, Any]]) -> None:
        folder = self._shard.folder
        free = shutil.disk_usage(folder).free
        size = vectors.nbytes + sum(len(payload["_node_content"]) for payload in payloads)
        needed = _MIN_FREE_BYTES + 3 * size
        if free < needed:
            raise StoreError(
                f"cannot add nodes in {folder}: {free // 1024**2:,} MB of disk are free, {needed // 1024**2:,} MB "
                "are needed; free some space and try again"
            )
        if SOURCE_FIELD in self._kinds() or self._engine().info().points_count + len(payloads) >= INDEX_FROM:
            self._index_fields(payloads)

    def _put(
        self, nodes: Sequence[BaseNode], vectors: npt.NDArray[np.float32], payloads: Sequence[dict[str, Any]]
    ) -> None:
        rows = zip(nodes, vectors, payloads, strict=True)
        points = [Point(point_id(node.node_id), cast("Any", vector), payload) for node, vector, payload in rows]
        self._engine().update(UpdateOperation.upsert_points(points))

    def _remove(self, point_ids: list[Any]) -> None:
        self._engine().update(UpdateOperation.delete_points(point_ids))

    def _kinds(self) -> Mapping[str, str]:
        return self._shard.kinds

    def _make_index(self, path: str, kind: FieldKind, *, replace: bool) -> None:
        edge = self._engine()
        if replace:
            edge.update(UpdateOperation.delete_field_index(path))
        edge.update(UpdateOperation.create_field_index(path, SCHEMA[kind]))
        self._shard.refresh()

    def _scroll(
        self, condition: Filter | None, offset: Any, size: int, payload: Payload  # noqa: ANN401 - the engine's ids
    ) -> tuple[Sequence[Record], Any]:  # fmt: skip
        fields = PayloadSelector.Include(payload) if isinstance(payload, list) else payload
        with self._reading("read nodes") as edge:
            if edge is None:
                return [], None
            return edge.scroll(ScrollRequest(offset=offset, limit=size, filter=condition, with_payload=fields))

    def _vectors(self, point_ids: list[str]) -> Mapping[str, npt.ArrayLike]:
        with self._reading("read vectors") as edge:
            if edge is None:
                return {}
            records = edge.retrieve(list(point_ids), with_payload=False, with_vector=True)
        return {str(record.id): cast("npt.ArrayLike", record.vector) for record in records}

    def _count(self, condition: Filter | None) -> int:
        with self._reading("count the nodes") as edge:
            return 0 if edge is None else edge.count(CountRequest(exact=True, filter=condition))

    def _ask(
        self, sides: Sequence[Side], limit: int, condition: Filter | None, payload: bool
    ) -> list[list[ScoredPoint]]:
        [vector] = sides

        def ask(edge: EdgeShard, params: SearchParams) -> list[ScoredPoint]:
            query = Query.Nearest(cast("list[float]", vector))
            return edge.query(
                QueryRequest(limit=limit, query=query, filter=condition, params=params, with_payload=payload)
            )

        with self._reading("search") as edge:
            if edge is None:
                return [[]]
            if self._shard.approximate:
                found = ask(edge, SearchParams(hnsw_ef=max(_GRAPH_EFFORT, 2 * limit)))
                if len(found) == limit:
                    return [found]
            return [ask(edge, SearchParams(exact=True))]

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[str, str, int | None]]:
        # Copies, deep copies and pickles open the same collection again; a handle cannot be copied.
        return type(self), (self.path, self.collection_name, self.dimension)

    def __copy__(self) -> Self:
        cls, arguments = self.__reduce__()
        return cls(*arguments)

"""A LlamaIndex vector store in this process, on Qdrant Edge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import PrivateAttr

from agentic_retriever.stores.edge.engine import check_collection_name, open_shard
from agentic_retriever.stores.edge.points import (
    Wanted,
    add,
    clear,
    count,
    delete,
    export,
    index_field,
    node_ids,
    nodes,
    optimize,
    pages,
    search,
    search_known,
    select,
    vectors,
)
from agentic_retriever.stores.node_store import NodeStore
from agentic_retriever.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters
    from qdrant_edge import EdgeShard
    from typing_extensions import Self

    from agentic_retriever.stores.edge.engine import ShardLease
    from agentic_retriever.stores.payload import FieldKind
    from agentic_retriever.stores.points import FactT, Hit, KnownPoints, StoreQuery


_WORKERS = 4


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

    _lease: ShardLease = PrivateAttr()

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
        lease = open_shard(Path(path) / name, collection=name, dimension=dimension)
        super().__init__(path=str(path), collection_name=name, dimension=lease.dimension)  # type: ignore[call-arg]  # fields of this class
        self._lease = lease
        self._workers = Workers(_WORKERS, f"vector-store-{name}")

    @classmethod
    def class_name(cls) -> str:
        """Name of the class in LlamaIndex's serialised form.

        Returns:
            The name.
        """
        return "QdrantEdgeVectorStore"

    @property
    def client(self) -> EdgeShard | None:
        """The engine itself; ``None`` while nothing was ever stored."""
        self._lease.check_open()
        return self._lease.engine

    def clear(self) -> None:
        """Delete every node; the dimension stays.

        Raises:
            StoreError: The disk failed.
        """
        clear(self._lease)

    def iter_nodes(self, batch: int = 256) -> Iterator[BaseNode]:
        """Go through every node; as every :class:`NodeStore`."""
        for page in pages(self._lease, None, size=max(1, batch)):
            yield from page

    def node_ids(self) -> list[str]:
        """Return the ids of all nodes, sorted."""
        return node_ids(self._lease)

    def vectors(self, node_ids: Sequence[str]) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Read stored vectors; as every :class:`NodeStore`."""
        return vectors(self._lease, node_ids)

    def count(self, filters: MetadataFilters | None = None) -> int:
        """Count nodes; as every :class:`NodeStore`."""
        with self._lease.reading("count the nodes") as edge:
            wanted = select(filters, kinds=self._lease.kinds)
            return count(edge, wanted) if edge is not None else 0

    def export(self, after: str | None, size: int) -> tuple[list[BaseNode], str | None]:
        """Read a page of nodes together with their vectors; as every :class:`NodeStore`."""
        return export(self._lease, after, size)

    def flush(self) -> None:
        """Bring everything to disk, so that it survives a power cut as well as a crash.

        Raises:
            StoreError: The disk failed.
        """
        self._lease.flush()

    def optimize(self) -> bool:
        """Tidy up deleted nodes and, above the engine's threshold, build a graph (HNSW) for faster, approximate search.

        Takes minutes at 100,000 nodes. Never run by ``add`` or ``query``; searching is exact until it was run.

        Returns:
            Whether there was anything to do.

        Raises:
            StoreError: The disk failed.
        """
        return optimize(self._lease)

    @property
    def _stored_dimension(self) -> int | None:
        return self._lease.dimension

    def _write(
        self, nodes: Sequence[BaseNode], vectors: npt.NDArray[np.float32], payloads: list[dict[str, Any]]
    ) -> None:
        add(self._lease, [node.node_id for node in nodes], vectors, payloads)
        self.dimension = self._lease.dimension

    def _delete(
        self,
        filters: MetadataFilters | None,
        *,
        node_ids: Sequence[str] | None = None,
        doc_ids: Sequence[str] | None = None,
    ) -> None:
        delete(self._lease, filters, node_ids=node_ids, doc_ids=doc_ids)

    def _nearest(self, query: StoreQuery) -> list[Hit]:
        lease = self._lease
        with lease.reading("search") as edge:
            wanted = self._wanted(query)
            if edge is None or query.top_k == 0:
                return []
            return search(edge, query.vector, query.top_k, wanted, approximate=lease.approximate)

    def _nearest_known(self, query: StoreQuery, known: KnownPoints[FactT]) -> list[tuple[FactT, float]]:
        lease = self._lease
        with lease.reading("search") as edge:
            wanted = self._wanted(query)
            if edge is None or query.top_k == 0:
                return []
            if wanted.exact:
                approximate = lease.approximate
                return search_known(edge, query.vector, query.top_k, wanted, known, approximate=approximate)
        return super()._nearest_known(query, known)

    def _wanted(self, query: StoreQuery) -> Wanted:
        kinds = self._lease.kinds
        return select(query.filters, kinds=kinds, node_ids=query.node_ids, doc_ids=query.doc_ids)

    def _read(
        self, filters: MetadataFilters | None, node_ids: Sequence[str] | None, limit: int | None
    ) -> list[BaseNode]:
        return nodes(self._lease, filters, node_ids=node_ids, limit=limit)

    def _index_field(self, field: str, path: str, kind: FieldKind) -> None:
        index_field(self._lease, field, path, kind)

    def _check_open(self) -> None:
        self._lease.check_open()

    def _let_go(self) -> None:
        # The last store of the process to let go closes the files.
        self._lease.close()

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[str, str, int | None]]:
        # Copies, deep copies and pickles open the same collection again; a handle cannot be copied.
        return type(self), (self.path, self.collection_name, self.dimension)

    def __copy__(self) -> Self:
        cls, arguments = self.__reduce__()
        return cls(*arguments)

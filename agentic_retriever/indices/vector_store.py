"""A LlamaIndex vector store in this process, on Qdrant Edge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llama_index.core.bridge.pydantic import Field

from agentic_retriever.concurrency import Workers
from agentic_retriever.errors import InvalidQueryError, StoreError
from agentic_retriever.filters import is_empty
from agentic_retriever.indices import edge_read, edge_search, edge_write
from agentic_retriever.indices.edge_base import LeasedVectorStore
from agentic_retriever.indices.edge_files import check_collection_name
from agentic_retriever.indices.edge_shard import open_shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import numpy.typing as npt
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery, VectorStoreQueryResult

    from agentic_retriever.indices.edge_fields import FieldKind

_WORKERS = 4


class QdrantEdgeVectorStore(LeasedVectorStore):
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

    stores_text: bool = Field(default=True, exclude=True)
    is_embedding_query: bool = Field(default=True, exclude=True)
    flat_metadata: bool = Field(default=False, exclude=True)
    path: str
    collection_name: str = "default"
    dimension: int | None = None

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

    def add(self, nodes: Sequence[BaseNode], **add_kwargs: object) -> list[str]:  # noqa: ARG002 - LlamaIndex's signature
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
            StoreError: The disk failed; the message says how many nodes are stored.
        """
        node_ids = edge_write.add(self._lease, nodes)
        self.dimension = self._lease.dimension
        return node_ids

    def delete(self, ref_doc_id: str, **delete_kwargs: object) -> None:  # noqa: ARG002 - LlamaIndex's signature
        """Delete the nodes of one source document.

        Args:
            ref_doc_id: The document's id. One that is not there is no error.
            **delete_kwargs: Ignored.

        Raises:
            StoreError: The id is empty, or the disk failed.
        """
        if not ref_doc_id:
            message = f"delete() needs a document's id, got {ref_doc_id!r}; to remove everything call clear()"
            raise StoreError(message)
        edge_write.delete(self._lease, None, doc_ids=[ref_doc_id])

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
            message = (
                "delete_nodes() needs node ids or a filter that are not empty, so that nothing is deleted by mistake; "
                "to remove everything call clear()"
            )
            raise StoreError(message)
        edge_write.delete(self._lease, filters, node_ids=node_ids)

    def clear(self) -> None:
        """Delete every node; the dimension stays.

        Raises:
            StoreError: The disk failed.
        """
        edge_write.clear(self._lease)

    def query(self, query: VectorStoreQuery, **kwargs: object) -> VectorStoreQueryResult:
        """Find the nodes nearest to an embedding.

        Args:
            query: ``query_embedding``, ``similarity_top_k`` (0 gives nothing) and, each narrowing the result,
                ``filters``, ``node_ids`` and ``doc_ids``. An empty list gives nothing; only where ``query_str`` is set
                too does an empty ``node_ids`` restrict nothing, as that is what LlamaIndex's own retriever sends.
            **kwargs: None are known.

        Returns:
            Nodes, cosines in [-1, 1] and ids, by falling score and then by id.

        Raises:
            InvalidQueryError: Another mode than the default, no embedding, a bad ``similarity_top_k``, or an unknown
                argument.
            EmbeddingError: The embedding is zero, or has NaN or an infinity.
            EmbeddingMismatchError: It has another dimension than the collection.
            FilterError: The filters cannot be evaluated.
        """
        return edge_read.query(self._lease, query, kwargs)

    def get_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        limit: int | None = None,
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
            message = f"limit is {limit}; allowed are 0 and more, or None for all"
            raise InvalidQueryError(message)
        return edge_read.nodes(self._lease, filters, node_ids=node_ids, limit=limit)

    def iter_nodes(self, batch: int = 256) -> Iterator[BaseNode]:
        """Go through every node without holding all in memory.

        Args:
            batch: How many are read at a time, at least 1.

        Yields:
            The nodes, always in the same order.
        """
        for page in edge_read.pages(self._lease, None, size=max(1, batch)):
            yield from page

    def node_ids(self) -> list[str]:
        """List the ids of all nodes.

        Returns:
            The ids, sorted.
        """
        return edge_read.node_ids(self._lease)

    def vectors(self, node_ids: Sequence[str]) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Read stored vectors.

        Args:
            node_ids: Whose.

        Returns:
            The ids that were found, in the given order without repetition, and their unit vectors ``(n, dim)``.
        """
        return edge_read.vectors(self._lease, node_ids)

    def count(self, filters: MetadataFilters | None = None) -> int:
        """Count nodes.

        Args:
            filters: Only those that satisfy the filters; ``None`` or empty for all.

        Returns:
            How many there are.

        Raises:
            FilterError: The filters cannot be evaluated.
        """
        with self._lease.reading("count the nodes") as edge:
            wanted = edge_search.select(filters, kinds=self._lease.kinds)
            return edge_search.count(edge, wanted) if edge is not None else 0

    def export(self, after: str | None, size: int) -> tuple[list[BaseNode], str | None]:
        """Read a page of nodes together with their vectors; as every :class:`NodeStore`."""
        return edge_read.export(self._lease, after, size)

    def create_payload_index(self, field: str, kind: FieldKind) -> None:
        """Index a metadata field for faster filters.

        From 500 nodes on ``add`` does so by itself for up to 64 fields whose values are of one type.

        Args:
            field: Name of the field.
            kind: ``keyword`` for texts, ``float`` for numbers, ``bool``, or ``datetime`` for ISO 8601 texts. An index
                of another kind on the field is replaced.

        Raises:
            ConfigError: The kind is unknown or the field's name cannot be indexed.
            StoreError: Nothing was ever stored, or the disk failed.
        """
        edge_write.create_payload_index(self._lease, field, kind)

    def optimize(self) -> bool:
        """Tidy up deleted nodes and, above the engine's threshold, build a graph (HNSW) for faster, approximate search.

        Takes minutes at 100,000 nodes. Never run by ``add`` or ``query``; searching is exact until it was run.

        Returns:
            Whether there was anything to do.

        Raises:
            StoreError: The disk failed.
        """
        return edge_write.optimize(self._lease)

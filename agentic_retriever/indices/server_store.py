"""A LlamaIndex vector store on a Qdrant server or cluster.

Built on ``qdrant-client`` and not on ``llama-index-vector-stores-qdrant``, whose ``QdrantVectorStore`` calls the server
from its constructor, shows the API key in its ``repr``, takes an empty list of ids for "everything" when reading and
when deleting, cuts a list of nodes at 9,999, fails a whole query for one foreign payload, and maps filters to another
meaning than ours. The layout is the same: payloads, and the names of the vectors. So that class, and any application
that uses it, can read these collections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.vector_stores.types import VectorStoreQueryResult
from qdrant_client import models

from agentic_retriever.concurrency import Workers
from agentic_retriever.errors import ConfigError, InvalidQueryError, StoreError
from agentic_retriever.filters import is_empty
from agentic_retriever.indices import server_read
from agentic_retriever.indices.edge_fields import FieldKind, payload_path
from agentic_retriever.indices.edge_payload import RESERVED_FIELDS, node_payload, point_id, unit_vector, unit_vectors
from agentic_retriever.indices.edge_read import checked_top_k, is_unrestricted
from agentic_retriever.indices.node_store import NodeStore
from agentic_retriever.indices.node_text import embedded_text
from agentic_retriever.indices.point_ranking import read_nodes
from agentic_retriever.indices.server_collection import DENSE_VECTOR, SPARSE_VECTOR, ServerCollection
from agentic_retriever.indices.server_search import Side, scan, search, select
from agentic_retriever.indices.server_words import ServerWords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery
    from qdrant_client import QdrantClient
    from typing_extensions import Self

    from agentic_retriever.indices.qdrant_link import QdrantLink
    from agentic_retriever.indices.sparse import SparseBM25

_WORKERS: Final = 8
_STEP: Final = 128  # points in one request


class QdrantServerVectorStore(NodeStore):
    """Nodes and their vectors in a collection of a Qdrant server, with metadata filters that the server checks.

    Filters mean what :mod:`agentic_retriever.filters` says: they are pushed down as far as the server's meaning is the
    same, and every hit is checked once more. Safe for many threads and many processes. What ``add`` has returned is in
    the server's write-ahead log. Making the store calls nobody.

    Attributes:
        collection_name: Name of the collection; made with the first nodes.
        dimension: Length of the vectors; ``None`` until it is known.

    Example:
        >>> link = QdrantLink("http://localhost:6333")  # doctest: +SKIP
        >>> with QdrantServerVectorStore(link, "papers") as store:
        ...     index = VectorStoreIndex.from_vector_store(store, embed_model=embed_model)
    """

    stores_text: bool = Field(default=True, exclude=True)
    is_embedding_query: bool = Field(default=True, exclude=True)
    flat_metadata: bool = Field(default=False, exclude=True)

    _collection: ServerCollection = PrivateAttr()
    _words: ServerWords | None = PrivateAttr()
    _options: dict[str, Any] = PrivateAttr()

    def __init__(
        self,
        link: QdrantLink,
        collection_name: str,
        dimension: int | None = None,
        *,
        keywords: bool = False,
        sparse: SparseBM25 | None = None,
        on_fitted: Callable[[SparseBM25], None] | None = None,
        **layout: int,
    ) -> None:
        """Describe the store.

        Args:
            link: The server.
            collection_name: Name of the collection.
            dimension: Length of the vectors; by default what is stored, or what the first vectors have.
            keywords: Whether nodes get a sparse vector, too, for BM25.
            sparse: How texts become sparse vectors; by default fitted on the first nodes that are added.
            on_fitted: Told how, once it was fitted.
            **layout: ``shards`` and ``replicas`` of a new collection; 0 leaves them to the server.
        """
        super().__init__(collection_name=collection_name, dimension=dimension)  # type: ignore[call-arg]  # fields of this class
        self._collection = ServerCollection(link, collection_name, dimension, keywords=keywords, **layout)
        self._words = ServerWords(self._collection, sparse, on_fitted) if keywords else None
        self._options = {"keywords": keywords, "on_fitted": on_fitted, **layout}
        self._workers = Workers(_WORKERS, f"vector-store-{collection_name}")

    @classmethod
    def class_name(cls) -> str:
        """Name of the class in LlamaIndex's serialised form.

        Returns:
            The name.
        """
        return "QdrantServerVectorStore"

    @property
    def client(self) -> QdrantClient:
        """The client itself, for what this class does not offer."""
        return self._collection.call("connect", lambda client: client)

    @property
    def collection(self) -> ServerCollection:
        """The collection on the server."""
        return self._collection

    @property
    def words(self) -> ServerWords | None:
        """Search by words, and by both; ``None`` in a store that was not made with ``keywords=True``."""
        return self._words

    def add(self, nodes: Sequence[BaseNode], **add_kwargs: object) -> list[str]:  # noqa: ARG002 - LlamaIndex's signature
        """Store nodes with their embeddings; a node whose id is stored already is replaced.

        Everything is checked before the first node is sent.

        Args:
            nodes: Nodes that have embeddings.
            **add_kwargs: Ignored.

        Returns:
            The nodes' ids, in their order.

        Raises:
            IndexingError: A node cannot be stored; the message names it and the field.
            EmbeddingError: An embedding is missing, zero, or has NaN or an infinity.
            EmbeddingMismatchError: An embedding has another dimension than the collection.
            StoreError: The server failed; the message says how many nodes are stored.
        """
        self._check_open()
        if not nodes:
            return []
        payloads = [node_payload(node) for node in nodes]
        vectors = unit_vectors(nodes)
        self._collection.ensure(vectors.shape[1])
        self.dimension = self._collection.dimension
        self._collection.index_fields(payloads)
        points = [
            models.PointStruct(id=point_id(node.node_id), vector=vector, payload=payload)
            for node, vector, payload in zip(nodes, self._vectors(nodes, vectors), payloads, strict=True)
        ]
        for start in range(0, len(points), _STEP):
            self._upsert(points[start : start + _STEP], stored=start, total=len(points))
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: object) -> None:  # noqa: ARG002 - LlamaIndex's signature
        """Delete the nodes of one source document; as ``QdrantEdgeVectorStore.delete``."""
        if not ref_doc_id:
            message = f"delete() needs a document's id, got {ref_doc_id!r}; to remove everything call clear()"
            raise StoreError(message)
        server_read.delete(self._collection, select(None, {}, doc_ids=[ref_doc_id]))

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: object,  # noqa: ARG002 - LlamaIndex's signature
    ) -> None:
        """Delete the nodes that have one of the ids *and* satisfy the filters.

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
        server_read.delete(self._collection, select(filters, self._collection.kinds(), node_ids=node_ids))

    def clear(self) -> None:
        """Delete every node; the collection stays."""
        server_read.clear(self._collection)

    def query(self, query: VectorStoreQuery, **kwargs: object) -> VectorStoreQueryResult:
        """Find the nodes nearest to an embedding.

        Args:
            query: As for ``QdrantEdgeVectorStore.query``.
            **kwargs: None are known.

        Returns:
            Nodes, cosines in [-1, 1] and ids, by falling score and then by id.

        Raises:
            InvalidQueryError: Another mode than the default, no embedding, a bad ``similarity_top_k``, or an unknown
                argument.
            EmbeddingError: The embedding is zero, or has NaN or an infinity.
            EmbeddingMismatchError: It has another dimension than the collection.
            FilterError: The filters cannot be evaluated.
            StoreError: The server failed.
        """
        self._check_open()
        top_k = checked_top_k(query, kwargs)
        vector = unit_vector(query.query_embedding or [], self._collection.dimension)
        node_ids = None if is_unrestricted(query) else query.node_ids
        wanted = select(query.filters, self._collection.kinds(), node_ids=node_ids, doc_ids=query.doc_ids)
        nothing_asked = top_k == 0 or node_ids == [] or query.doc_ids == []
        hits = [] if nothing_asked else search(self._collection, [Side.dense(vector.tolist())], top_k, wanted)[0]
        return VectorStoreQueryResult(
            nodes=[hit.node for hit in hits],
            similarities=[hit.score for hit in hits],
            ids=[hit.node.node_id for hit in hits],
        )

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, limit: int | None = None
    ) -> list[BaseNode]:
        """Read nodes, all of them however many there are; as ``QdrantEdgeVectorStore.get_nodes``."""
        if limit is not None and limit < 0:
            message = f"limit is {limit}; allowed are 0 and more, or None for all"
            raise InvalidQueryError(message)
        return server_read.nodes(self._collection, filters, node_ids, limit)

    def iter_nodes(self, batch: int = 256) -> Iterator[BaseNode]:
        """Yield every node in the order of the server's ids: that of a hash, unless node ids are UUIDs."""
        for records in scan(self._collection, select(None, {}), size=max(1, batch), whole=True):
            yield from read_nodes(records)

    def node_ids(self) -> list[str]:
        """Return the ids of all nodes, sorted."""
        return server_read.node_ids(self._collection)

    def vectors(self, node_ids: Sequence[str]) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Return the ids that were found, in the given order, and their unit vectors ``(n, dim)``."""
        return server_read.vectors(self._collection, node_ids, self._collection.dimension or 0)

    def count(self, filters: MetadataFilters | None = None) -> int:
        """Return how many nodes there are, or satisfy the filters."""
        return server_read.count(self._collection, filters)

    def export(self, after: str | None, size: int) -> tuple[list[BaseNode], str | None]:
        """Read a page of nodes together with their vectors; as every :class:`NodeStore`."""
        return server_read.export(self._collection, after, size)

    def create_payload_index(self, field: str, kind: FieldKind) -> None:
        """Index a metadata field; as ``QdrantEdgeVectorStore.create_payload_index``."""
        if kind not in get_args(FieldKind):
            message = f"unknown kind of payload index {kind!r:.40}; allowed: {', '.join(get_args(FieldKind))}"
            raise ConfigError(message)
        if payload_path(field) is None or field in RESERVED_FIELDS:
            message = f"the field {field!r:.60} cannot be indexed; its name is empty, reserved, or has a quote"
            raise ConfigError(message)
        self._collection.kinds()
        self._collection.index_field(field, kind)

    def flush(self) -> None:
        """Do nothing: what a write has returned is in the server's log."""
        self._check_open()

    def _upsert(self, points: list[models.PointStruct], *, stored: int, total: int) -> None:
        try:
            self._collection.call("add nodes", lambda client: client.upsert(self.collection_name, points, wait=True))
        except StoreError as err:
            if not stored:
                raise
            message = f"{err}; {stored:,} of the {total:,} nodes are stored, add all again to complete them"
            raise type(err)(message) from err

    def _vectors(self, nodes: Sequence[BaseNode], rows: npt.NDArray[np.float32]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{DENSE_VECTOR: row.tolist()} for row in rows]
        if self._words is not None:
            texts = [embedded_text(node) for node in nodes]
            for vectors, sparse in zip(found, self._words.vectors(texts), strict=True):
                if sparse.indices:
                    vectors[SPARSE_VECTOR] = sparse
        return found

    def _check_open(self) -> None:
        self._collection.check_open()

    def _let_go(self) -> None:
        self._collection.close()

    def __copy__(self) -> Self:
        sparse = None if self._words is None else self._words.sparse
        return type(self)(self._collection.link, self.collection_name, self.dimension, sparse=sparse, **self._options)

    def __reduce__(self) -> Any:  # noqa: ANN401 - never returns
        raise TypeError("a store on a server cannot be pickled, for that would write down its key; make it anew")

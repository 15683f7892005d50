"""A LlamaIndex vector store on a Qdrant server or cluster.

Built on ``qdrant-client`` and not on ``llama-index-vector-stores-qdrant``, whose ``QdrantVectorStore`` calls the server
from its constructor, shows the API key in its ``repr``, takes an empty list of ids for "everything" when reading and
when deleting, cuts a list of nodes at 9,999, fails a whole query for one foreign payload, and maps filters to another
meaning than ours. The layout is the same: payloads, and the names of the vectors. So that class, and any application
that uses it, can read these collections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from llama_index.core.bridge.pydantic import PrivateAttr
from qdrant_client import models

from agentic_retriever.stores.node_store import NodeStore
from agentic_retriever.stores.node_text import embedded_text
from agentic_retriever.stores.payload import point_id
from agentic_retriever.stores.points import StoredCount, read_nodes
from agentic_retriever.stores.server.collection import DENSE_VECTOR, SPARSE_VECTOR, ServerCollection
from agentic_retriever.stores.server.searching import (
    ServerWords,
    Side,
    clear,
    count,
    delete,
    export,
    node_ids,
    nodes,
    scan,
    search,
    select,
    vectors,
)
from agentic_retriever.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters
    from qdrant_client import QdrantClient
    from typing_extensions import Self

    from agentic_retriever.stores.payload import FieldKind
    from agentic_retriever.stores.points import Hit, StoreQuery
    from agentic_retriever.stores.server.link import QdrantLink
    from agentic_retriever.stores.sparse import SparseBM25


_WORKERS: Final = 8
_STEP: Final = 128  # points in one request


class QdrantServerVectorStore(NodeStore):
    """Nodes and their vectors in a collection of a Qdrant server, with metadata filters that the server checks.

    Filters mean what :mod:`agentic_retriever.filters` says: they are pushed down as far as the server's meaning is the
    same, and every hit is checked once more. Safe for many threads and many processes. What ``add`` has returned is in
    the server's write-ahead log. Making the store calls nobody.

    Example:
        >>> link = QdrantLink("http://localhost:6333")  # doctest: +SKIP
        >>> with QdrantServerVectorStore(link, "papers") as store:
        ...     index = VectorStoreIndex.from_vector_store(store, embed_model=embed_model)
    """

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
        """Describe the store."""
        super().__init__(collection_name=collection_name, dimension=dimension)
        self._collection = ServerCollection(link, collection_name, dimension, keywords=keywords, **layout)
        self._words = ServerWords(self._collection, sparse, on_fitted) if keywords else None
        self._options = {"keywords": keywords, "on_fitted": on_fitted, **layout}
        self._workers = Workers(_WORKERS, f"vector-store-{collection_name}")

    @classmethod
    def class_name(cls) -> str:
        """Name of the class in LlamaIndex's serialised form."""
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

    def clear(self) -> None:
        """Delete every node; the collection stays."""
        clear(self._collection)

    def iter_nodes(self, batch: int = 256) -> Iterator[BaseNode]:
        """Yield every node in the order of the server's ids: that of a hash, unless node ids are UUIDs."""
        for records in scan(self._collection, select(None, {}), size=max(1, batch), whole=True):
            yield from read_nodes(records)

    def node_ids(self) -> list[str]:
        """Return the ids of all nodes, sorted."""
        return node_ids(self._collection)

    def vectors(self, node_ids: Sequence[str]) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Return the ids that were found, in the given order, and their unit vectors ``(n, dim)``."""
        return vectors(self._collection, node_ids, self._collection.dimension or 0)

    def count(self, filters: MetadataFilters | None = None) -> int:
        """Return how many nodes there are, or satisfy the filters."""
        return count(self._collection, filters)

    def export(self, after: str | None, size: int) -> tuple[list[BaseNode], str | None]:
        """Read a page of nodes together with their vectors; as every :class:`NodeStore`."""
        return export(self._collection, after, size)

    def flush(self) -> None:
        """Do nothing: what a write has returned is in the server's log."""
        self._check_open()

    @property
    def _stored_dimension(self) -> int | None:
        return self._collection.dimension

    def _write(
        self, nodes: Sequence[BaseNode], vectors: npt.NDArray[np.float32], payloads: list[dict[str, Any]]
    ) -> None:
        self._collection.ensure(vectors.shape[1])
        self.dimension = self._collection.dimension
        self._collection.index_fields(payloads)
        points = [
            models.PointStruct(id=point_id(node.node_id), vector=vector, payload=payload)
            for node, vector, payload in zip(nodes, self._vectors(nodes, vectors), payloads, strict=True)
        ]
        with StoredCount(len(points)) as stored:
            for start in range(0, len(points), _STEP):
                step = points[start : start + _STEP]
                self._upsert(step)
                stored.add(len(step))

    def _upsert(self, points: list[models.PointStruct]) -> None:
        self._collection.call("add nodes", lambda client: client.upsert(self.collection_name, points, wait=True))

    def _vectors(self, nodes: Sequence[BaseNode], rows: npt.NDArray[np.float32]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{DENSE_VECTOR: row.tolist()} for row in rows]
        if self._words is not None:
            texts = [embedded_text(node) for node in nodes]
            for vectors, sparse in zip(found, self._words.vectors(texts), strict=True):
                if sparse.indices:
                    vectors[SPARSE_VECTOR] = sparse
        return found

    def _delete(
        self,
        filters: MetadataFilters | None,
        *,
        node_ids: Sequence[str] | None = None,
        doc_ids: Sequence[str] | None = None,
    ) -> None:
        kinds = {} if filters is None else self._collection.kinds()
        delete(self._collection, select(filters, kinds, node_ids=node_ids, doc_ids=doc_ids))

    def _nearest(self, query: StoreQuery) -> list[Hit]:
        kinds = self._collection.kinds()
        wanted = select(query.filters, kinds, node_ids=query.node_ids, doc_ids=query.doc_ids)
        side = Side.dense(query.vector.tolist())
        return search(self._collection, [side], query.top_k, wanted)[0] if query.top_k else []

    def _read(
        self, filters: MetadataFilters | None, node_ids: Sequence[str] | None, limit: int | None
    ) -> list[BaseNode]:
        return nodes(self._collection, filters, node_ids, limit)

    def _index_field(self, field: str, path: str, kind: FieldKind) -> None:
        self._collection.kinds()  # which index there is, perhaps of another kind
        self._collection.index_field(field, path, kind)

    def _check_open(self) -> None:
        self._collection.check_open()

    def _let_go(self) -> None:
        self._collection.close()

    def __copy__(self) -> Self:
        sparse = None if self._words is None else self._words.sparse
        return type(self)(self._collection.link, self.collection_name, self.dimension, sparse=sparse, **self._options)

    def __reduce__(self) -> Any:  # noqa: ANN401 - never returns
        raise TypeError("a store on a server cannot be pickled, for that would write down its key; make it anew")

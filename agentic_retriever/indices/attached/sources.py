"""What is read of an attached index: all its nodes, single ones, their vectors, and whether anything has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from llama_index.core.schema import BaseNode, Document, MetadataMode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.simple import SimpleVectorStore

from agentic_retriever.stores.edge.store import QdrantEdgeVectorStore

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from llama_index.core.indices.base import BaseIndex
    from llama_index.core.vector_stores.types import BasePydanticVectorStore
    from llama_index.vector_stores.qdrant import QdrantVectorStore

    from agentic_retriever.stores.node_store import NodeStore


Vectors: TypeAlias = "tuple[list[str], npt.NDArray[np.float32]]"
"""Ids, and their unit vectors ``(n, dimension)`` in the same order."""


class NodeSource(Protocol):
    """Where the nodes of an attached index are. Nothing here writes; foreign errors come out as they are."""

    @property
    def takes_ids(self) -> bool:
        """Whether the vector store restricts a query to node ids, as it should."""

    def count(self) -> int:
        """Return the number of nodes, without reading them where that can be helped."""

    def nodes(self) -> Iterable[BaseNode]:
        """Go through every node."""

    def get(self, node_ids: Sequence[str]) -> list[BaseNode]:
        """Read nodes by id; those that are not there are left out."""

    def source_text(self, doc_id: str) -> str | None:
        """Return the text of a source document, where the index has kept it."""

    def vectors(self, node_ids: Sequence[str]) -> Vectors:
        """Read stored vectors at length 1; none where the store does not give them away."""

    def node_id(self, stored_id: str) -> str:
        """Return the id of the node that the vector store knows under an id of its own."""

    def mark(self) -> Hashable:
        """Return what tells most changes, in no time."""

    def imprint(self) -> Hashable:
        """Return what tells every change that can be seen; asked for once a second at most, on large indexes less."""


class NoNodes:
    """The source of an index that tells nothing of its nodes."""

    takes_ids = False

    def count(self) -> int:
        """Return 0."""
        return 0

    def nodes(self) -> Iterable[BaseNode]:
        """Go through nothing."""
        return ()

    def get(self, node_ids: Sequence[str]) -> list[BaseNode]:  # noqa: ARG002 - of the protocol
        """Read nothing."""
        return []

    def source_text(self, doc_id: str) -> str | None:  # noqa: ARG002 - of the protocol
        """Return nothing."""
        return None

    def vectors(self, node_ids: Sequence[str]) -> Vectors:  # noqa: ARG002 - of the protocol
        """Read nothing."""
        return unit_rows({})

    def node_id(self, stored_id: str) -> str:
        """Return the id."""
        return stored_id

    def mark(self) -> Hashable:
        """Nothing changes."""
        return None

    def imprint(self) -> Hashable:
        """Nothing changes."""
        return None


def unit_rows(known: Mapping[str, Sequence[float]]) -> Vectors:
    """Bring vectors to length 1; those that are zero, not finite, or not as long as the first are left out."""
    rows: dict[str, npt.NDArray[np.float32]] = {}
    dimension = None
    for node_id, vector in known.items():
        row = np.asarray(vector, dtype=np.float64)
        norm = float(np.linalg.norm(row)) if row.ndim == 1 and row.size else 0.0
        if not np.isfinite(norm) or norm == 0 or len(row) != (dimension or len(row)):
            continue
        dimension = len(row)
        rows[node_id] = (row / norm).astype(np.float32)
    if not rows:
        return [], np.empty((0, 0), dtype=np.float32)
    return list(rows), np.stack(list(rows.values()))


# The nodes of an index that keeps them in a LlamaIndex docstore.

_PAGE = 1_000


def listed_ids(struct: object) -> list[str] | None:
    """Return the node ids that an index structure lists, without repeats; ``None`` for a structure that lists none."""
    for field in ("nodes_dict", "all_nodes"):  # by vector id, by place in the tree
        found = getattr(struct, field, None)
        if isinstance(found, dict):
            return list(dict.fromkeys(found.values()))
    nodes = getattr(struct, "nodes", None)
    if isinstance(nodes, list):
        return list(dict.fromkeys(nodes))
    summarised = getattr(struct, "node_id_to_summary_id", None)
    if isinstance(summarised, dict):
        return list(summarised)
    table = getattr(struct, "table", None)  # node ids by keyword
    if isinstance(table, dict):
        return sorted(set().union(*table.values()))
    return None


class DocstoreSource:
    """Reads the nodes that an index lists from its docstore."""

    takes_ids = False

    def __init__(self, index: BaseIndex[Any], vector_store: object = None) -> None:
        self._index = index
        self._vectors = vector_store if isinstance(vector_store, SimpleVectorStore) else None
        self.takes_ids = self._vectors is not None

    def count(self) -> int:
        """Return how many nodes are listed."""
        return len(self._node_ids())

    def nodes(self) -> Iterable[BaseNode]:
        """Go through the nodes that are listed and still there."""
        node_ids = self._node_ids()
        for at in range(0, len(node_ids), _PAGE):
            yield from self.get(node_ids[at : at + _PAGE])

    def get(self, node_ids: Sequence[str]) -> list[BaseNode]:
        """Read nodes."""
        found: list[BaseNode | None] = [*self._index.docstore.get_nodes(list(node_ids), raise_error=False)]
        return [node for node in found if isinstance(node, BaseNode)]

    def source_text(self, doc_id: str) -> str | None:
        """Return the text of a document that was put into the docstore itself, as ingestion pipelines do."""
        found = self._index.docstore.get_document(doc_id, raise_error=False)
        return found.get_content(metadata_mode=MetadataMode.NONE) if isinstance(found, Document) else None

    def vectors(self, node_ids: Sequence[str]) -> Vectors:
        """Read vectors of the in-memory vector store."""
        held = {} if self._vectors is None else self._vectors.data.embedding_dict
        return unit_rows({i: vector for i in node_ids if (vector := held.get(i)) is not None})

    def node_id(self, stored_id: str) -> str:
        """Look the id up in the index structure."""
        known = getattr(self._index.index_struct, "nodes_dict", None)
        return str(known.get(stored_id, stored_id)) if isinstance(known, dict) else stored_id

    def mark(self) -> Hashable:
        """Number of nodes and of vectors, and the hash of the last node."""
        known = getattr(self._index.index_struct, "nodes_dict", None)
        if not isinstance(known, dict):
            return None
        last = next(reversed(known.values()), None)
        told = self._index.docstore.get_document_hash(last) if last is not None and self._is_local() else None
        return len(known), last, told, -1 if self._vectors is None else len(self._vectors.data.embedding_dict)

    def imprint(self) -> Hashable:
        """Ids of all nodes, with their hashes where the docstore is in memory."""
        node_ids, docstore = self._node_ids(), self._index.docstore
        if not self._is_local():
            return hash(tuple(node_ids))
        return hash(tuple((node_id, docstore.get_document_hash(node_id)) for node_id in node_ids))

    def _node_ids(self) -> list[str]:
        found = listed_ids(self._index.index_struct)
        if found is None:
            found = [i for i, node in self._index.docstore.docs.items() if not isinstance(node, Document)]
        if self._vectors is None:
            return found
        # Nodes that were deleted from the vector store alone are still listed.
        held = self._vectors.data.embedding_dict
        known = getattr(self._index.index_struct, "nodes_dict", None)
        stored = {known.get(i, i) for i in held} if isinstance(known, dict) else set(held)
        return [i for i in found if i in stored]

    def _is_local(self) -> bool:
        return isinstance(self._index.docstore, SimpleDocumentStore)


# The nodes of an index whose vector store keeps their texts.

_PAGE_STORE_SOURCES = 256


class _StoreSource:
    """What is the same for all stores that keep texts."""

    def source_text(self, doc_id: str) -> str | None:  # noqa: ARG002 - of the protocol
        """Return nothing: vector stores keep nodes, not documents."""
        return None

    def node_id(self, stored_id: str) -> str:
        """Return the id: such stores use the nodes' own."""
        return stored_id


class OwnStoreSource(_StoreSource):
    """Reads the nodes of a vector store of this package, in this process or on a server."""

    takes_ids = True

    def __init__(self, store: NodeStore) -> None:
        self._store = store
        self._is_local = isinstance(store, QdrantEdgeVectorStore)

    def count(self) -> int:
        """Return the number of nodes."""
        return self._store.count()

    def nodes(self) -> Iterable[BaseNode]:
        """Go through every node."""
        return self._store.iter_nodes()

    def get(self, node_ids: Sequence[str]) -> list[BaseNode]:
        """Read nodes."""
        return self._store.get_nodes(list(node_ids)) if node_ids else []

    def vectors(self, node_ids: Sequence[str]) -> Vectors:
        """Read vectors."""
        return self._store.vectors(node_ids)

    def mark(self) -> Hashable:
        """Number of nodes; nothing for a server, which takes too long for every look."""
        return self._store.count() if self._is_local else None

    def imprint(self) -> Hashable:
        """Ids of all nodes; on a server, their number."""
        return hash(tuple(self._store.node_ids())) if self._is_local else self._store.count()


class QdrantSource(_StoreSource):
    """Reads the nodes of a Qdrant collection page by page, since ``get_nodes`` stops at 9,999."""

    takes_ids = True

    def __init__(self, store: QdrantVectorStore) -> None:
        self._store = store

    def count(self) -> int:
        """Return the number of points; 0 while there is no collection."""
        client, name = self._store.client, self._store.collection_name
        return int(client.count(name, exact=True).count) if client.collection_exists(name) else 0

    def nodes(self) -> Iterator[BaseNode]:
        """Go through every point."""
        client, name = self._store.client, self._store.collection_name
        offset: Any = None
        while client.collection_exists(name):
            points, offset = client.scroll(
                name, limit=_PAGE_STORE_SOURCES, offset=offset, with_payload=True, with_vectors=False
            )
            yield from self._read(points)
            if offset is None:
                return

    def get(self, node_ids: Sequence[str]) -> list[BaseNode]:
        """Read nodes."""
        return self._read(self._points(node_ids, with_vectors=False))

    def vectors(self, node_ids: Sequence[str]) -> Vectors:
        """Read vectors."""
        nodes = self._read(self._points(node_ids, with_vectors=True))
        return unit_rows({node.node_id: node.embedding for node in nodes if node.embedding is not None})

    def mark(self) -> Hashable:
        """Nothing: asking a server takes too long for every look."""
        return None

    def imprint(self) -> Hashable:
        """Number of points."""
        return self.count()

    def _points(self, node_ids: Sequence[str], *, with_vectors: bool) -> list[Any]:
        client, name = self._store.client, self._store.collection_name
        if not node_ids or not client.collection_exists(name):
            return []
        found: list[Any] = []
        for at in range(0, len(node_ids), _PAGE_STORE_SOURCES):
            page = list(node_ids[at : at + _PAGE_STORE_SOURCES])
            found += client.retrieve(name, page, with_payload=True, with_vectors=with_vectors)
        return found

    def _read(self, points: Sequence[Any]) -> list[BaseNode]:
        return list(self._store.parse_to_query_result(list(points)).nodes or ())


class ListedSource(_StoreSource):
    """Reads the nodes of any other store that lists them, which is to be checked for being complete."""

    takes_ids = False

    def __init__(self, store: BasePydanticVectorStore) -> None:
        self._store = store

    def count(self) -> int:
        """Return how many nodes the store lists."""
        return len(self._listed())

    def nodes(self) -> Iterable[BaseNode]:
        """Go through what the store lists."""
        return self._listed()

    def get(self, node_ids: Sequence[str]) -> list[BaseNode]:
        """Read nodes; stores that do not look at the ids give more, which are left out."""
        if not node_ids:
            return []
        wanted = set(node_ids)
        given: list[BaseNode | None] = [*self._store.get_nodes(node_ids=list(node_ids))]
        found = {node.node_id: node for node in given if node is not None}
        return [found[i] for i in dict.fromkeys(node_ids) if i in wanted and i in found]

    def vectors(self, node_ids: Sequence[str]) -> Vectors:
        """Read the vectors that the store hands out with its nodes."""
        return unit_rows({node.node_id: node.embedding for node in self.get(node_ids) if node.embedding is not None})

    def mark(self) -> Hashable:
        """Nothing: listing takes too long for every look."""
        return None

    def imprint(self) -> Hashable:
        """Nothing: what such a store tells of changes is not known."""
        return None

    def _listed(self) -> list[BaseNode]:
        given: list[BaseNode | None] = [*self._store.get_nodes()]
        return [node for node in given if node is not None]

"""The nodes of an index whose vector store keeps their texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentic_retriever.indices.attached.sources import Vectors, unit_rows
from agentic_retriever.indices.vector_store import QdrantEdgeVectorStore

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import BasePydanticVectorStore
    from llama_index.vector_stores.qdrant import QdrantVectorStore

    from agentic_retriever.indices.node_store import NodeStore

_PAGE = 256


class _StoreSource:
    """What is the same for all stores that keep texts."""

    def source_text(self, doc_id: str) -> str | None:  # noqa: ARG002 - of the protocol
        """Return nothing: vector stores keep nodes, not documents."""
        return None

    def node_id(self, stored_id: str) -> str:
        """Return the id: such stores use the nodes' own."""
        return stored_id


class OwnStoreSource(_StoreSource):
    """Reads the nodes of a vector store of this package, in this process or on a server.

    Args:
        store: The store.
    """

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
    """Reads the nodes of a Qdrant collection page by page, since ``get_nodes`` stops at 9,999.

    Args:
        store: The store, with a client that is not async.
    """

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
            points, offset = client.scroll(name, limit=_PAGE, offset=offset, with_payload=True, with_vectors=False)
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
        for at in range(0, len(node_ids), _PAGE):
            page = list(node_ids[at : at + _PAGE])
            found += client.retrieve(name, page, with_payload=True, with_vectors=with_vectors)
        return found

    def _read(self, points: Sequence[Any]) -> list[BaseNode]:
        return list(self._store.parse_to_query_result(list(points)).nodes or ())


class ListedSource(_StoreSource):
    """Reads the nodes of any other store that lists them, which is to be checked for being complete.

    Args:
        store: The store.
    """

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

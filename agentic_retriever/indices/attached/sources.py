"""What somebody hands over to be attached, what of it can be used, and where its nodes are read."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.vector_store import VectorStoreIndex
from llama_index.core.schema import BaseNode, Document, MetadataMode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery

from agentic_retriever.errors import IndexingError
from agentic_retriever.stores.edge import QdrantEdgeVectorStore
from agentic_retriever.stores.node_store import NodeStore
from agentic_retriever.threads import guarded

if TYPE_CHECKING:
    from llama_index.vector_stores.qdrant import QdrantVectorStore

logger = logging.getLogger(__name__)

MAX_NODES: Final = 200_000  # indexes with more nodes are not read into memory; they are asked as a retriever is
_CHECKED_AT_MOST: Final = 10_000
_PAGE: Final = 256

Vectors: TypeAlias = "tuple[list[str], npt.NDArray[np.float32]]"  # ids, and their unit vectors (n, dimension) in order


@dataclass(frozen=True, slots=True)
class Recognised:
    kind: str
    source: NodeSource | None = None  # All its nodes, or None where they cannot be listed
    vector_store: BasePydanticVectorStore | None = None  # Where they are searched by vectors, or None
    embedding: BaseEmbedding | None = None  # The model that these come from, or None
    retriever: BaseRetriever | BaseQueryEngine | None = None


def recognise(name: str, given: object) -> Recognised:
    kind = type(given).__name__
    if isinstance(given, VectorStoreIndex):
        return _vector_index(name, given, kind)
    if isinstance(given, BaseIndex):
        return _other_index(name, given, kind)
    if isinstance(given, BaseQueryEngine) and type(given).retrieve is BaseQueryEngine.retrieve:
        raise IndexingError(
            f"index {name!r}: a {kind} cannot retrieve without answering; register its retriever, its index, or a "
            "RetrieverQueryEngine"
        )
    if isinstance(given, (BaseQueryEngine, BaseRetriever)):
        return Recognised(kind, retriever=given)
    is_path = isinstance(given, str) or hasattr(given, "__fspath__")
    hint = "; a path is a source: add_index(name, path)" if is_path else ""
    raise IndexingError(f"index {name!r} must be a LlamaIndex index, query engine or retriever, got {kind}{hint}")


def _vector_index(name: str, index: VectorStoreIndex, kind: str) -> Recognised:
    # There is no public way to the model; LlamaIndex's own retrievers read it like this.
    store, embedding = index.vector_store, getattr(index, "_embed_model", None)
    embedding = embedding if isinstance(embedding, BaseEmbedding) else None
    source = _source(name, index, store)
    is_listed = isinstance(source, ListedSource)
    known = _complete(name, source, store, embedding) if is_listed else guarded(f"reading index {name}", source.count)
    if known is None or known > MAX_NODES:
        if embedding is None:
            raise IndexingError(
                f"index {name!r}: this {kind} has no embedding model and its nodes cannot be listed; give it one: "
                "VectorStoreIndex.from_vector_store(store, embed_model=...)"
            )
        return Recognised(kind, retriever=index.as_retriever())
    if isinstance(source, DocstoreSource):
        _check_texts(name, source, known)
    if embedding is None:
        logger.warning("index %r has no embedding model, so it is searched by words alone", name)
    return Recognised(kind, source=source, vector_store=None if embedding is None else store, embedding=embedding)


def _other_index(name: str, index: BaseIndex[Any], kind: str) -> Recognised:
    """Take an index that is not searched by vectors, such as a ``SummaryIndex``, for its nodes."""
    source = DocstoreSource(index)
    known = guarded(f"reading index {name}", source.count)
    if not known and listed_ids(index.index_struct) is None:
        raise IndexingError(f"index {name!r}: the nodes of a {kind} cannot be listed; register its retriever instead")
    _check_texts(name, source, known)
    return Recognised(kind, source=source)


def _source(name: str, index: VectorStoreIndex, store: BasePydanticVectorStore) -> NodeSource:
    if isinstance(store, NodeStore):
        return OwnStoreSource(store)
    if type(store).__name__ == "QdrantVectorStore":  # imported by whoever made it, so that others need not have it
        if getattr(store, "_client", None) is None:
            what = f"index {name!r}: the QdrantVectorStore has an async client only; give it a client= too"
            raise IndexingError(what)
        return QdrantSource(store)  # type: ignore[arg-type]  # by its name
    if not store.stores_text or index.index_struct.nodes_dict:
        return DocstoreSource(index, store)
    return ListedSource(store)


def _complete(
    name: str, source: NodeSource, store: BasePydanticVectorStore, embedding: BaseEmbedding | None
) -> int | None:
    """Return how many nodes a store lists, or ``None`` where it does not list all, or reads none of them by its id."""
    try:
        listed = {node.node_id for node in source.nodes()}
        if embedding is None or len(listed) > _CHECKED_AT_MOST or (listed and not source.get([min(listed)])):
            return None
        query = VectorStoreQuery(query_embedding=embedding.get_query_embedding(name), similarity_top_k=len(listed) + 1)
        result = store.query(query)
    except Exception as err:  # noqa: BLE001 - the seam to vector stores, most of which cannot list
        kind = type(err).__name__
        logger.info("index %r: its store cannot list its nodes (%s), so it is asked as a retriever is", name, kind)
        return None
    found = {node.node_id for node in result.nodes or ()} or set(result.ids or ())
    return len(listed) if found <= listed else None


def _check_texts(name: str, source: DocstoreSource, known: int) -> None:
    if known and not guarded(f"reading index {name}", lambda: any(True for _ in source.nodes())):
        raise IndexingError(
            f"index {name!r} lists {known:,} nodes and its docstore has none of them; load it together with its "
            "docstore: load_index_from_storage(StorageContext.from_defaults(persist_dir=...)), or register a "
            "retriever over it"
        )


class NodeSource:
    """Where the nodes of an attached index are; this one has none. It writes nothing; foreign errors come out."""

    takes_ids = False  # whether the vector store restricts a query to node ids, as it should

    def count(self) -> int:
        """Return the number of nodes, without reading them where that can be helped."""
        return 0

    def nodes(self) -> Iterable[BaseNode]:
        return ()

    def get(self, node_ids: Sequence[str]) -> list[BaseNode]:  # noqa: ARG002 - for those that have nodes
        """Read nodes by id; those that are not there are left out."""
        return []

    def source_text(self, doc_id: str) -> str | None:  # noqa: ARG002 - vector stores keep nodes, not documents
        return None

    def vectors(self, node_ids: Sequence[str]) -> Vectors:  # noqa: ARG002 - for those that have vectors
        """Read stored vectors at length 1; none where the store does not give them away."""
        return unit_rows({})

    def node_id(self, stored_id: str) -> str:
        """Return the id of the node that the vector store knows under an id, mostly the same."""
        return stored_id

    def mark(self) -> Hashable:
        """Return what tells most changes, in no time; nothing where looking takes too long for every question."""
        return None

    def imprint(self) -> Hashable:
        """Return what tells every change that can be seen; asked for once a second at most, on large indexes less."""
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
    return list(rows), np.stack(list(rows.values())) if rows else np.empty((0, 0), dtype=np.float32)


def _vectors_of(nodes: Iterable[BaseNode]) -> Vectors:
    return unit_rows({node.node_id: node.embedding for node in nodes if node.embedding is not None})


def listed_ids(struct: object) -> list[str] | None:
    """Return the node ids that an index structure lists, without repeats; ``None`` for a structure that lists none."""
    for field in ("nodes_dict", "all_nodes", "nodes", "node_id_to_summary_id", "table"):
        found = getattr(struct, field, None)
        if field == "table" and isinstance(found, dict):  # node ids by keyword
            return sorted(set().union(*found.values()))
        if field in {"nodes_dict", "all_nodes"} and isinstance(found, dict):  # by vector id, by place in the tree
            found = list(found.values())
        if isinstance(found, (list, dict)):
            return list(dict.fromkeys(found))
    return None


class DocstoreSource(NodeSource):
    def __init__(self, index: BaseIndex[Any], vector_store: object = None) -> None:
        self._index = index
        self._vectors = vector_store if isinstance(vector_store, SimpleVectorStore) else None
        self.takes_ids = self._vectors is not None

    def count(self) -> int:
        return len(self._node_ids())

    def nodes(self) -> Iterable[BaseNode]:
        node_ids = self._node_ids()
        for at in range(0, len(node_ids), _PAGE):
            yield from self.get(node_ids[at : at + _PAGE])

    def get(self, node_ids: Sequence[str]) -> list[BaseNode]:
        found: list[BaseNode | None] = [*self._index.docstore.get_nodes(list(node_ids), raise_error=False)]
        return [node for node in found if isinstance(node, BaseNode)]

    def source_text(self, doc_id: str) -> str | None:
        """Return the text of a document that was put into the docstore itself, as ingestion pipelines do."""
        found = self._index.docstore.get_document(doc_id, raise_error=False)
        return found.get_content(metadata_mode=MetadataMode.NONE) if isinstance(found, Document) else None

    def vectors(self, node_ids: Sequence[str]) -> Vectors:
        held = self._held()
        return unit_rows({i: held[i] for i in node_ids if i in held})

    def node_id(self, stored_id: str) -> str:
        return str((self._by_vector() or {}).get(stored_id, stored_id))

    def mark(self) -> Hashable:
        """Number of nodes and of vectors, and the hash of the last node."""
        known = self._by_vector()
        if known is None:
            return None
        last = next(reversed(known.values()), None)
        digest = self._index.docstore.get_document_hash(last) if last is not None and self._is_local() else None
        return len(known), last, digest, len(self._held())

    def imprint(self) -> Hashable:
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
        known = self._by_vector() or {}
        stored = {known.get(i, i) for i in self._held()}
        return [i for i in found if i in stored]

    def _by_vector(self) -> dict[str, str] | None:
        """Node ids by the ids of their vectors, where the index keeps them."""
        known = getattr(self._index.index_struct, "nodes_dict", None)
        return known if isinstance(known, dict) else None

    def _held(self) -> Mapping[str, Sequence[float]]:
        return {} if self._vectors is None else self._vectors.data.embedding_dict

    def _is_local(self) -> bool:
        return isinstance(self._index.docstore, SimpleDocumentStore)


class OwnStoreSource(NodeSource):
    """Reads the nodes of a vector store of this package, in this process or on a server."""

    takes_ids = True

    def __init__(self, store: NodeStore) -> None:
        self._store = store
        self._is_local = isinstance(store, QdrantEdgeVectorStore)

    def count(self) -> int:
        return self._store.count()

    def nodes(self) -> Iterable[BaseNode]:
        return self._store.iter_nodes()

    def get(self, node_ids: Sequence[str]) -> list[BaseNode]:
        return self._store.get_nodes(list(node_ids)) if node_ids else []

    def vectors(self, node_ids: Sequence[str]) -> Vectors:
        return self._store.vectors(node_ids)

    def mark(self) -> Hashable:
        """Number of nodes; nothing for a server, which takes too long for every look."""
        return self._store.count() if self._is_local else None

    def imprint(self) -> Hashable:
        return hash(tuple(self._store.node_ids())) if self._is_local else self._store.count()


class QdrantSource(NodeSource):
    """Reads the nodes of a Qdrant collection page by page, since ``get_nodes`` stops at 9,999."""

    takes_ids = True

    def __init__(self, store: QdrantVectorStore) -> None:
        self._store = store
        self._client, self._name = store.client, store.collection_name

    def count(self) -> int:
        """Return the number of points; 0 while there is no collection."""
        return int(self._client.count(self._name, exact=True).count) if self._is_there() else 0

    def nodes(self) -> Iterator[BaseNode]:
        offset: Any = None
        while self._is_there():
            wanted = {"limit": _PAGE, "offset": offset, "with_payload": True, "with_vectors": False}
            points, offset = self._client.scroll(self._name, **wanted)
            yield from self._read(points)
            if offset is None:
                return

    def get(self, node_ids: Sequence[str], *, with_vectors: bool = False) -> list[BaseNode]:
        if not node_ids or not self._is_there():
            return []
        found: list[Any] = []
        for at in range(0, len(node_ids), _PAGE):
            page = list(node_ids[at : at + _PAGE])
            found += self._client.retrieve(self._name, page, with_payload=True, with_vectors=with_vectors)
        return self._read(found)

    def vectors(self, node_ids: Sequence[str]) -> Vectors:
        return _vectors_of(self.get(node_ids, with_vectors=True))

    def imprint(self) -> Hashable:
        return self.count()

    def _is_there(self) -> bool:
        return bool(self._client.collection_exists(self._name))

    def _read(self, points: Sequence[Any]) -> list[BaseNode]:
        return list(self._store.parse_to_query_result(list(points)).nodes or ())


class ListedSource(NodeSource):
    """Reads the nodes of any other store that lists them, which is to be checked for being complete."""

    def __init__(self, store: BasePydanticVectorStore) -> None:
        self._store = store

    def nodes(self) -> list[BaseNode]:
        given: list[BaseNode | None] = [*self._store.get_nodes(node_ids=None)]  # Chroma wants it said
        return [node for node in given if node is not None]

    def get(self, node_ids: Sequence[str]) -> list[BaseNode]:
        """Read nodes; stores that do not look at the ids give more, which are left out."""
        if not node_ids:
            return []
        given: list[BaseNode | None] = [*self._store.get_nodes(node_ids=list(node_ids))]
        found = {node.node_id: node for node in given if node is not None}
        return [found[i] for i in dict.fromkeys(node_ids) if i in found]

    def vectors(self, node_ids: Sequence[str]) -> Vectors:
        return _vectors_of(self.get(node_ids))

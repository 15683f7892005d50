"""What somebody hands over to be attached, and what of it can be used."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.vector_store import VectorStoreIndex
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery

from agentic_retriever.errors import IndexingError
from agentic_retriever.indices.attached.sources import (
    DocstoreSource,
    ListedSource,
    OwnStoreSource,
    QdrantSource,
    listed_ids,
)
from agentic_retriever.stores.node_store import NodeStore
from agentic_retriever.threads import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentic_retriever.indices.attached.sources import NodeSource

logger = logging.getLogger(__name__)

MAX_NODES: Final = 200_000
"""Indexes with more nodes are not read into memory; they are asked as a retriever is."""

_CHECKED_AT_MOST: Final = 10_000
_ALLOWED: Final = "a LlamaIndex index, query engine or retriever"


@dataclass(frozen=True, slots=True)
class Recognised:
    """What can be used of an object."""

    kind: str
    source: NodeSource | None = None  # All its nodes, or None where they cannot be listed
    vector_store: BasePydanticVectorStore | None = None  # Where they are searched by vectors, or None
    embedding: BaseEmbedding | None = None  # The model that these come from, or None
    retriever: BaseRetriever | BaseQueryEngine | None = None
    known: int = 0


def recognise(name: str, given: object) -> Recognised:
    """Find out what can be used of an object."""
    kind = type(given).__name__
    if isinstance(given, VectorStoreIndex):
        return _vector_index(name, given, kind)
    if isinstance(given, BaseIndex):
        return _other_index(name, given, kind)
    if isinstance(given, BaseQueryEngine):
        if type(given).retrieve is BaseQueryEngine.retrieve:
            raise IndexingError(
                f"index {name!r}: a {kind} cannot retrieve without answering; register its retriever, its index, or a "
                "RetrieverQueryEngine"
            )
        return Recognised(kind, retriever=given)
    if isinstance(given, BaseRetriever):
        return Recognised(kind, retriever=given)
    hint = (
        "; a path is a source: add_index(name, path)" if isinstance(given, str) or hasattr(given, "__fspath__") else ""
    )
    raise IndexingError(f"index {name!r} must be {_ALLOWED}, got {kind}{hint}")


def _vector_index(name: str, index: VectorStoreIndex, kind: str) -> Recognised:
    store, embedding = index.vector_store, _embedding(index)
    source, known = _listed(name, index, store, embedding)
    if source is None:
        if embedding is None:
            raise IndexingError(
                f"index {name!r}: this {kind} has no embedding model and its nodes cannot be listed; give it one: "
                "VectorStoreIndex.from_vector_store(store, embed_model=...)"
            )
        return Recognised(kind, retriever=index.as_retriever())
    if embedding is None:
        logger.warning("index %r has no embedding model, so it is searched by words alone", name)
    return Recognised(
        kind,
        source=source,
        vector_store=None if embedding is None else store,
        embedding=embedding,
        known=known,
    )


def _other_index(name: str, index: BaseIndex[Any], kind: str) -> Recognised:
    """Take an index that is not searched by vectors, such as a ``SummaryIndex``, for its nodes."""
    source = DocstoreSource(index)
    known = guarded(f"reading index {name}", source.count)
    if not known and listed_ids(index.index_struct) is None:
        raise IndexingError(f"index {name!r}: the nodes of a {kind} cannot be listed; register its retriever instead")
    _check_texts(name, source, known)
    return Recognised(kind, source=source, known=known)


def _embedding(index: VectorStoreIndex) -> BaseEmbedding | None:
    # There is no public way to it; LlamaIndex's own retrievers read it like this.
    found = getattr(index, "_embed_model", None)
    return found if isinstance(found, BaseEmbedding) else None


def _listed(
    name: str, index: VectorStoreIndex, store: BasePydanticVectorStore, embedding: BaseEmbedding | None
) -> tuple[NodeSource | None, int]:
    """Find where all nodes can be read and how many they are, if that is possible and they are not too many."""
    source = _source(name, index, store)
    if isinstance(source, ListedSource):
        known = _complete(name, source, store, embedding)
    else:
        known = guarded(f"reading index {name}", source.count)
    if known is None or known > MAX_NODES:
        return None, 0
    if isinstance(source, DocstoreSource):
        _check_texts(name, source, known)
    return source, known


def _source(name: str, index: VectorStoreIndex, store: BasePydanticVectorStore) -> NodeSource:
    if isinstance(store, NodeStore):
        return OwnStoreSource(store)
    if type(store).__name__ == "QdrantVectorStore":  # imported by whoever made it, so that others need not have it
        if getattr(store, "_client", None) is None:
            raise IndexingError(
                f"index {name!r}: the QdrantVectorStore has an async client only; give it a client= too"
            )
        return QdrantSource(store)  # type: ignore[arg-type]  # by its name
    if not store.stores_text or index.index_struct.nodes_dict:
        return DocstoreSource(index, store)
    return ListedSource(store)


def _complete(
    name: str, source: ListedSource, store: BasePydanticVectorStore, embedding: BaseEmbedding | None
) -> int | None:
    """Return how many nodes a store lists, or ``None`` where it does not list all: some cut the list without a word."""
    try:
        listed = {node.node_id for node in source.nodes()}
        if embedding is None or not listed or len(listed) > _CHECKED_AT_MOST:
            return None if listed else _none_found(store, embedding)
        query = VectorStoreQuery(query_embedding=embedding.get_query_embedding(name), similarity_top_k=len(listed) + 1)
        result = store.query(query)
    except Exception as err:  # noqa: BLE001 - the seam to vector stores, most of which cannot list
        kind = type(err).__name__
        logger.info("index %r: its store cannot list its nodes (%s), so it is asked as a retriever is", name, kind)
        return None
    found = {node.node_id for node in result.nodes or ()} or set(result.ids or ())
    return len(listed) if found <= listed else None


def _none_found(store: BasePydanticVectorStore, embedding: BaseEmbedding | None) -> int | None:
    """A store that lists nothing is empty only if it finds nothing either."""
    if embedding is None:
        return None
    result = store.query(VectorStoreQuery(query_embedding=embedding.get_query_embedding("any"), similarity_top_k=1))
    return None if result.nodes or result.ids else 0


def _check_texts(name: str, source: DocstoreSource, known: int) -> None:
    """See that nodes that are listed can be read."""
    if not known:
        return
    read: Callable[[], bool] = lambda: next(iter(source.nodes()), None) is not None  # noqa: E731 - said once
    if not guarded(f"reading index {name}", read):
        raise IndexingError(
            f"index {name!r} lists {known:,} nodes and its docstore has none of them; load it together with its "
            "docstore: load_index_from_storage(StorageContext.from_defaults(persist_dir=...)), or register a "
            "retriever over it"
        )

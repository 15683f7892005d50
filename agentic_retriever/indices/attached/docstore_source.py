"""The nodes of an index that keeps them in a LlamaIndex docstore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index.core.schema import BaseNode, Document, MetadataMode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.simple import SimpleVectorStore

from agentic_retriever.indices.attached.sources import Vectors, unit_rows

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from llama_index.core.indices.base import BaseIndex

_PAGE = 1_000


def listed_ids(struct: object) -> list[str] | None:
    """Return the node ids that an index structure lists, without repeats; ``None`` for a structure that lists none.

    Args:
        struct: What ``index.index_struct`` gives: of a vector, summary, keyword table, tree, knowledge graph or
            document summary index.
    """
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
    """Reads the nodes that an index lists from its docstore.

    Args:
        index: The LlamaIndex index.
        vector_store: Its vector store; ``None`` for an index that is not searched by vectors.
    """

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

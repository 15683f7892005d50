"""What an index needs of a vector store, wherever the nodes are: in this process or on a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import Field
from llama_index.core.vector_stores.types import VectorStoreQueryResult

from agentic_retriever.errors import ConfigError, InvalidQueryError, StoreError
from agentic_retriever.filters import is_empty
from agentic_retriever.stores.payload import FIELD_KINDS, RESERVED_FIELDS, node_payload, payload_path, unit_vectors
from agentic_retriever.stores.points import AsyncTwins, StoreQuery

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    import numpy as np
    import numpy.typing as npt
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery
    from typing_extensions import Self

    from agentic_retriever.stores.payload import FieldKind
    from agentic_retriever.stores.points import FactT, Hit, KnownPoints


class NodeStore(AsyncTwins, ABC):
    """A LlamaIndex vector store that an index can live on: what it is asked is checked here, and done by a subclass.

    Nodes that it returns have their text and metadata; filters mean what :mod:`agentic_retriever.filters` says; nothing
    is deleted by an empty selector.
    """

    stores_text: bool = Field(default=True, exclude=True)
    is_embedding_query: bool = Field(default=True, exclude=True)
    flat_metadata: bool = Field(default=False, exclude=True)
    collection_name: str = "default"
    dimension: int | None = None  # Length of the vectors; None until it is known

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
            StoreError: The disk or the server failed; the message says how many nodes are stored.
        """
        self._check_open()
        if nodes:
            payloads = [node_payload(node) for node in nodes]
            self._write(nodes, unit_vectors(nodes), payloads)
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: object) -> None:  # noqa: ARG002 - LlamaIndex's signature
        """Delete the nodes of one source document.

        Args:
            ref_doc_id: The document's id. One that is not there is no error.
            **delete_kwargs: Ignored.

        Raises:
            StoreError: The id is empty, or the disk or the server failed.
        """
        if not ref_doc_id:
            message = f"delete() needs a document's id, got {ref_doc_id!r}; to remove everything call clear()"
            raise StoreError(message)
        self._delete(None, doc_ids=[ref_doc_id])

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
        self._delete(filters, node_ids=node_ids)

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
            StoreError: The disk or the server failed.
        """
        self._check_open()
        hits = self._nearest(StoreQuery.checked(query, kwargs, self._stored_dimension))
        return VectorStoreQueryResult(
            nodes=[hit.node for hit in hits],
            similarities=[hit.score for hit in hits],
            ids=[hit.node.node_id for hit in hits],
        )

    def query_known(self, query: VectorStoreQuery, known: KnownPoints[FactT]) -> list[tuple[FactT, float]]:
        """Find as :meth:`query` does, and return facts about nodes instead of nodes; ``known`` learns what it lacks."""
        self._check_open()
        return self._nearest_known(StoreQuery.checked(query, {}, self._stored_dimension), known)

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, limit: int | None = None
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
        return self._read(filters, node_ids, limit)

    def create_payload_index(self, field: str, kind: FieldKind) -> None:
        """Index a metadata field for faster filters.

        ``add`` does so by itself for up to 64 fields whose values are of one type; in this process from 500 nodes on.

        Args:
            field: Name of the field.
            kind: ``keyword`` for texts, ``float`` for numbers, ``bool``, or ``datetime`` for ISO 8601 texts. An index
                of another kind on the field is replaced.

        Raises:
            ConfigError: The kind is unknown or the field's name cannot be indexed.
            StoreError: Nothing was ever stored, or the disk or the server failed.
        """
        if kind not in FIELD_KINDS:
            message = f"unknown kind of payload index {kind!r:.40}; allowed: {', '.join(FIELD_KINDS)}"
            raise ConfigError(message)
        path = payload_path(field)
        if path is None or field in RESERVED_FIELDS:
            message = (
                f"the field {field!r:.60} cannot be indexed; its name is empty, reserved, or has a quote or backslash"
            )
            raise ConfigError(message)
        self._index_field(field, path, kind)

    def close(self) -> None:
        """Give the collection back. Twice does nothing."""
        self._workers.close(wait=False)
        self._let_go()

    @abstractmethod
    def iter_nodes(self, batch: int = 256) -> Iterator[BaseNode]:
        """Go through every node without holding all in memory, ``batch`` at a time, always in the same order."""

    @abstractmethod
    def node_ids(self) -> list[str]:
        """Return the ids of all nodes, sorted."""

    @abstractmethod
    def vectors(self, node_ids: Sequence[str]) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Read stored vectors."""

    @abstractmethod
    def count(self, filters: MetadataFilters | None = None) -> int:
        """Return how many nodes there are, or satisfy the filters."""

    @abstractmethod
    def export(self, after: str | None, size: int) -> tuple[list[BaseNode], str | None]:
        """Read a page of nodes together with their vectors, in the order of the engine's ids."""

    @abstractmethod
    def flush(self) -> None:
        """Bring everything to disk."""

    @property
    @abstractmethod
    def _stored_dimension(self) -> int | None:
        """Length of the vectors that are stored; ``None`` until it is known."""

    @abstractmethod
    def _write(
        self, nodes: Sequence[BaseNode], vectors: npt.NDArray[np.float32], payloads: list[dict[str, Any]]
    ) -> None:
        """Store at least one node, with its unit vector and payload."""

    @abstractmethod
    def _delete(
        self,
        filters: MetadataFilters | None,
        *,
        node_ids: Sequence[str] | None = None,
        doc_ids: Sequence[str] | None = None,
    ) -> None:
        """Delete the nodes that satisfy everything that is given, which is never nothing."""

    @abstractmethod
    def _nearest(self, query: StoreQuery) -> list[Hit]:
        """Find the nearest nodes, by falling cosine and then by id."""

    def _nearest_known(self, query: StoreQuery, known: KnownPoints[FactT]) -> list[tuple[FactT, float]]:
        """Find as :meth:`_nearest` does; here by reading every node."""
        facts = [(known.read(hit.node), hit.score) for hit in self._nearest(query)]
        return [(fact, score) for fact, score in facts if fact is not None]

    @abstractmethod
    def _read(
        self, filters: MetadataFilters | None, node_ids: Sequence[str] | None, limit: int | None
    ) -> list[BaseNode]:
        """Read nodes, as ``get_nodes``."""

    @abstractmethod
    def _index_field(self, field: str, path: str, kind: FieldKind) -> None:
        """Index a field whose name is this path for the engine."""

    @abstractmethod
    def _let_go(self) -> None:
        """Give back what the store holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self.__copy__()

"""What an index needs of a vector store, wherever the nodes are: in this process or on a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.vector_stores.types import BasePydanticVectorStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    import numpy as np
    import numpy.typing as npt
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery, VectorStoreQueryResult
    from typing_extensions import Self

    from agentic_retriever.concurrency import Workers
    from agentic_retriever.indices.edge_fields import FieldKind

P = ParamSpec("P")
T = TypeVar("T")


class NodeStore(BasePydanticVectorStore, ABC):
    """A LlamaIndex vector store that an index can live on; its async methods run the sync ones in worker threads.

    A subclass sets ``_workers``. Nodes that it returns have their text and metadata; filters mean what
    :mod:`agentic_retriever.filters` says; nothing is deleted by an empty selector.
    """

    collection_name: str = "default"
    dimension: int | None = None

    _workers: Workers = PrivateAttr()

    @abstractmethod
    def iter_nodes(self, batch: int = 256) -> Iterator[BaseNode]:
        """Go through every node without holding all in memory, always in the same order."""

    @abstractmethod
    def node_ids(self) -> list[str]:
        """Return the ids of all nodes, sorted."""

    @abstractmethod
    def vectors(self, node_ids: Sequence[str]) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Return the ids that were found, in the given order, and their unit vectors ``(n, dim)``."""

    @abstractmethod
    def count(self, filters: MetadataFilters | None = None) -> int:
        """Return how many nodes there are, or satisfy the filters."""

    @abstractmethod
    def export(self, after: str | None, size: int) -> tuple[list[BaseNode], str | None]:
        """Read a page of nodes together with their vectors, in the order of the engine's ids.

        Args:
            after: The mark that the page before gave; ``None`` for the first page.
            size: How many points a page looks at, at least 1.

        Returns:
            The nodes with their unit vectors as embeddings, and the mark of the next page; ``None`` after the last.

        Raises:
            StoreError: If they cannot be read.
        """

    @abstractmethod
    def create_payload_index(self, field: str, kind: FieldKind) -> None:
        """Index a metadata field for faster filters."""

    @abstractmethod
    def flush(self) -> None:
        """Bring everything to disk."""

    @abstractmethod
    def _check_open(self) -> None:
        """Refuse use after ``close``."""

    @abstractmethod
    def _let_go(self) -> None:
        """Give back what the store holds."""

    def close(self) -> None:
        """Give the collection back. Twice does nothing."""
        self._workers.close(wait=False)
        self._let_go()

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: object) -> list[str]:
        """Do what ``add`` does, off the event loop.

        Args:
            nodes: As for ``add``.
            **kwargs: As for ``add``.

        Returns:
            What ``add`` returns.
        """
        return await self._off_loop(self.add, nodes, **kwargs)

    async def adelete(self, ref_doc_id: str, **delete_kwargs: object) -> None:
        """Do what ``delete`` does, off the event loop.

        Args:
            ref_doc_id: As for ``delete``.
            **delete_kwargs: As for ``delete``.
        """
        await self._off_loop(self.delete, ref_doc_id, **delete_kwargs)

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: object
    ) -> None:
        """Do what ``delete_nodes`` does, off the event loop.

        Args:
            node_ids: As for ``delete_nodes``.
            filters: As for ``delete_nodes``.
            **delete_kwargs: As for ``delete_nodes``.
        """
        await self._off_loop(self.delete_nodes, node_ids, filters, **delete_kwargs)

    async def aclear(self) -> None:
        """Do what ``clear`` does, off the event loop."""
        await self._off_loop(self.clear)

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, limit: int | None = None
    ) -> list[BaseNode]:
        """Do what ``get_nodes`` does, off the event loop.

        Args:
            node_ids: As for ``get_nodes``.
            filters: As for ``get_nodes``.
            limit: As for ``get_nodes``.

        Returns:
            What ``get_nodes`` returns.
        """
        nodes = await self._off_loop(self.get_nodes, node_ids, filters)
        return nodes if limit is None else nodes[:limit]

    async def aquery(self, query: VectorStoreQuery, **kwargs: object) -> VectorStoreQueryResult:
        """Do what ``query`` does, off the event loop.

        Args:
            query: As for ``query``.
            **kwargs: As for ``query``.

        Returns:
            What ``query`` returns.
        """
        return await self._off_loop(self.query, query, **kwargs)

    async def _off_loop(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_open()
        return await self._workers.run(fn, *args, **kwargs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self.__copy__()

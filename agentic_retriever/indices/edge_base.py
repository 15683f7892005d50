"""What the vector store has besides storing and finding: async twins, closing, copying."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.vector_stores.types import BasePydanticVectorStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery, VectorStoreQueryResult
    from qdrant_edge import EdgeShard
    from typing_extensions import Self

    from agentic_retriever.concurrency import Workers
    from agentic_retriever.indices.edge_shard import ShardLease


P = ParamSpec("P")
T = TypeVar("T")


class LeasedVectorStore(BasePydanticVectorStore, ABC):
    """A vector store on a leased collection; its async methods run the sync ones in worker threads.

    A subclass sets ``_lease`` and ``_workers``.
    """

    path: str
    collection_name: str = "default"
    dimension: int | None = None

    _lease: ShardLease = PrivateAttr()
    _workers: Workers = PrivateAttr()

    @property
    def client(self) -> EdgeShard | None:
        """The engine itself; ``None`` while nothing was ever stored."""
        self._lease.check_open()
        return self._lease.engine

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
        self._lease.check_open()
        return await self._workers.run(fn, *args, **kwargs)

    def flush(self) -> None:
        """Bring everything to disk, so that it survives a power cut as well as a crash.

        Raises:
            StoreError: The disk failed.
        """
        self._lease.flush()

    def close(self) -> None:
        """Give the collection back; the last store of the process to do so closes its files. Twice does nothing."""
        self._workers.close(wait=False)
        self._lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[str, str, int | None]]:
        # Copies, deep copies and pickles open the same collection again; a handle cannot be copied.
        return type(self), (self.path, self.collection_name, self.dimension)

    def __copy__(self) -> Self:
        cls, arguments = self.__reduce__()
        return cls(*arguments)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self.__copy__()

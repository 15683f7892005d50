"""The async methods of a vector store: each runs its sync twin in a worker thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.vector_stores.types import BasePydanticVectorStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery, VectorStoreQueryResult

    from agentic_retriever.threads import Workers

P = ParamSpec("P")
T = TypeVar("T")


class AsyncTwins(BasePydanticVectorStore, ABC):
    """A LlamaIndex vector store whose async methods run the sync ones; a subclass sets ``_workers``."""

    _workers: Workers = PrivateAttr()

    @abstractmethod
    def _check_open(self) -> None:
        """Refuse use after ``close``."""

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

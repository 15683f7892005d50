"""What the embedded vector store has besides storing and finding: closing and copying."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING

from llama_index.core.bridge.pydantic import PrivateAttr

from agentic_retriever.indices.node_store import NodeStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdrant_edge import EdgeShard
    from typing_extensions import Self

    from agentic_retriever.indices.edge_shard import ShardLease


class LeasedVectorStore(NodeStore, ABC):
    """A vector store on a leased collection.

    A subclass sets ``_lease`` and ``_workers``.
    """

    path: str

    _lease: ShardLease = PrivateAttr()

    @property
    def client(self) -> EdgeShard | None:
        """The engine itself; ``None`` while nothing was ever stored."""
        self._lease.check_open()
        return self._lease.engine

    def flush(self) -> None:
        """Bring everything to disk, so that it survives a power cut as well as a crash.

        Raises:
            StoreError: The disk failed.
        """
        self._lease.flush()

    def _check_open(self) -> None:
        self._lease.check_open()

    def _let_go(self) -> None:
        # The last store of the process to let go closes the files.
        self._lease.close()

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[str, str, int | None]]:
        # Copies, deep copies and pickles open the same collection again; a handle cannot be copied.
        return type(self), (self.path, self.collection_name, self.dimension)

    def __copy__(self) -> Self:
        cls, arguments = self.__reduce__()
        return cls(*arguments)

"""Writing nodes step by step: how many are stored when it is cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentic_retriever.errors import StoreError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class StoredCount:
    """Counts the nodes that are stored inside, and says so in the store's error that ends it too early.

    Args:
        total: How many are to be stored.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._stored = 0

    def add(self, nodes: int) -> None:
        """Count nodes that are stored now."""
        self._stored += nodes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StoreError) and self._stored:
            raise type(error)(
                f"{error}; {self._stored:,} of the {self._total:,} nodes are stored, add all again to complete them"
            ) from error

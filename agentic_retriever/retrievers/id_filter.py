"""Testing filters on ids that a search by words has found, where the index has no prefilter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index.core.vector_stores.types import FilterCondition, MetadataFilters

from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.filters import node_fields, predicate
from agentic_retriever.retrievers.base import fetch_nodes
from agentic_retriever.retrievers.sides import guarded

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from llama_index.core.schema import BaseNode

    from agentic_retriever.retrievers.searchable import SearchableIndex

CHECKED_BY_ID = 500
LISTED_AT_MOST = 1_000
"""When, after 500 candidates, so few have satisfied the filters that the whole index may hold no more than 1,000 such
nodes, the store is asked for all of them. Until then, and otherwise, candidates are read by id."""

FULL_LIST = 9_999
"""Some stores cut a list of nodes at this length, so one that long is not taken for complete."""


class FilterTest:
    """Tells which ids of a batch satisfy the filters, exactly, by reading the nodes; keeps those that do."""

    def __init__(self, index: SearchableIndex, filters: MetadataFilters, total: int) -> None:
        self.nodes: dict[str, BaseNode] = {}
        self._index = index
        self._satisfies = predicate(filters)
        # Some stores take ids as one more alternative of an "or", so that never stands at the top.
        self._pushed: MetadataFilters | None = MetadataFilters(filters=[filters])
        if filters.condition is FilterCondition.AND:
            self._pushed = filters
        self._total = total
        self._asked = 0
        self._has_listed = False
        self._is_complete = False

    def __call__(self, node_ids: Sequence[str]) -> Collection[str]:
        """Return the ids of all nodes known to satisfy the filters, these among them if they do."""
        if not self._has_listed and self._asked >= CHECKED_BY_ID and self._expected() <= LISTED_AT_MOST:
            self._has_listed = True
            self._is_complete = self._list()
        if not self._is_complete:
            self._read(node_ids)
            self._asked += len(node_ids)
        return self.nodes.keys()

    def _expected(self) -> float:
        """Estimate how many nodes of the index satisfy the filters."""
        return (len(self.nodes) + 1) / self._asked * self._total

    def _read(self, node_ids: Sequence[str]) -> None:
        """Read these nodes, only those that satisfy the filters where the store can do so."""
        if self._pushed is not None:
            try:
                self._keep(fetch_nodes(self._index, node_ids, self._pushed).values())
            except AgenticRetrieverError:
                self._pushed = None  # not every store takes both, or knows every operator
            else:
                return
        self._keep(fetch_nodes(self._index, node_ids).values())

    def _list(self) -> bool:
        """Read all nodes that satisfy the filters, and tell whether the list is complete."""
        if self._pushed is None:
            return False
        store, filters = self._index.vector_store, self._pushed
        try:
            found = guarded("listing nodes by filter", lambda: store.get_nodes(filters=filters))
        except AgenticRetrieverError:
            return False
        self._keep(found)
        return len(found) < FULL_LIST

    def _keep(self, nodes: Collection[BaseNode]) -> None:
        self.nodes.update((node.node_id, node) for node in nodes if self._satisfies(node_fields(node)))

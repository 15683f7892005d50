"""What is known of the points of a collection, so that a search need not read them again.

Reading a point's payload and making a node of it takes ten times as long as finding the point. Where a search wants no
more than a few facts that stay as they are, such as which chunk a leaf belongs to, they are read once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, runtime_checkable

from agentic_retriever.indices.edge_payload import stored_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery

    from agentic_retriever.indices.point_reading import HasPayload

FactT = TypeVar("FactT")
PointT = TypeVar("PointT", bound="HasPayload")

MAX_KNOWN: Final = 20_000
"""Points that are remembered at a time, 10 MB at most; beyond, remembering begins anew."""


class KnownPoints(Generic[FactT]):
    """Facts about the nodes of one version of a collection, by point. Safe to use from many threads.

    Args:
        read: Takes the fact out of a node; ``None`` for a node that is to be passed over.
    """

    def __init__(self, read: Callable[[BaseNode], FactT | None]) -> None:
        self.read = read
        self._known: dict[str, tuple[str, FactT] | None] = {}

    def of(
        self,
        point_ids: Sequence[str],
        retrieve: Callable[[Sequence[str]], Iterable[PointT]],
        name: Callable[[PointT], str],
    ) -> dict[str, tuple[str, FactT]]:
        """Return what is known of points, once those that are not known were read.

        Args:
            point_ids: The engine's ids.
            retrieve: Reads points with their payload.
            name: Gives the engine's id of such a point.

        Returns:
            Node id and fact by the engine's id; points that are broken, not ours or without a fact are left out.
        """
        known = self._known
        found = {point_id: known[point_id] for point_id in point_ids if point_id in known}
        missing = [point_id for point_id in point_ids if point_id not in found]
        if missing:
            fresh = {name(record): self._fact(record) for record in retrieve(missing)}
            if len(known) + len(fresh) > MAX_KNOWN:
                known = self._known = {}
            known.update(fresh)
            found |= fresh
        return {point_id: fact for point_id, fact in found.items() if fact is not None}

    def _fact(self, record: HasPayload) -> tuple[str, FactT] | None:
        node = stored_node(record.payload)
        fact = None if node is None else self.read(node)
        return None if node is None or fact is None else (node.node_id, fact)


@runtime_checkable
class _FindsKnown(Protocol):
    def query_known(self, query: VectorStoreQuery, known: KnownPoints[FactT]) -> list[tuple[FactT, float]]: ...


def found_facts(
    store: BasePydanticVectorStore, query: VectorStoreQuery, known: KnownPoints[FactT]
) -> list[tuple[FactT, float]]:
    """Search any store for facts about its nodes.

    Args:
        store: The store; one that cannot find facts is asked for nodes.
        query: What to find.
        known: Facts about its nodes.

    Returns:
        Facts and scores in the store's order, without those that have no score.

    Raises:
        StoreError: If the store cannot be read.
        FilterError: If the filters cannot be evaluated.
    """
    if isinstance(store, _FindsKnown):
        return store.query_known(query, known)
    result = store.query(query)
    # Some stores leave scores out, whatever the type says.
    scored: Iterable[tuple[BaseNode, float | None]] = zip(result.nodes or (), result.similarities or (), strict=False)
    facts = [(known.read(node), score) for node, score in scored]
    return [(fact, float(score)) for fact, score in facts if fact is not None and score is not None]

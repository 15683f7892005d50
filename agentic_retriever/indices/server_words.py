"""Search by words on a server, and by words and meaning together: BM25 as sparse vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from qdrant_client import models

from agentic_retriever.indices.edge_payload import stored_node, unit_vector
from agentic_retriever.indices.node_text import embedded_text
from agentic_retriever.indices.server_collection import SPARSE_VECTOR
from agentic_retriever.indices.server_search import Side, scan, search, search_fused, select
from agentic_retriever.indices.sparse import SparseBM25

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.indices.point_ranking import Hit
    from agentic_retriever.indices.server_collection import ServerCollection

_STEP: Final = 128  # points in one request


class ServerWords:
    """The sparse vectors of a collection.

    Args:
        collection: Where.
        sparse: How texts become sparse vectors; ``None`` until it is fitted on the first texts.
        on_fitted: Told how, once it was fitted or changed.
    """

    def __init__(
        self,
        collection: ServerCollection,
        sparse: SparseBM25 | None = None,
        on_fitted: Callable[[SparseBM25], None] | None = None,
    ) -> None:
        self._collection = collection
        self._on_fitted = on_fitted
        self.sparse = sparse

    def vectors(self, texts: Sequence[str]) -> list[models.SparseVector]:
        """Make the sparse vectors of some texts; the first texts decide how, unless that is known."""
        if self.sparse is None:
            self._keep(SparseBM25.fitted(texts))
        return [_vector(self.sparse, text) for text in texts] if self.sparse is not None else []

    def search_words(self, text: str, top_k: int, filters: MetadataFilters | None = None) -> list[Hit]:
        """Find nodes by words: BM25 with the server's document frequencies.

        Args:
            text: The question; one without terms finds nothing.
            top_k: How many at most, from 1.
            filters: Only nodes that satisfy them.

        Returns:
            Hits by falling score, then by node id; all scores above 0.

        Raises:
            FilterError: The filters cannot be evaluated.
            StoreError: The server failed.
        """
        side = self._side(text)
        wanted = select(filters, self._collection.kinds())
        return [] if side is None else search(self._collection, [side], top_k, wanted)[0]

    def search_both(
        self, vector: Sequence[float], text: str, top_k: int, filters: MetadataFilters | None = None
    ) -> tuple[list[Hit], list[Hit]]:
        """Find nodes by cosine and by words, in one request.

        Args:
            vector: The question's embedding.
            text: The question.
            top_k: How many of each at most, from 1.
            filters: Only nodes that satisfy them.

        Returns:
            Hits by cosine, and hits by BM25.

        Raises:
            FilterError: The filters cannot be evaluated.
            StoreError: The server failed.
        """
        words = self._side(text)
        sides = [self._meaning(vector), *([words] if words else [])]
        found = search(self._collection, sides, top_k, select(filters, self._collection.kinds()))
        return found[0], found[1] if words else []

    def search_fused(
        self, vector: Sequence[float], text: str, top_k: int, *, depth: int, alpha: float, rrf_k: int,
        filters: MetadataFilters | None = None,
    ) -> list[Hit] | None:  # fmt: skip
        """Let the server find nodes by cosine and by words and merge them by reciprocal ranks, in one request.

        Args:
            vector: The question's embedding.
            text: The question.
            top_k: How many at most, from 1.
            depth: How deep each side is searched.
            alpha: Weight of the dense side, in [0, 1]; BM25 has the rest.
            rrf_k: Constant of reciprocal rank fusion, from 1.
            filters: Only nodes that satisfy them.

        Returns:
            Hits by falling fused score; ``None`` where the server cannot do it: it cannot check the filter itself, the
            question has no terms, or one side has no weight.

        Raises:
            FilterError: The filters cannot be evaluated.
            StoreError: The server failed.
        """
        words = self._side(text)
        wanted = select(filters, self._collection.kinds())
        if words is None or not wanted.exact or not 0 < alpha < 1:
            return None
        sides = [(self._meaning(vector), 2 * alpha), (words, 2 * (1 - alpha))]
        return search_fused(self._collection, sides, top_k, depth=depth, rrf_k=rrf_k, wanted=wanted)

    def revise(self, sparse: SparseBM25, on_done: Callable[[int], None] = lambda _done: None) -> None:
        """Make all sparse vectors again, page by page; the dense ones stay.

        Args:
            sparse: How texts become sparse vectors from now on.
            on_done: Told after each page how many nodes were done.

        Raises:
            StoreError: The server failed; what was done stays, and a second run ends it.
        """
        for records in scan(self._collection, select(None, {}), size=_STEP, whole=True):
            nodes = [(record.id, node) for record in records if (node := stored_node(record.payload)) is not None]
            points = [
                models.PointVectors(id=i, vector={SPARSE_VECTOR: _vector(sparse, embedded_text(node))})
                for i, node in nodes
            ]

            def update(client: Any, points: list[models.PointVectors] = points) -> None:  # noqa: ANN401 - the client's types
                client.update_vectors(self._collection.name, points, wait=True)

            if points:
                self._collection.call("revise the words", update)
            on_done(len(records))
        self._keep(sparse)

    def _meaning(self, vector: Sequence[float]) -> Side:
        return Side.dense(unit_vector(vector, self._collection.dimension).tolist())

    def _side(self, text: str) -> Side | None:
        row = ([], []) if self.sparse is None else self.sparse.query(text)
        return Side.sparse(row) if row[0] else None

    def _keep(self, sparse: SparseBM25) -> None:
        if self._on_fitted is not None:
            self._on_fitted(sparse)
        self.sparse = sparse


def _vector(sparse: SparseBM25, text: str) -> models.SparseVector:
    numbers, weights = sparse.document(text)
    return models.SparseVector(indices=numbers, values=weights)

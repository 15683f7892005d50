"""A query of LlamaIndex to a vector store, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_index.core.vector_stores.types import VectorStoreQueryMode

from agentic_retriever.errors import InvalidQueryError
from agentic_retriever.indices.edge_payload import unit_vector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """What is to be found.

    Attributes:
        vector: A unit vector, ``(dim,)``.
        top_k: How many nodes at most; 0 where nothing can be found, and then only the filters are to be checked.
        filters: Only nodes that satisfy them.
        node_ids: Only these nodes; ``None`` for all.
        doc_ids: Only nodes of these sources; ``None`` for all.
    """

    vector: npt.NDArray[np.float32]
    top_k: int
    filters: MetadataFilters | None
    node_ids: Sequence[str] | None
    doc_ids: Sequence[str] | None

    @classmethod
    def checked(cls, query: VectorStoreQuery, unknown: Mapping[str, object], dimension: int | None) -> StoreQuery:
        """Check a query.

        Args:
            query: The query.
            unknown: Further arguments of the caller; none are known.
            dimension: Length of the stored vectors; ``None`` if that is not known yet.

        Raises:
            InvalidQueryError: A part of the query cannot be used.
            EmbeddingError: The embedding is zero, or has NaN or an infinity.
            EmbeddingMismatchError: It has another dimension than the stored ones.
        """
        top_k = _checked_top_k(query, unknown)
        vector = unit_vector(query.query_embedding or [], dimension)
        # VectorStoreIndex.as_retriever() sends an empty list when it restricts nothing, and always the query's text.
        # Taken at its word it would find nothing in any store that keeps the text itself.
        is_unrestricted = query.node_ids == [] and query.query_str is not None
        node_ids = None if is_unrestricted else query.node_ids
        nothing_asked = node_ids == [] or query.doc_ids == []
        return cls(vector, 0 if nothing_asked else top_k, query.filters, node_ids, query.doc_ids)


def _checked_top_k(query: VectorStoreQuery, unknown: Mapping[str, object]) -> int:
    problem = None
    top_k = query.similarity_top_k
    if unknown:
        problem = f"query() got unknown arguments: {', '.join(sorted(unknown))}; none are known"
    elif query.mode != VectorStoreQueryMode.DEFAULT:
        problem = f"query mode {query.mode!s:.40} is not supported; use the default, a dense search"
    elif type(top_k) is not int or top_k < 0:
        problem = f"similarity_top_k is {top_k!r}; allowed are whole numbers from 0"
    elif query.query_embedding is None:
        problem = "the query has no embedding; embed its text first"
    if problem is not None:
        raise InvalidQueryError(problem)
    return top_k

"""What retrievers need of a search by words, and that search on a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from agentic_retriever.checks import check_top_k

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.indices.keyword import Allowed
    from agentic_retriever.indices.point_ranking import Hit
    from agentic_retriever.indices.server_words import ServerWords

_ANY_TOP_K: Final = 2**31 - 1
_GROWTH: Final = 4


class KeywordSearch(Protocol):
    """BM25 over the nodes of one index version."""

    @property
    def version(self) -> int:
        """Version of the index that it searches."""

    def __len__(self) -> int:
        """Return the number of nodes."""

    def search(self, query: str, top_k: int, *, allowed: Allowed | None = None) -> list[tuple[str, float]]:
        """Return the best nodes that share a term with the query.

        Args:
            query: The question; blank or without a known term finds nothing.
            top_k: How many at most, from 1.
            allowed: Ids that may be returned, or a function that gives those of a batch that may; ``None`` for all.

        Returns:
            ``(node_id, score)`` by falling score, then by id; all scores above 0.

        Raises:
            InvalidQueryError: If ``top_k`` is no positive int.
            StoreError: If a server failed.
        """


@runtime_checkable
class FilteredKeywordSearch(Protocol):
    """A search by words that applies filters itself and reads the nodes at once."""

    def search_nodes(self, query: str, top_k: int, filters: MetadataFilters | None) -> Sequence[Hit]:
        """Return the best nodes that share a term with the query and satisfy the filters.

        Args:
            query: The question.
            top_k: How many at most, from 1.
            filters: Only nodes that satisfy them.

        Raises:
            InvalidQueryError: If ``top_k`` is no positive int.
            StoreError: If the server failed.
        """


class SparseKeywordView:
    """BM25 by the sparse vectors of a server's collection; nothing is kept here.

    Scores are those of :class:`KeywordIndex` but for the average length, which is fixed, and what a server counts: it
    goes on counting deleted nodes until it has tidied up.

    Attributes:
        version: Version of the index.
    """

    def __init__(self, words: ServerWords, version: int, count: Callable[[], int]) -> None:
        self.version = version
        self._words = words
        self._count = count

    def __len__(self) -> int:
        return self._count()

    def search(self, query: str, top_k: int, *, allowed: Allowed | None = None) -> list[tuple[str, float]]:
        """Search; as :class:`KeywordSearch`."""
        check_top_k(top_k, maximum=_ANY_TOP_K)
        limit = top_k if allowed is None else _GROWTH * top_k
        while True:
            hits = self._words.search_words(query, limit)
            found = [(hit.node.node_id, hit.score) for hit in hits]
            if allowed is not None:
                ids = [node_id for node_id, _score in found]
                accepted = set(allowed(ids) if callable(allowed) else allowed)
                found = [pair for pair in found if pair[0] in accepted]
            if len(found) >= top_k or len(hits) < limit:
                return found[:top_k]
            limit *= _GROWTH

    def search_nodes(self, query: str, top_k: int, filters: MetadataFilters | None) -> Sequence[Hit]:
        """Search with filters that the server applies; as :class:`FilteredKeywordSearch`."""
        check_top_k(top_k, maximum=_ANY_TOP_K)
        return self._words.search_words(query, top_k, filters)

"""Hybrid search in one request, on an index whose nodes are on a server that searches by words, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from agentic_retriever.errors import AgenticRetrieverError, DeadlineExceededError
from agentic_retriever.retrievers.searchable import HasServerHybrid
from agentic_retriever.retrievers.sides import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentic_retriever.indices.point_ranking import Hit
    from agentic_retriever.retrievers.search import AdapterSettings, RetrievalRequest
    from agentic_retriever.retrievers.searchable import BothSides, SearchableIndex

    Left = Callable[[], float | None]

T = TypeVar("T")


def fused_hits(
    index: SearchableIndex, request: RetrievalRequest, settings: AdapterSettings, depth: int, left: Left
) -> Sequence[Hit] | None:
    """Let the server merge both sides by reciprocal ranks.

    Args:
        index: What to search.
        request: What for.
        settings: Weights and constant.
        depth: How deep each side is searched.
        left: Gives the seconds left, or ``None`` for no limit.

    Returns:
        Hits by fused score; ``None`` where the sides have to be searched and merged here.
    """

    def search(server: BothSides, vector: Sequence[float]) -> Sequence[Hit] | None:
        return server.search_fused(
            vector, request.query, request.top_k,
            depth=depth, alpha=settings.alpha, rrf_k=settings.rrf_k, filters=request.filters,
        )  # fmt: skip

    return _asked(index, request, left, search)


def both_hits(
    index: SearchableIndex, request: RetrievalRequest, depth: int, left: Left
) -> tuple[Sequence[Hit], Sequence[Hit]] | None:
    """Search both sides in one request.

    Args:
        index: What to search.
        request: What for.
        depth: How many hits of each side.
        left: Gives the seconds left, or ``None`` for no limit.

    Returns:
        Hits by cosine and by BM25; ``None`` where each side has to be searched by itself.
    """
    return _asked(
        index, request, left, lambda server, vector: server.search_both(vector, request.query, depth, request.filters)
    )


def _asked(
    index: SearchableIndex, request: RetrievalRequest, left: Left, search: Callable[[BothSides, Sequence[float]], T]
) -> T | None:
    server = index.both_sides() if isinstance(index, HasServerHybrid) else None
    if server is None:
        return None
    try:
        vector = _vector(index, request, left())
        return guarded(f"the server of index {index.name}", lambda: search(server, vector))
    except AgenticRetrieverError:
        return None  # each side by itself may still work, and whoever searches them tells what failed


def _vector(index: SearchableIndex, request: RetrievalRequest, timeout_s: float | None) -> Sequence[float]:
    if request.query_vector is not None:
        return request.query_vector
    if timeout_s is not None and timeout_s <= 0:
        raise DeadlineExceededError("no time was left to embed the question; allow more time")
    embedded = guarded("the embedding model", lambda: index.embedding.embed_query(request.query, timeout_s=timeout_s))
    return tuple(float(x) for x in embedded)

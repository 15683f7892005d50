"""What the strategies over derived views share: getting a view in time, and searching parts of an index."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from llama_index.core.vector_stores.types import VectorStoreQuery

from agentic_retriever.errors import AgenticRetrieverError, DeadlineExceededError
from agentic_retriever.filters import is_empty
from agentic_retriever.retrievers.base import Candidate, Found, run_guarded
from agentic_retriever.retrievers.vector import DENSE, nearest
from agentic_retriever.schema import Degradation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from agentic_retriever.indices import Index
    from agentic_retriever.indices.hierarchy import HierarchyView, LeafHit
    from agentic_retriever.indices.summaries import SummaryView
    from agentic_retriever.retrievers.base import RetrievalRequest


V_co = TypeVar("V_co", covariant=True)

VIEW_SHARE: Final = 0.5
"""Share of the time left that a search waits for a view that is being built, so that dense search can still follow."""

MAX_LEAVES: Final = 10_000
_GROWTH: Final = 4


def hierarchy_of(index: Index, left_s: float | None) -> HierarchyView:
    """Return the leaves of an index."""
    return _view("leaves", index.name, index.hierarchy, left_s)


def summaries_of(index: Index, left_s: float | None) -> SummaryView:
    """Return the summaries of an index; otherwise as :func:`hierarchy_of`."""
    return _view("summaries", index.name, index.summaries, left_s)


def with_vector(index: Index, request: RetrievalRequest, left_s: float | None) -> RetrievalRequest:
    """Return the request with the question's vector, embedded now if it has none."""
    if request.query_vector is not None:
        return request
    if left_s is not None and left_s <= 0:
        raise DeadlineExceededError("no time was left to embed the question; allow more time")
    embedded = run_guarded("the embedding model", lambda: index.embedding.embed_query(request.query, timeout_s=left_s))
    return replace(request, query_vector=tuple(float(x) for x in embedded))


def nearest_among(index: Index, request: RetrievalRequest, node_ids: Collection[str], depth: int) -> list[Candidate]:
    """Find those of some nodes that are nearest to the question."""
    if not node_ids or request.query_vector is None:
        return []  # some stores take no ids for no restriction
    query = VectorStoreQuery(
        query_embedding=list(request.query_vector),
        similarity_top_k=depth,
        node_ids=list(node_ids),
        filters=None if is_empty(request.filters) else request.filters,
    )
    result = run_guarded(f"the store of index {index.name}", lambda: index.vector_store.query(query))
    allowed = set(node_ids)
    found = zip(result.nodes or (), result.similarities or (), strict=False)
    return [Candidate(node, score, {DENSE: score}) for node, score in found if node.node_id in allowed]


def leaves_for_chunks(view: HierarchyView, request: RetrievalRequest, chunks: int, *, depth: int) -> list[LeafHit]:
    """Find leaves until they come from enough different chunks."""
    vector = request.query_vector or ()
    while True:
        hits = run_guarded("the leaves", partial(view.search, vector, depth, filters=request.filters))
        is_enough = len({hit.chunk_id for hit in hits}) >= chunks
        if is_enough or len(hits) < depth or depth >= MAX_LEAVES:
            return hits
        depth = min(_GROWTH * depth, MAX_LEAVES)


def plain_search(
    index: Index, request: RetrievalRequest, *, step: str, err: AgenticRetrieverError, left_s: float | None
) -> Found:
    """Search as ``vector`` does, and say why."""
    found = nearest(index, request, request.top_k, timeout_s=left_s)
    return Found(tuple(found), (Degradation(step=step, reason=str(err), fallback="dense search over chunks"),))


def seconds_left(deadline: float | None, timer: Callable[[], float]) -> float | None:
    """Return the seconds until a deadline, or ``None`` without one."""
    return None if deadline is None else deadline - timer()


def _view(what: str, name: str, get: _Getter[V_co], left_s: float | None) -> V_co:
    timeout_s = None if left_s is None else max(0.0, left_s) * VIEW_SHARE
    return run_guarded(f"opening the {what} of index {name}", lambda: get(timeout_s=timeout_s))


class _Getter(Protocol[V_co]):
    def __call__(self, *, timeout_s: float | None) -> V_co: ...

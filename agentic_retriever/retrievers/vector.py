"""Strategy ``vector``: the nodes whose vectors are nearest to the question's by cosine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index.core.vector_stores.types import VectorStoreQuery

from agentic_retriever.errors import DeadlineExceededError
from agentic_retriever.filters import is_empty
from agentic_retriever.indices.prefilter.plan import PlanKind
from agentic_retriever.indices.vector_rows import MAX_CANDIDATES
from agentic_retriever.retrievers.base import RetrieverAdapter, fetch_nodes
from agentic_retriever.retrievers.search import Candidate, Found
from agentic_retriever.retrievers.searchable import HasVectorRows, prefilter_of
from agentic_retriever.retrievers.sides import guarded
from agentic_retriever.schema import Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.indices.prefilter.plan import FilterPlan
    from agentic_retriever.retrievers.search import RetrievalRequest
    from agentic_retriever.retrievers.searchable import SearchableIndex

DENSE = "dense"
"""Name of the dense source in the per-source scores; its score is the cosine."""


class VectorRetriever(RetrieverAdapter):
    """Dense search. An empty index answers without embedding the question."""

    strategy = Strategy.VECTOR
    keeps_deadlines = True

    def _search(self, request: RetrievalRequest, deadline: float | None) -> Found:
        timeout_s = None if deadline is None else deadline - self._settings.timer()
        return Found(tuple(nearest(self._index, request, request.top_k, timeout_s=timeout_s)))


def nearest(
    index: SearchableIndex, request: RetrievalRequest, depth: int, *, timeout_s: float | None
) -> list[Candidate]:
    """Find the nodes nearest to the question.

    Args:
        index: What to search.
        request: The question, its vector if known, and the filters, which the store applies.
        depth: How many nodes at most.
        timeout_s: Seconds for embedding the question, or ``None`` for the model's own limit.

    Returns:
        Candidates with their cosine, in the store's order.

    Raises:
        EmbeddingError: If the question could not be embedded.
        StoreError: If the store failed.
        DeadlineExceededError: If the time ran out.
    """
    filters, plan = request.filters, _plan(index, request.filters, depth)
    if plan is not None and plan.kind is PlanKind.NONE:
        return []  # nothing satisfies the filters, so there is nothing to search
    node_ids = None if plan is None else plan.node_ids
    vector = request.query_vector
    if vector is None:
        if timeout_s is not None and timeout_s <= 0:
            raise DeadlineExceededError("no time was left to embed the question; allow more time")
        embedded = guarded(
            "the embedding model", lambda: index.embedding.embed_query(request.query, timeout_s=timeout_s)
        )
        vector = tuple(float(x) for x in embedded)
    if plan is not None and plan.high <= MAX_CANDIDATES:
        among = _among_candidates(index, filters, vector, depth)
        if among is not None:
            return among
    query = VectorStoreQuery(
        query_embedding=list(vector),
        # Beside ids a text would tell some stores that an empty list of them means no restriction.
        query_str=request.query if node_ids is None else None,
        node_ids=None if node_ids is None else list(node_ids),
        similarity_top_k=depth,
        # A group without clauses must not reach a store: some take it for "nothing", some for "everything".
        filters=None if is_empty(filters) else filters,
    )
    result = guarded(f"the store of index {index.name}", lambda: index.vector_store.query(query))
    scores = list(result.similarities or ())
    nodes = list(result.nodes or ())
    if not nodes and result.ids:
        # Stores that keep no text answer with ids only.
        known = fetch_nodes(index, result.ids)
        pairs = zip(result.ids, scores, strict=False)
        return [Candidate(known[i], score, {DENSE: score}) for i, score in pairs if i in known]
    return [Candidate(node, score, {DENSE: score}) for node, score in zip(nodes, scores, strict=False)]


def _plan(index: SearchableIndex, filters: MetadataFilters | None, depth: int) -> FilterPlan | None:
    """Ask the prefilter, if the index has one, how a filtered search is best run."""
    prefilter = prefilter_of(index)
    if is_empty(filters) or prefilter is None:
        return None
    return guarded(f"the prefilter of index {index.name}", lambda: prefilter.metadata().plan(filters, depth))


def _among_candidates(
    index: SearchableIndex, filters: MetadataFilters | None, vector: Sequence[float], depth: int
) -> list[Candidate] | None:
    """Search exactly among the nodes that satisfy the filters, where their vectors are in memory."""
    rows = index.vector_rows() if isinstance(index, HasVectorRows) else None
    if rows is None or not isinstance(index, HasVectorRows):
        return None
    found = rows.nearest(vector, index.candidates(filters), depth)
    if found is None:
        return None
    nodes = fetch_nodes(index, [node_id for node_id, _cosine in found])
    return [Candidate(nodes[i], cosine, {DENSE: cosine}) for i, cosine in found if i in nodes]

"""Strategy ``vector``: the nodes whose vectors are nearest to the question's by cosine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from llama_index.core.vector_stores.types import VectorStoreQuery

from agentic_retriever.errors import DeadlineExceededError
from agentic_retriever.filters import is_empty, node_fields, predicate
from agentic_retriever.indices.prefilter import PlanKind
from agentic_retriever.indices.vector_rows import MAX_CANDIDATES
from agentic_retriever.retrievers.base import Candidate, Found, RetrieverAdapter, fetch_nodes, run_guarded
from agentic_retriever.schema import Strategy
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.callbacks.base import CallbackManager
    from llama_index.core.schema import NodeWithScore
    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.indices import Index
    from agentic_retriever.indices.prefilter import FilterPlan
    from agentic_retriever.retrievers.base import AdapterSettings, RetrievalRequest


DENSE = "dense"
"""Name of the dense source in the per-source scores; its score is the cosine."""


class VectorRetriever(RetrieverAdapter):
    """Dense search. An empty index answers without embedding the question."""

    strategy = Strategy.VECTOR
    keeps_deadlines = True

    def _search(self, request: RetrievalRequest, deadline: float | None) -> Found:
        timeout_s = None if deadline is None else deadline - self._settings.timer()
        return Found(tuple(nearest(self._index, request, request.top_k, timeout_s=timeout_s)))


def nearest(index: Index, request: RetrievalRequest, depth: int, *, timeout_s: float | None) -> list[Candidate]:
    """Find the nodes nearest to the question."""
    filters, plan = request.filters, _plan(index, request.filters, depth)
    if plan is not None and plan.kind is PlanKind.NONE:
        return []  # nothing satisfies the filters, so there is nothing to search
    node_ids = None if plan is None else plan.node_ids
    vector = request.query_vector
    if vector is None:
        if timeout_s is not None and timeout_s <= 0:
            raise DeadlineExceededError("no time was left to embed the question; allow more time")
        embedded = run_guarded(
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
    result = run_guarded(f"the store of index {index.name}", lambda: index.vector_store.query(query))
    scores = list(result.similarities or ())
    nodes = list(result.nodes or ())
    if not nodes and result.ids:
        # Stores that keep no text answer with ids only.
        known = fetch_nodes(index, result.ids)
        pairs = zip(result.ids, scores, strict=False)
        return [Candidate(known[i], score, {DENSE: score}) for i, score in pairs if i in known]
    return [Candidate(node, score, {DENSE: score}) for node, score in zip(nodes, scores, strict=False)]


def _plan(index: Index, filters: MetadataFilters | None, depth: int) -> FilterPlan | None:
    """Ask the prefilter, if the index has one, how a filtered search is best run."""
    if is_empty(filters) or not index.has_prefilter:
        return None
    return run_guarded(f"the prefilter of index {index.name}", lambda: index.metadata().plan(filters, depth))


def _among_candidates(
    index: Index, filters: MetadataFilters | None, vector: Sequence[float], depth: int
) -> list[Candidate] | None:
    """Search exactly among the nodes that satisfy the filters, where their vectors are in memory."""
    rows = index.vector_rows()
    if rows is None:
        return None
    found = rows.nearest(vector, index.candidates(filters), depth)
    if found is None:
        return None
    nodes = fetch_nodes(index, [node_id for node_id, _cosine in found])
    return [Candidate(nodes[i], cosine, {DENSE: cosine}) for i, cosine in found if i in nodes]


# Strategy ``vector`` over an index that can only be asked: somebody else's retriever, held to the contract of ours.

ASKED: Final = "retriever"
"""Name of the source in the per-source scores; the score is the retriever's own, on a scale of its own."""

MAX_DEPTH: Final = 1_000
_FACTOR: Final = 4
_MAX_CALLS: Final = 8


class AskedRetriever(RetrieverAdapter):
    """Asks the index itself, gives up on it when the time is over, and looks through its answer.

    Filters are applied to what it gives, so it is asked for more, up to 1,000, while too few satisfy them.
    """

    strategy = Strategy.VECTOR
    keeps_deadlines = True

    def __init__(
        self, index: Index, settings: AdapterSettings, *, callback_manager: CallbackManager | None = None
    ) -> None:
        super().__init__(index, settings, callback_manager=callback_manager)
        # Of its own, so that a retriever that hangs takes no thread from others.
        self._caller = DeadlineCaller(f"index {index.name}", max_calls=_MAX_CALLS)

    def _search(self, request: RetrievalRequest, deadline: float | None) -> Found:
        is_filtered, satisfies = not is_empty(request.filters), predicate(request.filters)
        depth = min(_FACTOR * request.top_k, MAX_DEPTH) if is_filtered else request.top_k
        before = -1
        while True:
            given = self._ask(request.query, depth, deadline)
            kept = [one for one in given if satisfies(node_fields(one.node))]
            is_all = len(given) < depth or len(given) <= before or depth >= MAX_DEPTH
            if not is_filtered or len(kept) >= request.top_k or is_all:
                return Found(tuple(Candidate(one.node, one.score, {ASKED: one.score}) for one in kept))
            before, depth = len(given), min(_FACTOR * depth, MAX_DEPTH)

    def _ask(self, query: str, depth: int, deadline: float | None) -> list[NodeWithScore]:
        call = partial(run_guarded, f"index {self._index.name}", lambda: list(self._index.ask(query, depth)))
        if deadline is None:
            return call()
        return self._caller.call(call, deadline - self._settings.timer())

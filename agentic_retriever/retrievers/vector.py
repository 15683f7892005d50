"""Strategy ``vector``: the nodes whose vectors are nearest to the question's by cosine; and what others need of it."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Final

from llama_index.core.schema import NodeWithScore
from llama_index.core.vector_stores.types import VectorStoreQuery

from agentic_retriever.embeddings.model import embedding_time_s
from agentic_retriever.errors import AgenticRetrieverError, DeadlineExceededError, EmbeddingError
from agentic_retriever.filters import is_empty
from agentic_retriever.indices import Index
from agentic_retriever.indices.derived import HierarchyView, LeafHit
from agentic_retriever.indices.prefilter.index import MAX_CANDIDATES
from agentic_retriever.retrievers import base
from agentic_retriever.schema import Degradation, Strategy
from agentic_retriever.threads import DeadlineCaller, guard

DENSE: Final = "dense"  # the source in the per-source scores; its score is the cosine


class VectorRetriever(base.RetrieverAdapter):
    """Dense search. An empty index answers without embedding the question."""

    strategy = Strategy.VECTOR
    keeps_deadlines = True

    def _search(self, request: base.RetrievalRequest, deadline: float) -> base.SearchResult:
        found = nearest(self._index, request, request.top_k, self._left_s(deadline))
        return base.SearchResult(found, sources={DENSE: base.scores_of(found)})


def with_vector(index: Index, request: base.RetrievalRequest, left_s: float) -> base.RetrievalRequest:
    """Return the request with the question's vector, embedded now if it has none."""
    if request.query_vector is not None:
        return request
    if request.words_only:
        raise EmbeddingError("the question could not be embedded")
    if left_s <= 0:
        raise DeadlineExceededError("no time was left to embed the question; allow more time")
    try:
        with guard("the embedding model", EmbeddingError):
            limit = embedding_time_s(left_s, index.embedding)
            embedded = index.embedding.embed_query(request.meaning, timeout_s=limit)
    except DeadlineExceededError as err:
        raise EmbeddingError(str(err)) from err
    return replace(request, query_vector=tuple(float(x) for x in embedded))


def nearest(index: Index, request: base.RetrievalRequest, depth: int, left_s: float) -> list[NodeWithScore]:
    plan = base.filter_plan(index, request.filters, depth)
    if plan is not None and plan.high == 0:
        return []  # nothing satisfies the filters, so there is nothing to search
    request = with_vector(index, request, left_s)
    if plan is not None and plan.high <= MAX_CANDIDATES:
        # Exactly, among the nodes that satisfy the filters, where their vectors are in memory.
        rows, vector = index.vector_rows(), request.query_vector or ()
        found = None if rows is None else rows.nearest(vector, index.candidates(request.filters), depth)
        if found is not None:
            return base.take_nodes(index, found, {}, depth)
    return _query(index, request, depth, None if plan is None or plan.node_ids is None else list(plan.node_ids))


def nearest_among(
    index: Index, request: base.RetrievalRequest, node_ids: Collection[str], depth: int
) -> list[NodeWithScore]:
    """Find those of some nodes that are nearest to the question, which has its vector."""
    if not node_ids or request.query_vector is None:
        return []  # some stores take no ids for no restriction
    allowed = set(node_ids)
    return [one for one in _query(index, request, depth, list(node_ids)) if one.node.node_id in allowed]


def plain_search(
    index: Index, request: base.RetrievalRequest, *, step: str, err: AgenticRetrieverError, left_s: float
) -> base.SearchResult:
    """Search as ``vector`` does, and say why."""
    found = nearest(index, request, request.top_k, left_s)
    lost = Degradation(step=step, reason=str(err), fallback="dense search over chunks")
    return base.SearchResult(found, (lost,), sources={DENSE: base.scores_of(found)})


def _query(index: Index, request: base.RetrievalRequest, depth: int, node_ids: list[str] | None) -> list[NodeWithScore]:
    query = VectorStoreQuery(
        query_embedding=list(request.query_vector or ()),
        # Beside ids a text would tell some stores that an empty list of them means no restriction.
        query_str=request.query if node_ids is None else None,
        node_ids=node_ids,
        similarity_top_k=depth,
        # A group without clauses must not reach a store: some take it for "nothing", some for "everything".
        filters=None if is_empty(request.filters) else request.filters,
    )
    with base.store_guard(f"the store of index {index.name}"):
        result = index.vector_store.query(query)
    nodes = {node.node_id: node for node in result.nodes or ()}
    found = [node.node_id for node in result.nodes or ()]
    if not nodes and result.ids:  # stores that keep no text answer with ids only
        found, nodes = result.ids, base.fetch_nodes(index, result.ids)
    scored = zip(found, result.similarities or (), strict=False)
    return [NodeWithScore(node=nodes[i], score=score) for i, score in scored if i in nodes]


# Leaves, which two strategies search before their chunks.

MAX_LEAVES: Final = 10_000
_GROWTH: Final = 4


def open_leaves(index: Index) -> HierarchyView:
    return base.run_guarded(f"opening the leaves of index {index.name}", index.hierarchy)


def leaves_for_chunks(view: HierarchyView, request: base.RetrievalRequest, *, depth: int) -> list[LeafHit]:
    """Find leaves, best first, until they come from ``top_k`` different chunks."""
    vector = request.query_vector or ()
    while True:
        hits = base.run_guarded("the leaves", partial(view.search, vector, depth, filters=request.filters))
        is_enough = len({hit.chunk_id for hit in hits}) >= request.top_k
        if is_enough or len(hits) < depth or depth >= MAX_LEAVES:
            return hits
        depth = min(_GROWTH * depth, MAX_LEAVES)


# Strategy ``vector`` over an index that can only be asked: somebody else's retriever, held to the contract of ours.

ASKED: Final = "retriever"  # the source in the per-source scores; the score is the retriever's own, on its own scale
MAX_DEPTH: Final = 1_000


class AskedRetriever(base.RetrieverAdapter):
    """Asks the index itself, for more nodes while too few satisfy the filters, and gives up when the time is over."""

    strategy = Strategy.VECTOR
    keeps_deadlines = True

    def __init__(self, index: Index, settings: base.AdapterSettings) -> None:
        super().__init__(index, settings)
        # Of its own, so that a retriever that hangs takes no thread from others.
        self._caller = DeadlineCaller(f"index {index.name}")

    def _search(self, request: base.RetrievalRequest, deadline: float) -> base.SearchResult:
        is_filtered = not is_empty(request.filters)
        depth = min(_GROWTH * request.top_k, MAX_DEPTH) if is_filtered else request.top_k
        before = -1
        while True:
            given = self._ask(request.query, depth, deadline)
            kept = base.satisfying(given, request.filters)
            is_all = len(given) < depth or len(given) <= before or depth >= MAX_DEPTH
            if not is_filtered or len(kept) >= request.top_k or is_all:
                return base.SearchResult(kept, sources={ASKED: base.scores_of(kept)})
            before, depth = len(given), min(_GROWTH * depth, MAX_DEPTH)

    def _ask(self, query: str, depth: int, deadline: float) -> list[NodeWithScore]:
        call = partial(base.run_guarded, f"index {self._index.name}", lambda: list(self._index.ask(query, depth)))
        return self._caller.call(call, self._left_s(deadline))

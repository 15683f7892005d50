"""Strategy ``summary``: the documents whose summaries are nearest, then the nearest chunks of these."""

from functools import partial
from typing import Final

from agentic_retriever.errors import AgenticRetrieverError, StoreError
from agentic_retriever.indices.derived import SummaryView
from agentic_retriever.retrievers.base import RetrievalRequest, RetrieverAdapter, SearchResult, run_guarded, scores_of
from agentic_retriever.retrievers.vector import DENSE, nearest, nearest_among, plain_search, with_vector
from agentic_retriever.schema import Strategy

# In the per-source scores the cosine of the document's summary. It chooses the documents and has no part in the order
# of their chunks, which measured worse with it.
SUMMARY: Final = "summary"
DOCUMENTS: Final = (5, 20, 80, 320)  # chosen first, and then each time that they hold too few chunks
MIN_COVERAGE: Final = 0.5


class SummaryRetriever(RetrieverAdapter):
    """Chooses documents by their summaries, then searches among their chunks.

    Five documents to begin with, more where those do not hold ``top_k`` chunks that satisfy the filters, and in the end
    all there are. A chunk scores by its own cosine. Where fewer than half of the documents have a summary, or summaries
    cannot be had, the search is that of ``vector``, and the result says so.
    """

    strategy = Strategy.SUMMARY

    def _search(self, request: RetrievalRequest, deadline: float) -> SearchResult:
        index = self._index
        request = with_vector(index, request, self._left_s(deadline))
        try:
            view = run_guarded(f"opening the summaries of index {index.name}", index.summaries)
            if view.coverage < MIN_COVERAGE:
                raise StoreError(
                    f"only {view.summarised:,} of {len(view.chunks):,} documents of index {index.name!r} have a summary"
                )
            return self._detail(view, request, self._left_s(deadline))
        except AgenticRetrieverError as err:
            return plain_search(index, request, step="summary.summaries", err=err, left_s=self._left_s(deadline))

    def _detail(self, view: SummaryView, request: RetrievalRequest, left_s: float) -> SearchResult:
        result = SearchResult()
        for wanted in DOCUMENTS:
            if wanted * view.most_chunks < request.top_k and wanted < DOCUMENTS[-1]:
                continue  # so many documents cannot hold enough chunks
            hits = run_guarded("the summaries", partial(view.search, request.query_vector or (), wanted))
            is_last = len(hits) < wanted or wanted == DOCUMENTS[-1]
            if is_last or sum(len(view.chunks[hit.doc_id]) for hit in hits) >= request.top_k:
                cosines: dict[str, float | None] = {i: hit.score for hit in hits for i in view.chunks[hit.doc_id]}
                found = nearest_among(self._index, request, list(cosines), request.top_k)
                chosen = scores_of(found)
                result = SearchResult(found, sources={DENSE: chosen, SUMMARY: {i: cosines[i] for i in chosen}})
            if is_last or len(result.nodes) >= request.top_k:
                break
        if len(result.nodes) >= request.top_k:
            return result
        # What satisfies the filters lies in documents far down the list or without a summary.
        nodes = [*result.nodes, *nearest(self._index, request, request.top_k, left_s)]
        return SearchResult(nodes, sources={**result.sources, DENSE: scores_of(nodes)})

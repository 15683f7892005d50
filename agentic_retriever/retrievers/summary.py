"""Strategy ``summary``: the documents whose summaries are nearest, then the nearest chunks of these."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import AgenticRetrieverError, StoreError
from agentic_retriever.retrievers.base import Candidate, Found, RetrieverAdapter, run_guarded
from agentic_retriever.retrievers.vector import nearest
from agentic_retriever.retrievers.view_search import (
    nearest_among,
    plain_search,
    seconds_left,
    summaries_of,
    with_vector,
)
from agentic_retriever.schema import Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.indices.summaries import SummaryHit, SummaryView
    from agentic_retriever.retrievers.base import RetrievalRequest

SUMMARY: Final = "summary"
"""Name in the per-source scores, beside ``dense``, of the cosine of the document's summary. It chooses the documents
and has no part in the order of their chunks, which measured worse with it."""

DOCUMENTS: Final = (5, 20, 80, 320)
"""How many documents are chosen: the first number, and the next each time that they hold too few chunks."""

MIN_COVERAGE: Final = 0.5


class SummaryRetriever(RetrieverAdapter):
    """Chooses documents by their summaries, then searches among their chunks.

    Five documents to begin with, more where those do not hold ``top_k`` chunks that satisfy the filters, and in the end
    all there are. A chunk scores by its own cosine. Where fewer than half of the documents have a summary, or summaries
    cannot be had, the search is that of ``vector``, and the result says so.
    """

    strategy = Strategy.SUMMARY

    def _search(self, request: RetrievalRequest, deadline: float | None) -> Found:
        def left() -> float | None:
            return seconds_left(deadline, self._settings.timer)

        request = with_vector(self._index, request, left())
        try:
            view = summaries_of(self._index, left())
            if view.coverage < MIN_COVERAGE:
                raise StoreError(
                    f"only {view.summarised:,} of {len(view.chunks):,} documents of index {self._index.name!r} have a "
                    "summary"
                )
            return Found(tuple(self._detail(view, request)))
        except AgenticRetrieverError as err:
            return plain_search(self._index, request, step="summary.summaries", err=err, left_s=left())

    def _detail(self, view: SummaryView, request: RetrievalRequest) -> list[Candidate]:
        vector = request.query_vector or ()
        found: list[Candidate] = []
        for wanted in DOCUMENTS:
            if wanted * view.most_chunks < request.top_k and wanted < DOCUMENTS[-1]:
                continue  # so many documents cannot hold enough chunks
            hits = run_guarded("the summaries", partial(view.search, vector, wanted))
            is_last = len(hits) < wanted or wanted == DOCUMENTS[-1]
            if is_last or sum(len(view.chunks[hit.doc_id]) for hit in hits) >= request.top_k:
                found = self._chunks(view, hits, request)
            if is_last or len(found) >= request.top_k:
                break
        if len(found) < request.top_k:
            # What satisfies the filters lies in documents far down the list or without a summary.
            found += nearest(self._index, request, request.top_k, timeout_s=None)
        return found

    def _chunks(self, view: SummaryView, hits: Sequence[SummaryHit], request: RetrievalRequest) -> list[Candidate]:
        cosines = {node_id: hit.score for hit in hits for node_id in view.chunks[hit.doc_id]}
        found = nearest_among(self._index, request, list(cosines), request.top_k)
        return [replace(c, sources={**c.sources, SUMMARY: cosines[c.node.node_id]}) for c in found]

"""Strategy ``summary``: which documents are about it, by what is found in them and by their summaries."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from heapq import nlargest
from typing import Final

from llama_index.core.schema import NodeWithScore

from agentic_retriever.errors import AgenticRetrieverError, StoreError
from agentic_retriever.retrievers import base
from agentic_retriever.retrievers.hybrid import CALIBRATED_DEPTH, OverHybrid, unit_scores
from agentic_retriever.retrievers.vector import with_vector
from agentic_retriever.schema import Degradation, Strategy

SUMMARY: Final = "summary"  # in the per-source scores: the cosine of the document's summary
DOCUMENT: Final = "document"  # and how much the document is about it, in [0, 1]
MIN_COVERAGE: Final = 0.5
TELLING: Final = 3  # chunks of a document that speak for it; chosen on one long document with the halves below
MOST_DOCUMENTS: Final = 320  # whose summaries are compared


class SummaryRetriever(OverHybrid):
    """Searches as ``hybrid`` does, and lifts the chunks of the documents that are about the question.

    A document is judged half by its three best chunks together, half by the cosine of its summary, and a chunk half by
    itself, half by its document; by chunks alone, as the result says, where fewer than half of them have a summary.
    """

    strategy = Strategy.SUMMARY

    def _search(self, request: base.RetrievalRequest, deadline: float) -> base.SearchResult:
        request = with_vector(self._index, request, self._left_s(deadline))
        depth, left_s = max(CALIBRATED_DEPTH, request.top_k), self._left_s(deadline)
        found = self._hybrid.search(replace(request, top_k=depth, timeout_s=left_s))
        own = unit_scores([(one.node.node_id, one.score) for one in found.nodes])
        inside: dict[str, list[float]] = {}
        documents = {one.node.node_id: one.node.ref_doc_id or one.node.node_id for one in found.nodes}
        for node_id, doc_id in documents.items():
            inside.setdefault(doc_id, []).append(own[node_id])
        judged = unit_scores([(doc_id, sum(nlargest(TELLING, scores))) for doc_id, scores in inside.items()])
        cosines, lost = dict[str, float](), tuple[Degradation, ...]()
        try:
            cosines = self._cosines(request, inside)
            near = unit_scores([(doc_id, cosines.get(doc_id)) for doc_id in inside])
            judged = {doc_id: (score + near[doc_id]) / 2 for doc_id, score in judged.items()}
        except AgenticRetrieverError as err:
            lost = (Degradation(step="summary.summaries", reason=str(err), fallback="chunks alone"),)
        scores = {node_id: (own[node_id] + judged[doc_id]) / 2 for node_id, doc_id in documents.items()}
        nodes: list[NodeWithScore] = [base.detailed(one, scores[one.node.node_id]) for one in found.nodes]
        sources: dict[str, base.Scores] = {
            **base.by_source(found.nodes),
            DOCUMENT: {i: judged[doc_id] for i, doc_id in documents.items()},
            SUMMARY: {i: cosines[doc_id] for i, doc_id in documents.items() if doc_id in cosines},
        }
        return base.SearchResult(nodes, (*found.degraded, *lost), sources=sources)

    def _cosines(self, request: base.RetrievalRequest, wanted: Collection[str]) -> dict[str, float]:
        view = base.run_guarded(f"opening the summaries of index {self._index.name}", self._index.summaries)
        if view.coverage < MIN_COVERAGE:
            raise StoreError(
                f"only {view.summarised:,} of {len(view.chunks):,} documents of index {self._index.name} have a summary"
            )
        hits = base.run_guarded("the summaries", partial(view.search, request.query_vector or (), MOST_DOCUMENTS))
        return {hit.doc_id: hit.score for hit in hits if hit.doc_id in wanted}

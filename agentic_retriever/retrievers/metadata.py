"""Strategy ``metadata``: filters understood from the question, then hybrid search among what satisfies them."""

import re
from dataclasses import replace
from typing import Final

from agentic_retriever.errors import EmbeddingError, StoreError
from agentic_retriever.retrievers import base
from agentic_retriever.retrievers.hybrid import Fusion, OverHybrid, fuse
from agentic_retriever.retrievers.vector import DENSE, nearest, with_vector
from agentic_retriever.schema import Degradation, Strategy
from agentic_retriever.text import Tokenizer, detect_language
from agentic_retriever.understanding.understanding import Understood, extract_with_llm, relaxed, understand

# A single clause below this certainty restricts nothing: a lone noun such as "policy" seldom means a field's value.
SURE: Final = 0.7
CLEAR: Final = 0.85  # a single one from here on, or one that is nearly all of a question, makes it one for conditions
LAST: Final = 0.8  # a surer one that stands last does, too; what is found without it is joined to what satisfies it


def stated(query: str, read: Understood) -> float:
    """Tell how clearly a question states the conditions that were read in it, in [0, 1]."""
    clauses = read.clauses
    best = max((one.certainty for one in clauses), default=0.0)
    if best < SURE or len(clauses) > 1:
        return float(best >= SURE)
    left = Tokenizer(detect_language(query)).query_tokens(read.unread(query))
    if best >= CLEAR or len(left) <= 1:
        return CLEAR
    is_last = re.search(r"\w", query[clauses[0].spans[-1][1] :]) is None
    return LAST if is_last and best > SURE else 0.2


class MetadataRetriever(OverHybrid):
    """Values, ranges and years that a question names become filters; the nearest nodes among what is left are returned.

    When nothing is left, the least certain clause is dropped and the search made again; every clause that was dropped
    is told as a degradation. A caller's own filters hold throughout. A question that names no field's value is
    answered by dense search.
    """

    strategy = Strategy.METADATA
    keeps_deadlines = True

    def _search(self, request: base.RetrievalRequest, deadline: float) -> base.SearchResult:
        index, read = self._index, self._read(request, deadline)
        # Several clauses agree on a reading; a single one has to be sure.
        clauses = read.clauses if len(read.clauses) > 1 else read.at_least(SURE)
        is_doubtful = len(clauses) == 1 and stated(request.query, read) < CLEAR
        failed: EmbeddingError | None = None
        try:
            request = with_vector(index, request, self._left_s(deadline))
        except EmbeddingError as err:
            failed = err
        for rung in relaxed(clauses, request.filters):  # the last one has no clause
            narrowed = replace(request, filters=rung.filters)
            if failed is not None:
                result = self._by_words(narrowed, failed)
            elif rung.kept:
                result = self._hybrid.search(replace(narrowed, timeout_s=self._left_s(deadline)))
                if is_doubtful:
                    result = self._joined(result, replace(request, timeout_s=self._left_s(deadline)))
                result = replace(result, sources=base.by_source(result.nodes))
            else:
                found = nearest(index, narrowed, request.top_k, self._left_s(deadline))
                result = base.SearchResult(found, sources={DENSE: base.scores_of(found)})
            if result.nodes:
                break
        lost = (
            Degradation(step="metadata.filter", reason=f"nothing satisfies: {said}", fallback="left out")
            for said in rung.dropped
        )
        told = (*read.degraded, *result.degraded, *lost)
        spans = () if rung.dropped or is_doubtful else (span for clause in rung.kept for span in clause.spans)
        settled = tuple(request.query[start:end] for start, end in spans)
        return replace(result, degraded=told, understood=tuple(clause.say for clause in rung.kept), settled=settled)

    def _joined(self, inside: base.SearchResult, request: base.RetrievalRequest) -> base.SearchResult:
        """Join by rank what was found under a doubtful condition with what is found without it."""
        whole = self._hybrid.search(request)
        lists = {name: [*base.scores_of(one.nodes).items()] for name, one in (("in", inside), ("all", whole))}
        known = {one.node.node_id: one for one in (*inside.nodes, *whole.nodes)}
        scores = fuse(Fusion.RRF, lists, dict.fromkeys(lists, 1.0))
        return replace(inside, nodes=[base.detailed(known[i], score) for i, score in scores])

    def _read(self, request: base.RetrievalRequest, deadline: float) -> Understood:
        """Read the conditions that a question states; none while the index's values are not there."""
        model = request.model or self._settings.model
        if model is None and request.read is not None:
            return request.read
        try:
            fields = base.run_guarded(f"index {self._index.name}", self._index.fields)
        except StoreError as err:
            lost = Degradation(step="metadata.values", reason=str(err), fallback="dense search alone")
            return Understood(clauses=(), degraded=(lost,))
        if model is None:
            return understand(request.query, fields)
        # For half of the time at most, so that the search can still follow.
        return extract_with_llm(model, request.query, fields, timeout_s=self._left_s(deadline) / 2)

"""Strategy ``metadata``: filters understood from the question, then hybrid search among what satisfies them."""

import threading
from dataclasses import replace
from typing import Final

from llama_index.core.callbacks.base import CallbackManager

from agentic_retriever.errors import EmbeddingError
from agentic_retriever.indices import Index
from agentic_retriever.retrievers import base
from agentic_retriever.retrievers.hybrid import HybridRetriever
from agentic_retriever.retrievers.vector import DENSE, nearest, with_vector
from agentic_retriever.schema import Degradation, Strategy
from agentic_retriever.text import Tokenizer, detect_language
from agentic_retriever.understanding.fields import FieldDictionary
from agentic_retriever.understanding.understanding import extract_with_llm, relaxed, understand

# A single clause below this certainty restricts nothing: a lone noun such as "policy" seldom means a field's value.
SURE: Final = 0.7
CLEAR: Final = (
    0.85  # from which on a single one makes the question one for conditions, as one does that is nearly all of it
)
MAX_KNOWN: Final = 5_000  # nodes whose values are read for the choice of a strategy; it takes 0.1 ms a node


class MetadataRetriever(base.RetrieverAdapter):
    """Values, ranges and years that a question names become filters; the nearest nodes among what is left are returned.

    When nothing is left, the least certain clause is dropped and the search made again; every clause that was dropped
    is told as a degradation. A caller's own filters hold throughout. A question that names no field's value is
    answered by dense search.
    """

    strategy = Strategy.METADATA
    keeps_deadlines = True

    def __init__(self, index: Index, settings: base.AdapterSettings, **more: CallbackManager | None) -> None:
        super().__init__(index, settings, **more)
        self._hybrid = HybridRetriever(index, settings)
        self._lock = threading.Lock()
        self._fields: tuple[int, FieldDictionary] | None = None

    def stated(self, query: str) -> float | None:
        """Tell how clearly a question states conditions, in [0, 1]; ``None`` where it would take long to know."""
        known = self._fields is not None and self._fields[0] == self._index.version
        if not known and (self._index.may_hang or self._index.count() > MAX_KNOWN):
            return None
        clauses = understand(query, self._dictionary()).clauses
        best = max((one.certainty for one in clauses), default=0.0)
        if best < SURE or len(clauses) > 1:
            return float(best >= SURE)
        rest = "".join(char for at, char in enumerate(query) if not any(a <= at < b for a, b in clauses[0].spans))
        left = Tokenizer(detect_language(query)).query_tokens(rest)
        return 0.85 if best >= CLEAR or len(left) <= 1 else 0.2

    def _dictionary(self) -> FieldDictionary:
        """Return the values of the index's current version, read once for each version."""
        index = self._index
        with self._lock:
            version = index.version
            if self._fields is None or self._fields[0] != version:
                rows = (node.metadata for node in index.known_nodes())
                self._fields = version, base.run_guarded(f"index {index.name}", lambda: FieldDictionary.build(rows))
            return self._fields[1]

    def _search(self, request: base.RetrievalRequest, deadline: float) -> base.SearchResult:
        index, model, fields = self._index, request.model or self._settings.model, self._dictionary()
        if model is None:
            read = understand(request.query, fields)
        else:  # for half of the time at most, so that the search can still follow
            read = extract_with_llm(model, request.query, fields, timeout_s=self._left_s(deadline) / 2)
        # Several clauses agree on a reading; a single one has to be sure.
        clauses = read.clauses if len(read.clauses) > 1 else read.at_least(SURE)
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
        spans = () if rung.dropped else (span for clause in rung.kept for span in clause.spans)
        settled = tuple(request.query[start:end] for start, end in spans)
        return replace(result, degraded=told, understood=tuple(clause.say for clause in rung.kept), settled=settled)

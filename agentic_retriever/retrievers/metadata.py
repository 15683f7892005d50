"""Strategy ``metadata``: filters understood from the question, then dense search among what satisfies them."""

from __future__ import annotations

import threading
from dataclasses import replace

from llama_index.core.callbacks.base import CallbackManager

from agentic_retriever.indices import Index
from agentic_retriever.llm import ModelClient
from agentic_retriever.retrievers.base import (
    AdapterSettings,
    RetrievalRequest,
    RetrieverAdapter,
    SearchResult,
    run_guarded,
    scores_of,
)
from agentic_retriever.retrievers.vector import DENSE, nearest
from agentic_retriever.schema import Degradation, Strategy
from agentic_retriever.understanding.fields import FieldDictionary
from agentic_retriever.understanding.understanding import Clause, Understood, extract_with_llm, relaxed, understand

SURE = 0.7
"""A single clause below this certainty restricts nothing: a lone noun such as "policy" seldom means a field's value."""


class MetadataRetriever(RetrieverAdapter):
    """Values, ranges and years that a question names become filters; the nearest nodes among what is left are returned.

    When nothing is left, the least certain clause is dropped and the search made again; every clause that was dropped
    is told as a degradation. A caller's own filters hold throughout. A question that names no field's value is
    answered by dense search.
    """

    strategy = Strategy.METADATA
    keeps_deadlines = True

    def __init__(
        self, index: Index, settings: AdapterSettings, *, callback_manager: CallbackManager | None = None
    ) -> None:
        super().__init__(index, settings, callback_manager=callback_manager)
        self._lock = threading.Lock()
        self._fields: tuple[int, FieldDictionary] | None = None

    def understood(self, query: str, *, timeout_s: float | None = None, model: ModelClient | None = None) -> Understood:
        """Tell which conditions on metadata a question names in this index, by the model where there is one."""
        fields, model = self._dictionary(), model or self._settings.model
        if model is None:
            return understand(query, fields)
        return extract_with_llm(model, query, fields, timeout_s=timeout_s)

    def _search(self, request: RetrievalRequest, deadline: float) -> SearchResult:
        # Half of the time at most, so that the search can still follow.
        read = self.understood(request.query, timeout_s=self._left_s(deadline) / 2, model=request.model)
        ladder = relaxed(applicable(read), request.filters)
        while True:
            rung = next(ladder)  # the last rung has no clause
            narrowed = replace(request, filters=rung.filters)
            found = nearest(self._index, narrowed, request.top_k, self._left_s(deadline))
            if found or not rung.kept:
                break
        lost = (
            Degradation(step="metadata.filter", reason=f"nothing satisfies: {said}", fallback="left out")
            for said in rung.dropped
        )
        return SearchResult(
            found, (*read.degraded, *lost), tuple(clause.say for clause in rung.kept), {DENSE: scores_of(found)}
        )

    def _dictionary(self) -> FieldDictionary:
        """Return the values of the index's current version, read once for each version."""
        with self._lock:
            version = self._index.version
            if self._fields is None or self._fields[0] != version:
                index = self._index
                rows = (node.metadata for node in index.known_nodes())
                built = run_guarded(f"index {index.name}", lambda: FieldDictionary.build(rows))
                self._fields = (version, built)
            return self._fields[1]


def applicable(understood: Understood) -> tuple[Clause, ...]:
    """Return the clauses worth filtering by: several that agree on a reading, or a single one that is sure."""
    clauses = understood.clauses
    return clauses if len(clauses) > 1 else understood.at_least(SURE)

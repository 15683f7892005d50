"""Strategy ``planner``: a question is split, its parts are searched for side by side, and the results are merged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from agentic_retriever.errors import AgenticRetrieverError, RetrievalError
from agentic_retriever.retrievers.base import RetrieverAdapter
from agentic_retriever.retrievers.hybrid import HybridRetriever
from agentic_retriever.retrievers.planning.merging import merge_parts
from agentic_retriever.retrievers.planning.model_plan import plan_by_model
from agentic_retriever.retrievers.planning.splitting import MIN_PARTS, split_question
from agentic_retriever.retrievers.promises import source_scores
from agentic_retriever.retrievers.search import Candidate, Found, RetrievalRequest, SearchResult
from agentic_retriever.retrievers.sides import run_sides
from agentic_retriever.schema import Degradation, Strategy
from agentic_retriever.text import Tokenizer, detect_language

if TYPE_CHECKING:
    from llama_index.core.callbacks.base import CallbackManager

    from agentic_retriever.retrievers.search import AdapterSettings
    from agentic_retriever.retrievers.searchable import SearchableIndex

Retrieve = Callable[[RetrievalRequest], SearchResult]
"""How a part is searched for."""

DEPTH_FACTOR = 2
MIN_DEPTH = 20


class PlannerRetriever(RetrieverAdapter):
    """Answers for questions that ask for several things: comparisons, several questions, facts of several documents.

    The parts come from the model in the settings where there is one, else from the words of the question; the whole
    question is searched for beside them, so that a bad split costs little. Every part is searched for by ``retrieve``,
    never by a planner, so plans do not nest. A question that cannot be split gives exactly what ``retrieve`` gives.

    The scores of a split question are 0.7 times similarity plus 0.3 times keyword overlap, see ``merge_parts``; each
    node names the questions that found it under the metadata key ``PARTS_KEY``. A part that fails is left out.

    Args:
        index: What to search.
        settings: How.
        retrieve: How a part is searched for; hybrid search over the same index by default.
        callback_manager: As for every adapter.
    """

    strategy = Strategy.PLANNER

    def __init__(
        self,
        index: SearchableIndex,
        settings: AdapterSettings,
        *,
        retrieve: Retrieve | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        super().__init__(index, settings, callback_manager=callback_manager)
        self._retrieve_part: Retrieve = retrieve or HybridRetriever(index, settings).search

    def _search(self, request: RetrievalRequest, deadline: float | None) -> Found:
        def left() -> float | None:
            return None if deadline is None else deadline - self._settings.timer()

        parts, degraded = self._plan(request, left())
        if len(parts) < MIN_PARTS:
            return _as_found(self._one(request, left), degraded)
        depth = max(DEPTH_FACTOR * request.top_k, MIN_DEPTH)
        whole = replace(request, top_k=depth)
        asked = {"question": whole}
        asked |= {f"part {i}": replace(whole, query=part, query_vector=None) for i, part in enumerate(parts, start=1)}
        results, errors = run_sides(
            self._settings.workers,
            {name: partial(self._one, single, left) for name, single in asked.items()},
            timeout_s=left,
        )
        if not results:
            told = "; ".join(f"{name}: {err}" for name, err in errors.items())
            raise RetrievalError(f"every part of the question failed: {told}", errors) from errors["question"]
        degraded += [_left_out(name, err) for name, err in errors.items()]
        degraded += [step for result in results.values() for step in result.degraded]
        candidates = merge_parts(
            {asked[name].query: result.nodes for name, result in results.items()},
            request.query,
            tokenizer=Tokenizer(detect_language(request.query)),
            top_k=request.top_k,
        )
        return Found(candidates, tuple(dict.fromkeys(degraded)))

    def _plan(self, request: RetrievalRequest, left_s: float | None) -> tuple[tuple[str, ...], list[Degradation]]:
        query, limit = request.query, self._settings.planner_parts
        client = request.model or self._settings.model
        if client is None:
            return split_question(query, max_parts=limit), []
        try:
            # Half of the time at most, so that the searches can still follow.
            return plan_by_model(client, query, max_parts=limit, timeout_s=None if left_s is None else left_s / 2), []
        except AgenticRetrieverError as err:
            step = Degradation(step="planner.plan", reason=str(err), fallback="splitting by words")
            return split_question(query, max_parts=limit), [step]

    def _one(self, request: RetrievalRequest, left: Callable[[], float | None]) -> SearchResult:
        return self._retrieve_part(replace(request, timeout_s=left()))


def _as_found(result: SearchResult, degraded: list[Degradation]) -> Found:
    candidates = tuple(Candidate(n.node, n.score, source_scores(n.node)) for n in result.nodes)
    return Found(candidates, (*degraded, *result.degraded))


def _left_out(name: str, err: AgenticRetrieverError) -> Degradation:
    return Degradation(step=f"planner.{name}", reason=str(err), fallback="the other parts of the question")

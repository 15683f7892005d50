"""Strategy ``hybrid``: dense and BM25 search side by side, fused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from agentic_retriever.errors import AgenticRetrieverError, RetrievalError, StoreDamagedError
from agentic_retriever.filters import is_empty
from agentic_retriever.indices.keyword_search import FilteredKeywordSearch
from agentic_retriever.retrievers.base import RetrieverAdapter, take_nodes
from agentic_retriever.retrievers.fusion import Fusion, fuse, ranked
from agentic_retriever.retrievers.fusion_model import (
    DEFAULT_FUSION,
    FUSION_FILE,
    CosineBackground,
    FusionModel,
    InstalledFusion,
    dense_excess,
)
from agentic_retriever.retrievers.id_filter import FilterTest
from agentic_retriever.retrievers.search import Candidate, Found
from agentic_retriever.retrievers.searchable import HasFolder, HasProfile, HasSearchProfile, prefilter_of
from agentic_retriever.retrievers.server_sides import both_hits, fused_hits
from agentic_retriever.retrievers.sides import guarded, run_sides
from agentic_retriever.retrievers.vector import DENSE, nearest
from agentic_retriever.schema import Degradation, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llama_index.core.callbacks.base import CallbackManager
    from llama_index.core.schema import BaseNode

    from agentic_retriever.indices.point_ranking import Hit
    from agentic_retriever.retrievers.search import AdapterSettings, RetrievalRequest
    from agentic_retriever.retrievers.searchable import SearchableIndex

BM25 = "bm25"
FUSED = "fused"
"""Names in the per-source scores, beside ``dense``; ``fused`` is there only where two lists were merged."""

DEPTH_FACTOR = 4
MIN_DEPTH = 50
MAX_DEPTH = 1_000
CALIBRATED_DEPTH = 100
"""How deep each side is searched for calibrated fusion, so that scores are the same for every ``top_k`` up to it."""

_STEPS = {DENSE: "hybrid.dense", BM25: "hybrid.keyword"}
_FALLBACKS = {DENSE: "BM25 search alone", BM25: "dense search alone"}


@dataclass(frozen=True, slots=True)
class _Side:
    """What one side found: ids and scores, best first, and those nodes that it has read."""

    ranking: Sequence[tuple[str, float | None]]
    nodes: Mapping[str, BaseNode] = field(default_factory=dict)
    background: CosineBackground | None = None
    degraded: tuple[Degradation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SideLists:
    """What calibrated fusion merges.

    Attributes:
        lists: ``(node_id, score)``, best first, by side; a side that found nothing is not there.
        floors: By side, the score of what its list does not hold, where the list is whole.
        excess: How far the best cosine stands above chance, see ``dense_excess``.
    """

    lists: Mapping[str, Sequence[tuple[str, float | None]]]
    floors: Mapping[str, float]
    excess: float | None

    @classmethod
    def of(cls, sides: Mapping[str, _Side], depth: int) -> SideLists:
        """Take them from what the sides found, each searched this deep."""
        lists = {name: side.ranking for name, side in sides.items() if side.ranking}
        words, dense = lists.get(BM25, ()), lists.get(DENSE, ())
        floors = {BM25: 0.0} if 0 < len(words) < depth else {}
        background = next((side.background for side in sides.values() if side.background is not None), None)
        return cls(lists=lists, floors=floors, excess=dense_excess(dense[0][1] if dense else None, background))

    def merged(self, model: FusionModel) -> list[tuple[str, float]]:
        """Merge the sides as a model weighs them; scores in [0, 1], best first."""
        weight = model.weight(self.excess)
        return fuse(Fusion.CALIBRATED, self.lists, {DENSE: weight, BM25: 1 - weight}, floors=self.floors)


class HybridRetriever(RetrieverAdapter):
    """Dense and BM25 search, merged by calibrated or fixed weights, reciprocal ranks or Borda votes.

    Where only one side finds anything (no word of the question occurs in the index, or the other side failed), its
    result is handed on as it is, with its own scores: cosines, or BM25's. So a question without known words gives
    exactly what ``vector`` gives.

    Calibrated fusion reads the model beside the index, where training has put one, again when it has changed.

    Args:
        index: What to search.
        settings: How.
        callback_manager: As for every adapter.
    """

    strategy = Strategy.HYBRID
    keeps_deadlines = True

    def __init__(
        self, index: SearchableIndex, settings: AdapterSettings, *, callback_manager: CallbackManager | None = None
    ) -> None:
        super().__init__(index, settings, callback_manager=callback_manager)
        self._fusion = InstalledFusion(index.folder / FUSION_FILE if isinstance(index, HasFolder) else None)

    def search_sides(self, request: RetrievalRequest) -> SideLists:
        """Search both sides as for calibrated fusion, and do not merge them; for fitting the weights.

        Args:
            request: A request that could be searched; its filters are applied, its time limit is not.

        Raises:
            EmbeddingError: If the question could not be embedded.
            StoreError: If the index cannot be read.
        """
        depth = max(CALIBRATED_DEPTH, request.top_k)
        sides = {DENSE: self._dense_side(request, depth, None), BM25: self._keyword_side(request, depth)}
        sides[BM25] = self._with_background(sides[BM25])
        return SideLists.of(sides, depth)

    def _search(self, request: RetrievalRequest, deadline: float | None) -> Found:
        def left() -> float | None:
            return None if deadline is None else deadline - self._settings.timer()

        is_calibrated = self._settings.fusion is Fusion.CALIBRATED
        depth = max(CALIBRATED_DEPTH, request.top_k) if is_calibrated else search_depth(request.top_k)

        if self._settings.fusion is Fusion.RRF:
            hits = fused_hits(self._index, request, self._settings, depth, left)
            if hits is not None:
                return Found(tuple(Candidate(hit.node, hit.score, {FUSED: hit.score}) for hit in hits))
        sides, errors = self._both_sides(request, depth, left, is_calibrated=is_calibrated)
        model, degraded = self._model() if is_calibrated else (None, ())
        try:
            candidates = self._merged(sides, request.top_k, depth, model)
        except AgenticRetrieverError as err:
            # Only hits of BM25 are read from the store after the fact.
            errors[BM25] = err
            sides.pop(BM25, None)
            candidates = self._merged(sides, request.top_k, depth, model)
        if not sides:
            told = "; ".join(f"{side}: {err}" for side, err in errors.items())
            raise RetrievalError(f"both sides of hybrid search failed: {told}", errors) from errors[DENSE]
        degraded += tuple(step for side in sides.values() for step in side.degraded)
        return Found(candidates, (*(_fallback(side, err) for side, err in errors.items()), *degraded))

    def _both_sides(
        self, request: RetrievalRequest, depth: int, left: Callable[[], float | None], *, is_calibrated: bool
    ) -> tuple[dict[str, _Side], dict[str, AgenticRetrieverError]]:
        """Search both sides, in one request where the index is on a server, else next to each other."""

        def completed(side: _Side) -> _Side:
            return self._with_background(side) if is_calibrated else side

        both = both_hits(self._index, request, depth, left)
        if both is not None:
            return {DENSE: _side_of(both[0]), BM25: completed(_side_of(both[1]))}, {}
        return run_sides(
            self._settings.workers,
            {
                DENSE: lambda: self._dense_side(request, depth, left()),
                BM25: lambda: completed(self._keyword_side(request, depth)),
            },
            timeout_s=left,
        )

    def _model(self) -> tuple[FusionModel, tuple[Degradation, ...]]:
        if self._settings.weights is not None:
            return self._settings.weights, ()
        try:
            return self._fusion.current(), ()
        except StoreDamagedError as err:
            lost = Degradation(step="hybrid.fusion", reason=str(err), fallback="the default weights")
            return DEFAULT_FUSION, (lost,)

    def _with_background(self, side: _Side) -> _Side:
        """Add what cosines are worth on this index, where it knows; without it both sides count alike."""
        index = self._index
        if not side.ranking or not isinstance(index, HasProfile):
            return side
        try:
            # Cosines of a search are worth what the index's own model makes of them.
            read = index.search_profile if isinstance(index, HasSearchProfile) else index.profile
            profile = guarded(f"the profile of index {index.name}", read)
        except AgenticRetrieverError as err:
            lost = Degradation(step="hybrid.background", reason=str(err), fallback="weights that suit any question")
            return replace(side, degraded=(lost,))
        found = CosineBackground(mean=profile.background_mean, std=profile.background_std, nodes=profile.nodes)
        return replace(side, background=found)

    def _dense_side(self, request: RetrievalRequest, depth: int, timeout_s: float | None) -> _Side:
        found = nearest(self._index, request, depth, timeout_s=timeout_s)
        return _Side(ranked([(c.node.node_id, c.score) for c in found]), {c.node.node_id: c.node for c in found})

    def _keyword_side(self, request: RetrievalRequest, depth: int) -> _Side:
        view = self._index.keyword()
        if isinstance(view, FilteredKeywordSearch):
            return _side_of(view.search_nodes(request.query, depth, request.filters))
        if request.filters is None or is_empty(request.filters):
            return _Side(view.search(request.query, depth))
        prefilter = prefilter_of(self._index)
        if prefilter is not None:
            return _Side(view.search(request.query, depth, allowed=prefilter.candidates(request.filters)))
        allowed = FilterTest(self._index, request.filters, len(view))
        return _Side(view.search(request.query, depth, allowed=allowed), allowed.nodes)

    def _merged(
        self, sides: Mapping[str, _Side], top_k: int, depth: int, model: FusionModel | None
    ) -> tuple[Candidate, ...]:
        found = SideLists.of(sides, depth)
        nodes = {node_id: node for side in sides.values() for node_id, node in side.nodes.items()}
        scores = {name: dict(entries) for name, entries in found.lists.items()}
        ranking: Sequence[tuple[str, float | None]] = next(iter(found.lists.values()), ())
        if len(found.lists) > 1:
            ranking = self._mixed(found) if model is None else found.merged(model)
            scores[FUSED] = dict(ranking)
        taken = take_nodes(self._index, ranking, nodes, top_k)
        return tuple(
            Candidate(node, score, {name: got[node.node_id] for name, got in scores.items() if node.node_id in got})
            for node, score in taken
        )

    def _mixed(self, found: SideLists) -> list[tuple[str, float]]:
        settings = self._settings
        weights = {DENSE: settings.alpha, BM25: 1 - settings.alpha}
        return fuse(settings.fusion, found.lists, weights, rrf_k=settings.rrf_k)


def _side_of(hits: Sequence[Hit]) -> _Side:
    return _Side(ranked([(hit.node.node_id, hit.score) for hit in hits]), {hit.node.node_id: hit.node for hit in hits})


def search_depth(top_k: int) -> int:
    """Return how deep each side is searched: 4 times ``top_k``, within 50 and 1,000, but never below ``top_k``."""
    return max(top_k, min(max(DEPTH_FACTOR * top_k, MIN_DEPTH), MAX_DEPTH))


def _fallback(side: str, err: AgenticRetrieverError) -> Degradation:
    return Degradation(step=_STEPS[side], reason=str(err), fallback=_FALLBACKS[side])

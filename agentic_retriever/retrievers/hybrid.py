"""Strategy ``hybrid``: dense and BM25 search side by side, fused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.vector_stores.types import FilterCondition, MetadataFilters

from agentic_retriever.errors import AgenticRetrieverError, RetrievalError, StoreDamagedError
from agentic_retriever.filters import is_empty, node_fields, predicate
from agentic_retriever.indices import Index
from agentic_retriever.retrievers.base import (
    AdapterSettings,
    RetrievalRequest,
    RetrieverAdapter,
    SearchResult,
    fetch_nodes,
    run_guarded,
    run_sides,
    scores_of,
    take_nodes,
)
from agentic_retriever.retrievers.fusion import (
    DEFAULT_FUSION,
    FUSION_FILE,
    RRF_K,
    CosineBackground,
    Fusion,
    FusionModel,
    InstalledFusion,
    dense_excess,
    fuse,
    ranked,
)
from agentic_retriever.retrievers.vector import DENSE, nearest, with_vector
from agentic_retriever.schema import Degradation, Strategy
from agentic_retriever.stores.points import Hit

if TYPE_CHECKING:
    from agentic_retriever.stores.server import ServerWords  # its package takes a second to load

T = TypeVar("T")

Left: TypeAlias = Callable[[], float]
"""Gives the seconds that are left."""

BM25: Final = "bm25"
FUSED: Final = "fused"
"""Names in the per-source scores, beside ``dense``; ``fused`` is there only where two lists were merged."""

DEPTH_FACTOR: Final = 4
MIN_DEPTH: Final = 50
MAX_DEPTH: Final = 1_000
CALIBRATED_DEPTH: Final = 100
"""How deep each side is searched for calibrated fusion, so that scores are the same for every ``top_k`` up to it."""

_STEPS: Final = {DENSE: "hybrid.dense", BM25: "hybrid.keyword"}
_FALLBACKS: Final = {DENSE: "BM25 search alone", BM25: "dense search alone"}


@dataclass(frozen=True, slots=True)
class _Side:
    """What one side found: ids and scores, best first, and those nodes that it has read."""

    ranking: Sequence[tuple[str, float | None]]
    nodes: Mapping[str, BaseNode] = field(default_factory=dict)
    background: CosineBackground | None = None
    degraded: tuple[Degradation, ...] = ()

    @classmethod
    def of(cls, found: Sequence[Hit] | Sequence[NodeWithScore]) -> _Side:
        nodes = {one.node.node_id: one.node for one in found}
        return cls(ranked([(one.node.node_id, one.score) for one in found]), nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideLists:
    """What calibrated fusion merges."""

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
    """

    strategy = Strategy.HYBRID
    keeps_deadlines = True

    def __init__(
        self, index: Index, settings: AdapterSettings, *, callback_manager: CallbackManager | None = None
    ) -> None:
        super().__init__(index, settings, callback_manager=callback_manager)
        self._fusion = Fusion(settings.config.fusion)
        self._installed = InstalledFusion(None if index.folder is None else index.folder / FUSION_FILE)

    def search_sides(self, request: RetrievalRequest) -> SideLists:
        """Search both sides as for calibrated fusion, and do not merge them; for fitting the weights."""
        depth = max(CALIBRATED_DEPTH, request.top_k)
        sides = {
            DENSE: _Side.of(nearest(self._index, request, depth, self._settings.config.deadline_s)),
            BM25: self._with_background(keyword_side(self._index, request, depth)),
        }
        return SideLists.of(sides, depth)

    def _search(self, request: RetrievalRequest, deadline: float) -> SearchResult:
        left = partial(self._left_s, deadline)
        is_calibrated = self._fusion is Fusion.CALIBRATED
        depth = max(CALIBRATED_DEPTH, request.top_k) if is_calibrated else search_depth(request.top_k)
        if self._fusion is Fusion.RRF:
            hits = self._fused_hits(request, depth, left)
            if hits is not None:
                found = [NodeWithScore(node=hit.node, score=hit.score) for hit in hits]
                return SearchResult(found, sources={FUSED: scores_of(found)})
        sides, errors = self._both_sides(request, depth, left)
        model, degraded = self._model() if is_calibrated else (None, ())
        try:
            result = self._merged(sides, request.top_k, depth, model)
        except AgenticRetrieverError as err:
            # Only hits of BM25 are read from the store after the fact.
            errors[BM25] = err
            sides.pop(BM25, None)
            result = self._merged(sides, request.top_k, depth, model)
        if not sides:
            causes = "; ".join(f"{side}: {err}" for side, err in errors.items())
            raise RetrievalError(f"both sides of hybrid search failed: {causes}", errors) from errors[DENSE]
        lost = (Degradation(step=_STEPS[s], reason=str(err), fallback=_FALLBACKS[s]) for s, err in errors.items())
        return replace(
            result, degraded=(*lost, *degraded, *(step for side in sides.values() for step in side.degraded))
        )

    def _both_sides(
        self, request: RetrievalRequest, depth: int, left: Left
    ) -> tuple[dict[str, _Side], dict[str, AgenticRetrieverError]]:
        """Search both sides, in one request where the index is on a server, else next to each other."""

        def completed(words: _Side) -> _Side:
            return self._with_background(words) if self._fusion is Fusion.CALIBRATED else words

        both = self._ask_server(
            request, left, lambda server, vector: server.search_both(vector, request.query, depth, request.filters)
        )
        if both is not None:
            return {DENSE: _Side.of(both[0]), BM25: completed(_Side.of(both[1]))}, {}
        return run_sides(
            self._settings.workers,
            {
                DENSE: lambda: _Side.of(nearest(self._index, request, depth, left())),
                BM25: lambda: completed(keyword_side(self._index, request, depth)),
            },
            timeout_s=left,
        )

    def _fused_hits(self, request: RetrievalRequest, depth: int, left: Left) -> Sequence[Hit] | None:
        """Let the server merge both sides by reciprocal ranks, where there is one that can."""

        def search(server: ServerWords, vector: Sequence[float]) -> Sequence[Hit] | None:
            return server.search_fused(
                vector, request.query, request.top_k,
                depth=depth, alpha=self._settings.config.hybrid_alpha, rrf_k=RRF_K, filters=request.filters,
            )  # fmt: skip

        return self._ask_server(request, left, search)

    def _ask_server(
        self, request: RetrievalRequest, left: Left, search: Callable[[ServerWords, Sequence[float]], T]
    ) -> T | None:
        server = self._index.both_sides()
        if server is None:
            return None
        try:
            vector = with_vector(self._index, request, left()).query_vector or ()
            return run_guarded(f"the server of index {self._index.name}", lambda: search(server, vector))
        except AgenticRetrieverError:
            return None  # each side by itself may still work, and whoever searches them tells what failed

    def _model(self) -> tuple[FusionModel, tuple[Degradation, ...]]:
        if self._settings.weights is not None:
            return self._settings.weights, ()
        try:
            return self._installed.current(), ()
        except StoreDamagedError as err:
            lost = Degradation(step="hybrid.fusion", reason=str(err), fallback="the default weights")
            return DEFAULT_FUSION, (lost,)

    def _with_background(self, side: _Side) -> _Side:
        """Add what cosines are worth on this index, where it knows; without it both sides count alike."""
        if not side.ranking:
            return side
        index = self._index
        try:
            # Cosines of a search are worth what the index's own model makes of them.
            profile = run_guarded(f"the profile of index {index.name}", index.search_profile)
        except AgenticRetrieverError as err:
            lost = Degradation(step="hybrid.background", reason=str(err), fallback="weights that suit any question")
            return replace(side, degraded=(lost,))
        if profile is None:
            return side
        found = CosineBackground(mean=profile.background_mean, std=profile.background_std, nodes=profile.nodes)
        return replace(side, background=found)

    def _merged(self, sides: Mapping[str, _Side], top_k: int, depth: int, model: FusionModel | None) -> SearchResult:
        found = SideLists.of(sides, depth)
        nodes = {node_id: node for side in sides.values() for node_id, node in side.nodes.items()}
        sources = {name: dict(entries) for name, entries in found.lists.items()}
        ranking: Sequence[tuple[str, float | None]] = next(iter(found.lists.values()), ())
        if len(found.lists) > 1:
            ranking = self._mixed(found) if model is None else found.merged(model)
            sources[FUSED] = dict(ranking)
        return SearchResult(take_nodes(self._index, ranking, nodes, top_k), sources=sources)

    def _mixed(self, found: SideLists) -> list[tuple[str, float]]:
        alpha = self._settings.config.hybrid_alpha
        return fuse(self._fusion, found.lists, {DENSE: alpha, BM25: 1 - alpha})


def search_depth(top_k: int) -> int:
    """Return how deep each side is searched: 4 times ``top_k``, within 50 and 1,000, but never below ``top_k``."""
    return max(top_k, min(max(DEPTH_FACTOR * top_k, MIN_DEPTH), MAX_DEPTH))


def keyword_side(index: Index, request: RetrievalRequest, depth: int) -> _Side:
    """Search by words, under the request's filters."""
    view, filters = index.keyword(), request.filters
    hits = view.search_nodes(request.query, depth, filters)
    if hits is not None:
        return _Side.of(hits)
    if filters is None or is_empty(filters):
        return _Side(view.search(request.query, depth))
    if index.has_prefilter:
        return _Side(view.search(request.query, depth, allowed=index.candidates(filters)))
    allowed = FilterTest(index, filters, len(view))
    return _Side(view.search(request.query, depth, allowed=allowed), allowed.nodes)


# Testing filters on ids that a search by words has found, where the index has no prefilter.

CHECKED_BY_ID = 500
LISTED_AT_MOST = 1_000
"""When, after 500 candidates, so few have satisfied the filters that the whole index may hold no more than 1,000 such
nodes, the store is asked for all of them. Until then, and otherwise, candidates are read by id."""

FULL_LIST = 9_999
"""Some stores cut a list of nodes at this length, so one that long is not taken for complete."""


class FilterTest:
    """Tells which ids of a batch satisfy the filters, exactly, by reading the nodes; keeps those that do."""

    def __init__(self, index: Index, filters: MetadataFilters, total: int) -> None:
        self.nodes: dict[str, BaseNode] = {}
        self._index = index
        self._satisfies = predicate(filters)
        # Some stores take ids as one more alternative of an "or", so that never stands at the top.
        self._pushed: MetadataFilters | None = MetadataFilters(filters=[filters])
        if filters.condition is FilterCondition.AND:
            self._pushed = filters
        self._total = total
        self._asked = 0
        self._has_listed = False
        self._is_complete = False

    def __call__(self, node_ids: Sequence[str]) -> Collection[str]:
        """Return the ids of all nodes known to satisfy the filters, these among them if they do."""
        if not self._has_listed and self._asked >= CHECKED_BY_ID and self._expected() <= LISTED_AT_MOST:
            self._has_listed = True
            self._is_complete = self._list()
        if not self._is_complete:
            self._read(node_ids)
            self._asked += len(node_ids)
        return self.nodes.keys()

    def _expected(self) -> float:
        """Estimate how many nodes of the index satisfy the filters."""
        return (len(self.nodes) + 1) / self._asked * self._total

    def _read(self, node_ids: Sequence[str]) -> None:
        """Read these nodes, only those that satisfy the filters where the store can do so."""
        if self._pushed is not None:
            try:
                self._keep(fetch_nodes(self._index, node_ids, self._pushed).values())
            except AgenticRetrieverError:
                self._pushed = None  # not every store takes both, or knows every operator
            else:
                return
        self._keep(fetch_nodes(self._index, node_ids).values())

    def _list(self) -> bool:
        """Read all nodes that satisfy the filters, and tell whether the list is complete."""
        if self._pushed is None:
            return False
        store, filters = self._index.vector_store, self._pushed
        try:
            found = run_guarded("listing nodes by filter", lambda: store.get_nodes(filters=filters))
        except AgenticRetrieverError:
            return False
        self._keep(found)
        return len(found) < FULL_LIST

    def _keep(self, nodes: Collection[BaseNode]) -> None:
        self.nodes.update((node.node_id, node) for node in nodes if self._satisfies(node_fields(node)))

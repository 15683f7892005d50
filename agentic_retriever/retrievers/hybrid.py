"""Strategy ``hybrid``: dense and BM25 search side by side, fused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from llama_index.core.vector_stores.types import FilterCondition, MetadataFilters

from agentic_retriever.errors import AgenticRetrieverError, DeadlineExceededError, RetrievalError, StoreDamagedError
from agentic_retriever.filters import is_empty, node_fields, predicate
from agentic_retriever.retrievers.base import (
    Candidate,
    Found,
    RetrieverAdapter,
    fetch_nodes,
    run_guarded,
    run_sides,
    take_nodes,
)
from agentic_retriever.retrievers.fusion import Fusion, fuse, ranked
from agentic_retriever.retrievers.fusion_model import (
    DEFAULT_FUSION,
    FUSION_FILE,
    CosineBackground,
    FusionModel,
    InstalledFusion,
    dense_excess,
)
from agentic_retriever.retrievers.vector import DENSE, nearest
from agentic_retriever.schema import Degradation, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from llama_index.core.callbacks.base import CallbackManager
    from llama_index.core.schema import BaseNode

    from agentic_retriever.indices import Index
    from agentic_retriever.retrievers.base import AdapterSettings, RetrievalRequest
    from agentic_retriever.stores.points import Hit
    from agentic_retriever.stores.server.searching import ServerWords

    Left = Callable[[], float | None]


# Hybrid search in one request, on an index whose nodes are on a server that searches by words, too.

T = TypeVar("T")


def fused_hits(
    index: Index, request: RetrievalRequest, settings: AdapterSettings, depth: int, left: Left
) -> Sequence[Hit] | None:
    """Let the server merge both sides by reciprocal ranks."""

    def search(server: ServerWords, vector: Sequence[float]) -> Sequence[Hit] | None:
        return server.search_fused(
            vector, request.query, request.top_k,
            depth=depth, alpha=settings.alpha, rrf_k=settings.rrf_k, filters=request.filters,
        )  # fmt: skip

    return _asked(index, request, left, search)


def both_hits(
    index: Index, request: RetrievalRequest, depth: int, left: Left
) -> tuple[Sequence[Hit], Sequence[Hit]] | None:
    """Search both sides in one request."""
    return _asked(
        index, request, left, lambda server, vector: server.search_both(vector, request.query, depth, request.filters)
    )


def _asked(
    index: Index, request: RetrievalRequest, left: Left, search: Callable[[ServerWords, Sequence[float]], T]
) -> T | None:
    server = index.both_sides()
    if server is None:
        return None
    try:
        vector = _vector(index, request, left())
        return run_guarded(f"the server of index {index.name}", lambda: search(server, vector))
    except AgenticRetrieverError:
        return None  # each side by itself may still work, and whoever searches them tells what failed


def _vector(index: Index, request: RetrievalRequest, timeout_s: float | None) -> Sequence[float]:
    if request.query_vector is not None:
        return request.query_vector
    if timeout_s is not None and timeout_s <= 0:
        raise DeadlineExceededError("no time was left to embed the question; allow more time")
    embedded = run_guarded(
        "the embedding model", lambda: index.embedding.embed_query(request.query, timeout_s=timeout_s)
    )
    return tuple(float(x) for x in embedded)


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
        self._fusion = InstalledFusion(None if index.folder is None else index.folder / FUSION_FILE)

    def search_sides(self, request: RetrievalRequest) -> SideLists:
        """Search both sides as for calibrated fusion, and do not merge them; for fitting the weights."""
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
        if not side.ranking:
            return side
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

    def _dense_side(self, request: RetrievalRequest, depth: int, timeout_s: float | None) -> _Side:
        found = nearest(self._index, request, depth, timeout_s=timeout_s)
        return _Side(ranked([(c.node.node_id, c.score) for c in found]), {c.node.node_id: c.node for c in found})

    def _keyword_side(self, request: RetrievalRequest, depth: int) -> _Side:
        view = self._index.keyword()
        hits = view.search_nodes(request.query, depth, request.filters)
        if hits is not None:
            return _side_of(hits)
        if request.filters is None or is_empty(request.filters):
            return _Side(view.search(request.query, depth))
        if self._index.has_prefilter:
            return _Side(view.search(request.query, depth, allowed=self._index.candidates(request.filters)))
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

"""Strategy ``hybrid``: dense and BM25 search side by side, fused; and the merging of ranked lists, in any order."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache, partial
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from llama_index.core.schema import BaseNode, NodeWithScore
from pydantic import field_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from agentic_retriever import json_files
from agentic_retriever.errors import AgenticRetrieverError, ConfigError, StoreDamagedError
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.retrievers import base
from agentic_retriever.retrievers.vector import DENSE, nearest, with_vector
from agentic_retriever.schema import Degradation, Strategy
from agentic_retriever.stores.points import Hit

if TYPE_CHECKING:
    from agentic_retriever.indices.profile import IndexProfile
    from agentic_retriever.stores.server import ServerWords  # its package takes a second to load

T = TypeVar("T")
Entry: TypeAlias = tuple[str, float | None]
Weights: TypeAlias = Mapping[str, float]  # by source
Left: TypeAlias = Callable[[], float]  # gives the seconds that are left

RRF_K: Final = 60


class Fusion(str, Enum):
    """The ways to merge, by the names that the settings use.

    ``WEIGHTED`` adds up the weighted scores, each brought to [0, 1] within its source (CombSUM: Fox and Shaw 1994): the
    best of a source becomes 1, the worst 0; where all are the same, all become 1. An id that a source does not have
    gets 0 from it.

    ``CALIBRATED`` does so from the floor of each source where it is known. A list that was cut at some depth ends where
    it was cut, and what lies below gets 0. A list that holds all that its source has found ends above what it has not
    found, and the score of that is its floor: 0 for BM25. So the last of a few hits by words is worth more than no hit
    (the theoretical minimum of S. Bruch, S. Gai and A. Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval",
    TOIS 42, 2023, but only where the list is whole).

    ``RRF`` adds up ``weight / (60 + rank)``, ranks from 1 (Cormack, Clarke and Buettcher 2009, "Reciprocal Rank
    Fusion").

    ``BORDA`` lets each source vote: of ``n`` ids in all, its first gets ``n`` points, its second ``n - 1``, and so on;
    the points left over are shared equally by the ids that it does not have (Aslam and Montague 2001, "Models for
    Metasearch"). Points are divided by ``n``, so that scores stay in [0, 1] when the weights sum to 1.
    """

    CALIBRATED = "calibrated"
    WEIGHTED = "weighted"
    RRF = "rrf"
    BORDA = "borda"


def fuse(
    method: Fusion, lists: Mapping[str, base.Ranking], weights: Weights, *, floors: Weights | None = None
) -> list[tuple[str, float]]:
    """Merge the ranked lists of several sources into one."""
    for source in lists:
        weight = weights.get(source)
        if weight is None or not math.isfinite(weight) or weight < 0:
            raise ConfigError(f"fusion needs a weight of 0 or more for the source {source!r}, got {weight!r}")
    known = (floors or {}) if method is Fusion.CALIBRATED else {}
    in_order = {source: ranked(entries) for source, entries in lists.items()}
    ids = {node_id for entries in in_order.values() for node_id, _score in entries}
    parts = [(weights[name], *_points(method, found, len(ids), known.get(name))) for name, found in in_order.items()]
    # fsum gives the same sum in any order of the sources.
    totals = [(i, math.fsum(weight * got.get(i, absent) for weight, got, absent in parts)) for i in ids]
    return sorted(totals, key=lambda entry: (-entry[1], entry[0]))


def _points(method: Fusion, entries: list[Entry], count: int, floor: float | None) -> tuple[dict[str, float], float]:
    """Return what a source gives to its ids, and to each of the others of ``count`` in all."""
    if method is Fusion.RRF:
        return {node_id: 1 / (RRF_K + rank) for rank, (node_id, _score) in enumerate(entries, start=1)}, 0.0
    if method is Fusion.BORDA:
        left_over = (count - len(entries) + 1) / (2 * count) if entries else 0.0
        return {node_id: (count - i) / count for i, (node_id, _score) in enumerate(entries)}, left_over
    return _to_unit(entries, floor), 0.0


def ranked(entries: base.Ranking) -> list[Entry]:
    """Return a list in order, without repetitions; a score that is no finite number becomes ``None`` and goes last."""
    best: dict[str, float | None] = {}
    for node_id, score in entries:
        value = float(score) if score is not None and math.isfinite(score) else None
        known = best.get(node_id)
        best[node_id] = value if known is None else max(known, known if value is None else value)
    return sorted(best.items(), key=lambda entry: (entry[1] is None, -(entry[1] or 0.0), entry[0]))


def _to_unit(entries: list[Entry], floor: float | None = None) -> dict[str, float]:
    finite = [(node_id, score) for node_id, score in entries if score is not None]
    if not finite:
        return {}
    high, low = finite[0][1], finite[-1][1]
    if floor is not None and math.isfinite(floor):
        low = min(low, floor)
    if len(finite) < len(entries):
        # One step lower, so that the worst of those with a score stays ahead of those without, which get 0.
        low = max(math.nextafter(low, -math.inf), -sys.float_info.max)
    if high == low:
        return dict.fromkeys((node_id for node_id, _score in finite), 1.0)
    # Halved, the difference of very large numbers of opposite sign does not overflow.
    scale = 1.0 if math.isfinite(high - low) else 0.5
    span = high * scale - low * scale
    return {node_id: (score * scale - low * scale) / span for node_id, score in finite}


def unit_scores(entries: base.Ranking) -> dict[str, float]:
    """Bring scores to [0, 1], best first: all 1 where they are the same; what has no score gets 0."""
    in_order = ranked(entries)
    units = _to_unit([entry for entry in in_order if entry[1] is not None])
    return {node_id: units.get(node_id, 0.0) for node_id, _score in in_order}


# How much hybrid search trusts its dense side: evenly, by question, or as fitted on judged questions of an index.
# A question's best cosine is compared with the cosines between unrelated nodes of the index, with what the best of that
# many nodes would reach by chance, and with the best score by words. Far above, the dense side has found something, and
# gets more weight; where the words have found much, they get more. docs/training.md says how its constants were chosen.

FUSION_FILE: Final = "fusion.json"
MIN_NODES: Final = 30  # below so many the spread of cosines says too little
WORDS_KNOWN: Final = 0.7  # share of a question's words, by their rarity, from which on they are heard fully
WORDS_SPEAK: Final = 1.3  # standard deviations of excess that go with e times the score by words


@checked_dataclass(frozen=True, slots=True, kw_only=True)
class FusionTrainedOn(json_files.FileTable):
    """What a fusion model was fitted on."""

    dataset: str
    index: str
    index_version: json_files.Count
    rows: json_files.Count
    date: str  # ISO 8601


@checked_dataclass(frozen=True, slots=True, kw_only=True)
class FusionModel(json_files.FileTable):
    """The weight of the dense side, by question.

    The weight is ``alpha`` where the excess of the dense side (see :func:`dense_excess`) is ``pivot``, or not known.
    It rises by ``slope`` with each standard deviation of excess, moves at most ``reach`` away from ``alpha``, and stays
    in [0, 1]. With a slope of 0 it is the same for every question; ``alpha`` 0 is BM25 alone, 1 dense search alone.
    """

    format: Literal[2] = field(default=2, repr=False)  # 1 was fitted to an excess that knew nothing of the words
    alpha: json_files.Share = 0.5
    slope: json_files.NotNegative = 0.14
    pivot: json_files.Number = -3.5
    reach: json_files.Share = 0.2
    trained_on: FusionTrainedOn | None = None  # none for the default

    @field_validator("trained_on", mode="before")
    @classmethod
    def _known(cls, trained: object) -> object:
        """Leave out what is of the time when weights were also fitted without judgments."""
        if isinstance(trained, dict):
            return {name: value for name, value in trained.items() if name != "pseudo"}
        return trained

    def weight(self, excess: float | None) -> float:
        """Return the weight of the dense side, in [0, 1]; that of BM25 is the rest."""
        if excess is None or not math.isfinite(excess):
            return self.alpha
        moved = max(-self.reach, min(self.reach, self.slope * (excess - self.pivot)))
        return max(0.0, min(1.0, self.alpha + moved))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return asdict(self)

    def save(self, path: Path) -> None:
        """Write the model as JSON in one step."""
        json_files.write_atomically(path, json_files.model_bytes(self.to_dict()))

    @classmethod
    def load(cls, path: Path) -> FusionModel | None:
        """Read a model; ``None`` when there is no such file."""
        return json_files.load_model(path, cls.from_dict, advice="remove it or train the index again")


# Without judged questions: both sides alike, moved by at most 0.2 by what they have found.
DEFAULT_FUSION: Final = FusionModel()


def installed_fusion(path: Path) -> FusionModel:
    """Return the model beside an index, read again when the file has changed, or the default when there is none."""
    stamp = json_files.last_change(path)
    return _read_fusion(path, stamp) if any(stamp) else DEFAULT_FUSION


@lru_cache(256)
def _read_fusion(path: Path, _stamp: object) -> FusionModel:
    return FusionModel.load(path) or DEFAULT_FUSION


def dense_excess(best: float | None, profile: IndexProfile | None, words: float = 1.0) -> float | None:
    """Tell how far the best cosine of a search stands above chance, less what the best score by words says.

    Chance is the median of the largest of ``n`` standard normal numbers: in a large index something is always near.
    """
    if best is None or profile is None or profile.nodes < MIN_NODES or not profile.background_std > 0 or words <= 0:
        return None
    by_chance = NormalDist().inv_cdf(2 ** (-1 / profile.nodes))
    above = (best - profile.background_mean) / profile.background_std - by_chance
    excess = above - WORDS_SPEAK * math.log(words)
    return excess if math.isfinite(excess) else None


# The strategy.

FUSED: Final = "fused"  # in the per-source scores only where two lists were merged

CALIBRATED_DEPTH: Final = 100  # searched on each side, so that scores are the same for every top_k up to it

_LOST: Final = {DENSE: ("hybrid.dense", "BM25 search alone"), base.BM25: ("hybrid.keyword", "dense search alone")}


@dataclass(frozen=True, slots=True)
class _Side:
    """What one side found: ids and scores, best first, and those nodes that it has read."""

    ranking: base.Ranking
    nodes: Mapping[str, BaseNode] = field(default_factory=dict)
    profile: IndexProfile | None = None  # what cosines are worth on the index
    known: float = 1.0  # which share of the question's words the index has
    degraded: tuple[Degradation, ...] = ()

    @classmethod
    def of(cls, found: Sequence[Hit] | Sequence[NodeWithScore]) -> _Side:
        nodes = {one.node.node_id: one.node for one in found}
        return cls(ranked([(one.node.node_id, one.score) for one in found]), nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideLists:
    lists: Mapping[str, base.Ranking]
    floors: Mapping[str, float]
    excess: float | None
    known: float = 1.0

    @classmethod
    def of(cls, sides: Mapping[str, _Side], depth: int) -> SideLists:
        """Take them from what the sides found, each searched this deep."""
        lists = {name: side.ranking for name, side in sides.items() if side.ranking}
        words, dense = lists.get(base.BM25, ()), lists.get(DENSE, ())
        floors = {base.BM25: 0.0} if 0 < len(words) < depth else {}
        profile = next((side.profile for side in sides.values() if side.profile is not None), None)
        heard = (words[0][1] if words else None) or 1.0
        excess = dense_excess(dense[0][1] if dense else None, profile, heard)
        return cls(lists=lists, floors=floors, excess=excess, known=min(side.known for side in sides.values()))

    def merged(self, dense_weight: float, method: Fusion = Fusion.CALIBRATED) -> list[tuple[str, float]]:
        """Merge the sides, best first; calibrated and weighted scores are in [0, 1]."""
        words = 1 - dense_weight
        if method is Fusion.CALIBRATED:  # words of another language, for instance, of which few are found, say little
            words *= min(1.0, self.known / WORDS_KNOWN)
        return fuse(method, self.lists, {DENSE: 1 - words, base.BM25: words}, floors=self.floors)


class HybridRetriever(base.RetrieverAdapter):
    """Dense and BM25 search, merged by calibrated or fixed weights, reciprocal ranks or Borda votes.

    Where only one side finds anything (no word of the question occurs in the index, or the other side failed), its
    result is handed on as it is, with its own scores: cosines, or BM25's. Calibrated fusion reads the model beside the
    index, where training has put one, again when it has changed.
    """

    strategy = Strategy.HYBRID
    keeps_deadlines = True

    @property
    def _fusion(self) -> Fusion:
        return Fusion(self._settings.config.fusion)

    def search_sides(self, request: base.RetrievalRequest) -> SideLists:
        """Search both sides as for calibrated fusion, and do not merge them; for fitting the weights."""
        depth = max(CALIBRATED_DEPTH, request.top_k)
        sides = {
            DENSE: _Side.of(nearest(self._index, request, depth, self._settings.config.deadline_s)),
            base.BM25: self._with_background(_Side(*base.search_words(self._index, request, depth)), request),
        }
        return SideLists.of(sides, depth)

    def _search(self, request: base.RetrievalRequest, deadline: float) -> base.SearchResult:
        left, alpha = partial(self._left_s, deadline), self._settings.config.hybrid_alpha
        request = with_vector(self._index, request, left())
        is_calibrated = self._fusion is Fusion.CALIBRATED
        depth = max(CALIBRATED_DEPTH, request.top_k) if is_calibrated else search_depth(request.top_k)
        if self._fusion is Fusion.RRF:
            hits = self._ask_server(
                request,
                lambda server, vector: server.search_fused(
                    vector, request.words, request.top_k, depth=depth, alpha=alpha, rrf_k=RRF_K, filters=request.filters
                ),
            )
            if hits is not None:
                found = [NodeWithScore(node=hit.node, score=hit.score) for hit in hits]
                return base.SearchResult(found, sources={FUSED: base.scores_of(found)})
        sides, errors = self._both_sides(request, depth, left)
        weigh, degraded = self._weigh() if is_calibrated else (lambda _excess: alpha, ())
        merge = partial(self._merged, top_k=request.top_k, depth=depth, weigh=weigh)
        result = base.merge_sides("hybrid search", sides, errors, merge, reread=base.BM25, lost=_LOST)
        of_sides = (step for side in sides.values() for step in side.degraded)
        return replace(result, degraded=(*result.degraded, *degraded, *of_sides))

    def _both_sides(
        self, request: base.RetrievalRequest, depth: int, left: Left
    ) -> tuple[dict[str, _Side], dict[str, AgenticRetrieverError]]:
        """Search both sides, in one request where the index is on a server, else next to each other."""

        def completed(words: _Side) -> _Side:
            return self._with_background(words, request) if self._fusion is Fusion.CALIBRATED else words

        both = self._ask_server(
            request, lambda server, vector: server.search_both(vector, request.words, depth, request.filters)
        )
        if both is not None:
            return {DENSE: _Side.of(both[0]), base.BM25: completed(_Side.of(both[1]))}, {}
        sides: dict[str, Callable[[], _Side]] = {
            DENSE: lambda: _Side.of(nearest(self._index, request, depth, left())),
            base.BM25: lambda: completed(_Side(*base.search_words(self._index, request, depth))),
        }
        return base.run_sides(self._settings.workers, sides, timeout_s=left)

    def _ask_server(
        self, request: base.RetrievalRequest, search: Callable[[ServerWords, Sequence[float]], T]
    ) -> T | None:
        server = self._index.both_sides()
        if server is None:
            return None
        try:
            asked = partial(search, server, request.query_vector or ())
            return base.run_guarded(f"the server of index {self._index.name}", asked)
        except AgenticRetrieverError:
            return None  # each side by itself may still work, and whoever searches them tells what failed

    def _weigh(self) -> tuple[Callable[[float | None], float], tuple[Degradation, ...]]:
        """Return what gives the weight of the dense side by the excess of its best cosine."""
        folder = self._index.folder
        if self._settings.dense_weight is not None or folder is None:
            return self._settings.dense_weight or DEFAULT_FUSION.weight, ()
        try:
            return installed_fusion(folder / FUSION_FILE).weight, ()
        except StoreDamagedError as err:
            lost = Degradation(step="hybrid.fusion", reason=str(err), fallback="the default weights")
            return DEFAULT_FUSION.weight, (lost,)

    def _with_background(self, side: _Side, request: base.RetrievalRequest) -> _Side:
        """Add what cosines and words are worth on this index, where it knows; without it both sides count alike."""
        if not side.ranking:
            return side
        index = self._index
        view = index.keyword() if index.both_sides() is None else None
        side = replace(side, known=view.known_share(request.words)) if isinstance(view, KeywordIndex) else side
        try:
            # Cosines of a search are worth what the index's own model makes of them.
            return replace(side, profile=base.run_guarded(f"the profile of index {index.name}", index.search_profile))
        except AgenticRetrieverError as err:
            lost = Degradation(step="hybrid.background", reason=str(err), fallback="weights that suit any question")
            return replace(side, degraded=(lost,))

    def _merged(
        self, sides: Mapping[str, _Side], *, top_k: int, depth: int, weigh: Callable[[float | None], float]
    ) -> base.SearchResult:
        found = SideLists.of(sides, depth)
        nodes = {node_id: node for side in sides.values() for node_id, node in side.nodes.items()}
        sources = {name: dict(entries) for name, entries in found.lists.items()}
        ranking: base.Ranking = next(iter(found.lists.values()), ())
        if len(found.lists) > 1:
            ranking = found.merged(weigh(found.excess), self._fusion)
            sources[FUSED] = dict(ranking)
        return base.SearchResult(base.take_nodes(self._index, ranking, nodes, top_k), sources=sources)


class OverHybrid(base.RetrieverAdapter):
    """Base of the strategies that go on from what hybrid search finds."""

    @cached_property
    def _hybrid(self) -> HybridRetriever:
        return HybridRetriever(self._index, self._settings)


def search_depth(top_k: int) -> int:
    """Return how deep each side is searched: 4 times ``top_k``, within 50 and 1,000, but never below ``top_k``."""
    return max(top_k, min(max(4 * top_k, 50), 1_000))

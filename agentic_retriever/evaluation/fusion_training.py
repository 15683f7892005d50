"""Fitting how an index weighs the two sides of hybrid search, on questions that people have judged.

Questions that were made of the documents' own words are of no use here: they ask for BM25 alone on any collection,
where real questions ask for a mixture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agentic_retriever.evaluation.fusion_fitting import (
    CANDIDATES,
    MIN_QUESTIONS,
    FusionTable,
    better_side,
    fit_fusion,
    validate_fusion,
)
from agentic_retriever.evaluation.measures import ndcg_by_query
from agentic_retriever.retrievers import (
    DEFAULT_FUSION,
    FUSION_FILE,
    Fusion,
    HybridRetriever,
    RetrievalRequest,
    fetch_nodes,
)
from agentic_retriever.retrievers.hybrid import CALIBRATED_DEPTH
from agentic_retriever.schema import Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.evaluation.fusion_fitting import FusionValidation
    from agentic_retriever.evaluation.strategies import JudgedQuery
    from agentic_retriever.evaluation.watching import Watcher
    from agentic_retriever.indices import Index
    from agentic_retriever.retrievers import FusionModel, FusionTrainedOn, SearchableIndex, SideLists
    from agentic_retriever.router import AgenticRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionTraining:
    """What fitting the weights found, and what became of them."""

    validation: FusionValidation | None = None  # none when there were too few questions, or no person judged them
    model: FusionModel | None = None  # what was installed, or would have been in a dry run
    installed: bool = False
    verdict: str

    @classmethod
    def left_out(cls, why: str) -> FusionTraining:
        """Say that nothing was fitted, and why."""
        return cls(verdict=f"weights of hybrid not fitted: {why}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "validation": None if self.validation is None else self.validation.to_dict(),
            "model": None if self.model is None else self.model.to_dict(),
            "installed": self.installed,
            "verdict": self.verdict,
        }


def train_fusion(
    router: AgenticRouter,
    index: Index,
    queries: Sequence[JudgedQuery],
    *,
    trained_on: FusionTrainedOn,
    seed: int = 0,
    install: bool = True,
    watcher: Watcher | None = None,
) -> FusionTraining:
    """Fit the weights of hybrid search on an index, and install them if they help.

    Weights that are better than the default, but below the better side alone, give way to that side alone where it is
    better than the default, too.
    """
    hybrid = router.resources.adapter(index, Strategy.HYBRID)
    if len(queries) < MIN_QUESTIONS:
        return FusionTraining.left_out(f"{len(queries)} judged questions are too few, {MIN_QUESTIONS} are the least")
    if not isinstance(hybrid, HybridRetriever):
        return FusionTraining.left_out(f"{type(hybrid).__name__} is registered for hybrid search")
    table = fusion_table(index, hybrid, queries, watcher=watcher)
    validation = validate_fusion(table, seed=seed)
    path, used = index.folder / FUSION_FILE, router.config.fusion == Fusion.CALIBRATED.value
    had_one, model = path.exists(), None
    if validation.helps:
        model = fit_fusion(table, trained_on=trained_on)
    elif validation.side_helps:
        model = better_side(table, trained_on=trained_on)
    if model is not None and install:
        model.save(path)
    return FusionTraining(
        validation=validation,
        model=model,
        installed=model is not None and install,
        verdict=_verdict(validation, model, install=install, used=used, had_one=had_one),
    )


def fusion_table(
    index: SearchableIndex,
    hybrid: HybridRetriever,
    queries: Sequence[JudgedQuery],
    *,
    watcher: Watcher | None = None,
) -> FusionTable:
    """Search both sides for every question once, and measure them merged by every candidate, documents by best node."""
    sides: dict[str, SideLists] = {}
    documents: dict[str, str] = {}
    if watcher is not None:
        watcher.begin("weights of hybrid", len(queries))
    for query in queries:
        request = RetrievalRequest(query.text, CALIBRATED_DEPTH, None, tuple(query.vector.tolist()))
        sides[query.query_id] = hybrid.search_sides(request)
        _learn_documents(index, sides[query.query_id], documents)
        if watcher is not None:
            watcher.advance(1)
    grades = {query.query_id: query.relevance for query in queries}
    quality = np.zeros((len(grades), len(CANDIDATES)))
    for at, model in enumerate(CANDIDATES):
        reached = ndcg_by_query(grades, {i: _document_ranking(found, model, documents) for i, found in sides.items()})
        quality[:, at] = [reached[query_id] for query_id in grades]
    return FusionTable(quality=quality)


def _learn_documents(index: SearchableIndex, found: SideLists, documents: dict[str, str]) -> None:
    """Note which document each node belongs to."""
    unknown = {node_id for entries in found.lists.values() for node_id, _score in entries} - documents.keys()
    nodes = fetch_nodes(index, sorted(unknown))
    documents.update((node_id, str(nodes[node_id].ref_doc_id or node_id)) for node_id in unknown & nodes.keys())


def _document_ranking(found: SideLists, model: FusionModel, documents: Mapping[str, str]) -> list[str]:
    """Rank documents by their best node, as the strategy would return them."""
    lists = list(found.lists.values())
    ranking = found.merged(model) if len(lists) > 1 else [(i, 0.0) for entries in lists for i, _score in entries]
    # Nodes that were deleted meanwhile are left out, as in a search.
    return list(dict.fromkeys(documents[node_id] for node_id, _score in ranking if node_id in documents))


def _verdict(
    validation: FusionValidation, model: FusionModel | None, *, install: bool, used: bool, had_one: bool
) -> str:
    side = _told(validation.over_side)
    if model is None:
        gain = f"{_told(validation.gain)} nDCG@10 over the default and {side} over the better side"
        stays = "; the weights that were there stay" if had_one else ""
        return f"weights of hybrid not installed, since they do not help: {gain}{stays}"
    if validation.helps:
        what = f"weights of hybrid (dense side {model.alpha:g})"
        gain = f"{_told(validation.gain)} nDCG@10 over the default and {side} over the better side"
    else:
        what = "BM25 alone as hybrid" if model.alpha < DEFAULT_FUSION.alpha else "dense search alone as hybrid"
        gain = f"{_told(validation.side_gain)} nDCG@10 over the default, and no mixture is better"
    done = "installed" if install else "would be installed, but this is a dry run"
    return f"{what} {done}: {gain}{'' if used else '; counts once the setting fusion is calibrated'}"


def _told(gain: tuple[float, float, float]) -> str:
    return f"{gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]"

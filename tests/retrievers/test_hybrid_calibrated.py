"""Calibrated fusion in the strategy: what it reads of an index, and what its results promise."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from llama_index.core.schema import TextNode

from agentic_retriever.errors import StoreError
from agentic_retriever.retrievers import (
    FUSION_FILE,
    AdapterSettings,
    FusionModel,
    HybridRetriever,
    PlannerRetriever,
    RetrievalRequest,
    VectorRetriever,
    source_scores,
)

COUNT = 300


def background(mean, std, nodes=COUNT):
    return SimpleNamespace(background_mean=mean, background_std=std, nodes=nodes)


@pytest.fixture
def nodes():
    """All hold the word; shorter texts rank higher by words, later ones by vector."""
    return [TextNode(id_=f"n{i:03d}", text="zebra" + " stripe" * i) for i in range(COUNT)]


@pytest.fixture
def index(make_index, nodes, tmp_path):
    """An index with a folder and a profile."""
    known = make_index(nodes)
    known.vector_store.scores = {f"n{i:03d}": 0.5 + i / 1000 for i in range(COUNT)}
    known.folder, known.background = tmp_path, background(0.65, 0.05)

    def profile():
        if isinstance(known.background, Exception):
            raise known.background
        return known.background

    known.search_profile = profile
    return known


def first(adapter, top_k=1):
    return [n.node.node_id for n in adapter.search(RetrievalRequest("zebra", top_k)).nodes]


def test_the_installed_model_decides_as_soon_as_it_is_there(index, settings):
    adapter = HybridRetriever(index, settings)
    FusionModel(alpha=0.1, slope=0.0).save(index.folder / FUSION_FILE)
    assert first(adapter) == ["n000"]
    FusionModel(alpha=0.9, slope=0.0, pivot=1.5).save(index.folder / FUSION_FILE)
    assert first(adapter) == [f"n{COUNT - 1}"]


@pytest.mark.parametrize(("alpha", "side"), [(0.0, "bm25"), (1.0, "dense")])
def test_one_side_alone_can_be_installed(index, settings, alpha, side):
    FusionModel(alpha=alpha, slope=0.0, reach=0.0).save(index.folder / FUSION_FILE)
    expected = {
        "bm25": [i for i, _ in index.keyword().search("zebra", 50)],
        "dense": [n.node.node_id for n in VectorRetriever(index, settings).search(RetrievalRequest("zebra", 50)).nodes],
    }
    assert first(HybridRetriever(index, settings), 50) == expected[side]


def test_a_damaged_model_is_told_and_the_default_holds(index, settings):
    adapter = HybridRetriever(index, settings)
    expected = first(adapter, 20)
    (index.folder / FUSION_FILE).write_text("{}")
    result = adapter.search(RetrievalRequest("zebra", 20))
    assert [n.node.node_id for n in result.nodes] == expected
    [lost] = result.degraded
    assert (lost.step, lost.fallback) == ("hybrid.fusion", "the default weights")
    assert FUSION_FILE in lost.reason


def test_what_stands_out_by_vector_gets_more_weight(index, settings):
    adapter = HybridRetriever(index, settings)
    index.background = background(0.65, 0.01)  # the best cosine is 0.799
    assert adapter.search_sides(RetrievalRequest("zebra", 5)).excess > 5
    assert first(adapter) == [f"n{COUNT - 1}"]
    index.background = background(0.79, 0.05)
    assert adapter.search_sides(RetrievalRequest("zebra", 5)).excess < -2
    assert first(adapter) == ["n000"]


def test_without_a_profile_both_sides_count_alike(index, make_index, nodes, settings):
    adapter = HybridRetriever(index, settings)
    index.background = StoreError("the profile is gone")
    result = adapter.search(RetrievalRequest("zebra", 5))
    [lost] = result.degraded
    assert lost.step == "hybrid.background"
    plain = make_index(nodes)
    plain.vector_store.scores = index.vector_store.scores
    other = HybridRetriever(plain, settings).search(RetrievalRequest("zebra", 5))
    assert [n.to_dict() for n in result.nodes] == [n.to_dict() for n in other.nodes]
    assert other.degraded == ()


def test_scores_are_in_the_unit_interval_and_do_not_depend_on_top_k(index, settings):
    adapter = HybridRetriever(index, settings)
    few, many = (adapter.search(RetrievalRequest("zebra", top_k)).nodes for top_k in (5, 100))
    assert [(n.node.node_id, n.score) for n in few] == [(n.node.node_id, n.score) for n in many[:5]]
    assert all(0 <= n.score <= 1 for n in many)
    by_words = dict(index.keyword().search("zebra", COUNT))
    for found in many:
        scores = source_scores(found.node)
        assert scores["fused"] == found.score
        assert "dense" not in scores or scores["dense"] == index.vector_store.scores[found.node.node_id]
        assert "bm25" not in scores or scores["bm25"] == by_words[found.node.node_id]


def test_more_than_the_usual_depth_comes_when_it_is_asked_for(index, settings):
    assert len(first(HybridRetriever(index, settings), COUNT)) == COUNT


def test_sides_say_whether_the_list_of_words_is_whole(index, settings, make_index):
    cut = HybridRetriever(index, settings).search_sides(RetrievalRequest("zebra", 5))
    assert (len(cut.lists["bm25"]), cut.floors) == (100, {})
    whole = HybridRetriever(make_index([TextNode(id_="a", text="zebra")]), settings)
    assert whole.search_sides(RetrievalRequest("zebra", 5)).floors == {"bm25": 0.0}
    assert whole.search_sides(RetrievalRequest("unknown", 5)).lists.keys() == {"dense"}


def test_the_planner_uses_the_model_of_the_index(index, workers):
    planner = PlannerRetriever(index, AdapterSettings(workers=workers))
    FusionModel(alpha=0.0, slope=0.0).save(index.folder / FUSION_FILE)
    assert first(planner) == ["n000"]

from __future__ import annotations

from types import SimpleNamespace

import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import MetadataFilters
from search_material import QUERY, ask, ids, of_document, pairs, raising, scores
from store_tools import where

from agentic_retriever.errors import EmbeddingError, RetrievalError, StoreError
from agentic_retriever.retrievers import (
    FUSION_FILE,
    Fusion,
    FusionModel,
    HybridRetriever,
    PlannerRetriever,
    RetrievalRequest,
    VectorRetriever,
    source_scores,
)
from agentic_retriever.retrievers.hybrid import search_depth
from agentic_retriever.testing.retriever_contract import check_result, contract_nodes

COUNT = 300


@pytest.fixture
def index(make_index):
    return make_index(contract_nodes())


@pytest.fixture
def zebra(make_index):
    """An index in which only BM25 finds the one node that holds the word."""
    nodes = [TextNode(id_=f"n{i:03d}", text=f"filler number {i}", embedding=[1.0] * 32) for i in range(COUNT)]
    made = make_index([*nodes, TextNode(id_="z", text="zebra A-12")])
    made.vector_store.scores = {f"n{i:03d}": i / COUNT for i in range(COUNT)} | {"z": -1.0}
    return made


@pytest.fixture
def no_model(monkeypatch):
    def broken(index, why="no model"):
        monkeypatch.setattr(index.embedding, "embed_query", raising(EmbeddingError(why)), raising=False)

    return broken


@pytest.mark.parametrize("query", ["zzzqqq", "the of and", "?!", "ζζζ"])
@pytest.mark.parametrize("fusion", list(Fusion))
def test_without_a_known_word_hybrid_equals_vector(query, fusion, index, make_settings):
    settings = make_settings(fusion=fusion)
    hybrid, vector = (ask(kind(index, settings), query) for kind in (HybridRetriever, VectorRetriever))
    assert [n.to_dict() for n in hybrid.nodes] == [n.to_dict() for n in vector.nodes]
    assert hybrid.degraded == ()


@pytest.mark.parametrize("fusion", sorted(set(Fusion) - {Fusion.CALIBRATED}))
def test_alpha_moves_the_order(make_index, make_settings, fusion):
    index = make_index([TextNode(id_="words", text="zebra zebra one"), TextNode(id_="meaning", text="something else")])
    index.vector_store.scores = {"words": 0.1, "meaning": 0.9}
    for alpha, first in ((0.99, "meaning"), (0.01, "words")):
        settings = make_settings(fusion=fusion, hybrid_alpha=alpha)
        assert ids(ask(HybridRetriever(index, settings), "zebra", 1)) == [first]


def test_a_word_that_only_bm25_finds_comes_in(zebra, settings):
    found = ask(HybridRetriever(zebra, settings), "A-12", 60).nodes
    assert [set(source_scores(n.node)) for n in found if n.node_id == "z"] == [{"bm25", "fused"}]


@pytest.mark.parametrize(
    ("broken", "step", "fallback", "source"),
    [("dense", "hybrid.dense", "BM25 search alone", "bm25"), ("bm25", "hybrid.keyword", "dense search alone", "dense")],
)
def test_one_side_that_fails_leaves_the_other(broken, step, fallback, source, index, settings, no_model):
    if broken == "dense":
        no_model(index, "the model is down")
    else:
        index.keyword_error = StoreError("the model is down")
    result = ask(HybridRetriever(index, settings), top_k=3)
    check_result(result.nodes, 3)
    assert [source_scores(n.node) for n in result.nodes] == [{source: n.score} for n in result.nodes]
    told = {"step": step, "reason": "the model is down", "fallback": fallback}
    assert [d.to_dict() for d in result.degraded] == [told]


def test_both_sides_failing_is_one_error_with_both_causes(index, settings, no_model):
    no_model(index)
    index.keyword_error = RuntimeError("no view")
    with pytest.raises(RetrievalError, match=r"dense: no model; bm25: .*RuntimeError") as caught:
        ask(HybridRetriever(index, settings))
    assert set(caught.value.causes) == {"dense", "bm25"}
    assert caught.value.__cause__ is caught.value.causes["dense"]


def test_hits_of_bm25_that_cannot_be_read_leave_the_dense_ones(zebra, make_settings, monkeypatch, no_model):
    settings = make_settings(dense_weight=lambda excess: 0.1)  # so that the hit of BM25 comes first
    expected = ask(VectorRetriever(zebra, settings), "zebra", 60)
    get_nodes = type(zebra.vector_store).get_nodes

    def unreadable(self, node_ids=None, filters=None):
        if node_ids:
            raise ConnectionError
        return get_nodes(self, node_ids, filters)

    monkeypatch.setattr(type(zebra.vector_store), "get_nodes", unreadable)
    result = ask(HybridRetriever(zebra, settings), "zebra", 60)
    assert pairs(result) == pairs(expected)
    assert [d.step for d in result.degraded] == ["hybrid.keyword"]
    no_model(zebra)
    with pytest.raises(RetrievalError) as caught:
        ask(HybridRetriever(zebra, settings), "zebra", 60)
    assert set(caught.value.causes) == {"dense", "bm25"}


def test_a_node_deleted_after_the_keyword_view_was_built_makes_room(index, settings):
    view = index.keyword()
    index.keyword = lambda: view
    del index.vector_store.kept["n07"]
    found = ids(ask(HybridRetriever(index, settings), top_k=3))
    assert len(found) == 3
    assert "n07" not in found


@pytest.mark.parametrize("top_k", [1, 3])
def test_a_filter_that_leaves_one_gives_exactly_that_one(top_k, index, settings):
    adapter = HybridRetriever(index, settings)
    found = ids(ask(adapter, QUERY, top_k, where("year", 2024)))
    assert set(found) <= {"n01", "n08"}
    assert found[0] == "n08"
    assert ids(ask(adapter, QUERY, top_k, where("year", 2019))) == ["n02"]


def test_bm25_under_a_filter_is_exact_and_finds_a_rare_match_far_down_the_ranking(make_index, settings, no_model):
    nodes = [TextNode(id_=f"n{i:05d}", text="zebra zebra", embedding=[1.0] * 32) for i in range(1_500)]
    nodes[-1].text = "zebra"
    nodes[-1].metadata = {"last": 1}
    index = make_index(nodes)
    no_model(index)
    assert ids(ask(HybridRetriever(index, settings), "zebra", 5, where("last", 1))) == ["n01499"]
    words = ["zebra zebra", "zebra", "zebra and more words", "zebra with a few more words"]
    nodes = [
        TextNode(id_=f"n{i:03d}", text=words[i % 4], metadata={"k": i % 5, "r": i % 3}, embedding=[1.0] * 32)
        for i in range(400)
    ]
    index = make_index(nodes[::-1])
    no_model(index)
    either = MetadataFilters(filters=[*where("k", 3).filters, *where("r", 2).filters], condition="or")
    everything = index.keyword().search("zebra", 400)
    expected = [i for i, _ in everything if int(i[1:]) % 5 == 3 or int(i[1:]) % 3 == 2]
    for top_k in (1, 7, 60):
        assert ids(ask(HybridRetriever(index, settings), "zebra", top_k, either)) == expected[:top_k]


def test_filters_by_document_work_on_both_sides(make_index, settings):
    nodes = [of_document(n.node_id, n.text, f"doc-{n.metadata['lang']}") for n in contract_nodes()]
    found = ask(HybridRetriever(make_index(nodes), settings), QUERY, 9, where("doc_id", "doc-th"))
    assert set(ids(found)) == {"n05", "n08"}


@pytest.mark.parametrize(
    ("top_k", "depth"), [(1, 50), (12, 50), (13, 52), (250, 1000), (251, 1000), (1000, 1000), (5000, 5000)]
)
def test_depth_of_each_side(top_k, depth):
    assert search_depth(top_k) == depth


# Calibrated fusion in the strategy: what it reads of an index, and what its results promise.


def background(mean, std, nodes=COUNT):
    return SimpleNamespace(background_mean=mean, background_std=std, nodes=nodes)


@pytest.fixture
def stripes(make_index, tmp_path):
    """An index with a folder and a profile; shorter texts rank higher by words, later ones by vector."""
    texts = ((f"n{i:03d}", "zebra" + " stripe" * i) for i in range(COUNT))
    known = make_index([TextNode(id_=i, text=text, embedding=[1.0] * 32) for i, text in texts])
    known.vector_store.scores = {f"n{i:03d}": 0.5 + i / 1000 for i in range(COUNT)}
    known.folder, known.background = tmp_path, background(0.65, 0.05)

    def profile():
        if isinstance(known.background, Exception):
            raise known.background
        return known.background

    known.search_profile = profile
    return known


def first(adapter, top_k=1):
    return ids(ask(adapter, "zebra", top_k))


def test_the_installed_model_decides_as_soon_as_it_is_there(stripes, settings):
    adapter = HybridRetriever(stripes, settings)
    FusionModel(alpha=0.1, slope=0.0).save(stripes.folder / FUSION_FILE)
    assert first(adapter) == ["n000"]
    FusionModel(alpha=0.9, slope=0.0, pivot=1.5).save(stripes.folder / FUSION_FILE)
    assert first(adapter) == [f"n{COUNT - 1}"]
    FusionModel(alpha=0.0, slope=0.0).save(stripes.folder / FUSION_FILE)
    assert first(PlannerRetriever(stripes, settings)) == ["n000"]


@pytest.mark.parametrize(("alpha", "side"), [(0.0, "bm25"), (1.0, "dense")])
def test_one_side_alone_can_be_installed(stripes, settings, alpha, side):
    FusionModel(alpha=alpha, slope=0.0, reach=0.0).save(stripes.folder / FUSION_FILE)
    expected = {
        "bm25": [i for i, _ in stripes.keyword().search("zebra", 50)],
        "dense": first(VectorRetriever(stripes, settings), 50),
    }
    assert first(HybridRetriever(stripes, settings), 50) == expected[side]


def test_what_stands_out_by_vector_gets_more_weight(stripes, settings):
    adapter = HybridRetriever(stripes, settings)
    stripes.background = background(0.65, 0.01)  # the best cosine is 0.799
    assert adapter.search_sides(RetrievalRequest("zebra", 5)).excess > 5
    assert first(adapter) == [f"n{COUNT - 1}"]
    stripes.background = background(0.79, 0.05)
    assert adapter.search_sides(RetrievalRequest("zebra", 5)).excess < -2
    assert first(adapter) == ["n000"]


def test_a_lost_profile_or_a_damaged_model_is_told_and_the_defaults_hold(stripes, settings):
    stripes.background = StoreError("the profile is gone")
    result = ask(HybridRetriever(stripes, settings), "zebra")
    assert [lost.step for lost in result.degraded] == ["hybrid.background"]
    stripes.background = None
    other = ask(HybridRetriever(stripes, settings), "zebra")
    assert [n.to_dict() for n in result.nodes] == [n.to_dict() for n in other.nodes]
    assert other.degraded == ()
    adapter = HybridRetriever(stripes, settings)
    expected = first(adapter, 20)
    (stripes.folder / FUSION_FILE).write_text("{}")
    result = ask(adapter, "zebra", 20)
    assert ids(result) == expected
    [lost] = result.degraded
    assert (lost.step, lost.fallback) == ("hybrid.fusion", "the default weights")
    assert FUSION_FILE in lost.reason


def test_scores_are_in_the_unit_interval_and_do_not_depend_on_top_k(stripes, settings):
    adapter = HybridRetriever(stripes, settings)
    few, many = (ask(adapter, "zebra", top_k) for top_k in (5, 100))
    assert pairs(few) == pairs(many)[:5]
    assert all(0 <= score <= 1 for score in scores(many))
    by_words = dict(stripes.keyword().search("zebra", COUNT))
    for found in many.nodes:
        given = source_scores(found.node)
        assert given["fused"] == found.score
        assert given.get("dense") in (None, stripes.vector_store.scores[found.node_id])
        assert given.get("bm25") in (None, by_words[found.node_id])
    assert len(first(adapter, COUNT)) == COUNT


def test_sides_say_whether_the_list_of_words_is_whole(stripes, settings, make_index):
    cut = HybridRetriever(stripes, settings).search_sides(RetrievalRequest("zebra", 5))
    assert (len(cut.lists["bm25"]), cut.floors) == (100, {})
    whole = HybridRetriever(make_index([TextNode(id_="a", text="zebra")]), settings)
    assert whole.search_sides(RetrievalRequest("zebra", 5)).floors == {"bm25": 0.0}
    assert whole.search_sides(RetrievalRequest("unknown", 5)).lists.keys() == {"dense"}

from __future__ import annotations

import math

import pytest
from llama_index.core.schema import TextNode
from ranked_nodes import dump, hit, ids, scores

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import ConfigError, LLMError
from agentic_retriever.retrievers.postprocess import (
    Boost,
    PostprocessSettings,
    PostprocessTools,
    mmr,
    postprocess,
    store_vectors,
)
from agentic_retriever.retrievers.rerank import by_scores

NODES = [hit(f"n{i}", 1 - i / 10, f"text {i}") for i in range(6)]


class Reversing:
    """Turns the order round, and records what it was given."""

    def __init__(self):
        self.calls = []

    def rerank(self, query, nodes, top_k, timeout_s=None):
        self.calls.append((query, ids(nodes), top_k, timeout_s))
        return by_scores(nodes, [float(i) for i in range(len(nodes))], top_k)


class Failing:
    def rerank(self, query, nodes, top_k, timeout_s=None):
        raise LLMError("the model is down")


def run(settings=None, top_k=3, timeout_s=None, query="text", **tools):
    return postprocess(
        query, NODES, settings or PostprocessSettings(), PostprocessTools(**tools), top_k=top_k, timeout_s=timeout_s
    )


def test_the_defaults_only_cut():
    before = dump(NODES)
    got, degraded = run(vectors=lambda node_ids: 1 / 0, neighbours=lambda node: 1 / 0)
    assert got == NODES[:3]
    assert all(one is other for one, other in zip(got, NODES, strict=False))
    assert degraded == ()
    assert PostprocessSettings.from_config(RouterConfig()) == PostprocessSettings()
    assert dump(NODES) == before
    assert run(top_k=100)[0] == NODES


def test_boost_comes_before_rerank_and_that_before_the_cut():
    reranker = Reversing()
    settings = PostprocessSettings(boosts=(Boost("5", 1.0, ("text 5",)),), rerank_candidates=4)
    got, _ = run(settings, query="about 5", reranker=reranker, top_k=2)
    assert reranker.calls[0][1] == ["n0", "n5", "n1", "n2"]
    assert ids(got) == ["n2", "n1"]


def test_the_reranker_sees_at_least_top_k_and_has_half_of_the_time():
    reranker = Reversing()
    run(PostprocessSettings(rerank_candidates=1), reranker=reranker, top_k=3, timeout_s=8.0)
    run(PostprocessSettings(rerank_timeout_s=2.0), reranker=reranker, top_k=3, timeout_s=8.0)
    run(PostprocessSettings(rerank_timeout_s=2.0), reranker=reranker, top_k=3)
    assert [len(call[1]) for call in reranker.calls] == [3, 6, 6]
    assert [call[3] for call in reranker.calls] == [4.0, 2.0, 2.0]


def test_diverse_nodes_come_in_the_order_of_their_scores():
    vectors = {f"n{i}": [1.0, 0.0] if i < 5 else [0.0, 1.0] for i in range(6)}
    got, _ = run(PostprocessSettings(mmr_trade_off=0.3), vectors=lambda node_ids: {i: vectors[i] for i in node_ids})
    assert "n5" in ids(got)
    assert scores(got) == sorted(scores(got), reverse=True)
    assert set(ids(got)) == set(ids(mmr(NODES, vectors, top_k=3, trade_off=0.3)))


def test_neighbours_are_added_behind_the_cut():
    beside = TextNode(id_="beside", text="x")
    got, _ = run(PostprocessSettings(neighbours=1), neighbours=lambda node: [beside])
    assert ids(got) == ["n0", "n1", "n2", "beside"]


def test_steps_that_fail_are_named_and_left_out():
    def down(_):
        raise LLMError("no vectors")

    settings = PostprocessSettings(mmr_trade_off=0.5, neighbours=1)
    got, degraded = run(settings, reranker=Failing(), vectors=down, neighbours=down)
    assert got == NODES[:3]
    assert [step.step for step in degraded] == ["postprocess.rerank", "postprocess.mmr", "postprocess.expand"]
    assert degraded[0].reason == "the model is down"


@pytest.mark.parametrize(
    "changes",
    [{"mmr_trade_off": 1.5}, {"mmr_trade_off": math.nan}, {"fall": -1}, {"rerank_candidates": 0}, {"neighbours": -1},
     {"rerank_timeout_s": 0}, {"rerank_timeout_s": math.nan}],
)  # fmt: skip
def test_settings_are_checked(changes):
    with pytest.raises(ConfigError):
        PostprocessSettings(**changes)


def test_settings_come_from_the_configuration():
    config = RouterConfig(
        boost_keywords="abs=0.5", mmr_trade_off=0.5, adaptive_top_k=True,
        score_fall=0.25, expand_neighbours=2,
    )  # fmt: skip
    assert PostprocessSettings.from_config(config) == PostprocessSettings(
        boosts=(Boost("abs", 0.5),), mmr_trade_off=0.5, adaptive=True,
        fall=0.25, neighbours=2,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="KEYWORD = WEIGHT"):
        PostprocessSettings.from_config(RouterConfig(boost_keywords="abs"))


def test_how_many_to_retrieve_and_to_keep():
    plain = PostprocessSettings()
    assert plain.candidates(8, reranks=False) == plain.final_top_k(8, 0.9) == 8
    assert plain.candidates(8, reranks=True) == 20
    assert plain.candidates(50, reranks=True) == 50
    assert PostprocessSettings(mmr_trade_off=0.5, rerank_candidates=30).candidates(8, reranks=False) == 30
    assert PostprocessSettings(boosts=(Boost("a", 0.1),), max_top_k=10).candidates(8, reranks=False) == 10
    assert PostprocessSettings(adaptive=True).final_top_k(8, 0.0) == 4
    assert PostprocessSettings(adaptive=True, max_top_k=9).final_top_k(8, 1.0) == 9


@pytest.mark.parametrize("kind", ["memory", "edge"])
def test_vectors_are_read_from_the_store(kind, make_index, make_edge_index):
    nodes = [TextNode(id_="a", text="red apple"), TextNode(id_="b", text="sea")]
    index = (make_index if kind == "memory" else make_edge_index)(nodes)
    found = store_vectors(index)(["b", "gone"])
    assert list(found) == ["b"]
    expected = index.embedding.base.get_text_embedding("sea")
    assert list(found["b"]) == pytest.approx(expected, abs=1e-6)

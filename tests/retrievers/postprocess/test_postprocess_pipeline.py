from __future__ import annotations

import pytest
from llama_index.core.schema import TextNode
from ranked_nodes import dump, hit, ids, scores

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import ConfigError, LLMError
from agentic_retriever.llm import LLMClient
from agentic_retriever.retrievers import refining
from agentic_retriever.retrievers.refining import Refining, by_scores, mmr, store_vectors
from agentic_retriever.schema import Tier
from agentic_retriever.testing.fakes import FakeLLM

NODES = [hit(f"n{i}", 1 - i / 10, f"text {i}") for i in range(6)]


class Reversing:
    """Turns the order round, and records what it was given."""

    def __init__(self):
        self.calls = []

    def rerank(self, query, nodes, timeout_s):
        self.calls.append((ids(nodes), timeout_s))
        return by_scores(nodes, [float(i) for i in range(len(nodes))])


class Failing:
    def rerank(self, query, nodes, timeout_s):
        raise LLMError("the model is down")


def unused(_):
    raise AssertionError("nothing asked for this")


@pytest.fixture
def run(monkeypatch):
    """Refine the nodes as a configuration asks, by a reranker of the test."""

    def refined(reranker=None, *, query="text", top_k=3, timeout_s=60.0, vectors=unused, neighbours=unused, **config):
        monkeypatch.setattr(refining, "make_reranker", lambda config, client: reranker)
        made = Refining(RouterConfig(**config), None)
        return made.run(query, NODES, top_k=top_k, timeout_s=timeout_s, vectors=vectors, neighbours=neighbours)

    return refined


def test_the_defaults_only_cut(run):
    before = dump(NODES)
    got, degraded = run()
    assert got == NODES[:3]
    assert all(one is other for one, other in zip(got, NODES, strict=False))
    assert degraded == ()
    assert dump(NODES) == before
    assert run(top_k=100)[0] == NODES


def test_boost_comes_before_rerank_and_that_before_the_cut(run, monkeypatch):
    monkeypatch.setattr(refining, "RERANK_CANDIDATES", 4)
    reranker = Reversing()
    got, _ = run(reranker, boost_keywords="5 | text 5 = 1", query="about 5", top_k=2)
    assert reranker.calls[0][0] == ["n0", "n5", "n1", "n2"]
    assert ids(got) == ["n2", "n1"]


def test_the_reranker_sees_at_least_top_k_and_has_half_of_the_time(run, monkeypatch):
    reranker = Reversing()
    run(reranker, timeout_s=60.0)
    monkeypatch.setattr(refining, "RERANK_CANDIDATES", 1)
    run(reranker, timeout_s=8.0)
    assert [(len(seen), limit) for seen, limit in reranker.calls] == [(6, 20.0), (3, 4.0)]


def test_the_model_of_a_question_is_asked_in_place_of_the_rerankers_own():
    models = [FakeLLM(["1"]), FakeLLM(["2, 1"])]
    own, given = (LLMClient(llm, tier=Tier.PRIMARY, timeout_s=5) for llm in models)
    made = Refining(RouterConfig(reranker="llm"), own)
    got, _ = made.run("q", NODES, top_k=2, timeout_s=9.0, vectors=unused, neighbours=unused, model=given)
    assert ids(got) == ["n1", "n0"]
    assert [len(llm.prompts) for llm in models] == [0, 1]


def test_diverse_nodes_come_in_the_order_of_their_scores(run):
    vectors = {f"n{i}": [1.0, 0.0] if i < 5 else [0.0, 1.0] for i in range(6)}
    got, _ = run(mmr_trade_off=0.3, vectors=lambda node_ids: {i: vectors[i] for i in node_ids})
    assert "n5" in ids(got)
    assert scores(got) == sorted(scores(got), reverse=True)
    assert set(ids(got)) == set(ids(mmr(NODES, vectors, top_k=3, trade_off=0.3)))


def test_neighbours_come_last(run):
    got, _ = run(expand_neighbours=1, neighbours=lambda node: [hit("beside", None).node])
    assert ids(got) == ["n0", "n1", "n2", "beside"]


def test_steps_that_fail_are_named_and_left_out(run):
    def down(_):
        raise LLMError("no vectors")

    got, degraded = run(Failing(), mmr_trade_off=0.5, expand_neighbours=1, vectors=down, neighbours=down)
    assert got == NODES[:3]
    assert [step.step for step in degraded] == ["postprocess.rerank", "postprocess.mmr", "postprocess.expand"]
    assert degraded[0].reason == "the model is down"


def test_keywords_that_cannot_be_read_are_refused():
    with pytest.raises(ConfigError, match="KEYWORD = WEIGHT"):
        Refining(RouterConfig(boost_keywords="abs"), None)


def test_how_many_to_retrieve_and_to_keep():
    plain = Refining(RouterConfig(), None)
    assert plain.candidates(8) == plain.final_top_k(8, 0.9) == 8
    for config in ({"mmr_trade_off": 0.5}, {"boost_keywords": "a = 0.1"}, {"reranker": "cross_encoder"}):
        chooses = Refining(RouterConfig(**config), None)
        assert (chooses.candidates(8), chooses.candidates(50)) == (20, 50)
    adaptive = Refining(RouterConfig(adaptive_top_k=True), None)
    assert (adaptive.final_top_k(8, 0.0), adaptive.final_top_k(10_000, 1.0)) == (4, 10_000)


@pytest.mark.parametrize("kind", ["memory", "edge"])
def test_vectors_are_read_from_the_store(kind, make_index, make_edge_index):
    nodes = [TextNode(id_="a", text="red apple"), TextNode(id_="b", text="sea")]
    index = (make_index if kind == "memory" else make_edge_index)(nodes)
    found = store_vectors(index)(["b", "gone"])
    assert list(found) == ["b"]
    expected = index.embedding.base.get_text_embedding("sea")
    assert list(found["b"]) == pytest.approx(expected, abs=1e-6)

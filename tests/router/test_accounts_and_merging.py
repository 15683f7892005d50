"""The accounts of one query, and the order of nodes of several indexes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import NodeWithScore, TextNode

from agentic_retriever.errors import BudgetExceededError, DeadlineExceededError
from agentic_retriever.llm import LLMClient
from agentic_retriever.pipeline.nearness import merge_by_cosine, merge_indexes
from agentic_retriever.pipeline.spending import MeteredModel, Spending
from agentic_retriever.retrievers import SearchResult
from agentic_retriever.schema import Budget, Tier, TierUsage
from agentic_retriever.testing import FakeLLM


class Time:
    now = 0.0

    def __call__(self):
        return self.now


def usage(calls=1, usd=0.0):
    return TierUsage(tier=Tier.CLOUD, model="m", calls=calls, prompt_tokens=5, completion_tokens=1, usd=usd)


def test_what_is_left():
    time = Time()
    spending = Spending(Budget(max_ms=2_000, max_usd=0.02, max_llm_calls=3), 2.0, time)
    assert spending.budget_ms() == 2_000
    spending.add([usage(2, 0.015)])
    time.now = 0.5
    left = spending.left("writing")
    assert (left.timeout_s, left.max_llm_calls) == (1.5, 1)
    assert left.max_usd == pytest.approx(0.005)
    spending.add([usage(4, 1.0)])
    assert (spending.left("writing").max_llm_calls, spending.left("writing").max_usd) == (0, 0.0)
    time.now = 2.0
    with pytest.raises(DeadlineExceededError):
        spending.left("writing")


def test_no_budget_limits_only_the_time():
    left = Spending(None, 9.0, Time()).left("x")
    assert (left.timeout_s, left.max_llm_calls, left.max_usd) == (9.0, None, None)
    assert Spending(None, 9.0, Time()).budget_ms() is None
    assert Spending(Budget(max_llm_calls=1), 9.0, Time()).budget_ms() is None


def test_a_metered_model_counts_and_refuses():
    client = LLMClient(FakeLLM(["one", "two", "three"]), tier=Tier.PRIMARY, timeout_s=5.0)
    spending = Spending(Budget(max_llm_calls=2), 9.0, Time())
    model = MeteredModel(client, spending)
    assert (model.tier, model.model) == (client.tier, client.model)
    assert [model.complete("p").text, model.complete("p", timeout_s=1.0).text] == ["one", "two"]
    assert spending.usage.llm_calls == 2
    with pytest.raises(BudgetExceededError, match="max_llm_calls=2"):
        model.complete("p")
    assert spending.usage.llm_calls == 2


def result(prefix, scores):
    nodes = [NodeWithScore(node=TextNode(id_=f"{prefix}{i}", text="t"), score=s) for i, s in enumerate(scores)]
    return SearchResult(nodes)


def ids(nodes):
    return [node.node.node_id for node in nodes]


def test_one_index_passes_through():
    nodes, origin = merge_indexes(None, {"a": result("a", [0.5, 0.2])}, {"a": 1.0}, query_vector=None, top_k=5)
    assert [(n.node.node_id, n.score) for n in nodes] == [("a0", 0.5), ("a1", 0.2)]
    assert origin == {"a0": "a", "a1": "a"}


def test_scores_of_other_scales_do_not_win_by_their_scale():
    # BM25 scores of one index against cosines of the other: the cosines with the question tell.
    results = {"far": result("f", [31.0, 29.0]), "near": result("n", [0.9, 0.8])}
    cosines = {"f0": 0.71, "f1": 0.70, "n0": 0.93, "n1": 0.90}
    nodes, origin = merge_by_cosine(results, {"far": 0.5, "near": 0.5}, cosines=cosines, top_k=4)
    assert ids(nodes) == ["n0", "n1", "f0", "f1"]
    assert origin["n0"] == "near"


def test_a_likelier_index_goes_before_at_equal_nearness():
    results = {"a": result("a", [0.9, 0.1]), "b": result("b", [0.9, 0.1])}
    cosines = {"a0": 0.8, "a1": 0.5, "b0": 0.8, "b1": 0.5}
    assert ids(merge_by_cosine(results, {"a": 0.3, "b": 0.7}, cosines=cosines, top_k=1)[0]) == ["b0"]


def test_without_vectors_each_list_counts_by_its_own_best():
    results = {"a": result("a", [30.0, 3.0]), "b": result("b", [2.0, 1.9])}
    nodes, _ = merge_by_cosine(results, {"a": 0.5, "b": 0.5}, cosines={"a0": 0.9}, top_k=4)
    assert ids(nodes) == ["a0", "b0", "b1", "a1"]


lists = st.lists(st.floats(-1, 50), max_size=6).map(lambda scores: sorted(scores, reverse=True))


@given(st.dictionaries(st.sampled_from("abcd"), lists, min_size=2), st.data())
def test_the_order_of_each_strategy_stays(scores, data):
    results = {name: result(name, row) for name, row in scores.items()}
    every = [n.node.node_id for r in results.values() for n in r.nodes]
    cosines = {node_id: data.draw(st.floats(-1, 1)) for node_id in every}
    shares = {name: data.draw(st.floats(0, 1)) for name in results}
    nodes, origin = merge_by_cosine(results, shares, cosines=cosines, top_k=len(every))
    assert sorted(ids(nodes)) == sorted(every)
    assert set(origin) == set(every)
    ranked = [(-(n.score or 0.0), n.node.node_id) for n in nodes]
    assert ranked == sorted(ranked)
    placed = {n.node.node_id: n.score for n in nodes}
    for row in results.values():
        kept = [placed[n.node.node_id] for n in row.nodes]
        assert kept == sorted(kept, reverse=True)
        assert all(0 <= score <= 1 for score in kept)

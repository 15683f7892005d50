"""Decisions explained, recorded and replayed; questions about nothing; budgets and accounts; second tries; merging."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import Document, NodeWithScore, TextNode
from small_indexes import documents

from agentic_retriever import Budget, Strategy
from agentic_retriever.errors import (
    BudgetExceededError,
    ConfigError,
    DeadlineExceededError,
    OutOfScopeError,
    RoutingError,
    UnknownIndexError,
)
from agentic_retriever.llm import LLMClient
from agentic_retriever.pipeline import query
from agentic_retriever.pipeline.query import merge_by_cosine, merge_indexes
from agentic_retriever.pipeline.spending import MeteredModel, Spending
from agentic_retriever.retrievers import SearchResult
from agentic_retriever.schema import NO_LIMITS, Selection, Tier, TierUsage
from agentic_retriever.testing import FakeEmbedding, FakeLLM

TEXTS = {
    "animals": {"cats": "The cat sleeps sixteen hours a day.", "dogs": "The dog barks at the postman."},
    "planets": {"venus": "Venus spins backwards.", "mars": "Mars has two moons named Phobos and Deimos."},
    "tools": {"saw": "A saw cuts wood along a line.", "plane": "A plane makes a board flat."},
}
MOONS, EGG = "Which moons does Mars have?", "How do I boil an egg?"


class Chooser:
    """A stage one that says what the test wants."""

    mode = "profile"

    def __init__(self, name="animals", names=(), abstained=False):
        self.name, self.names, self.abstained = name, names, abstained

    def classify(self, query, profiles, *, query_vector, allowance=NO_LIMITS):
        rest = [p.name for p in profiles if p.name != self.name]
        scores = {self.name: 0.5, **dict.fromkeys(rest, 0.5 / len(rest))}
        return Selection(
            name=self.name, names=self.names, confidence=0.5, scores=scores, margin=0.1, reason="told", mode=self.mode,
            abstained=self.abstained,
        )  # fmt: skip


@pytest.fixture
def make(make):
    """Makes routers over the three indexes, unless others are given."""
    three = {name: documents(texts) for name, texts in TEXTS.items()}
    return lambda indexes=three, **parts: make(indexes, **parts)


@pytest.fixture
def router(make):
    return make()


def test_an_explanation_names_every_candidate_and_why(router):
    explained = router.explain("Which moons does Mars have, and which {braces} <b>?")
    text = str(explained)
    for name in (*TEXTS, *explained.decision.strategy.scores):
        assert name in text
    assert explained.decision.index.reason in text
    assert "Complexity: simple" in text
    assert "Milliseconds:" in text
    assert "<b>" not in explained._repr_html_()
    data = json.loads(json.dumps(explained.to_dict()))
    assert data["decision"]["index"] == "planets"
    assert {card["strategy"] for card in data["cards"]} >= {"vector", "hybrid"}


def test_an_explanation_outlives_its_index(router):
    decision = router.route(MOONS)
    router.remove_index("planets")
    assert "planets" in str(router.explanation(decision))


@pytest.mark.parametrize(
    "pins", [{}, {"index": "tools"}, {"strategy": "hybrid"}, {"index": "tools", "strategy": "planner"}]
)
def test_a_replay_gives_the_same_decision(router, pins):
    decision = router.route(MOONS, **pins)
    again = router.replay(json.loads(json.dumps(decision.to_dict())))
    assert not decision.diff(again), str(decision.diff(again))


def test_a_replay_takes_over_what_chance_decided(make):
    router = make(config={"selector": "round_robin"})
    decisions = [router.route(MOONS) for _ in range(3)]
    assert len({d.strategy.name for d in decisions}) == 3
    assert [router.replay(d).strategy.name for d in decisions] == [d.strategy.name for d in decisions]


def test_a_replay_on_a_changed_index_shows_what_changed(router):
    decision = router.route(MOONS)
    router.add_index("planets", [Document(text="Saturn has rings.", doc_id="saturn")])
    diff = decision.diff(router.replay(decision))
    assert "versions.planets" in {one.path for one in diff.differences}


def test_a_replay_of_something_else_is_refused(router):
    with pytest.raises(RoutingError, match="decision record"):
        router.replay({"query": "x"})


def test_out_of_scope_is_declined_without_a_search(make):
    model = FakeLLM(["never"])
    router = make(classifier=Chooser(abstained=True), llm=model)
    answer = router.query(EGG)
    assert (answer.tier, answer.nodes, answer.citations) == (Tier.NONE, (), ())
    assert answer.route.index.abstained
    assert answer.confidence.score < 0.5
    assert not model.prompts
    assert router.retrieve(EGG).nodes == ()
    # A caller who names the index is believed.
    assert router.retrieve(EGG, index="animals").nodes


@pytest.mark.parametrize(
    ("policy", "searched"),
    [("answer", ("animals",)), ("all", ("animals", "planets", "tools")), ("default", ("tools",))],
)
def test_out_of_scope_goes_where_the_setting_says(make, policy, searched):
    config = {"on_abstain": policy, "default_index": "tools" if policy == "default" else ""}
    router = make(classifier=Chooser(abstained=True), config=config)
    retrieval = router.retrieve(EGG)
    assert set(retrieval.indexes) == set(searched)
    assert retrieval.route.index.abstained
    assert retrieval.nodes


def test_out_of_scope_may_be_an_error_and_the_default_index_must_be_there(make):
    with pytest.raises(OutOfScopeError, match="none of the 3 indexes"):
        make(classifier=Chooser(abstained=True), config={"on_abstain": "raise"}).route(EGG)
    with pytest.raises(ConfigError, match="default_index"):
        make(config={"on_abstain": "default"})
    router = make(classifier=Chooser(abstained=True), config={"on_abstain": "default", "default_index": "tolos"})
    with pytest.raises(UnknownIndexError, match="did you mean 'tools'"):
        router.route(EGG)


def test_several_indexes_are_merged(make):
    router = make(classifier=Chooser(names=("animals", "planets")))
    retrieval = router.retrieve(MOONS, strategy="vector")
    assert retrieval.indexes == ("animals", "planets")
    assert {node.node.ref_doc_id for node in retrieval.nodes} == {"cats", "dogs", "venus", "mars"}
    assert retrieval.nodes[0].node.ref_doc_id == "mars"


def test_one_failing_index_of_several_is_left_out(make, monkeypatch):
    router = make(classifier=Chooser(names=("animals", "planets")))
    adapter = type(router.resources.adapter(router.index("animals"), Strategy.VECTOR))
    search = adapter._search

    def fails_on_animals(self, request, deadline):
        if self._index.name == "animals":
            raise OSError("the disk is gone")
        return search(self, request, deadline)

    monkeypatch.setattr(adapter, "_search", fails_on_animals)
    retrieval = router.retrieve(MOONS, strategy="vector")
    assert {node.node.ref_doc_id for node in retrieval.nodes} == {"venus", "mars"}
    assert [lost.step for lost in retrieval.degraded] == ["index.animals"]


def test_little_found_makes_a_second_and_third_try(make, monkeypatch):
    monkeypatch.setattr(query, "RETRY_BELOW", 1.0)
    # No text is near this question, so every search has little to show.
    router = make(classifier=Chooser())
    retrieval = router.retrieve(MOONS)
    assert len(retrieval.tried) == 3
    assert len({one.strategy for one in retrieval.tried}) == 3
    best = max(one.confidence or 0.0 for one in retrieval.tried)
    assert [one.confidence for one in retrieval.tried if one.strategy is retrieval.strategy] == [best]
    assert router.query(MOONS).to_dict()["tried"][0]["strategy"] == retrieval.tried[0].strategy.value


@pytest.mark.parametrize("fixed", [{"strategy": "vector"}, {"budget": Budget(max_ms=2_000)}])
def test_a_pin_is_never_overridden_and_a_good_find_needs_no_second_try(make, fixed, monkeypatch):
    monkeypatch.setattr(query, "RETRY_BELOW", 1.0 if "strategy" in fixed else 0.2)
    router = make()
    assert len(router.retrieve("The cat sleeps sixteen hours a day.", **fixed).tried) == 1


def test_a_tight_budget_withholds_slow_strategies(make):
    router = make(timer=lambda: 0.0)  # a busy machine must not use the budget up
    question, tight = "Compare cats and dogs and say which sleeps longer.", Budget(max_ms=70)
    decision = router.route(question, budget=tight)
    assert "planner" not in decision.strategy.scores
    assert "the budget leaves" in decision.withheld["planner"]
    for other in (None, Budget(max_llm_calls=1)):
        assert "planner" in router.route(question, budget=other).strategy.scores
    assert "planner" in str(router.explain("Compare cats and dogs.", budget=tight))


def test_a_budget_that_is_used_up_ends_in_time(make):
    with pytest.raises(DeadlineExceededError):
        make().query(MOONS, budget=Budget(max_ms=0.001))


def test_model_calls_of_retrieval_are_counted_and_limited(make):
    plan = '["Which moons does Mars have?", "How long does the cat sleep?"]'
    model = FakeLLM(lambda prompt: plan if "Split a question" in prompt else "Two moons: Phobos and Deimos [1].")
    router = make(llm=model)
    question = "Which moons does Mars have and how long does the cat sleep?"
    for budget, calls in ((None, 2), (Budget(max_llm_calls=1), 1), (Budget(max_llm_calls=0), 0)):
        none = router.query(question, strategy="planner", index="planets", budget=budget)
        assert none.usage.llm_calls == calls
    assert none.tier in {Tier.EXTRACTIVE, Tier.NONE}
    assert any("budget" in lost.reason for lost in none.degraded)


PAPERS = [
    ("Pooch, U. W.", "A translation of decision tables."),
    ("Prieve, B. G.", "Page replacement algorithms compared."),
    ("Salton, G.", "Clusters of documents in retrieval."),
    ("Knuth, D. E.", "Articles written about the errors of a typesetting program."),
]


@pytest.fixture
def papers(make, monkeypatch):
    # Whatever is found looks poor by its cosine, so that the next strategy is always tried where that decides.
    monkeypatch.setattr(query, "RETRY_BELOW", 1.0)
    sources = [Document(text=text, doc_id=author.split(",")[0], metadata={"author": author}) for author, text in PAPERS]
    return make({"papers": sources}, embedding=FakeEmbedding(dimension=32))


def test_what_satisfies_a_stated_condition_is_not_given_up_for_nearer_texts(papers):
    found = papers.retrieve("I am interested in articles written either by Prieve or Udo Pooch")
    assert found.route.strategy.name == "metadata"
    assert found.strategy is Strategy.METADATA
    assert found.understood
    assert {node.node.ref_doc_id for node in found.nodes} == {"Prieve", "Pooch"}
    assert len(found.tried) == 1


SALTON = "Articles by Gerard Salton or others about clusters of documents"


def test_without_a_condition_after_all_the_next_strategy_decides(papers):
    found = papers.retrieve(SALTON)
    assert found.route.strategy.name == "metadata"
    assert not found.understood
    assert found.tried[0].strategy is Strategy.METADATA
    assert found.strategy is not Strategy.METADATA
    assert papers.retrieve(SALTON, strategy="metadata").strategy is Strategy.METADATA  # a pinned one stays


# The accounts of one query, and the order of nodes of several indexes


class Time:
    now = 0.0

    def __call__(self):
        return self.now


def usage(calls=1, usd=0.0):
    return TierUsage(tier=Tier.CLOUD, model="m", calls=calls, prompt_tokens=5, completion_tokens=1, usd=usd)


def test_what_is_left():
    time = Time()
    spending = Spending(Budget(max_ms=2_000, max_usd=0.02, max_llm_calls=3), 2.0, time)
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

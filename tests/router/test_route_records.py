"""Decisions explained, recorded and replayed; questions about nothing; budgets; second tries."""

from __future__ import annotations

import json

import pytest
from llama_index.core.schema import Document

from agentic_retriever import AgenticRouter, Budget, RouterConfig, Strategy
from agentic_retriever.errors import (
    ConfigError,
    DeadlineExceededError,
    OutOfScopeError,
    RoutingError,
    UnknownIndexError,
)
from agentic_retriever.pipeline import query
from agentic_retriever.schema import NO_LIMITS, Selection, Tier
from agentic_retriever.testing import FakeEmbedding, FakeLLM

TEXTS = {
    "animals": {"cats": "The cat sleeps sixteen hours a day.", "dogs": "The dog barks at the postman."},
    "planets": {"venus": "Venus spins backwards.", "mars": "Mars has two moons named Phobos and Deimos."},
    "tools": {"saw": "A saw cuts wood along a line.", "plane": "A plane makes a board flat."},
}


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
def make(tmp_path):
    made = []

    def _make(**parts):
        config = RouterConfig(data_dir=tmp_path / "data", **parts.pop("config", {}))
        router = AgenticRouter(config, embedding=FakeEmbedding(dimension=64), **parts)
        made.append(router)
        for name, texts in TEXTS.items():
            if name not in router.index_names():
                documents = [Document(text=text, doc_id=key, metadata={"title": key}) for key, text in texts.items()]
                router.add_index(name, documents, description=name)
        return router

    yield _make
    for router in made:
        router.close()


def test_an_explanation_names_every_candidate_and_why(make):
    router = make()
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


def test_an_explanation_outlives_its_index(make):
    router = make()
    decision = router.route("Which moons does Mars have?")
    router.remove_index("planets")
    assert "planets" in str(router.explanation(decision))


@pytest.mark.parametrize(
    "pins", [{}, {"index": "tools"}, {"strategy": "hybrid"}, {"index": "tools", "strategy": "planner"}]
)
def test_a_replay_gives_the_same_decision(make, pins):
    router = make()
    decision = router.route("Which moons does Mars have?", **pins)
    again = router.replay(json.loads(json.dumps(decision.to_dict())))
    assert not decision.diff(again), str(decision.diff(again))


def test_a_replay_takes_over_what_chance_decided(make):
    router = make(config={"selector": "round_robin"})
    decisions = [router.route("Which moons does Mars have?") for _ in range(3)]
    assert len({d.strategy.name for d in decisions}) == 3
    assert [router.replay(d).strategy.name for d in decisions] == [d.strategy.name for d in decisions]


def test_a_replay_on_a_changed_index_shows_what_changed(make):
    router = make()
    decision = router.route("Which moons does Mars have?")
    router.add_index("planets", [Document(text="Saturn has rings.", doc_id="saturn")])
    diff = decision.diff(router.replay(decision))
    assert "versions.planets" in {one.path for one in diff.differences}


def test_a_replay_of_something_else_is_refused(make):
    with pytest.raises(RoutingError, match="decision record"):
        make().replay({"query": "x"})


def test_out_of_scope_is_declined_without_a_search(make):
    model = FakeLLM(["never"])
    router = make(classifier=Chooser(abstained=True), llm=model)
    answer = router.query("How do I boil an egg?")
    assert (answer.tier, answer.nodes, answer.citations) == (Tier.NONE, (), ())
    assert answer.route.index.abstained
    assert answer.confidence.score < 0.5
    assert not model.prompts
    assert router.retrieve("How do I boil an egg?").nodes == ()
    # A caller who names the index is believed.
    assert router.retrieve("How do I boil an egg?", index="animals").nodes


@pytest.mark.parametrize(
    ("policy", "searched"),
    [("answer", ("animals",)), ("all", ("animals", "planets", "tools")), ("default", ("tools",))],
)
def test_out_of_scope_goes_where_the_setting_says(make, policy, searched):
    config = {"on_abstain": policy, "default_index": "tools" if policy == "default" else ""}
    router = make(classifier=Chooser(abstained=True), config=config)
    retrieval = router.retrieve("How do I boil an egg?")
    assert set(retrieval.indexes) == set(searched)
    assert retrieval.route.index.abstained
    assert retrieval.nodes


def test_out_of_scope_may_be_an_error(make):
    with pytest.raises(OutOfScopeError, match="none of the 3 indexes"):
        make(classifier=Chooser(abstained=True), config={"on_abstain": "raise"}).route("How do I boil an egg?")


def test_the_default_index_must_be_there(make):
    with pytest.raises(ConfigError, match="default_index"):
        make(config={"on_abstain": "default"})
    router = make(classifier=Chooser(abstained=True), config={"on_abstain": "default", "default_index": "tolos"})
    with pytest.raises(UnknownIndexError, match="did you mean 'tools'"):
        router.route("How do I boil an egg?")


def test_several_indexes_are_merged(make):
    router = make(classifier=Chooser(names=("animals", "planets")))
    retrieval = router.retrieve("Which moons does Mars have?", strategy="vector")
    assert retrieval.indexes == ("animals", "planets")
    assert {node.node.ref_doc_id for node in retrieval.nodes} == {"cats", "dogs", "venus", "mars"}
    assert retrieval.nodes[0].node.ref_doc_id == "mars"


def test_one_failing_index_of_several_is_left_out(make, monkeypatch):
    router = make(classifier=Chooser(names=("animals", "planets")))
    adapter = router.resources.adapter(router.index("animals"), Strategy.VECTOR)
    monkeypatch.setattr(type(adapter), "_search", _fails_on("animals", type(adapter)._search))
    retrieval = router.retrieve("Which moons does Mars have?", strategy="vector")
    assert {node.node.ref_doc_id for node in retrieval.nodes} == {"venus", "mars"}
    assert [lost.step for lost in retrieval.degraded] == ["index.animals"]


def _fails_on(name, search):
    def _search(self, request, deadline):
        if self._index.name == name:
            raise OSError("the disk is gone")
        return search(self, request, deadline)

    return _search


def test_little_found_makes_a_second_and_third_try(make, monkeypatch):
    monkeypatch.setattr(query, "RETRY_BELOW", 1.0)
    # No text is near this question, so every search has little to show.
    router = make(classifier=Chooser())
    retrieval = router.retrieve("Which moons does Mars have?")
    assert len(retrieval.tried) == 3
    assert len({one.strategy for one in retrieval.tried}) == 3
    best = max(one.confidence or 0.0 for one in retrieval.tried)
    assert [one.confidence for one in retrieval.tried if one.strategy is retrieval.strategy] == [best]
    assert (
        router.query("Which moons does Mars have?").to_dict()["tried"][0]["strategy"]
        == retrieval.tried[0].strategy.value
    )


@pytest.mark.parametrize("fixed", [{"strategy": "vector"}, {"budget": Budget(max_ms=2_000)}])
def test_a_pin_is_never_overridden_and_a_good_find_needs_no_second_try(make, fixed, monkeypatch):
    monkeypatch.setattr(query, "RETRY_BELOW", 1.0 if "strategy" in fixed else 0.2)
    router = make()
    assert len(router.retrieve("The cat sleeps sixteen hours a day.", **fixed).tried) == 1


def test_a_tight_budget_withholds_slow_strategies(make):
    router = make(timer=lambda: 0.0)  # a busy machine must not use the budget up
    decision = router.route("Compare cats and dogs and say which sleeps longer.", budget=Budget(max_ms=70))
    assert "planner" in decision.withheld
    assert "planner" not in decision.strategy.scores
    assert "the budget leaves" in decision.withheld["planner"]
    free = router.route("Compare cats and dogs and say which sleeps longer.")
    assert "planner" in free.strategy.scores
    assert "planner" in str(router.explain("Compare cats and dogs.", budget=Budget(max_ms=70)))


def test_a_budget_that_is_used_up_ends_in_time(make):
    with pytest.raises(DeadlineExceededError):
        make().query("Which moons does Mars have?", budget=Budget(max_ms=0.001))


def test_model_calls_of_retrieval_are_counted_and_limited(make):
    plan = '["Which moons does Mars have?", "How long does the cat sleep?"]'
    model = FakeLLM(lambda prompt: plan if "Split a question" in prompt else "Two moons: Phobos and Deimos [1].")
    router = make(llm=model)
    question = "Which moons does Mars have and how long does the cat sleep?"
    answer = router.query(question, strategy="planner", index="planets")
    assert answer.usage.llm_calls == 2
    frugal = router.query(question, strategy="planner", index="planets", budget=Budget(max_llm_calls=1))
    assert frugal.usage.llm_calls == 1
    none = router.query(question, strategy="planner", index="planets", budget=Budget(max_llm_calls=0))
    assert none.usage.llm_calls == 0
    assert none.tier in {Tier.EXTRACTIVE, Tier.NONE}
    assert any("budget" in lost.reason for lost in none.degraded)


PAPERS = [
    ("Pooch, U. W.", "A translation of decision tables."),
    ("Prieve, B. G.", "Page replacement algorithms compared."),
    ("Salton, G.", "Clusters of documents in retrieval."),
    ("Knuth, D. E.", "Articles written about the errors of a typesetting program."),
]


@pytest.fixture
def papers(tmp_path, monkeypatch):
    # Whatever is found looks poor by its cosine, so that the next strategy is always tried where that decides.
    config = RouterConfig(data_dir=tmp_path / "data")
    monkeypatch.setattr("agentic_retriever.pipeline.query.RETRY_BELOW", 1.0)
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=32)) as made:
        documents = [
            Document(text=text, doc_id=author.split(",")[0], metadata={"author": author}) for author, text in PAPERS
        ]
        made.add_index("papers", documents)
        yield made


def test_what_satisfies_a_stated_condition_is_not_given_up_for_nearer_texts(papers):
    found = papers.retrieve("I am interested in articles written either by Prieve or Udo Pooch")
    assert found.route.strategy.name == "metadata"
    assert found.strategy is Strategy.METADATA
    assert found.understood
    assert {node.node.ref_doc_id for node in found.nodes} == {"Prieve", "Pooch"}
    assert len(found.tried) == 1


def test_without_a_condition_after_all_the_next_strategy_decides(papers):
    found = papers.retrieve("Articles by Gerard Salton or others about clusters of documents")
    assert found.route.strategy.name == "metadata"
    assert not found.understood
    assert found.tried[0].strategy is Strategy.METADATA
    assert found.strategy is not Strategy.METADATA


def test_a_pinned_strategy_stays(papers):
    found = papers.retrieve("Articles by Gerard Salton or others about clusters of documents", strategy="metadata")
    assert found.strategy is Strategy.METADATA

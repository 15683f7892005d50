"""Decisions explained, recorded and replayed; questions about nothing; budgets and accounts; second tries; merging."""

import contextlib
import copy
import dataclasses
import json
import math
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest.mock import Mock

import made_up_values
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.schema import Document, IndexNode, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from made_up_values import COUNTS, NAMES, NUMBERS, TEXTS, answers
from small_indexes import GOOD, QUESTION, Chooser, documents
from store_tools import doc_ids, ids, where
from waiting import Clock

from agentic_retriever import Budget, Strategy, errors
from agentic_retriever.catalog.records import make_entry
from agentic_retriever.llm import LLMClient, TieredClient
from agentic_retriever.pipeline import answers as kept_answers
from agentic_retriever.pipeline.answers import MAX_CHARS, decoded, encoded, prepared_answer, warm_outcome, worth_keeping
from agentic_retriever.pipeline.cosines import merge_by_cosine, merge_indexes
from agentic_retriever.pipeline.spending import MeteredModel, Spending
from agentic_retriever.retrievers import SearchResult
from agentic_retriever.retrievers.base import RetrievedNode
from agentic_retriever.schema import Answer, Degradation, Tier, TierUsage
from agentic_retriever.testing import FakeEmbedding, FakeLLM

_TEXTS = {
    "animals": {"cats": "The cat sleeps sixteen hours a day.", "dogs": "The dog barks at the postman."},
    "planets": {"venus": "Venus spins backwards.", "mars": "Mars has two moons named Phobos and Deimos."},
    "tools": {"saw": "A saw cuts wood along a line.", "plane": "A plane makes a board flat."},
}
MOONS, EGG = "Which moons does Mars have?", "How do I boil an egg?"


THREE = {name: documents(texts) for name, texts in _TEXTS.items()}


@pytest.fixture
def router(make):
    return make(THREE)


def test_an_explanation_names_every_candidate_and_why_and_outlives_its_index(router):
    explained = router.explain("Which moons does Mars have, and which {braces} <b>?")
    text = str(explained)
    for name in (*THREE, *explained.decision.strategy.scores):
        assert name in text
    assert explained.decision.index.reason in text
    assert "Complexity: simple" in text
    assert "Milliseconds:" in text
    assert "<b>" not in explained._repr_html_()
    data = json.loads(json.dumps(explained.to_dict()))
    assert data["decision"]["index"] == "planets"
    assert {card["strategy"] for card in data["cards"]} >= {"vector", "hybrid"}
    decision = router.route(MOONS)
    router.remove_index("planets")
    assert "planets" in str(router.explanation(decision))


def test_a_replay_gives_the_same_decision_or_shows_what_changed_and_of_something_else_is_refused(router):
    for pins in [{}, {"index": "tools"}, {"strategy": "hybrid"}, {"index": "tools", "strategy": "planner"}]:
        decision = router.route(MOONS, **pins)
        again = router.replay(json.loads(json.dumps(decision.to_dict())))
        assert not decision.diff(again), str(decision.diff(again))
    decision = router.route(MOONS)
    router.add_index("planets", [Document(text="Saturn has rings.", doc_id="saturn")])
    assert "versions.planets" in {one.path for one in decision.diff(router.replay(decision)).differences}
    with pytest.raises(errors.RoutingError, match="decision record"):
        router.replay({"query": "x"})


def test_a_replay_takes_over_what_chance_decided(make):
    router = make(THREE, config={"selector": "round_robin"})
    decisions = [router.route(MOONS) for _ in range(3)]
    assert len({d.strategy.name for d in decisions}) == 3
    assert [router.replay(d).strategy.name for d in decisions] == [d.strategy.name for d in decisions]


def test_out_of_scope_is_declined_searched_or_an_error_as_the_setting_says(make):
    model = FakeLLM(["never"])
    router = make(THREE, classifier=Chooser(abstained=True), llm=model)
    answer = router.query(EGG)
    assert (answer.tier, answer.citations) == (Tier.NONE, ())
    assert answer.nodes  # the nearest passages are shown
    assert answer.route.index.abstained
    assert answer.confidence.score < 0.5
    assert not model.prompts
    for policy, searched in [
        ("answer", ("animals",)),
        ("all", ("animals", "planets", "tools")),
        ("default:tools", ("tools",)),
    ]:
        router = make(THREE, classifier=Chooser(abstained=True), config={"on_abstain": policy})
        retrieval = router.retrieve(EGG)
        assert set(retrieval.indexes) == set(searched)
        assert retrieval.route.index.abstained
        assert retrieval.nodes
    with pytest.raises(errors.OutOfScopeError, match="none of the 3 indexes"):
        make(THREE, classifier=Chooser(abstained=True), config={"on_abstain": "raise"}).route(EGG)
    with pytest.raises(errors.ConfigError, match="default:NAME"):
        make(THREE, config={"on_abstain": "default"})
    router = make(THREE, classifier=Chooser(abstained=True), config={"on_abstain": "default:tolos"})
    with pytest.raises(errors.UnknownIndexError, match="did you mean 'tools'"):
        router.route(EGG)


def test_several_indexes_are_merged_and_one_that_fails_is_left_out(make, monkeypatch):
    router = make(THREE, classifier=Chooser(names=("animals", "planets")))
    retrieval = router.retrieve(MOONS, strategy="vector")
    assert retrieval.indexes == ("animals", "planets")
    assert set(doc_ids(retrieval.nodes)) == {"cats", "dogs", "venus", "mars"}
    assert retrieval.nodes[0].node.ref_doc_id == "mars"
    adapter = type(router.resources.adapter(router.index("animals"), Strategy.VECTOR))
    search = adapter._search

    def fails_on_animals(self, request, deadline):
        if self._index.name == "animals":
            raise OSError("the disk is gone")
        return search(self, request, deadline)

    monkeypatch.setattr(adapter, "_search", fails_on_animals)
    retrieval = router.retrieve(MOONS, strategy="vector")
    assert set(doc_ids(retrieval.nodes)) == {"venus", "mars"}
    assert [lost.step for lost in retrieval.degraded] == ["index.animals"]


RULES = """# {name}

## 1.1

{name} says that boats pay at the quay.

## 1.2 Nets

Nets are dried here.

### 1.2.1

Not on Sundays.

## 2.10

Dogs stay on a leash.
"""


@pytest.fixture
def rules(make, tmp_path):
    # Each section has enough to stand alone.
    more = " ".join(["It is done as the master of the harbour has it, and whoever does not is asked to leave."] * 8)
    for name in ("Harbour order", "Market order"):
        (tmp_path / f"{name}.md").write_text(RULES.format(name=name).replace(".\n", f". {more}\n"), encoding="utf-8")
    return make({"rules": tmp_path, "planets": THREE["planets"]})


def named(retrieval, count=10):
    return [
        (str(one.node.metadata["title"]).split()[0], one.node.metadata.get("section_number"))
        for one in retrieval.nodes[:count]
    ]


@pytest.mark.parametrize("strategy", [None, "recursive"])
def test_a_part_that_is_asked_for_by_its_number_comes_first_with_what_is_below_it(rules, strategy):
    pins = {"index": "rules", "strategy": strategy, "top_k": 3}
    for asked in (
        "What does section 1.2 of the Market order say?",
        "Market order 第1.2节",
        "Market order, Abschnitt 1.2",
    ):
        found = rules.retrieve(asked, **pins)
        assert named(found, 2) == [("Market", "1.2"), ("Market", "1.2.1")]
        assert "section 1.2, looked up by its number" in found.understood
    both = rules.retrieve("Was steht in Abschnitt 2.10?", **pins)
    assert {*named(both, 2)} == {("Harbour", "2.10"), ("Market", "2.10")}
    missing = rules.retrieve("¿Qué dice el apartado 1.7?", **pins)
    assert "there is no section 1.7; the nearest numbers are 1.1 and 1.2" in missing.understood
    found = rules.retrieve("section 1.2 of the Market order", filters=where("title", "Harbour order"), **pins)
    assert named(found, 2) == [("Harbour", "1.2"), ("Harbour", "1.2.1")]


def test_a_title_of_one_word_is_not_meant_by_a_question_about_more(rules):
    def understood(query):
        return rules.retrieve(query, index="rules", strategy="recursive").understood

    assert understood("Give me an overview of nets") == ("'1.2 Nets', looked up by its title",)
    assert understood("Give me an overview of nets, boats and fees") == ()


def test_a_number_says_nothing_to_a_pinned_search_nor_in_an_index_without_numbers(rules):
    assert not rules.retrieve("section 1.2", index="rules", strategy="vector").understood
    assert not rules.retrieve("section 1.2", index="planets").understood


@pytest.mark.parametrize("names", [["planets", "animals"], ("animals", "planets", "animals")])
def test_among_several_named_indexes_alone_one_is_chosen(router, names):
    saw = "A saw cuts wood along a line."
    assert router.route(saw).index.name == "tools"
    decision = router.route(saw, index=names)
    assert set(decision.index.scores) == set(decision.versions) == {"animals", "planets"}
    assert decision.among == ("animals", "planets")
    assert not decision.diff(router.replay(json.loads(json.dumps(decision.to_dict()))))
    assert router.retrieve(MOONS, index=names).nodes[0].node.ref_doc_id == "mars"
    assert router.route(MOONS, index=["planets"]).index.mode == "pinned"
    first = router.query(MOONS, index=names)
    assert first.route.index.name == "planets"
    assert make_entry(first).index_mode == "profile of animals, planets"
    assert (router.query(MOONS, index=names[::-1]).cached, router.query(MOONS).cached) == (True, False)
    assert router.as_retriever(index=names).retrieve(MOONS)[0].node.ref_doc_id == "mars"
    with pytest.raises(errors.UnknownIndexError, match=r"'planet'.*did you mean 'planets'.*animals, planets, tools"):
        router.query(MOONS, index=["animals", "planet"])
    for none in ([], [3], 5, {"animals": 1}):
        with pytest.raises(errors.InvalidQueryError, match="index must be the name"):
            router.query(MOONS, index=none)


def test_a_tight_budget_withholds_slow_strategies_and_a_used_one_ends_in_time(make):
    router = make(THREE, timer=lambda: 0.0)  # a busy machine must not use the budget up
    question, tight = "Compare cats and dogs and say which sleeps longer.", Budget(max_ms=70)
    decision = router.route(question, budget=tight)
    assert "planner" not in decision.strategy.scores
    assert "the budget leaves" in decision.withheld["planner"]
    for other in (None, Budget(max_llm_calls=1)):
        assert "planner" in router.route(question, budget=other).strategy.scores
    assert "planner" in str(router.explain("Compare cats and dogs.", budget=tight))
    with pytest.raises(errors.DeadlineExceededError):
        make(THREE).query(MOONS, budget=Budget(max_ms=0.001))


def test_model_calls_of_retrieval_are_counted_and_limited(make):
    plan = '["Which moons does Mars have?", "How long does the cat sleep?"]'
    model = FakeLLM(lambda prompt: plan if "Split a question" in prompt else "Two moons: Phobos and Deimos [1].")
    router = make(THREE, llm=model)
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
def papers(make):
    sources = [Document(text=text, doc_id=author.split(",")[0], metadata={"author": author, "code": f"5.{len(author)}"})
               for author, text in PAPERS]  # fmt: skip
    return make({"papers": sources}, embedding=FakeEmbedding(dimension=32))


def test_a_stated_condition_decides_and_one_that_cannot_be_read_does_not(papers):
    found = papers.retrieve("I am interested in articles written either by Prieve or Udo Pooch")
    assert found.route.strategy.name == "metadata"
    assert found.strategy is Strategy.METADATA
    assert found.understood
    assert (set(doc_ids(found.nodes)), len(found.tried)) == ({"Prieve", "Pooch"}, 1)
    for question in ("5.13", "Page replacement, Prieve"):  # a number that is a value is no section's
        assert doc_ids(papers.retrieve(question).nodes) == ["Prieve"]
    found = papers.retrieve(SALTON)
    assert found.route.strategy.name == "hybrid"  # nobody of that name is there
    assert not found.understood
    assert [one.strategy for one in found.tried] == [Strategy.HYBRID]
    assert papers.retrieve(SALTON, strategy="metadata").strategy is Strategy.METADATA  # a pinned one stays


SALTON = "Articles by Gerard Salton or others about clusters of documents"


# The accounts of one query, and the order of nodes of several indexes


def usage(calls=1, usd=0.0):
    return TierUsage(tier=Tier.CLOUD, model="m", calls=calls, prompt_tokens=5, completion_tokens=1, usd=usd)


def test_what_is_left_and_what_a_metered_model_counts_and_refuses():
    time = Clock()
    spending = Spending(Budget(max_ms=2_000, max_usd=0.02, max_llm_calls=3), 2.0, time)
    spending.add([usage(2, 0.015)])
    time.now = 0.5
    left = spending.left("writing")
    assert (left.timeout_s, left.max_llm_calls, left.max_usd) == (1.5, 1, pytest.approx(0.005))
    spending.add([usage(4, 1.0)])
    assert (spending.left("writing").max_llm_calls, spending.left("writing").max_usd) == (0, 0.0)
    time.now = 2.0
    with pytest.raises(errors.DeadlineExceededError):
        spending.left("writing")
    left = Spending(None, 9.0, Clock()).left("x")
    assert (left.timeout_s, left.max_llm_calls, left.max_usd) == (9.0, None, None)
    one = LLMClient(FakeLLM(["one", "two", "three"]), tier=Tier.PRIMARY, timeout_s=5.0)
    client = TieredClient([one], timeout_s=5.0)
    spending = Spending(Budget(max_llm_calls=2), 9.0, Clock())
    model = MeteredModel(client, spending)
    assert (model.tier, model.model) == (client.tier, client.model)
    assert [model.complete("p").text, model.complete("p", timeout_s=1.0).text] == ["one", "two"]
    assert spending.usage.llm_calls == 2
    with pytest.raises(errors.BudgetExceededError, match="max_llm_calls=2"):
        model.complete("p")
    assert spending.usage.llm_calls == 2


def test_choices_by_a_model_and_what_comes_before_the_extract_have_shares_of_the_time():
    time = Clock()
    spending = Spending(None, 120.0, time)
    assert spending.choosing("x").timeout_s == pytest.approx(5)
    time.now = 2.0
    assert spending.choosing("x").timeout_s == pytest.approx(3)
    time.now = 5.0
    assert (spending.choosing("x").may_ask, spending.search_s("x")) == (False, 114.0)
    time.now = 119.5
    assert (spending.search_s("x"), spending.left_s("x")) == (0.25, 0.5)
    given = []
    model = Mock(complete=lambda _prompt, *, timeout_s, needs: given.append((timeout_s, needs)) or Mock(attempts=()))
    MeteredModel(model, spending).complete("p")
    assert given[0][0] == 0.25


def result(prefix, scores):
    nodes = [NodeWithScore(node=TextNode(id_=f"{prefix}{i}", text="t"), score=s) for i, s in enumerate(scores)]
    return SearchResult(nodes)


def test_one_index_passes_through_and_several_are_merged_by_cosine_share_and_own_best():
    nodes, origin = merge_indexes(None, {"a": result("a", [0.5, 0.2])}, {"a": 1.0}, query_vector=None, top_k=5)
    assert [(n.node.node_id, n.score) for n in nodes] == [("a0", 0.5), ("a1", 0.2)]
    assert origin == {"a0": "a", "a1": "a"}
    # BM25 scores of one index against cosines of the other: the cosines with the question tell.
    results = {"far": result("f", [31.0, 29.0]), "near": result("n", [0.9, 0.8])}
    cosines = {"f0": 0.71, "f1": 0.70, "n0": 0.93, "n1": 0.90}
    nodes, origin = merge_by_cosine(results, {"far": 0.5, "near": 0.5}, cosines=cosines, top_k=4)
    assert ids(nodes) == ["n0", "n1", "f0", "f1"]
    assert origin["n0"] == "near"
    results = {"a": result("a", [0.9, 0.1]), "b": result("b", [0.9, 0.1])}
    cosines = {"a0": 0.8, "a1": 0.5, "b0": 0.8, "b1": 0.5}
    assert ids(merge_by_cosine(results, {"a": 0.3, "b": 0.7}, cosines=cosines, top_k=1)[0]) == ["b0"]
    results = {"a": result("a", [30.0, 3.0]), "b": result("b", [2.0, 1.9])}
    nodes, _ = merge_by_cosine(results, {"a": 0.5, "b": 0.5}, cosines={"a0": 0.9}, top_k=4)
    assert ids(nodes) == ["a0", "b0", "b1", "a1"]


lists = st.lists(st.floats(-1, 50), max_size=6).map(lambda scores: sorted(scores, reverse=True))


@given(st.dictionaries(st.sampled_from("abcd"), lists, min_size=2), st.data())
def test_the_order_of_each_strategy_stays(scores, data):
    results = {name: result(name, row) for name, row in scores.items()}
    every = [i for r in results.values() for i in ids(r.nodes)]
    cosines = {node_id: data.draw(st.floats(-1, 1)) for node_id in every}
    shares = {name: data.draw(st.floats(0, 1)) for name in results}
    nodes, origin = merge_by_cosine(results, shares, cosines=cosines, top_k=len(every))
    assert (sorted(ids(nodes)), set(origin)) == (sorted(every), set(every))
    ranked = [(-(n.score or 0.0), n.node.node_id) for n in nodes]
    assert ranked == sorted(ranked)
    placed = {n.node.node_id: n.score for n in nodes}
    for row in results.values():
        kept = [placed[n.node.node_id] for n in row.nodes]
        assert kept == sorted(kept, reverse=True)
        assert all(0 <= score <= 1 for score in kept)


# Answers in the cache: written and read whole, copied for each caller, never older than their index


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
RELATED = st.builds(RelatedNodeInfo, node_id=NAMES, metadata=st.dictionaries(NAMES, PLAIN, max_size=2))


@st.composite
def nodes(draw):
    values = {
        "id_": draw(NAMES), "text": draw(st.text(alphabet=st.characters(), max_size=30)),
        "metadata": draw(st.dictionaries(NAMES, PLAIN, max_size=3)),
        "relationships": draw(
            st.fixed_dictionaries(
                {}, optional={NodeRelationship.SOURCE: RELATED, NodeRelationship.CHILD: st.lists(RELATED, max_size=2)}
            )
        ),
        "excluded_llm_metadata_keys": draw(st.lists(NAMES, max_size=2)), "start_char_idx": draw(st.none() | COUNTS),
        "embedding": draw(st.none() | st.lists(NUMBERS, max_size=3)),
    }  # fmt: skip
    node = IndexNode(index_id="i", **values) if draw(st.booleans()) else TextNode(**values)
    said = draw(st.dictionaries(NAMES, PLAIN, max_size=2))
    return RetrievedNode(node=node, score=draw(st.none() | NUMBERS), details=said)


ANSWERS = answers(nodes())


def same(one, other):
    assert dataclasses.replace(one, nodes=()) == dataclasses.replace(other, nodes=())
    assert one.to_dict() == other.to_dict()
    assert [type(n.node) for n in one.nodes] == [type(n.node) for n in other.nodes]
    assert [n.to_dict() for n in one.nodes] == [n.to_dict() for n in other.nodes]


@pytest.fixture
def answer():
    node = TextNode(
        text="The cat sleeps.", metadata={"tags": ["x"]},
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="doc", metadata={"a": [1]})},
    )  # fmt: skip
    made = made_up_values.answer("It sleeps [1].")
    found = RetrievedNode(node=node, score=0.5, details={"retrieval": {"dense": 0.5}})
    return dataclasses.replace(made, nodes=(found,), degraded=())


@settings(max_examples=150, deadline=None)
@given(ANSWERS)
def test_answers_come_back_whole_and_copies_are_equal(answer):
    data = encoded(answer)
    assert set(json.loads(data)) - {"format"} == {field.name for field in dataclasses.fields(Answer)}
    same(decoded(data), answer)
    same(prepared_answer(answer)(), answer)


def test_answers_of_the_router_come_back_whole(make):
    texts = {"cats": "The cat sleeps sixteen hours a day.", "dogs": "The dog barks at the postman."}
    sources = [Document(text=text, doc_id=name, metadata={"year": 2020}) for name, text in texts.items()]
    router = make({"animals": sources}, config={"cache_max_entries": 0})
    question = "How many hours does the cat sleep, and whom does the dog bark at?"
    for strategy in ("vector", "hybrid", "metadata", "planner", None):
        answer = router.query(question, strategy=strategy)
        assert answer.nodes
        same(decoded(encoded(answer)), answer)
        assert pickle.loads(pickle.dumps(answer)) == answer
        assert Answer.from_dict(json.loads(json.dumps(answer.to_dict()))) == dataclasses.replace(answer, nodes=())


def test_what_json_cannot_hold_foreign_classes_and_other_bytes_are_refused(answer):
    for value in [math.nan, math.inf, b"bytes", object(), (1, 2), {1: 2}, {1, 2}, np.float32(1)]:
        answer.nodes[0].node.metadata["odd"] = value
        with pytest.raises(ValueError, match=r"JSON|text"):
            encoded(answer)

    class Mine(TextNode):
        pass

    for node in (IndexNode(text="x", index_id="i", obj=TextNode(text="y")), Mine(text="x"), Document(text="x")):
        odd = dataclasses.replace(answer, nodes=(NodeWithScore(node=node, score=1.0),))
        with pytest.raises(ValueError, match="JSON"):
            encoded(odd)
    for data in [b"", b"null", b"[]", b"{}", b'{"format":1}', b'{"format":3}', b"\xff", b"[" * 100_000]:
        with pytest.raises(ValueError):
            decoded(data)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_answer_is_refused_or_an_answer(data):
    """Nothing but ValueError, whatever is missing or has another type."""
    place = row = json.loads(encoded(made_up_values.answer("t")))
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        inner = place[key]
        if not (isinstance(inner, (dict, list)) and inner and data.draw(st.booleans())):
            break
        place = inner
    if data.draw(st.booleans()):
        del place[key]
    else:
        place[key] = data.draw(PLAIN)
    with contextlib.suppress(ValueError):
        assert isinstance(decoded(json.dumps(row).encode()), Answer)


def test_callers_cannot_change_what_is_kept_and_what_is_worth_keeping(answer):
    before = [node.to_dict() for node in answer.nodes]
    node = prepared_answer(answer)().nodes[0]
    node.score = 9.0
    node.node.text = "spoiled"
    node.node.metadata["tags"].append("spoiled")
    node.details["retrieval"]["dense"] = 9
    node.node.relationships[NodeRelationship.SOURCE].metadata["a"].append("spoiled")
    node.node.relationships.clear()
    node.node.excluded_llm_metadata_keys.append("spoiled")
    assert [node.to_dict() for node in answer.nodes] == before
    assert worth_keeping(answer)
    lost = Degradation(step="a", reason="b", fallback="c")
    huge = NodeWithScore(node=TextNode(text="x" * (MAX_CHARS + 1)), score=1.0)
    for changes in ({"degraded": (lost,)}, {"tier": Tier.NONE}, {"nodes": (huge,)}):
        assert not worth_keeping(dataclasses.replace(answer, **changes))
        assert warm_outcome(dataclasses.replace(answer, **changes)) == "not_kept"
    assert warm_outcome(answer) == "stored"
    assert warm_outcome(dataclasses.replace(answer, cached=True)) == "cached"


HOURS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def cat(hours):
    return Document(text=f"The cat sleeps {hours} hours a day.", doc_id="cat")


def test_an_index_that_was_removed_and_made_again(make):
    router = make()
    for hours in HOURS[:3]:
        router.add_index("animals", [cat(hours)], description="Cats")
        assert f"{hours} hours" in router.query(QUESTION).text
        router.remove_index("animals")


@contextmanager
def readers(router):
    """Two threads that ask all the time; what they raise is raised in the end."""
    stop = threading.Event()

    def read():
        while not stop.is_set():
            router.query(QUESTION, index="animals", strategy="vector")

    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(read) for _ in range(2)]
        try:
            yield
        finally:
            stop.set()
    for one in reading:
        one.result()


@pytest.mark.parametrize("seed", range(2))
def test_random_changes_with_readers(make, seed):
    router, random_ = make(), random.Random(seed)
    now = random_.choice(HOURS)
    router.add_index("animals", [cat(now), Document(text="The dog barks.", doc_id="dog")], description="Animals")
    with readers(router):
        for _ in range(25):
            kind = random_.choice(("update", "delete", "nothing"))
            if kind == "update":
                now = random_.choice(HOURS)
                router.add_index("animals", [cat(now)])
            elif kind == "delete" and now:
                router.remove_documents("animals", ["cat"])
                now = ""
            answer = router.query(QUESTION, index="animals", strategy="vector")
            texts = " ".join(node.node.text for node in answer.nodes)
            assert [hours for hours in HOURS if f"{hours} hours" in texts] == [now] * bool(now)
    router.add_index("animals", [cat("two")])
    assert [router.query(QUESTION, index="animals", strategy="vector").cached for _ in range(2)] == [False, True]


def spoil(nodes):
    """Change all that a caller can change of nodes."""
    for scored in nodes:
        scored.score = -1.0
        scored.node.text = "spoilt"
        scored.node.metadata.clear()
        scored.node.relationships.clear()


def told(answer):
    nodes = [(scored.score, scored.node.text, scored.node.metadata) for scored in answer.nodes]
    return copy.deepcopy((answer.text, answer.citations, answer.checks, answer.confidence, nodes))


async def streamed(router, stream):
    """Spoil what is shown as soon as it is; return the answer as it came."""
    stream = getattr(router, stream)(QUESTION)
    if isinstance(stream, kept_answers.AnswerStream):
        for _ in stream:
            spoil(stream.nodes)
    else:
        async for _ in stream:
            spoil(stream.nodes)
    return stream.answer


@pytest.mark.parametrize("way", ["stream", "astream"])
async def test_what_a_stream_shows_is_the_callers_own(make_router, way):
    options = {"classifier": "profile", "selector": "heuristic", "answer_rescoring": False}
    expected = told(make_router(model=FakeLLM([GOOD]), **options).query(QUESTION))
    router = make_router(model=FakeLLM([GOOD]), **options)
    first = await streamed(router, way)
    assert not first.cached
    assert told(first) == expected
    spoil(first.nodes)
    for _ in range(2):
        again = router.query(QUESTION)
        assert again.cached
        assert told(again) == expected
        spoil(again.nodes)
    # A cached answer is one piece, whose nodes are shown with it.
    assert (await streamed(router, way)).cached
    assert told(router.query(QUESTION)) == expected

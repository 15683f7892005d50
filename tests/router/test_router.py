"""The router as its callers see it: indexes, questions, pins, cache, failures."""

import gc
import os
import pickle
import threading
import weakref
from copy import deepcopy
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import Mock

import pytest
from llama_index.core.bridge.pydantic import Field
from llama_index.core.schema import Document, NodeWithScore
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from small_indexes import ANIMALS, PLANETS, Chooser, asked, documents
from small_indexes import QUESTION as SLEEP
from store_tools import doc_ids, ids, where
from waiting import within

from agentic_retriever import AgenticRouter, Budget, RouterConfig, Strategy, errors, retrievers
from agentic_retriever.embeddings import model
from agentic_retriever.errors import ConfigError, UnknownStrategyError
from agentic_retriever.evaluation.results import BenchOptions
from agentic_retriever.indices import profile
from agentic_retriever.indices.profile import MEASURED_FILE, MeasuredStrategies, StrategyMeasure
from agentic_retriever.pipeline.query import Question
from agentic_retriever.resources import register_strategy, training_stamp
from agentic_retriever.retrievers import cards, unregister_strategy
from agentic_retriever.schema import RouteDecision, Tier, View, strategy_named
from agentic_retriever.testing import FakeEmbedding, FakeLLM
from agentic_retriever.threads import Breaker, BreakerState


@pytest.fixture
def router(make):
    made = make()
    made.add_index("animals", documents(ANIMALS, kind="animal"), description="Animals and how they live")
    made.add_index("planets", documents(PLANETS, kind="planet"), description="Planets and their moons")
    return made


def test_an_answer_has_citations_from_the_right_index_and_the_documented_json(router):
    answer = router.query(SLEEP)
    assert answer.route.index.name == "animals"
    assert "sixteen hours" in str(answer)
    assert answer.tier is Tier.EXTRACTIVE
    assert not answer.degraded
    [first, *_] = answer.citations
    assert (first.doc_id, first.index) == ("cats", "animals")
    for citation in answer.citations:
        source = router.index(citation.index).source_text(citation.doc_id)
        assert source[citation.start : citation.end] == citation.quote
        assert f"[{citation.number}]" in answer.text
    data = router.query("Which moons does Mars have?").to_dict()
    assert {
        "text", "citations", "route", "tier", "confidence", "usage", "timings_ms", "cached", "query_id", "degraded",
        "nodes", "understood", "tried", "attempts", "nodes_left_out", "checks",
    } == set(data)  # fmt: skip
    assert {"index", "index_scores", "strategy", "strategy_scores", "complexity"} <= set(data["route"])
    assert set(data["route"]["index_scores"]) == {"animals", "planets"}
    assert {"vector", "hybrid"} <= set(data["route"]["strategy_scores"])
    [cited, *_] = data["citations"]
    assert {"doc_id", "node_id", "start", "end", "quote", "score", "article", "source"} <= set(cited)
    assert {"final", "dense"} <= set(cited["scores"])
    assert cited["scores"]["final"] in [node["score"] for node in data["nodes"]]
    assert [line.split()[0] for line in answer.references.splitlines()] == [f"[{c.number}]" for c in answer.citations]
    assert {"routing", "embedding", "retrieval", "rerank", "llm", "total"} <= set(data["timings_ms"])
    assert data["usage"]["llm_calls"] == 0


def test_an_index_may_have_larger_chunks_than_the_others_so_that_an_article_stays_whole(make):
    article = Document(text="Article 1. Sleep\n\n" + "Cats sleep sixteen hours a day. " * 200, doc_id="cats")
    router = make()
    for name, size in (("default", None), ("laws", 2_000)):
        router.add_index(name, [article], chunk_size=size)
    assert (router.index("default").count(), router.index("laws").count()) == (3, 1)
    assert router.add_index("laws", [article], chunk_size=100).unchanged == 1  # it was made with another size
    with pytest.raises(ConfigError, match="chunk_size must be a whole number"):
        router.add_index("new", [article], chunk_size=0)


def test_retrieval_obeys_pins_filters_and_top_k_and_gives_copies_best_first(router):
    decision = router.route("cat", index="planets", strategy="hybrid")
    assert (decision.index.name, decision.index.mode) == ("planets", "pinned")
    assert (decision.strategy.name, decision.strategy.mode) == ("hybrid", "pinned")
    assert router.retrieve("cat", index="planets", strategy=Strategy.VECTOR).strategy is Strategy.VECTOR
    first = router.retrieve("the dog barks", top_k=2)
    assert (first.nodes[0].node.ref_doc_id, len(first.nodes)) == ("dogs", 2)
    first.nodes[0].node.metadata["title"] = "spoiled"
    assert router.retrieve("the dog barks", top_k=2).nodes[0].node.metadata["title"] == "dogs"
    for strategy in ("vector", "hybrid"):
        pins = {"index": "animals", "strategy": strategy, "filters": where("title", "owls")}
        assert doc_ids(router.retrieve("the cat and the dog", **pins).nodes) == ["owls"]
    assert len(router.retrieve("cat dog owl", index="animals", top_k=1000, strategy="vector").nodes) == 3
    plain = router.retrieve("the cat", index="animals", strategy="vector")
    empty = router.retrieve("the cat", index="animals", strategy="vector", filters=MetadataFilters(filters=[]))
    assert ids(plain.nodes) == ids(empty.nodes)


def test_the_cache_gives_copies_for_the_same_inputs_and_none_of_an_older_index(router):
    first = router.query(SLEEP)
    second = router.query("  How many hours does the cat   sleep? ")
    assert (first.cached, second.cached, second.text) == (False, True, first.text)
    assert second.query_id != first.query_id
    second.nodes[0].node.metadata["title"] = "spoiled"
    assert router.query(SLEEP).nodes[0].node.metadata["title"] != "spoiled"
    assert router.cache.clear() == 1
    assert not router.query(SLEEP).cached
    for other in ({"top_k": 1}, {"strategy": "hybrid"}, {"index": "animals"}, {"filters": where("kind", "animal")}):
        assert not router.query(SLEEP, **other).cached
    assert "sixteen" in router.query(SLEEP).text
    router.add_index("animals", documents({"cats": "The cat sleeps nine hours a day, it was found."}))
    assert "nine hours" in router.query(SLEEP).text
    router.remove_documents("animals", ["cats"])
    assert "nine" not in router.query(SLEEP).text


def test_nothing_relevant_says_so_in_the_language_of_the_question_and_answers_are_drawn_escaped(router, make):
    question = "¿Cuál es la receta de la paella valenciana con mariscos?"
    answer = router.query(question)
    assert answer.tier is Tier.NONE
    assert answer.confidence.level.value == "not_found"
    assert not answer.citations
    assert "no responden" in answer.text
    assert not router.query(question).cached
    router = make({"x": documents({"<b>": "The <script>alert(1)</script> tag is dangerous in pages."})})
    drawn = router.query("Which script tag is dangerous in pages?")._repr_html_()
    assert "<script>" not in drawn
    assert "&lt;script&gt;" in drawn


def test_a_model_writes_and_its_citations_are_checked_and_one_that_fails_leaves_an_extract_that_is_not_cached(make):
    llm = FakeLLM(["A cat sleeps sixteen hours a day [1]. It also flies to Mars [9]."])
    router = make({"animals": documents(ANIMALS)}, llm=llm)
    answer = router.query(SLEEP)
    assert answer.tier is Tier.PRIMARY
    assert "sixteen hours" in answer.text
    assert "[9]" not in answer.text
    assert (len(llm.prompts), answer.usage.to_dict()["llm_calls"]) == (1, 1)
    router = make({"animals": documents(ANIMALS)}, llm=FakeLLM([ConnectionError("down with sk-canary")]))
    answer = router.query(SLEEP)
    assert answer.tier is Tier.EXTRACTIVE
    assert "sixteen" in answer.text
    [lost] = answer.degraded
    assert (lost.step, lost.fallback) == ("synthesis.llm", "extractive")
    assert "canary" not in str(answer.to_dict())
    assert not router.query(SLEEP).cached


class Deaf(FakeEmbedding):
    """Fails on questions, not on passages, once it is switched off."""

    down: bool = False

    def _get_query_embedding(self, query):
        if self.down:
            raise ConnectionError
        return super()._get_query_embedding(query)


def test_without_a_query_vector_words_still_find(make):
    embedding = Deaf(dimension=64)
    router = make({"animals": documents(ANIMALS), "planets": documents(PLANETS)}, embedding=embedding)
    embedding.down = True
    answer = router.query(SLEEP)
    assert answer.route.index.name == "animals"
    assert "sixteen" in answer.text
    assert "embedding" in {d.step for d in answer.degraded}


class Hung(FakeEmbedding):
    """Hangs on texts of one kind, and counts them."""

    kind: str = ""
    asked: list[str] = Field(default_factory=list)
    back: ClassVar[threading.Event]

    def _held(self, kind, text):
        if kind == self.kind:
            self.asked.append(text)
            self.back.wait(60)
        return self._vector(text)

    def _get_query_embedding(self, query):
        return self._held("question", query)

    def _get_text_embedding(self, text):
        return self._held("passage", text)


@pytest.fixture
def hung(monkeypatch, gate):
    monkeypatch.setattr(model, "QUESTION_S", 0.2, raising=False)
    monkeypatch.setattr(profile, "DESCRIPTION_S", 0.2, raising=False)
    Hung.back = gate
    return Hung(dimension=64)


BOTH = "When does the owl hunt? How many hours does the cat sleep?"


@pytest.mark.parametrize("strategy", [None, *Strategy])
def test_with_an_embedding_model_that_hangs_every_strategy_searches_words_after_one_wait(make, hung, strategy):
    indexes = {"animals": documents(ANIMALS), "planets": documents(PLANETS)}
    chooser = Chooser("animals", ("animals", "planets"))
    router = make(indexes, embedding=hung, config={"deadline_s": 30.0}, classifier=chooser)
    now = [0.0]
    embedding = router.resources.embedding()
    embedding.breaker = Breaker(failures=1, clock=lambda: now[0])
    hung.kind = "question"
    for pins in ({"index": "animals"}, {}, {"top_k": 2}):
        answer = router.query(BOTH, strategy=strategy, **pins)
        assert hung.asked == [BOTH], "the question was waited for again, or a query described an index"
        assert "night" in answer.text or "sixteen" in answer.text
        assert answer.degraded[0].to_dict()["fallback"] == "words only"
        assert all("dense" not in retrievers.source_scores(found) for found in answer.nodes)
    hung.kind, now[0] = "", 30.0
    assert "embedding" not in {lost.step for lost in router.query(BOTH, strategy=strategy).degraded}
    assert embedding.breaker.state is BreakerState.CLOSED


def test_vectors_of_sentences_have_a_share_of_the_time(make, hung):
    router = make({"animals": documents(ANIMALS)}, embedding=hung)
    hung.kind = "passage"
    [lost] = router.query(SLEEP).degraded
    assert (lost.step, lost.fallback) == ("synthesis.embed", "term overlap")


class Crowded(FakeEmbedding):
    """Puts all passages next to each other, and questions on the other side."""

    def _get_query_embedding(self, query):
        return [-1.0, len(query) / 100, 0.0]

    def _get_text_embedding(self, text):
        return [1.0, len(text) / 1e4, 0.1]


@pytest.mark.parametrize("strategy", [None, *Strategy])
def test_a_foreign_question_to_near_identical_chunks_is_judged_as_far_off(make, strategy):
    deposits = {f"lease {i}": f"The deposit of lease {i} is kept for {i} months." for i in range(12)}
    router = make({"leases": documents(deposits)}, embedding=Crowded())
    retrieval = router.retrieve("Why do penguins not fly south?", strategy=strategy)
    assert retrieval.nodes
    assert retrieval.tried[0].confidence == pytest.approx(0.0, abs=1e-9)


def test_a_failing_strategy_gives_way_to_the_next_and_all_failing_is_one_error_with_all_causes(router, monkeypatch):
    chosen = router.route("the cat sleeps", index="animals").strategy.name
    adapter = router.resources.adapter(router.index("animals"), Strategy(chosen))
    monkeypatch.setattr(adapter, "search", lambda _request: 1 / 0)
    retrieval = router.retrieve("the cat sleeps", index="animals")
    assert retrieval.strategy.value != chosen
    assert retrieval.nodes
    [lost] = retrieval.degraded
    assert (lost.step, lost.reason) == (f"retrieval.{chosen}", "ZeroDivisionError")
    broken = Mock(side_effect=ValueError("secret text of a document"))
    offered = [card.strategy for card in cards(router.index("animals"))]
    for strategy in offered:
        monkeypatch.setattr(router.resources.adapter(router.index("animals"), strategy), "search", broken)
    with pytest.raises(errors.RetrievalError) as caught:
        router.retrieve("cat", index="animals")
    assert set(caught.value.causes) == {strategy.value for strategy in offered}
    assert "secret" not in str(caught.value)


def test_round_robin_takes_turns_and_is_not_cached(make):
    router = make({"animals": documents(ANIMALS)}, config={"selector": "round_robin"})
    offered = len(cards(router.index("animals")))
    names = [router.query("the cat sleeps").route.strategy.name for _ in range(2 * offered)]
    assert len(set(names)) == offered
    assert names[:offered] == names[offered:]


def test_unusable_questions_and_unknown_names_are_told_with_the_known_ones(router):
    for query in [None, 3, "", "  ", b"x", "x" * 100_000]:
        with pytest.raises(errors.InvalidQueryError):
            router.query(query)
    with pytest.raises(errors.UnknownIndexError, match=r"did you mean 'animals'\? \(known: animals, planets\)"):
        router.query("x", index="animal")
    with pytest.raises(errors.UnknownStrategyError, match=r"known: .*hybrid.*vector"):
        router.query("x", strategy="vectors")
    with pytest.raises(errors.FilterError):
        router.query("x", filters=MetadataFilters(filters=[MetadataFilter(key="", value="x")]))
    assert [d.step for d in router.query("dog barks postman", force_cloud=True).degraded] == ["synthesis.cloud"]


def test_without_an_index_it_is_an_error_and_an_empty_one_answers_not_found(make):
    with pytest.raises(errors.RoutingError, match="index add"):
        make().query("anything")
    router = make({"one": documents({"a": "Text."})})
    router.remove_documents("one", ["a"])
    answer = router.query("Text?")
    assert (answer.tier, answer.nodes) == (Tier.NONE, ())
    assert router.retrieve("Text?", strategy="hybrid").nodes == ()


def test_unusable_sources_leave_no_index_behind(make, tmp_path):
    router = make()
    for source in ([], 5, [5], None):
        with pytest.raises(errors.IndexingError):
            router.add_index("x", source)
    with pytest.raises(errors.SourceError):
        router.add_index("x", tmp_path / "nowhere")
    (tmp_path / "binary.txt").write_bytes(b"\0\1\2")
    with pytest.raises(errors.IndexingError, match=r"nothing could be indexed.*binary\.txt"):
        router.add_index("x", tmp_path / "binary.txt")
    assert router.index_names() == []


def test_construction_touches_nothing(tmp_path):
    config = RouterConfig(data_dir=tmp_path / "none", ollama_base_url="http://127.0.0.1:9")
    AgenticRouter(config).close()
    assert not (tmp_path / "none").exists()
    with pytest.raises(errors.ConfigError, match="llm"):
        AgenticRouter(config.with_changes(llm="gpt"))


async def test_a_removed_index_is_gone_its_name_is_free_and_a_closed_router_frees_its_model_and_says_so(router):
    router.remove_index("planets")
    assert router.index_names() == ["animals"]
    router.add_index("planets", documents(PLANETS))
    assert router.query("moons of Mars", index="planets").nodes
    model = weakref.ref(router.resources.embedding())
    for _ in range(2):
        router.close()
    gc.collect()
    assert model() is None
    uses = [router.query, router.retrieve, router.route, router.index, router.remove_index, router.build_views]
    for use in (*uses, lambda name: router.add_index(name, documents(PLANETS)), lambda name: list(router.stream(name))):
        with pytest.raises(errors.StoreClosedError, match="make another"):
            use("animals")
    with pytest.raises(errors.StoreClosedError, match="make another"):
        await router.aquery("animals")


async def test_async_twins_equal_the_sync_ones_and_keep_the_deadline_inside_a_sync_retriever(router, monkeypatch, gate):
    question = SLEEP
    assert (await router.aroute(question)).index.name == router.route(question).index.name
    assert (await router.aquery(question)).text == router.query(question).text
    retrieved, expected = await router.aretrieve(question), router.retrieve(question)
    assert ids(retrieved.nodes) == ids(expected.nodes)
    adapter = router.resources.adapter(router.index("animals"), Strategy.VECTOR)
    monkeypatch.setattr(adapter, "search", lambda _request: gate.wait(10))
    with within(1.4), pytest.raises(errors.DeadlineExceededError):
        await router.aretrieve("cat", index="animals", strategy="vector", budget=Budget(max_ms=200))


def test_a_damaged_index_does_not_take_the_others_down_and_another_model_is_a_clear_error(router, make):
    indexes = router.resources.storage.indexes
    router.resources.release()
    indexes.update(indexes.row("planets"), manifest="{")
    answer = router.query(SLEEP)
    assert "sixteen" in answer.text
    [lost] = answer.degraded
    assert (lost.step, lost.fallback) == ("index.planets", "the other indexes")
    assert not router.query(SLEEP, index="animals").degraded
    with pytest.raises(errors.StoreDamagedError):
        router.query("Mars", index="planets")
    router.remove_index("planets")
    assert not router.query(SLEEP).degraded
    router.close()
    with pytest.raises(errors.EmbeddingMismatchError, match="FakeEmbedding"):
        make(embedding=Deaf(dimension=64)).query("cat")


def test_adaptive_top_k_leaves_the_callers_number_alone(make):
    cats = documents({f"d{i}": f"The cat number {i} sleeps." for i in range(20)})
    router = make({"animals": cats}, config={"adaptive_top_k": True, "top_k": 4})
    assert len(router.retrieve("cat", strategy="vector", top_k=7).nodes) == 7
    simple = router.retrieve("cat", strategy="vector")
    assert 1 <= len(simple.nodes) <= 4
    assert "rerank" in simple.timings_ms


def test_reranking_by_a_model_and_its_failure(make):
    router = make({"animals": documents(ANIMALS)}, llm=FakeLLM([ConnectionError("down")]), config={"reranker": "llm"})
    retrieval = router.retrieve("the cat sleeps", strategy="vector")
    assert retrieval.nodes[0].node.ref_doc_id == "cats"
    assert "postprocess.rerank" in {d.step for d in retrieval.degraded}
    with pytest.raises(errors.ConfigError, match="reranker"):
        make(config={"reranker": "llm"})


@pytest.mark.parametrize("strategy", [strategy.value for strategy in Strategy])
def test_a_filter_that_nothing_satisfies_makes_no_vector_query(router, strategy, monkeypatch):
    index = router.index("animals")
    router.retrieve("the cat", index="animals", strategy=strategy)
    asked = []
    monkeypatch.setattr(type(index.vector_store), "query", lambda _store, query, **_: asked.append(query))
    found = router.retrieve("the cat", index="animals", strategy=strategy, filters=where("kind", "mineral"))
    assert (found.nodes, asked) == ((), [])


def test_plain_questions_start_from_calibrated_hybrid_search_and_lists_that_cannot_be_read_are_told(make):
    for settings, strategy in [({}, "hybrid"), ({"fusion": "rrf"}, "vector"), ({"selector": "heuristic"}, "hybrid")]:
        router = make({"mixed": [Document(text="Mars has two moons.", doc_id="mars")]}, config=settings)
        assert router.route("how many moons are there").strategy.name == strategy
    with pytest.raises(errors.ConfigError, match="domain_terms"):
        make(config={"domain_terms": "homologation | ; |"})


# Strategies that a program adds, and what training left beside an index: used at once, and without harm


SAID = "Hybrid hits, newest first; for what changed lately."


def recent(**changes):
    """Register a strategy that reads another one's hits backwards by year."""

    @register_strategy("recent", description=SAID, signals={"range": 6.0}, **changes)
    class Recent(retrievers.RetrieverAdapter):
        def _search(self, request, deadline):
            found = retrievers.build_adapter("hybrid", self._index, self._settings).search(request)
            scored = [NodeWithScore(node=n.node, score=float(n.node.metadata["year"])) for n in found.nodes]
            return retrievers.SearchResult(scored)

    return Recent


@pytest.fixture
def registered():
    yield recent()
    if "recent" in {strategy.value for strategy in retrievers.REGISTRY}:
        unregister_strategy("recent")


@pytest.fixture
def news(make, registered):
    texts = {str(year): f"The canteen opens at {year % 12} in the morning." for year in (2019, 2024, 2021)}
    return make({"news": [Document(text=text, id_=year, metadata={"year": int(year)}) for year, text in texts.items()]})


BETWEEN, WHEN = "Canteen notices between 2019 and 2022 about the morning", "When does the canteen open?"


def test_a_strategy_of_a_program_retrieves_by_name_and_its_signals_let_stage_two_choose_it(news):
    found = news.retrieve(WHEN, strategy="recent")
    assert [n.node.metadata["year"] for n in found.nodes] == [2024, 2021, 2019]
    assert found.strategy is Strategy("recent")
    assert found.strategy not in list(Strategy)
    decision = news.route(BETWEEN)
    assert decision.features["range"] > 0
    assert decision.strategy.name == "recent"
    assert "range +6.0" in decision.strategy.reason
    assert news.route(WHEN).strategy.name != "recent"
    assert news.query(WHEN, strategy="recent").route.strategy.name == "recent"
    read = RouteDecision.from_dict(decision.to_dict())
    assert read.strategy.name == "recent"
    assert not decision.diff(news.replay(read))
    assert "recent" in str(news.explain("Canteen notices", strategy="recent"))


def test_it_is_offered_with_its_views_stands_behind_the_seven_and_is_taken_away(news, registered):
    index = news.index("news")
    assert registered.strategy in {card.strategy for card in retrievers.cards(index)}
    recent(needs=("summary", View.CHUNKS))
    offered = {card.strategy for card in retrievers.cards(index)}
    assert (registered.strategy in offered) == (View.SUMMARY in index.views)
    assert list(retrievers.REGISTRY)[-1] is registered.strategy
    assert registered.strategy.reliability == len(list(Strategy)) == 7
    assert BenchOptions(strategies=("recent", "vector")).strategies == ("recent", "vector")
    unregister_strategy("recent")
    assert registered.strategy not in retrievers.REGISTRY
    with pytest.raises(UnknownStrategyError, match="recent"):
        retrievers.build_adapter("recent", None, retrievers.AdapterSettings())
    with pytest.raises(UnknownStrategyError, match="recent"):
        unregister_strategy("recent")
    with pytest.raises(UnknownStrategyError, match="own"):
        unregister_strategy("vector")


def test_names_behave_as_members_of_the_enumeration_and_wrong_ones_cannot_be_registered():
    one = strategy_named("zigzag")
    assert one is strategy_named("zigzag") is Strategy("zigzag") is pickle.loads(pickle.dumps(one)) is deepcopy(one)
    assert (one.value, one.name, one == "zigzag", f"{one.value}") == ("zigzag", "ZIGZAG", True, "zigzag")
    assert strategy_named("vector") is Strategy.VECTOR
    assert {one: 1}[Strategy("zigzag")] == 1
    with pytest.raises(ValueError, match="never_named"):
        Strategy("never_named")
    with pytest.raises(ConfigError, match="RetrieverAdapter"):
        register_strategy("good", description=SAID)(object)
    assert "good" not in {s.value for s in retrievers.REGISTRY}
    for name, changes, said in [
        ("vector", {}, "own"), ("auto", {}, "small letters"), ("Recent", {}, "small letters"),
        ("", {}, "small letters"), ("x" * 41, {}, "small letters"),
        ("good", {"description": "two\nlines."}, "one line"), ("good", {"description": "no stop"}, "full stop"),
        ("good", {"cost": 0.0}, "above 0"), ("good", {"typical_ms": float("nan")}, "above 0"),
        ("good", {"needs": ("chunk",)}, "did you mean 'chunks'"),
        ("good", {"signals": {"ranges": 1.0}}, "did you mean 'range'"),
        ("good", {"signals": {"range": True}}, "finite number"),
        ("good", {"signals": {"range": float("inf")}}, "finite number"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            register_strategy(name, **{"description": SAID, **changes})
        assert name in {s.value for s in Strategy} or name not in {s.value for s in retrievers.REGISTRY}


# What training left beside an index


MOONS = "Which moons does Mars have?"
FILES = [MEASURED_FILE, retrievers.FUSION_FILE]


@pytest.fixture
def mixed(make):
    sources = [Document(text="Mars has two moons.", doc_id="mars"), Document(text="A cat purrs.", doc_id="cat")]
    return make({"mixed": sources})


@pytest.fixture
def planets(make):
    return make({"planets": documents(PLANETS)})


def measured():
    vector, hybrid = (StrategyMeasure(quality=quality, p50_ms=ms) for quality, ms in ((0.3, 4.0), (0.9, 9.0)))
    found = {Strategy.VECTOR: vector, Strategy.HYBRID: hybrid}
    told = {"dataset": "d", "index": "mixed", "index_version": 1, "queries": 30, "measured_on": "2026-01-01"}
    return MeasuredStrategies(strategies=found, **told)


def test_training_makes_cached_answers_old_and_a_model_of_an_earlier_version_is_ignored(mixed):
    assert [mixed.query(MOONS).cached for _ in range(2)] == [False, True]
    measured().save(mixed.index("mixed").folder)
    assert not mixed.query(MOONS).cached
    (mixed.index("mixed").folder / "strategy_model.json").write_bytes(b"{")
    decision = mixed.route(MOONS)
    assert (decision.strategy.mode, decision.degraded) == ("heuristic", ())


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_a_damaged_file_is_told_and_left_aside(mixed, content):
    (mixed.index("mixed").folder / MEASURED_FILE).write_bytes(content)
    decision = mixed.route(MOONS)
    assert decision.strategy.mode == "heuristic"
    [lost] = [step for step in decision.degraded if step.step.startswith("stage_two.")]
    assert MEASURED_FILE in lost.reason
    assert mixed.retrieve(MOONS).nodes


def test_measured_cards_show_in_the_explanation(mixed):
    plain = mixed.route(MOONS).strategy.scores
    measured().save(mixed.index("mixed").folder)
    explained = mixed.explain(MOONS)
    assert "measured nDCG@10 0.900  9 ms measured" in str(explained)
    weighed = explained.decision.strategy.scores
    assert weighed["hybrid"] / weighed["vector"] > plain["hybrid"] / plain["vector"]


def install(folder, name, text):
    """Write a file as training does: beside its place, then moved there."""
    (folder / "new").write_text(text, encoding="utf-8")
    (folder / "new").replace(folder / name)


def stamp(folder):
    return training_stamp(SimpleNamespace(folder=folder))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_comes_changes_or_goes_changes_the_stamp(tmp_path, name):
    file, seen = tmp_path / name, [stamp(tmp_path)]

    def overwrite(text, later_ns):
        """Write over it in place: the folder does not change, nor, within the clock's resolution, need the time."""
        times = file.stat()
        file.write_text(text, encoding="utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns + later_ns))

    for change in (
        lambda: install(tmp_path, name, "{}"),
        lambda: install(tmp_path, name, '{"a": 1}'),
        lambda: overwrite('{"a": 12}', 0),
        lambda: overwrite('{"a": 13}', 1),
        file.unlink,
    ):
        change()
        seen.append(stamp(tmp_path))
        assert seen[-1] != seen[-2]
    assert (seen[-1], stamp(None)) == (seen[0], ())


def test_files_that_training_once_left_are_ignored(planets):
    index = planets.index("planets")
    before, stamp = planets.query(MOONS), training_stamp(index)
    install(index.folder, "confidence.json", "{")
    after = planets.query(MOONS)
    assert training_stamp(index) == stamp
    assert (after.confidence, after.degraded) == (before.confidence, before.degraded)


@pytest.mark.parametrize("name", FILES)
def test_the_key_of_an_answer_follows(planets, name):
    folder, pipeline = planets.index("planets").folder, planets._pipeline

    def key():
        return pipeline._key(pipeline._begin(Question(query=MOONS, top_k=3)))

    untrained = key()
    assert key() == untrained
    install(folder, name, "{}")
    trained = key()
    assert key() == trained != untrained
    (folder / name).write_text("{ }", encoding="utf-8")
    assert key() not in {trained, untrained}
    (folder / name).unlink()
    assert key() == untrained


@pytest.mark.parametrize("way", ["query", "aquery", "stream", "astream"])
async def test_the_index_that_comes_second_answers_what_the_first_does_not(make, way):
    router = make({"animals": documents(ANIMALS), "planets": documents(PLANETS)}, classifier=Chooser("animals"))
    answer = await asked(router, way, "Which moons does Mars have?")
    assert (answer.route.index.name, answer.route.index.reason) == ("planets", "animals has no answer; told")
    assert "Phobos and Deimos" in answer.text
    assert {cited.index for cited in answer.citations} == {"planets"}
    assert router.query("Which moons does Mars have?", index="animals").tier is Tier.NONE
    assert router.query("Which chords does a ukulele player learn?").route.index.name == "animals"

"""The router as its callers see it: indexes, questions, pins, cache, failures."""

from __future__ import annotations

import threading

import pytest
from llama_index.core.schema import Document
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from small_indexes import ANIMALS, PLANETS, documents
from small_indexes import QUESTION as SLEEP
from waiting import within

from agentic_retriever import AgenticRouter, Budget, RouterConfig, Strategy
from agentic_retriever.errors import (
    ConfigError,
    DeadlineExceededError,
    EmbeddingMismatchError,
    FilterError,
    IndexingError,
    InvalidQueryError,
    RetrievalError,
    RoutingError,
    SourceError,
    StoreDamagedError,
    UnknownIndexError,
    UnknownStrategyError,
)
from agentic_retriever.retrievers import cards
from agentic_retriever.schema import Tier
from agentic_retriever.testing import FakeEmbedding, FakeLLM


@pytest.fixture
def router(make):
    made = make()
    made.add_index("animals", documents(ANIMALS, kind="animal"), description="Animals and how they live")
    made.add_index("planets", documents(PLANETS, kind="planet"), description="Planets and their moons")
    return made


def where(key, value):
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value)])


def test_answer_with_citations_from_the_right_index(router):
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


def test_answer_turns_into_the_documented_json(router):
    data = router.query("Which moons does Mars have?").to_dict()
    assert {
        "text", "citations", "route", "tier", "confidence", "usage", "timings_ms", "cached", "query_id", "degraded",
        "nodes", "understood", "tried", "attempts", "nodes_left_out", "checks",
    } == set(data)  # fmt: skip
    assert {"index", "index_scores", "strategy", "strategy_scores", "complexity"} <= set(data["route"])
    assert set(data["route"]["index_scores"]) == {"animals", "planets"}
    assert {"vector", "hybrid"} <= set(data["route"]["strategy_scores"])
    assert {"doc_id", "node_id", "start", "end", "quote", "score"} <= set(data["citations"][0])
    assert {"routing", "embedding", "retrieval", "rerank", "llm", "total"} <= set(data["timings_ms"])
    assert data["usage"]["llm_calls"] == 0


def test_pins_are_obeyed(router):
    decision = router.route("cat", index="planets", strategy="hybrid")
    assert (decision.index.name, decision.index.mode) == ("planets", "pinned")
    assert (decision.strategy.name, decision.strategy.mode) == ("hybrid", "pinned")
    assert router.retrieve("cat", index="planets", strategy=Strategy.VECTOR).strategy is Strategy.VECTOR


def test_retrieve_gives_copies_best_first(router):
    first = router.retrieve("the dog barks", top_k=2)
    assert first.nodes[0].node.ref_doc_id == "dogs"
    assert len(first.nodes) == 2
    first.nodes[0].node.metadata["title"] = "spoiled"
    assert router.retrieve("the dog barks", top_k=2).nodes[0].node.metadata["title"] == "dogs"


def test_filters_hold_for_every_node(router):
    for strategy in ("vector", "hybrid"):
        pins = {"index": "animals", "strategy": strategy, "filters": where("title", "owls")}
        nodes = router.retrieve("the cat and the dog", **pins).nodes
        assert [n.node.ref_doc_id for n in nodes] == ["owls"]


def test_second_question_comes_from_the_cache_as_a_copy(router):
    first = router.query(SLEEP)
    second = router.query("  How many hours does the cat   sleep? ")
    assert (first.cached, second.cached) == (False, True)
    assert second.text == first.text
    assert second.query_id != first.query_id
    second.nodes[0].node.metadata["title"] = "spoiled"
    assert router.query(SLEEP).nodes[0].node.metadata["title"] != "spoiled"
    assert router.cache.clear() == 1
    assert not router.query(SLEEP).cached


@pytest.mark.parametrize("change", ["add", "remove"])
def test_a_changed_index_is_never_answered_from_the_old_cache(router, change):
    assert "sixteen" in router.query(SLEEP).text
    if change == "add":
        router.add_index("animals", documents({"cats": "The cat sleeps nine hours a day, it was found."}))
        assert "nine hours" in router.query(SLEEP).text
    else:
        router.remove_documents("animals", ["cats"])
        assert "sixteen" not in router.query(SLEEP).text


def test_different_inputs_have_different_cache_entries(router):
    router.query(SLEEP)
    for other in ({"top_k": 1}, {"strategy": "hybrid"}, {"index": "animals"}, {"filters": where("kind", "animal")}):
        assert not router.query(SLEEP, **other).cached


def test_nothing_relevant_says_so_in_the_language_of_the_question(router):
    question = "¿Cuál es la receta de la paella valenciana con mariscos?"
    answer = router.query(question)
    assert answer.tier is Tier.NONE
    assert answer.confidence.level.value == "not_found"
    assert not answer.citations
    assert "no responden" in answer.text
    assert not router.query(question).cached


def test_model_writes_the_answer_and_its_citations_are_checked(make):
    llm = FakeLLM(["A cat sleeps sixteen hours a day [1]. It also flies to Mars [9]."])
    router = make({"animals": documents(ANIMALS)}, llm=llm)
    answer = router.query(SLEEP)
    assert answer.tier is Tier.PRIMARY
    assert "sixteen hours" in answer.text
    assert "[9]" not in answer.text
    assert len(llm.prompts) == 1
    assert answer.usage.to_dict()["llm_calls"] == 1


def test_failing_model_means_an_extractive_answer_that_is_not_cached(make):
    router = make({"animals": documents(ANIMALS)}, llm=FakeLLM([ConnectionError("down with sk-canary")]))
    answer = router.query(SLEEP)
    assert answer.tier is Tier.EXTRACTIVE
    assert "sixteen" in answer.text
    [lost] = answer.degraded
    assert (lost.step, lost.fallback) == ("synthesis.llm", "extractive")
    assert "canary" not in str(answer.to_dict())
    assert not router.query(SLEEP).cached


def test_cloud_that_is_not_there_is_noted(router):
    assert [d.step for d in router.query("dog barks postman", force_cloud=True).degraded] == ["synthesis.cloud"]


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


def test_every_strategy_failing_is_one_error_with_all_causes(router, monkeypatch):
    def broken(*_args):
        raise ValueError("secret text of a document")

    offered = [card.strategy for card in cards(router.index("animals"))]
    for strategy in offered:
        monkeypatch.setattr(router.resources.adapter(router.index("animals"), strategy), "search", broken)
    with pytest.raises(RetrievalError) as caught:
        router.retrieve("cat", index="animals")
    assert set(caught.value.causes) == {strategy.value for strategy in offered}
    assert "secret" not in str(caught.value)


def test_a_failing_strategy_gives_way_to_the_next(router, monkeypatch):
    chosen = router.route("the cat sleeps", index="animals").strategy.name
    adapter = router.resources.adapter(router.index("animals"), Strategy(chosen))
    monkeypatch.setattr(adapter, "search", lambda _request: 1 / 0)
    retrieval = router.retrieve("the cat sleeps", index="animals")
    assert retrieval.strategy.value != chosen
    assert retrieval.nodes
    [lost] = retrieval.degraded
    assert (lost.step, lost.reason) == (f"retrieval.{chosen}", "ZeroDivisionError")


def test_round_robin_takes_turns_and_is_not_cached(make):
    router = make({"animals": documents(ANIMALS)}, config={"selector": "round_robin"})
    offered = len(cards(router.index("animals")))
    names = [router.query("the cat sleeps").route.strategy.name for _ in range(2 * offered)]
    assert len(set(names)) == offered
    assert names[:offered] == names[offered:]


@pytest.mark.parametrize("query", [None, 3, "", "  ", b"x", "x" * 100_000])
def test_unusable_questions(router, query):
    with pytest.raises(InvalidQueryError):
        router.query(query)


def test_top_k_above_the_corpus_gives_all(router):
    assert len(router.retrieve("cat dog owl", index="animals", top_k=1000, strategy="vector").nodes) == 3


def test_unknown_names_list_the_known_ones(router):
    with pytest.raises(UnknownIndexError, match=r"did you mean 'animals'\? \(known: animals, planets\)"):
        router.query("x", index="animal")
    with pytest.raises(UnknownStrategyError, match=r"known: .*hybrid.*vector"):
        router.query("x", strategy="vectors")
    with pytest.raises(FilterError):
        router.query("x", filters=MetadataFilters(filters=[MetadataFilter(key="", value="x")]))


def test_no_index_at_all(make):
    with pytest.raises(RoutingError, match="index add"):
        make().query("anything")


def test_an_empty_index_answers_not_found(make):
    router = make({"one": documents({"a": "Text."})})
    router.remove_documents("one", ["a"])
    answer = router.query("Text?")
    assert (answer.tier, answer.nodes) == (Tier.NONE, ())
    assert router.retrieve("Text?", strategy="hybrid").nodes == ()


@pytest.mark.parametrize("source", [[], 5, [5], None])
def test_unusable_sources(make, source):
    with pytest.raises(IndexingError):
        make().add_index("x", source)


def test_a_missing_path_leaves_no_index_behind(make, tmp_path):
    router = make()
    with pytest.raises(SourceError):
        router.add_index("x", tmp_path / "nowhere")
    (tmp_path / "binary.txt").write_bytes(b"\0\1\2")
    with pytest.raises(IndexingError, match=r"nothing could be indexed.*binary\.txt"):
        router.add_index("x", tmp_path / "binary.txt")
    assert router.index_names() == []


def test_another_embedding_model_is_a_clear_error(router, make):
    router.close()

    with pytest.raises(EmbeddingMismatchError, match="FakeEmbedding"):
        make(embedding=Deaf(dimension=64)).query("cat")


def test_construction_touches_nothing(tmp_path):
    config = RouterConfig(data_dir=tmp_path / "none", ollama_base_url="http://127.0.0.1:9")
    AgenticRouter(config).close()
    assert not (tmp_path / "none").exists()
    with pytest.raises(ConfigError, match="llm"):
        AgenticRouter(config.with_changes(llm="gpt"))


def test_removed_index_is_gone_and_its_name_free(router):
    router.remove_index("planets")
    assert router.index_names() == ["animals"]
    router.add_index("planets", documents(PLANETS))
    assert router.query("moons of Mars", index="planets").nodes


def test_router_can_be_used_again_after_close(router):
    router.close()
    assert router.retrieve("cat").nodes
    router.close()


async def test_async_twins_equal_the_sync_ones(router):
    question = SLEEP
    decision = await router.aroute(question)
    assert decision.index.name == router.route(question).index.name
    assert (await router.aquery(question)).text == router.query(question).text
    retrieved, expected = await router.aretrieve(question), router.retrieve(question)
    assert [n.node.node_id for n in retrieved.nodes] == [n.node.node_id for n in expected.nodes]


async def test_deadline_inside_a_sync_retriever_is_kept(router, monkeypatch):
    release = threading.Event()
    adapter = router.resources.adapter(router.index("animals"), Strategy.VECTOR)
    monkeypatch.setattr(adapter, "search", lambda _request: release.wait(10))
    with within(5), pytest.raises(DeadlineExceededError):
        await router.aretrieve("cat", index="animals", strategy="vector", budget=Budget(max_ms=200))
    release.set()


def test_answers_draw_themselves_escaped(make):
    router = make({"x": documents({"<b>": "The <script>alert(1)</script> tag is dangerous in pages."})})
    drawn = router.query("Which script tag is dangerous in pages?")._repr_html_()
    assert "<script>" not in drawn
    assert "&lt;script&gt;" in drawn


def test_a_damaged_index_does_not_take_the_others_down(router):
    place = router.index("planets").folder
    router.close()
    (place / "manifest.json").write_text("{")
    answer = router.query(SLEEP)
    assert "sixteen" in answer.text
    [lost] = answer.degraded
    assert (lost.step, lost.fallback) == ("index.planets", "the other indexes")
    assert not router.query(SLEEP, index="animals").degraded
    with pytest.raises(StoreDamagedError):
        router.query("Mars", index="planets")
    router.remove_index("planets")
    assert not router.query(SLEEP).degraded


def test_boosted_keywords_come_first(make):
    texts = {**PLANETS, "phobos": "Phobos is small.", "moons": "Moons and moons and moons."}
    router = make({"planets": documents(texts)}, config={"boost_keywords": "Phobos=1.0", "top_k": 2})
    assert router.retrieve("moons or Phobos", strategy="vector").nodes[0].node.ref_doc_id in {"phobos", "mars"}


def test_adaptive_top_k_leaves_the_callers_number_alone(make):
    cats = documents({f"d{i}": f"The cat number {i} sleeps." for i in range(20)})
    router = make({"animals": cats}, config={"adaptive_top_k": True, "top_k": 4})
    assert len(router.retrieve("cat", strategy="vector", top_k=7).nodes) == 7
    simple = router.retrieve("cat", strategy="vector")
    assert 1 <= len(simple.nodes) <= 4
    assert "rerank" in simple.timings_ms


def test_reranking_by_a_model_and_its_failure(make):
    failing = FakeLLM([ConnectionError("down")])
    router = make({"animals": documents(ANIMALS)}, llm=failing, config={"reranker": "llm"})
    retrieval = router.retrieve("the cat sleeps", strategy="vector")
    assert retrieval.nodes[0].node.ref_doc_id == "cats"
    assert "postprocess.rerank" in {d.step for d in retrieval.degraded}
    with pytest.raises(ConfigError, match="reranker"):
        make(config={"reranker": "llm"})


@pytest.mark.parametrize("strategy", [strategy.value for strategy in Strategy])
def test_a_filter_that_nothing_satisfies_makes_no_vector_query(router, strategy, monkeypatch):
    index = router.index("animals")
    router.retrieve("the cat", index="animals", strategy=strategy)
    asked = []
    monkeypatch.setattr(type(index.vector_store), "query", lambda _store, query, **_: asked.append(query))
    found = router.retrieve("the cat", index="animals", strategy=strategy, filters=where("kind", "mineral"))
    assert (found.nodes, asked) == ((), [])


def test_an_empty_filter_restricts_nothing(router):
    plain = router.retrieve("the cat", index="animals", strategy="vector")
    empty = router.retrieve("the cat", index="animals", strategy="vector", filters=MetadataFilters(filters=[]))
    assert [n.node.node_id for n in plain.nodes] == [n.node.node_id for n in empty.nodes]


@pytest.mark.parametrize(
    ("settings", "strategy"), [({}, "hybrid"), ({"fusion": "rrf"}, "vector"), ({"selector": "heuristic"}, "vector")]
)
def test_plain_questions_start_from_calibrated_hybrid_search(make, settings, strategy):
    router = make({"mixed": [Document(text="Mars has two moons.", doc_id="mars")]}, config=settings)
    assert router.route("how many moons are there").strategy.name == strategy


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("boost_keywords", "ABS = much"),
        ("boost_keywords", "ABS"),
        ("boost_keywords", "ABS = 7"),
        ("boost_keywords", "= 0.3"),
        ("boost_keywords", "-- = 0.3"),
        ("boost_keywords", "; ".join(f"w{n} = 0.1" for n in range(501))),
        ("domain_terms", "homologation | ; |"),
    ],
)
def test_a_list_that_cannot_be_read_is_told_by_its_setting(make, setting, value):
    with pytest.raises(ConfigError, match=setting):
        make(config={setting: value})

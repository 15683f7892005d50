"""Attached indexes in a router: routed to, searched, merged, answered from, cached, measured."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from attached_material import ScriptedRetriever, contracts, index_on, query_engine, scored, vector_index
from llama_index.core import Settings
from llama_index.core.schema import Document, TextNode
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient
from store_tools import ids, where
from waiting import wait_until, within

from agentic_retriever import AgenticRouter, Budget, RouterConfig, errors
from agentic_retriever.evaluation.datasets import Asked, LabelledQuery
from agentic_retriever.evaluation.harness import benchmark
from agentic_retriever.evaluation.peers import Run
from agentic_retriever.evaluation.training import run_strategies
from agentic_retriever.testing import FakeEmbedding

PLANETS = {
    "venus": ("Venus spins backwards. A day on Venus is longer than its year.", "rock", 1),
    "mars": ("Mars has two moons named Phobos and Deimos.", "rock", 2),
    "saturn": ("Saturn has wide rings of ice and dust.", "gas", 3),
}
LEAVE = "How many days of paid leave do employees have?"


def other_model():
    return FakeEmbedding(dimension=24, model_name="another")


@pytest.fixture
def router(tmp_path):
    config = RouterConfig(data_dir=tmp_path / "data", query_log="none", on_abstain="answer")
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=64)) as made:
        yield made


def slow(source, method, gate):
    """Let a method of a source wait for the gate."""
    fast = getattr(source, method)

    def waiting():
        assert gate.wait(60)
        return fast()

    setattr(source, method, waiting)


@pytest.fixture
def filled(router):
    """One index of another model, one of the router's, one stored."""
    router.add_index("contracts", index=vector_index(contracts(), embedding=other_model()), description="Contracts")
    router.add_index("planets", index=vector_index(contracts(texts=PLANETS)), description="Planets and their moons")
    router.add_index("pets", [Document(text="The cat sleeps sixteen hours a day.", doc_id="cats")], description="Pets")
    return router


def test_an_index_is_attached_in_one_line_and_leaves_no_trace(router):
    index = vector_index(contracts())
    before, settings = [node.to_json() for node in index.docstore.docs.values()], dict(vars(Settings))
    report = router.add_index("contracts", index=index, description="Contracts, loans and leave")
    assert (report.added, report.nodes, router.index_names()) == (4, 4, ["contracts"])
    assert router.descriptions() == {"contracts": "Contracts, loans and leave"}
    assert router.index("contracts").count() == 4
    found = router.retrieve(LEAVE)
    assert found.nodes[0].node_id == "staff"
    found.nodes[0].node.metadata.clear()
    router.remove_index("contracts")
    assert (router.index_names(), [node.to_json() for node in index.docstore.docs.values()]) == ([], before)
    assert index.as_retriever(similarity_top_k=1).retrieve(LEAVE)[0].node_id == "staff"
    assert not any("indexes" in str(path) for path in router.config.data_dir.rglob("*"))
    assert dict(vars(Settings)) == settings
    with pytest.raises(errors.UnknownIndexError):
        router.index("contracts")


def test_strategies_search_by_the_model_of_the_index_and_filters_mean_the_same_everywhere(filled):
    """Vectors have 24 dimensions and the router's model 64, so its vector would be refused."""
    for strategy in ("vector", "hybrid", "metadata", "planner"):
        found = filled.retrieve(LEAVE, index="contracts", strategy=strategy)
        assert found.nodes[0].node_id == "staff"
        assert not found.degraded
    filled.add_index(
        "asked", index=vector_index(contracts()).as_retriever(similarity_top_k=1), description="Contracts again"
    )
    late = where("year", 2024, ">=")
    for index in ("contracts", "asked"):
        found = filled.retrieve("rent and loan", index=index, strategy="vector", filters=late, top_k=4)
        assert set(ids(found.nodes)) == {"lease", "loan"}


def test_questions_go_where_their_answer_is_or_where_a_description_attracts_them(filled):
    for question, index in (
        (LEAVE, "contracts"),
        ("Which planet has two moons named Phobos and Deimos?", "planets"),
        ("How many hours does the cat sleep?", "pets"),
    ):
        decision = filled.route(question)
        assert (decision.index.name, set(decision.index.scores)) == (index, {"contracts", "pets", "planets"})
    assert "not offered: summary: the index cannot serve it" in str(filled.explain(LEAVE))
    with pytest.raises(errors.NoEligibleStrategyError, match="it serves: vector, hybrid, planner, metadata"):
        filled.route(LEAVE, index="contracts", strategy="summary")
    retriever = ScriptedRetriever([scored("tide", 0.4, "The tide turns twice a day.")])
    filled.add_index("sea", index=retriever, description="The sea, its tides and waves")
    assert filled.route("When do the tides of the sea turn?").index.name == "sea"
    assert filled.route(LEAVE).index.name == "contracts"


def test_answers_cite_what_stands_in_the_nodes_without_the_model_of_an_engine_and_decisions_are_replayed(filled):
    answer = filled.query(LEAVE)
    citation = answer.citations[0]
    assert (citation.index, citation.node_id) == ("contracts", "staff")
    assert citation.quote == filled.index("contracts").source_text(citation.doc_id)[citation.start : citation.end]
    assert "thirty days" in answer.text
    decision = filled.route(LEAVE)
    assert not decision.diff(filled.replay(json.loads(json.dumps(decision.to_dict()))))
    engine = query_engine(vector_index(contracts()).as_retriever())
    filled.add_index("engine", index=engine, description="Contracts, loans and paid leave of employees")
    answer = filled.query(LEAVE, index="engine")
    assert (answer.citations[0].node_id, answer.route.strategy.name) == ("staff", "vector")


@pytest.mark.parametrize("strategy", ["vector", "hybrid"])
@pytest.mark.parametrize("mmr", [1.0, 0.5])
def test_results_of_indexes_with_different_models_are_merged(tmp_path, strategy, mmr, monkeypatch):
    """Cosines and vectors of two models do not compare, so each list counts by its own best."""
    config = RouterConfig(data_dir=tmp_path, query_log="none", mmr_trade_off=mmr)
    monkeypatch.setattr("agentic_retriever.resources.INDEX_MARGIN", 1.0)
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=64)) as both:
        both.add_index("contracts", index=vector_index(contracts(), embedding=other_model()), description="Contracts")
        both.add_index("planets", index=vector_index(contracts(texts=PLANETS)), description="Planets")
        found = both.retrieve("the days of paid leave and the moons named Phobos", strategy=strategy, top_k=4)
        assert set(found.indexes) == {"contracts", "planets"}
        assert {"staff", "mars"} <= set(ids(found.nodes))
        assert not found.degraded


def test_a_router_is_made_of_indexes_in_one_call_and_not_left_open_when_one_cannot_be_attached(tmp_path):
    given = {"contracts": vector_index(contracts()), "planets": vector_index(contracts(texts=PLANETS)).as_retriever()}
    config, told = RouterConfig(data_dir=tmp_path, query_log="none"), {"planets": "Planets and their moons"}
    with AgenticRouter.from_indexes(given, config, descriptions=told, embedding=FakeEmbedding(dimension=64)) as made:
        assert made.config is config
        assert made.descriptions() == {"contracts": "", "planets": "Planets and their moons"}
        assert made.route("How many moons do planets have?").index.name == "planets"
        assert made.query(LEAVE, index="contracts").citations[0].node_id == "staff"
    open_now = []

    class Watched(AgenticRouter):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            open_now.append(self)

        def close(self):
            open_now.remove(self)
            super().close()

    for given, told, said in (
        ({"a": vector_index(contracts())}, {"b": "x"}, "descriptions of 'b', which is not among the indexes"),
        ({"a": vector_index(contracts()), "b": 7}, {}, "index 'b' must be a LlamaIndex index"),
    ):
        with pytest.raises(errors.IndexingError, match=said):
            Watched.from_indexes(given, config, descriptions=told, embedding=FakeEmbedding(dimension=64))
        assert open_now == []


def test_a_cached_answer_ends_with_the_version_or_a_refresh_and_a_failing_retriever_in_a_typed_error(router):
    index = vector_index(contracts())
    router.add_index("contracts", index=index, description="Contracts")
    assert not router.query(LEAVE).cached
    assert router.query(LEAVE).cached
    index.insert_nodes([TextNode(id_="new", text="Employees have forty days of paid leave from 2027 on.")])
    answer = router.query(LEAVE)
    assert not answer.cached
    assert "new" in {n.node_id for n in answer.nodes}
    router.refresh_index("contracts")
    assert not router.query(LEAVE).cached
    router.remove_index("contracts")
    router.add_index("contracts", index=vector_index(contracts()), description="Contracts")
    assert not router.query(LEAVE).cached, "another index of that name"
    router.remove_index("contracts")
    retriever = ScriptedRetriever([scored("a", 0.5, "Employees have thirty days of paid leave.")])
    router.add_index("asked", index=retriever, description="Paid leave of employees")
    router.query(LEAVE)
    router.query(LEAVE)
    assert retriever.asked == [LEAVE]
    router.refresh_index("asked")
    router.query(LEAVE)
    assert retriever.asked == [LEAVE, LEAVE]
    retriever.reply = KeyError("secret")
    with pytest.raises(errors.AgenticRetrieverError, match="failed with KeyError") as caught:
        router.retrieve(LEAVE)
    assert "secret" not in str(caught.value)


def test_what_cannot_be_attached_or_done_with_an_attached_index_is_refused(filled, tmp_path):
    for given in (filled.as_retriever(), filled.as_query_engine(), query_engine(filled.as_retriever())):
        with pytest.raises(errors.IndexingError, match="would ask itself without end"):
            filled.add_index("me", index=given, description="All")
    for name in ("contracts", "pets"):
        with pytest.raises(errors.IndexExistsError, match=f"index {name!r} exists already"):
            filled.add_index(name, index=vector_index(contracts()))
    with pytest.raises(errors.IndexingError, match="change it through LlamaIndex"):
        filled.add_index("contracts", [Document(text="more")])
    assert filled.index_names() == ["contracts", "pets", "planets"]
    for call in (
        lambda: filled.build_views("contracts"),
        lambda: filled.remove_documents("contracts", ["staff"]),
        lambda: filled.stored_index("contracts"),
    ):
        with pytest.raises(errors.IndexingError, match="attached LlamaIndex index"):
            call()
    assert filled.stored_index("pets").catalog.doc_ids() == ["cats"]
    filled.refresh_index("pets")
    for arguments in ({}, {"source": tmp_path, "index": vector_index(contracts())}):
        with pytest.raises(errors.IndexingError, match="needs either a source or index="):
            filled.add_index("new", **arguments)
    with pytest.raises(errors.IndexingError, match="cannot be used"):
        filled.add_index("../contracts", index=vector_index(contracts()))
    assert filled.index_names() == ["contracts", "pets", "planets"]
    with ThreadPoolExecutor(6) as pool:
        tries = [pool.submit(filled.add_index, "new", index=vector_index(contracts())) for _ in range(6)]
    assert [type(one.exception()) for one in tries].count(errors.IndexExistsError) == 5
    assert filled.index_names() == ["contracts", "new", "pets", "planets"]


def test_a_retriever_that_hangs_keeps_nobody(tmp_path, gate):
    """Row 24: ``aquery`` ends with its time and the loop stays free; other indexes go on."""
    config = RouterConfig(data_dir=tmp_path, query_log="none", deadline_s=0.5)
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=64)) as router:
        router.add_index("asked", index=ScriptedRetriever(lambda _q: gate.wait(60) or []), description="Paid leave")
        router.add_index("contracts", index=vector_index(contracts()), description="Contracts")

        async def ask():
            search = asyncio.ensure_future(router.aquery(LEAVE, index="asked"))
            gap, last = 0.0, time.perf_counter()
            while not search.done():
                await asyncio.sleep(0.005)
                now = time.perf_counter()
                gap, last = max(gap, now - last), now
            with pytest.raises(errors.DeadlineExceededError):
                await search
            return gap

        with within(3):
            gap = asyncio.run(ask())
        assert gap < 0.5
        assert router.retrieve(LEAVE, index="contracts").nodes[0].node_id == "staff"
        gate.set()


def test_strategies_are_measured_and_benchmarked_on_an_attached_index(filled, tmp_path):
    """Where the model is another one than the router's, the index embeds the questions itself."""
    vector = filled.resources.embedding().embed_query(LEAVE)
    query = LabelledQuery(query_id="q", text=LEAVE, index="contracts", relevance={"staff": 1})
    runs = run_strategies(filled, "contracts", Asked((query,), {"q": vector}), Run())
    assert {run.name for run in runs} == {"vector", "hybrid", "planner", "metadata"}
    assert all(run.values("nDCG@10") == [1.0] and not run.failures and not run.degraded for run in runs)
    questions = tmp_path / "questions.jsonl"
    lines = [
        {"id": "1", "query": LEAVE, "index": "contracts", "doc_ids": ["staff"]},
        {"id": "2", "query": "When does the lease end?", "index": "contracts", "doc_ids": ["lease"]},
    ]
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = benchmark(filled, str(questions), folder=tmp_path / "bench", peers=False, answers=False)
    (result,) = result.results.values()
    assert {"vector", "hybrid", "planner", "metadata", "auto"} <= set(result.rows)
    assert result.not_served["summary"] == "the attached index cannot serve it"
    assert result.rows["vector"].quality


def test_questions_go_on_while_a_change_is_read(router, gate):
    """The answer of the earlier state says so and is not kept; then the change is there."""
    index = vector_index(contracts())
    router.add_index("contracts", index=index, description="Contracts")
    slow(router.index("contracts").source, "nodes", gate)
    before = router.query(LEAVE, budget=Budget(max_ms=20_000))
    index.insert_nodes([TextNode(id_="new", text="The parking permit of the director ends in May.")])
    with within(5):
        answer = router.query("When does the parking permit end?", budget=Budget(max_ms=600))
    assert [(step.step, step.fallback) for step in answer.degraded if step.step == "index.contracts"] == [
        ("index.contracts", "its nodes as they were read last")
    ]
    assert answer.route.versions == before.route.versions
    assert router.query(LEAVE, budget=Budget(max_ms=600)).cached, "the key is that of the state that is served"
    gate.set()
    wait_until(lambda: router.index("contracts").count() == 5, 30)
    answer = router.query("When does the parking permit end?")
    assert not answer.cached
    assert not answer.degraded
    assert answer.citations[0].node_id == "new"


def test_a_server_that_hangs_on_its_count_keeps_nobody(router, gate):
    """Row 24, for callers without an event loop, too."""
    held = QdrantVectorStore("contracts", client=QdrantClient(":memory:"))
    router.add_index("contracts", index=index_on(held, contracts(uuids=True)), description="Contracts")
    made = router.index("contracts")
    made._watched._next_look = 0.0
    slow(made.source, "count", gate)
    with within(5):
        found = router.retrieve(LEAVE, strategy="hybrid", budget=Budget(max_ms=600))
    assert "thirty days of paid leave" in found.nodes[0].node.get_content()
    assert found.degraded[0].step == "index.contracts"
    router.refresh_index("contracts")
    assert made.version == 1

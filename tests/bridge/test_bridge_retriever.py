"""The router as a LlamaIndex retriever."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from bridge_material import CAT, MARS, Declining, synthesizer
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.query_engine import RetrieverQueryEngine, TransformQueryEngine
from llama_index.core.schema import MetadataMode, QueryBundle
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from small_indexes import GOOD

from agentic_retriever.bridge import ROUTE_KEY
from agentic_retriever.errors import (
    AgenticRetrieverError,
    FilterError,
    InvalidQueryError,
    OutOfScopeError,
    UnknownIndexError,
    UnknownStrategyError,
)
from agentic_retriever.schema import Budget, Strategy
from agentic_retriever.testing import FakeEmbedding, FakeLLM


def ids(nodes):
    return [scored.node.node_id for scored in nodes]


def test_finds_what_the_router_finds(router):
    retriever = router.as_retriever()
    assert isinstance(retriever, BaseRetriever)
    for question, doc_id in ((CAT, "cats"), (MARS, "mars")):
        plain = router.retrieve(question)
        for nodes in (retriever.retrieve(question), retriever.retrieve(QueryBundle(question))):
            assert ids(nodes) == ids(plain.nodes)
            assert [n.score for n in nodes] == [n.score for n in plain.nodes]
            assert nodes[0].node.ref_doc_id == doc_id


def test_pins_hold_for_every_question(router):
    kind = MetadataFilters(filters=[MetadataFilter(key="kind", value="d")])
    found = router.as_retriever(
        index="animals", strategy="hybrid", filters=kind, top_k=2, budget=Budget(max_ms=9_000)
    ).retrieve(MARS)
    assert {n.node.ref_doc_id for n in found} == {"dogs"}
    assert found[0].node.metadata[ROUTE_KEY]["strategy"] == "hybrid"
    assert len(router.as_retriever(index="animals", top_k=2).retrieve(CAT)) == 2
    pinned = router.as_retriever(index="planets", strategy=Strategy.VECTOR).retrieve(CAT)
    assert {n.node.metadata[ROUTE_KEY]["index"] for n in pinned} == {"planets"}


def test_each_node_tells_its_route_to_programs_and_not_to_models(router):
    node = router.as_retriever().retrieve(CAT)[0].node
    route = node.metadata[ROUTE_KEY]
    assert (route["index"], route["strategy"], route["degraded"]) == ("animals", "vector", [])
    assert 0 <= route["index_confidence"] <= 1
    json.dumps(node.metadata)
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        assert "confidence" not in node.get_content(mode)
    shown = node.get_content(MetadataMode.LLM)
    assert shown == "cats\nc\nen\nThe cat sleeps sixteen hours a day. A cat purrs when it is content."


def test_nodes_are_copies_of_their_own(router):
    retriever = router.as_retriever(index="animals")
    first = retriever.retrieve(CAT)
    first[0].node.metadata[ROUTE_KEY]["index"] = "changed"
    first[0].node.metadata["title"] = "changed"
    first[0].node.excluded_llm_metadata_keys.clear()
    again = retriever.retrieve(CAT)
    assert {n.node.metadata[ROUTE_KEY]["index"] for n in first[1:] + again} == {"animals"}
    assert again[0].node.metadata["title"] == "cats"
    assert ROUTE_KEY not in router.retrieve(CAT, index="animals").nodes[0].node.metadata
    stored = {n.node_id: n for n in router.index("animals").nodes()}[again[0].node.node_id]
    assert ROUTE_KEY not in stored.metadata


def test_degraded_steps_are_told(router, monkeypatch):
    def refuse(_self, _text):
        raise RuntimeError("the model is down")

    router.index("animals").profile()
    monkeypatch.setattr(FakeEmbedding, "_vector", refuse)
    found = router.as_retriever(index="animals").retrieve(CAT)
    assert [step["step"] for step in found[0].node.metadata[ROUTE_KEY]["degraded"]][:1] == ["embedding"]


def test_async_does_not_block_the_loop(make_router, monkeypatch):
    router = make_router()
    retriever = router.as_retriever()
    retriever.retrieve(CAT)
    begun, go_on = threading.Event(), threading.Event()
    run = router._pipeline._route

    def slow(*args, **kwargs):
        begun.set()
        assert go_on.wait(5)
        return run(*args, **kwargs)

    monkeypatch.setattr(router._pipeline, "_route", slow)

    async def work():
        task = asyncio.create_task(retriever.aretrieve(CAT))
        assert await asyncio.to_thread(begun.wait, 5)  # never comes to it if the loop is blocked
        go_on.set()
        return await task

    assert asyncio.run(asyncio.wait_for(work(), 5))[0].node.ref_doc_id == "cats"


def test_sync_and_async_in_a_running_loop_and_in_threads(router):
    retriever = router.as_retriever()

    async def both():
        return retriever.retrieve(CAT)[0].node.ref_doc_id, (await retriever.aretrieve(CAT))[0].node.ref_doc_id

    assert asyncio.run(both()) == asyncio.run(both()) == ("cats", "cats")
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: asyncio.run(both()), range(8))) == {("cats", "cats")}


@pytest.mark.parametrize("query", [5, None, b"x", "", "  ", QueryBundle("  "), ["x"]])
def test_unusable_questions_are_named(router, query):
    retriever, engine = router.as_retriever(), router.as_query_engine()
    for ask in (retriever.retrieve, engine.query):
        with pytest.raises(InvalidQueryError):
            ask(query)
    for ask in (retriever.aretrieve, engine.aquery):
        with pytest.raises(InvalidQueryError):
            asyncio.run(ask(query))


@pytest.mark.parametrize("make", ["as_retriever", "as_query_engine", "as_tool"])
def test_unusable_pins_are_named_at_once(router, make):
    made = getattr(router, make)
    with pytest.raises(UnknownStrategyError, match="hybrid"):
        made(strategy="hybird")
    with pytest.raises(InvalidQueryError):
        made(top_k=0)
    with pytest.raises(FilterError):
        made(filters="kind == d")


def test_an_unknown_index_is_named_when_asked(router):
    with pytest.raises(UnknownIndexError, match="animals"):
        router.as_retriever(index="animal").retrieve(CAT)


def test_declined_questions_have_no_nodes(make_router):
    assert make_router(classifier=Declining()).as_retriever().retrieve(CAT) == []
    with pytest.raises(OutOfScopeError):
        make_router(classifier=Declining(), on_abstain="raise").as_retriever().retrieve(CAT)


def test_deadline_is_a_typed_error(router):
    with pytest.raises(AgenticRetrieverError):
        router.as_retriever(budget=Budget(max_ms=0.001)).retrieve(CAT)


def test_under_a_retriever_query_engine(router):
    llm = FakeLLM([GOOD])
    engine = RetrieverQueryEngine(router.as_retriever(), synthesizer(llm), callback_manager=CallbackManager([]))
    response = engine.query(CAT)
    assert str(response) == GOOD
    assert response.source_nodes[0].node.metadata[ROUTE_KEY]["index"] == "animals"
    assert "sixteen hours" in llm.prompts[0]
    assert "confidence" not in llm.prompts[0]
    assert str(asyncio.run(engine.aquery(CAT))) == GOOD
    assert [n.node.ref_doc_id for n in engine.retrieve(QueryBundle(MARS))][:1] == ["mars"]


class Turning(BaseQueryTransform):
    """Asks for Mars, whatever the question."""

    def _run(self, query_bundle, metadata):
        return QueryBundle(MARS)

    def _get_prompts(self):
        return {}

    def _update_prompts(self, prompts):
        pass


def test_under_a_transforming_query_engine(router):
    engine = TransformQueryEngine(router.as_query_engine(), Turning(), callback_manager=CallbackManager([]))
    assert engine.query(CAT).source_nodes[0].node.ref_doc_id == "mars"


def test_callbacks_hear_of_it(router):
    heard = LlamaDebugHandler(print_trace_on_end=False)
    manager = CallbackManager([heard])
    router.as_retriever(callback_manager=manager).retrieve(CAT)
    router.as_query_engine(callback_manager=manager).query(CAT)
    assert [pair[0].event_type.value for pair in heard.get_event_pairs()] == ["retrieve"]


def test_broken_callbacks_change_nothing(router, caplog):
    class Broken(LlamaDebugHandler):
        def on_event_start(self, *args, **kwargs):
            raise RuntimeError("broken")

        on_event_end = start_trace = end_trace = on_event_start

    retriever = router.as_retriever(callback_manager=CallbackManager([Broken(print_trace_on_end=False)]))
    with caplog.at_level(logging.WARNING):
        assert [ids(retriever.retrieve(CAT)) for _ in range(3)] == [ids(router.retrieve(CAT).nodes)] * 3
    assert [r.message for r in caplog.records if "callback handler Broken" in r.message] == [
        "the callback handler Broken raised RuntimeError; queries go on, and this is told once"
    ]


def test_a_cancelled_task_gives_up_at_once(make_router, monkeypatch):
    router = make_router()
    go_on = threading.Event()
    monkeypatch.setattr(router._pipeline, "_route", lambda *a, **k: go_on.wait(5) and None)

    async def work():
        task = asyncio.create_task(router.as_retriever().aretrieve(CAT))
        await asyncio.sleep(0.01)
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - started

    try:
        assert asyncio.run(work()) < 1
    finally:
        go_on.set()

"""The router as a LlamaIndex retriever, query engine and tool, in the hands of LlamaIndex's own agents and engines."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from bridge_material import CAT, MARS, Declining, Spans, synthesizer
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent, ToolCallResult
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.base.response.schema import AsyncStreamingResponse, Response, StreamingResponse
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import RetrieverQueryEngine, SubQuestionQueryEngine, TransformQueryEngine
from llama_index.core.question_gen.types import BaseQuestionGenerator, SubQuestion
from llama_index.core.schema import MetadataMode, QueryBundle
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from llama_index.core.workflow import Context, StartEvent, StopEvent, Workflow, step
from small_indexes import GOOD
from waiting import wait_until, within

from agentic_retriever.bridge import MAX_DESCRIPTION, ROUTE_KEY, RoutedQueryEngine, tool_description
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
    pins = {"index": "animals", "strategy": "hybrid", "filters": kind, "top_k": 2, "budget": Budget(max_ms=9_000)}
    found = router.as_retriever(**pins).retrieve(MARS)
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


async def test_async_does_not_block_the_loop(router, monkeypatch):
    retriever = router.as_retriever()
    retriever.retrieve(CAT)
    begun, go_on = threading.Event(), threading.Event()
    run = router._pipeline._route

    def slow(*args, **kwargs):
        begun.set()
        assert go_on.wait(20)
        return run(*args, **kwargs)

    monkeypatch.setattr(router._pipeline, "_route", slow)
    task = asyncio.create_task(retriever.aretrieve(CAT))
    assert await asyncio.to_thread(begun.wait, 20)  # never comes to it if the loop is blocked
    go_on.set()
    assert (await task)[0].node.ref_doc_id == "cats"


def test_sync_and_async_in_a_running_loop_and_in_threads(router):
    retriever = router.as_retriever()

    async def both():
        return retriever.retrieve(CAT)[0].node.ref_doc_id, (await retriever.aretrieve(CAT))[0].node.ref_doc_id

    with ThreadPoolExecutor(4) as pool:
        found = [asyncio.run(both()), asyncio.run(both()), *pool.map(lambda _: asyncio.run(both()), range(8))]
    assert set(found) == {("cats", "cats")}


@pytest.mark.parametrize("query", [5, None, b"x", "", "  ", QueryBundle("  "), ["x"]])
async def test_unusable_questions_are_named(router, query):
    retriever, engine = router.as_retriever(), router.as_query_engine()
    for ask in (retriever.retrieve, engine.query):
        with pytest.raises(InvalidQueryError):
            ask(query)
    for ask in (retriever.aretrieve, engine.aquery):
        with pytest.raises(InvalidQueryError):
            await ask(query)


@pytest.mark.parametrize("make", ["as_retriever", "as_query_engine", "as_tool"])
def test_unusable_pins_are_named_at_once(router, make):
    made = getattr(router, make)
    with pytest.raises(UnknownStrategyError, match="hybrid"):
        made(strategy="hybird")
    for pin, error in (({"top_k": 0}, InvalidQueryError), ({"filters": "kind == d"}, FilterError)):
        with pytest.raises(error):
            made(**pin)


def test_errors_of_a_query_are_those_of_the_router(router):
    with pytest.raises(UnknownIndexError, match="animals"):
        router.as_retriever(index="animal").retrieve(CAT)
    with pytest.raises(AgenticRetrieverError):
        router.as_retriever(budget=Budget(max_ms=0.001)).retrieve(CAT)


def test_declined_questions_have_no_nodes(make_router):
    assert make_router(classifier=Declining()).as_retriever().retrieve(CAT) == []
    with pytest.raises(OutOfScopeError):
        make_router(classifier=Declining(), on_abstain="raise").as_retriever().retrieve(CAT)


async def test_under_a_retriever_query_engine(router):
    llm = FakeLLM([GOOD])
    engine = RetrieverQueryEngine(router.as_retriever(), synthesizer(llm), callback_manager=CallbackManager([]))
    response = engine.query(CAT)
    assert str(response) == GOOD
    assert response.source_nodes[0].node.metadata[ROUTE_KEY]["index"] == "animals"
    assert "sixteen hours" in llm.prompts[0]
    assert "confidence" not in llm.prompts[0]
    assert str(await engine.aquery(CAT)) == GOOD
    assert [n.node.ref_doc_id for n in engine.retrieve(QueryBundle(MARS))][:1] == ["mars"]


class NoPrompts:
    """What LlamaIndex asks of a part that has prompts."""

    def _get_prompts(self):
        return {}

    def _update_prompts(self, prompts):
        pass


class Turning(NoPrompts, BaseQueryTransform):
    """Asks for Mars, whatever the question."""

    def _run(self, query_bundle, metadata):
        return QueryBundle(MARS)


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


async def test_a_cancelled_task_gives_up_at_once(router, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(router._pipeline, "_route", lambda *a, **k: go_on.wait(20) and None)
    task = asyncio.create_task(router.as_retriever().aretrieve(CAT))
    await asyncio.sleep(0.01)
    task.cancel()
    try:
        with within(5), pytest.raises(asyncio.CancelledError):
            await task
    finally:
        go_on.set()


# As query engine and tool


MOONS = "Mars has two moons named Phobos and Deimos. [1]"
FAR = "Why did the parliament of Norway vote on fisheries?"


def test_a_response_holds_the_whole_answer(make_router):
    router = make_router(model=FakeLLM([GOOD]))
    engine = router.as_query_engine()
    assert isinstance(engine, BaseQueryEngine)
    plain = router.query(CAT)
    response = engine.query(CAT)
    assert isinstance(response, Response)
    assert str(response) == response.response == GOOD == plain.text
    assert [n.node.node_id for n in response.source_nodes] == [n.node.node_id for n in plain.nodes]
    expected, told = plain.to_dict(), response.metadata
    assert json.loads(json.dumps(told)) == told
    assert set(told) == set(expected) - {"text", "nodes"}
    same = ("citations", "confidence", "tier", "usage", "degraded", "checks")
    assert [told[name] for name in same] == [expected[name] for name in same]
    assert told["route"]["index"] == "animals"
    assert told["citations"][0]["quote"] == "The cat sleeps sixteen hours a day."
    assert told["cached"]


async def test_bundles_pins_and_async(make_router):
    router = make_router(model=FakeLLM([GOOD]))
    engine = router.as_query_engine(index="planets", strategy="hybrid", top_k=1, budget=Budget(max_llm_calls=0))
    for response in (engine.query(QueryBundle(MARS)), await engine.aquery(MARS)):
        assert str(response) == MOONS
        assert response.metadata["tier"] == "extractive"
        assert (response.metadata["route"]["index"], response.metadata["route"]["strategy"]) == ("planets", "hybrid")
        assert len(response.source_nodes) == 1
    for nodes in (engine.retrieve(QueryBundle(MARS)), await engine.aretrieve(QueryBundle(MARS))):
        assert [n.node.ref_doc_id for n in nodes] == ["mars"]


@pytest.mark.parametrize(("classifier", "support_below"), [(Declining(), 0.3), (None, 1.0), (None, 0.3)])
def test_nothing_found_has_its_text_and_no_source_nodes(make_router, classifier, support_below, monkeypatch):
    monkeypatch.setattr("agentic_retriever.synthesis.confidence.SUPPORT_BELOW", support_below)
    router = make_router(classifier=classifier)
    for streaming in (False, True):
        engine = router.as_query_engine(streaming=streaming)
        response = engine.query(FAR)
        assert str(response) == router.query(FAR).text != ""
        assert response.source_nodes == []
        assert response.metadata["tier"] == "none"
        assert response.metadata["confidence"]["level"] == "not_found"


def test_a_stream_has_its_nodes_with_the_first_words_and_all_else_in_the_end(make_router):
    router = make_router(model=FakeLLM([GOOD]))
    engine = router.as_query_engine(streaming=True)
    response = engine.query(CAT)
    assert isinstance(response, StreamingResponse)
    nodes, metadata = response.source_nodes, response.metadata
    assert nodes[0].node.ref_doc_id == "cats"
    assert set(metadata) == {"route"}
    assert metadata["route"]["index"] == "animals"
    pieces = list(response.response_gen)
    assert len(pieces) > 3
    assert "".join(pieces) == GOOD
    assert nodes is response.source_nodes
    assert metadata["tier"] == "primary"
    assert metadata["citations"][0]["doc_id"] == "cats"
    again = engine.query(CAT)  # from the cache, in one piece
    assert again.source_nodes[0].node.ref_doc_id == "cats"
    assert list(again.response_gen) == [GOOD]
    assert again.metadata["cached"]
    assert str(engine.query(CAT)) == str(engine.query(CAT).get_response()) == GOOD


async def test_an_async_stream(make_router):
    engine = make_router(model=FakeLLM([GOOD])).as_query_engine(streaming=True)
    response = await engine.aquery(CAT)
    assert isinstance(response, AsyncStreamingResponse)
    assert response.source_nodes[0].node.ref_doc_id == "cats"
    pieces = [piece async for piece in response.async_response_gen()]
    assert "".join(pieces) == str(await (await engine.aquery(CAT)).get_response()) == GOOD
    assert len(pieces) > 3
    assert response.metadata["tier"] == "primary"


def test_streams_that_nobody_reads_end_their_query(make_router, attach):
    spans = Spans()
    attach(spans)
    engine = make_router(model=FakeLLM([GOOD])).as_query_engine(streaming=True)

    async def left():
        response = await engine.aquery(CAT + " a")
        async for _ in response.async_response_gen():
            break
        await engine.aquery(CAT + " b")

    asyncio.run(left())
    unread = engine.query(CAT + " c")
    begun = engine.query(CAT + " d")
    next(begun.response_gen)
    del unread, begun
    gc.collect()
    assert len(spans.of("AgenticRouter.query")) == 4
    wait_until(lambda: not spans.open())


async def test_what_fails_is_raised_before_a_stream_begins(router):
    engine = router.as_query_engine(index="nowhere", streaming=True)
    with pytest.raises(LookupError):
        engine.query(CAT)
    with pytest.raises(LookupError):
        await engine.aquery(CAT)


async def test_a_tool_describes_the_indexes(router):
    tool = router.as_tool()
    assert tool.metadata.name == "search_documents"
    lines = "\n- animals: Animals and how they live\n- planets: Planets and their moons"
    assert tool.metadata.description.endswith(lines)
    assert "animals" not in router.as_tool(index="planets").metadata.description
    own = router.as_tool(name="zoo", description="About animals.", return_direct=True).metadata
    assert (own.name, own.description, own.return_direct) == ("zoo", "About animals.", True)
    assert tool.metadata.to_openai_tool()["function"]["parameters"]["required"] == ["input"]
    output = tool.call(CAT)
    assert output.content == GOOD
    assert output.raw_output.metadata["route"]["index"] == "animals"
    assert (await tool.acall(input=MARS)).content == MOONS


@pytest.mark.parametrize("number", [0, 1, 12, 40, 400])
def test_descriptions_fit_whatever_the_indexes(number):
    indexes = {f"index{n}": "words and\nmore words " * 20 for n in range(number)}
    text = tool_description(indexes)
    assert len(text) <= MAX_DESCRIPTION
    assert all(f"- index{n}" in text for n in range(min(number, 20)))
    assert "\n\n" not in text


def scripted_agent_llm(calls, final):
    """Calls the tools one after another, then says what it was told."""

    def reply(messages, **kwargs):
        results = [m.content for m in messages if m.role == "tool"]
        if len(results) < len(calls):
            name, question = calls[len(results)]
            block = ToolCallBlock(tool_call_id=str(len(results)), tool_name=name, tool_kwargs={"input": question})
            return ChatMessage(role="assistant", blocks=[block])
        return ChatMessage(role="assistant", content=final.format(*results))

    return MockFunctionCallingLLM(response_generator=reply, is_chat_model=True)


def zoo_and_sky(router):
    return [router.as_tool(name="zoo", index="animals"), router.as_tool(name="sky", index="planets")]


def memory(llm):
    return ChatMemoryBuffer.from_defaults(token_limit=3_000, tokenizer_fn=str.split)


async def test_in_the_hands_of_a_function_agent(router):
    llm = scripted_agent_llm([("zoo", CAT), ("sky", MARS)], "{0} {1}")
    agent = FunctionAgent(tools=zoo_and_sky(router), llm=llm, streaming=False)
    handler = agent.run(user_msg="Cats and moons?", memory=memory(llm))
    seen = [event async for event in handler.stream_events() if isinstance(event, ToolCallResult)]
    assert str(await handler) == f"{GOOD} {MOONS}"
    assert [event.tool_output.is_error for event in seen] == [False, False]
    routes = [event.tool_output.raw_output.metadata["route"]["index"] for event in seen]
    assert routes == ["animals", "planets"]


async def test_in_the_hands_of_a_react_agent(router):
    thought = f'Thought: I need a tool.\nAction: search_documents\nAction Input: {{"input": "{CAT}"}}\n'
    llm = FakeLLM([thought, "Thought: I can answer.\nAnswer: Sixteen hours."])
    agent = ReActAgent(tools=[router.as_tool()], llm=llm, streaming=False)
    assert str(await agent.run(user_msg="Cats?", memory=memory(llm))) == "Sixteen hours."
    assert GOOD in llm.prompts[1]


async def test_in_an_agent_workflow_and_a_workflow_of_ones_own(router):
    llm = scripted_agent_llm([("search_documents", CAT)], "{0}")

    class Asking(Workflow):
        @step
        async def ask(self, ctx: Context, event: StartEvent) -> StopEvent:
            output = await router.as_tool().acall(input=event.question)
            nodes = await router.as_retriever().aretrieve(event.question)
            return StopEvent(result=(output.content, nodes[0].node.ref_doc_id))

    agents = AgentWorkflow(agents=[FunctionAgent(name="one", tools=[router.as_tool()], llm=llm, streaming=False)])
    assert str(await agents.run(user_msg="Cats?", memory=memory(llm))) == GOOD
    assert await Asking().run(question=MARS) == (MOONS, "mars")


class Splitting(NoPrompts, BaseQuestionGenerator):
    """Asks each tool its own question."""

    def generate(self, tools, query):
        assert [tool.name for tool in tools] == ["zoo", "sky"]
        return [SubQuestion(sub_question=q, tool_name=name) for q, name in ((CAT, "zoo"), (MARS, "sky"))]

    async def agenerate(self, tools, query):
        return self.generate(tools, query)


@pytest.mark.parametrize("use_async", [False, True])
def test_under_a_sub_question_engine(router, use_async):
    llm = FakeLLM(["Sixteen hours and two moons."])
    engine = SubQuestionQueryEngine(
        question_gen=Splitting(),
        response_synthesizer=synthesizer(llm),
        query_engine_tools=zoo_and_sky(router),
        callback_manager=CallbackManager([]),
        verbose=False,
        use_async=use_async,
    )
    for response in (engine.query("Cats and moons?"), asyncio.run(engine.aquery("Cats and moons?"))):
        assert str(response) == "Sixteen hours and two moons."
        found = {n.node.ref_doc_id for n in response.source_nodes}
        assert {"cats", "mars"} <= found
    for part in ("sixteen hours a day. [1]", "Phobos and Deimos. [1]"):
        assert part in llm.prompts[0]


def test_an_engine_has_no_prompts_and_tells_its_pins(router):
    inner = router.as_query_engine(index="animals")
    assert isinstance(inner, RoutedQueryEngine)
    assert inner.get_prompts() == {}
    assert inner.pins == {"index": "animals"}

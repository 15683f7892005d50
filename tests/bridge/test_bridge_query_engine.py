"""The router as a LlamaIndex query engine and tool, in the hands of LlamaIndex's own agents and engines."""

from __future__ import annotations

import asyncio
import gc
import json

import pytest
from bridge_material import CAT, MARS, Declining, Spans, synthesizer
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent, ToolCallResult
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.base.response.schema import AsyncStreamingResponse, Response, StreamingResponse
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import SubQuestionQueryEngine
from llama_index.core.question_gen.types import BaseQuestionGenerator, SubQuestion
from llama_index.core.schema import QueryBundle
from llama_index.core.workflow import Context, StartEvent, StopEvent, Workflow, step
from small_indexes import GOOD
from waiting import wait_until

from agentic_retriever.bridge import MAX_DESCRIPTION, RoutedQueryEngine, tool_description
from agentic_retriever.schema import Budget
from agentic_retriever.testing import FakeLLM

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
    expected = plain.to_dict()
    told = response.metadata
    assert json.loads(json.dumps(told)) == told
    assert set(told) == set(expected) - {"text", "nodes"}
    for name in ("citations", "confidence", "tier", "usage", "degraded", "checks"):
        assert told[name] == expected[name]
    assert told["route"]["index"] == "animals"
    assert told["citations"][0]["quote"] == "The cat sleeps sixteen hours a day."
    assert told["cached"]


def test_bundles_pins_and_async(make_router):
    router = make_router(model=FakeLLM([GOOD]))
    engine = router.as_query_engine(index="planets", strategy="hybrid", top_k=1, budget=Budget(max_llm_calls=0))
    responses = [engine.query(QueryBundle(MARS)), asyncio.run(engine.aquery(MARS))]
    for response in responses:
        assert str(response) == "Mars has two moons named Phobos and Deimos. [1]"
        assert response.metadata["tier"] == "extractive"
        assert (response.metadata["route"]["index"], response.metadata["route"]["strategy"]) == ("planets", "hybrid")
        assert len(response.source_nodes) == 1
    nodes = engine.retrieve(QueryBundle(MARS))
    assert [n.node.ref_doc_id for n in nodes] == ["mars"]
    assert [n.node.ref_doc_id for n in asyncio.run(engine.aretrieve(QueryBundle(MARS)))] == ["mars"]


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


def test_an_async_stream(make_router):
    engine = make_router(model=FakeLLM([GOOD])).as_query_engine(streaming=True)

    async def work():
        response = await engine.aquery(CAT)
        assert isinstance(response, AsyncStreamingResponse)
        assert response.source_nodes[0].node.ref_doc_id == "cats"
        pieces = [piece async for piece in response.async_response_gen()]
        return pieces, response.metadata, str(await (await engine.aquery(CAT)).get_response())

    pieces, metadata, again = asyncio.run(work())
    assert "".join(pieces) == again == GOOD
    assert len(pieces) > 3
    assert metadata["tier"] == "primary"


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


def test_what_fails_is_raised_before_a_stream_begins(make_router):
    engine = make_router().as_query_engine(index="nowhere", streaming=True)
    with pytest.raises(LookupError):
        engine.query(CAT)
    with pytest.raises(LookupError):
        asyncio.run(engine.aquery(CAT))


def test_a_tool_describes_the_indexes(make_router):
    router = make_router()
    tool = router.as_tool()
    assert tool.metadata.name == "search_documents"
    assert tool.metadata.description.endswith(
        "\n- animals: Animals and how they live\n- planets: Planets and their moons"
    )
    assert "animals" not in router.as_tool(index="planets").metadata.description
    own = router.as_tool(name="zoo", description="About animals.", return_direct=True).metadata
    assert (own.name, own.description, own.return_direct) == ("zoo", "About animals.", True)
    assert tool.metadata.to_openai_tool()["function"]["parameters"]["required"] == ["input"]
    output = tool.call(CAT)
    assert output.content == "The cat sleeps sixteen hours a day. [1]"
    assert output.raw_output.metadata["route"]["index"] == "animals"
    assert asyncio.run(tool.acall(input=MARS)).content == "Mars has two moons named Phobos and Deimos. [1]"


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


def memory(llm):
    return ChatMemoryBuffer.from_defaults(token_limit=3_000, tokenizer_fn=str.split)


def test_in_the_hands_of_a_function_agent(router):
    llm = scripted_agent_llm([("zoo", CAT), ("sky", MARS)], "{0} {1}")
    tools = [router.as_tool(name="zoo", index="animals"), router.as_tool(name="sky", index="planets")]
    agent = FunctionAgent(tools=tools, llm=llm, streaming=False)

    async def work():
        handler = agent.run(user_msg="Cats and moons?", memory=memory(llm))
        seen = [event async for event in handler.stream_events() if isinstance(event, ToolCallResult)]
        return seen, str(await handler)

    seen, text = asyncio.run(work())
    assert text == "The cat sleeps sixteen hours a day. [1] Mars has two moons named Phobos and Deimos. [1]"
    assert [event.tool_output.is_error for event in seen] == [False, False]
    routes = [event.tool_output.raw_output.metadata["route"]["index"] for event in seen]
    assert routes == ["animals", "planets"]


def test_in_the_hands_of_a_react_agent(router):
    thought = f'Thought: I need a tool.\nAction: search_documents\nAction Input: {{"input": "{CAT}"}}\n'
    llm = FakeLLM([thought, "Thought: I can answer.\nAnswer: Sixteen hours."])
    agent = ReActAgent(tools=[router.as_tool()], llm=llm, streaming=False)

    async def work():
        return str(await agent.run(user_msg="Cats?", memory=memory(llm)))

    assert asyncio.run(work()) == "Sixteen hours."
    assert "The cat sleeps sixteen hours a day. [1]" in llm.prompts[1]


def test_in_an_agent_workflow_and_a_workflow_of_ones_own(router):
    llm = scripted_agent_llm([("search_documents", CAT)], "{0}")

    class Asking(Workflow):
        @step
        async def ask(self, ctx: Context, event: StartEvent) -> StopEvent:
            output = await router.as_tool().acall(input=event.question)
            nodes = await router.as_retriever().aretrieve(event.question)
            return StopEvent(result=(output.content, nodes[0].node.ref_doc_id))

    async def work():
        agents = AgentWorkflow(agents=[FunctionAgent(name="one", tools=[router.as_tool()], llm=llm, streaming=False)])
        return str(await agents.run(user_msg="Cats?", memory=memory(llm))), await Asking().run(question=MARS)

    text, (answer, doc_id) = asyncio.run(work())
    assert text == "The cat sleeps sixteen hours a day. [1]"
    assert (answer, doc_id) == ("Mars has two moons named Phobos and Deimos. [1]", "mars")


class Splitting(BaseQuestionGenerator):
    """Asks each tool its own question."""

    def _get_prompts(self):
        return {}

    def _update_prompts(self, prompts):
        pass

    def generate(self, tools, query):
        assert [tool.name for tool in tools] == ["zoo", "sky"]
        return [
            SubQuestion(sub_question=CAT, tool_name="zoo"),
            SubQuestion(sub_question=MARS, tool_name="sky"),
        ]

    async def agenerate(self, tools, query):
        return self.generate(tools, query)


@pytest.mark.parametrize("use_async", [False, True])
def test_under_a_sub_question_engine(router, use_async):
    llm = FakeLLM(["Sixteen hours and two moons."])
    engine = SubQuestionQueryEngine(
        question_gen=Splitting(),
        response_synthesizer=synthesizer(llm),
        query_engine_tools=[router.as_tool(name="zoo", index="animals"), router.as_tool(name="sky", index="planets")],
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


def test_engines_nest(make_router):
    """A routed engine answers for another router's LLM-less synthesis as any query engine does."""
    inner = make_router().as_query_engine(index="animals")
    assert isinstance(inner, RoutedQueryEngine)
    assert inner.get_prompts() == {}
    assert inner.pins == {"index": "animals"}

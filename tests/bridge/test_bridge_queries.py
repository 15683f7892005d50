"""The router as a LlamaIndex retriever, query engine and tool, in the hands of LlamaIndex's own agents and engines."""

import asyncio
import gc
import json
import logging
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from unittest.mock import Mock

import pytest
from bridge_material import CAT, MARS, Spans, synthesizer
from command_line import run_fresh
from llama_index.core import Document, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent, ToolCallResult
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.base.response.schema import AsyncStreamingResponse, Response, StreamingResponse
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.evaluation import RetrieverEvaluator
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine, SubQuestionQueryEngine, TransformQueryEngine
from llama_index.core.question_gen.types import BaseQuestionGenerator, SubQuestion
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever, VectorIndexRetriever
from llama_index.core.schema import MetadataMode, QueryBundle, TextNode
from llama_index.core.workflow import Context, StartEvent, StopEvent, Workflow, step
from small_indexes import ANIMALS, GOOD, Chooser, documents
from store_tools import copied_store, doc_ids, ids, where
from waiting import wait_until, within

from agentic_retriever import AgenticRouter, QdrantEdgeVectorStore, RouterConfig, errors
from agentic_retriever.bridge import MAX_DESCRIPTION, ROUTE_KEY, RoutedQueryEngine, tool_description
from agentic_retriever.retrievers import details
from agentic_retriever.sample import SAMPLE_INDEXES, load_questions
from agentic_retriever.schema import Budget, Strategy
from agentic_retriever.testing import FakeEmbedding, FakeLLM


def test_a_retriever_finds_what_the_router_finds_within_its_pins(router):
    retriever = router.as_retriever()
    assert isinstance(retriever, BaseRetriever)
    for question, doc_id in ((CAT, "cats"), (MARS, "mars")):
        plain = router.retrieve(question)
        for nodes in (retriever.retrieve(question), retriever.retrieve(QueryBundle(question))):
            assert ids(nodes) == ids(plain.nodes)
            assert [n.score for n in nodes] == [n.score for n in plain.nodes]
            assert nodes[0].node.ref_doc_id == doc_id
    kind = where("kind", "d")
    pins = {"index": "animals", "strategy": "hybrid", "filters": kind, "top_k": 2, "budget": Budget(max_ms=9_000)}
    found = router.as_retriever(**pins).retrieve(MARS)
    assert set(doc_ids(found)) == {"dogs"}
    assert details(found[0])[ROUTE_KEY]["strategy"] == "hybrid"
    assert len(router.as_retriever(index="animals", top_k=2).retrieve(CAT)) == 2
    pinned = router.as_retriever(index="planets", strategy=Strategy.VECTOR).retrieve(CAT)
    assert {details(n)[ROUTE_KEY]["index"] for n in pinned} == {"planets"}


def test_nodes_are_copies_that_tell_their_route_to_programs_and_not_to_models(router):
    hit = router.as_retriever().retrieve(CAT)[0]
    route = json.loads(json.dumps(details(hit)))[ROUTE_KEY]
    assert (route["index"], route["strategy"], route["degraded"]) == ("animals", "hybrid", [])
    assert 0 <= route["index_confidence"] <= 1
    shown = hit.node.get_content(MetadataMode.LLM)
    assert shown == "cats\nc\nen\nThe cat sleeps sixteen hours a day. A cat purrs when it is content."
    retriever = router.as_retriever(index="animals")
    first = retriever.retrieve(CAT)
    details(first[0])[ROUTE_KEY]["index"] = "changed"
    first[0].node.metadata["title"] = "changed"
    first[0].node.excluded_llm_metadata_keys.clear()
    again = retriever.retrieve(CAT)
    assert {details(n)[ROUTE_KEY]["index"] for n in first[1:] + again} == {"animals"}
    assert again[0].node.metadata["title"] == "cats"
    assert ROUTE_KEY not in details(router.retrieve(CAT, index="animals").nodes[0])


@pytest.mark.parametrize("strategy", list(Strategy))
def test_nodes_keep_the_hash_that_they_are_stored_with_so_that_fusion_finds_consensus(make_router, strategy):
    router = make_router(reranker="llm", model=FakeLLM(["1"]), expand_neighbours=1)
    stored = {node.node_id: node.hash for name in ("animals", "planets") for node in router.index(name).nodes()}
    retriever = router.as_retriever(strategy=strategy, index="animals")
    nodes = [*retriever.retrieve(CAT), *router.retrieve(CAT, strategy=strategy).nodes, *router.query(CAT).nodes]
    assert {n.node_id: n.node.hash for n in nodes}.items() <= stored.items()
    quiet = {"llm": FakeLLM([""]), "num_queries": 1, "use_async": False, "callback_manager": CallbackManager([])}
    fused = QueryFusionRetriever([retriever, router.as_retriever(index="animals")], mode="reciprocal_rerank", **quiet)
    found = fused.retrieve(CAT)
    assert len(set(ids(found))) == len(found)
    assert found[0].score == pytest.approx(2 / 60)


def test_degraded_steps_are_told(router, monkeypatch):
    router.index("animals").profile()
    monkeypatch.setattr(FakeEmbedding, "_vector", Mock(side_effect=RuntimeError("the model is down")))
    found = router.as_retriever(index="animals").retrieve(CAT)
    assert [step["step"] for step in details(found[0])[ROUTE_KEY]["degraded"]][:1] == ["embedding"]


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


async def test_unusable_questions_and_pins_are_named(router):
    for query in [5, None, b"x", "", "  ", QueryBundle("  "), ["x"]]:
        retriever, engine = router.as_retriever(), router.as_query_engine()
        for ask in (retriever.retrieve, engine.query):
            with pytest.raises(errors.InvalidQueryError):
                ask(query)
        for ask in (retriever.aretrieve, engine.aquery):
            with pytest.raises(errors.InvalidQueryError):
                await ask(query)
    for make in ["as_retriever", "as_query_engine", "as_tool"]:
        made = getattr(router, make)
        with pytest.raises(errors.UnknownStrategyError, match="hybrid"):
            made(strategy="hybird")
        for pin, error in (({"top_k": 0}, errors.InvalidQueryError), ({"filters": "kind == d"}, errors.FilterError)):
            with pytest.raises(error):
                made(**pin)


def test_errors_of_a_query_and_declined_questions_are_those_of_the_router(router, make_router):
    with pytest.raises(errors.UnknownIndexError, match="animals"):
        router.as_retriever(index="animal").retrieve(CAT)
    with pytest.raises(errors.AgenticRetrieverError):
        router.as_retriever(budget=Budget(max_ms=0.001)).retrieve(CAT)
    assert make_router(classifier=Chooser(abstained=True)).as_retriever().retrieve(CAT)
    with pytest.raises(errors.OutOfScopeError):
        make_router(classifier=Chooser(abstained=True), on_abstain="raise").as_retriever().retrieve(CAT)


async def test_under_query_engines_of_llama_index(router):
    llm = FakeLLM([GOOD])
    engine = RetrieverQueryEngine(router.as_retriever(), synthesizer(llm), callback_manager=CallbackManager([]))
    response = engine.query(CAT)
    assert (str(response), details(response.source_nodes[0])[ROUTE_KEY]["index"]) == (GOOD, "animals")
    assert "sixteen hours" in llm.prompts[0]
    assert "confidence" not in llm.prompts[0]
    assert str(await engine.aquery(CAT)) == GOOD
    assert doc_ids(engine.retrieve(QueryBundle(MARS)))[:1] == ["mars"]
    engine = TransformQueryEngine(router.as_query_engine(), Turning(), callback_manager=CallbackManager([]))
    assert engine.query(CAT).source_nodes[0].node.ref_doc_id == "mars"


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


def test_callbacks_hear_of_it_and_broken_ones_change_nothing(router, caplog):
    heard = LlamaDebugHandler(print_trace_on_end=False)
    manager = CallbackManager([heard])
    router.as_retriever(callback_manager=manager).retrieve(CAT)
    router.as_query_engine(callback_manager=manager).query(CAT)
    assert [pair[0].event_type.value for pair in heard.get_event_pairs()] == ["retrieve"]

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


async def test_a_cancelled_task_gives_up_at_once(router, monkeypatch, gate):
    monkeypatch.setattr(router._pipeline, "_route", lambda *a, **k: gate.wait(20) and None)
    task = asyncio.create_task(router.as_retriever().aretrieve(CAT))
    await asyncio.sleep(0.01)
    task.cancel()
    with within(2), pytest.raises(asyncio.CancelledError):
        await task


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
    assert ids(response.source_nodes) == ids(plain.nodes)
    expected, told = plain.to_dict(), response.metadata
    assert (json.loads(json.dumps(told)), set(told)) == (told, set(expected) - {"text", "nodes"})
    same = ("citations", "confidence", "tier", "usage", "degraded", "checks")
    assert [told[name] for name in same] == [expected[name] for name in same]
    assert told["route"]["index"] == "animals"
    assert told["citations"][0]["quote"] == "The cat sleeps sixteen hours a day."
    assert told["cached"]


async def test_bundles_pins_async_streams_and_what_fails_before_a_stream_begins(make_router, router):
    router = make_router(model=FakeLLM([GOOD]))
    engine = router.as_query_engine(index="planets", strategy="hybrid", top_k=1, budget=Budget(max_llm_calls=0))
    for response in (engine.query(QueryBundle(MARS)), await engine.aquery(MARS)):
        assert (str(response), response.metadata["tier"]) == (MOONS, "extractive")
        assert (response.metadata["route"]["index"], response.metadata["route"]["strategy"]) == ("planets", "hybrid")
        assert len(response.source_nodes) == 1
    for nodes in (engine.retrieve(QueryBundle(MARS)), await engine.aretrieve(QueryBundle(MARS))):
        assert doc_ids(nodes) == ["mars"]
    engine = router.as_query_engine(index="nowhere", streaming=True)
    with pytest.raises(LookupError):
        engine.query(CAT)
    with pytest.raises(LookupError):
        await engine.aquery(CAT)
    engine = make_router(model=FakeLLM([GOOD])).as_query_engine(streaming=True)
    response = await engine.aquery(CAT)
    assert isinstance(response, AsyncStreamingResponse)
    assert response.source_nodes[0].node.ref_doc_id == "cats"
    pieces = [piece async for piece in response.async_response_gen()]
    assert "".join(pieces) == str(await (await engine.aquery(CAT)).get_response()) == GOOD
    assert len(pieces) > 3
    assert response.metadata["tier"] == "primary"


@pytest.mark.parametrize("classifier", [Chooser(abstained=True), None])
def test_nothing_found_has_its_text_and_no_source_nodes(make_router, classifier):
    router = make_router(classifier=classifier)
    for streaming in (False, True):
        response = router.as_query_engine(streaming=streaming).query(FAR)
        assert str(response) == router.query(FAR).text != ""
        assert (response.source_nodes, response.metadata["tier"]) == ([], "none")
        assert response.metadata["confidence"]["level"] == "not_found"


def test_a_stream_has_its_nodes_with_the_first_words_and_all_else_in_the_end(make_router):
    engine = make_router(model=FakeLLM([GOOD])).as_query_engine(streaming=True)
    response = engine.query(CAT)
    assert isinstance(response, StreamingResponse)
    nodes, metadata = response.source_nodes, response.metadata
    assert (nodes[0].node.ref_doc_id, set(metadata)) == ("cats", {"route"})
    assert metadata["route"]["index"] == "animals"
    pieces = list(response.response_gen)
    assert len(pieces) > 3
    assert "".join(pieces) == GOOD
    assert nodes is response.source_nodes
    assert (metadata["tier"], metadata["citations"][0]["doc_id"]) == ("primary", "cats")
    again = engine.query(CAT)  # from the cache, in one piece
    assert (again.source_nodes[0].node.ref_doc_id, list(again.response_gen)) == ("cats", [GOOD])
    assert again.metadata["cached"]
    assert str(engine.query(CAT)) == str(engine.query(CAT).get_response()) == GOOD


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


async def test_a_tool_describes_however_many_indexes_and_an_engine_tells_its_pins(router):
    tool = router.as_tool()
    assert tool.metadata.name == "search_documents"
    lines = "\n- animals: Animals and how they live\n- planets: Planets and their moons"
    assert tool.metadata.description.endswith(lines)
    assert "animals" not in router.as_tool(index="planets").metadata.description
    own = router.as_tool(name="zoo", description="About animals.", return_direct=True).metadata
    assert (own.name, own.description, own.return_direct) == ("zoo", "About animals.", True)
    assert tool.metadata.to_openai_tool()["function"]["parameters"]["required"] == ["input"]
    output = tool.call(CAT)
    assert (output.content, output.raw_output.metadata["route"]["index"]) == (GOOD, "animals")
    assert (await tool.acall(input=MARS)).content == MOONS
    inner = router.as_query_engine(index="animals")
    assert isinstance(inner, RoutedQueryEngine)
    assert (inner.get_prompts(), inner.pins) == ({}, {"index": "animals"})
    for number in [0, 1, 12, 40, 400]:
        text = tool_description({f"index{n}": "words and\nmore words " * 20 for n in range(number)})
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


async def test_in_the_hands_of_function_and_react_agents(router):
    llm = scripted_agent_llm([("zoo", CAT), ("sky", MARS)], "{0} {1}")
    agent = FunctionAgent(tools=zoo_and_sky(router), llm=llm, streaming=False)
    handler = agent.run(user_msg="Cats and moons?", memory=memory(llm))
    seen = [event async for event in handler.stream_events() if isinstance(event, ToolCallResult)]
    assert str(await handler) == f"{GOOD} {MOONS}"
    assert [event.tool_output.is_error for event in seen] == [False, False]
    assert [event.tool_output.raw_output.metadata["route"]["index"] for event in seen] == ["animals", "planets"]
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
        question_gen=Splitting(), response_synthesizer=synthesizer(llm), query_engine_tools=zoo_and_sky(router),
        callback_manager=CallbackManager([]), verbose=False, use_async=use_async,
    )  # fmt: skip
    for response in (engine.query("Cats and moons?"), asyncio.run(engine.aquery("Cats and moons?"))):
        assert str(response) == "Sixteen hours and two moons."
        assert {"cats", "mars"} <= set(doc_ids(response.source_nodes))
    for part in ("sixteen hours a day. [1]", "Phobos and Deimos. [1]"):
        assert part in llm.prompts[0]


# Our vector store under a plain VectorStoreIndex, the router under a RetrieverEvaluator; what importing does


@pytest.fixture
def store(tmp_path, closed_at_end):
    return closed_at_end(QdrantEdgeVectorStore(path=str(tmp_path / "store"), dimension=64))


def reopened(store):
    store.close()
    return closing(QdrantEdgeVectorStore(path=store.path, dimension=64))


def options():
    """Everything that LlamaIndex would take from ``Settings`` else."""
    return {
        "embed_model": FakeEmbedding(dimension=64, callback_manager=CallbackManager([])),
        "callback_manager": CallbackManager([]),
        "transformations": [SentenceSplitter(chunk_size=64, chunk_overlap=0, callback_manager=CallbackManager([]))],
    }


def retriever(index, **more):
    return VectorIndexRetriever(
        index,
        **{"similarity_top_k": 10, "embed_model": index._embed_model, "callback_manager": CallbackManager([])} | more,
    )


def found(index, query=CAT, **more):
    return doc_ids(retriever(index, **more).retrieve(query))


@pytest.fixture
def index(store):
    context = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex.from_documents(documents(ANIMALS), storage_context=context, **options())


def test_insert_query_and_delete(index, store):
    assert (found(index)[0], sorted(found(index))) == ("cats", ["cats", "dogs", "owls"])
    scores = [n.score for n in retriever(index).retrieve(CAT)]
    assert scores == sorted(scores, reverse=True)
    assert all(map(math.isfinite, scores))
    index.insert(Document(text="The ant sleeps never.", doc_id="ants", metadata={"kind": "a", "legs": 6}))
    index.insert_nodes([TextNode(text="The bee hums.", id_="bee", metadata={"kind": "b", "legs": 6})])
    assert store.count() == 5
    index.delete_ref_doc("dogs")
    assert "dogs" not in found(index)
    index.delete_nodes(["bee"])
    assert store.count() == 3
    index.update_ref_doc(Document(text="The ant sleeps at times.", doc_id="ants", metadata={"kind": "a"}))
    [ant] = retriever(index, filters=where("kind", "a")).retrieve("ant")
    assert ant.node.get_content() == "The ant sleeps at times."


async def test_filters_and_a_query_engine_over_it(index):
    index.insert(Document(text="The ant sleeps never.", doc_id="ants", metadata={"kind": "a", "legs": 6}))
    assert found(index, filters=where("kind", "d")) == ["dogs"]
    assert sorted(found(index, filters=where("kind", ["d", "o"], "in"))) == ["dogs", "owls"]
    assert found(index, filters=where("legs", 5, ">")) == ["ants"]
    assert found(index, filters=where("legs", 7, ">")) == []
    assert (await retriever(index, filters=where("kind", "c")).aretrieve(CAT))[0].node.ref_doc_id == "cats"
    assert found(index, similarity_top_k=1, doc_ids=["owls"]) == ["owls"]
    llm = FakeLLM([GOOD])
    engine = RetrieverQueryEngine(retriever(index), synthesizer(llm), callback_manager=CallbackManager([]))
    assert str(engine.query(CAT)) == str(await engine.aquery(CAT)) == GOOD
    assert "sixteen hours" in llm.prompts[0]


def test_reopening_from_the_store_alone(index, store):
    again = VectorStoreIndex.from_vector_store(store, **options())
    assert found(again) == found(index)
    again.insert(Document(text="The cow moos.", doc_id="cows"))
    again.delete_ref_doc("owls")
    assert sorted(found(index)) == ["cats", "cows", "dogs"]
    with reopened(store) as other:
        assert sorted(found(VectorStoreIndex.from_vector_store(other, **options()))) == ["cats", "cows", "dogs"]


def test_storage_context_kept_beside_it(index, store, tmp_path):
    kept = str(tmp_path / "context")
    index.set_index_id("animals")
    index.storage_context.persist(persist_dir=kept)
    with reopened(store) as other:
        context = StorageContext.from_defaults(vector_store=other, persist_dir=kept)
        again = load_index_from_storage(context, index_id="animals", **options())
        assert sorted(found(again)) == ["cats", "dogs", "owls"]
        again.delete_ref_doc("cats", delete_from_docstore=True)
        assert sorted(found(again)) == ["dogs", "owls"]


async def test_async_indexing(store):
    index = VectorStoreIndex(nodes=[], storage_context=StorageContext.from_defaults(vector_store=store), **options())
    await index.ainsert(Document(text=ANIMALS["cats"], doc_id="cats"))
    assert doc_ids(await retriever(index).aretrieve(CAT)) == ["cats"]
    await index.adelete_ref_doc("cats")
    assert await retriever(index).aretrieve(CAT) == []


# LlamaIndex's own RetrieverEvaluator over the router and over every strategy, on the sample


METRICS = ["hit_rate", "mrr", "precision", "recall", "ap", "ndcg"]
QUESTIONS = [q for q in load_questions() if q["index"]][::6]


@pytest.fixture(scope="module")
def sample(sample_store, tmp_path_factory, local_embedding):
    """The sample with all its views."""
    folder = copied_store(sample_store, tmp_path_factory.mktemp("evaluated") / "data")
    with AgenticRouter(RouterConfig(data_dir=folder, query_log="none"), embedding=local_embedding) as made:
        yield made


@pytest.fixture(scope="module")
def expected(sample):
    """The nodes of the gold documents, by question."""
    nodes = {s.name: list(sample.index(s.name).nodes()) for s in SAMPLE_INDEXES}
    return {q["id"]: [n.node_id for n in nodes[q["index"]] if n.ref_doc_id in q["doc_ids"]] for q in QUESTIONS}


async def evaluated(retriever_of, expected):
    """The mean of each metric."""
    values = []
    for q in QUESTIONS:
        evaluator = RetrieverEvaluator.from_metric_names(METRICS, retriever=retriever_of(q))
        values.append((await evaluator.aevaluate(q["query"], expected_ids=expected[q["id"]])).metric_vals_dict)
    assert all(set(one) == set(METRICS) for one in values)
    assert all(math.isfinite(value) and 0 <= value <= 1 for one in values for value in one.values())
    return {name: sum(one[name] for one in values) / len(values) for name in METRICS}


async def test_the_router_as_a_retriever_and_pinned_as_the_adapter(sample, expected):
    retriever = sample.as_retriever()
    means = await evaluated(lambda _q: retriever, expected)
    assert means["hit_rate"] >= 0.9
    assert means["mrr"] >= 0.6
    for q in QUESTIONS[:4]:
        adapter = sample.resources.adapter(sample.index(q["index"]), Strategy.VECTOR)
        routed = sample.as_retriever(index=q["index"], strategy="vector", top_k=sample.config.top_k)
        found = ids(routed.retrieve(q["query"]))
        if details(routed.retrieve(q["query"])[0])[ROUTE_KEY]["strategy"] == "vector":
            assert found == ids(adapter.retrieve(q["query"]))


@pytest.mark.parametrize("strategy", list(Strategy))
async def test_every_strategy(sample, expected, strategy):
    adapters = {s.name: sample.resources.adapter(sample.index(s.name), strategy) for s in SAMPLE_INDEXES}
    means = await evaluated(lambda q: adapters[q["index"]], expected)
    assert means["hit_rate"] >= 0.6
    assert means["mrr"] >= 0.3


# Importing costs nothing and touches nothing


def run(code):
    done = run_fresh(code)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_import_makes_no_call_and_loads_no_llama_index_until_a_class_is_used():
    assert run(
        """
        import socket, sys, threading

        def refuse(event, args):
            # Libraries below may look whether the system has IPv6, for which they make a socket and connect it nowhere.
            if event.startswith("socket.") and (event != "socket.__new__" or "llama_index" not in sys.modules):
                if not (event == "socket.bind" and args[1][0] == "::1"):
                    raise SystemExit(f"{event} {args}")

        sys.addaudithook(refuse)
        import agentic_retriever

        heavy = {"llama_index", "llama_index_instrumentation", "numpy", "qdrant_edge", "pydantic", "asyncio"}
        print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}) or "light")
        print(sorted(agentic_retriever.__all__) == sorted(set(dir(agentic_retriever))), threading.active_count())
        agentic_retriever.Strategy
        print("llama_index.core" in sys.modules)
        agentic_retriever.AgenticRouter
        print("llama_index.core" in sys.modules)
        """
    ) == ["light", "True", "1", "False", "True"]


def test_using_every_class_and_making_a_router_leaves_settings_and_network_alone(tmp_path):
    assert run(
        f"""
        import asyncio, sys

        def refuse(event, args):
            if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
                raise SystemExit(f"{{event}} {{args}}")

        sys.addaudithook(refuse)
        import agentic_retriever
        from llama_index.core.settings import Settings

        before = dict(vars(Settings))
        for name in agentic_retriever.__all__:
            getattr(agentic_retriever, name)
        config = agentic_retriever.RouterConfig(data_dir={str(tmp_path)!r}, llm="ollama:x", llm_cloud="openrouter:y",
                                                openrouter_api_key="k")
        with agentic_retriever.AgenticRouter(config) as router:
            router.as_retriever(), router.as_query_engine(streaming=True), router.as_tool()
        print(all(value is None for value in before.values()), dict(vars(Settings)) == before)
        print(asyncio.run.__module__, "nest_asyncio" in sys.modules and hasattr(asyncio, "_nest_patched"))
        """
    ) == ["True", "True", "asyncio.runners", "False"]

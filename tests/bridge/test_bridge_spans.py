"""The stages of a query as spans and events of LlamaIndex."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from bridge_material import CAT, MARS, Broken, BrokenSpans, Spans
from llama_index.core.instrumentation.event_handlers import NullEventHandler
from llama_index.core.instrumentation.span_handlers import NullSpanHandler, SimpleSpanHandler
from llama_index.core.postprocessor import LongContextReorder
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.dispatcher import instrument_tags
from llama_index_instrumentation.span import active_span_id
from small_indexes import GOOD, asked
from waiting import wait_until

from agentic_retriever import tracing
from agentic_retriever.pipeline.query import Question
from agentic_retriever.routing import ProfileClassifier
from agentic_retriever.schema import RouteDecision
from agentic_retriever.testing import FakeLLM

PARENTS = {
    "AgenticRouter.route": "AgenticRouter.query",
    "AgenticRouter.search": "AgenticRouter.query",
    "VectorRetriever.search": "AgenticRouter.search",
    "AgenticRouter.refine": "AgenticRouter.search",
    "AgenticRouter.synthesize": "AgenticRouter.query",
}


def ours(spans):
    return {name for name in spans.names() if name in PARENTS or name == "AgenticRouter.query"}


def parents(spans):
    """The parent of each stage by name, whoever stands between."""
    return {name: spans.above(spans.of(name)[0])[0] for name in PARENTS}


WAYS = ("query", "aquery", "stream", "astream")


@pytest.mark.parametrize("way", WAYS)
async def test_every_stage_is_a_span_below_its_query_and_tells_its_events_in_order(make_router, watch, way):
    router = make_router(model=FakeLLM([GOOD]))
    assert (await asked(router, way)).text == GOOD
    wait_until(lambda: not watch.spans.open())
    spans, events = watch.spans, watch.events
    assert parents(spans) == PARENTS
    assert all(len(spans.of(name)) == 1 for name in (*PARENTS, "AgenticRouter.query"))
    [query] = spans.of("AgenticRouter.query")
    assert (spans.began[query], spans.inputs[query], str(spans.ended[query])) == (None, {"query": CAT}, GOOD)
    assert not spans.errors
    for span_id in spans.of("FakeLLM.complete"):
        assert {"AgenticRouter.query", "AgenticRouter.synthesize"} <= set(spans.above(span_id))
    # Each model call stands below its stage although it runs in a thread of its own.
    [call, *_] = spans.of("FakeLLM.complete")
    assert spans.threads[call] is not spans.threads[query]
    assert active_span_id.get() is None
    told = [e.class_name() for e in events.seen if (e.span_id or "").startswith("AgenticRouter.")]
    assert [name for name in told if not name.startswith("LLM")] == [
        "QueryStartEvent", "RouteDecisionEvent", "RetrievalStartEvent", "RetrievalEndEvent",
        "SynthesizeStartEvent", "SynthesizeEndEvent", "QueryEndEvent",
    ]  # fmt: skip
    [decided], [found], [ended] = map(events.of, ("RouteDecisionEvent", "RetrievalEndEvent", "QueryEndEvent"))
    assert json.loads(json.dumps(decided.decision)) == decided.decision
    assert RouteDecision.from_dict(decided.decision).index.name == "animals"
    assert decided.span_id == spans.of("AgenticRouter.route")[0]
    assert decided.model_dump()["class_name"] == "RouteDecisionEvent"
    assert [n.node.ref_doc_id for n in found.nodes][:1] == ["cats"]
    assert (ended.query, str(ended.response), ended.response.metadata["tier"]) == (CAT, GOOD, "primary")


def test_a_cached_answer_is_one_span(router, watch):
    router.query(CAT)
    watch.spans.began.clear()
    assert router.query(CAT).cached
    assert watch.spans.names() == ["AgenticRouter.query"]
    assert router.stream(CAT).finish().cached
    assert ours(watch.spans) == {"AgenticRouter.query"}


async def test_retrieval_and_routing_alone(router, watch):
    router.route(CAT)
    assert [n for n in watch.spans.names() if n.startswith("AgenticRouter.")] == ["AgenticRouter.route"]
    watch.spans.began.clear()
    await router.aretrieve(CAT, strategy="hybrid", top_k=2)
    [whole] = watch.spans.of("AgenticRouter.retrieve")
    assert watch.spans.inputs[whole] == {"query": CAT, "strategy": "hybrid", "top_k": 2}
    [search] = watch.spans.of("HybridRetriever.search")
    assert watch.spans.above(search) == ["AgenticRouter.search", "AgenticRouter.retrieve"]
    assert [n.node.ref_doc_id for n in watch.spans.ended[whole]][:1] == ["cats"]


def test_below_the_spans_of_llama_index_and_of_the_application(router, watch):
    router.as_query_engine().query(CAT)
    asyncio.run(router.as_query_engine().aquery(MARS))
    for way, span_id in zip(("query", "aquery"), watch.spans.of("AgenticRouter.query"), strict=True):
        assert watch.spans.above(span_id) == [f"RoutedQueryEngine._{way}", f"RoutedQueryEngine.{way}"]
    watch.spans.began.clear()

    @get_dispatcher("application").span
    def application():
        stream = router.stream(CAT + " Please.")
        first = next(stream)
        inside = active_span_id.get()
        stream.finish()
        return first, inside

    _, inside = application()
    assert "application" in inside
    assert inside.rpartition("-")[0] != "AgenticRouter.query"
    assert watch.spans.above(watch.spans.of("AgenticRouter.synthesize")[0])[-1].endswith("application")


def test_two_indexes_searched_side_by_side(make_router, watch):
    router = make_router(classifier=ProfileClassifier(index_margin=1.0, abstain_below=0.0))
    router.retrieve("How long does it sleep, and what are the moons?")
    searches = [s for s in watch.spans.began if ".search-" in s and not s.startswith("AgenticRouter")]
    assert {watch.spans.above(s)[0] for s in searches} == {"AgenticRouter.search"}
    assert {watch.spans.inputs[s]["index"] for s in searches} == {"animals", "planets"}


def test_reranking_and_postprocessors_are_seen(make_router, watch):
    model = FakeLLM(lambda prompt: GOOD if "Source: " in prompt else "1: 9\n2: 1\n3: 1")
    router = make_router(model=model, reranker="llm", postprocessors=[LongContextReorder()])
    router.retrieve(CAT, index="animals")
    [start], [end] = watch.events.of("ReRankStartEvent"), watch.events.of("ReRankEndEvent")
    [refine] = watch.spans.of("AgenticRouter.refine")
    assert (start.span_id, end.span_id, start.model_name) == (refine, refine, "llm")
    assert len(start.nodes) == len(end.nodes) == 3
    [reorder] = watch.spans.of("LongContextReorder._postprocess_nodes")
    assert watch.spans.began[reorder] == refine


def test_failures_drop_their_spans(router, watch):
    for ask in (router.query, lambda *a, **pins: list(router.stream(*a, **pins)), router.retrieve):
        with pytest.raises(LookupError):
            ask(CAT, index="nowhere")
    assert not watch.spans.open()
    dropped = [span_id.partition("-")[0] for span_id in watch.spans.errors]
    assert dropped == [f"AgenticRouter.{name}" for name in ("query", "query", "route", "retrieve")]
    texts = {e.err_str for e in watch.events.of("SpanDropEvent")}
    assert texts == {"UnknownIndexError"}


def test_tags_of_the_application_reach_every_event(router, watch):
    with instrument_tags({"customer": "7"}):
        router.query(CAT)
    assert {e.tags.get("customer") for e in watch.events.seen} == {"7"}


async def test_nothing_is_made_while_nobody_watches(router, monkeypatch, attach):
    def refuse(*_args, **_kwargs):
        raise AssertionError("a span was made")

    monkeypatch.setattr(tracing.Span, "__init__", refuse)
    monkeypatch.setattr(tracing, "emit", refuse)
    attach(NullEventHandler(), NullSpanHandler())
    router.query(CAT)
    router.stream(MARS).finish()
    await router.aretrieve(MARS)
    attach(SimpleSpanHandler())
    with pytest.raises(AssertionError, match="a span was made"):
        router.query(CAT)


def test_handlers_of_our_own_dispatcher_are_called_too(router):
    spans, dispatcher = Spans(), get_dispatcher("agentic_retriever")
    dispatcher.add_span_handler(spans)
    try:
        router.query(CAT)
    finally:
        dispatcher.span_handlers.remove(spans)
    assert {"AgenticRouter.query", "AgenticRouter.route"} <= set(spans.names())
    assert not spans.open()


async def test_broken_handlers_change_nothing_and_are_warned_of_once(make_router, attach, caplog, monkeypatch):
    monkeypatch.setattr(tracing, "_warned_of", set())
    router = make_router(model=FakeLLM([GOOD]), cache_max_entries=0)
    good = Spans()
    attach(Broken(), BrokenSpans(), good)
    with caplog.at_level(logging.WARNING):
        for way in WAYS:
            assert (await asked(router, way)).text == GOOD
        assert router.as_query_engine().query(CAT).metadata["degraded"] == []
    assert sorted(r.message for r in caplog.records if r.name == tracing.__name__) == [
        f"the handler {name} of instrumentation raised RuntimeError; queries go on, and this is told once"
        for name in ("Broken", "BrokenSpans")
    ]
    assert len(good.of("AgenticRouter.query")) == 5
    wait_until(lambda: not good.open())


def test_many_queries_at_once_keep_their_own_trees(make_router, watch):
    router = make_router(model=FakeLLM([GOOD]), workers=16)

    async def tasks():
        return await asyncio.gather(*(router.aquery(f"{CAT} {n}") for n in range(20)))

    with ThreadPoolExecutor(4) as pool:
        in_threads = [pool.submit(router.query, f"{CAT} t{n}") for n in range(20)]
        asyncio.run(tasks())
        [one.result() for one in in_threads]
    wait_until(lambda: not watch.spans.open())
    spans = watch.spans
    assert len(spans.of("AgenticRouter.query")) == 40
    for name, parent in PARENTS.items():
        for span_id in spans.of(name):
            above = spans.began[span_id]
            assert above.startswith(parent)
            assert spans.inputs[above]["query"] == spans.inputs[span_id]["query"]


def test_a_query_whose_loop_ended_drops_its_span(router, watch, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(router._pipeline, "_route", lambda *a, **k: released.wait(20) and None)
    loop = asyncio.new_event_loop()
    task = loop.create_task(router._pipeline.aanswer(Question(query=CAT), router._workers))
    loop.run_until_complete(asyncio.sleep(0.05))
    assert watch.spans.of("AgenticRouter.query")
    coroutine = task.get_coro()
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        coroutine.close()  # as the garbage collector does, in a context of its own
    assert not watch.spans.open()
    assert [type(err) for err in watch.spans.errors.values()] == [GeneratorExit]
    released.set()
    task._log_destroy_pending = False

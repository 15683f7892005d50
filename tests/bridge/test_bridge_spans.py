"""The stages of a query as spans and events of LlamaIndex, and its postprocessors and synthesizers as stages."""

import asyncio
import json
import logging
import math
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
from bridge_material import CAT, MARS, Broken, BrokenSpans, Spans, synthesizer
from llama_index.core.instrumentation.event_handlers import NullEventHandler
from llama_index.core.instrumentation.span_handlers import NullSpanHandler, SimpleSpanHandler
from llama_index.core.postprocessor import LongContextReorder, SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import Accumulate, CompactAndRefine, Refine, SimpleSummarize, TreeSummarize
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.dispatcher import instrument_tags
from llama_index_instrumentation.span import active_span_id
from small_indexes import GOOD, asked
from store_tools import doc_ids, ids, where
from waiting import wait_until, within

from agentic_retriever import tracing
from agentic_retriever.errors import ConfigError
from agentic_retriever.pipeline.query import Question
from agentic_retriever.routing import ProfileClassifier
from agentic_retriever.schema import Budget, Complexity, RouteDecision, Tier
from agentic_retriever.synthesis import ExtractiveSynthesizer, Synthesizer
from agentic_retriever.testing import FakeLLM

PARENTS = {
    "AgenticRouter.route": "AgenticRouter.query", "AgenticRouter.search": "AgenticRouter.query",
    "HybridRetriever.search": "AgenticRouter.search", "AgenticRouter.refine": "AgenticRouter.search",
    "AgenticRouter.synthesize": "AgenticRouter.query",
}  # fmt: skip


def ours(spans):
    return {name for name in spans.names() if name in PARENTS or name == "AgenticRouter.query"}


def parents(spans):
    """The parent of each stage by name, whoever stands between."""
    return {name: spans.above(spans.of(name)[0])[0] for name in PARENTS}


WAYS = ("query", "aquery", "stream", "astream")


@pytest.mark.parametrize("way", WAYS)
async def test_every_stage_is_a_span_below_its_query_and_tells_its_events_in_order(make_router, watch, way):
    assert (await asked(make_router(model=FakeLLM([GOOD])), way)).text == GOOD
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
    assert doc_ids(found.nodes)[:1] == ["cats"]
    assert (ended.query, str(ended.response), ended.response.metadata["tier"]) == (CAT, GOOD, "primary")


def test_a_cached_answer_is_one_span_and_failures_drop_theirs(router, watch):
    router.query(CAT)
    watch.spans.began.clear()
    assert router.query(CAT).cached
    assert watch.spans.names() == ["AgenticRouter.query"]
    assert router.stream(CAT).finish().cached
    assert ours(watch.spans) == {"AgenticRouter.query"}
    for ask in (router.query, lambda *a, **pins: list(router.stream(*a, **pins)), router.retrieve):
        with pytest.raises(LookupError):
            ask(CAT, index="nowhere")
    assert not watch.spans.open()
    dropped = [span_id.partition("-")[0] for span_id in watch.spans.errors]
    assert dropped == [f"AgenticRouter.{name}" for name in ("query", "query", "route", "retrieve")]
    assert {e.err_str for e in watch.events.of("SpanDropEvent")} == {"UnknownIndexError"}


async def test_retrieval_and_routing_alone_tags_and_our_own_dispatcher(router, watch):
    router.route(CAT)
    assert [n for n in watch.spans.names() if n.startswith("AgenticRouter.")] == ["AgenticRouter.route"]
    watch.spans.began.clear()
    await router.aretrieve(CAT, strategy="hybrid", top_k=2)
    [whole] = watch.spans.of("AgenticRouter.retrieve")
    assert watch.spans.inputs[whole] == {"query": CAT, "strategy": "hybrid", "top_k": 2}
    [search] = watch.spans.of("HybridRetriever.search")
    assert watch.spans.above(search) == ["AgenticRouter.search", "AgenticRouter.retrieve"]
    assert doc_ids(watch.spans.ended[whole])[:1] == ["cats"]
    watch.events.seen.clear()
    with instrument_tags({"customer": "7"}):
        router.query(CAT)
    assert {e.tags.get("customer") for e in watch.events.seen} == {"7"}
    spans, dispatcher = Spans(), get_dispatcher("agentic_retriever")
    dispatcher.add_span_handler(spans)
    try:
        router.query(MARS)
    finally:
        dispatcher.span_handlers.remove(spans)
    assert {"AgenticRouter.query", "AgenticRouter.route"} <= set(spans.names())
    assert not spans.open()


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


def test_reranking_postprocessors_and_two_indexes_side_by_side_are_seen(make_router, watch):
    model = FakeLLM(lambda prompt: GOOD if "Source: " in prompt else "1: 9\n2: 1\n3: 1")
    router = make_router(model=model, reranker="llm", postprocessors=[LongContextReorder()])
    router.retrieve(CAT, index="animals")
    [start], [end] = watch.events.of("ReRankStartEvent"), watch.events.of("ReRankEndEvent")
    [refine] = watch.spans.of("AgenticRouter.refine")
    assert (start.span_id, end.span_id, start.model_name) == (refine, refine, "llm")
    assert len(start.nodes) == len(end.nodes) == 3
    [reorder] = watch.spans.of("LongContextReorder._postprocess_nodes")
    assert watch.spans.began[reorder] == refine
    watch.spans.began.clear()
    router = make_router(classifier=ProfileClassifier(index_margin=1.0, abstain_below=0.0))
    router.retrieve("How long does it sleep, and what are the moons?")
    searches = [s for s in watch.spans.began if ".search-" in s and not s.startswith("AgenticRouter")]
    assert {watch.spans.above(s)[0] for s in searches} == {"AgenticRouter.search"}
    assert {watch.spans.inputs[s]["index"] for s in searches} == {"animals", "planets"}


async def test_nothing_is_made_while_nobody_watches(router, monkeypatch, attach):
    refuse = Mock(side_effect=AssertionError("a span was made"))
    monkeypatch.setattr(tracing.Span, "__init__", refuse)
    monkeypatch.setattr(tracing, "emit", refuse)
    attach(NullEventHandler(), NullSpanHandler())
    router.query(CAT)
    router.stream(MARS).finish()
    await router.aretrieve(MARS)
    attach(SimpleSpanHandler())
    with pytest.raises(AssertionError, match="a span was made"):
        router.query(CAT)


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


def test_a_query_whose_loop_ended_drops_its_span(router, watch, monkeypatch, gate):
    monkeypatch.setattr(router._pipeline, "_route", lambda *a, **k: gate.wait(20) and None)
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
    task._log_destroy_pending = False


# LlamaIndex's node postprocessors and response synthesizers as stages of the router


class Doing(BaseNodePostprocessor):
    """Does what it is told, to the very nodes that it is given."""

    what: object = None
    seen: list = []

    def _postprocess_nodes(self, nodes, query_bundle=None):
        self.seen.append(query_bundle.query_str)
        return self.what(nodes)


class SecondDoing(Doing):
    pass


async def test_postprocessors_ours_and_llama_indexs_run_in_order_and_the_answer_stands_on_what_they_leave(make_router):
    first = Doing(what=lambda nodes: nodes[::-1])
    second = SecondDoing(what=lambda nodes: nodes[:2])
    plain = make_router().retrieve(CAT, index="animals")
    found = make_router(postprocessors=[first, second]).retrieve(CAT, index="animals")
    assert doc_ids(found.nodes) == doc_ids(plain.nodes)[::-1][:2]
    assert first.seen[-1] == second.seen[-1] == CAT
    assert found.degraded == ()
    router = make_router(postprocessors=[Doing(what=lambda nodes: [n for n in nodes if n.node.ref_doc_id != "cats"])])
    answer = router.query(CAT)
    assert "cats" not in doc_ids(answer.nodes)
    assert "sixteen" not in answer.text
    gone = make_router(postprocessors=[Doing(what=lambda nodes: [])]).query(CAT)
    assert (gone.nodes, gone.tier) == ((), Tier.NONE)
    cut = make_router(postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.2)]).retrieve(CAT, index="animals")
    assert doc_ids(cut.nodes) == ["cats"]
    router = make_router(postprocessors=[LongContextReorder()])
    for turned in (router.retrieve(CAT, index="animals"), await router.aretrieve(CAT, index="animals")):
        assert (sorted(doc_ids(turned.nodes)), turned.degraded) == (["cats", "dogs", "owls"], ())


def broken_halfway(nodes):
    nodes[0].node.set_content("changed")
    nodes[0].score = -1.0
    nodes.pop()
    raise RuntimeError("secret text")


FAILED = "the node postprocessor Doing failed with RuntimeError; see the cause"


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (Mock(side_effect=RuntimeError("secret text")), FAILED),
        (broken_halfway, FAILED),
        (lambda nodes: None, "it must return a list of NodeWithScore, got NoneType"),
        (lambda nodes: [n.node for n in nodes], "it must return a list of NodeWithScore, got list"),
    ],
)
def test_one_that_fails_is_left_out_and_told(make_router, what, reason):
    plain = make_router().retrieve(CAT, index="animals")
    router = make_router(postprocessors=[Doing(what=what), SecondDoing(what=lambda nodes: nodes[:2])])
    found = router.retrieve(CAT, index="animals")
    had, kept = ([(n.node.node_id, n.score, n.node.text) for n in one.nodes] for one in (plain, found))
    assert kept == had[:2]
    [lost] = found.degraded
    assert (lost.step, lost.reason, lost.fallback) == ("postprocess.Doing", reason, "the nodes before it")
    answer = router.query(CAT)
    assert (answer.text, answer.degraded[0].step) == (GOOD, "postprocess.Doing")
    assert not router.query(CAT).cached  # what is degraded is not kept


def test_one_that_blocks_is_abandoned_in_time(make_router, gate):
    armed = []
    router = make_router(postprocessors=[Doing(what=lambda nodes: nodes if not armed else gate.wait(20) and nodes)])
    router.retrieve(CAT)
    armed.append(True)
    with within(1.8):
        answer = router.query(CAT, budget=Budget(max_ms=800))
    assert answer.text == GOOD
    [lost] = answer.degraded
    assert lost.step == "postprocess.Doing"
    assert "did not answer within" in lost.reason
    gate.set()
    wait_until(lambda: not any("Doing" in thread.name for thread in threading.enumerate()))


def test_promises_hold_whatever_they_return_and_what_is_none_is_named(make_router):
    stray = {"kind": "z"}

    def careless(nodes):
        added = NodeWithScore(node=TextNode(text="new", id_="new", metadata=stray), score=0.5)
        nodes[1].score, nodes[2].score = math.nan, None
        return [nodes[0], *nodes, added]

    router = make_router(postprocessors=[Doing(what=careless)])
    plain = make_router().retrieve(CAT, index="animals")
    found = router.retrieve(CAT, index="animals")
    assert ids(found.nodes) == [*ids(plain.nodes), "new"]
    assert [n.score for n in found.nodes] == [*(n.score for n in plain.nodes), 0.5]
    kinds = where("kind", ["c", "d", "o"], "in")
    assert "new" not in ids(router.retrieve(CAT, index="animals", filters=kinds).nodes)
    assert {c.index for c in router.query(CAT, index="animals").citations} == {"animals"}
    with pytest.raises(ConfigError, match="BaseNodePostprocessor"):
        make_router(postprocessors=["rerank"])
    with pytest.raises(ConfigError, match="synthesizer"):
        make_router(synthesizer="compact")
    assert make_router(synthesizer=Synthesizer(ExtractiveSynthesizer())).query(CAT).tier is Tier.EXTRACTIVE
    plain, staged = make_router(), make_router(postprocessors=[Doing(what=list)])
    assert plain.query(MARS).text == staged.query(MARS).text


@pytest.mark.parametrize("kind", [CompactAndRefine, Refine, TreeSummarize, SimpleSummarize, Accumulate])
def test_any_response_synthesizer_writes_the_answer(make_router, kind, monkeypatch):
    monkeypatch.setattr("agentic_retriever.synthesis.context.MAX_PASSAGES", dict.fromkeys(Complexity, 1))
    llm = FakeLLM([GOOD])
    answer = make_router(synthesizer=synthesizer(llm, kind)).query(CAT)
    assert "sixteen hours a day" in answer.text
    assert (answer.tier, answer.degraded) == (Tier.PRIMARY, ())
    assert [(c.doc_id, c.quote) for c in answer.citations] == [("cats", "The cat sleeps sixteen hours a day.")]
    assert kind is Accumulate or all(check.supported for check in answer.checks)  # it writes "Response 1:" before
    assert "[1] cats" in llm.prompts[0]
    assert "The cat sleeps sixteen hours a day. A cat purrs" in llm.prompts[0]
    assert "content_hash" not in llm.prompts[0]
    (usage,) = answer.usage.tiers
    assert usage.model == f"{kind.__name__}:fake-llm"
    assert usage.prompt_tokens > 10
    assert usage.completion_tokens > 5


async def test_its_citations_are_looked_up_and_streamed_answers_come_whole(make_router):
    written = "The cat sleeps sixteen hours a day. The cat sleeps ninety hours a day [1]. Mars is red [9]."
    router = make_router(synthesizer=synthesizer(FakeLLM([written])))
    answer = router.query(CAT)
    assert [check.supported for check in answer.checks] == [True, False, False]
    assert answer.text.startswith("The cat sleeps sixteen hours a day. [1]")
    assert "[9]" not in answer.text
    for citation in answer.citations:
        source = router.index(citation.index).source_text(citation.doc_id)
        assert source[citation.start : citation.end] == citation.quote
    streaming = synthesizer(FakeLLM([GOOD]), streaming=True)
    router = make_router(synthesizer=streaming)
    stream = router.stream(CAT)
    assert list(stream) == [GOOD]
    assert stream.answer.tier is Tier.PRIMARY
    assert router.query(CAT).cached
    assert (await make_router(synthesizer=streaming).aquery(CAT)).text == GOOD


def test_one_that_fails_or_blocks_leaves_the_extract_in_time(make_router, gate):
    for reply in [RuntimeError("secret"), "", "   "]:
        router = make_router(synthesizer=synthesizer(FakeLLM([reply])))
        for answer in (router.query(CAT), router.stream(CAT).finish()):
            assert (answer.text, answer.tier) == (GOOD, Tier.EXTRACTIVE)
            assert [(d.step, d.fallback) for d in answer.degraded] == [("synthesis.llm", "extractive")]
            assert "secret" not in str(answer.to_dict())
    router = make_router(synthesizer=synthesizer(FakeLLM(lambda prompt: gate.wait(20) and GOOD)))
    router.retrieve(CAT)
    with within(1.8):
        answer = router.query(CAT, budget=Budget(max_ms=800))
    assert (answer.text, answer.tier) == (GOOD, Tier.EXTRACTIVE)


def test_budgets_hold_for_it_and_nothing_found_or_no_answer_is_none(make_router):
    llm = FakeLLM([GOOD])
    router = make_router(synthesizer=synthesizer(llm))
    assert router.query(CAT, budget=Budget(max_llm_calls=0)).tier is Tier.EXTRACTIVE
    limited = router.query(CAT, budget=Budget(max_usd=0.01))
    assert limited.tier is Tier.EXTRACTIVE
    assert "is not known" in limited.degraded[0].reason
    assert llm.prompts == []
    llm = FakeLLM(["NO_ANSWER"])
    router = make_router(synthesizer=synthesizer(llm))
    assert router.query("Why did the parliament of Norway vote on fisheries?").tier is Tier.NONE
    assert llm.prompts == []
    answer = router.query(CAT)
    assert (answer.tier, answer.citations) == (Tier.NONE, ())


def test_routers_with_other_stages_share_no_cached_answers(make_router):
    def key(**stages):
        return make_router(**stages)._pipeline.writers

    cutting = [key(postprocessors=[SimilarityPostprocessor(similarity_cutoff=c)]) for c in (0.1, 0.1, 0.9)]
    assert cutting[0] == cutting[1] != cutting[2]
    writing = [key(synthesizer=synthesizer(FakeLLM([GOOD]), kind)) for kind in (Refine, Refine, TreeSummarize)]
    assert writing[0] == writing[1] != writing[2]
    assert len({key(), cutting[0], cutting[2], writing[0], writing[2]}) == 5

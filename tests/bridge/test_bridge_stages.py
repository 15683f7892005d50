"""LlamaIndex's node postprocessors and response synthesizers as stages of the router."""

from __future__ import annotations

import math
import threading

import pytest
from bridge_material import CAT, MARS, synthesizer
from llama_index.core.postprocessor import LongContextReorder, SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import Accumulate, CompactAndRefine, Refine, SimpleSummarize, TreeSummarize
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from small_indexes import GOOD
from waiting import wait_until, within

from agentic_retriever.errors import ConfigError
from agentic_retriever.schema import Budget, Complexity, Tier
from agentic_retriever.testing import FakeLLM


def doc_ids(nodes):
    return [scored.node.ref_doc_id for scored in nodes]


class Doing(BaseNodePostprocessor):
    """Does what it is told, to the very nodes that it is given."""

    what: object = None
    seen: list = []

    def _postprocess_nodes(self, nodes, query_bundle=None):
        self.seen.append(query_bundle.query_str)
        return self.what(nodes)


class SecondDoing(Doing):
    pass


def test_postprocessors_run_in_order_on_what_was_found(make_router):
    first = Doing(what=lambda nodes: nodes[::-1])
    second = SecondDoing(what=lambda nodes: nodes[:2])
    plain = make_router().retrieve(CAT, index="animals")
    found = make_router(postprocessors=[first, second]).retrieve(CAT, index="animals")
    assert doc_ids(found.nodes) == doc_ids(plain.nodes)[::-1][:2]
    assert first.seen[-1] == second.seen[-1] == CAT
    assert found.degraded == ()


async def test_those_of_llama_index(make_router):
    cut = make_router(postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.2)]).retrieve(CAT, index="animals")
    assert doc_ids(cut.nodes) == ["cats"]
    router = make_router(postprocessors=[LongContextReorder()])
    for turned in (router.retrieve(CAT, index="animals"), await router.aretrieve(CAT, index="animals")):
        assert sorted(doc_ids(turned.nodes)) == ["cats", "dogs", "owls"]
        assert turned.degraded == ()


def test_the_answer_stands_on_what_they_leave(make_router):
    router = make_router(postprocessors=[Doing(what=lambda nodes: [n for n in nodes if n.node.ref_doc_id != "cats"])])
    answer = router.query(CAT)
    assert "cats" not in doc_ids(answer.nodes)
    assert "sixteen" not in answer.text
    gone = make_router(postprocessors=[Doing(what=lambda nodes: [])]).query(CAT)
    assert (gone.nodes, gone.tier) == ((), Tier.NONE)


def broken(_nodes):
    raise RuntimeError("secret text")


def broken_halfway(nodes):
    nodes[0].node.set_content("changed")
    nodes[0].score = -1.0
    nodes.pop()
    raise RuntimeError("secret text")


FAILED = "the node postprocessor Doing failed with RuntimeError; see the cause"


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (broken, FAILED),
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
    assert answer.text == GOOD
    assert answer.degraded[0].step == "postprocess.Doing"
    assert not router.query(CAT).cached  # what is degraded is not kept


def test_one_that_blocks_is_abandoned_in_time(make_router):
    released, armed = threading.Event(), []
    router = make_router(postprocessors=[Doing(what=lambda nodes: nodes if not armed else released.wait(20) and nodes)])
    router.retrieve(CAT)
    armed.append(True)
    try:
        with within(5):
            answer = router.query(CAT, budget=Budget(max_ms=1_000))
        assert answer.text == GOOD
        [lost] = answer.degraded
        assert lost.step == "postprocess.Doing"
        assert "did not answer within" in lost.reason
    finally:
        released.set()
    wait_until(lambda: not any("Doing" in thread.name for thread in threading.enumerate()))


def test_promises_hold_whatever_they_return(make_router):
    stray = {"kind": "z"}

    def careless(nodes):
        added = NodeWithScore(node=TextNode(text="new", id_="new", metadata=stray), score=0.5)
        nodes[1].score, nodes[2].score = math.nan, None
        return [nodes[0], *nodes, added]

    router = make_router(postprocessors=[Doing(what=careless)])
    plain = make_router().retrieve(CAT, index="animals")
    found = router.retrieve(CAT, index="animals")
    assert [n.node.node_id for n in found.nodes] == [*(n.node.node_id for n in plain.nodes), "new"]
    assert [n.score for n in found.nodes] == [*(n.score for n in plain.nodes), 0.5]
    kinds = MetadataFilters(filters=[MetadataFilter(key="kind", value=["c", "d", "o"], operator="in")])
    assert "new" not in [n.node.node_id for n in router.retrieve(CAT, index="animals", filters=kinds).nodes]
    answer = router.query(CAT, index="animals")
    assert {c.index for c in answer.citations} == {"animals"}


def test_what_is_none_is_named(make_router):
    with pytest.raises(ConfigError, match="BaseNodePostprocessor"):
        make_router(postprocessors=["rerank"])
    with pytest.raises(ConfigError, match="synthesizer"):
        make_router(synthesizer="compact")


@pytest.mark.parametrize("kind", [CompactAndRefine, Refine, TreeSummarize, SimpleSummarize, Accumulate])
def test_any_response_synthesizer_writes_the_answer(make_router, kind, monkeypatch):
    monkeypatch.setattr("agentic_retriever.synthesis.synthesizer.MAX_PASSAGES", dict.fromkeys(Complexity, 1))
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


def test_its_citations_are_looked_up(make_router):
    written = "The cat sleeps sixteen hours a day. The cat sleeps ninety hours a day [1]. Mars is red [9]."
    router = make_router(synthesizer=synthesizer(FakeLLM([written])))
    answer = router.query(CAT)
    assert [check.supported for check in answer.checks] == [True, False, False]
    assert answer.text.startswith("The cat sleeps sixteen hours a day. [1]")
    assert "[9]" not in answer.text
    for citation in answer.citations:
        source = router.index(citation.index).source_text(citation.doc_id)
        assert source[citation.start : citation.end] == citation.quote


async def test_streamed_answers_come_whole(make_router):
    streaming = synthesizer(FakeLLM([GOOD]), streaming=True)
    router = make_router(synthesizer=streaming)
    stream = router.stream(CAT)
    assert list(stream) == [GOOD]
    assert stream.answer.tier is Tier.PRIMARY
    assert router.query(CAT).cached
    assert (await make_router(synthesizer=streaming).aquery(CAT)).text == GOOD


@pytest.mark.parametrize("reply", [RuntimeError("secret"), "", "   "])
def test_one_that_fails_leaves_the_extract(make_router, reply):
    router = make_router(synthesizer=synthesizer(FakeLLM([reply])))
    for answer in (router.query(CAT), router.stream(CAT).finish()):
        assert (answer.text, answer.tier) == (GOOD, Tier.EXTRACTIVE)
        assert [(d.step, d.fallback) for d in answer.degraded] == [("synthesis.llm", "extractive")]
        assert "secret" not in str(answer.to_dict())


def test_one_that_blocks_leaves_the_extract_in_time(make_router):
    released = threading.Event()
    llm = FakeLLM(lambda prompt: released.wait(20) and GOOD)
    router = make_router(synthesizer=synthesizer(llm))
    router.retrieve(CAT)
    try:
        with within(5):
            answer = router.query(CAT, budget=Budget(max_ms=1_000))
        assert (answer.text, answer.tier) == (GOOD, Tier.EXTRACTIVE)
    finally:
        released.set()


def test_budgets_hold_for_it(make_router):
    llm = FakeLLM([GOOD])
    router = make_router(synthesizer=synthesizer(llm))
    assert router.query(CAT, budget=Budget(max_llm_calls=0)).tier is Tier.EXTRACTIVE
    limited = router.query(CAT, budget=Budget(max_usd=0.01))
    assert limited.tier is Tier.EXTRACTIVE
    assert "is not known" in limited.degraded[0].reason
    assert llm.prompts == []


def test_nothing_found_asks_no_synthesizer_and_one_may_say_that_there_is_no_answer(make_router):
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


def test_mars_is_answered_as_before(make_router):
    plain, staged = make_router(), make_router(postprocessors=[Doing(what=list)])
    assert plain.query(MARS).text == staged.query(MARS).text

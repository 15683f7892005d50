"""Every fault of a model server, seen from the router: another tier answers in time, or extraction does."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest
from fault_material import COMPLEX, LATE_S, OLLAMA_FAULTS, OPENROUTER_FAULTS, all_down, body, mode, status
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from model_servers import chat, stream_body
from redis_servers import free_port
from small_indexes import GOOD, QUESTION, asked, documents
from waiting import wait_until, within

from agentic_retriever import Budget
from agentic_retriever.errors import ConfigError, StreamBrokenError
from agentic_retriever.llm import TieredClient
from agentic_retriever.routing import AutoClassifier, AutoSelector
from agentic_retriever.schema import Complexity, Tier


def failures(answer):
    return [(a.tier, a.failure.name.lower() if a.failure else None) for a in answer.attempts]


def timed(router, question=QUESTION, **wishes):
    with within(router.config.deadline_s + LATE_S):
        return router.query(question, **wishes)


def deadline(kind):
    """Little time for what hangs; what fails at once may take as long as a busy machine needs."""
    return {"deadline_s": 2.0} if kind in {"hang", "drip", "stall"} else {}


@pytest.mark.parametrize("fault", OLLAMA_FAULTS)
def test_cloud_answers_when_the_primary_fails(make_tiers, ollama, cloud, fault):
    set_up, kind = OLLAMA_FAULTS[fault]
    set_up(ollama)
    router = make_tiers(**deadline(fault))
    answer = timed(router)
    assert answer.text == GOOD
    assert (answer.tier, answer.citations[0].doc_id) == (Tier.CLOUD, "cats")
    assert failures(answer) == [(Tier.PRIMARY, kind), (Tier.CLOUD, None)]
    for attempt in answer.attempts:
        assert 0 < attempt.seconds <= router.config.deadline_s + LATE_S
    assert answer.attempts[0].requests == len(ollama.requests) <= 3
    assert answer.usage.llm_calls == 2
    assert answer.to_dict()["attempts"][0]["failure"] == kind


@pytest.mark.parametrize("fault", OPENROUTER_FAULTS)
def test_primary_answers_when_the_wanted_cloud_fails(make_tiers, ollama, cloud, fault):
    set_up, kind = OPENROUTER_FAULTS[fault]
    cloud.healthy.clear()
    set_up(cloud)
    ollama.reply(chat("ollama", GOOD))
    answer = timed(make_tiers(**deadline(fault)), force_cloud=True)
    assert (answer.text, answer.tier) == (GOOD, Tier.PRIMARY)
    assert failures(answer) == [(Tier.CLOUD, kind), (Tier.PRIMARY, None)]
    assert "synthesis.cloud" in [lost.step for lost in answer.degraded]
    assert len(cloud.requests) <= 3


def test_small_tier_answers_when_both_others_fail(make_tiers, ollama, cloud):
    ollama.reply({"error": "x"}, 404)
    cloud.healthy.clear()
    cloud.reply({"error": "x"}, 402)
    answer = timed(make_tiers())
    assert (answer.text, answer.tier) == (GOOD, Tier.SMALL)
    assert failures(answer) == [(Tier.PRIMARY, "not_found"), (Tier.CLOUD, "payment"), (Tier.SMALL, None)]


def test_refused_connections(make_tiers, cloud):
    answer = timed(make_tiers(ollama_base_url=f"http://127.0.0.1:{free_port()}"))
    assert (answer.text, answer.tier) == (GOOD, Tier.CLOUD)
    assert failures(answer) == [(Tier.PRIMARY, "unreachable"), (Tier.CLOUD, None)]


@pytest.mark.parametrize(
    ("fault", "way"),
    [
        *((fault, "query") for fault in ("refused", "hang", "drip", "401", "500", "html")),
        *((fault, way) for fault in ("hang", "drip", "401") for way in ("aquery", "stream", "astream")),
    ],
)
async def test_extract_when_every_tier_is_down(make_tiers, ollama, cloud, fault, way):
    faults = {"401": status(401), "500": status(500), "html": body(b"<html>")}
    faults |= {"hang": mode("hang"), "drip": mode("drip", b" " * 500), "refused": status(500)}
    all_down(ollama, cloud, faults[fault])
    dead = f"http://127.0.0.1:{free_port()}"
    changes = {"ollama_base_url": dead, "openrouter_base_url": dead} if fault == "refused" else deadline(fault)
    router = make_tiers(**changes)
    with within(router.config.deadline_s + LATE_S):
        answer = await asked(router, way)
    assert answer.tier is Tier.EXTRACTIVE
    assert "sixteen hours" in answer.text
    assert [a.tier for a in answer.attempts] == [Tier.PRIMARY, Tier.CLOUD, Tier.SMALL]
    assert all(a.failure for a in answer.attempts)
    [lost] = [lost for lost in answer.degraded if lost.step == "synthesis.llm"]
    assert lost.fallback == "extractive"
    assert "primary model llama3:8b" in lost.reason
    assert router.cache.stats().entries == 0


async def test_followers_of_a_late_answer_get_it_too(make_tiers, ollama, cloud):
    all_down(ollama, cloud, mode("hang"))
    router = make_tiers(deadline_s=2.0)
    answers = await asyncio.gather(*(router.aquery(QUESTION) for _ in range(5)))
    assert [answer.tier for answer in answers] == [Tier.EXTRACTIVE] * 5


def test_recovery_is_seen_with_the_first_query_after_the_cooldown(make_tiers, ollama, cloud, endpoints):
    endpoints(cooldown_s=0.5)
    all_down(ollama, cloud, status(500))
    router = make_tiers(llm_cloud="none", llm_small="none")
    assert timed(router).tier is Tier.EXTRACTIVE
    ollama.reply(chat("ollama", GOOD))
    asked = len(ollama.requests)
    paused = timed(router)
    assert (paused.tier, len(ollama.requests)) == (Tier.EXTRACTIVE, asked)
    assert failures(paused)[0] == (Tier.PRIMARY, "paused")
    time.sleep(0.55)
    answer = timed(router)
    assert (answer.tier, answer.cached, answer.degraded) == (Tier.PRIMARY, False, ())
    assert timed(router).cached


@pytest.mark.parametrize("routing", [{}, {"classifier": "auto", "selector": "auto"}, {"reranker": "llm"}])
def test_dead_endpoints_get_three_requests_and_then_none(make_tiers, ollama, cloud, routing, endpoints):
    endpoints(cooldown_s=600)
    all_down(ollama, cloud, status(503))
    router = make_tiers(llm_small="none", **routing)
    for number in range(20):
        assert timed(router, f"{QUESTION} {number}").tier is Tier.EXTRACTIVE
        assert (len(ollama.requests), len(cloud.requests)) == (3, 3)
    assert router.query(QUESTION).attempts[0].requests == 0


@pytest.mark.parametrize("fault", ["429", "500"])
def test_dead_cloud_gets_at_most_three_requests_for_one_call(make_tiers, cloud, fault, endpoints):
    endpoints(failures=100)
    cloud.healthy.clear()
    cloud.reply({"error": "x"}, int(fault))
    timed(make_tiers(), force_cloud=True)
    assert len(cloud.requests) == 3


def test_truncated_answer_is_told_and_not_cached(make_tiers, ollama):
    ollama.reply(chat("ollama", "The cat sleeps sixteen hours", finish="length"))
    router = make_tiers()
    answer = timed(router)
    assert (answer.tier, [lost.fallback for lost in answer.degraded]) == (Tier.PRIMARY, ["truncated answer"])
    ollama.reply(chat("ollama", GOOD))
    assert timed(router).text == GOOD


def test_prompt_cut_by_the_server_is_told_and_not_cached(make_tiers, ollama):
    ollama.reply(chat("ollama", GOOD, tokens=(8_192, 3)))
    router = make_tiers()
    answer = timed(router)
    assert [lost.step for lost in answer.degraded] == ["synthesis.prompt"]
    assert router.cache.stats().entries == 0
    [(_, asked)] = ollama.requests
    assert asked["options"]["num_ctx"] == 8_192


# Streams


STREAM_FAULTS = {
    "hang": mode("hang"),
    "500": status(500),
    "error event": body(stream_body("ollama", [], error="overloaded")),
    "html": body(b"<html>"),
    "blank": body(stream_body("ollama", [" ", "\n"])),
    "thoughts only": mode("cut", stream_body("ollama", ["<think>", "hm"], finish=None)),
}


@pytest.mark.parametrize("fault", STREAM_FAULTS)
def test_stream_changes_the_tier_silently_before_the_first_word(make_tiers, ollama, fault):
    STREAM_FAULTS[fault](ollama)
    router = make_tiers(**deadline(fault))
    stream = router.stream(QUESTION)
    with within(router.config.deadline_s + LATE_S):
        pieces = list(stream)
    if fault == "thoughts only":  # the call had begun, so extraction takes over
        assert stream.answer.tier in {Tier.CLOUD, Tier.EXTRACTIVE}
    else:
        assert (stream.answer.tier, len(stream.answer.attempts)) == (Tier.CLOUD, 2)
        assert len(pieces) > 1
    assert "".join(pieces) == stream.answer.text
    assert "sixteen hours" in stream.answer.text


SHOWN = ["The cat ", "sleeps sixteen ", "hours a day. "]
BREAKS = {
    "cut": mode("cut", stream_body("ollama", SHOWN, finish=None)),
    "stall": mode("stall", stream_body("ollama", SHOWN, finish=None)),
    "error event": body(stream_body("ollama", SHOWN, error="overloaded")),
}


@pytest.mark.parametrize("fault", BREAKS)
@pytest.mark.parametrize("way", ["stream", "astream"])
async def test_stream_that_breaks_off_is_told_and_never_spliced(make_tiers, ollama, cloud, fault, way):
    BREAKS[fault](ollama)
    router, shown = make_tiers(**deadline(fault)), []
    with within(router.config.deadline_s + LATE_S), pytest.raises(StreamBrokenError) as caught:
        await asked(router, way, shown=shown)
    text = "".join(shown)
    assert text.startswith("The cat sleeps")
    assert caught.value.text.startswith(text.rstrip())
    assert [a.tier for a in caught.value.attempts] == [Tier.PRIMARY]
    assert not cloud.requests
    assert router.cache.stats().entries == 0


def test_stream_without_its_end_is_marked_and_not_cached(make_tiers, ollama):
    ollama.reply(stream_body("ollama", SHOWN, finish=None))
    router = make_tiers()
    stream = router.stream(QUESTION)
    assert "".join(stream).startswith("The cat sleeps sixteen hours a day.")
    assert [lost.fallback for lost in stream.answer.degraded] == ["truncated answer"]
    assert router.cache.stats().entries == 0


def test_good_stream_is_cached_for_queries(make_tiers, ollama):
    ollama.reply(stream_body("ollama", [*SHOWN, "[1]"]))
    router = make_tiers()
    assert "".join(router.stream(QUESTION)) == GOOD
    answer = timed(router)
    assert (answer.text, answer.cached, len(ollama.requests)) == (GOOD, True, 1)


# Which tier, and within which budget


def test_complex_questions_go_to_the_cloud_first(make_tiers, ollama):
    ollama.reply(chat("ollama", GOOD))
    router = make_tiers()
    assert timed(router).tier is Tier.PRIMARY
    answer = timed(router, COMPLEX)
    assert (answer.route.complexity, answer.tier, len(answer.attempts)) == (Complexity.COMPLEX, Tier.CLOUD, 1)


def test_forced_cloud_and_long_context_go_to_the_cloud_first(make_tiers, ollama, monkeypatch):
    ollama.reply(chat("ollama", GOOD))
    assert timed(make_tiers(), force_cloud=True).tier is Tier.CLOUD
    monkeypatch.setattr("agentic_retriever.llm.tiers.TieredClient", partial(TieredClient, long_context_chars=10))
    assert timed(make_tiers()).tier is Tier.CLOUD


def test_without_money_only_free_models_are_asked(make_tiers, ollama, cloud):
    ollama.reply({"error": "x"}, 404)
    answer = timed(make_tiers(), budget=Budget(max_usd=0), force_cloud=True)
    assert failures(answer) == [(Tier.CLOUD, "budget"), (Tier.PRIMARY, "not_found"), (Tier.SMALL, None)]
    assert (answer.text, answer.usage.usd, cloud.requests) == (GOOD, 0.0, [])


def test_without_calls_the_answer_is_an_extract(make_tiers, ollama, cloud):
    answer = timed(make_tiers(), budget=Budget(max_llm_calls=0))
    assert (answer.tier, answer.attempts, answer.degraded) == (Tier.EXTRACTIVE, (), ())
    assert not ollama.requests + cloud.requests


@pytest.mark.parametrize("way", ["query", "stream"])
@pytest.mark.parametrize("calls", [1, 2])
def test_no_more_models_are_asked_than_the_budget_allows(make_tiers, ollama, cloud, calls, way):
    all_down(ollama, cloud, status(404))
    router, budget = make_tiers(), Budget(max_llm_calls=calls)
    answer = timed(router, budget=budget) if way == "query" else router.stream(QUESTION, budget=budget).finish()
    assert answer.tier is Tier.EXTRACTIVE
    assert answer.usage.llm_calls <= calls
    assert len(ollama.requests) + len(cloud.requests) <= calls


def test_routing_and_answer_share_the_calls(make_tiers, ollama, monkeypatch):
    monkeypatch.setattr("agentic_retriever.resources.AutoClassifier", partial(AutoClassifier, margin=1.0))
    monkeypatch.setattr("agentic_retriever.resources.AutoSelector", partial(AutoSelector, min_confidence=1.0))
    ollama.reply(chat("ollama", GOOD))
    router = make_tiers(classifier="auto", selector="auto")
    answer = timed(router, budget=Budget(max_llm_calls=2))
    assert answer.usage.llm_calls <= 2
    assert len(ollama.requests) <= 2


def test_many_long_nodes_take_one_call_and_what_was_left_out_is_told(make_tiers, ollama, tmp_path):
    ollama.reply(chat("ollama", "Rule 3 sets the limit to 3 metres. [1]"))
    router = make_tiers(top_k=50, data_dir=tmp_path / "data")
    long = {f"note{n}": f"Note {n} is of something else, number {n * 7}, altogether. " * 50 for n in range(49)}
    long["rule3"] = "Rule 3 sets the limit to 3 metres. " * 70
    router.add_index("rules", documents(long), description="Rules on limits")
    answer = router.query("Which limit does rule 3 set?", index="rules", strategy="hybrid")
    assert answer.usage.llm_calls == 1
    [(_, asked)] = ollama.requests
    prompt = asked["messages"][-1]["content"]
    assert len(answer.nodes) == 50
    assert answer.nodes_left_out == 50 - prompt.count("Source: ")  # near copies of better ones, too
    assert prompt.count("Source: ") <= 5
    assert len(prompt) < 12_000
    assert asked["options"]["num_ctx"] == 8_192
    assert answer.to_dict()["nodes_left_out"] == answer.nodes_left_out


def test_nothing_found_asks_no_model_and_is_not_cached(make_tiers, ollama, cloud):
    router = make_tiers()
    nobody = MetadataFilters(filters=[MetadataFilter(key="title", value="nobody")])
    answer = timed(router, filters=nobody)
    assert (answer.tier, answer.nodes) == (Tier.NONE, ())
    assert not answer.citations
    assert not ollama.requests + cloud.requests
    assert router.cache.stats().entries == 0


# No server at all


def test_construction_asks_no_server(make_tiers, ollama, cloud):
    router = make_tiers()
    router.route(QUESTION)
    router.retrieve(QUESTION)
    assert not ollama.requests + cloud.requests
    assert ollama.open_connections == cloud.open_connections == 0


def test_cloud_without_a_key_is_left_out_with_one_warning(make_tiers, ollama, caplog):
    ollama.reply({"error": "x"}, 404)
    router = make_tiers(openrouter_api_key="")
    answer = timed(router)
    assert failures(answer) == [(Tier.PRIMARY, "not_found"), (Tier.SMALL, None)]
    assert [r.levelname for r in caplog.records if "OPENROUTER_API_KEY" in r.message] == ["WARNING"]
    with pytest.raises(ConfigError, match="OPENROUTER_API_KEY"):
        make_tiers(llm="openrouter:x", openrouter_api_key="")


def test_abandoned_calls_leave_no_connection(make_tiers, ollama, cloud):
    mode("drip", chat("ollama", GOOD * 50))(ollama)
    router = make_tiers(deadline_s=1.0)
    for number in range(3):
        timed(router, f"{QUESTION} {number}")
    wait_until(lambda: ollama.open_connections == 0)

"""Each provider against a server on the loopback interface that answers well, or well enough."""

from __future__ import annotations

import asyncio
import threading

import pytest
from waiting import wait_until, within

from agentic_retriever.errors import DeadlineExceededError, LLMError


@pytest.fixture
def make(tiers_on):
    """Builds the client of the only tier."""

    def _make(**settings):
        return tiers_on(**settings).order()[0]

    return _make


def test_good_reply(server, provider, make, chat):
    server.reply(chat(provider, "ไร่ [1]"))
    reply = make().complete("¿Cuántos?")
    assert (reply.text, reply.model) == ("ไร่ [1]", "some/model:1b")
    assert (reply.prompt_tokens, reply.completion_tokens, reply.truncated) == (11, 3, False)
    ((path, body),) = server.requests
    assert path == ("/api/chat" if provider == "ollama" else "/api/v1/chat/completions")
    assert body["messages"][-1]["content"] == "¿Cuántos?"
    if provider == "ollama":
        assert body["options"]["num_ctx"] == 8_192


def test_reply_cut_by_length_is_marked(server, provider, make, chat):
    server.reply(chat(provider, "half an ans", finish="length"))
    assert make().complete("q").truncated


def test_missing_usage_is_estimated(server, provider, make, chat):
    body = chat(provider, "four")
    for field in ("usage", "prompt_eval_count", "eval_count"):
        body.pop(field, None)
    server.reply(body)
    reply = make().complete("q" * 40)
    assert (reply.prompt_tokens, reply.completion_tokens) == (10, 1)


def test_prompt_that_the_server_cut_to_its_window_is_reported(server, provider, make, chat):
    server.reply(chat(provider, "ok", tokens=(8_192, 3)))
    assert make().complete("q").prompt_cut is (provider == "ollama")
    server.reply(chat(provider, "ok", tokens=(8_000, 3)))
    assert not make().complete("q").prompt_cut


def test_ollama_is_free_and_openrouter_costs_what_the_table_says(server, provider, make, chat):
    server.reply(chat(provider, "ok", tokens=(1_000_000, 500_000)))
    setting = {"openrouter": "openrouter:openai/gpt-4o-mini", "ollama": "ollama:llama3:8b"}[provider]
    reply = make(llm=setting).complete("q")
    assert reply.priced
    assert reply.usd == pytest.approx(0.45 if provider == "openrouter" else 0.0)
    unknown = make().complete("q")
    assert (unknown.priced, unknown.usd) == (provider == "ollama", 0.0)
    assert unknown.attempts[0].usd == (0.0 if provider == "ollama" else None)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_dead_server_gets_three_requests_then_none_until_the_cooldown_ends(server, make, status):
    server.reply({"error": "x"}, status)
    patient = make(retries=2)
    for _ in range(20):
        with pytest.raises(LLMError):
            patient.complete("q")
    assert len(server.requests) == 3


@pytest.mark.parametrize(("asked", "requests"), [("0", 3), ("0.05", 3), ("30", 1)])
def test_retry_after_is_honoured_within_the_deadline(server, make, asked, requests):
    server.reply({"error": "x"}, 429)
    server.headers = {"retry-after": asked}
    with within(1.0), pytest.raises(LLMError, match="429"):
        make(retries=2).complete("q", timeout_s=5)
    assert len(server.requests) == requests


def test_failure_that_passes_is_retried(server, provider, make, chat):
    server.reply(chat(provider, "ok"))
    server.first = [(503, b"{}"), (500, b"{}")]
    reply = make(retries=2).complete("q")
    assert (reply.text, reply.attempts[0].requests, len(server.requests)) == ("ok", 3, 3)


def test_abandoned_call_frees_its_thread_and_its_connection(server, provider, make, chat):
    server.reply(chat(provider, "x" * 400))
    server.mode = "drip"
    one = make()
    before = threading.active_count()
    for _ in range(5):
        with pytest.raises(DeadlineExceededError):
            one.complete("q", timeout_s=0.2)
    wait_until(lambda: server.open_connections == 0)
    wait_until(lambda: threading.active_count() <= before)


def test_same_client_in_three_event_loops(server, provider, make, chat):
    server.reply(chat(provider, "ok"))
    one = make()

    async def ask():
        return one.complete("q").text

    assert [asyncio.run(ask()) for _ in range(3)] == ["ok"] * 3

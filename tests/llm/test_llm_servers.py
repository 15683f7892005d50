"""Both providers against a server on the loopback interface, one fault at a time."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from waiting import wait_until

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import DeadlineExceededError, LLMError, LLMOutputError
from agentic_retriever.llm import LLMClient, TieredClient, build_client

KEY = "sk-or-canary-4711"
BODY_CANARY = "provider-body-canary"


@pytest.fixture(params=["ollama", "openrouter"])
def provider(request) -> str:
    return request.param


@pytest.fixture
def make(server, provider):
    made: list[TieredClient] = []

    def _make(timeout_s: float = 10, **changes: object) -> LLMClient:
        config = RouterConfig(
            llm=f"{provider}:some/model:1b",
            ollama_base_url=server.url,
            openrouter_base_url=f"{server.url}/api/v1",
            openrouter_api_key=KEY,
            llm_timeout_s=timeout_s,
            llm_retries=0,
        )
        made.append(build_client(config.with_changes(**changes)))
        return made[-1].order()[0]

    yield _make
    for client in made:
        client.close()


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
def test_dead_server_gets_three_requests_then_none_until_the_cooldown_ends(server, provider, make, status):
    server.reply({"error": "x"}, status)
    patient = make(llm_retries=2, breaker_cooldown_s=600)
    for _ in range(20):
        with pytest.raises(LLMError):
            patient.complete("q")
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 402, 404])
def test_refusal_is_never_sent_again(server, provider, make, status):
    server.reply({"error": "x"}, status)
    with pytest.raises(LLMError):
        make(llm_retries=2).complete("q")
    assert len(server.requests) == 1


@pytest.mark.parametrize(("asked", "requests"), [("0", 3), ("0.05", 3), ("30", 1)])
def test_retry_after_is_honoured_within_the_deadline(server, provider, make, asked, requests):
    server.reply({"error": "x"}, 429)
    server.headers = {"retry-after": asked}
    started = time.monotonic()
    with pytest.raises(LLMError, match="429"):
        make(llm_retries=2).complete("q", timeout_s=5)
    assert time.monotonic() - started < 1.0
    assert len(server.requests) == requests


def test_failure_that_passes_is_retried(server, provider, make, chat):
    server.reply(chat(provider, "ok"))
    server.first = [(503, b"{}"), (500, b"{}")]
    reply = make(llm_retries=2).complete("q")
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


@pytest.mark.parametrize("status", [400, 401, 402, 404, 429, 500, 503])
def test_http_error_is_one_request_and_one_typed_error(server, provider, make, chat, status):
    server.reply({"error": {"message": BODY_CANARY}} if provider == "openrouter" else {"error": BODY_CANARY}, status)
    with pytest.raises(LLMError, match=rf"some/model:1b: .*HTTP {status}") as caught:
        make().complete("q")
    assert len(server.requests) == 1
    assert BODY_CANARY not in str(caught.value)
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is not None


FAULTS = {
    "html": b"<html><body>Bad gateway</body></html>",
    "empty body": b"",
    "cut json": b'{"message": {"ro',
    "not utf-8": b"\xff\xfe{}",
    "error with status 200": {"error": {"message": BODY_CANARY, "code": 502}},
    "json list": [],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_unusable_body(server, provider, make, fault):
    server.reply(FAULTS[fault])
    with pytest.raises(LLMOutputError) as caught:
        make().complete("q")
    assert BODY_CANARY not in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize("content", ["", "  \n", None])
def test_blank_or_null_content(server, provider, make, chat, content):
    server.reply(chat(provider, content))
    with pytest.raises(LLMOutputError):
        make().complete("q")


@pytest.mark.parametrize("choices", [[], None])
def test_no_choices(server, make, provider, chat, choices):
    if provider == "ollama":
        pytest.skip("Ollama's replies have no choices")
    server.reply(chat(provider, "x") | {"choices": choices})
    with pytest.raises(LLMOutputError):
        make().complete("q")


def test_closed_early(server, make):
    server.mode = "close"
    with pytest.raises(LLMError, match=r"cannot be reached|cannot be used"):
        make().complete("q")


def test_refused(make):
    dead = "http://127.0.0.1:9"
    with pytest.raises(LLMError, match="cannot be reached"):
        make(ollama_base_url=dead, openrouter_base_url=dead).complete("q")


@pytest.mark.parametrize("mode", ["hang", "drip"])
def test_hang_and_drip_end_at_the_deadline(server, provider, make, chat, mode):
    server.reply(chat(provider, "x" * 200))
    server.mode = mode
    patient = make()
    started = time.monotonic()
    with pytest.raises(DeadlineExceededError, match=r"some/model:1b"):
        patient.complete("q", timeout_s=0.3)
    assert time.monotonic() - started < 0.3 + 0.5


def test_same_client_in_three_event_loops(server, provider, make, chat):
    server.reply(chat(provider, "ok"))
    one = make()

    async def ask() -> str:
        return one.complete("q").text

    assert [asyncio.run(ask()) for _ in range(3)] == ["ok"] * 3

"""Both providers against a server on the loopback interface, one fault at a time."""

from __future__ import annotations

import asyncio
import time

import pytest

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import DeadlineExceededError, LLMError, LLMOutputError
from agentic_retriever.llm import LLMClient, build, build_client

KEY = "sk-or-canary-4711"
BODY_CANARY = "provider-body-canary"


@pytest.fixture(params=["ollama", "openrouter"])
def provider(request) -> str:
    return request.param


@pytest.fixture
def make(server, provider, monkeypatch):
    monkeypatch.setattr(build, "OPENROUTER_URL", f"{server.url}/api/v1")

    def _make(timeout_s: float = 10) -> LLMClient:
        return build_client(
            RouterConfig(
                llm=f"{provider}:some/model:1b",
                ollama_base_url=server.url,
                openrouter_api_key=KEY,
                llm_timeout_s=timeout_s,
            )
        )

    return _make


def chat(provider: str, content: str | None, *, finish: str = "stop") -> dict:
    if provider == "ollama":
        return {
            "model": "some/model:1b",
            "created_at": "2025-01-01T00:00:00Z",
            "message": {"role": "assistant", "content": content},
            "done": True,
            "done_reason": finish,
            "prompt_eval_count": 11,
            "eval_count": 3,
        }
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "some/model:1b",
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content}}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
    }


def test_good_reply(server, provider, make):
    server.reply(chat(provider, "ไร่ [1]"))
    reply = make().complete("¿Cuántos?")
    assert (reply.text, reply.model) == ("ไร่ [1]", "some/model:1b")
    assert (reply.prompt_tokens, reply.completion_tokens, reply.truncated) == (11, 3, False)
    ((path, body),) = server.requests
    assert path == ("/api/chat" if provider == "ollama" else "/api/v1/chat/completions")
    assert body["messages"][-1]["content"] == "¿Cuántos?"
    if provider == "ollama":
        assert body["options"]["num_ctx"] == 8_192


def test_reply_cut_by_length_is_marked(server, provider, make):
    server.reply(chat(provider, "half an ans", finish="length"))
    assert make().complete("q").truncated


def test_missing_usage_is_estimated(server, provider, make):
    body = chat(provider, "four")
    for field in ("usage", "prompt_eval_count", "eval_count"):
        body.pop(field, None)
    server.reply(body)
    reply = make().complete("q" * 40)
    assert (reply.prompt_tokens, reply.completion_tokens) == (10, 1)


@pytest.mark.parametrize("status", [400, 401, 402, 404, 429, 500, 503])
def test_http_error_is_one_request_and_one_typed_error(server, provider, make, status):
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
def test_blank_or_null_content(server, provider, make, content):
    server.reply(chat(provider, content))
    with pytest.raises(LLMOutputError):
        make().complete("q")


@pytest.mark.parametrize("choices", [[], None])
def test_no_choices(server, make, provider, choices):
    if provider == "ollama":
        pytest.skip("Ollama's replies have no choices")
    server.reply(chat(provider, "x") | {"choices": choices})
    with pytest.raises(LLMOutputError):
        make().complete("q")


def test_closed_early(server, make):
    server.mode = "close"
    with pytest.raises(LLMError, match=r"cannot be reached|cannot be used"):
        make().complete("q")


def test_refused(provider, monkeypatch):
    monkeypatch.setattr(build, "OPENROUTER_URL", "http://127.0.0.1:9/api/v1")
    config = RouterConfig(llm=f"{provider}:m", ollama_base_url="http://127.0.0.1:9", openrouter_api_key=KEY)
    with pytest.raises(LLMError, match="cannot be reached"):
        build_client(config).complete("q")


@pytest.mark.parametrize("mode", ["hang", "drip"])
def test_hang_and_drip_end_at_the_deadline(server, provider, make, mode):
    server.reply(chat(provider, "x" * 200))
    server.mode = mode
    patient = make()
    started = time.monotonic()
    with pytest.raises(DeadlineExceededError, match=r"some/model:1b"):
        patient.complete("q", timeout_s=0.3)
    assert time.monotonic() - started < 0.3 + 0.5


def test_same_client_in_three_event_loops(server, provider, make):
    server.reply(chat(provider, "ok"))
    one = make()

    async def ask() -> str:
        return one.complete("q").text

    assert [asyncio.run(ask()) for _ in range(3)] == ["ok"] * 3

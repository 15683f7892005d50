"""Each provider against a server on the loopback interface that answers well, or well enough."""

import asyncio
import logging
import threading
import traceback

import pytest
from model_servers import KEY, chat, stream_body
from waiting import wait_until, within

from agentic_retriever.errors import AllModelsFailedError, ConfigError, DeadlineExceededError, LLMError, LLMOutputError
from agentic_retriever.llm import TieredClient
from agentic_retriever.llm.calls import failure_kind
from agentic_retriever.schema import FailureKind, Tier


def test_good_reply_with_its_usage_told_or_estimated_its_price_and_whether_the_server_cut_the_prompt(
    server, provider, tiers_on
):
    server.reply(chat(provider, "ไร่ [1]"))
    reply = tiers_on().complete("¿Cuántos?")
    assert (reply.text, reply.model) == ("ไร่ [1]", "some/model:1b")
    assert (reply.prompt_tokens, reply.completion_tokens, reply.truncated) == (11, 3, False)
    ((path, body),) = server.requests
    assert path == ("/api/chat" if provider == "ollama" else "/api/v1/chat/completions")
    assert body["messages"][-1]["content"] == "¿Cuántos?"
    assert provider == "openrouter" or body["options"]["num_ctx"] == 8_192
    server.reply(chat(provider, "half an ans", finish="length"))
    assert tiers_on().complete("q").truncated
    body = chat(provider, "four")
    for field in ("usage", "prompt_eval_count", "eval_count"):
        body.pop(field, None)
    server.reply(body)
    reply = tiers_on().complete("q" * 40)
    assert (reply.prompt_tokens, reply.completion_tokens) == (10, 1)
    server.reply(chat(provider, "ok", tokens=(8_192, 3)))
    assert tiers_on().complete("q").prompt_cut is (provider == "ollama")
    server.reply(chat(provider, "ok", tokens=(8_000, 3)))
    assert not tiers_on().complete("q").prompt_cut
    server.reply(chat(provider, "ok", tokens=(1_000_000, 500_000)))
    setting = {"openrouter": "openrouter:openai/gpt-4o-mini", "ollama": "ollama:llama3:8b"}[provider]
    reply = tiers_on(llm=setting).complete("q")
    assert reply.usd == reply.attempts[0].usd == pytest.approx(0.45 if provider == "openrouter" else 0.0)
    unknown = tiers_on().complete("q")
    assert (unknown.usd, unknown.attempts[0].usd) == (0.0, 0.0 if provider == "ollama" else None)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_dead_server_gets_three_requests_then_none_until_the_cooldown_ends(server, tiers_on, status):
    server.reply({"error": "x"}, status)
    patient = tiers_on(retries=2)
    for _ in range(20):
        with pytest.raises(LLMError):
            patient.complete("q")
    assert len(server.requests) == 3


@pytest.mark.parametrize(("asked", "requests"), [("0", 3), ("0.05", 3), ("30", 1)])
def test_retry_after_is_honoured_within_the_deadline(server, tiers_on, asked, requests):
    server.reply({"error": "x"}, 429)
    server.headers = {"retry-after": asked}
    with within(1.0), pytest.raises(AllModelsFailedError) as caught:
        tiers_on(retries=2).complete("q", timeout_s=5)
    assert "429" in str(caught.value.__cause__)
    assert len(server.requests) == requests


def test_one_client_retries_what_passes_serves_three_loops_and_frees_what_is_abandoned(server, provider, tiers_on):
    server.reply(chat(provider, "ok"))
    server.first = [(503, b"{}"), (500, b"{}")]
    one = tiers_on(retries=2)
    reply = one.complete("q")
    assert (reply.text, reply.attempts[0].requests, len(server.requests)) == ("ok", 3, 3)

    async def ask():
        return one.complete("q").text

    assert [asyncio.run(ask()) for _ in range(3)] == ["ok"] * 3
    server.reply(chat(provider, "x" * 400))
    server.mode = "drip"
    one = tiers_on()
    before = threading.active_count()
    for _ in range(5):
        with pytest.raises(AllModelsFailedError) as caught:
            one.complete("q", timeout_s=0.2)
        assert isinstance(caught.value.__cause__, DeadlineExceededError)
    wait_until(lambda: server.open_connections == 0)
    wait_until(lambda: threading.active_count() <= before)


def test_any_server_with_the_api_of_openai_by_its_url(server, build):
    server.reply(chat("openrouter", "ok", tokens=(600_000, 100_000)))
    there = {"llm": "openai:gpt-4o-mini", "openai_base_url": f"{server.url}/v1"}
    one = build(**there, openai_api_key="sk-canary")
    reply = one.complete("q")
    assert (reply.text, reply.tier, reply.usd) == ("ok", Tier.PRIMARY, pytest.approx(0.15))
    ((path, body),) = server.requests
    assert (path, body["model"], body["max_tokens"]) == ("/v1/chat/completions", "gpt-4o-mini", 1_024)
    server.listing = b'{"data": [{"id": "gpt-4o-mini"}]}'
    assert one.health(1.0)[0].ok
    assert server.authorization == "Bearer sk-canary"
    server.reply({"error": {"message": "Incorrect API key provided: sk-canary"}}, 401)
    with pytest.raises(AllModelsFailedError) as caught:
        one.complete("q")
    assert "sk-canary" not in "".join(traceback.format_exception(caught.value)) + repr(one)
    server.reply(stream_body("openrouter", ["a", "b"]))
    assert list(build(**there).stream("q")) == ["a", "b"]  # a server of one's own may want no key
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        build(llm="openai:gpt-4o-mini")
    newer = build(llm="openai:gpt-6-luna", openai_api_key="sk-canary").order()[0]._llm()
    assert (newer.temperature, newer.additional_kwargs["max_completion_tokens"], newer.max_tokens) == (1.0, 1_024, None)


BODY = "provider-body-canary"
DEAD = "http://127.0.0.1:9"
PATIENT_S = 3.0  # time enough for all retries
HASTY_S = 1.2  # for what takes all the time that there is

UNREACHABLE, OUTPUT, SERVER = FailureKind.UNREACHABLE, FailureKind.OUTPUT, FailureKind.SERVER

# What the server does, the kinds of failure that may be told, and how many requests it may cost.
FAULTS = {
    "refused": ("refused", {UNREACHABLE}, 3), "closed early": ("close", {UNREACHABLE}, 3),
    "hang": ("hang", {FailureKind.TIMEOUT}, 1), "drip": ("drip", {FailureKind.TIMEOUT}, 1),
    "body cut": ("cut", {UNREACHABLE, OUTPUT}, 3),
    "400": (400, {FailureKind.BAD_REQUEST}, 1), "401": (401, {FailureKind.AUTHENTICATION}, 1),
    "402": (402, {FailureKind.PAYMENT}, 1), "404": (404, {FailureKind.NOT_FOUND}, 1),
    "429": (429, {FailureKind.RATE_LIMITED}, 3), "500": (500, {SERVER}, 3), "503": (503, {SERVER}, 3),
    "html": (b"<html>Bad gateway</html>", {OUTPUT}, 1), "empty body": (b"", {OUTPUT}, 1),
    "cut json": (b'{"message": {"ro', {OUTPUT}, 1), "not utf-8": (b"\xff\xfe{}", {OUTPUT}, 1),
    "json list": (b"[]", {OUTPUT}, 1), "error with 200": ({"error": {"message": BODY, "code": 502}}, {OUTPUT}, 1),
    "null content": ("content", {OUTPUT}, 1), "empty content": ("empty", {OUTPUT}, 1),
    "blank content": ("blank", {OUTPUT}, 1), "choices empty": ([], {OUTPUT}, 1), "choices null": (None, {OUTPUT}, 1),
}  # fmt: skip
CONTENTS = {"content": None, "empty": "", "blank": " \n"}


def break_server(server, provider, name):
    """Make a server misbehave; returns its address, which may be one where nobody listens."""
    fault = FAULTS[name][0]
    if name.startswith("choices") and provider == "ollama":
        pytest.skip("Ollama's replies have no choices")
    server.reply(chat(provider, "x" * 300))
    if isinstance(fault, int):
        server.reply({"error": {"message": BODY}} if provider == "openrouter" else {"error": BODY}, fault)
    elif fault == "refused":
        return DEAD
    elif isinstance(fault, str) and fault in CONTENTS:
        server.reply(chat(provider, CONTENTS[fault]))
    elif isinstance(fault, str):
        server.mode = fault
    elif fault is None or fault == []:
        server.reply(chat(provider, "x") | {"choices": fault})
    else:
        server.reply(fault)
    return server.url


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_typed_error_that_repeats_nothing(server, provider, tiers_on, name):
    url = break_server(server, provider, name)
    kinds = FAULTS[name][1]
    one = tiers_on(ollama_base_url=url, openrouter_base_url=f"{url}/api/v1")
    with within(5.0), pytest.raises(AllModelsFailedError, match="some/model:1b") as caught:
        one.complete("q", timeout_s=0.3 if name in {"hang", "drip"} else 10)
    error = caught.value.__cause__
    assert isinstance(error, (LLMError, DeadlineExceededError))
    assert "some/model:1b" in str(error)
    assert failure_kind(error) in kinds
    assert isinstance(error, LLMOutputError) == (failure_kind(error) is OUTPUT)
    assert isinstance(error, DeadlineExceededError) == (name in {"hang", "drip"})
    assert len(server.requests) == (0 if name == "refused" else 1)
    if name.isdigit():
        assert f"HTTP {name}" in str(error)
        assert error.__cause__ is not None
    for secret in (BODY, KEY):
        assert secret not in str(error)


@pytest.mark.parametrize("name", FAULTS)
def test_next_tier_answers_within_the_deadline(make_server, provider, other, two, name):
    _, kinds, most_requests = FAULTS[name]
    bad, good = make_server(), make_server()
    good.reply(chat(other, "the answer"))
    client, needs = two(break_server(bad, provider, name), good.url)
    # An import or a first connection must not count.
    TieredClient(client.order(needs)[1:], timeout_s=5).complete("warm")
    deadline_s = HASTY_S if name in {"hang", "drip"} else PATIENT_S
    with within(deadline_s + 0.5):
        reply = client.complete("q", timeout_s=deadline_s, needs=needs)
    assert reply.text == "the answer"
    failed, answered = reply.attempts
    assert failed.failure in kinds
    assert 1 <= failed.requests <= most_requests
    assert len(bad.requests) <= most_requests
    assert failed.seconds > 0
    assert answered.failure is None


@pytest.mark.parametrize("provider", ["openrouter"])
def test_error_as_the_reason_of_the_end_is_a_failure(make_server, two):
    bad, good = make_server(), make_server()
    bad.reply(chat("openrouter", "half", finish="error"))
    good.reply(chat("ollama", "whole"))
    client, needs = two(bad.url, good.url)
    assert client.complete("q", needs=needs).text == "whole"


@pytest.mark.parametrize("name", ["refused", "401", "429", "500", "error with 200", "hang", "html"])
def test_key_shows_nowhere(server, build, name, caplog, capfd):
    """The server even sends the key back, as OpenAI does for a key that it refuses."""
    caplog.set_level(logging.DEBUG)
    url = break_server(server, "openrouter", name)
    server.body = server.body.replace(BODY.encode(), f"Incorrect API key provided: {KEY}".encode())
    client = build(llm="openrouter:cloud/model", openrouter_base_url=f"{url}/api/v1")
    with pytest.raises(AllModelsFailedError) as caught:
        client.complete("the PROMPT", timeout_s=0.5)
    with pytest.raises(AllModelsFailedError) as streamed:
        list(client.stream("the PROMPT", timeout_s=0.5))
    seen = ["".join(traceback.format_exception(one.value)) for one in (caught, streamed)]
    seen += [repr(client), repr(client.order()), repr(vars(client.order()[0]))]
    seen += [str([a.to_dict() for a in caught.value.attempts]), str(client.health(0.3))]
    for text in (*seen, caplog.text, *capfd.readouterr()):
        assert KEY not in text
        assert "sk-or" not in text
    assert "PROMPT" not in caplog.text


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"llm": "ollama:mistral"}, "ollama pull mistral"), ({"llm": "openrouter:c/d"}, "check the model's name"),
     ({"llm": "ollama", "ollama_base_url": DEAD}, "ollama serve"),
     ({"llm": "openrouter:a/b", "openrouter_base_url": DEAD}, "check the network"),
     ({"llm": "ollama", "ollama_base_url": "ftp://x"}, "ollama_base_url"),
     ({"llm": "ollama", "listing": b"<html>"}, "ollama_base_url"),
     ({"llm": "ollama", "llm_cloud": "openrouter:a/b", "llm_small": "ollama:qwen2.5"}, "")],
)  # fmt: skip
def test_health_says_what_to_do(server, build, settings, told):
    listing = b'{"models": [{"name": "llama3:8b"}, {"name": "qwen2.5:latest"}], "data": [{"id": "a/b"}]}'
    server.listing = settings.pop("listing", listing)
    urls = {"ollama_base_url": server.url, "openrouter_base_url": f"{server.url}/api/v1"}
    found = build(**{**urls, **settings}).health(1.0)
    if told:
        assert [one.ok for one in found] == [False]
        assert told in found[0].detail
    else:
        assert [(one.tier.value, one.ok, one.detail) for one in found] == [
            (tier, True, "it can be asked") for tier in ("primary", "cloud", "small")
        ]


def test_health_ends_in_time_when_servers_hang(server, build):
    server.mode = "hang"
    client = build(llm="ollama", llm_small="ollama", ollama_base_url=server.url)
    with within(0.4 + 0.5):
        assert [one.ok for one in client.health(0.4)] == [False, False]

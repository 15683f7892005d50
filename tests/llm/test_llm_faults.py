"""Every fault of a provider on the first tier ends with the next tier's answer, in time, and is listed."""

from __future__ import annotations

import logging
import time
import traceback

import pytest

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import AllModelsFailedError
from agentic_retriever.llm import FailureKind, TierNeeds, build_client

KEY = "sk-or-canary-4711"
BODY = "provider-body-canary"
PATIENT_S = 3.0  # time enough for all retries
HASTY_S = 1.2  # for what takes all the time that there is

UNREACHABLE, OUTPUT, SERVER = FailureKind.UNREACHABLE, FailureKind.OUTPUT, FailureKind.SERVER

# What the server does, the kinds of failure that may be told, and how many requests it may cost.
FAULTS = {
    "refused": ("refused", {UNREACHABLE}, 3),
    "closed early": ("close", {UNREACHABLE}, 3),
    "hang": ("hang", {FailureKind.TIMEOUT}, 1),
    "drip": ("drip", {FailureKind.TIMEOUT}, 1),
    "body cut": ("cut", {UNREACHABLE, OUTPUT}, 3),
    "400": (400, {FailureKind.BAD_REQUEST}, 1),
    "401": (401, {FailureKind.AUTHENTICATION}, 1),
    "402": (402, {FailureKind.PAYMENT}, 1),
    "404": (404, {FailureKind.NOT_FOUND}, 1),
    "429": (429, {FailureKind.RATE_LIMITED}, 3),
    "500": (500, {SERVER}, 3),
    "503": (503, {SERVER}, 3),
    "html": (b"<html>Bad gateway</html>", {OUTPUT}, 1),
    "empty body": (b"", {OUTPUT}, 1),
    "cut json": (b'{"message": {"ro', {OUTPUT}, 1),
    "error with 200": ({"error": {"message": BODY, "code": 502}}, {OUTPUT}, 1),
    "null content": ("content", {OUTPUT}, 1),
    "blank content": ("blank", {OUTPUT}, 1),
    "choices empty": ([], {OUTPUT}, 1),
    "choices null": (None, {OUTPUT}, 1),
}


@pytest.fixture(params=["ollama", "openrouter"])
def provider(request):
    return request.param


def break_server(server, provider, fault, chat):
    """Make a server misbehave; returns its address, which may be one where nobody listens."""
    server.reply(chat(provider, "x" * 300))
    if isinstance(fault, int):
        server.reply({"error": {"message": BODY}} if provider == "openrouter" else {"error": BODY}, fault)
    elif fault == "refused":
        return "http://127.0.0.1:9"
    elif fault == "content":
        server.reply(chat(provider, None))
    elif fault == "blank":
        server.reply(chat(provider, " \n"))
    elif isinstance(fault, str):
        server.mode = fault
    elif fault is None or fault == []:
        server.reply(chat(provider, "x") | {"choices": fault})
    else:
        server.reply(fault)
    return server.url


def tiers_for(provider, bad_url, good_url, **changes):
    """The provider that fails in front, the other one behind."""
    urls = {provider: bad_url, ("openrouter" if provider == "ollama" else "ollama"): good_url}
    config = RouterConfig(
        llm="ollama:local/model",
        llm_cloud="openrouter:cloud/model",
        ollama_base_url=urls["ollama"],
        openrouter_base_url=urls["openrouter"] + "/api/v1",
        openrouter_api_key=KEY,
        **changes,
    )
    return build_client(config), TierNeeds(force_cloud=provider == "openrouter")


@pytest.mark.parametrize("name", FAULTS)
def test_next_tier_answers_within_the_deadline(make_server, provider, chat, name):
    fault, kinds, most_requests = FAULTS[name]
    if name.startswith("choices") and provider == "ollama":
        pytest.skip("Ollama's replies have no choices")
    bad, good = make_server(), make_server()
    other = "openrouter" if provider == "ollama" else "ollama"
    good.reply(chat(other, "the answer"))
    client, needs = tiers_for(provider, break_server(bad, provider, fault, chat), good.url)
    # An import or a first connection must not count.
    good_only = client.order(needs)[1]
    good_only.complete("warm")
    deadline_s = HASTY_S if name in {"hang", "drip"} else PATIENT_S
    started = time.monotonic()
    reply = client.complete("q", timeout_s=deadline_s, needs=needs)
    assert time.monotonic() - started < deadline_s + 0.5
    assert reply.text == "the answer"
    failed, answered = reply.attempts
    assert failed.failure in kinds
    assert 1 <= failed.requests <= most_requests
    assert len(bad.requests) <= most_requests
    assert failed.seconds > 0
    assert answered.failure is None
    client.close()


def test_answer_cut_by_length_is_an_answer_that_says_so(make_server, provider, chat):
    server = make_server()
    server.reply(chat(provider, "half an ans", finish="length"))
    client, needs = tiers_for(provider, server.url, "http://127.0.0.1:9")
    assert client.complete("q", needs=needs).truncated
    client.close()


def test_error_as_the_reason_of_the_end_is_a_failure(make_server, chat):
    bad, good = make_server(), make_server()
    bad.reply(chat("openrouter", "half", finish="error"))
    good.reply(chat("ollama", "whole"))
    client, needs = tiers_for("openrouter", bad.url, good.url)
    assert client.complete("q", needs=needs).text == "whole"
    client.close()


@pytest.mark.parametrize("name", ["refused", "401", "429", "500", "error with 200", "hang", "html"])
def test_key_shows_nowhere(make_server, chat, name, caplog, capfd):
    """The server even sends the key back, as OpenAI does for a key that it refuses."""
    caplog.set_level(logging.DEBUG)
    server = make_server()
    url = break_server(server, "openrouter", FAULTS[name][0], chat)
    server.body = server.body.replace(BODY.encode(), f"Incorrect API key provided: {KEY}".encode())
    config = RouterConfig(
        llm="openrouter:cloud/model",
        openrouter_base_url=url + "/api/v1",
        openrouter_api_key=KEY,
        llm_retries=1,
    )
    client = build_client(config)
    with pytest.raises(AllModelsFailedError) as caught:
        client.complete("the PROMPT", timeout_s=0.5)
    with pytest.raises(AllModelsFailedError) as streamed:
        list(client.stream("the PROMPT", timeout_s=0.5))
    told = "".join("".join(traceback.format_exception(c.value)) for c in (caught, streamed))
    seen = [
        told,
        repr(client),
        str(client.to_dict()),
        repr(client.order()),
        repr(vars(client.order()[0])),
        repr(config),
    ]
    seen += [
        str([a.to_dict() for a in caught.value.attempts]),
        str(client.health(0.3)),
        caplog.text,
        *capfd.readouterr(),
    ]
    for text in seen:
        assert KEY not in text
        assert "sk-or" not in text
    ours = [record for record in caplog.records if record.name.startswith("agentic_retriever")]
    assert not any("PROMPT" in record.getMessage() for record in ours)
    assert "PROMPT" not in caplog.text
    client.close()


def test_health_says_what_to_do(make_server):
    up, down = make_server(), "http://127.0.0.1:9"
    up.listing = b'{"models": [{"name": "llama3:8b"}, {"name": "qwen2.5:latest"}], "data": [{"id": "a/b"}]}'
    base = RouterConfig(openrouter_api_key=KEY, ollama_base_url=up.url, openrouter_base_url=up.url + "/api/v1")

    def look(**changes):
        client = build_client(base.with_changes(**changes))
        found = client.health(1.0)
        client.close()
        return [(h.tier.value, h.ok, h.detail) for h in found]

    good = "it can be asked"
    assert look(llm="ollama", llm_cloud="openrouter:a/b", llm_small="ollama:qwen2.5") == [
        ("primary", True, good),
        ("cloud", True, good),
        ("small", True, good),
    ]
    ((_, ok, detail),) = look(llm="ollama:mistral")
    assert not ok
    assert "ollama pull mistral" in detail
    ((_, ok, detail),) = look(llm="openrouter:c/d")
    assert (ok, "check the model's name" in detail) == (False, True)
    ((_, ok, detail),) = look(llm="ollama", ollama_base_url=down)
    assert (ok, "ollama serve" in detail) == (False, True)
    ((_, ok, detail),) = look(llm="openrouter:a/b", openrouter_base_url=down)
    assert (ok, "check the network" in detail) == (False, True)
    ((_, ok, detail),) = look(llm="ollama", ollama_base_url="ftp://x")
    assert not ok
    up.listing = b"<html>"
    ((_, ok, detail),) = look(llm="ollama")
    assert (ok, "ollama_base_url" in detail) == (False, True)


def test_health_ends_in_time_when_servers_hang(make_server):
    server = make_server()
    server.mode = "hang"
    client = build_client(RouterConfig(llm="ollama", llm_small="ollama", ollama_base_url=server.url))
    started = time.monotonic()
    assert [h.ok for h in client.health(0.4)] == [False, False]
    assert time.monotonic() - started < 0.4 + 0.5
    client.close()

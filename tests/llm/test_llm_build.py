from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import ConfigError
from agentic_retriever.llm import FailureKind, TierNeeds, build_client
from agentic_retriever.llm.tiers import context_window
from agentic_retriever.schema import Budget, Tier
from agentic_retriever.testing.fakes import FakeLLM

CANARY = "sk-or-canary-4711"


def built(**settings):
    """The LlamaIndex model behind the first tier."""
    return build_client(RouterConfig(**settings)).order()[0]._llm()


def test_none_gives_no_model():
    assert build_client(RouterConfig()) is None


@pytest.mark.parametrize("value", ["", "gpt-4", "ollama:", "ollama:  ", "openrouter:", "none:x", "openai:gpt-4o", ":"])
def test_unknown_model_setting_lists_what_is_allowed(value):
    with pytest.raises(ConfigError, match=r"none, ollama:MODEL .* openrouter:MODEL"):
        build_client(RouterConfig(llm=value, openrouter_api_key=CANARY))


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("network touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_ollama_is_built_and_described_without_network(no_network):
    llm = built(llm="ollama:llama3:8b", ollama_base_url="http://127.0.0.1:1", llm_timeout_s=7)
    assert llm.model == "llama3:8b"
    assert llm.request_timeout == 7
    assert llm.metadata.context_window == context_window(8_000) == 8_192
    assert llm.base_url == "http://127.0.0.1:1"


def test_openrouter_is_built_without_network_and_without_retries(no_network):
    client = build_client(RouterConfig(llm="openrouter:openai/gpt-4o-mini", openrouter_api_key=CANARY, llm_timeout_s=9))
    llm = client.order()[0]._llm()
    assert (llm.model, llm.max_retries, llm.timeout) == ("openai/gpt-4o-mini", 0, 9)
    assert (client.tier, client.model, client.timeout_s) == (Tier.CLOUD, "openai/gpt-4o-mini", 9)
    assert CANARY not in repr(client)
    assert build_client(RouterConfig(llm="ollama:x")).tier is Tier.PRIMARY


def tiers(client):
    return {one.tier.value: one.model for one in client.order()}


def test_three_tiers_by_their_providers_names_are_built_without_network(no_network):
    config = RouterConfig(llm="ollama", llm_cloud="openrouter", llm_small="ollama", openrouter_api_key=CANARY)
    client = build_client(config)
    assert tiers(client) == {"primary": "llama3:8b", "cloud": "openai/gpt-4o-mini", "small": "qwen2.5:3b"}
    assert client.context_tokens == 8_192
    assert client.context_tokens_for(TierNeeds(force_cloud=True)) == 128_000
    assert [c.price.free for c in client.order()] == [True, False, True]
    assert CANARY not in f"{client!r} {[vars(c) for c in client.order()]}"


def test_openrouter_as_llm_is_primary_beside_another_cloud_model():
    both = RouterConfig(llm="openrouter:a/b", llm_cloud="openrouter:c/d", openrouter_api_key=CANARY)
    assert tiers(build_client(both)) == {"primary": "a/b", "cloud": "c/d"}


def test_cloud_tier_without_a_key_is_left_out_with_one_warning(caplog):
    client = build_client(RouterConfig(llm="ollama", llm_cloud="openrouter"))
    assert tiers(client) == {"primary": "llama3:8b"}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "OPENROUTER_API_KEY" in caplog.text
    assert build_client(RouterConfig(llm_cloud="openrouter")) is None


def test_openrouter_alone_without_a_key_is_an_error():
    with pytest.raises(ConfigError, match="OPENROUTER_API_KEY"):
        build_client(RouterConfig(llm="openrouter"))


@pytest.mark.parametrize("setting", ["llm_cloud", "llm_small"])
def test_wrong_value_names_its_setting(setting):
    with pytest.raises(ConfigError, match=setting):
        build_client(RouterConfig(**{setting: "gpt-4"}))


def test_any_llamaindex_model_stands_in_for_a_tier():
    client = build_client(
        RouterConfig(llm="ollama"), models={Tier.PRIMARY: FakeLLM(["hi"]), Tier.SMALL: FakeLLM(["x"])}
    )
    assert tiers(client) == {"primary": "fake-llm", "small": "fake-llm"}
    reply = client.complete("q")
    assert (reply.text, reply.priced, reply.attempts[0].usd) == ("hi", False, None)


def test_own_prices_are_used(tmp_path):
    path = tmp_path / "p.json"
    path.write_text('{"models": {"a/b": {"in": 1, "out": 2, "context": 50000}}}')
    config = RouterConfig(llm="openrouter:a/b", prices_file=str(path), openrouter_api_key=CANARY)
    (only,) = build_client(config).order()
    assert (only.price.in_usd, only.context_tokens) == (1.0, 50_000)
    assert only.refusal(10**5, TierNeeds(budget=Budget(max_usd=0.1 + 2 * 1024 / 1e6))) is None
    assert only.refusal(10**5, TierNeeds(budget=Budget(max_usd=0.1 + 2 * 1023 / 1e6))) is FailureKind.BUDGET


def test_context_window_is_bounded_and_grows_with_the_context():
    sizes = [context_window(chars) for chars in (500, 8_000, 20_000, 10**9)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 4_096
    assert sizes[-1] == 32_768
    assert all(size % 1_024 == 0 for size in sizes)


def printed(code):
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


def test_importing_the_package_loads_no_provider():
    roots = ("openai", "ollama", "httpx")
    assert printed(f"import sys, agentic_retriever.llm; print([r for r in {roots} if r in sys.modules])") == "[]"


FIRST_CALL = """
import sys
from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.llm import build_client

config = RouterConfig(llm="{llm}", llm_small="none", llm_cloud="none", openrouter_api_key="k",
                      ollama_base_url="http://127.0.0.1:9", openrouter_base_url="http://127.0.0.1:9/api/v1")
client = build_client(config)
before = set(sys.modules)
try:
    client.complete("How are you?")
except AgenticRetrieverError:
    print(sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in {roots}))
"""


@pytest.mark.parametrize(
    ("llm", "roots"),
    [("openrouter:openai/gpt-4o-mini", ("openai", "llama_index")), ("ollama:llama3:8b", ("ollama", "llama_index"))],
)
def test_the_first_call_loads_nothing_within_its_own_deadline(llm, roots):
    pytest.importorskip(f"llama_index.llms.{llm.partition(':')[0]}")
    assert printed(FIRST_CALL.format(llm=llm, roots=roots)) == "[]"

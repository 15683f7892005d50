from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import ConfigError
from agentic_retriever.llm import build_client, build_llm
from agentic_retriever.llm.build import context_window
from agentic_retriever.schema import Tier

CANARY = "sk-or-canary-4711"


def test_none_gives_no_model():
    assert build_llm(RouterConfig()) is None
    assert build_client(RouterConfig()) is None


@pytest.mark.parametrize(
    "value", ["", "gpt-4", "ollama", "ollama:", "ollama:  ", "openrouter:", "none:x", "openai:gpt-4o", ":"]
)
def test_unknown_model_setting_lists_what_is_allowed(value):
    with pytest.raises(ConfigError, match=r"none, ollama:MODEL .* openrouter:MODEL"):
        build_llm(RouterConfig(llm=value, openrouter_api_key=CANARY))


def test_openrouter_without_key_says_what_to_set():
    with pytest.raises(ConfigError, match="OPENROUTER_API_KEY"):
        build_llm(RouterConfig(llm="openrouter:openai/gpt-4o-mini"))


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("network touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_ollama_is_built_and_described_without_network(no_network):
    llm = build_llm(RouterConfig(llm="ollama:llama3:8b", ollama_base_url="http://127.0.0.1:1", llm_timeout_s=7))
    assert llm.model == "llama3:8b"
    assert llm.request_timeout == 7
    assert llm.metadata.context_window == context_window(8_000) == 8_192
    assert llm.base_url == "http://127.0.0.1:1"


def test_openrouter_is_built_without_network_and_without_retries(no_network):
    config = RouterConfig(llm="openrouter:openai/gpt-4o-mini", openrouter_api_key=CANARY, llm_timeout_s=9)
    llm = build_llm(config)
    assert (llm.model, llm.max_retries, llm.timeout) == ("openai/gpt-4o-mini", 0, 9)
    client = build_client(config)
    assert (client.tier, client.model, client.timeout_s) == (Tier.CLOUD, "openai/gpt-4o-mini", 9)
    assert CANARY not in repr(client)
    assert build_client(RouterConfig(llm="ollama:x")).tier is Tier.PRIMARY


def test_context_window_is_bounded_and_grows_with_the_context():
    sizes = [context_window(chars) for chars in (500, 8_000, 20_000, 10**9)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 4_096
    assert sizes[-1] == 32_768
    assert all(size % 1_024 == 0 for size in sizes)


def test_importing_the_package_loads_no_provider():
    code = (
        "import sys, agentic_retriever.llm\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('openai', 'ollama', 'httpx')]\n"
        "print(bad)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=True
    )
    assert done.stdout.strip() == "[]"

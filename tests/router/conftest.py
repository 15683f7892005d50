from __future__ import annotations

import pytest
from model_servers import KEY
from small_indexes import GOOD


@pytest.fixture
def ollama(make_server):
    """A stand-in for Ollama, whose ``small`` model is well."""
    server = make_server()
    server.healthy["small"] = GOOD
    return server


@pytest.fixture
def cloud(make_server):
    """A stand-in for OpenRouter that is well."""
    server = make_server()
    server.healthy["openai/gpt-4o-mini"] = GOOD
    return server


@pytest.fixture(scope="session")
def loaded_clients():
    """Import what the clients of the providers import with their first call: half a second on a busy machine."""
    pytest.importorskip("openai.resources.chat.completions")
    pytest.importorskip("llama_index.llms.openrouter")
    pytest.importorskip("llama_index.llms.ollama")


@pytest.fixture
def make_tiers(make_router, ollama, cloud, loaded_clients):
    """Makes routers with all three tiers at the stand-ins; only answers are written by models."""

    def make(**changes):
        tiers = {
            "llm": "ollama:llama3:8b",
            "llm_cloud": "openrouter:openai/gpt-4o-mini",
            "llm_small": "ollama:small",
            "ollama_base_url": ollama.url,
            "openrouter_base_url": f"{cloud.url}/api/v1",
            "openrouter_api_key": KEY,
            "deadline_s": 3.0,
            "classifier": "profile",
            "selector": "heuristic",
        }
        return make_router(**(tiers | changes))

    return make

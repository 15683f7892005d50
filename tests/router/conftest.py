from __future__ import annotations

import pytest
from fault_material import ANIMALS, GOOD, PLANETS, documents
from model_servers import KEY

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.testing import FakeEmbedding


@pytest.fixture(scope="session")
def filled_store(tmp_path_factory):
    """A data directory with two small indexes, made once."""
    folder = tmp_path_factory.mktemp("store") / "data"
    with AgenticRouter(RouterConfig(data_dir=folder, query_log="none"), embedding=FakeEmbedding(dimension=64)) as made:
        made.add_index("animals", documents(ANIMALS), description="Animals and how they live")
        made.add_index("planets", documents(PLANETS), description="Planets and their moons")
    return folder


@pytest.fixture
def make_router(filled_store):
    """Makes routers over the filled store, which are closed after the test; to add indexes, pass another data_dir."""
    made = []

    def make(*, model=None, **changes):
        changes = {"data_dir": filled_store, "query_log": "none"} | changes
        router = AgenticRouter(RouterConfig(**changes), embedding=FakeEmbedding(dimension=64), llm=model)
        made.append(router)
        return router

    yield make
    for router in made:
        router.close()


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

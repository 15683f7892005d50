import pytest
from fault_material import PLAIN
from model_servers import KEY
from small_indexes import GOOD

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.testing import FakeEmbedding, FakeLLM


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
    pytest.importorskip("openai.resources.chat.completions", reason="the client 'openai' is not installed")
    pytest.importorskip("llama_index.llms.openrouter")
    pytest.importorskip("llama_index.llms.ollama")


@pytest.fixture
def make(tmp_path, closed_at_end):
    """Makes routers over a data directory of the test's own, with these indexes; they are closed after the test."""

    def _make(indexes=None, *, config=None, embedding=None, **parts):
        settings = RouterConfig(data_dir=tmp_path / "data", **(config or {}))
        embedding = embedding or FakeEmbedding(dimension=64)
        router = closed_at_end(AgenticRouter(settings, embedding=embedding, **parts))
        for name, source in (indexes or {}).items():
            if name not in router.index_names():
                router.add_index(name, source, description=name)
        return router

    return _make


@pytest.fixture
def make_tiers(make_router, ollama, cloud, loaded_clients):
    """Makes routers with all three tiers at the stand-ins; only answers are written by models."""

    def make(**changes):
        tiers = {
            "llm": "ollama:llama3:8b", "llm_cloud": "openrouter:openai/gpt-4o-mini", "llm_small": "ollama:small",
            "ollama_base_url": ollama.url, "openrouter_base_url": f"{cloud.url}/api/v1", "openrouter_api_key": KEY,
            "deadline_s": 20.0,  # whatever hangs is given less, so that nobody waits
        }  # fmt: skip
        return make_router(**(tiers | PLAIN | changes))

    return make


@pytest.fixture
def hung_model(gate):
    return FakeLLM(lambda _prompt: str(gate.wait(60)))

import model_servers
import pytest
from waiting import Clock

from agentic_retriever.config import RouterConfig
from agentic_retriever.llm import TierNeeds, build_client


@pytest.fixture
def server(make_server):
    return make_server()


@pytest.fixture(params=["ollama", "openrouter"])
def provider(request):
    return request.param


@pytest.fixture
def other(provider):
    """The provider that stands in when the first one fails."""
    return "openrouter" if provider == "ollama" else "ollama"


@pytest.fixture
def build(closed_at_end):
    """Builds tiers from settings, and closes them."""

    def make(**settings):
        settings = {"openrouter_api_key": model_servers.KEY, **settings}
        return closed_at_end(build_client(RouterConfig(**settings)))

    return make


@pytest.fixture
def tiers_on(server, provider, build, endpoints):
    """Builds one tier of the provider on the server, without retries."""

    def make(retries=0, **settings):
        endpoints(retries=retries)
        urls = {"ollama_base_url": server.url, "openrouter_base_url": f"{server.url}/api/v1"}
        return build(**{"llm": f"{provider}:some/model:1b", **urls, **settings})

    return make


@pytest.fixture
def two(build, provider, other):
    """Builds the provider that fails in front and the other one behind; returns it with the needs that ask so."""

    def make(bad_url, good_url):
        urls = {provider: bad_url, other: good_url}
        addresses = {"ollama_base_url": urls["ollama"], "openrouter_base_url": f"{urls['openrouter']}/api/v1"}
        client = build(llm="ollama:local/model", llm_cloud="openrouter:cloud/model", **addresses)
        return client, TierNeeds(force_cloud=provider == "openrouter")

    return make


class FakeClock(Clock):
    """Seconds that pass only when somebody sleeps or ``tick`` says so."""

    def __init__(self):
        super().__init__(1_000.0)
        self.slept = []

    def tick(self, seconds):
        self.now += seconds

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.tick(seconds)


@pytest.fixture
def fake_clock():
    return FakeClock()

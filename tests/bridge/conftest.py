from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from bridge_material import ANIMALS, PLANETS, Events, Spans, documents
from llama_index.core.settings import Settings
from llama_index_instrumentation import root_dispatcher

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.testing import FakeEmbedding


@pytest.fixture(autouse=True)
def _settings_and_loops_stay_as_they_are():
    """Whatever a test here does, ``Settings`` keeps its values and asyncio is not patched."""
    before = dict(vars(Settings))
    yield
    assert dict(vars(Settings)) == before
    assert asyncio.run.__module__ == "asyncio.runners"


@pytest.fixture(scope="session")
def bridge_store(tmp_path_factory):
    """A data directory with two small indexes, made once."""
    folder = tmp_path_factory.mktemp("bridge") / "data"
    with AgenticRouter(RouterConfig(data_dir=folder, query_log="none"), embedding=FakeEmbedding(dimension=64)) as made:
        made.add_index("animals", documents(ANIMALS), description="Animals and how they live")
        made.add_index("planets", documents(PLANETS), description="Planets and their moons")
    return folder


@pytest.fixture
def make_router(bridge_store):
    """Makes routers over the two indexes, which are closed after the test."""
    made = []

    def make(*, model=None, classifier=None, postprocessors=(), synthesizer=None, **changes):
        config = RouterConfig(
            **{"data_dir": bridge_store, "query_log": "none", "classifier": "profile", "selector": "heuristic"}
            | {"answer_rescoring": False}
            | changes
        )
        router = AgenticRouter(
            config,
            embedding=FakeEmbedding(dimension=64),
            llm=model,
            classifier=classifier,
            postprocessors=postprocessors,
            synthesizer=synthesizer,
        )
        made.append(router)
        return router

    yield make
    for router in made:
        router.close()


@pytest.fixture
def router(make_router):
    return make_router()


@pytest.fixture
def attach():
    """Attaches handlers to LlamaIndex's root dispatcher until the test ends."""
    spans, events = list(root_dispatcher.span_handlers), list(root_dispatcher.event_handlers)

    def add(*handlers):
        for handler in handlers:
            if hasattr(handler, "handle"):
                root_dispatcher.add_event_handler(handler)
            else:
                root_dispatcher.add_span_handler(handler)

    yield add
    root_dispatcher.span_handlers, root_dispatcher.event_handlers = spans, events


@pytest.fixture
def watch(attach):
    """The spans and events of the test."""
    seen = SimpleNamespace(spans=Spans(), events=Events())
    attach(seen.spans, seen.events)
    return seen

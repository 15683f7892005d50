import asyncio
from types import SimpleNamespace

import pytest
from bridge_material import Events, Spans
from llama_index.core.settings import Settings
from llama_index_instrumentation import root_dispatcher


@pytest.fixture(autouse=True)
def _settings_and_loops_stay_as_they_are():
    """Whatever a test here does, ``Settings`` keeps its values and asyncio is not patched."""
    before = dict(vars(Settings))
    yield
    assert (dict(vars(Settings)), asyncio.run.__module__) == (before, "asyncio.runners")


@pytest.fixture
def make_router(make_router):
    """Makes routers that decide without a model, with stages of the test's own."""

    def make(*, model=None, classifier=None, postprocessors=(), synthesizer=None, **changes):
        stages = {"classifier": classifier, "postprocessors": postprocessors, "synthesizer": synthesizer}
        fixed = {"classifier": "profile", "selector": "heuristic", "answer_rescoring": False}
        return make_router(model=model, stages=stages, **(fixed | changes))

    return make


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

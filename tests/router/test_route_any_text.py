"""Whatever the question and whatever a model replies, routing ends in a decision among what is there."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_index.core.schema import Document

from agentic_retriever import AgenticRouter, RouteDecision, RouterConfig, Strategy
from agentic_retriever.testing import FakeEmbedding, FakeLLM

INDEXES = ("animals", "planets")
MODES = [("profile", "heuristic"), ("embedding", "round_robin"), ("llm", "llm"), ("llm", "llm_word"), ("auto", "auto")]

texts = st.text(st.characters(exclude_categories=()), min_size=1, max_size=300)
pieces = st.sampled_from(
    ["<think>", "</think>", "{", "}", "[", "]", '"strategy"', '"choice": 0', "planets", "hybrid", "STRATEGY: planner",
     "-1", "CONFIDENCE: 1e400", "```json", "\x00", "\ud800", "ราคา", "¿", "CONFIDENCE: NaN", ":", ",", "'", "nan"]
)  # fmt: skip
replies = st.one_of(texts, st.lists(pieces, max_size=12).map(" ".join))


class Script:
    """The reply of the example under test."""

    reply = ""


@pytest.fixture(scope="module")
def script():
    return Script()


@pytest.fixture(scope="module", params=MODES, ids="-".join)
def router(request, tmp_path_factory, script):
    classifier, selector = request.param
    config = RouterConfig(data_dir=tmp_path_factory.mktemp("any"), classifier=classifier, selector=selector)
    model = FakeLLM(lambda _prompt: script.reply)
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=16), llm=model) as router:
        router.add_index("animals", [Document(text="The cat sleeps.", doc_id="cats", metadata={"kind": "animal"})])
        router.add_index("planets", [Document(text="Mars has two moons.", doc_id="mars", metadata={"kind": "planet"})])
        yield router


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=texts.filter(str.strip), reply=replies)
def test_route_never_raises_and_chooses_what_is_there(router, script, query, reply):
    script.reply = reply
    decision = router.route(query)
    assert set(decision.index.names) <= set(INDEXES)
    assert decision.strategy.name in {strategy.value for strategy in Strategy}
    for stage in (decision.index, decision.strategy):
        assert 0 <= stage.confidence <= 1
        assert 0 <= stage.margin <= 1
        assert sum(stage.scores.values()) == pytest.approx(1)
        assert next(iter(stage.scores)) == stage.name
    assert 0 <= decision.complexity_score <= 1
    assert not decision.diff(RouteDecision.from_dict(decision.to_dict()))
    str(router.explanation(decision))

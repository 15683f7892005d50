from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
from llama_index.core.schema import NodeWithScore

from agentic_retriever import AgenticRouter, RouterConfig, Strategy
from agentic_retriever.errors import ConfigError, UnknownStrategyError
from agentic_retriever.evaluation.results import BenchOptions
from agentic_retriever.pipeline.strategies import register_strategy, unregister_strategy
from agentic_retriever.retrievers import REGISTRY, AdapterSettings, RetrieverAdapter, SearchResult, build_adapter, cards
from agentic_retriever.schema import RouteDecision, View, strategy_named
from agentic_retriever.testing import FakeEmbedding

SAID = "Hybrid hits, newest first; for what changed lately."


def recent(**changes):
    """Register a strategy that reads another one's hits backwards by year."""

    @register_strategy("recent", description=SAID, signals={"range": 6.0}, **changes)
    class Recent(RetrieverAdapter):
        def _search(self, request, deadline):
            found = build_adapter("hybrid", self._index, self._settings).search(request)
            scored = [NodeWithScore(node=n.node, score=float(n.node.metadata["year"])) for n in found.nodes]
            return SearchResult(scored)

    return Recent


@pytest.fixture
def registered():
    yield recent()
    if "recent" in {strategy.value for strategy in REGISTRY}:
        unregister_strategy("recent")


@pytest.fixture
def router(tmp_path, registered):
    from llama_index.core.schema import Document

    config = RouterConfig(data_dir=tmp_path, query_log="none")
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=64)) as router:
        router.add_index(
            "news",
            [
                Document(
                    text=f"The canteen opens at {year % 12} in the morning.", id_=str(year), metadata={"year": year}
                )
                for year in (2019, 2024, 2021)
            ],
        )
        yield router


def test_a_strategy_of_a_program_retrieves_by_name(router):
    found = router.retrieve("When does the canteen open?", strategy="recent")
    assert [n.node.metadata["year"] for n in found.nodes] == [2024, 2021, 2019]
    assert found.strategy is Strategy("recent")
    assert found.strategy not in list(Strategy)


def test_its_signals_let_stage_two_choose_it(router):
    decision = router.route("Canteen notices between 2019 and 2022 about the morning")
    assert decision.features["range"] > 0
    assert decision.strategy.name == "recent"
    assert "range +6.0" in decision.strategy.reason
    assert router.route("When does the canteen open?").strategy.name != "recent"
    assert router.query("When does the canteen open?", strategy="recent").route.strategy.name == "recent"


def test_a_decision_that_names_it_is_read_and_replayed(router):
    decision = router.route("Canteen notices between 2019 and 2022 about the morning")
    read = RouteDecision.from_dict(decision.to_dict())
    assert read.strategy.name == "recent"
    assert not decision.diff(router.replay(read))
    assert "recent" in str(router.explain("Canteen notices", strategy="recent"))


def test_it_stands_behind_the_seven_and_is_benchmarked(registered):
    assert list(REGISTRY)[-1] is registered.strategy
    assert registered.strategy.reliability == len(list(Strategy)) == 7
    assert BenchOptions(strategies=("recent", "vector")).strategies == ("recent", "vector")


def test_it_is_offered_by_indexes_with_its_views_only(router, registered):
    index = router.index("news")
    assert registered.strategy in {card.strategy for card in cards(index)}
    recent(needs=("summary", View.CHUNKS))
    offered = {card.strategy for card in cards(index)}
    assert (registered.strategy in offered) == (View.SUMMARY in index.views)


def test_names_behave_as_members_of_the_enumeration():
    one = strategy_named("zigzag")
    assert one is strategy_named("zigzag") is Strategy("zigzag") is pickle.loads(pickle.dumps(one)) is deepcopy(one)
    assert (one.value, one.name, one == "zigzag", f"{one.value}") == ("zigzag", "ZIGZAG", True, "zigzag")
    assert strategy_named("vector") is Strategy.VECTOR
    assert {one: 1}[Strategy("zigzag")] == 1
    with pytest.raises(ValueError, match="never_named"):
        Strategy("never_named")


def test_taking_it_away(registered):
    unregister_strategy("recent")
    assert registered.strategy not in REGISTRY
    with pytest.raises(UnknownStrategyError, match="recent"):
        build_adapter("recent", None, AdapterSettings())
    with pytest.raises(UnknownStrategyError, match="recent"):
        unregister_strategy("recent")
    with pytest.raises(UnknownStrategyError, match="own"):
        unregister_strategy("vector")


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("vector", {}, "own"),
        ("auto", {}, "small letters"),
        ("Recent", {}, "small letters"),
        ("", {}, "small letters"),
        ("x" * 41, {}, "small letters"),
        ("good", {"description": "two\nlines."}, "one line"),
        ("good", {"description": "no stop"}, "full stop"),
        ("good", {"cost": 0.0}, "above 0"),
        ("good", {"typical_ms": float("nan")}, "above 0"),
        ("good", {"needs": ("chunk",)}, "did you mean 'chunks'"),
        ("good", {"signals": {"ranges": 1.0}}, "did you mean 'range'"),
        ("good", {"signals": {"range": True}}, "finite number"),
        ("good", {"signals": {"range": float("inf")}}, "finite number"),
    ],
)
def test_what_cannot_be_registered_is_named(name, changes, said):
    with pytest.raises(ConfigError, match=said):
        register_strategy(name, **{"description": SAID, **changes})
    assert name in {s.value for s in Strategy} or name not in {s.value for s in REGISTRY}


def test_only_adapters_can_be_strategies():
    with pytest.raises(ConfigError, match="RetrieverAdapter"):
        register_strategy("good", description=SAID)(object)
    assert "good" not in {s.value for s in REGISTRY}

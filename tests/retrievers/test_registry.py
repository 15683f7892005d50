from __future__ import annotations

from typing import get_args

import pytest

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import StoreError, UnknownStrategyError
from agentic_retriever.indices.profile import MeasuredStrategies, StrategyMeasure
from agentic_retriever.retrievers import REGISTRY, Fusion, RetrieverAdapter, build_adapter, cards, spec_of
from agentic_retriever.schema import Strategy, View
from agentic_retriever.testing.retriever_contract import RetrieverContract


def test_every_entry_is_whole_and_stands_in_declared_order(make_index, settings):
    index = make_index([])
    for strategy, spec in REGISTRY.items():
        adapter = build_adapter(strategy.value, index, settings)
        assert isinstance(adapter, RetrieverAdapter)
        assert adapter.strategy is spec.strategy is strategy
        assert spec.description.endswith(".")
        assert "\n" not in spec.description
        assert spec.needs
        assert spec.cost >= 1
        assert spec.typical_ms > 0
    assert list(REGISTRY) == [strategy for strategy in Strategy if strategy in REGISTRY]
    with pytest.raises(TypeError):
        REGISTRY[Strategy.SUMMARY] = None
    assert set(get_args(RouterConfig.model_fields["fusion"].annotation)) == {fusion.value for fusion in Fusion}


def test_cards_are_of_what_the_index_can_serve_with_what_was_measured(make_index):
    index = make_index([])
    offered = cards(index)
    assert [card.strategy for card in offered] == [
        Strategy.VECTOR,
        Strategy.HYBRID,
        Strategy.PLANNER,
        Strategy.METADATA,
    ]
    assert not any(card.measured or card.quality is not None for card in offered)
    assert offered[1].needs == (View.CHUNKS, View.KEYWORD)
    index.views = (View.SUMMARY,)
    assert {card.strategy for card in cards(index)} - {card.strategy for card in offered} == {Strategy.SUMMARY}
    index.views = (View.HIERARCHY,)
    assert {card.strategy for card in cards(index)} - {card.strategy for card in offered} == {
        Strategy.RECURSIVE,
        Strategy.CHUNK_DECOUPLING,
    }
    found = MeasuredStrategies(
        strategies={
            Strategy.HYBRID: StrategyMeasure(quality=0.8, p50_ms=7.5),
            Strategy.SUMMARY: StrategyMeasure(quality=0.9, p50_ms=1.0),
        },
        dataset="d",
        index="i",
        index_version=1,
        queries=10,
        measured_on="2026-01-01",
    )
    offered = {card.strategy: card for card in cards(make_index([]), measured=found)}
    assert Strategy.SUMMARY not in offered  # measured once, but the index cannot serve it now
    hybrid, vector = offered[Strategy.HYBRID], offered[Strategy.VECTOR]
    assert (hybrid.quality, hybrid.typical_ms, hybrid.measured) == (0.8, 7.5, True)
    assert (vector.quality, vector.typical_ms, vector.measured) == (None, REGISTRY[Strategy.VECTOR].typical_ms, False)


@pytest.mark.parametrize("name", ["hybird", "", "planner_", "VECTOR"])
def test_an_unknown_strategy_is_named_with_those_there_are(name, make_index, settings):
    with pytest.raises(UnknownStrategyError, match=r"known: .*hybrid, .*vector"):
        build_adapter(name, make_index([]), settings)
    with pytest.raises(UnknownStrategyError, match="did you mean 'hybrid'"):
        spec_of("hybird")


# The contract of every strategy.


class Contract(RetrieverContract):
    def make_adapter(self, nodes, *, embedding, top_k=10, filters=None):
        settings = self.make_settings(top_k=top_k, filters=filters, fusion=self.fusion)
        return build_adapter(self.strategy, self.make_index(nodes, embedding), settings)

    def make_failing_adapter(self, nodes, *, embedding):
        if self.strategy is not Strategy.HYBRID:
            return None
        index = self.make_index(nodes, embedding)
        index.keyword_error = StoreError("the keyword view is gone")
        return build_adapter(self.strategy, index, self.make_settings())


@pytest.mark.parametrize(
    ("strategy", "fusion"),
    [
        *((strategy, Fusion.CALIBRATED) for strategy in REGISTRY),
        (Strategy.HYBRID, Fusion.WEIGHTED),
        (Strategy.HYBRID, Fusion.RRF),
        (Strategy.HYBRID, Fusion.BORDA),
    ],
)
class TestInMemory(Contract):
    @pytest.fixture(autouse=True)
    def _given(self, strategy, fusion, make_index, make_settings):
        self.strategy, self.fusion, self.make_index, self.make_settings = strategy, fusion, make_index, make_settings


@pytest.mark.parametrize("strategy", REGISTRY)
class TestOverTheRealStore(Contract):
    @pytest.fixture(autouse=True)
    def _given(self, strategy, make_edge_index, make_settings):
        self.strategy, self.fusion, self.make_index, self.make_settings = (
            strategy,
            Fusion.CALIBRATED,
            make_edge_index,
            make_settings,
        )

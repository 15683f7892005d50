from __future__ import annotations

import pytest

from agentic_retriever.errors import StoreError
from agentic_retriever.retrievers import REGISTRY, Fusion, build_adapter
from agentic_retriever.schema import Strategy
from agentic_retriever.testing.retriever_contract import RetrieverContract


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

"""Which strategy plain questions get, by the settings."""

from __future__ import annotations

import pytest
from llama_index.core.schema import Document

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.testing import FakeEmbedding


@pytest.mark.parametrize(
    ("settings", "strategy"),
    [
        ({}, "hybrid"),
        ({"fusion": "rrf"}, "vector"),
        ({"selector": "heuristic"}, "vector"),
    ],
)
def test_plain_questions_start_from_calibrated_hybrid_search(tmp_path, settings, strategy):
    config = RouterConfig(data_dir=tmp_path / "data", **settings)
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=32)) as router:
        router.add_index("mixed", [Document(text="Mars has two moons.", doc_id="mars")])
        assert router.route("how many moons are there").strategy.name == strategy

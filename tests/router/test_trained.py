"""What training left beside an index is used at once, and cannot do harm."""

from __future__ import annotations

import pytest
from llama_index.core.schema import Document

from agentic_retriever import AgenticRouter, RouterConfig, Strategy
from agentic_retriever.indices.measured import MEASURED_FILE, MeasuredStrategies, StrategyMeasure
from agentic_retriever.testing import FakeEmbedding

QUESTION = "Which moons does Mars have?"


@pytest.fixture
def router(tmp_path):
    config = RouterConfig(data_dir=tmp_path / "data")
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=32)) as router:
        documents = [Document(text="Mars has two moons.", doc_id="mars"), Document(text="A cat purrs.", doc_id="cat")]
        router.add_index("mixed", documents)
        yield router


def measured():
    return MeasuredStrategies(
        strategies={
            Strategy.VECTOR: StrategyMeasure(quality=0.3, p50_ms=4.0),
            Strategy.HYBRID: StrategyMeasure(quality=0.9, p50_ms=9.0),
        },
        dataset="d",
        index="mixed",
        index_version=1,
        queries=30,
        measured_on="2026-01-01",
    )


def test_training_makes_cached_answers_old(router):
    assert not router.query(QUESTION).cached
    assert router.query(QUESTION).cached
    measured().save(router.index("mixed").folder)
    assert not router.query(QUESTION).cached


def test_a_model_of_an_earlier_version_is_ignored(router):
    (router.index("mixed").folder / "strategy_model.json").write_bytes(b"{")
    decision = router.route(QUESTION)
    assert (decision.strategy.mode, decision.degraded) == ("heuristic", ())


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_a_damaged_file_is_told_and_left_aside(router, content):
    (router.index("mixed").folder / MEASURED_FILE).write_bytes(content)
    decision = router.route(QUESTION)
    assert decision.strategy.mode == "heuristic"
    [lost] = [step for step in decision.degraded if step.step.startswith("stage_two.")]
    assert MEASURED_FILE in lost.reason
    assert router.retrieve(QUESTION).nodes


def test_measured_cards_show_in_the_explanation(router):
    plain = router.route(QUESTION).strategy.scores
    measured().save(router.index("mixed").folder)
    explained = router.explain(QUESTION)
    assert "measured nDCG@10 0.900  9 ms measured" in str(explained)
    weighed = explained.decision.strategy.scores
    assert weighed["hybrid"] / weighed["vector"] > plain["hybrid"] / plain["vector"]

"""What training left beside an index is used at once, and cannot do harm."""

from __future__ import annotations

import pytest
from llama_index.core.schema import Document

from agentic_retriever import AgenticRouter, RouterConfig, Strategy
from agentic_retriever.indices.measured import MEASURED_FILE, MeasuredStrategies, StrategyMeasure
from agentic_retriever.routing import (
    MODEL_FILE,
    PROBE_FEATURES,
    TrainedOn,
    TrainingRow,
    fit_strategy_model,
    probe_features,
    query_features,
)
from agentic_retriever.testing import FakeEmbedding

QUESTION = "Which moons does Mars have?"


@pytest.fixture
def router(tmp_path):
    config = RouterConfig(data_dir=tmp_path / "data")
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=32)) as router:
        documents = [Document(text="Mars has two moons.", doc_id="mars"), Document(text="A cat purrs.", doc_id="cat")]
        router.add_index("mixed", documents)
        yield router


def model_for(router, best):
    """A model that was trained where one strategy was always the best."""
    profile = router.index("mixed").profile()
    features = {**query_features(QUESTION, profile, 0.1), **probe_features(QUESTION, profile, None)}
    rows = [
        TrainingRow(
            query_id=str(i),
            features=features,
            quality={strategy: 1.0 if strategy is best else 0.1 for strategy in Strategy},
            latency_ms=dict.fromkeys(Strategy, 1.0),
        )
        for i in range(40)
    ]
    trained_on = TrainedOn(dataset="d", index="mixed", index_version=1, rows=40, date="2026-01-01")
    return fit_strategy_model(rows, trained_on=trained_on)


def test_an_installed_model_chooses_from_then_on(router):
    before = router.route(QUESTION)
    assert before.strategy.mode == "heuristic"
    assert before.strategy.name != "summary"
    folder = router.index("mixed").folder
    model_for(router, Strategy.SUMMARY).save(folder / MODEL_FILE)
    after = router.route(QUESTION)
    assert (after.strategy.mode, after.strategy.name) == ("learned", "summary")
    assert set(PROBE_FEATURES) <= set(after.features)
    assert not after.diff(router.replay(after))
    model_for(router, Strategy.PLANNER).save(folder / MODEL_FILE)
    assert router.route(QUESTION).strategy.name == "planner"


def test_training_makes_cached_answers_old(router):
    assert not router.query(QUESTION).cached
    assert router.query(QUESTION).cached
    model_for(router, Strategy.HYBRID).save(router.index("mixed").folder / MODEL_FILE)
    assert not router.query(QUESTION).cached


@pytest.mark.parametrize("file", [MODEL_FILE, MEASURED_FILE])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_a_damaged_file_is_told_and_left_aside(router, file, content):
    (router.index("mixed").folder / file).write_bytes(content)
    decision = router.route(QUESTION)
    assert decision.strategy.mode == "heuristic"
    [lost] = [step for step in decision.degraded if step.step.startswith("stage_two.")]
    assert file in lost.reason
    assert router.retrieve(QUESTION).nodes


def test_measured_cards_show_in_the_explanation(router):
    measured = MeasuredStrategies(
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
    plain = router.route(QUESTION).strategy.scores
    measured.save(router.index("mixed").folder)
    explained = router.explain(QUESTION)
    assert "measured nDCG@10 0.900  9 ms measured" in str(explained)
    weighed = explained.decision.strategy.scores
    assert weighed["hybrid"] / weighed["vector"] > plain["hybrid"] / plain["vector"]

"""What training left beside an index is used at once, makes cached answers old, and cannot do harm."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from llama_index.core.schema import Document
from small_indexes import PLANETS, documents

from agentic_retriever import AgenticRouter, RouterConfig, Strategy
from agentic_retriever.indices.profile import MEASURED_FILE, MeasuredStrategies, StrategyMeasure
from agentic_retriever.pipeline.query import Question, answer_key
from agentic_retriever.resources import TrainingFiles
from agentic_retriever.retrievers import FUSION_FILE
from agentic_retriever.testing import FakeEmbedding

QUESTION = "Which moons does Mars have?"
FILES = [MEASURED_FILE, FUSION_FILE]


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


def install(folder, name, text):
    """Write a file as training does: beside its place, then moved there."""
    (folder / "new").write_text(text, encoding="utf-8")
    (folder / "new").replace(folder / name)


def stamp(folder):
    return TrainingFiles().stamp(SimpleNamespace(folder=folder))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_comes_changes_or_goes_changes_the_stamp(tmp_path, name):
    seen = [stamp(tmp_path)]

    def look():
        seen.append(stamp(tmp_path))
        assert seen[-1] != seen[-2]

    install(tmp_path, name, "{}")
    look()
    install(tmp_path, name, '{"a": 1}')
    look()
    # Written over in place: the folder does not change, nor, within the clock's resolution, need the time.
    times = (tmp_path / name).stat()
    (tmp_path / name).write_text('{"a": 12}', encoding="utf-8")
    os.utime(tmp_path / name, ns=(times.st_atime_ns, times.st_mtime_ns))
    look()
    (tmp_path / name).write_text('{"a": 13}', encoding="utf-8")
    os.utime(tmp_path / name, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    look()
    (tmp_path / name).unlink()
    look()
    assert seen[-1] == seen[0]


def test_an_index_without_a_folder_has_no_stamp():
    assert stamp(None) == []


def test_files_that_training_once_left_are_ignored(make_router, tmp_path):
    router = make_router(data_dir=tmp_path / "data")
    router.add_index("planets", documents(PLANETS))
    index = router.index("planets")
    before, stamp = router.query(QUESTION), TrainingFiles().stamp(index)
    install(index.folder, "confidence.json", "{")
    after = router.query(QUESTION)
    assert TrainingFiles().stamp(index) == stamp
    assert (after.confidence, after.degraded) == (before.confidence, before.degraded)


@pytest.mark.parametrize("name", FILES)
def test_the_key_of_an_answer_follows(make_router, tmp_path, name):
    router = make_router(data_dir=tmp_path / "data")
    router.add_index("planets", documents(PLANETS))
    folder = router.index("planets").folder

    def key():
        return answer_key(router.resources, Question(query=QUESTION, top_k=3), "m")

    untrained = key()
    assert key() == untrained
    install(folder, name, "{}")
    trained = key()
    assert key() == trained != untrained
    (folder / name).write_text("{ }", encoding="utf-8")
    assert key() not in {trained, untrained}
    (folder / name).unlink()
    assert key() == untrained

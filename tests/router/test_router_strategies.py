"""Strategies that a program adds, and what training left beside an index: used at once, and without harm."""

from __future__ import annotations

import os
import pickle
from copy import deepcopy
from types import SimpleNamespace

import pytest
from llama_index.core.schema import Document, NodeWithScore
from small_indexes import PLANETS, documents

from agentic_retriever import Strategy
from agentic_retriever.errors import ConfigError, UnknownStrategyError
from agentic_retriever.evaluation.results import BenchOptions
from agentic_retriever.indices.profile import MEASURED_FILE, MeasuredStrategies, StrategyMeasure
from agentic_retriever.pipeline.query import Question
from agentic_retriever.resources import register_strategy, training_stamp
from agentic_retriever.retrievers import (
    FUSION_FILE,
    REGISTRY,
    AdapterSettings,
    RetrieverAdapter,
    SearchResult,
    build_adapter,
    cards,
    unregister_strategy,
)
from agentic_retriever.schema import RouteDecision, View, strategy_named

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
def news(make, registered):
    texts = {str(year): f"The canteen opens at {year % 12} in the morning." for year in (2019, 2024, 2021)}
    return make({"news": [Document(text=text, id_=year, metadata={"year": int(year)}) for year, text in texts.items()]})


BETWEEN, WHEN = "Canteen notices between 2019 and 2022 about the morning", "When does the canteen open?"


def test_a_strategy_of_a_program_retrieves_by_name(news):
    found = news.retrieve(WHEN, strategy="recent")
    assert [n.node.metadata["year"] for n in found.nodes] == [2024, 2021, 2019]
    assert found.strategy is Strategy("recent")
    assert found.strategy not in list(Strategy)


def test_its_signals_let_stage_two_choose_it(news):
    decision = news.route(BETWEEN)
    assert decision.features["range"] > 0
    assert decision.strategy.name == "recent"
    assert "range +6.0" in decision.strategy.reason
    assert news.route(WHEN).strategy.name != "recent"
    assert news.query(WHEN, strategy="recent").route.strategy.name == "recent"


def test_a_decision_that_names_it_is_read_and_replayed(news):
    decision = news.route(BETWEEN)
    read = RouteDecision.from_dict(decision.to_dict())
    assert read.strategy.name == "recent"
    assert not decision.diff(news.replay(read))
    assert "recent" in str(news.explain("Canteen notices", strategy="recent"))


def test_it_stands_behind_the_seven_and_is_benchmarked(registered):
    assert list(REGISTRY)[-1] is registered.strategy
    assert registered.strategy.reliability == len(list(Strategy)) == 7
    assert BenchOptions(strategies=("recent", "vector")).strategies == ("recent", "vector")


def test_it_is_offered_by_indexes_with_its_views_only(news, registered):
    index = news.index("news")
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


# What training left beside an index


QUESTION = "Which moons does Mars have?"
FILES = [MEASURED_FILE, FUSION_FILE]


@pytest.fixture
def router(make):
    sources = [Document(text="Mars has two moons.", doc_id="mars"), Document(text="A cat purrs.", doc_id="cat")]
    return make({"mixed": sources})


@pytest.fixture
def planets(make):
    return make({"planets": documents(PLANETS)})


def measured():
    vector, hybrid = (StrategyMeasure(quality=quality, p50_ms=ms) for quality, ms in ((0.3, 4.0), (0.9, 9.0)))
    found = {Strategy.VECTOR: vector, Strategy.HYBRID: hybrid}
    told = {"dataset": "d", "index": "mixed", "index_version": 1, "queries": 30, "measured_on": "2026-01-01"}
    return MeasuredStrategies(strategies=found, **told)


def test_training_makes_cached_answers_old(router):
    assert [router.query(QUESTION).cached for _ in range(2)] == [False, True]
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
    return training_stamp(SimpleNamespace(folder=folder))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_comes_changes_or_goes_changes_the_stamp(tmp_path, name):
    file, seen = tmp_path / name, [stamp(tmp_path)]

    def overwrite(text, later_ns):
        """Write over it in place: the folder does not change, nor, within the clock's resolution, need the time."""
        times = file.stat()
        file.write_text(text, encoding="utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns + later_ns))

    for change in (
        lambda: install(tmp_path, name, "{}"),
        lambda: install(tmp_path, name, '{"a": 1}'),
        lambda: overwrite('{"a": 12}', 0),
        lambda: overwrite('{"a": 13}', 1),
        file.unlink,
    ):
        change()
        seen.append(stamp(tmp_path))
        assert seen[-1] != seen[-2]
    assert seen[-1] == seen[0]


def test_an_index_without_a_folder_has_no_stamp():
    assert stamp(None) == ()


def test_files_that_training_once_left_are_ignored(planets):
    index = planets.index("planets")
    before, stamp = planets.query(QUESTION), training_stamp(index)
    install(index.folder, "confidence.json", "{")
    after = planets.query(QUESTION)
    assert training_stamp(index) == stamp
    assert (after.confidence, after.degraded) == (before.confidence, before.degraded)


@pytest.mark.parametrize("name", FILES)
def test_the_key_of_an_answer_follows(planets, name):
    folder, pipeline = planets.index("planets").folder, planets._pipeline

    def key():
        return pipeline._key(pipeline._begin(Question(query=QUESTION, top_k=3)))

    untrained = key()
    assert key() == untrained
    install(folder, name, "{}")
    trained = key()
    assert key() == trained != untrained
    (folder / name).write_text("{ }", encoding="utf-8")
    assert key() not in {trained, untrained}
    (folder / name).unlink()
    assert key() == untrained

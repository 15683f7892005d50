import json
from dataclasses import replace
from itertools import count
from unittest.mock import Mock

import numpy as np
import pytest
from evaluation_material import (
    BOAT_QUERIES,
    BOATS,
    BREAD,
    Counting,
    embed,
    stage_one,
    without_times,
    write_beir,
    write_lines,
    write_vectors,
)

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import ConfigError, EvaluationError, UnknownIndexError
from agentic_retriever.evaluation import bench_routing, routing
from agentic_retriever.evaluation.peers import Journal, LlamaIndexEmbeddingSelector, NearestUtteranceRouter, Run
from agentic_retriever.evaluation.routing import RoutedQuery, RoutingMaterial
from agentic_retriever.indices.profile import ProfiledNode, make_profile
from agentic_retriever.schema import Complexity, Selection, Strategy, StrategyCard, Tier, TierUsage
from agentic_retriever.testing import FakeEmbedding, FakeLLM


def make(name, texts, description="text"):
    nodes = [ProfiledNode(f"{name}-{at}", text, {}) for at, text in enumerate(texts)]
    return make_profile(
        nodes, np.stack([embed(text) for text in texts]), name=name, description=description,
        description_vector=embed(description), version=1,
    )  # fmt: skip


PROFILES = [make("boats", BOATS.values(), "ferry harbour sail"), make("bread", BREAD.values(), "dough oven flour")]


class Scripted:
    """Answers by the first word of a question."""

    mode = "scripted"

    def __init__(self):
        self.asked = []

    def classify(self, query, profiles, *, query_vector, allowance=None):
        self.asked.append(query)
        name, *said = query.split()
        if name == "broken":
            raise RuntimeError("secret text")
        if name == "typed":
            raise EvaluationError("told to all")
        spent = (TierUsage(tier=Tier.PRIMARY, model="m", calls=2, prompt_tokens=1, completion_tokens=1),)
        return Selection(
            name=name, confidence=float(said[0]), scores={name: float(said[0])}, margin=0.0, reason="", mode="scripted",
            names=("boats", "bread") if "both" in said else (), abstained="abstain" in said,
            escalated="escalate" in said, spent=spent if "escalate" in said else (),
        )  # fmt: skip


def query(text, index, at=[0], **more):  # noqa: B006 - counts on
    at[0] += 1
    return RoutedQuery(query_id=f"q{at[0]}", text=text, dataset="d", vector=None, index=index, **more)


def test_measures_of_stage_one():
    ticks = count()
    asked = [("boats 0.9", "boats"), ("boats 0.9 escalate", "boats"), ("bread 0.6 both", "boats"),
             ("bread 0.8 abstain", "bread"), ("broken", "bread"), ("boats 0.5 abstain", None), ("boats 0.5", None),
             ("typed", None)]  # fmt: skip
    queries, done = [query(text, index) for text, index in asked], Counting()
    scripted = routing.Contender(classifier=Scripted())
    told = stage_one(queries, PROFILES, scripted, timer=lambda: next(ticks) / 1000, watcher=done).to_dict()
    assert (told["queries"], told["accuracy"]) == (5, pytest.approx(3 / 5))
    assert told["macro_accuracy"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert told["confusion"] == {"boats": {"boats": 2, "bread": 1}, "bread": {"bread": 1, routing.FAILED: 1}}
    assert told["reached"] == pytest.approx(4 / 5)
    assert told["searched"] == pytest.approx((1 + 1 + 2 + 1 + 0) / 5)
    assert told["abstention"] == {
        "out_of_scope": 3, "abstained": 2, "right": 1, "precision": 0.5, "recall": 1 / 3, "false_rate": 1 / 5,
    }  # fmt: skip
    assert (told["escalation_rate"], told["llm_calls"]) == (pytest.approx(1 / 8), 2)
    assert told["latency_ms"] == {"p50": pytest.approx(1.0), "p95": pytest.approx(1.0)}
    assert [f["error"] for f in told["failures"]] == ["RuntimeError", "EvaluationError: told to all"]
    # Two at 0.9 are right, one at 0.6 is wrong, one at 0.8 is right.
    assert told["ece"] == pytest.approx((2 * 0.1 + 0.6 + 0.2) / 4)
    # boats: two of three right; bread: the one that was answered.
    assert told["macro_ece"] == pytest.approx((2 * 0.1 / 3 + 0.6 / 3 + 0.2) / 2)
    assert done.done == len(queries)
    assert sum(one["count"] for one in told["reliability"]) == 4
    json.dumps(told, allow_nan=False)


def test_scores_that_are_no_probabilities_and_questions_that_cannot_be_right():
    found = stage_one([query("boats 0.9", "boats")], PROFILES, routing.Contender(classifier=Scripted(), peer=True))
    assert (found.ece, found.macro_ece, found.reliability, found.peer) == (None, None, None, True)
    assert found.abstention.recall is None
    for asked, told in (([], "no question"), ([query("boats 1", "cars")], r"'cars'.*boats, bread")):
        with pytest.raises(EvaluationError, match=told):
            stage_one(asked, PROFILES, routing.Contender(classifier=Scripted()))


def test_an_interrupted_run_goes_on(tmp_path):
    queries = [query(f"boats 0.{at}", "boats") for at in range(1, 6)]

    class Stopping(Scripted):
        def classify(self, query, profiles, *, query_vector, allowance=None):
            if query == "boats 0.4":
                raise KeyboardInterrupt
            return super().classify(query, profiles, query_vector=query_vector)

    with Journal(tmp_path / "j", "run") as journal, pytest.raises(KeyboardInterrupt):
        stage_one(queries, PROFILES, routing.Contender(classifier=Stopping()), journal=journal)
    second = Scripted()
    with Journal(tmp_path / "j", "run") as again:
        assert [record["query"] for record in again.records] == [q.query_id for q in queries[:3]]
        stage_one(queries, PROFILES, routing.Contender(classifier=second), journal=again)
        assert [record["confidence"] for record in again.records] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert second.asked == ["boats 0.4", "boats 0.4", "boats 0.5"]  # the first one warms up
    again.remove()
    again.remove()
    assert not (tmp_path / "j").exists()


def test_llamaindex_selector_takes_the_nearest_description():
    peer = LlamaIndexEmbeddingSelector({p.name: p.description_vector for p in PROFILES})
    for text in ("the ferry in the harbour", "dough in the oven", "flour and a sail"):
        vector = embed(text)
        nearest = max(PROFILES, key=lambda p: float(p.description_vector @ vector))
        assert peer.classify(text, PROFILES, query_vector=vector).name == nearest.name
    with pytest.raises(EvaluationError, match="question has no vector"):
        peer.classify("x", PROFILES, query_vector=None)
    with pytest.raises(EvaluationError, match="bread have no vector"):
        LlamaIndexEmbeddingSelector({"boats": embed("x")}).classify("x", PROFILES, query_vector=embed("x"))


@pytest.mark.parametrize("aggregation", ["mean", "sum"])
def test_nearest_utterances_vote(aggregation):
    peer = NearestUtteranceRouter(PROFILES, aggregation)
    for text in ("ferry harbour", "dough oven", "water in the boat", "wind"):
        vector = embed(text)
        cosines = sorted(((float(row @ vector), p.name) for p in PROFILES for row in p.sample), reverse=True)[:5]
        votes = {}
        for cosine, name in cosines:
            votes.setdefault(name, []).append(cosine)
        totals = {name: sum(v) / (len(v) if aggregation == "mean" else 1) for name, v in votes.items()}
        found = peer.classify(text, PROFILES, query_vector=vector)
        assert found.name == max(totals, key=totals.__getitem__)
        assert dict(found.scores) == pytest.approx(totals)
    with pytest.raises(EvaluationError, match="no vector"):
        peer.classify("x", PROFILES, query_vector=None)


class LastCard:
    mode = "last"

    def select(self, query, cards, *, features, allowance=None):
        if "fail" in query:
            raise RuntimeError
        assert "length" in features
        return Selection(name=cards[-1].strategy.value, confidence=1.0, scores={}, margin=0.0, reason="", mode="last")


def test_stage_two():
    cards = {"boats": [StrategyCard(strategy=s, description="", needs=(), cost=1, typical_ms=1) for s in Strategy][:2]}
    asked = [("a", "boats", Strategy.HYBRID), ("b", "boats", Strategy.VECTOR), ("fail", "boats", Strategy.VECTOR),
             ("no label", "boats", None), ("no index", None, Strategy.VECTOR)]  # fmt: skip
    queries = [query(text, index, strategy=label) for text, index, label in asked]
    material = RoutingMaterial(profiles={"boats": PROFILES[0]}, cards=cards, queries=queries)
    found = routing.evaluate_stage_two(material, LastCard(), Run(), way="last")
    assert found.outcomes.confusion() == {"hybrid": {"hybrid": 1}, "vector": {"hybrid": 1, routing.FAILED: 1}}
    assert (found.to_dict()["accuracy"], len(found.failures)) == (pytest.approx(1 / 3), 1)
    assert routing.evaluate_stage_two(replace(material, queries=queries[3:]), LastCard(), Run(), way="last") is None


def test_complexity(monkeypatch):
    monkeypatch.setattr(routing, "assess_complexity", lambda text: (Complexity(text.split()[0]), 0.5))
    queries = [
        query("complex a", None, complexity=Complexity.COMPLEX), query("simple b", None, complexity=Complexity.COMPLEX),
        query("simple c", None, complexity=Complexity.SIMPLE), query("simple d", None),
    ]  # fmt: skip
    found = routing.evaluate_complexity(queries)
    assert found.to_dict()["balanced_accuracy"] == pytest.approx(0.75)
    assert found.to_dict()["by_dataset"] == {"d": pytest.approx(2 / 3)}
    assert routing.evaluate_complexity(queries[3:]) is None


def test_two_folders_with_vectors(router, boats, bread, vectors):
    measured = bench_routing(router, boats, bread, vectors=vectors)
    result, page = measured.to_dict(), measured._repr_html_()
    assert all(way in page for way in measured.stage_one)
    assert "<b>1.0000</b>" in page
    ways = {"profile", "embedding", "llamaindex_embedding_selector", "nearest_utterance_mean"}
    assert ways <= set(result["stage_one"])
    for measures in result["stage_one"].values():
        assert {"accuracy", "macro_accuracy", "macro_f1", "ece", "confusion", "abstention", "latency_ms",
                "escalation_rate"} <= set(measures)  # fmt: skip
        assert measures["queries"] == 4
    assert result["stage_one"]["profile"]["accuracy"] == 1.0
    assert result["indexes"]["boats"] == {
        "nodes": 5, "sampled": 5, "language": "en", "description": "boats and the harbour",
    }  # fmt: skip
    assert not any("llm" in mode or "auto" in mode for mode in result["stage_one"])
    json.dumps(result, allow_nan=False)
    assert without_times(bench_routing(router, boats, bread, vectors=vectors).to_dict()) == without_times(result)
    made = bench_routing(router, boats, bread).to_dict()  # the router embeds, and finds the same
    assert made["stage_one"]["profile"]["confusion"] == result["stage_one"]["profile"]["confusion"]
    assert made["datasets"][0]["vectors"] == "computed"


def test_without_descriptions_what_goes_by_them_is_left_out(router, boats, bread):
    (bread / "dataset.json").unlink()
    result = bench_routing(router, boats, bread).to_dict()
    assert set(result["left_out"]) >= {"embedding", "llamaindex_embedding_selector"}
    assert "profile" in result["stage_one"]


def test_questions_without_a_vector_are_counted_and_embedded(router, boats, bread, vectors):
    write_vectors(vectors / "boats.npz", BOATS, BOAT_QUERIES, query_ids=np.array(["q1", "x"]))
    result = bench_routing(router, boats, bread, vectors=vectors)
    assert result.problems.counts == {"computed_query_vector": 1}
    assert result.stage_one["profile"].outcomes.total == 4


def test_questions_file_is_asked_of_all_indexes_that_are_there(router, boats, bread, tmp_path):
    for folder in (boats, bread):
        router.add_index(folder.name, folder / "corpus.jsonl", description=f"all about {folder.name}")
    labelled = {"query": "when does the ferry leave", "index": "boats", "strategy": "vector", "complexity": "simple"}
    others = [{"query": "the sail of a boat", "index": "boats"}, {"query": "not labelled", "complexity": "simple"},
              {"query": "who won the election", "answerable": False}]  # fmt: skip
    measured = bench_routing(router, write_lines(tmp_path / "mine.jsonl", [labelled, *others]))
    result = measured.to_dict()
    assert "strategy, heuristic" in measured._repr_html_()
    assert set(result["indexes"]) == {"boats", "bread"}
    assert result["stage_one"]["profile"]["confusion"] == {"boats": {"boats": 2}}
    assert result["stage_one"]["profile"]["abstention"]["out_of_scope"] == 1
    assert result["indexes"]["boats"]["description"] == "all about boats"
    assert (result["stage_two"]["heuristic"]["count"], result["complexity"]["count"]) == (1, 2)
    assert result["problems"]["counts"] == {"unlabelled_query": 1}


def test_what_cannot_be_asked(router, tmp_path, boats):
    with pytest.raises(EvaluationError, match="'depth'"):
        bench_routing(router, boats, depth=3)
    path = write_lines(tmp_path / "mine.jsonl", [{"query": "x", "index": "cars"}])
    with pytest.raises(UnknownIndexError, match="'cars'"):
        bench_routing(router, path)
    router.add_index("boats", boats / "corpus.jsonl")
    write_lines(path, [{"query": "x"}])
    with pytest.raises(EvaluationError, match="no question"):
        bench_routing(router, path)
    write_lines(path, [{"query": "when does the ferry leave", "index": "boats"}])
    wide = FakeEmbedding(dimension=8)
    with pytest.raises(EvaluationError, match="dimensions cannot be compared: boats 32, docks 8"):
        bench_routing(router, path, write_beir(tmp_path / "docks", BOATS, BOAT_QUERIES), embedding=wide)


def test_finished_ways_are_not_run_again(router, boats, bread, vectors, tmp_path, monkeypatch):
    with monkeypatch.context() as interrupted:
        interrupted.setattr(LlamaIndexEmbeddingSelector, "classify", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            bench_routing(router, boats, bread, vectors=vectors, folder=tmp_path / "kept")
    monkeypatch.setattr("agentic_retriever.routing.ProfileClassifier.classify", Mock(side_effect=ConfigError("again")))
    result = bench_routing(router, boats, bread, vectors=vectors, folder=tmp_path / "kept")
    assert result.stage_one["profile"].failures == ()
    assert result.stage_one["llamaindex_embedding_selector"].outcomes.total == 4


def test_with_a_model_its_ways_are_measured_too(boats, bread, vectors, tmp_path):
    # A model that answers with nothing usable: the ways that ask it must go on by evidence.
    config, embedding = RouterConfig(data_dir=tmp_path / "data"), FakeEmbedding(dimension=32)
    result = bench_routing(
        config, boats, bread, vectors=vectors, embedding=embedding, llm=FakeLLM(["no idea"])
    ).to_dict()
    assert {"auto", "llm", "profile"} <= set(result["stage_one"])
    for mode in ("auto", "llm"):
        assert result["stage_one"][mode]["failures"] == []
        assert result["stage_one"][mode]["accuracy"] == result["stage_one"]["profile"]["accuracy"]
    assert result["stage_one"]["llm"]["llm_calls"] >= 4
    assert result["left_out"] == {}

"""Calibrating the confidence of answers from one index."""

from __future__ import annotations

import json
import random

import pytest
from evaluation_material import write_beir, write_lines

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import EvaluationError, StoreDamagedError
from agentic_retriever.evaluation import confidence_training
from agentic_retriever.evaluation.answer_text import holds_answer
from agentic_retriever.evaluation.confidence_fitting import (
    LEFT_OUT_WEIGHT,
    AnsweredQuestion,
    fit_index_confidence,
    too_few,
    validate_confidence,
)
from agentic_retriever.evaluation.confidence_training import (
    AskedQuestion,
    ConfidenceTraining,
    answered_questions,
    train_confidence,
)
from agentic_retriever.evaluation.journal import Journal
from agentic_retriever.evaluation.loading import load_dataset
from agentic_retriever.evaluation.training import TrainingOptions, train_strategies
from agentic_retriever.router import AgenticRouter
from agentic_retriever.router.answering import AnswerStage, _weights
from agentic_retriever.router.trained import Trained
from agentic_retriever.synthesis import (
    CONFIDENCE_FILE,
    AnswerFeatures,
    ConfidenceModel,
    ConfidenceTrainedOn,
    Evidence,
    ExtractiveSynthesizer,
    IndexConfidence,
    Synthesizer,
)
from agentic_retriever.synthesis.confidence import SIGNS, default_model
from agentic_retriever.testing import FakeEmbedding

TRAINED = ConfidenceTrainedOn(
    dataset="things", index="mine", index_version=1, rows=0, unanswerable=0,
    judged_by="relevant documents", date="2026-01-02"
)  # fmt: skip
NAMES = ["anchor", "ferry", "sail", "oven", "dough", "crust", "harbour", "rye", "chain", "vest", "bowl", "loaf",
         "mast", "keel", "yeast", "rope", "buoy", "salt", "flour", "tray", "deck", "hull", "crumb", "tin"]  # fmt: skip
THINGS = {f"d{at}": f"The {name} weighs {at + 100} kilograms." for at, name in enumerate(NAMES)}
ASKED = {f"q{at}": (f"how much does the {name} weigh", f"d{at}") for at, name in enumerate(NAMES)}


def rows(count=80, *, off=0.0, seed=3):
    """Answers that are right as often as the package says, or so much less often."""
    drawn = random.Random(seed)
    found = []
    for at in range(count):
        shown = drawn.random()
        features = AnswerFeatures(coverage=shown, relevance=drawn.random(), reachable=shown)
        sure = default_model().probability(features)
        right = drawn.random() < max(0.02, min(0.98, sure - off))
        found.append(AnsweredQuestion(query_id=f"q{at}", features=features, support=1.0, right=right, answerable=True))
    return found


def test_a_confidence_that_is_wrong_on_an_index_is_mended(tmp_path):
    given = rows(160, off=-0.4)
    found = validate_confidence(given)
    assert found.helps
    assert found.after.brier < found.before.brier - 0.05
    assert found.after.ece < found.before.ece - 0.1
    assert found.after.declined_right < found.before.declined_right
    assert found.brier_gain[0] == pytest.approx(found.before.brier - found.after.brier)
    assert found.brier_gain[1] < found.brier_gain[0] < found.brier_gain[2]
    model = fit_index_confidence(given)
    mean = sum(model.probability(row.features) for row in given) / len(given)
    assert mean == pytest.approx(sum(row.right for row in given) / len(given), abs=0.05)
    assert all(weight * SIGNS[name] >= 0 for name, weight in model.weights.items())


def test_where_the_package_is_right_nothing_is_installed(tmp_path):
    class Here:
        folder = tmp_path

    installed = 0
    for seed in range(3):
        found = train_confidence(Here(), rows(seed=seed), trained_on=TRAINED)
        assert found.installed is (tmp_path / CONFIDENCE_FILE).exists()
        assert found.installed or "not installed, since it does not surely help" in found.verdict
        installed += found.installed
        (tmp_path / CONFIDENCE_FILE).unlink(missing_ok=True)
    assert installed <= 1


def test_what_would_silence_right_answers_is_not_installed(tmp_path):
    # Answers of which the package is sure, and which are right in two of five cases whatever is known of them.
    found = []
    for at in range(100):
        features = AnswerFeatures(coverage=1.0, relevance=0.9, reachable=1.0)
        right = at % 5 < 2
        found.append(AnsweredQuestion(query_id=f"q{at}", features=features, support=1.0, right=right, answerable=True))
    seen = validate_confidence(found)
    assert seen.is_closer
    assert seen.silences
    assert not seen.helps

    class Here:
        folder = tmp_path

    trained = train_confidence(Here(), found, trained_on=TRAINED)
    assert (trained.installed, trained.model) == (False, None)
    assert "would decline 100% of right answers instead of 0%" in trained.verdict


def test_few_answers_stay_near_the_package():
    package = default_model().weights
    few, many = fit_index_confidence(rows(24, off=0.4)), fit_index_confidence(rows(1_000, off=0.4))
    moved = [sum(abs(model.weights[name] - package[name]) for name in package) for model in (few, many)]
    assert 0 < moved[0] < moved[1]


def test_same_seed_same_figures():
    given = rows(40, off=0.3)
    assert validate_confidence(given, seed=3) == validate_confidence(given, seed=3)
    json.dumps(validate_confidence(given).to_dict(), allow_nan=False)


def test_too_few_answers_fit_nothing(tmp_path):
    assert "19 judged questions are too few" in too_few(rows(19))
    right = [AnsweredQuestion(query_id=f"q{at}", features=AnswerFeatures(coverage=1.0), support=1.0, right=True,
                              answerable=True) for at in range(30)]  # fmt: skip
    assert "30 right and 0 wrong" in too_few(right)
    with pytest.raises(EvaluationError, match="too few"):
        validate_confidence(right)
    found = train_confidence(None, right, trained_on=TRAINED)
    assert (found.validation, found.model, found.installed) == (None, None, False)


def test_answers_hold_what_is_right():
    assert holds_answer("It weighs 1,200 kg [1].", "1200", language="en")
    assert not holds_answer("It weighs 12 kg.", "1200", language="en")
    assert holds_answer("The harbour master keeps it.", "the harbour master", language="en")
    assert not holds_answer("The baker keeps it.", "the harbour master", language="en")


@pytest.fixture
def folder(tmp_path):
    return write_beir(tmp_path / "things", THINGS, ASKED)


@pytest.fixture
def indexed(tmp_path, folder):
    with AgenticRouter(RouterConfig(data_dir=tmp_path / "data"), embedding=FakeEmbedding(dimension=256)) as router:
        router.add_index("mine", folder / "corpus.jsonl", description="crates")
        yield router


def asked(count=3, **changes):
    return [
        AskedQuestion(query_id=i, text=text, vector=None, relevance={doc_id: 1}, **changes)
        for i, (text, doc_id) in list(ASKED.items())[:count]
    ]


def test_answers_are_judged_by_what_they_cite(indexed):
    found, failures = answered_questions(indexed, indexed.index("mine"), asked())
    assert not failures
    whole, left_out = found[::2], found[1::2]
    assert all(row.right and row.answerable and row.weight == 1.0 for row in whole)
    # Without the relevant document there is nothing right to cite, and less of the question is found.
    assert all(not row.right and not row.answerable and row.weight == LEFT_OUT_WEIGHT for row in left_out)
    assert all(one.features.reachable > other.features.reachable for one, other in zip(whole, left_out, strict=True))
    elsewhere = [AskedQuestion(query_id="q0", text=ASKED["q0"][0], vector=None, relevance={"d9": 1})]
    assert not answered_questions(indexed, indexed.index("mine"), elsewhere)[0][0].right


def test_a_known_answer_must_be_given(indexed):
    index = indexed.index("mine")
    assert answered_questions(indexed, index, asked(1, answer="100 kilograms"))[0][0].right
    assert not answered_questions(indexed, index, asked(1, answer="777 kilograms"))[0][0].right


def test_labelled_questions_without_an_answer_stand_for_all_such(indexed):
    nothing = AskedQuestion(query_id="out", text="who painted the ceiling", vector=None, relevance={})
    found, _ = answered_questions(indexed, indexed.index("mine"), [*asked(2), nothing])
    assert [(row.query_id, row.answerable, row.right, row.weight) for row in found] == [
        ("q0", True, True, 1.0), ("q1", True, True, 1.0), ("out", False, False, 1.0)
    ]  # fmt: skip


def test_answers_are_kept_for_an_interrupted_training(indexed, tmp_path, monkeypatch):
    index, journal = indexed.index("mine"), Journal(tmp_path / "j", "k")
    found = answered_questions(indexed, index, asked(), journal=journal)

    def never(*_, **__):
        raise AssertionError("asked again")

    monkeypatch.setattr(type(indexed), "retrieve", never)
    assert answered_questions(indexed, index, asked(), journal=Journal(tmp_path / "j", "k")) == found
    journal.keep(confidence_training.PART, {"rows": [{"odd": 1}], "failures": []})
    with pytest.raises(AssertionError, match="asked again"):
        answered_questions(indexed, index, asked(), journal=journal)


def test_training_calibrates_and_the_router_uses_it(indexed, folder, monkeypatch):
    real = confidence_training.answered_questions
    monkeypatch.setattr("agentic_retriever.evaluation.training.answered_questions",
                        lambda *a, **k: (rows(160, off=-0.4), real(*a, **k)[1]))  # fmt: skip
    before = indexed.query(ASKED["q3"][0], index="mine").confidence.score
    result = train_strategies([load_dataset(folder)], indexed, "mine", TrainingOptions(), today=lambda: "2026-01-02")
    path = indexed.index("mine").folder / CONFIDENCE_FILE
    assert result.confidence.installed
    assert path.exists()
    assert result.confidence.verdict.startswith("confidence installed: Brier ")
    trained = IndexConfidence.load(path).trained_on
    assert (trained.dataset, trained.index, trained.judged_by, trained.date) == (
        "things", "mine", "relevant documents", "2026-01-02"
    )  # fmt: skip
    # The cached answer no longer holds, and the new one is surer.
    after = indexed.query(ASKED["q3"][0], index="mine")
    assert not after.cached
    assert after.confidence.score > before
    told = result.to_dict()["confidence"]
    assert {"validation", "model", "installed", "verdict", "failures"} == set(told)
    assert {"before", "after", "brier_gain", "log_loss_gain", "helps"} <= set(told["validation"])
    json.dumps(told, allow_nan=False)


def test_a_dry_run_calibrates_nothing(indexed, folder, monkeypatch):
    monkeypatch.setattr(
        "agentic_retriever.evaluation.training.answered_questions", lambda *a, **k: (rows(160, off=-0.4), ())
    )
    result = train_strategies([load_dataset(folder)], indexed, "mine", TrainingOptions(dry_run=True))
    assert result.confidence.validation.helps
    assert not result.confidence.installed
    assert "dry run" in result.confidence.verdict
    assert not (indexed.index("mine").folder / CONFIDENCE_FILE).exists()


def test_questions_of_a_file_are_calibrated_on_with_those_that_nothing_answers(indexed, tmp_path):
    records = [{"id": i, "query": text, "index": "mine", "doc_ids": [doc_id]} for i, (text, doc_id) in ASKED.items()]
    others = [{"id": f"out{at}", "query": f"who painted ceiling number {at}", "answerable": False} for at in range(8)]
    path = write_lines(tmp_path / "asked.jsonl", [*records, *others])
    found = train_strategies([load_dataset(path)], indexed, "mine", TrainingOptions(dry_run=True)).confidence
    assert (found.validation.questions, found.validation.rows, found.validation.unanswerable) == (32, 32, 8)


def certain(log_odds):
    return IndexConfidence(model=ConfidenceModel(intercept=log_odds, weights={}, neutral={}), trained_on=TRAINED)


def test_an_index_has_its_own_confidence_and_of_several_the_least_counts(indexed, tmp_path):
    other = write_lines(tmp_path / "o.jsonl", [{"_id": "o1", "text": "An oven is heavy and weighs much."}])
    indexed.add_index("other", other)
    certain(3.0).save(indexed.index("mine").folder / CONFIDENCE_FILE)
    alone = indexed.retrieve("how much does the oven weigh", index="mine")
    assert indexed.query("how much does the oven weigh", index="mine").confidence.score > 0.9
    stage = AnswerStage(indexed.resources, None)
    mixed = {node.node.node_id: ("other" if at else "mine") for at, node in enumerate(alone.nodes)}
    low, high = certain(-1.0), certain(3.0)
    assert [one.confidence for one in stage._trained(alone, {})] == [high]
    assert [one.confidence for one in stage._trained(alone, mixed)] == [high, None]
    assert _weights([Trained(), Trained()]) == ()
    assert _weights(stage._trained(alone, mixed)) == (high.model, default_model())
    assert _weights([Trained(confidence=high), Trained(confidence=low)]) == (high.model, low.model)

    def score(*models):
        synthesizer = Synthesizer(ExtractiveSynthesizer(), answer_threshold=0.0)
        return synthesizer.synthesize(
            "how much does the oven weigh", alone.nodes, evidence=Evidence(confidences=models)
        ).confidence.score

    assert score(high.model, low.model) == score(low.model) < score() < score(high.model)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "cannot be used"),
        ("[]", "the file must be an object"),
        (json.dumps({**certain(0.0).to_dict(), "format": 9}), "format must be 1"),
        (json.dumps({**certain(0.0).to_dict(), "trained_on": {}}), "trained_on must be an object"),
        (json.dumps({**certain(0.0).to_dict(), "model": {"intercept": 0, "weights": {"x": 1}, "neutral": {}}}), "x"),
    ],
)
def test_a_damaged_file_is_told_and_the_package_counts(indexed, content, told):
    before = indexed.query(ASKED["q3"][0], index="mine").confidence
    path = indexed.index("mine").folder / CONFIDENCE_FILE
    path.write_text(content, encoding="utf-8")
    with pytest.raises(StoreDamagedError, match=told):
        IndexConfidence.load(path)
    after = indexed.query(ASKED["q3"][0], index="mine")
    assert after.confidence == before
    assert [lost.step for lost in after.degraded].count("synthesis.confidence") == 1


def test_pseudo_queries_calibrate_nothing():
    left = ConfidenceTraining.left_out("why")
    assert (left.installed, left.verdict) == (False, "confidence not fitted: why")

from __future__ import annotations

import importlib.util
import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.synthesis import AnswerFeatures, ConfidenceModel, confidence_score, unknown_share
from agentic_retriever.synthesis.confidence import SIGNS, default_model

SCRIPT = Path(__file__).parents[2] / "scripts" / "fit_confidence.py"
UNIT = st.floats(0, 1)
MAYBE = st.none() | UNIT
FEATURES = st.builds(
    AnswerFeatures,
    coverage=UNIT,
    relevance=MAYBE,
    reachable=MAYBE,
    absent=MAYBE,
    missing_code=MAYBE,
    unknown_share=MAYBE,
    foreign=st.booleans(),
)


def test_good_evidence_is_high_and_none_is_not_found():
    good = AnswerFeatures(coverage=1, relevance=0.98, reachable=1, absent=0, missing_code=0, unknown_share=0)
    assert confidence_score(good, support=1) >= 0.75
    none = AnswerFeatures(coverage=0, relevance=0.02, reachable=0, absent=1, missing_code=1, unknown_share=1)
    assert confidence_score(none, support=1) < 0.1
    assert confidence_score(AnswerFeatures(coverage=1), support=1) > 0.75
    assert confidence_score(AnswerFeatures(coverage=0), support=1) < 0.5


def test_support_scales_the_score():
    features = AnswerFeatures(coverage=1, relevance=0.9)
    assert confidence_score(features, support=0) == pytest.approx(0.4 * confidence_score(features, support=1))


@given(st.floats(), st.none() | st.floats(), st.floats(), FEATURES)
def test_any_numbers_give_a_score_in_range(coverage, relevance, support, features):
    given_features = replace(features, coverage=coverage, relevance=relevance)
    assert 0.0 <= confidence_score(given_features, support=support) <= 1.0


@given(FEATURES, UNIT, UNIT)
def test_better_evidence_never_lowers_it(features, support, value):
    base = confidence_score(features, support=support)
    assert confidence_score(features, support=max(support, value)) >= base - 1e-9
    for name in ("coverage", "relevance", "reachable", "absent", "missing_code", "unknown_share"):
        old = getattr(features, name)
        if old is None:
            continue
        better = min(old, value) if SIGNS.get(name, 1) < 0 else max(old, value)
        assert confidence_score(replace(features, **{name: better}), support=support) >= base - 1e-9


@pytest.fixture(scope="module")
def script():
    """The script that fits the packaged weights."""
    spec = importlib.util.spec_from_file_location("fit_confidence", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look there for their types
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def _rows(script, count=400):
    """Answers that are right with a probability that coverage and relevance decide."""
    rng = random.Random(5)
    rows = []
    for _ in range(count):
        coverage, relevance = rng.random(), rng.random()
        right = rng.random() < 1 / (1 + 2.718 ** -(5 * coverage + 3 * relevance - 4))
        features = AnswerFeatures(
            coverage=coverage, relevance=relevance, unknown_share=rng.random(), absent=rng.choice([None, 0.0, 1.0])
        )
        rows.append(script.JudgedAnswer(features=features, right=right))
    return rows


def test_a_fit_is_calibrated_and_finds_what_matters(script):
    rows = _rows(script)
    model = script.fit_confidence(rows)
    given = [model.probability(row.features) for row in rows]
    assert sum(given) / len(given) == pytest.approx(sum(row.right for row in rows) / len(rows), abs=0.02)
    assert model.weights["reachable"] > 1.5
    assert model.weights["reachable"] > abs(model.weights["unknown_share"])
    assert all(weight * SIGNS[name] >= 0 for name, weight in model.weights.items())


def test_a_fit_is_the_same_every_time_and_needs_both_kinds(script):
    rows = _rows(script, 60)
    assert script.fit_confidence(rows) == script.fit_confidence(rows)
    with pytest.raises(ValueError, match="right and wrong"):
        script.fit_confidence([row for row in rows if row.right])
    with pytest.raises(ValueError, match="got 0"):
        script.fit_confidence([])


def test_wrong_evidence_gets_no_weight_rather_than_a_wrong_sign(script):
    rows = [
        script.JudgedAnswer(features=replace(row.features, coverage=1 - row.features.coverage), right=row.right)
        for row in _rows(script)
    ]
    assert script.fit_confidence(rows).weights["reachable"] == 0.0


def test_a_model_turns_into_json_and_back():
    model = default_model()
    assert ConfidenceModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model


@pytest.mark.parametrize(
    "given",
    [{}, *({"intercept": 0, "weights": {}, "neutral": {}} | bad for bad in ({"intercept": "x"}, {"weights": [1]}))],
)
def test_a_model_that_cannot_be_read_is_refused(given):
    with pytest.raises(ValueError, match="ConfidenceModel"):
        ConfidenceModel.from_dict(given)


def test_the_shipped_weights_have_the_signs_that_are_fixed():
    model = default_model()
    assert model.weights.keys() == SIGNS.keys()
    assert all(weight * SIGNS[name] >= 0 for name, weight in model.weights.items() if SIGNS[name])


def test_another_model_may_judge():
    lenient = ConfidenceModel(intercept=5.0, weights={}, neutral={})
    assert confidence_score(AnswerFeatures(coverage=0, relevance=0), support=1, model=lenient) > 0.99


def test_the_share_of_unknown_terms():
    known = {"pump": 3, "oil": 1}
    assert unknown_share("pump oil", known, language="en") == 0.0
    assert unknown_share("pump giraffe", known, language="en") == 0.5
    assert unknown_share("???", known, language="en") is None

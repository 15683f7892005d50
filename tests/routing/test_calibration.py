from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.errors import ConfigError
from agentic_retriever.indices.profile import ProfiledNode, make_profile, sample_ids
from agentic_retriever.routing import (
    Calibration,
    LabelledQuery,
    ProfileClassifier,
    calibrate,
    expected_calibration_error,
    fit_temperature,
    pseudo_queries,
)
from agentic_retriever.routing.calibration import MAX_TEMPERATURE, MIN_TEMPERATURE, softmax_rows
from agentic_retriever.routing.pseudo_queries import MAX_PSEUDO_QUERIES, MOST_CAUTIOUS

TOPICS = {"boats": "ferry harbour anchor sail mooring tide", "bread": "dough oven flour crust yeast loaf"}


def topical_profile(name, seed, *, nodes=60, words=None):
    """An index of sentences on one topic, with vectors that scatter around the topic."""
    rng = np.random.default_rng(seed)
    known = (words or TOPICS[name]).split()
    texts = [f"The {' '.join(rng.choice(known, 4))} was noted in the report of day {at}." for at in range(nodes)]
    made = [ProfiledNode(f"{name}-{at:03d}", text, {}) for at, text in enumerate(texts)]
    centre = np.random.default_rng(sum(map(ord, name))).standard_normal(24)
    vectors = (centre + 1.5 * rng.standard_normal((nodes, 24))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert sample_ids([node.node_id for node in made]) == [node.node_id for node in made]
    return make_profile(made, vectors, name=name, description="", description_vector=vectors[0, :0], version=1)


@pytest.fixture(scope="module")
def pair():
    return [topical_profile("boats", 1), topical_profile("bread", 2)]


def drawn_logits(temperature, *, count=4000, indexes=4, seed=0):
    """Logits whose softmax at the given temperature is the truth that the labels are drawn from."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=3.0, size=(count, indexes))
    shares = softmax_rows(logits / temperature)
    return logits, (shares.cumsum(axis=1) < rng.random((count, 1))).sum(axis=1).clip(0, indexes - 1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 4.0])
def test_the_temperature_that_made_the_labels_is_found(temperature):
    logits, labels = drawn_logits(temperature)
    assert fit_temperature(logits, labels) == pytest.approx(temperature, rel=0.1)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), count=st.integers(1, 40))
def test_no_temperature_on_a_grid_is_better(seed, count):
    logits, labels = drawn_logits(1.5, count=count, seed=seed)

    def loss(temperature):
        shares = softmax_rows(logits / temperature)
        return -np.log(np.maximum(shares[np.arange(count), labels], 1e-300)).mean()

    fitted = fit_temperature(logits, labels)
    assert MIN_TEMPERATURE * 0.999 <= fitted <= MAX_TEMPERATURE * 1.001
    grid = np.geomspace(MIN_TEMPERATURE, MAX_TEMPERATURE, 80)
    assert loss(fitted) <= min(map(loss, grid)) + 1e-6


def test_the_ends_are_bounded():
    certain = np.array([[1.0, 0.0]] * 50)
    assert fit_temperature(certain, [0] * 50) == pytest.approx(MIN_TEMPERATURE, rel=1e-3)
    assert fit_temperature(certain, [1] * 50) == pytest.approx(MAX_TEMPERATURE, rel=1e-3)
    assert fit_temperature(np.zeros((0, 2)), []) == 1.0


def test_an_impossible_index_does_no_harm():
    logits, labels = drawn_logits(2.0)
    wide = np.hstack([logits, np.full((len(logits), 1), -math.inf)])
    assert fit_temperature(wide, labels) == pytest.approx(fit_temperature(logits, labels))


def test_weights_count():
    logits = np.array([[2.0, 0.0], [2.0, 0.0]])
    assert fit_temperature(logits, [0, 1], weights=[9, 1]) < fit_temperature(logits, [0, 1], weights=[6, 4])


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        ([[1.0, 2.0]], [2]),
        ([[1.0, 2.0]], [-1]),
        ([[1.0, 2.0]], [0, 1]),
        ([1.0, 2.0], [0, 1]),
        ([[math.nan, 1.0]], [0]),
        ([[math.inf, 1.0]], [0]),
        ([[1.0, 2.0]], [0.5]),
    ],
)
def test_logits_and_labels_that_do_not_fit_are_refused(logits, labels):
    with pytest.raises(ConfigError, match=r"match|columns|finite"):
        fit_temperature(logits, labels)


def test_calibration_error_by_hand():
    assert expected_calibration_error([0.95, 0.95, 0.15, 0.15], [True, True, False, False], bins=10) == pytest.approx(
        0.1
    )
    assert expected_calibration_error([1.0] * 4, [True, True, True, False]) == pytest.approx(0.25)
    assert expected_calibration_error([0.9, 0.5], [True, False], weights=[1, 0], bins=10) == pytest.approx(0.1)
    assert expected_calibration_error([], []) == 0.0


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60), st.integers(1, 30))
def test_calibration_error_is_a_share_that_one_bin_bounds_from_below(pairs, bins):
    sure, right = zip(*pairs, strict=True)
    error = expected_calibration_error(sure, right, bins=bins)
    assert -1e-12 <= error <= 1 + 1e-12
    assert error >= abs(np.mean(sure) - np.mean(right)) - 1e-9


@pytest.mark.parametrize(
    ("sure", "right", "bins"), [([0.5], [], 15), ([1.5], [True], 15), ([math.nan], [True], 15), ([0.5], [True], 0)]
)
def test_calibration_error_of_nonsense_is_refused(sure, right, bins):
    with pytest.raises(ConfigError):
        expected_calibration_error(sure, right, bins=bins)


def test_a_calibration_comes_back_as_it_was_saved(tmp_path):
    made = Calibration(temperature=1.25, fitted_on="labels", queries=80, indexes=3, error_before=0.04)
    made.save(tmp_path / "calibration.json")
    assert Calibration.load(tmp_path / "calibration.json") == made
    assert Calibration.from_dict(json.loads(json.dumps(made.to_dict()))) == made


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "{}", '{"format": 2}', '{"format": 1}', '{"format": 1, "temperature": "hot"}',
     '{"format": 1, "temperature": 0, "error_before": 0, "error_after": 0, "queries": 1, "indexes": 1}',
     '{"format": 1, "temperature": 1, "error_before": 0, "error_after": 0, "queries": true, "indexes": 1}'],
)  # fmt: skip
def test_a_file_that_is_no_calibration_is_refused(tmp_path, text):
    (tmp_path / "c.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        Calibration.load(tmp_path / "c.json")
    with pytest.raises(ConfigError, match="cannot read"):
        Calibration.load(tmp_path / "none.json")


@pytest.mark.parametrize("temperature", [0, 0.1, 9, math.nan, math.inf, True, "1", None])
def test_a_temperature_out_of_range_is_refused(temperature):
    with pytest.raises(ConfigError, match="temperature"):
        Calibration(temperature=temperature)


def test_a_temperature_changes_confidence_and_not_the_choice(pair):
    vector = pair[0].sample[3]
    plain = ProfileClassifier().classify("harbour crust", pair, query_vector=vector)
    careful = ProfileClassifier(calibration=Calibration(temperature=4.0)).classify(
        "harbour crust", pair, query_vector=vector
    )
    assert list(careful.scores) == list(plain.scores)
    assert 0.5 < careful.confidence < plain.confidence
    odds = math.log(plain.confidence / (1 - plain.confidence))
    assert math.log(careful.confidence / (1 - careful.confidence)) == pytest.approx(odds / 4)


def test_pseudo_queries_come_from_every_index(pair):
    drawn = pseudo_queries(pair)
    assert {one.index for one in drawn} == {"boats", "bread"}
    assert all(one.vector is not None and one.query for one in drawn)
    many = [topical_profile("boats", at, nodes=64) for at in range(40)]
    assert 40 <= len(pseudo_queries(many)) <= MAX_PSEUDO_QUERIES


def test_without_labels_it_is_fitted_on_the_indexes_themselves(pair):
    fitted = calibrate(pair)
    assert fitted.fitted_on == "pseudo-queries"
    assert fitted.queries == len(pseudo_queries(pair))
    assert 1.0 <= fitted.temperature <= MOST_CAUTIOUS
    assert calibrate(pair) == fitted


def test_indexes_on_the_same_topic_make_it_cautious():
    twins = [topical_profile("boats", 1), topical_profile("bread", 2, words=TOPICS["boats"])]
    # Vectors point elsewhere than words do: held-out sentences are often taken for the other index.
    centred = topical_profile("boats", 3)
    twins[1] = make_profile(
        [ProfiledNode(f"t{at:03d}", one.text, {}) for at, one in enumerate(centred.specimens)],
        centred.sample[[one.row for one in centred.specimens]],
        name="twin", description="", description_vector=centred.sample[0, :0], version=1,
    )  # fmt: skip
    fitted = calibrate(twins)
    assert fitted.temperature > 1.0
    assert fitted.error_after < fitted.error_before


def test_held_out_means_that_the_node_itself_does_not_help():
    """Two indexes with the very same nodes: with the node held out, the other one wins."""
    one = topical_profile("boats", 1)
    other = topical_profile("boats", 1)
    fitted = calibrate([one, make_profile(
        [ProfiledNode(f"x{at:03d}", f"The {TOPICS['boats']} was noted in the report of day {at}.", {})
         for at in range(60)],
        other.sample, name="copy", description="", description_vector=other.sample[0, :0], version=1,
    )])  # fmt: skip
    assert fitted.error_before > 0.2
    assert fitted.temperature == MOST_CAUTIOUS


def test_labels_go_first_where_there_are_enough(pair):
    labelled = [LabelledQuery(query=one.query, index=one.index, vector=one.vector) for one in pseudo_queries(pair)]
    assert calibrate(pair, labelled[:10]).fitted_on == "pseudo-queries"
    fitted = calibrate(pair, labelled)
    assert (fitted.fitted_on, fitted.queries, fitted.indexes) == ("labels", len(labelled), 2)
    elsewhere = [LabelledQuery(query="x", index="unknown")] * 50
    assert calibrate(pair, elsewhere).fitted_on == "pseudo-queries"


def test_too_little_to_fit_on_leaves_the_temperature_at_one(pair, make):
    assert calibrate([]) == Calibration()
    assert calibrate(pair[:1]).fitted_on == "nothing"
    small = calibrate([make("a", ["one text only here"]), make("b", ["another text"]), make("empty", [])])
    assert (small.temperature, small.fitted_on) == (1.0, "nothing")

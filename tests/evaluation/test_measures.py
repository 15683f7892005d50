"""Measures against brute force."""

import importlib
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from agentic_retriever.errors import ConfigError, EvaluationError
from agentic_retriever.evaluation import measures
from agentic_retriever.evaluation.results import tradeoff_figure

NAMES = st.sampled_from(["a", "b", "c", "d"])
PAIRS = st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=40)


@given(PAIRS)
def test_classification_equals_brute_force(pairs):
    outcomes = measures.compare([g for g, _ in pairs], [c for _, c in pairs])
    assert outcomes.total == len(pairs)
    assert outcomes.accuracy == pytest.approx(sum(g == c for g, c in pairs) / len(pairs))
    recalls, scores = [], []
    for name in sorted({g for g, _ in pairs}):
        hits = sum(g == c == name for g, c in pairs)
        asked, answered = sum(g == name for g, _ in pairs), sum(c == name for _, c in pairs)
        precision, recall = hits / answered if answered else 0.0, hits / asked
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        recalls.append(recall)
        scores.append(f1)
        row = outcomes.by_label()[name]
        assert (row["count"], row["precision"], row["recall"]) == (asked, precision, recall)
        assert row["f1"] == pytest.approx(f1)
    assert outcomes.macro_accuracy == pytest.approx(np.mean(recalls))
    assert outcomes.macro_f1 == pytest.approx(np.mean(scores))
    table = outcomes.confusion()
    for g in "abcd":
        for c in "abcd":
            assert table.get(g, {}).get(c, 0) == sum(pair == (g, c) for pair in pairs)


def test_nothing_to_compare():
    outcomes = measures.compare([], [])
    assert outcomes.accuracy is outcomes.macro_accuracy is outcomes.macro_f1 is None
    assert outcomes.confusion() == {}
    with pytest.raises(ValueError, match="as many"):
        measures.compare(["a"], [])


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.floats(0.1, 5)), min_size=1, max_size=60), st.integers(1, 20)
)
def test_calibration_error_equals_brute_force(rows, bins):
    found = measures.measure_reliability(
        [c for c, _, _ in rows], [r for _, r, _ in rows], bins=bins, weights=[w for _, _, w in rows]
    )
    total, expected = sum(w for _, _, w in rows), 0.0
    for at in range(bins):
        inside = [row for row in rows if min(bins - 1, math.floor(row[0] * bins)) == at]
        assert found.bins[at].count == len(inside)
        if not inside:
            assert found.bins[at].confidence is found.bins[at].accuracy is None
            continue
        mass = sum(w for _, _, w in inside)
        confidence = sum(c * w for c, _, w in inside) / mass
        accuracy = sum(r * w for _, r, w in inside) / mass
        assert found.bins[at].confidence == pytest.approx(confidence)
        expected += mass / total * abs(accuracy - confidence)
    assert found.ece == pytest.approx(expected, abs=1e-9)
    assert sum(one.weight for one in found.bins) == pytest.approx(1)


def test_calibration_of_known_cases():
    assert measures.measure_reliability([0.8] * 5, [True] * 4 + [False]).ece == pytest.approx(0)
    assert measures.measure_reliability([1.0] * 4, [True, False, False, False]).ece == pytest.approx(0.75)
    assert measures.measure_reliability([], []).ece is None
    for bad in ([1.1], [-0.1], [math.nan]):
        with pytest.raises(ValueError, match="in \\[0, 1\\]"):
            measures.measure_reliability(bad, [True])


def ndcg(ranking, grades, cutoff=10):
    gains = [grades.get(doc_id, 0) for doc_id in ranking[:cutoff]]
    ideal = sorted(grades.values(), reverse=True)[:cutoff]
    discounted = [sum(g / math.log2(at + 2) for at, g in enumerate(values)) for values in (gains, ideal)]
    return discounted[0] / discounted[1] if discounted[1] else 0.0


DOCS = [f"d{at}" for at in range(14)]


@given(
    st.dictionaries(st.sampled_from(DOCS), st.integers(0, 3), min_size=1),
    st.lists(st.sampled_from(DOCS), unique=True, max_size=14),
)
def test_ndcg_equals_brute_force(grades, ranking):
    pytest.importorskip("ir_measures")
    found = measures.ndcg_by_query({"q": grades, "nobody answered": {"d1": 1}}, {"q": ranking, "not asked": ["d1"]})
    assert found == {"q": pytest.approx(ndcg(ranking, grades), abs=1e-6), "nobody answered": 0.0}


def node(node_id, doc_id, score):
    relationships = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)} if doc_id else {}
    return NodeWithScore(node=TextNode(id_=node_id, text="x", relationships=relationships), score=score)


def test_a_document_counts_by_its_best_node():
    rows = [("n1", "a", 0.5), ("n2", "b", 0.4), ("n3", "b", 0.9), ("n4", None, 0.45), ("n5", "c", 0.5)]
    assert measures.fold_to_documents([node(*row) for row in rows]) == ["b", "a", "c", "n4"]
    assert measures.fold_to_documents([]) == []


def test_missing_libraries_name_the_extra(monkeypatch, tmp_path):
    real = importlib.import_module

    def load(name, *args):
        if name.split(".")[0] in {"ir_measures", "matplotlib"}:
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", load)
    with pytest.raises(ConfigError, match="extra 'bench'"):
        measures.ndcg_by_query({"q": {"d": 1}}, {})
    with pytest.raises(ConfigError, match="extra 'bench'"):
        tradeoff_figure({})


values = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=8)


@given(st.lists(st.tuples(st.floats(0, 1, width=16), st.floats(0, 1, width=16)), min_size=1, max_size=8))
def test_randomisation_is_that_of_all_sign_changes(pairs):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    gaps = [a - b for a, b in pairs]
    seen = abs(sum(gaps))
    sums = [abs(sum(g * s for g, s in zip(gaps, signs, strict=True)))
            for signs in itertools.product((1, -1), repeat=len(gaps))]  # fmt: skip
    expected = sum(one >= seen - 1e-9 for one in sums) / len(sums)
    assert measures.randomisation_test(first, second, seed=1) == pytest.approx(expected)


def test_random_sign_changes_come_near_to_all_of_them():
    gaps = np.random.default_rng(5).normal(0.05, 0.2, 14)
    exact = np.mean(np.abs(np.array(list(itertools.product((1, -1), repeat=14))) @ gaps) >= abs(gaps.sum()) - 1e-12)
    found = measures.randomisation_test(gaps.tolist(), [0.0] * 14, seed=3)
    assert found == pytest.approx(float(exact), abs=0.02)
    assert found == measures.randomisation_test(gaps.tolist(), [0.0] * 14, seed=3)
    assert found != measures.randomisation_test(gaps.tolist(), [0.0] * 14, seed=4)


def test_equal_ways_do_not_differ_and_clear_ones_do():
    assert measures.randomisation_test([0.5] * 30, [0.5] * 30, seed=0) == 1.0
    assert measures.randomisation_test([0.9] * 30, [0.1] * 30, seed=0) < 0.001
    for first, second in (([], []), ([1.0], [1.0, 2.0])):
        with pytest.raises(EvaluationError, match="as many values"):
            measures.randomisation_test(first, second, seed=0)
    for numbers, resamples in (([0.5], 0), ([], 10)):
        with pytest.raises(EvaluationError, match="bootstrap"):
            measures.bootstrap_interval(numbers, seed=0, resamples=resamples)


@given(values, st.integers(0, 5))
@settings(max_examples=50)
def test_bootstrap_is_that_of_plain_resampling(numbers, seed):
    low, high = measures.bootstrap_interval(numbers, seed=seed, resamples=200)
    drawn = np.random.default_rng(seed).integers(0, len(numbers), size=(200, len(numbers)))
    means = sorted(float(np.mean([np.float64(numbers[at]) for at in row])) for row in drawn)
    assert low == pytest.approx(float(np.quantile(means, 0.025)), abs=1e-9)
    assert high == pytest.approx(float(np.quantile(means, 0.975)), abs=1e-9)
    assert min(numbers) - 1e-9 <= low <= high <= max(numbers) + 1e-9


def test_bootstrap_covers_the_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    drawn = [measures.bootstrap_interval(rng.random(60).tolist(), seed=1, resamples=400) for _ in range(200)]
    assert 180 <= sum(low <= 0.5 <= high for low, high in drawn) <= 199


@given(st.dictionaries(st.text("abcdef", min_size=1), st.floats(0, 1), max_size=7), st.floats(0.001, 0.5))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values, alpha):
    rejected: set[str] = set()
    for at, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        if (len(p_values) - at) * p_values[name] > alpha:
            break
        rejected.add(name)
    corrected = measures.holm(p_values)
    assert list(corrected) == list(p_values)
    assert {name for name, p in corrected.items() if p <= alpha} == rejected
    assert all(p_values[name] <= corrected[name] <= 1 for name in p_values)

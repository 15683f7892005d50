from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.measures import bootstrap_interval, holm, randomisation_test

values = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=8)


@given(st.lists(st.tuples(st.floats(0, 1, width=16), st.floats(0, 1, width=16)), min_size=1, max_size=8))
def test_randomisation_is_that_of_all_sign_changes(pairs):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    gaps = [a - b for a, b in pairs]
    seen = abs(sum(gaps))
    sums = [abs(sum(g * s for g, s in zip(gaps, signs, strict=True)))
            for signs in itertools.product((1, -1), repeat=len(gaps))]  # fmt: skip
    expected = sum(one >= seen - 1e-9 for one in sums) / len(sums)
    assert randomisation_test(first, second, seed=1) == pytest.approx(expected)


def test_random_sign_changes_come_near_to_all_of_them():
    rng = np.random.default_rng(5)
    gaps = rng.normal(0.05, 0.2, 14)
    exact = np.mean(np.abs(np.array(list(itertools.product((1, -1), repeat=14))) @ gaps) >= abs(gaps.sum()) - 1e-12)
    found = randomisation_test(gaps.tolist(), [0.0] * 14, seed=3)
    assert found == pytest.approx(float(exact), abs=0.02)
    assert found == randomisation_test(gaps.tolist(), [0.0] * 14, seed=3)
    assert found != randomisation_test(gaps.tolist(), [0.0] * 14, seed=4)


def test_equal_ways_do_not_differ_and_clear_ones_do():
    assert randomisation_test([0.5] * 30, [0.5] * 30, seed=0) == 1.0
    assert randomisation_test([0.9] * 30, [0.1] * 30, seed=0) < 0.001


@pytest.mark.parametrize(("first", "second"), [([], []), ([1.0], [1.0, 2.0])])
def test_randomisation_needs_pairs(first, second):
    with pytest.raises(EvaluationError, match="as many values"):
        randomisation_test(first, second, seed=0)


@given(values, st.integers(0, 5))
@settings(max_examples=50)
def test_bootstrap_is_that_of_plain_resampling(numbers, seed):
    low, high = bootstrap_interval(numbers, seed=seed, resamples=200)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(numbers), size=(200, len(numbers)))
    means = sorted(float(np.mean([np.float64(numbers[at]) for at in row])) for row in drawn)
    assert low == pytest.approx(float(np.quantile(means, 0.025)), abs=1e-9)
    assert high == pytest.approx(float(np.quantile(means, 0.975)), abs=1e-9)
    assert min(numbers) - 1e-9 <= low <= high <= max(numbers) + 1e-9


def test_bootstrap_covers_the_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        low, high = bootstrap_interval(rng.random(60).tolist(), seed=1, resamples=400)
        inside += low <= 0.5 <= high
    assert 180 <= inside <= 199


def test_bootstrap_refuses_what_it_cannot_do():
    with pytest.raises(EvaluationError, match="bootstrap"):
        bootstrap_interval([0.5], seed=0, resamples=0)
    with pytest.raises(EvaluationError, match="bootstrap"):
        bootstrap_interval([], seed=0)


@given(st.dictionaries(st.text("abcdef", min_size=1), st.floats(0, 1), max_size=7), st.floats(0.001, 0.5))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values, alpha):
    rejected: set[str] = set()
    for at, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        if (len(p_values) - at) * p_values[name] > alpha:
            break
        rejected.add(name)
    corrected = holm(p_values)
    assert list(corrected) == list(p_values)
    assert {name for name, p in corrected.items() if p <= alpha} == rejected
    assert all(p_values[name] <= corrected[name] <= 1 for name in p_values)

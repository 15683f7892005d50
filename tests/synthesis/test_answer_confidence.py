from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.synthesis import confidence_score

UNIT = st.floats(0, 1)


@pytest.mark.parametrize(
    ("coverage", "relevance", "support", "expected"),
    [
        (1, None, 1, 1.0),
        (1, 1, 1, 1.0),
        (0, None, 1, 0.0),
        (0.8, None, 0, 0.32),
        (0, 1, 1, math.sqrt(0.5)),
        (0.6, 0.8, 1, math.sqrt(0.5)),
    ],
)
def test_formula(coverage, relevance, support, expected):
    assert confidence_score(coverage=coverage, relevance=relevance, support=support) == pytest.approx(expected)


@given(st.floats(), st.none() | st.floats(), st.floats())
def test_any_numbers_give_a_score_in_range(coverage, relevance, support):
    assert 0.0 <= confidence_score(coverage=coverage, relevance=relevance, support=support) <= 1.0


@given(UNIT, UNIT, UNIT, UNIT)
def test_more_of_anything_never_lowers_it(coverage, relevance, support, more):
    base = confidence_score(coverage=coverage, relevance=relevance, support=support)
    for name, value in (("coverage", coverage), ("relevance", relevance), ("support", support)):
        raised = {"coverage": coverage, "relevance": relevance, "support": support} | {name: max(value, more)}
        assert confidence_score(**raised) >= base - 1e-12

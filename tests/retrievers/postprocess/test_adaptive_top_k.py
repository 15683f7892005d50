from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranked_nodes import hit, ids

from agentic_retriever.errors import ConfigError, InvalidQueryError
from agentic_retriever.retrievers.refining import adaptive_top_k, stop_at_fall


@pytest.mark.parametrize(
    ("top_k", "score", "expected"),
    [(8, 0.0, 4), (8, 0.5, 8), (8, 1.0, 12), (4, 0.0, 3), (2, 0.0, 2), (1, 0.0, 1), (8, 7, 12)],
)
def test_simple_questions_get_fewer_and_complex_ones_more(top_k, score, expected):
    assert adaptive_top_k(top_k, score, maximum=100) == expected


@given(st.integers(1, 1_000), st.floats(0, 1), st.floats(0, 1), st.integers(1, 2_000))
def test_it_grows_with_complexity_within_the_limits(top_k, one, other, maximum):
    low, high = (adaptive_top_k(top_k, score, maximum=maximum) for score in sorted((one, other)))
    assert 1 <= low <= high <= maximum


def test_top_k_is_checked():
    with pytest.raises(InvalidQueryError):
        adaptive_top_k(0, 0.5, maximum=10)


def nodes_of(*values):
    return [hit(f"n{i}", value) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "fall", "kept"),
    [
        ((1.0, 0.9, 0.8, 0.2, 0.1), 0.5, 3),
        ((1.0, 0.9, 0.8, 0.2, 0.1), 0.7, 5),
        ((1.0, 0.2, 0.1, 0.05, 0.0), 0.5, 5),  # the gap lies among the first three, which always stay
        ((0.5, 0.5, 0.5, 0.5, 0.5), 0.1, 5),
        ((1.0, 0.9, 0.8, 0.2, 0.1), 0.0, 5),
        ((1.0, 0.9, 0.8, 0.2, None), 0.1, 5),
        ((math.inf, 0.9, 0.8, 0.2), 0.1, 4),
        ((), 0.5, 0),
        ((1.0,), 0.5, 1),
    ],
)
def test_nodes_behind_a_clear_gap_are_left_out(values, fall, kept):
    nodes = nodes_of(*values)
    assert stop_at_fall(nodes, fall) == nodes[:kept]
    assert len(ids(nodes)) == len(values)


@pytest.mark.parametrize("fall", [-0.1, 1.1, math.nan])
def test_the_fall_is_checked(fall):
    with pytest.raises(ConfigError):
        stop_at_fall([], fall)

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranked_nodes import dump, hit, ids

from agentic_retriever.errors import ConfigError
from agentic_retriever.retrievers.refining import mmr

NODES = [hit("a", 0.9), hit("b", 0.8), hit("c", 0.4)]
VECTORS = {"a": [1, 0], "b": [1, 0], "c": [0, 1]}


def test_a_node_like_one_chosen_before_gives_way():
    before = dump(NODES)
    assert ids(mmr(NODES, VECTORS, top_k=2, trade_off=0.5)) == ["a", "c"]
    assert ids(mmr(NODES, VECTORS, top_k=2, trade_off=0.9)) == ["a", "b"]
    assert dump(NODES) == before


def test_relevance_alone_changes_nothing():
    assert mmr(NODES, VECTORS, top_k=2, trade_off=1.0) == NODES[:2]
    assert mmr([], {}, top_k=2, trade_off=0.5) == []


@pytest.mark.parametrize("vector", [None, [0, 0], [math.nan, 1], [1, 0, 0]])
def test_a_node_without_a_usable_vector_is_like_none(vector):
    vectors = {"a": [1, 0], "c": [1, 0], **({} if vector is None else {"b": vector})}
    assert ids(mmr(NODES, vectors, top_k=2, trade_off=0.5)) == ["a", "b"]


@pytest.mark.parametrize("trade_off", [-0.1, 1.1, math.nan])
def test_the_trade_off_is_checked(trade_off):
    with pytest.raises(ConfigError):
        mmr(NODES, VECTORS, top_k=2, trade_off=trade_off)


def brute_force(relevance, cosines, top_k, trade_off):
    chosen = []
    while len(chosen) < min(top_k, len(relevance)):
        rest = [i for i in range(len(relevance)) if i not in chosen]
        near = {i: max((cosines[i][j] for j in chosen), default=0) for i in rest}
        gains = {i: trade_off * relevance[i] - (1 - trade_off) * near[i] for i in rest}
        chosen.append(max(rest, key=lambda i: (round(gains[i], 9), -i)))
    return chosen


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=8),
    st.integers(1, 9),
    st.integers(0, 99),
)
def test_it_equals_the_definition(rows, top_k, percent):
    nodes = [hit(str(i), float(-i * 20 + s)) for i, (s, _, _) in enumerate(rows)]
    vectors = {str(i): [x, y] for i, (_, x, y) in enumerate(rows)}
    values = np.array([n.score for n in nodes])
    span = np.ptp(values)
    relevance = (values - values.min()) / span if span else np.ones(len(values))
    units = [np.array(v) / (np.linalg.norm(v) or 1) for v in vectors.values()]
    cosines = [[float(a @ b) for b in units] for a in units]
    expected = brute_force(relevance, cosines, top_k, percent / 100)
    got = [int(i) for i in ids(mmr(nodes, vectors, top_k=top_k, trade_off=percent / 100))]
    assert len(got) == len(set(got)) == len(expected)

    def gains(order):
        near = [max((cosines[i][j] for j in order[:at]), default=0) for at, i in enumerate(order)]
        return [
            round(percent / 100 * relevance[i] - (1 - percent / 100) * n, 6) for i, n in zip(order, near, strict=True)
        ]

    assert got == expected or gains(got) == gains(expected)

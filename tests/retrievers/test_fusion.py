from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentic_retriever.errors import ConfigError
from agentic_retriever.retrievers.fusion import Fusion, borda, calibrated, fuse, ranked, reciprocal_rank, weighted_sum

IDS = st.sampled_from([f"n{i}" for i in range(8)])
SCORES = st.one_of(
    st.integers(-3, 3).map(float), st.floats(-100, 100), st.none(), st.sampled_from([math.nan, math.inf, -math.inf])
)
LISTS = st.dictionaries(
    st.sampled_from(["dense", "bm25", "third"]), st.lists(st.tuples(IDS, SCORES), max_size=8), max_size=3
)
WEIGHTS = st.fixed_dictionaries({name: st.floats(0, 4) for name in ("dense", "bm25", "third")})


def plain_order(entries):
    """The list in order, by repeated search for the best; ``None`` for what has no number."""
    known = {}
    for node_id, score in entries:
        usable = score is not None and math.isfinite(score)
        if node_id not in known or (usable and (known[node_id] is None or score > known[node_id])):
            known[node_id] = score if usable else None
    order = []
    while known:
        with_score = {i: s for i, s in known.items() if s is not None}
        best = max(with_score.values(), default=None)
        node_id = min(i for i, s in known.items() if s == best) if with_score else min(known)
        order.append((node_id, known.pop(node_id)))
    return order


def plain_points(method, order, node_id, n, k):
    """What one source gives to one of the ``n`` ids."""
    ids = [i for i, _ in order]
    if method == "borda" and ids and node_id not in ids:
        left_over = range(1, n - len(ids) + 1)
        return Fraction(sum(left_over), len(left_over) * n)
    if node_id not in ids:
        return 0
    if method not in {"weighted", "calibrated"}:
        rank = ids.index(node_id) + 1
        return Fraction(1, k + rank) if method == "rrf" else Fraction(n - rank + 1, n)
    score, finite = dict(order)[node_id], [Fraction(s) for _, s in order if s is not None]
    if score is None:
        return 0
    low, high = min(finite), max(finite)
    return 1 if low == high else (Fraction(score) - low) / (high - low)


def plain_fusion(method, lists, weights, k):
    orders = {name: plain_order(entries) for name, entries in lists.items()}
    everyone = {i for order in orders.values() for i, _ in order}
    return {
        i: float(
            sum(Fraction(weights[name]) * plain_points(method, orders[name], i, len(everyone), k) for name in orders)
        )
        for i in everyone
    }


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(Fusion)), LISTS, WEIGHTS, st.integers(1, 100))
def test_fusion_equals_the_plain_definition(method, lists, weights, k):
    before = repr((lists, weights))
    fused = fuse(method, lists, weights, rrf_k=k)
    expected = plain_fusion(method.value, lists, weights, k)
    assert dict(fused) == pytest.approx(expected, abs=1e-9)
    assert len(fused) == len(expected)
    assert fused == sorted(fused, key=lambda pair: (-pair[1], pair[0]))
    assert all(math.isfinite(score) for _, score in fused)
    assert repr((lists, weights)) == before


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(Fusion)), LISTS, WEIGHTS, st.randoms(use_true_random=False))
def test_no_order_of_sources_or_entries_matters(method, lists, weights, rng):
    names = list(lists)
    rng.shuffle(names)
    shuffled = {name: rng.sample(lists[name], len(lists[name])) for name in names}
    assert fuse(method, shuffled, weights) == fuse(method, lists, weights)


@pytest.mark.parametrize("method", list(Fusion))
def test_weights_decide(method):
    lists = {"dense": [("a", 3.0), ("b", 2.0), ("c", 1.0)], "bm25": [("c", 30.0), ("b", 20.0), ("a", 10.0)]}
    assert [i for i, _ in fuse(method, lists, {"dense": 0.99, "bm25": 0.01})] == ["a", "b", "c"]
    assert [i for i, _ in fuse(method, lists, {"dense": 0.01, "bm25": 0.99})] == ["c", "b", "a"]


def test_rrf_has_the_numbers_of_the_paper():
    fused = reciprocal_rank({"one": [("a", 9.0), ("b", 8.0)], "two": [("b", 0.2)]}, {"one": 1, "two": 1})
    assert fused == [("b", pytest.approx(1 / 62 + 1 / 61)), ("a", pytest.approx(1 / 61))]


def test_borda_shares_what_is_left_over():
    fused = borda({"one": [("a", 9.0), ("b", 8.0)], "two": [("c", 1.0)]}, {"one": 1, "two": 1})
    # Of 3 points, "one" gives 3, 2 and leaves 1 for c; "two" gives 3 and leaves 1 and 2, so 1.5 each.
    assert fused == [("a", pytest.approx(4.5 / 3)), ("c", pytest.approx(4 / 3)), ("b", pytest.approx(3.5 / 3))]


def test_weighted_sum_of_constant_and_single_lists():
    weights = {"one": 0.7, "two": 0.3}
    assert weighted_sum({"one": [("a", 5.0)], "two": []}, weights) == [("a", 0.7)]
    assert weighted_sum({"one": [("b", 5.0), ("a", 5.0)], "two": [("c", 1.0)]}, weights) == [
        ("a", 0.7),
        ("b", 0.7),
        ("c", 0.3),
    ]
    assert weighted_sum({"one": [("a", 3.0), ("b", 2.0), ("c", 1.0)]}, weights) == [("a", 0.7), ("b", 0.35), ("c", 0.0)]


@pytest.mark.parametrize("method", list(Fusion))
@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
def test_what_has_no_number_goes_last(method, bad):
    fused = fuse(method, {"one": [("a", bad), ("z", -5.0), ("y", 4.0)]}, {"one": 1.0})
    assert [i for i, _ in fused] == ["y", "z", "a"]
    assert [i for i, _ in fuse(method, {"one": [("b", bad), ("a", bad)]}, {"one": 1.0})] == ["a", "b"]


@settings(deadline=None)
@given(st.lists(st.tuples(IDS, st.floats(allow_nan=True, allow_infinity=True)), max_size=8))
@example([("n0", 1.7e308), ("n1", -1.7e308)])
@example([("n0", 5e-324), ("n1", 0.0), ("n2", math.nan)])
@example([("n0", -1.7976931348623157e308), ("n1", math.nan)])
def test_extreme_numbers_give_finite_scores_in_the_unit_interval(entries):
    for method in Fusion:
        fused = fuse(method, {"one": entries}, {"one": 1.0})
        assert all(0 <= score <= 1 for _, score in fused)
        assert {i for i, _ in fused} == {i for i, _ in entries}


def test_ranked_keeps_the_best_of_an_id_that_comes_twice():
    assert ranked([("a", 1.0), ("b", 2.0), ("a", 3.0), ("c", math.nan), ("c", 0.0)]) == [
        ("a", 3.0),
        ("b", 2.0),
        ("c", 0.0),
    ]


@pytest.mark.parametrize("method", list(Fusion))
def test_nothing_gives_nothing(method):
    assert fuse(method, {}, {}) == []
    assert fuse(method, {"one": [], "two": []}, {"one": 1, "two": 1}) == []


@pytest.mark.parametrize("weights", [{}, {"two": 1.0}, {"one": -0.1}, {"one": math.nan}, {"one": math.inf}])
@pytest.mark.parametrize("method", list(Fusion))
def test_bad_weights_are_refused(method, weights):
    with pytest.raises(ConfigError, match="source 'one'"):
        fuse(method, {"one": [("a", 1.0)]}, weights)


def test_a_bad_constant_is_refused():
    with pytest.raises(ConfigError, match="reciprocal rank fusion"):
        reciprocal_rank({}, {}, k=0)


FINITE = st.lists(st.tuples(IDS, st.floats(-100, 100)), max_size=8)


@settings(max_examples=200, deadline=None)
@given(FINITE, FINITE, st.floats(0, 1), st.one_of(st.none(), st.floats(-200, 200)))
def test_calibrated_scores_stay_in_the_unit_interval(dense, words, weight, floor):
    floors = None if floor is None else {"bm25": floor}
    fused = calibrated({"dense": dense, "bm25": words}, {"dense": weight, "bm25": 1 - weight}, floors=floors)
    assert all(-1e-12 <= score <= 1 + 1e-12 for _, score in fused)
    assert {i for i, _ in fused} == {i for i, _ in [*dense, *words]}
    assert fused == fuse(
        Fusion.CALIBRATED, {"bm25": words, "dense": dense}, {"bm25": 1 - weight, "dense": weight}, floors=floors
    )


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(IDS, st.integers(0, 50).map(float), min_size=2),
    st.dictionaries(IDS, st.integers(0, 50).map(float)),
    st.floats(0.05, 0.95),
    st.integers(1, 60),
    st.booleans(),
    st.data(),
)
def test_a_better_score_never_makes_a_node_fall_behind(dense, words, weight, more, whole, data):
    node = data.draw(st.sampled_from(sorted(dense)))
    weights, floors = {"dense": weight, "bm25": 1 - weight}, {"bm25": 0.0} if whole else None

    def lead(cosines):
        lists = {"dense": list(cosines.items()), "bm25": list(words.items())}
        scores = dict(calibrated(lists, weights, floors=floors))
        return {other for other in scores if scores[other] > scores[node] + 1e-9}

    # Only the lowest of a list may lose by rising: it carries the foot of the scale with it.
    raised = {**dense, node: dense[node] + more}
    if min(dense.values()) < dense[node] or min(raised.values()) == dense[node]:
        assert lead(raised) <= lead(dense)


@settings(max_examples=200, deadline=None)
@given(FINITE, st.floats(0.01, 1))
def test_a_side_that_found_nothing_leaves_the_order_of_the_other(entries, weight):
    alone = [i for i, _ in ranked(entries)]
    unlike = {s: i for i, s in ranked(entries)}
    fused = [i for i, _ in calibrated({"dense": entries, "bm25": []}, {"dense": weight, "bm25": 1 - weight})]
    assert set(fused) == set(alone)
    if len(unlike) == len(alone) and len({round(s, 6) for s in unlike}) == len(unlike):
        assert fused == alone


def test_a_whole_list_ends_above_what_it_does_not_hold():
    lists = {"dense": [("x", 0.9), ("b", 0.8), ("c", 0.7)], "bm25": [("a", 10.0), ("b", 5.0)]}
    weights = {"dense": 0.5, "bm25": 0.5}
    cut, whole = dict(calibrated(lists, weights)), dict(calibrated(lists, weights, floors={"bm25": 0.0}))
    assert (cut["b"], whole["b"]) == pytest.approx((0.25, 0.5))
    assert calibrated(lists, weights, floors={"bm25": 7.0, "other": 1.0}) == calibrated(lists, weights)
    assert calibrated(lists, weights, floors={"bm25": math.nan}) == calibrated(lists, weights)

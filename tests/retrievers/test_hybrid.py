import json
import math
import os
from dataclasses import asdict
from fractions import Fraction
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import MetadataFilters
from search_material import QUERY, ask, ids, of_document, pairs, scores
from store_tools import where

from agentic_retriever import retrievers
from agentic_retriever.errors import ConfigError, EmbeddingError, RetrievalError, StoreDamagedError, StoreError
from agentic_retriever.retrievers import hybrid as hybrids
from agentic_retriever.retrievers.hybrid import DEFAULT_FUSION, Fusion, FusionModel, dense_excess, fuse, ranked
from agentic_retriever.testing.retriever_contract import check_result, contract_nodes

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


def plain_points(method, order, node_id, n):
    """What one source gives to one of the ``n`` ids."""
    ids = [i for i, _ in order]
    if method == "borda" and ids and node_id not in ids:
        left_over = range(1, n - len(ids) + 1)
        return Fraction(sum(left_over), len(left_over) * n)
    if node_id not in ids:
        return 0
    if method not in {"weighted", "calibrated"}:
        rank = ids.index(node_id) + 1
        return Fraction(1, 60 + rank) if method == "rrf" else Fraction(n - rank + 1, n)
    score, finite = dict(order)[node_id], [Fraction(s) for _, s in order if s is not None]
    if score is None:
        return 0
    low, high = min(finite), max(finite)
    return 1 if low == high else (Fraction(score) - low) / (high - low)


def plain_fusion(method, lists, weights):
    orders = {name: plain_order(entries) for name, entries in lists.items()}
    everyone = {i for order in orders.values() for i, _ in order}
    return {
        i: float(sum(Fraction(weights[name]) * plain_points(method, orders[name], i, len(everyone)) for name in orders))
        for i in everyone
    }


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(Fusion)), LISTS, WEIGHTS)
def test_fusion_equals_the_plain_definition(method, lists, weights):
    before = repr((lists, weights))
    fused = fuse(method, lists, weights)
    expected = plain_fusion(method.value, lists, weights)
    assert (dict(fused), len(fused)) == (pytest.approx(expected, abs=1e-9), len(expected))
    assert fused == sorted(fused, key=lambda pair: (-pair[1], pair[0]))
    assert all(math.isfinite(score) for _, score in fused)
    assert repr((lists, weights)) == before


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(list(Fusion)), LISTS, WEIGHTS, st.none() | st.fixed_dictionaries({"bm25": st.floats(-200, 200)}),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_no_order_of_sources_or_entries_matters(method, lists, weights, floors, rng):
    names = list(lists)
    rng.shuffle(names)
    shuffled = {name: rng.sample(lists[name], len(lists[name])) for name in names}
    assert fuse(method, shuffled, weights, floors=floors) == fuse(method, lists, weights, floors=floors)


@pytest.mark.parametrize("method", list(Fusion))
def test_weights_decide(method):
    lists = {"dense": [("a", 3.0), ("b", 2.0), ("c", 1.0)], "bm25": [("c", 30.0), ("b", 20.0), ("a", 10.0)]}
    assert [i for i, _ in fuse(method, lists, {"dense": 0.99, "bm25": 0.01})] == ["a", "b", "c"]
    assert [i for i, _ in fuse(method, lists, {"dense": 0.01, "bm25": 0.99})] == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("method", "one", "two", "weights", "expected"),
    [
        # The numbers of the paper.
        ("rrf", {"a": 9.0, "b": 8.0}, {"b": 0.2}, (1, 1), {"b": 1 / 62 + 1 / 61, "a": 1 / 61}),
        # Of 3 points, "one" gives 3, 2 and leaves 1 for c; "two" gives 3 and leaves 1 and 2, so 1.5 each.
        ("borda", {"a": 9.0, "b": 8.0}, {"c": 1.0}, (1, 1), {"a": 4.5 / 3, "c": 4 / 3, "b": 3.5 / 3}),
        ("weighted", {"a": 5.0}, {}, (0.7, 0.3), {"a": 0.7}),
        ("weighted", {"b": 5.0, "a": 5.0}, {"c": 1.0}, (0.7, 0.3), {"a": 0.7, "b": 0.7, "c": 0.3}),
        ("weighted", {"a": 3.0, "b": 2.0, "c": 1.0}, {}, (0.7, 0.3), {"a": 0.7, "b": 0.35, "c": 0.0}),
    ],
)
def test_small_lists_are_merged_to_these_numbers(method, one, two, weights, expected):
    lists = {"one": list(one.items()), "two": list(two.items())}
    fused = fuse(Fusion(method), lists, dict(zip(lists, weights, strict=True)))
    assert fused == [(i, pytest.approx(score)) for i, score in expected.items()]


@pytest.mark.parametrize("method", list(Fusion))
@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
def test_what_has_no_number_goes_last_and_the_best_of_an_id_counts(method, bad):
    fused = fuse(method, {"one": [("a", bad), ("z", -5.0), ("y", 4.0)]}, {"one": 1.0})
    assert [i for i, _ in fused] == ["y", "z", "a"]
    assert [i for i, _ in fuse(method, {"one": [("b", bad), ("a", bad)]}, {"one": 1.0})] == ["a", "b"]
    assert ranked([("a", 1.0), ("b", 2.0), ("a", 3.0), ("c", bad), ("c", 0.0)]) == [("a", 3.0), ("b", 2.0), ("c", 0.0)]


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


@pytest.mark.parametrize("weights", [{}, {"two": 1.0}, {"one": -0.1}, {"one": math.nan}, {"one": math.inf}])
@pytest.mark.parametrize("method", list(Fusion))
def test_nothing_gives_nothing_and_bad_weights_are_refused(method, weights):
    assert (fuse(method, {}, {}), fuse(method, {"one": [], "two": []}, {"one": 1, "two": 1})) == ([], [])
    with pytest.raises(ConfigError, match="source 'one'"):
        fuse(method, {"one": [("a", 1.0)]}, weights)


def calibrated(dense, words, weight, floors=None):
    weights = {"dense": weight, "bm25": 1 - weight}
    return fuse(Fusion.CALIBRATED, {"dense": dense, "bm25": words}, weights, floors=floors)


FINITE = st.lists(st.tuples(IDS, st.floats(-100, 100)), max_size=8)


@settings(max_examples=200, deadline=None)
@given(FINITE, FINITE, st.floats(0, 1), st.one_of(st.none(), st.floats(-200, 200)))
def test_calibrated_scores_stay_in_the_unit_interval(dense, words, weight, floor):
    fused = calibrated(dense, words, weight, None if floor is None else {"bm25": floor})
    assert all(-1e-12 <= score <= 1 + 1e-12 for _, score in fused)
    assert {i for i, _ in fused} == {i for i, _ in [*dense, *words]}


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(IDS, st.integers(0, 50).map(float), min_size=2),
    st.dictionaries(IDS, st.integers(0, 50).map(float)), st.floats(0.05, 0.95), st.integers(1, 60), st.booleans(),
    st.data(),
)  # fmt: skip
def test_a_better_score_never_makes_a_node_fall_behind(dense, words, weight, more, whole, data):
    node = data.draw(st.sampled_from(sorted(dense)))

    def lead(cosines):
        scores = dict(calibrated(list(cosines.items()), list(words.items()), weight, {"bm25": 0.0} if whole else None))
        return {other for other in scores if scores[other] > scores[node] + 1e-9}

    # Only the lowest of a list may lose by rising: it carries the foot of the scale with it.
    raised = {**dense, node: dense[node] + more}
    if min(dense.values()) < dense[node] or min(raised.values()) == dense[node]:
        assert lead(raised) <= lead(dense)


@settings(max_examples=200)
@given(FINITE, st.floats(0.01, 1))
def test_a_side_that_found_nothing_leaves_the_order_of_the_other(entries, weight):
    alone = [i for i, _ in ranked(entries)]
    unlike = {s: i for i, s in ranked(entries)}
    fused = [i for i, _ in calibrated(entries, [], weight)]
    assert set(fused) == set(alone)
    if len(unlike) == len(alone) and len({round(s, 6) for s in unlike}) == len(unlike):
        assert fused == alone


def test_a_whole_list_ends_above_what_it_does_not_hold():
    lists = [("x", 0.9), ("b", 0.8), ("c", 0.7)], [("a", 10.0), ("b", 5.0)], 0.5
    cut = calibrated(*lists)
    assert (dict(cut)["b"], dict(calibrated(*lists, {"bm25": 0.0}))["b"]) == pytest.approx((0.25, 0.5))
    assert calibrated(*lists, {"bm25": 7.0, "other": 1.0}) == calibrated(*lists, {"bm25": math.nan}) == cut


# How much the dense side is trusted.
SHARES = st.floats(0, 1)
MODELS = st.builds(
    FusionModel, alpha=SHARES, slope=st.floats(0, 10), pivot=st.floats(-5, 5), reach=SHARES, trained_on=st.none()
)
EXCESS = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
TRAINED = hybrids.FusionTrainedOn(dataset="d", index="i", index_version=3, rows=40, date="2026-01-02")


@given(MODELS, EXCESS)
def test_weights_stay_within_reach_and_the_unit_interval(model, excess):
    weight = model.weight(excess)
    assert 0 <= weight <= 1
    assert abs(weight - model.alpha) <= model.reach + 1e-12


@given(MODELS, st.floats(-50, 50), st.floats(-50, 50))
def test_what_stands_out_more_weighs_no_less(model, one, other):
    low, high = sorted((one, other))
    assert model.weight(low) <= model.weight(high)


def test_the_default_is_even_and_excess_is_what_chance_does_not_explain():
    assert DEFAULT_FUSION.weight(None) == DEFAULT_FUSION.weight(math.nan) == 0.5
    assert DEFAULT_FUSION.weight(DEFAULT_FUSION.pivot) == 0.5
    assert (DEFAULT_FUSION.weight(-100), DEFAULT_FUSION.weight(100)) == (pytest.approx(0.3), pytest.approx(0.7))

    def of(nodes, best=0.9):
        return dense_excess(best, background(0.8, 0.02, nodes))

    # The median of the largest of 1,000 standard normal numbers is 3.20.
    assert of(1_000) == pytest.approx(5 - 3.198, abs=0.01)
    assert of(30) > of(1_000) > of(1_000_000)
    assert of(1_000, 0.95) > of(1_000, 0.9)
    # What the words have found counts against it, by so many standard deviations for e times the score.
    known = background(0.8, 0.02, 1_000)
    assert dense_excess(0.9, known, math.e) == pytest.approx(of(1_000) - hybrids.WORDS_SPEAK)
    assert dense_excess(0.9, known, 0.0) is None
    flat = background(0.8, 0.0, 99)
    for unknown in (of(29), of(99, None), of(99, math.nan), dense_excess(0.9, None), dense_excess(0.9, flat)):
        assert unknown is None


def test_words_that_the_index_hardly_knows_say_little():
    lists = {"dense": [("near", 0.9), ("word", 0.8)], "bm25": [("word", 3.0)]}
    first = [
        hybrids.SideLists(lists=lists, floors={"bm25": 0.0}, excess=None, known=known).merged(0.4)[0]
        for known in (1, 0.2)
    ]
    assert first == [("word", pytest.approx(0.6)), ("near", pytest.approx(1 - 0.6 * 0.2 / hybrids.WORDS_KNOWN))]


@pytest.mark.parametrize("trained_on", [None, TRAINED])
def test_models_are_saved_and_loaded_and_files_of_fits_without_judgments_read(tmp_path, trained_on):
    model = FusionModel(alpha=0.3, slope=0.2, pivot=-1.0, reach=0.25, trained_on=trained_on)
    assert FusionModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model
    model.save(tmp_path / "fusion.json")
    assert FusionModel.load(tmp_path / "fusion.json") == model
    assert FusionModel.load(tmp_path / "none.json") is None
    for pseudo in (True, False) if trained_on else ():
        told = model.to_dict()
        told["trained_on"]["pseudo"] = pseudo
        assert FusionModel.from_dict(told) == model


@pytest.mark.parametrize(("change", "told"), [
    ({"format": "2"}, "format must be 2, got '2'"), ({"alpha": 1.1}, "alpha must be less than or equal to 1, got"),
    ({"alpha": True}, "alpha"), ({"alpha": None}, "alpha"), ({"slope": "1"}, "slope"), ({"reach": 2}, "reach"),
    ({"format": 1}, "format must be 2"), ({"slope": -0.1}, "slope must be greater than or equal to 0, got '-0.1'"),
    ({"pivot": None}, "pivot must be a valid number"), ({"pivot": math.inf}, "pivot must be a finite number"),
    ({"more": 1}, "missing or unknown: more"), ({"trained_on": []}, "trained_on must be an object"),
    ({"trained_on": {"dataset": "d"}}, "trained_on must be an object"),
    (b'{"alpha": 1}', "missing or unknown: format, pivot, reach, slope, trained_on;"),
    ({"trained_on": {**asdict(TRAINED), "rows": -1}}, "trained_on.rows"),
    ({"trained_on": {**asdict(TRAINED), "index": 1}}, "trained_on.index"),
    *((junk, "fusion.json") for junk in (b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"alpha": NaN}')),
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_named(tmp_path, change, told):
    path = tmp_path / "fusion.json"
    changed = change if isinstance(change, bytes) else json.dumps({**DEFAULT_FUSION.to_dict(), **change}).encode()
    path.write_bytes(changed)
    with pytest.raises(StoreDamagedError) as caught:
        FusionModel.load(path)
    assert told in str(caught.value)
    assert "fusion.json" in str(caught.value)


def test_an_installed_file_is_seen_when_it_comes_changes_and_goes(tmp_path):
    path = tmp_path / "fusion.json"
    assert hybrids.installed_fusion(path) == DEFAULT_FUSION
    FusionModel(alpha=0.25).save(path)
    os.utime(path, ns=(1, 1))
    assert hybrids.installed_fusion(path).alpha == 0.25
    path.write_text("junk")
    for _ in range(2):
        with pytest.raises(StoreDamagedError):
            hybrids.installed_fusion(path)
    FusionModel(alpha=0.75).save(path)
    os.utime(path, ns=(2, 2))
    assert hybrids.installed_fusion(path).alpha == 0.75
    path.unlink()
    assert hybrids.installed_fusion(path) == DEFAULT_FUSION


COUNT = 300


@pytest.fixture
def index(make_index):
    return make_index(contract_nodes())


@pytest.fixture
def zebra(make_index):
    """An index in which only BM25 finds the one node that holds the word."""
    nodes = [TextNode(id_=f"n{i:03d}", text=f"filler number {i}", embedding=[1.0] * 32) for i in range(COUNT)]
    made = make_index([*nodes, TextNode(id_="z", text="zebra A-12")])
    made.vector_store.scores = {f"n{i:03d}": i / COUNT for i in range(COUNT)} | {"z": -1.0}
    return made


@pytest.fixture
def no_model(monkeypatch):
    def broken(index, why="no model"):
        monkeypatch.setattr(index.embedding, "embed_query", Mock(side_effect=EmbeddingError(why)), raising=False)

    return broken


@pytest.mark.parametrize("query", ["zzzqqq", "the of and", "?!", "ζζζ"])
@pytest.mark.parametrize("fusion", list(Fusion))
def test_without_a_known_word_hybrid_equals_vector(query, fusion, index, make_settings):
    settings = make_settings(fusion=fusion)
    hybrid, vector = (
        ask(kind(index, settings), query) for kind in (retrievers.HybridRetriever, retrievers.VectorRetriever)
    )
    assert [n.to_dict() for n in hybrid.nodes] == [n.to_dict() for n in vector.nodes]
    assert hybrid.degraded == ()


@pytest.mark.parametrize("fusion", sorted(set(Fusion) - {Fusion.CALIBRATED}))
def test_alpha_moves_the_order(make_index, make_settings, fusion):
    index = make_index([TextNode(id_="words", text="zebra zebra one"), TextNode(id_="meaning", text="something else")])
    index.vector_store.scores = {"words": 0.1, "meaning": 0.9}
    for alpha, first in ((0.99, "meaning"), (0.01, "words")):
        settings = make_settings(fusion=fusion, hybrid_alpha=alpha)
        assert ids(ask(retrievers.HybridRetriever(index, settings), "zebra", 1)) == [first]


def test_a_word_that_only_bm25_finds_comes_in(zebra, settings):
    found = ask(retrievers.HybridRetriever(zebra, settings), "A-12", 60).nodes
    assert [set(retrievers.source_scores(n)) for n in found if n.node_id == "z"] == [{"bm25", "fused"}]


@pytest.mark.parametrize(
    ("broken", "step", "fallback", "source"),
    [("dense", "hybrid.dense", "BM25 search alone", "bm25"), ("bm25", "hybrid.keyword", "dense search alone", "dense")],
)
def test_one_side_that_fails_leaves_the_other(broken, step, fallback, source, index, settings, no_model):
    if broken == "dense":
        no_model(index, "the model is down")
    else:
        index.keyword = Mock(side_effect=StoreError("the model is down"))
    result = ask(retrievers.HybridRetriever(index, settings), top_k=3)
    check_result(result.nodes, 3)
    assert [retrievers.source_scores(n) for n in result.nodes] == [{source: n.score} for n in result.nodes]
    told = {"step": step, "reason": "the model is down", "fallback": fallback}
    assert [d.to_dict() for d in result.degraded] == [told]


def test_both_sides_failing_is_one_error_with_both_causes(index, settings, no_model):
    no_model(index)
    index.keyword = Mock(side_effect=RuntimeError("no view"))
    with pytest.raises(RetrievalError, match=r"dense: no model; bm25: .*RuntimeError") as caught:
        ask(retrievers.HybridRetriever(index, settings))
    assert set(caught.value.causes) == {"dense", "bm25"}
    assert caught.value.__cause__ is caught.value.causes["dense"]


def test_hits_of_bm25_that_cannot_be_read_leave_the_dense_ones(zebra, make_settings, monkeypatch, no_model):
    settings = make_settings(dense_weight=lambda excess: 0.1)  # so that the hit of BM25 comes first
    expected = ask(retrievers.VectorRetriever(zebra, settings), "zebra", 60)
    get_nodes = type(zebra.vector_store).get_nodes

    def unreadable(self, node_ids=None, filters=None):
        if node_ids:
            raise ConnectionError
        return get_nodes(self, node_ids, filters)

    monkeypatch.setattr(type(zebra.vector_store), "get_nodes", unreadable)
    result = ask(retrievers.HybridRetriever(zebra, settings), "zebra", 60)
    assert (pairs(result), [d.step for d in result.degraded]) == (pairs(expected), ["hybrid.keyword"])
    no_model(zebra)
    with pytest.raises(RetrievalError) as caught:
        ask(retrievers.HybridRetriever(zebra, settings), "zebra", 60)
    assert set(caught.value.causes) == {"dense", "bm25"}


def test_a_node_deleted_makes_room_and_filters_by_document_work_on_both_sides(index, settings, make_index):
    view = index.keyword()
    index.keyword = lambda: view
    del index.vector_store.kept["n07"]
    found = ids(ask(retrievers.HybridRetriever(index, settings), top_k=3))
    assert len(found) == 3
    assert "n07" not in found
    nodes = [of_document(n.node_id, n.text, f"doc-{n.metadata['lang']}") for n in contract_nodes()]
    found = ask(retrievers.HybridRetriever(make_index(nodes), settings), QUERY, 9, where("doc_id", "doc-th"))
    assert set(ids(found)) == {"n05", "n08"}


@pytest.mark.parametrize("top_k", [1, 3])
def test_a_filter_that_leaves_one_gives_exactly_that_one(top_k, index, settings):
    adapter = retrievers.HybridRetriever(index, settings)
    found = ids(ask(adapter, QUERY, top_k, where("year", 2024)))
    assert set(found) <= {"n01", "n08"}
    assert (found[0], ids(ask(adapter, QUERY, top_k, where("year", 2019)))) == ("n08", ["n02"])


def test_bm25_under_a_filter_is_exact_and_finds_a_rare_match_far_down_the_ranking(make_index, settings, no_model):
    nodes = [TextNode(id_=f"n{i:05d}", text="zebra zebra", embedding=[1.0] * 32) for i in range(1_500)]
    nodes[-1].text = "zebra"
    nodes[-1].metadata = {"last": 1}
    index = make_index(nodes)
    no_model(index)
    assert ids(ask(retrievers.HybridRetriever(index, settings), "zebra", 5, where("last", 1))) == ["n01499"]
    words = ["zebra zebra", "zebra", "zebra and more words", "zebra with a few more words"]
    nodes = [
        TextNode(id_=f"n{i:03d}", text=words[i % 4], metadata={"k": i % 5, "r": i % 3}, embedding=[1.0] * 32)
        for i in range(400)
    ]
    index = make_index(nodes[::-1])
    no_model(index)
    either = MetadataFilters(filters=[*where("k", 3).filters, *where("r", 2).filters], condition="or")
    expected = [i for i, _ in index.keyword().search("zebra", 400) if int(i[1:]) % 5 == 3 or int(i[1:]) % 3 == 2]
    for top_k in (1, 7, 60):
        assert ids(ask(retrievers.HybridRetriever(index, settings), "zebra", top_k, either)) == expected[:top_k]


def test_depth_of_each_side():
    depths = {1: 50, 12: 50, 13: 52, 250: 1000, 251: 1000, 1000: 1000, 5000: 5000}
    assert {top_k: hybrids.search_depth(top_k) for top_k in depths} == depths


# Calibrated fusion in the strategy: what it reads of an index, and what its results promise.
def background(mean, std, nodes=COUNT):
    return SimpleNamespace(background_mean=mean, background_std=std, nodes=nodes)


@pytest.fixture
def stripes(make_index, tmp_path):
    """An index with a folder and a profile; shorter texts rank higher by words, later ones by vector."""
    texts = ((f"n{i:03d}", "zebra" + " stripe" * i) for i in range(COUNT))
    known = make_index([TextNode(id_=i, text=text, embedding=[1.0] * 32) for i, text in texts])
    known.vector_store.scores = {f"n{i:03d}": 0.5 + i / 1000 for i in range(COUNT)}
    known.folder, known.background = tmp_path, background(0.65, 0.05)

    def profile():
        if isinstance(known.background, Exception):
            raise known.background
        return known.background

    known.search_profile = profile
    return known


def first(adapter, top_k=1):
    return ids(ask(adapter, "zebra", top_k))


def test_the_installed_model_decides_as_soon_as_it_is_there(stripes, settings):
    adapter = retrievers.HybridRetriever(stripes, settings)
    FusionModel(alpha=0.1, slope=0.0).save(stripes.folder / retrievers.FUSION_FILE)
    assert first(adapter) == ["n000"]
    FusionModel(alpha=0.9, slope=0.0, pivot=1.5).save(stripes.folder / retrievers.FUSION_FILE)
    assert first(adapter) == [f"n{COUNT - 1}"]
    FusionModel(alpha=0.0, slope=0.0).save(stripes.folder / retrievers.FUSION_FILE)
    assert first(retrievers.PlannerRetriever(stripes, settings)) == ["n000"]


def test_one_side_alone_can_be_installed(stripes, settings):
    by_words, by_vector = (
        stripes.keyword().search("zebra", 50),
        first(retrievers.VectorRetriever(stripes, settings), 50),
    )
    for alpha, expected in ((0.0, [i for i, _ in by_words]), (1.0, by_vector)):
        FusionModel(alpha=alpha, slope=0.0, reach=0.0).save(stripes.folder / retrievers.FUSION_FILE)
        assert first(retrievers.HybridRetriever(stripes, settings), 50) == expected


def test_what_stands_out_by_vector_gets_more_weight(stripes, settings):
    adapter = retrievers.HybridRetriever(stripes, settings)
    stripes.background = background(0.65, 0.01)  # the best cosine is 0.799
    assert adapter.search_sides(retrievers.RetrievalRequest("zebra", 5)).excess > 5
    assert first(adapter) == [f"n{COUNT - 1}"]
    stripes.background = background(0.99, 0.01)  # lower still, as the words say little: every node has the only one
    assert adapter.search_sides(retrievers.RetrievalRequest("zebra", 5)).excess < DEFAULT_FUSION.pivot - 2
    assert first(adapter) == ["n000"]


def test_a_lost_profile_or_a_damaged_model_is_told_and_the_defaults_hold(stripes, settings):
    stripes.background = StoreError("the profile is gone")
    result = ask(retrievers.HybridRetriever(stripes, settings), "zebra")
    assert [lost.step for lost in result.degraded] == ["hybrid.background"]
    stripes.background = None
    other = ask(retrievers.HybridRetriever(stripes, settings), "zebra")
    assert [n.to_dict() for n in result.nodes] == [n.to_dict() for n in other.nodes]
    assert other.degraded == ()
    adapter = retrievers.HybridRetriever(stripes, settings)
    expected = first(adapter, 20)
    (stripes.folder / retrievers.FUSION_FILE).write_text("{}")
    result = ask(adapter, "zebra", 20)
    assert ids(result) == expected
    [lost] = result.degraded
    assert (lost.step, lost.fallback) == ("hybrid.fusion", "the default weights")
    assert retrievers.FUSION_FILE in lost.reason


def test_scores_are_in_the_unit_interval_and_sides_say_whether_their_list_is_whole(stripes, settings, make_index):
    adapter = retrievers.HybridRetriever(stripes, settings)
    few, many = (ask(adapter, "zebra", top_k) for top_k in (5, 100))
    assert pairs(few) == pairs(many)[:5]
    assert all(0 <= score <= 1 for score in scores(many))
    by_words = dict(stripes.keyword().search("zebra", COUNT))
    for found in many.nodes:
        given = retrievers.source_scores(found)
        assert given["fused"] == found.score
        assert given.get("dense") in (None, stripes.vector_store.scores[found.node_id])
        assert given.get("bm25") in (None, by_words[found.node_id])
    assert len(first(adapter, COUNT)) == COUNT
    cut = retrievers.HybridRetriever(stripes, settings).search_sides(retrievers.RetrievalRequest("zebra", 5))
    assert (len(cut.lists["bm25"]), cut.floors) == (100, {})
    whole = retrievers.HybridRetriever(make_index([TextNode(id_="a", text="zebra")]), settings)
    assert whole.search_sides(retrievers.RetrievalRequest("zebra", 5)).floors == {"bm25": 0.0}
    assert whole.search_sides(retrievers.RetrievalRequest("unknown", 5)).lists.keys() == {"dense"}

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from routing_material import BOATS, embed

from agentic_retriever.errors import ConfigError, RoutingError
from agentic_retriever.routing import EmbeddingClassifier, IndexClassifier, ProfileClassifier
from agentic_retriever.routing.classifier import thinned, unit_vector
from agentic_retriever.routing.signals import softmax

CLASSIFIERS = [ProfileClassifier(), EmbeddingClassifier()]
UNUSABLE = {
    "missing": None,
    "nan": np.full(32, np.nan, np.float32),
    "infinite": np.full(32, np.inf, np.float32),
    "zero": np.zeros(32, np.float32),
    "other dimension": np.ones(7, np.float32),
    "no numbers": np.array(["a"] * 32),
    "a matrix": np.ones((2, 32), np.float32),
    "empty": np.zeros(0, np.float32),
}


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda c: c.mode)
def test_is_a_classifier(classifier):
    assert isinstance(classifier, IndexClassifier)


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda c: c.mode)
@pytest.mark.parametrize(
    ("query", "name"),
    [("When does the ferry leave the harbour?", "boats"), ("How hot is the oven for sourdough dough?", "bread")],
)
def test_picks_the_index_about_it(classifier, query, name, boats, bread):
    selection = classifier.classify(query, [boats, bread], query_vector=embed(query))
    assert selection.name == name
    assert selection.names == (name,)
    assert selection.mode == classifier.mode
    assert selection.confidence == selection.scores[name] > 0.5


def test_the_vector_decides_where_no_word_is_shared(boats, bread):
    vector = embed("harbour boat ferry")
    assert ProfileClassifier().classify("zzz", [bread, boats], query_vector=vector).name == "boats"
    assert ProfileClassifier().classify("zzz", [boats, bread], query_vector=embed("oven dough bake")).name == "bread"


def test_the_words_decide_where_no_vector_is(boats, bread):
    query = "rye flour"
    selection = ProfileClassifier().classify(query, [boats, bread], query_vector=None)
    assert selection.name == "bread"
    assert selection.reason.startswith("no query vector")


@pytest.mark.parametrize("vector", UNUSABLE.values(), ids=UNUSABLE)
@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda c: c.mode)
def test_an_unusable_vector_leaves_the_words(classifier, vector, boats, bread):
    words_alone = classifier.classify("rye flour and dough", [boats, bread], query_vector=None)
    selection = classifier.classify("rye flour and dough", [boats, bread], query_vector=vector)
    assert selection.scores == words_alone.scores
    assert selection.name == "bread"
    assert "vector" in selection.reason


def test_samples_of_another_dimension_leave_the_words(boats, bread):
    odd = replace(bread, sample=np.ones((4, 5), np.float32))
    selection = ProfileClassifier().classify("rye flour", [boats, odd], query_vector=embed("harbour boat"))
    assert selection.name == "bread"
    assert "not usable" in selection.reason


def test_damaged_samples_leave_the_words(boats, bread):
    sample = boats.sample.copy()
    sample[0] = np.nan
    odd = replace(boats, sample=sample)
    assert ProfileClassifier().classify("rye flour", [odd, bread], query_vector=embed("rye")).name == "bread"


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda c: c.mode)
def test_equals_are_decided_by_order(classifier, boats):
    twin = replace(boats, name="twin")
    for vector in (embed("ferry"), None):
        for order in ([boats, twin], [twin, boats]):
            selection = classifier.classify("ferry", order, query_vector=vector)
            assert selection.name == order[0].name
            assert selection.margin == 0.0
            assert selection.names == (order[0].name, order[1].name)


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda c: c.mode)
def test_without_any_evidence_the_first_wins(classifier, make):
    blank = [make(name, ["..."], description="") for name in "abc"]
    blank = [replace(p, description_vector=np.zeros(0, np.float32)) for p in blank]
    selection = classifier.classify("?!", blank, query_vector=None)
    assert selection.name == "a"
    assert list(selection.scores.values()) == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda c: c.mode)
def test_an_empty_index_never_wins(classifier, make, boats, bread):
    empty = make("empty", [], description="When does the ferry leave?")
    for vector in (embed("When does the ferry leave?"), None):
        selection = classifier.classify("When does the ferry leave?", [empty, bread, boats], query_vector=vector)
        assert selection.name != "empty"
        assert selection.scores["empty"] == 0.0
        assert "empty" not in selection.names
    beside = classifier.classify("zzz", [empty, boats], query_vector=None)
    assert beside.names == ("boats",)


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda c: c.mode)
def test_when_all_are_empty_the_first_wins(classifier, make):
    selection = classifier.classify("x", [make("a", []), make("b", [])], query_vector=embed("x"))
    assert selection.name == "a"
    assert selection.names == ("a",)
    assert "every index is empty" in selection.reason


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda c: c.mode)
def test_one_index_needs_no_classifier(classifier, boats):
    selection = classifier.classify("anything", [boats], query_vector=None)
    assert (selection.name, selection.mode, selection.confidence, selection.margin) == ("boats", "only", 1.0, 1.0)


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda c: c.mode)
def test_no_index_and_twice_the_same_name_are_errors(classifier, boats):
    with pytest.raises(RoutingError, match="no index"):
        classifier.classify("x", [], query_vector=None)
    with pytest.raises(RoutingError, match="same name: boats"):
        classifier.classify("x", [boats, boats], query_vector=None)


def test_a_small_margin_takes_the_second_along(boats, bread):
    query = "the oven in the harbour"
    narrow = ProfileClassifier(index_margin=0.0).classify(query, [boats, bread], query_vector=embed(query))
    wide = ProfileClassifier(index_margin=1.0).classify(query, [boats, bread], query_vector=embed(query))
    assert narrow.names == (narrow.name,)
    assert len(wide.names) == 2
    assert wide.name == narrow.name
    assert "searched too" in wide.reason


@pytest.mark.parametrize("margin", [-0.1, 1.1, math.nan, "0.1", None, True])
def test_a_margin_out_of_range_is_refused(margin):
    with pytest.raises(ConfigError, match="index_margin"):
        ProfileClassifier(margin)
    with pytest.raises(ConfigError, match="index_margin"):
        EmbeddingClassifier(margin)


def test_metadata_values_speak_for_their_index(make):
    plain = make("plain", BOATS)
    tagged = make("tagged", BOATS, [{"team": "operations"}] * len(BOATS))
    selection = ProfileClassifier().classify(
        "what did operations decide", [plain, tagged], query_vector=embed("decide")
    )
    assert selection.name == "tagged"
    assert "operations" in selection.reason


def test_a_description_without_vector_leaves_the_words(boats, bread):
    silent = replace(bread, description_vector=np.zeros(0, np.float32))
    for order in ([silent, boats], [boats, silent]):
        selection = EmbeddingClassifier().classify("rye flour", order, query_vector=embed("boats and the harbour"))
        assert selection.name == "bread"
        assert "no usable vector" in selection.reason


def test_an_index_of_two_nodes_has_no_unfair_background(make, boats, bread):
    tiny = make("tiny", ["quantum chromodynamics", "gluon plasma"])
    assert ProfileClassifier().classify("zzz", [tiny, boats], query_vector=embed("harbour ferry boat")).name == "boats"
    assert ProfileClassifier().classify("zzz", [boats, tiny], query_vector=embed("gluon plasma")).name == "tiny"


def test_many_indexes_are_compared_by_fewer_samples_each(boats, bread):
    long = replace(boats, name="long", sample=np.repeat(boats.sample, 300, axis=0))
    others = [replace(bread, name=f"bread-{at}", sample=np.repeat(bread.sample, 300, axis=0)) for at in range(19)]
    selection = ProfileClassifier().classify("zzz", [*others, long], query_vector=embed("harbour ferry boat"))
    assert selection.name == "long"
    assert len(selection.scores) == 20


@given(rows=st.integers(0, 3000), limit=st.integers(1, 1000))
def test_thinning_keeps_rows_up_to_the_limit(rows, limit):
    sample = np.arange(rows, dtype=np.float32).reshape(-1, 1)
    kept = thinned(sample, limit)
    assert min(rows, limit) // 2 <= len(kept) <= limit
    assert rows == 0 or kept[0, 0] == 0


def test_the_order_of_indexes_does_not_change_the_scores(boats, bread, deeds):
    query = "โฉนดในเชียงใหม่ at the harbour"
    one = ProfileClassifier().classify(query, [boats, bread, deeds], query_vector=embed(query))
    other = ProfileClassifier().classify(query, [deeds, boats, bread], query_vector=embed(query))
    assert dict(one.scores) == pytest.approx(dict(other.scores))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    query=st.text(st.characters(exclude_categories=()), max_size=300),
    seed=st.one_of(st.none(), st.integers(0, 9)),
)
def test_any_text_gets_a_valid_selection(query, seed, boats, bread, deeds):
    vector = None if seed is None else np.random.default_rng(seed).standard_normal(32).astype(np.float32)
    profiles = [boats, bread, deeds]
    for classifier in CLASSIFIERS:
        selection = classifier.classify(query, profiles, query_vector=vector)
        shares = list(selection.scores.values())
        assert set(selection.scores) == {"boats", "bread", "deeds"}
        assert math.isclose(sum(shares), 1.0, abs_tol=1e-9)
        assert shares == sorted(shares, reverse=True)
        assert selection.name == next(iter(selection.scores))
        assert selection.margin == pytest.approx(shares[0] - shares[1])
        assert selection.names[0] == selection.name
        assert "\n" not in selection.reason


@given(st.lists(st.floats(-1e6, 1e6) | st.just(-math.inf), min_size=1, max_size=20))
def test_softmax_is_a_distribution_in_the_same_order(logits):
    shares = softmax(logits)
    assert math.isclose(math.fsum(shares), 1.0, abs_tol=1e-9)
    assert shares[logits.index(max(logits))] == max(shares)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=8))
def test_unit_vector_is_of_length_one_or_none(values):
    unit = unit_vector(np.array(values, dtype=np.float32))
    usable = all(map(math.isfinite, values)) and any(abs(value) >= 1e-6 for value in values)
    if unit is None:
        assert not usable
    else:
        assert math.isclose(float(np.linalg.norm(unit)), 1.0, rel_tol=1e-5)

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from routing_material import BOATS, embed

from agentic_retriever.errors import ConfigError, RoutingError
from agentic_retriever.indices.profile import ProfiledNode, make_profile
from agentic_retriever.routing import EmbeddingClassifier, IndexClassifier, ProfileClassifier
from agentic_retriever.routing.classifier import MIN_NODES, is_in, scope_of, thinned, unit_vector
from agentic_retriever.routing.signals import softmax

CLASSIFIERS = [ProfileClassifier(), EmbeddingClassifier()]
UNUSABLE = {
    "missing": None, "nan": np.full(32, np.nan, np.float32), "infinite": np.full(32, np.inf, np.float32),
    "zero": np.zeros(32, np.float32), "other dimension": np.ones(7, np.float32),
    "no numbers": np.array(["a"] * 32), "a matrix": np.ones((2, 32), np.float32), "empty": np.zeros(0, np.float32),
}  # fmt: skip


@pytest.fixture(params=CLASSIFIERS, ids=lambda c: c.mode)
def classifier(request):
    return request.param


@pytest.mark.parametrize(
    ("query", "name"),
    [("When does the ferry leave the harbour?", "boats"), ("How hot is the oven for sourdough dough?", "bread")],
)
def test_picks_the_index_about_it(classifier, query, name, boats, bread):
    selection = classifier.classify(query, [boats, bread], query_vector=embed(query))
    assert isinstance(classifier, IndexClassifier)
    assert (selection.name, selection.names, selection.mode) == (name, (name,), classifier.mode)
    assert selection.confidence == selection.scores[name] > 0.5


@pytest.mark.parametrize(
    ("query", "near", "name", "said"),
    [
        ("zzz", "harbour boat ferry", "boats", "nearest samples"),
        ("zzz", "oven dough bake", "bread", "nearest samples"),
        ("rye flour", None, "bread", "no query vector"),
    ],
)
def test_the_vector_decides_where_no_word_is_shared_and_the_words_where_no_vector_is(
    boats, bread, query, near, name, said
):
    vector = None if near is None else embed(near)
    for order in ([boats, bread], [bread, boats]):
        selection = ProfileClassifier().classify(query, order, query_vector=vector)
        assert selection.name == name
        assert selection.reason.startswith(said)


@pytest.mark.parametrize("vector", UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_vector_leaves_the_words(classifier, vector, boats, bread):
    words_alone = classifier.classify("rye flour and dough", [boats, bread], query_vector=None)
    selection = classifier.classify("rye flour and dough", [boats, bread], query_vector=vector)
    assert (selection.scores, selection.name) == (words_alone.scores, "bread")
    assert "vector" in selection.reason


@pytest.mark.parametrize("sample", [np.ones((4, 5), np.float32), np.full((5, 32), np.nan, np.float32)])
def test_unusable_samples_leave_the_words(boats, bread, sample):
    odd = replace(boats, sample=sample)
    selection = ProfileClassifier().classify("rye flour", [odd, bread], query_vector=embed("harbour boat"))
    assert selection.name == "bread"
    assert "not usable" in selection.reason


def test_equals_blanks_and_empty_indexes_are_decided_by_order(classifier, boats, make):
    twin = replace(boats, name="twin")
    for vector in (embed("ferry"), None):
        for order in ([boats, twin], [twin, boats]):
            selection = classifier.classify("ferry", order, query_vector=vector)
            assert (selection.name, selection.margin) == (order[0].name, 0.0)
            assert selection.names == (order[0].name, order[1].name)
    blank = [make(name, ["..."], description="") for name in "abc"]
    blank = [replace(p, description_vector=np.zeros(0, np.float32)) for p in blank]
    selection = classifier.classify("?!", blank, query_vector=None)
    assert (selection.name, list(selection.scores.values())) == ("a", pytest.approx([1 / 3] * 3))
    selection = classifier.classify("x", [make("a", []), make("b", [])], query_vector=embed("x"))
    assert (selection.name, selection.names) == ("a", ("a",))
    assert "every index is empty" in selection.reason


def test_an_empty_index_never_wins(classifier, make, boats, bread):
    empty = make("empty", [], description="When does the ferry leave?")
    for vector in (embed("When does the ferry leave?"), None):
        selection = classifier.classify("When does the ferry leave?", [empty, bread, boats], query_vector=vector)
        assert selection.name != "empty"
        assert selection.scores["empty"] == 0.0
        assert "empty" not in selection.names
    assert classifier.classify("zzz", [empty, boats], query_vector=None).names == ("boats",)


def test_one_index_needs_no_classifier_and_none_or_equal_names_are_errors(classifier, boats):
    selection = classifier.classify("anything", [boats], query_vector=None)
    assert (selection.name, selection.mode, selection.confidence, selection.margin) == ("boats", "only", 1.0, 1.0)
    with pytest.raises(RoutingError, match="no index"):
        classifier.classify("x", [], query_vector=None)
    with pytest.raises(RoutingError, match="same name: boats"):
        classifier.classify("x", [boats, boats], query_vector=None)


def test_a_small_margin_takes_the_second_along(boats, bread):
    query = "the oven in the harbour"
    narrow = ProfileClassifier(index_margin=0.0).classify(query, [boats, bread], query_vector=embed(query))
    wide = ProfileClassifier(index_margin=1.0).classify(query, [boats, bread], query_vector=embed(query))
    assert (narrow.names, len(wide.names), wide.name) == ((narrow.name,), 2, narrow.name)
    assert "searched too" in wide.reason


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


@given(rows=st.integers(0, 3000), limit=st.integers(1, 1000))
def test_thinning_keeps_rows_up_to_the_limit(rows, limit):
    kept = thinned(np.arange(rows, dtype=np.float32).reshape(-1, 1), limit)
    assert min(rows, limit) // 2 <= len(kept) <= limit
    assert rows == 0 or kept[0, 0] == 0


def test_neither_order_nor_number_of_indexes_changes_what_is_found(boats, bread, deeds):
    query = "โฉนดในเชียงใหม่ at the harbour"
    one = ProfileClassifier().classify(query, [boats, bread, deeds], query_vector=embed(query))
    other = ProfileClassifier().classify(query, [deeds, boats, bread], query_vector=embed(query))
    assert dict(one.scores) == pytest.approx(dict(other.scores))
    long = replace(boats, name="long", sample=np.repeat(boats.sample, 300, axis=0))
    others = [replace(bread, name=f"bread-{at}", sample=np.repeat(bread.sample, 300, axis=0)) for at in range(19)]
    selection = ProfileClassifier().classify("zzz", [*others, long], query_vector=embed("harbour ferry boat"))
    assert (selection.name, len(selection.scores)) == ("long", 20)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.text(st.characters(exclude_categories=()), max_size=300), seed=st.one_of(st.none(), st.integers(0, 9)))
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


PARTS = ["pump", "valve", "filter", "sensor", "cable", "housing", "battery", "gasket"]


def nodes_of(count=80):
    return [
        ProfiledNode(f"n{at:03d}", f"The {PARTS[at % 8]} of model NS-{at} is checked by the workshop every spring.", {})
        for at in range(count)
    ]


def scattered(count, seed=0, dimension=24, spread=0.35):
    """Vectors in eight tight groups, so that neighbours are nearer than unrelated nodes."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((8, dimension))
    vectors = np.stack([centres[at % 8] + spread * rng.standard_normal(dimension) for at in range(count)])
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def workshop():
    nodes, vectors = nodes_of(), scattered(80)
    return make_profile(
        nodes, vectors, name="workshop", description="repairs", description_vector=vectors[0], version=1
    )


def far_vector(profile):
    """A direction that no node lies in."""
    away = -profile.sample.mean(axis=0)
    return (away / np.linalg.norm(away)).astype(np.float32)


def test_near_and_known_is_in_scope_and_far_unknown_or_without_a_code_is_not(workshop):
    near = scope_of("how is the pump checked by the workshop", workshop, query_vector=workshop.sample[0])
    far = scope_of("how long should an egg boil for breakfast", workshop, query_vector=far_vector(workshop))
    assert near.probability > 0.7
    assert far.probability < 0.05
    assert near.coverage == pytest.approx(1.0)
    assert far.coverage < 0.3
    assert (near.relevance > 0.8, far.relevance < 0.2, near.absent) == (True, True, ())
    known = scope_of("spring check of the NS-5 sensor", workshop, query_vector=workshop.sample[3])
    unknown = scope_of("spring check of the NS-500 sensor", workshop, query_vector=workshop.sample[3])
    assert unknown.absent == ("ns500",)
    assert unknown.probability < known.probability - 0.2


def test_words_of_another_language_are_no_evidence(workshop):
    scope = scope_of("¿Cada cuánto tiempo se revisa la bomba en el taller?", workshop, query_vector=workshop.sample[0])
    assert scope.coverage is None
    assert scope.probability > 0.5


def test_without_a_vector_the_words_decide(workshop):
    known = scope_of("pump checked by the workshop", workshop, query_vector=None)
    unknown = scope_of("who painted the ceiling of the chapel in Rome", workshop, query_vector=None)
    assert known.relevance is None
    assert known.probability > 0.7
    assert unknown.probability < 0.15


def test_small_indexes_and_blank_questions_are_never_doubted(workshop):
    few = nodes_of(MIN_NODES - 1)
    small = make_profile(
        few, scattered(len(few)), name="s", description="", description_vector=np.zeros(0, np.float32), version=1
    )
    assert scope_of("who painted the ceiling", small, query_vector=far_vector(small)).probability == 1.0
    assert scope_of("?!", workshop, query_vector=None).probability == 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"sample": np.zeros((0, 24), np.float32)}, {"sample": np.zeros((80, 7), np.float32)},
        {"sample": np.full((80, 24), np.nan, np.float32)}, {"neighbour_mean": 0.0},
        {"neighbour_mean": 0.5, "background_mean": 0.5},
    ],
    ids=["no rows", "other dimension", "not finite", "not measured", "neighbours no nearer"],
)  # fmt: skip
def test_unusable_vectors_leave_the_words(workshop, changes):
    scope = scope_of("pump checked by the workshop", replace(workshop, **changes), query_vector=workshop.sample[0])
    assert scope.relevance is None
    assert scope.probability == scope_of("pump checked by the workshop", workshop, query_vector=None).probability


def test_classifiers_abstain_and_a_lone_index_is_doubted_too(workshop, classifier):
    other = replace(workshop, name="other")
    query = "how long should an egg boil for breakfast"
    kind = type(classifier)
    selection = kind(index_margin=1.0).classify(query, [workshop, other], query_vector=far_vector(workshop))
    assert selection.abstained
    assert selection.names == (selection.name,) == ("workshop",)
    assert "searched too" not in selection.reason
    assert "about it only with probability" in selection.reason
    assert selection.evidence["workshop"]["scope"] < 0.15
    assert not kind(abstain_below=0).classify(query, [workshop, other], query_vector=far_vector(workshop)).abstained
    selection = ProfileClassifier().classify("who painted the ceiling", [workshop], query_vector=far_vector(workshop))
    assert (selection.mode, selection.abstained, selection.confidence) == ("only", True, 1.0)
    known = ProfileClassifier().classify("is the pump checked", [workshop], query_vector=workshop.sample[0])
    assert (known.mode, known.abstained) == ("only", False)


def test_evidence_is_told_for_every_index_with_nodes(workshop):
    empty = replace(workshop, name="empty", nodes=0)
    selection = ProfileClassifier().classify(
        "is the pump checked", [workshop, replace(workshop, name="twin"), empty], query_vector=workshop.sample[0]
    )
    assert set(selection.evidence) == {"workshop", "twin"}
    assert set(selection.evidence["workshop"]) == {"cosine", "language", "vocabulary", "values", "scope"}
    assert set(selection.evidence["twin"]) == {"cosine", "language", "vocabulary", "values"}
    json.dumps(selection.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", ["index_margin", "abstain_below"])
@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan"), "0.1", None, True])
def test_a_threshold_out_of_range_is_refused(classifier, name, threshold):
    with pytest.raises(ConfigError, match=name):
        type(classifier)(**{name: threshold})


def test_an_index_is_in_each_language_that_a_part_of_it_is_written_in(make):
    tongues = ["es"] * 36 + ["en"] * 3 + ["de"]
    mixed, own = (make(name, BOATS * 8, [{"language": one} for one in told]) for name, told in
                  (("mixed", tongues), ("own", ["en"] * 40)))  # fmt: skip
    assert (mixed.language, set(mixed.languages)) == ("es", {"es", "en"})
    assert [is_in(mixed, one) for one in ("es", "en", "und", "de")] == [True, True, True, False]
    assert [is_in(replace(mixed, languages=()), one) for one in ("es", "en")] == [True, False]
    kinds = ProfileClassifier().classify(BOATS[0], [mixed, own], query_vector=embed(BOATS[0])).evidence
    assert kinds["mixed"]["language"] == kinds["own"]["language"] == 0

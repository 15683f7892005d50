from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from agentic_retriever.errors import ConfigError
from agentic_retriever.indices.profile import ProfiledNode, make_profile
from agentic_retriever.routing import EmbeddingClassifier, ProfileClassifier, scope_of, support_of
from agentic_retriever.routing.abstention import MIN_NODES

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


def test_near_and_known_is_in_scope(workshop):
    scope = scope_of("how is the pump checked by the workshop", workshop, query_vector=workshop.sample[0])
    assert scope.probability > 0.7
    assert scope.coverage == pytest.approx(1.0)
    assert scope.relevance > 0.8
    assert scope.absent == ()


def test_far_and_unknown_is_out_of_scope(workshop):
    scope = scope_of("how long should an egg boil for breakfast", workshop, query_vector=far_vector(workshop))
    assert scope.probability < 0.05
    assert scope.coverage < 0.3
    assert scope.relevance < 0.2


def test_a_code_that_is_not_there_speaks_against(workshop):
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
    assert support_of("who painted the ceiling", small, [], query_vector=far_vector(small)).probability == 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"sample": np.zeros((0, 24), np.float32)},
        {"sample": np.zeros((80, 7), np.float32)},
        {"sample": np.full((80, 24), np.nan, np.float32)},
        {"neighbour_mean": 0.0},
        {"neighbour_mean": 0.5, "background_mean": 0.5},
    ],
    ids=["no rows", "other dimension", "not finite", "not measured", "neighbours no nearer"],
)
def test_unusable_vectors_leave_the_words(workshop, changes):
    scope = scope_of("pump checked by the workshop", replace(workshop, **changes), query_vector=workshop.sample[0])
    assert scope.relevance is None
    assert scope.probability == scope_of("pump checked by the workshop", workshop, query_vector=None).probability


def test_classifiers_abstain(workshop):
    other = replace(workshop, name="other")
    query = "how long should an egg boil for breakfast"
    for kind in (ProfileClassifier, EmbeddingClassifier):
        selection = kind(index_margin=1.0).classify(query, [workshop, other], query_vector=far_vector(workshop))
        assert selection.abstained
        assert selection.names == (selection.name,) == ("workshop",)
        assert "about it only with probability" in selection.reason
        assert selection.evidence["workshop"]["scope"] < 0.15
        never = kind(abstain_below=0).classify(query, [workshop, other], query_vector=far_vector(workshop))
        assert not never.abstained


def test_a_lone_index_is_doubted_too(workshop):
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
    assert set(selection.evidence["workshop"]) == {"cosine", "vocabulary", "values", "scope"}
    assert set(selection.evidence["twin"]) == {"cosine", "vocabulary", "values"}
    json.dumps(selection.to_dict(), allow_nan=False)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan"), "0.1", None, True])
def test_a_threshold_out_of_range_is_refused(threshold):
    for kind in (ProfileClassifier, EmbeddingClassifier):
        with pytest.raises(ConfigError, match="abstain_below"):
            kind(abstain_below=threshold)


def test_support_needs_the_words_together(workshop):
    query, vector = "checking the pump of NS-8 in spring", workshop.sample[0]
    together = [nodes_of()[8].text]
    apart = ["The pump hums.", "Model NS-8 is blue.", "Spring is warm."]
    full = support_of(query, workshop, together, query_vector=vector)
    thin = support_of(query, workshop, apart, query_vector=vector)
    assert full.coverage > thin.coverage
    assert full.probability > thin.probability
    assert support_of(query, workshop, [], query_vector=vector).coverage == 0.0


def test_support_misses_a_code_that_no_text_has(workshop):
    vector = workshop.sample[0]
    texts = ["The pump of model NS-500 is checked by the workshop every spring."]
    found = support_of("is the pump of NS-500 checked", workshop, texts, query_vector=vector)
    missed = support_of("is the pump of NS-501 checked", workshop, texts, query_vector=vector)
    assert found.absent == ()
    assert missed.absent == ("ns501",)
    assert missed.probability < found.probability - 0.3


def test_support_without_words_or_vector_is_not_doubted(workshop):
    assert (
        support_of("¿Quién pintó la capilla de Roma?", workshop, [""], query_vector=workshop.sample[0]).probability == 1
    )
    assert support_of("who painted the chapel", workshop, [""], query_vector=None).probability == 1

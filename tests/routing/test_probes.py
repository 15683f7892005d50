from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from routing_material import embed

from agentic_retriever.routing import FEATURES, PROBE_FEATURES, PROBE_RANGES, probe_features


def test_names_do_not_meet_those_of_the_signals():
    assert not set(PROBE_FEATURES) & set(FEATURES)
    assert all(low < high for low, high in PROBE_RANGES.values())


def test_scores_are_those_of_the_sample(boats):
    vector = embed("The ferry leaves the harbour at nine.")
    cosines = np.sort(boats.sample @ vector)[::-1]
    units = (cosines - boats.background_mean) / boats.background_std
    found = probe_features("ferry", boats, vector)
    assert found["probe_vector"] == 1.0
    assert found["probe_top"] == pytest.approx(np.clip(units[0], *PROBE_RANGES["probe_top"]), abs=1e-4)
    assert found["probe_top3"] == pytest.approx(np.clip(units[:3].mean(), *PROBE_RANGES["probe_top3"]), abs=1e-4)
    assert found["probe_gap"] == pytest.approx(np.clip(units[0] - units[-1], *PROBE_RANGES["probe_gap"]), abs=1e-4)


def test_a_distinct_best_lowers_the_entropy(boats):
    flat = replace(boats, sample=np.repeat(boats.sample[:1], 8, axis=0))
    sharp = probe_features("x", boats, boats.sample[0])["probe_entropy"]
    assert probe_features("x", flat, boats.sample[0])["probe_entropy"] == pytest.approx(1.0)
    assert sharp < 0.9


@pytest.mark.parametrize(
    "vector", [None, np.zeros(32, np.float32), np.full(32, np.nan, np.float32), np.ones(7, np.float32)]
)
def test_without_a_usable_vector_terms_remain(boats, vector):
    found = probe_features("the harbour", boats, vector)
    assert all(found[name] == 0.0 for name in PROBE_FEATURES if name.startswith("probe_"))
    assert found["idf_max"] > 0


def test_rare_terms_have_a_high_idf(make):
    index = make("x", ["valve and gasket", *["valve"] * 200])
    rare, common = (probe_features(word, index, None)["idf_max"] for word in ("gasket", "valve"))
    assert rare > 0.8
    assert common < 0.1
    mixed = probe_features("gasket valve unheard", index, None)
    assert mixed["idf_max"] == rare
    assert mixed["idf_mean"] == pytest.approx((rare + common) / 2)
    assert mixed["terms_unknown"] == pytest.approx(1 / 3)
    assert mixed["terms_count"] == pytest.approx(math.log1p(3))


def test_facts_of_the_index(deeds, boats):
    assert probe_features("x", deeds, None)["index_fields"] == 1.0
    assert probe_features("x", boats, None)["index_fields"] == 0.0
    assert probe_features("ที่ดินในเชียงใหม่", deeds, None)["index_language"] == 1.0
    assert probe_features("where is the ferry in the harbour", deeds, None)["index_language"] == 0.0


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    query=st.text(st.characters(exclude_categories=()), max_size=200),
    vector=st.none() | hnp.arrays(np.float32, st.sampled_from([0, 1, 32])),
    empty=st.booleans(),
)
def test_every_probe_is_finite_and_in_its_range(query, vector, empty, deeds, make):
    found = probe_features(query, make("none", []) if empty else deeds, vector)
    assert tuple(found) == PROBE_FEATURES
    for name, value in found.items():
        low, high = PROBE_RANGES[name]
        assert low <= value <= high, name

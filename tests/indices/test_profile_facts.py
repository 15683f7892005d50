from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from agentic_retriever.indices.profile import (
    MAX_OF_A_KIND,
    IndexProfile,
    ProfiledNode,
    collect_identifiers,
    make_profile,
    neighbour_mean,
    sample_ids,
)

NODES = [
    ProfiledNode(f"n{at:04d}", f"The pump P-{at} runs. It was checked under article {at % 40} last year.", {})
    for at in range(300)
]


def profile_of(nodes, **changes):
    rng = np.random.default_rng(0)
    sample = rng.standard_normal((len(sample_ids([node.node_id for node in nodes])), 16)).astype(np.float32)
    sample /= np.linalg.norm(sample, axis=1, keepdims=True)
    made = make_profile(
        nodes, sample, name="pumps", description="", description_vector=np.zeros(0, np.float32), version=3
    )
    return replace(made, **changes)


def test_identifiers_by_kind_from_texts_and_metadata():
    found = collect_identifiers([*NODES, ProfiledNode("m", "", {"code": "NS-7", "year": 2024, "tags": ["E1"]})])
    assert {"p0", "p299", "ns7"} <= found["a9"]
    assert "article 39" in found["article 9"]


def test_a_kind_with_too_many_is_not_kept():
    many = [ProfiledNode(str(at), f"P-{at}", {}) for at in range(MAX_OF_A_KIND + 1)]
    assert "a9" not in collect_identifiers(many)
    assert len(collect_identifiers(many[:-1])["a9"]) == MAX_OF_A_KIND


def test_neighbour_mean_agrees_with_a_plain_count():
    rng = np.random.default_rng(1)
    sample = rng.standard_normal((40, 8)).astype(np.float32)
    sample /= np.linalg.norm(sample, axis=1, keepdims=True)
    cosines = sample @ sample.T
    np.fill_diagonal(cosines, -2)
    expected = np.sort(cosines, axis=1)[:, -3:].mean()
    assert neighbour_mean(sample) == pytest.approx(expected, abs=1e-5)
    assert neighbour_mean(sample[:4]) == 0.0
    assert neighbour_mean(np.zeros((0, 8), np.float32)) == 0.0


def test_a_profile_comes_back_as_it_was_saved(tmp_path):
    profile = profile_of(NODES)
    profile.save(tmp_path)
    loaded = IndexProfile.load(tmp_path, version=3, description="")
    assert loaded is not None
    assert loaded.identifiers == profile.identifiers
    assert loaded.neighbour_mean == profile.neighbour_mean
    assert IndexProfile.load(tmp_path, version=4, description="") is None


def test_a_profile_of_an_earlier_version_is_read(tmp_path):
    profile_of(NODES).save(tmp_path)
    with np.load(tmp_path / "profile.npz") as data:
        arrays = dict(data)
    facts = json.loads(arrays["facts"].tobytes()) | {"specimens": [[0, "The pump P-0 runs."]]}
    np.savez(tmp_path / "profile.npz", **arrays | {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)})
    assert IndexProfile.load(tmp_path, version=3, description="") is not None


def test_a_profile_of_a_damaged_file_is_made_again(tmp_path):
    profile_of(NODES).save(tmp_path)
    file = tmp_path / "profile.npz"
    file.write_bytes(file.read_bytes()[:-200])
    assert IndexProfile.load(tmp_path, version=3, description="") is None

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.errors import StoreDamagedError
from agentic_retriever.indices import profile as profiles
from agentic_retriever.indices.profile import MEASURED_FILE, MeasuredStrategies, ProfiledNode, collect_identifiers
from agentic_retriever.schema import Strategy

NODES = [
    ProfiledNode(f"n{at:04d}", f"The pump P-{at} runs. It was checked under article {at % 40} last year.", {})
    for at in range(300)
]


def unit_rows(count, width, seed):
    rows = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def load(folder, version=3):
    return profiles.IndexProfile.load(folder, version=version, description="")


def test_identifiers_by_kind_but_for_kinds_with_too_many():
    found = collect_identifiers([*NODES, ProfiledNode("m", "", {"code": "NS-7", "year": 2024, "tags": ["E1"]})])
    assert {"p0", "p299", "ns7"} <= found["a9"]
    assert "article 39" in found["article 9"]
    many = [ProfiledNode(str(at), f"P-{at}", {}) for at in range(profiles.MAX_OF_A_KIND + 1)]
    assert "a9" not in collect_identifiers(many)
    assert len(collect_identifiers(many[:-1])["a9"]) == profiles.MAX_OF_A_KIND
    about = profiles.make_profile(
        NODES, np.empty((0, 4)), "s57", "Agencies of the chart format NS-9", np.empty(0), 1
    ).identifiers
    assert {"s57", "ns9"} <= about["a9"]


def test_a_language_is_that_of_each_part_and_not_the_one_told_of_its_document():
    long = "The pump runs as long as the valve is open, and it stops when the water is cold. " * 3
    nodes = [ProfiledNode("a", long, {"language": "nl"}), ProfiledNode("b", "Pompen", {"language": "nl"})]
    assert profiles.count_languages(nodes) == {"en": 1, "nl": 1}


def test_neighbour_mean_agrees_with_a_plain_count():
    sample = unit_rows(40, 8, 1)
    cosines = sample @ sample.T
    np.fill_diagonal(cosines, -2)
    assert profiles.neighbour_mean(sample) == pytest.approx(np.sort(cosines, axis=1)[:, -3:].mean(), abs=1e-5)
    assert profiles.neighbour_mean(sample[:4]) == profiles.neighbour_mean(np.zeros((0, 8), np.float32)) == 0.0


def test_a_saved_profile_comes_back_one_of_an_earlier_version_is_read_and_a_damaged_one_made_again(tmp_path):
    sample = unit_rows(len(profiles.sample_ids([node.node_id for node in NODES])), 16, 0)
    none = np.zeros(0, np.float32)
    profile = profiles.make_profile(NODES, sample, name="pumps", description="", description_vector=none, version=3)
    profile.save(tmp_path)
    loaded = load(tmp_path)
    assert (loaded.identifiers, loaded.neighbour_mean) == (profile.identifiers, profile.neighbour_mean)
    assert load(tmp_path, version=4) is None
    with np.load(tmp_path / "profile.npz") as data:
        arrays = dict(data)
    facts = json.loads(arrays["facts"].tobytes()) | {
        "specimens": [[0, "The pump P-0 runs."]],
        "people": {"authors": ["pooch"]},
    }
    np.savez(tmp_path / "profile.npz", **arrays | {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)})
    assert load(tmp_path) is not None
    file = tmp_path / "profile.npz"
    file.write_bytes(file.read_bytes()[:-200])
    assert load(tmp_path) is None


MEASURES = st.builds(
    profiles.StrategyMeasure, quality=st.floats(0, 1), p50_ms=st.floats(0, allow_infinity=False) | st.integers(0, 10**6)
)


def measured(**changes) -> MeasuredStrategies:
    kept = {
        "strategies": {Strategy.HYBRID: profiles.StrategyMeasure(quality=0.5, p50_ms=3.0)},
        "dataset": "d", "index": "i", "index_version": 2, "queries": 50, "measured_on": "2026-01-01",
    }  # fmt: skip
    return MeasuredStrategies(**{**kept, **changes})


@given(
    strategies=st.dictionaries(st.sampled_from(Strategy), MEASURES),
    dataset=st.text(st.characters(exclude_categories=())), version=st.integers(0, 10**9), queries=st.integers(1, 10**9),
)  # fmt: skip
def test_what_is_written_comes_back(tmp_path_factory, strategies, dataset, version, queries):
    folder = tmp_path_factory.mktemp("index")
    value = measured(strategies=strategies, dataset=dataset, index_version=version, queries=queries)
    value.save(folder)
    assert MeasuredStrategies.load(folder) == value


def test_what_was_measured_cannot_be_changed_is_none_where_nothing_was_and_refused_where_it_is_no_result(tmp_path):
    assert MeasuredStrategies.load(tmp_path) is None
    with pytest.raises(TypeError):
        measured().strategies[Strategy.VECTOR] = None
    for content in (b"", b"{", b"[]", b"\x80\x04K\x01.", b"[" * 100_000):
        (tmp_path / MEASURED_FILE).write_bytes(content)
        with pytest.raises(StoreDamagedError, match=MEASURED_FILE):
            MeasuredStrategies.load(tmp_path)


@pytest.mark.parametrize(("path", "value", "named"), [
    (("format",), 9, "format must be 1, got '9'; remove it or measure the index again"),
    (("queries",), 0, "queries"), (("queries",), 1.5, "queries"), (("index_version",), True, "index_version"),
    (("index",), 3, "index"), (("surprise",), 3, "surprise"), (("strategies",), [], "strategies"),
    (("strategies", "magic"), {"quality": 0.5, "p50_ms": 1.0}, r"magic must be .*'hybrid'.*, got 'magic'"),
    (("strategies", "hybrid"), {"quality": 0.5}, "strategies.hybrid"),
    (("strategies", "hybrid", "quality"), 1.01, "strategies.hybrid.quality must"),
    (("strategies", "hybrid", "quality"), float("nan"), "strategies.hybrid.quality must"),
    (("strategies", "hybrid", "quality"), "0.5", "strategies.hybrid.quality must"),
    (("strategies", "hybrid", "p50_ms"), -1, "strategies.hybrid.p50_ms must"),
    (("strategies", "hybrid", "p50_ms"), None, "strategies.hybrid.p50_ms must"),
])  # fmt: skip
def test_a_damaged_file_is_named_with_its_key(tmp_path, path, value, named):
    data = json.loads(json.dumps(measured().to_dict()))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (tmp_path / MEASURED_FILE).write_text(json.dumps(data))
    with pytest.raises(StoreDamagedError, match=named) as caught:
        MeasuredStrategies.load(tmp_path)
    assert MEASURED_FILE in str(caught.value)

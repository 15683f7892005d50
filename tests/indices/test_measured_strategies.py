from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.errors import StoreDamagedError
from agentic_retriever.indices.profile import MEASURED_FILE, MeasuredStrategies, StrategyMeasure
from agentic_retriever.schema import Strategy

MEASURES = st.builds(
    StrategyMeasure, quality=st.floats(0, 1), p50_ms=st.floats(0, allow_infinity=False) | st.integers(0, 10**6)
)


def measured(**changes) -> MeasuredStrategies:
    kept = {
        "strategies": {Strategy.HYBRID: StrategyMeasure(quality=0.5, p50_ms=3.0)},
        "dataset": "d", "index": "i", "index_version": 2, "queries": 50, "measured_on": "2026-01-01",
    }  # fmt: skip
    return MeasuredStrategies(**{**kept, **changes})


@given(
    strategies=st.dictionaries(st.sampled_from(Strategy), MEASURES),
    dataset=st.text(st.characters(exclude_categories=())),
    version=st.integers(0, 10**9),
    queries=st.integers(1, 10**9),
)
def test_what_is_written_comes_back(tmp_path_factory, strategies, dataset, version, queries):
    folder = tmp_path_factory.mktemp("index")
    value = measured(strategies=strategies, dataset=dataset, index_version=version, queries=queries)
    value.save(folder)
    assert MeasuredStrategies.load(folder) == value


def test_an_index_that_was_never_measured_has_none(tmp_path):
    assert MeasuredStrategies.load(tmp_path) is None


def test_the_value_cannot_be_changed():
    with pytest.raises(TypeError):
        measured().strategies[Strategy.VECTOR] = None


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("format",), 9, "format"),
        (("queries",), 0, "queries"),
        (("queries",), 1.5, "queries"),
        (("index_version",), True, "index_version"),
        (("index",), 3, "index"),
        (("surprise",), 3, "surprise"),
        (("strategies",), [], "strategies"),
        (("strategies", "magic"), {"quality": 0.5, "p50_ms": 1.0}, "magic"),
        (("strategies", "hybrid"), {"quality": 0.5}, "strategies.hybrid"),
        (("strategies", "hybrid", "quality"), 1.01, "strategies.hybrid: quality"),
        (("strategies", "hybrid", "quality"), float("nan"), "strategies.hybrid: quality"),
        (("strategies", "hybrid", "quality"), "0.5", "strategies.hybrid: quality"),
        (("strategies", "hybrid", "p50_ms"), -1, "strategies.hybrid: p50_ms"),
        (("strategies", "hybrid", "p50_ms"), None, "strategies.hybrid: p50_ms"),
    ],
)
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


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\x80\x04K\x01.", b"[" * 100_000])
def test_what_is_no_result_is_refused(tmp_path, content):
    (tmp_path / MEASURED_FILE).write_bytes(content)
    with pytest.raises(StoreDamagedError, match=MEASURED_FILE):
        MeasuredStrategies.load(tmp_path)

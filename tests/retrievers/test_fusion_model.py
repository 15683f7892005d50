from __future__ import annotations

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.errors import StoreDamagedError
from agentic_retriever.retrievers.fusion import (
    DEFAULT_FUSION,
    CosineBackground,
    FusionModel,
    FusionTrainedOn,
    InstalledFusion,
    dense_excess,
)

SHARES = st.floats(0, 1)
MODELS = st.builds(
    FusionModel, alpha=SHARES, slope=st.floats(0, 10), pivot=st.floats(-5, 5), reach=SHARES, trained_on=st.none()
)
EXCESS = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
TRAINED = FusionTrainedOn(dataset="d", index="i", index_version=3, rows=40, date="2026-01-02")


@given(MODELS, EXCESS)
def test_weights_stay_within_reach_and_the_unit_interval(model, excess):
    weight = model.weight(excess)
    assert 0 <= weight <= 1
    assert abs(weight - model.alpha) <= model.reach + 1e-12


@given(MODELS, st.floats(-50, 50), st.floats(-50, 50))
def test_what_stands_out_more_weighs_no_less(model, one, other):
    low, high = sorted((one, other))
    assert model.weight(low) <= model.weight(high)


def test_the_default_is_even_where_nothing_is_known():
    assert DEFAULT_FUSION.weight(None) == DEFAULT_FUSION.weight(math.nan) == 0.5
    assert DEFAULT_FUSION.weight(DEFAULT_FUSION.pivot) == 0.5
    assert (DEFAULT_FUSION.weight(-100), DEFAULT_FUSION.weight(100)) == (pytest.approx(0.3), pytest.approx(0.7))


def test_excess_is_what_chance_does_not_explain():
    def of(nodes, best=0.9):
        return dense_excess(best, CosineBackground(mean=0.8, std=0.02, nodes=nodes))

    # The median of the largest of 1,000 standard normal numbers is 3.20.
    assert of(1_000) == pytest.approx(5 - 3.198, abs=0.01)
    assert of(30) > of(1_000) > of(1_000_000)
    assert of(1_000, 0.95) > of(1_000, 0.9)
    assert of(29) is None
    assert dense_excess(None, CosineBackground(mean=0.8, std=0.02, nodes=99)) is None
    assert dense_excess(0.9, None) is None
    assert dense_excess(0.9, CosineBackground(mean=0.8, std=0.0, nodes=99)) is None
    assert dense_excess(math.nan, CosineBackground(mean=0.8, std=0.1, nodes=99)) is None


@pytest.mark.parametrize("trained_on", [None, TRAINED])
def test_save_and_load(tmp_path, trained_on):
    model = FusionModel(alpha=0.3, slope=0.2, pivot=-1.0, reach=0.25, trained_on=trained_on)
    assert FusionModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model
    model.save(tmp_path / "fusion.json")
    assert FusionModel.load(tmp_path / "fusion.json") == model
    assert FusionModel.load(tmp_path / "none.json") is None


@pytest.mark.parametrize("pseudo", [True, False])
def test_files_of_the_time_of_fits_without_judgments_are_read(pseudo):
    told = FusionModel(alpha=0.4, trained_on=TRAINED).to_dict()
    told["trained_on"]["pseudo"] = pseudo
    assert FusionModel.from_dict(told) == FusionModel(alpha=0.4, trained_on=TRAINED)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": 2}, "format must be 1"),
        ({"alpha": 1.1}, "alpha must be a number from 0 to 1"),
        ({"alpha": True}, "alpha"),
        ({"alpha": None}, "alpha"),
        ({"slope": -0.1}, "slope must be a number from 0"),
        ({"slope": "1"}, "slope"),
        ({"pivot": None}, "pivot must be a finite number"),
        ({"reach": 2}, "reach"),
        ({"more": 1}, "missing or unknown: more"),
        ({"trained_on": []}, "trained_on must be an object"),
        ({"trained_on": {"dataset": "d"}}, "trained_on must be an object"),
        ({"trained_on": {**TRAINED.to_dict(), "rows": -1}}, "trained_on.rows"),
        ({"trained_on": {**TRAINED.to_dict(), "index": 1}}, "trained_on.index"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, change, told):
    path = tmp_path / "fusion.json"
    path.write_text(json.dumps({**DEFAULT_FUSION.to_dict(), **change}), encoding="utf-8")
    with pytest.raises(StoreDamagedError) as caught:
        FusionModel.load(path)
    assert told in str(caught.value)
    assert "fusion.json" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"alpha": NaN}'])
def test_junk_in_a_file_is_a_typed_error(tmp_path, content):
    (tmp_path / "fusion.json").write_bytes(content)
    with pytest.raises(StoreDamagedError):
        FusionModel.load(tmp_path / "fusion.json")


def test_an_installed_file_is_seen_when_it_comes_changes_and_goes(tmp_path):
    path = tmp_path / "fusion.json"
    installed = InstalledFusion(path)
    assert installed.current() == DEFAULT_FUSION
    FusionModel(alpha=0.25).save(path)
    os.utime(path, ns=(1, 1))
    assert installed.current().alpha == 0.25
    path.write_text("junk")
    for _ in range(2):
        with pytest.raises(StoreDamagedError):
            installed.current()
    FusionModel(alpha=0.75).save(path)
    os.utime(path, ns=(2, 2))
    assert installed.current().alpha == 0.75
    path.unlink()
    assert installed.current() == InstalledFusion(None).current() == DEFAULT_FUSION

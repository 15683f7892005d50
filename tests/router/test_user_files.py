"""Files and lists that users write for a router: what is wrong in them is told by setting, file and key."""

from __future__ import annotations

import json

import pytest

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.errors import ConfigError
from agentic_retriever.routing import Calibration
from agentic_retriever.testing import FakeEmbedding


@pytest.fixture
def refused(tmp_path):
    """Returns what making a router with some settings says."""

    def make(**settings):
        config = RouterConfig(data_dir=tmp_path / "data", query_log="none", **settings)
        with pytest.raises(ConfigError) as caught:
            AgenticRouter(config, embedding=FakeEmbedding(dimension=8)).close()
        return str(caught.value)

    return make


def calibration(**changes):
    return json.dumps(Calibration().to_dict() | changes)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is not JSON"),
        ("[1]", "holds no calibration but list"),
        ("{}", "has format"),
        (calibration(format="99"), "has format '99'"),
        (calibration(temperature="warm"), "no usable temperature"),
        (calibration(queries=1.5), "no usable queries"),
        ("[" * 100_000, ""),
    ],
)
def test_a_calibration_that_cannot_be_used(tmp_path, refused, content, told):
    path = tmp_path / "calibration.json"
    path.write_text(content, encoding="utf-8")
    message = refused(calibration_file=str(path))
    assert message.startswith("setting calibration_file: ")
    assert message.count(str(path)) == 1
    assert told in message


def test_a_calibration_is_found_by_any_path_that_leads_to_it(tmp_path, refused):
    path = tmp_path / "calibration.json"
    path.write_text(calibration(), encoding="utf-8")
    (tmp_path / "link.json").symlink_to(path)
    (tmp_path / "sub").mkdir()
    for way in (tmp_path / "link.json", tmp_path / "sub" / ".." / "calibration.json"):
        config = RouterConfig(data_dir=tmp_path / "data", query_log="none", calibration_file=str(way))
        AgenticRouter(config, embedding=FakeEmbedding(dimension=8)).close()
    path.unlink()
    assert "link.json" in refused(calibration_file=str(tmp_path / "link.json"))
    assert "../gone.json" in refused(calibration_file=str(tmp_path / "sub" / ".." / "gone.json"))
    assert str(tmp_path) in refused(calibration_file=str(tmp_path))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("boost_keywords", "ABS = much"),
        ("boost_keywords", "ABS"),
        ("boost_keywords", "ABS = 7"),
        ("boost_keywords", "= 0.3"),
        ("boost_keywords", "-- = 0.3"),
        ("boost_keywords", "; ".join(f"w{n} = 0.1" for n in range(501))),
        ("domain_terms", "homologation | ; |"),
    ],
)
def test_a_list_that_cannot_be_read_is_told_by_its_setting(refused, setting, value):
    assert setting in refused(**{setting: value})

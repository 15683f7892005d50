"""Lists that users write for a router: what is wrong in them is told by setting."""

from __future__ import annotations

import pytest

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.errors import ConfigError
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

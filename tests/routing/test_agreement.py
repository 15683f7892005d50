import json
from pathlib import Path

import numpy as np
import pytest

from agentic_retriever.config import RouterConfig
from agentic_retriever.router import AgenticRouter
from agentic_retriever.sample import SAMPLE_INDEXES
from agentic_retriever.testing import FakeEmbedding

QUESTIONS = [
    json.loads(line)
    for line in (Path(__file__).parent / "strategy_questions.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("agreement")
    with AgenticRouter(RouterConfig(data_dir=made, query_log="none"), embedding=FakeEmbedding()) as router:
        for sample in SAMPLE_INDEXES:
            router.add_index(sample.name, sample.folder)
            router.build_views(sample.name)
    return made


@pytest.mark.parametrize("selector", ["auto", "heuristic"])
def test_the_strategy_is_one_of_those_that_are_right(selector, folder):
    config = RouterConfig(data_dir=folder, query_log="none", selector=selector)
    with AgenticRouter(config, embedding=FakeEmbedding()) as router:
        right = {1: [], 2: [], 3: []}  # the rules were changed after the first and the second, not after the third
        for one in QUESTIONS:
            chosen = router.route(one["question"], index=one["index"]).strategy.name
            right[one["written"]].append(chosen in one["strategies"])
    assert [len(found) for found in right.values()] == [100, 50, 50]
    assert all(np.mean(found) >= 0.85 for found in right.values())

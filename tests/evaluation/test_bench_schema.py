"""What the JSON of a benchmark holds, against what docs/benchmarks.md says of it; and the choice of the index in it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from evaluation_material import BOAT_QUERIES, BOATS, DIMENSION, write_lines

from agentic_retriever.config import RouterConfig
from agentic_retriever.evaluation import benchmark, measures
from agentic_retriever.evaluation.measures import MEASURES, measure_rankings
from agentic_retriever.router import AgenticRouter
from agentic_retriever.testing import FakeEmbedding

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def documented():
    """Every word in code style in the table of the JSON."""
    section = PAGE.read_text(encoding="utf-8").partition("## The JSON")[2].partition("\n## ")[0]
    marked = " ".join(re.findall(r"`([^`]+)`", section))
    return set(re.findall(r"[\w@]+", marked))


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A benchmark of two indexes with everything that can be measured without a model."""
    folder = tmp_path_factory.mktemp("schema")
    records = [{"id": i, "query": text, "index": "boats", "doc_ids": [doc_id], "answer": BOATS[doc_id]}
               for i, (text, doc_id) in BOAT_QUERIES.items()]  # fmt: skip
    records += [{"id": "b1", "query": "rye flour and water", "index": "bread", "doc_ids": ["r4"], "answer": "water"},
                {"id": "out", "query": "who painted the ceiling", "answerable": False}]  # fmt: skip
    asked = write_lines(folder / "asked.jsonl", records)
    bread = {"r4": "Rye flour needs more water.", "r3": "Bake the loaf in a hot oven."}
    embedding = FakeEmbedding(dimension=DIMENSION)
    with AgenticRouter(RouterConfig(data_dir=folder / "data"), embedding=embedding) as router:
        for name, documents in (("boats", BOATS), ("bread", bread)):
            path = write_lines(folder / f"{name}.jsonl", [{"_id": i, "text": t} for i, t in documents.items()])
            router.add_index(name, path, description=f"about {name}")
        result = benchmark(router, asked, strategies=["vector", "hybrid", "auto"], answers=True, folder=folder / "keep")
        return json.loads(result.to_json()), result.to_html()


def test_every_key_is_documented(told):
    data, _ = told
    known = documented()
    assert set(data) <= known
    for one in data["datasets"].values():
        assert set(one) <= known
        for row in one["strategies"].values():
            assert set(row) - set(MEASURES) <= known
        for part in ("against", "routing"):
            assert set(one[part]) - {"rows"} <= known, part
        assert {"counts", "intervals", "judged_by", "abstention", "reliability", "tiers", "per_query"} <= set(
            one["answers"]
        )
    ways = data["stage_one"]["stage_one"]
    documented_of_ways = {
        "accuracy",
        "macro_accuracy",
        "macro_f1",
        "reached",
        "ece",
        "by_index",
        "confusion",
        "latency_ms",
    }
    assert documented_of_ways <= known
    assert all(documented_of_ways <= set(way) for way in ways.values())


def test_what_is_documented_is_there(told):
    data, _ = told
    one = data["datasets"]["asked/boats"]
    section = PAGE.read_text(encoding="utf-8").partition("## The JSON")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `….(\w+)(?:\.ROW)?`[^|]*\| (.*) \|$", section, re.MULTILINE))
    for part in ("against", "routing"):
        named = set(re.findall(r"`(\w+)`", rows[part])) - {"difference", "interval", "p", "p_holm"}
        assert named
        assert named <= set(one[part]), part
    assert {"difference", "interval", "p", "p_holm"} == set(next(iter(one["against"]["rows"].values())))
    named = set(re.findall(r"`(\w+)`", rows["answers"]))
    assert named <= set(one["answers"])


def test_several_indexes_bring_the_choice_of_the_index(told):
    data, page = told
    found = data["stage_one"]
    assert set(found["indexes"]) == {"boats", "bread"}
    assert {"profile", "embedding"} <= set(found["stage_one"])
    for way in found["stage_one"].values():
        assert way["queries"] == 3
        assert 0 <= way["accuracy"] <= 1
    assert found["stage_one"]["profile"]["accuracy"] == 1.0
    assert "bench-routing" in found["left_out"]["llm"]
    assert "stage one: 3 questions" in page
    assert "accuracy by index" in page


def test_a_measure_without_a_number_counts_as_nothing_found(monkeypatch):
    ir_measures = pytest.importorskip("ir_measures")
    real = measures._ir_measures()

    class Odd:
        def __getattr__(self, name):
            return getattr(real, name)

        def iter_calc(self, wanted, qrels, run):
            for metric in real.iter_calc(wanted, qrels, run):
                odd = metric.query_id == "q1" and str(metric.measure) == MEASURES[0]
                yield ir_measures.Metric(metric.query_id, metric.measure, float("nan")) if odd else metric

    monkeypatch.setattr(measures, "_ir_measures", Odd)
    found = measure_rankings({"q1": {"d": 1}, "q2": {"d": 1}}, {"q1": ["d"], "q2": ["d"]})
    assert found["q1"][MEASURES[0]] == 0.0
    assert found["q1"]["RR"] == found["q2"][MEASURES[0]] == 1.0

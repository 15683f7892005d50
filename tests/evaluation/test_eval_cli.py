from __future__ import annotations

import json

import pytest
from evaluation_material import BOATS, DIMENSION, write_lines
from typer.testing import CliRunner

from agentic_retriever import resources
from agentic_retriever.cli.app import app
from agentic_retriever.config import PREFIX
from agentic_retriever.indices.measured import MEASURED_FILE
from agentic_retriever.testing import FakeEmbedding


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Run the command line in a folder of its own, with an embedding that needs no model."""
    monkeypatch.chdir(tmp_path)
    for name in ("EMBEDDING_MODEL", "OPENROUTER_API_KEY", f"{PREFIX}LLM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(resources, "resolve_embedding", lambda *_, **__: FakeEmbedding(dimension=DIMENSION))

    def run(*args):
        return CliRunner().invoke(app, ["--traceback", "--data-dir", str(tmp_path / "data"), *map(str, args)])

    return run


def test_bench_routing(cli, boats, bread, vectors, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "said.json").write_text('{"boats": "all about boats"}')
    done = cli(
        "bench-routing", boats, bread, "--vectors", vectors, "--json", "out/r.json", "--plot", "r.svg",
        "--descriptions", "said.json", "--complexity", "bread=simple", "--limit", 1, "--seed", 7,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    for word in ("macro accuracy", "profile", "llamaindex_embedding_selector (peer)", "reliability, profile",
                 "confusion, profile", "p95 ms", "all about boats", "balanced accuracy"):  # fmt: skip
        assert word in done.stdout
    told = json.loads((tmp_path / "out" / "r.json").read_text(encoding="utf-8"))
    assert told["seed"] == 7
    assert told["stage_one"]["profile"]["queries"] == 2
    assert told["indexes"]["boats"]["description_from"] == "file"
    assert told["complexity"]["count"] == 1
    assert (tmp_path / "r.svg").read_bytes().startswith(b"<?xml")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["r.json"]


def test_problems_are_warned_of(cli, boats, bread, vectors):
    with (boats / "qrels" / "test.tsv").open("a") as file:
        file.write("q1\tnothing\t1\n")
    done = cli("bench-routing", boats, bread, "--vectors", vectors)
    assert done.exit_code == 0
    assert "1 x unknown document (the judgment is left out)" in done.stderr


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["nowhere"], 6, "does not exist"),
        (["boats", "boats"], 6, "called 'boats'"),
        (["boats", "--plot", "r.gif"], 6, ".svg or .png"),
        (["boats", "--complexity", "boats"], 3, "DATASET=simple"),
        (["boats", "--descriptions", "nowhere.json"], 6, "nowhere.json"),
        (["boats", "--vectors", "nowhere"], 6, "nowhere does not exist"),
        (["boats", "--index", "cars"], 5, "'cars'"),
        (["boats", "--limit", "0"], 2, "limit"),
        ([], 2, "DATASET"),
    ],
)
def test_wrong_arguments(cli, boats, args, code, told):
    done = cli("bench-routing", *args)
    assert done.exit_code == code
    assert told in done.output


def test_train(cli, boats, tmp_path):
    assert cli("index", "add", "mine", boats / "corpus.jsonl").exit_code == 0
    done = cli("train", boats, "--index", "mine", "--json", "t.json")
    assert done.exit_code == 0, done.output
    assert "figures of 7 strategies kept" in done.stdout
    told = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert told["fusion"]["installed"] is False
    assert set(told["strategies"]) >= {"vector", "hybrid", "planner"}
    assert (tmp_path / "data" / "indexes" / "mine" / MEASURED_FILE).exists()


def test_train_without_installing(cli, tmp_path):
    words = ["ferry", "sail", "anchor", "boat", "harbour"]
    records = [{"query": f"{w} {at}", "index": "mine", "doc_ids": [i]} for at in range(6)
               for i, w in zip(BOATS, words, strict=True)]  # fmt: skip
    path = write_lines(tmp_path / "asked.jsonl", records)
    write_lines(tmp_path / "docs.jsonl", [{"_id": i, "text": text} for i, text in BOATS.items()])
    assert cli("index", "add", "mine", "docs.jsonl").exit_code == 0
    done = cli("train", path, "--index", "mine", "--dry-run")
    assert done.exit_code == 0, done.output
    for word in ("nDCG@10", "weights of hybrid", "cross-validation", "not kept (dry run)"):
        assert word in done.stdout
    assert not (tmp_path / "data" / "indexes" / "mine" / MEASURED_FILE).exists()


def test_train_on_nothing(cli, boats):
    done = cli("train", boats, "--index", "mine")
    assert (done.exit_code, "'mine'" in done.stderr) == (5, True)
    assert cli("train", boats).exit_code == 2
    assert cli("train", "--index", "mine").exit_code == 2

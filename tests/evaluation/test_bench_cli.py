from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from evaluation_material import BOAT_QUERIES, BOATS, DIMENSION, write_beir
from typer.testing import CliRunner

from agentic_retriever.cli.app import app
from agentic_retriever.config import PREFIX
from agentic_retriever.evaluation import harness
from agentic_retriever.router import AgenticRouter
from agentic_retriever.testing import FakeEmbedding


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Run the command line in a folder of its own, with an embedding that needs no model."""
    monkeypatch.chdir(tmp_path)
    for name in ("EMBEDDING_MODEL", "OPENROUTER_API_KEY", f"{PREFIX}LLM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(harness, "resolve_embedding", lambda *_, **__: FakeEmbedding(dimension=DIMENSION))

    def run(*args):
        return CliRunner().invoke(app, ["--traceback", "--data-dir", str(tmp_path / "data"), *map(str, args)])

    return run


def test_bench(cli, boats, vectors, tmp_path):
    pytest.importorskip("matplotlib")
    done = cli("bench", boats, "--vectors", vectors, "--json", "out/o.json", "--html", "out/o.html", "--seed", 5)
    assert done.exit_code == 0, done.output
    for word in ("nDCG@10 [95 %]", "vector", "planner", "auto", "oracle", "p95 ms", "choice of the strategy"):
        assert word in done.stdout
    # Not on a terminal, so a line for each step instead of a bar.
    assert re.search(r"^ +\d+ s  hybrid \(2\)$", done.stderr, re.MULTILINE)
    told = json.loads((tmp_path / "out" / "o.json").read_text(encoding="utf-8"))
    assert told["seed"] == 5
    for name in (
        "vector",
        "hybrid",
        "recursive",
        "chunk_decoupling",
        "planner",
        "metadata",
        "summary",
        "auto",
        "oracle",
    ):
        row = told["datasets"]["boats"]["strategies"][name]
        assert {"nDCG@10", "R@10", "RR", "p50_ms", "p95_ms", "intervals"} <= set(row)
    # What was kept for an interruption is gone, and nothing is left in the data directory.
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["o.html", "o.json"]
    assert not (tmp_path / "data").exists()


def test_kept_indexes_are_used_again(cli, boats, tmp_path):
    for _ in range(2):
        done = cli("bench", boats, "--strategies", "vector,hybrid", "--keep", "kept", "--no-views", "--limit", 1)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "kept" / "boats" / "indexes" / "boats" / "manifest.json").exists()


def test_an_interrupted_command_keeps_what_was_done(cli, boats, tmp_path, monkeypatch):
    original = AgenticRouter.retrieve

    def retrieve(self, query, *, strategy, **more):
        if strategy == "hybrid":
            raise KeyboardInterrupt
        return original(self, query, strategy=strategy, **more)

    monkeypatch.setattr(AgenticRouter, "retrieve", retrieve)
    args = ("bench", boats, "--strategies", "vector,hybrid", "--json", "o.json")
    assert cli(*args).exit_code == 130
    assert len(list((tmp_path / ".o.json.partial" / "runs").iterdir())) == 1
    assert not (tmp_path / "o.json").exists()
    monkeypatch.setattr(AgenticRouter, "retrieve", original)
    assert cli(*args).exit_code == 0
    assert not (tmp_path / ".o.json.partial").exists()


def test_problems_are_warned_of(cli, tmp_path):
    folder = write_beir(tmp_path / "odd", BOATS, BOAT_QUERIES, extra_judgments=["q1\tnothing\t1"])
    done = cli("bench", folder, "--strategies", "vector", "--mode", "round-robin")
    assert done.exit_code == 0, done.output
    assert "1 x unknown document" in done.stderr
    assert "cannot go on" in done.stderr


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["nowhere"], 6, "does not exist"),
        (["boats", "boats"], 6, "called 'boats'"),
        (["boats", "--strategies", "vectro"], 6, "vector"),
        (["boats", "--mode", "some"], 6, "round_robin"),
        (["boats", "--vectors", "nowhere"], 6, "nowhere does not exist"),
        (["boats", "--depth", "0"], 2, "depth"),
        ([], 2, "DATASET"),
    ],
)
def test_wrong_arguments(cli, boats, args, code, told):
    done = cli("bench", *args)
    assert done.exit_code == code, done.output
    assert told in done.output


def test_help_loads_no_llama_index():
    code = (
        "import sys; from typer.testing import CliRunner; from agentic_retriever.cli.app import app\n"
        "assert CliRunner().invoke(app, ['bench', '--help']).exit_code == 0\n"
        "assert 'llama_index' not in ' '.join(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""The commands ``bench``, ``bench-routing`` and ``train``."""

import json
import logging
import re
from contextlib import suppress

import pytest
from command_line import run_fresh
from evaluation_material import BOAT_QUERIES, BOATS, DIMENSION, write_beir, write_lines
from typer.testing import CliRunner

from agentic_retriever import resources
from agentic_retriever.cli.app import app
from agentic_retriever.config import PREFIX, RouterConfig
from agentic_retriever.evaluation import benchmark, harness
from agentic_retriever.indices.profile import MEASURED_FILE
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import Strategy
from agentic_retriever.testing import FakeEmbedding


def written(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_bench(cli, boats, vectors, tmp_path):
    pytest.importorskip("matplotlib")
    done = cli("bench", boats, "--vectors", vectors, "--json", "out/o.json", "--html", "out/o.html", "--seed", 5)
    assert done.exit_code == 0, done.output
    for word in ("nDCG@10 [95 %]", "vector", "planner", "auto", "oracle", "p95 ms", "choice of the strategy"):
        assert word in done.stdout
    # Not on a terminal, so a line for each step instead of a bar.
    assert re.search(r"^ +\d+ s  hybrid \(2\)$", done.stderr, re.MULTILINE)
    told = written(tmp_path / "out" / "o.json")
    assert told["seed"] == 5
    for name in (*(strategy.value for strategy in Strategy), "auto", "oracle"):
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

    args = ("bench", boats, "--strategies", "vector,hybrid", "--json", "o.json")
    with monkeypatch.context() as patched:
        patched.setattr(AgenticRouter, "retrieve", retrieve)
        assert cli(*args).exit_code == 130
    assert len(list((tmp_path / ".o.json.partial" / "runs").iterdir())) == 1
    assert not (tmp_path / "o.json").exists()
    assert cli(*args).exit_code == 0
    assert not (tmp_path / ".o.json.partial").exists()


def test_bench_routing(cli, boats, bread, vectors, tmp_path):
    done = cli(
        "bench-routing", boats, bread, "--vectors", vectors, "--json", "out/r.json", "--limit", 1, "--seed", 7,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    for word in ("macro accuracy", "profile", "llamaindex_embedding_selector (peer)", "reliability, profile",
                 "confusion, profile", "p95 ms", "boats and the harbour"):  # fmt: skip
        assert word in done.stdout
    told = written(tmp_path / "out" / "r.json")
    assert (told["seed"], told["stage_one"]["profile"]["queries"]) == (7, 2)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["r.json"]


def test_problems_are_warned_of(cli, bread, vectors, tmp_path):
    odd = write_beir(tmp_path / "boats", BOATS, BOAT_QUERIES, extra_judgments=["q1\tnothing\t1"])
    done = cli("bench", odd, "--strategies", "vector", "--mode", "round-robin")
    assert done.exit_code == 0, done.output
    assert "cannot go on" in done.stderr
    routing = cli("bench-routing", odd, bread, "--vectors", vectors)
    assert routing.exit_code == 0, routing.output
    for one in (done, routing):
        assert "1 x unknown document (the judgment is left out)" in one.stderr


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [("bench nowhere", 6, "does not exist"), ("bench boats boats", 6, "called 'boats'"),
     ("bench boats --strategies vectro", 6, "vector"), ("bench boats --mode some", 6, "round_robin"),
     ("bench boats --vectors nowhere", 6, "nowhere does not exist"), ("bench boats --depth 0", 2, "depth"),
     ("bench", 6, "name a data set"), ("bench-routing nowhere", 6, "does not exist"),
     ("bench-routing boats boats", 6, "called 'boats'"), ("bench-routing boats --limit 0", 2, "limit"),
     ("bench-routing boats --vectors nowhere", 6, "nowhere does not exist"),
     ("bench-routing", 2, "DATASET"), ("train boats --index mine", 5, "'mine'"), ("train boats", 2, "index"),
     ("train --index mine", 2, "DATASET")],
)  # fmt: skip
@pytest.mark.usefixtures("boats")
def test_wrong_arguments(cli, args, code, told):
    done = cli(*args.split())
    assert done.exit_code == code, done.output
    assert told in done.output


def test_help_loads_no_llama_index():
    code = (
        "import sys; from typer.testing import CliRunner; from agentic_retriever.cli.app import app\n"
        "assert CliRunner().invoke(app, ['bench', '--help']).exit_code == 0\n"
        "assert 'llama_index' not in ' '.join(sys.modules)"
    )
    done = run_fresh(code)
    assert done.returncode == 0, done.stderr


def test_train(cli, boats, tmp_path):
    assert cli("index", "add", "mine", boats / "corpus.jsonl").exit_code == 0
    done = cli("train", boats, "--index", "mine", "--json", "t.json")
    assert done.exit_code == 0, done.output
    assert "figures of 7 strategies kept" in done.stdout
    told = written(tmp_path / "t.json")
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


# No key of the settings in anything that an evaluation says or leaves behind.


CANARY = "canary-0badc0ffee"
NOWHERE = "127.0.0.1:9"
SECRETS = {
    "OPENROUTER_API_KEY": f"sk-{CANARY}", f"{PREFIX}OPENROUTER_BASE_URL": f"http://{NOWHERE}/v1",
    "QDRANT_API_KEY": f"qd-{CANARY}", "COHERE_API_KEY": f"co-{CANARY}",
    f"{PREFIX}REDIS_URL": f"redis://:{CANARY}@{NOWHERE}/0",
}  # fmt: skip


class Talkative(FakeEmbedding):
    """A model whose client puts the key into what it raises."""

    down: bool = False

    def _get_query_embedding(self, query):
        if self.down:
            raise ConnectionError(f"401 for Bearer sk-{CANARY}")
        return super()._get_query_embedding(query)


@pytest.fixture
def talkative(monkeypatch, cli):
    made = Talkative(dimension=DIMENSION)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    for module in (harness, resources):
        monkeypatch.setattr(module, "resolve_embedding", lambda *_, **__: made)
    return made


@pytest.fixture
def say(tmp_path, caplog, talkative):
    """Run a command with the keys set; gives its exit code and all that it printed, raised and logged."""
    caplog.set_level(logging.DEBUG)

    def run(*args):
        done = CliRunner().invoke(app, ["--data-dir", str(tmp_path / "data"), *map(str, args)])
        raised, cause = [], done.exception
        while cause is not None and not isinstance(cause, SystemExit):
            raised.append(repr(cause))
            cause = cause.__cause__
        # A cause is kept for who debugs; what a user is shown is what is printed and logged.
        return done.exit_code, done.output + done.stderr + caplog.text + "".join(raised[:1])

    return run


def test_benchmarks_training_and_their_reports_hold_no_key(say, talkative, boats, tmp_path):
    pytest.importorskip("matplotlib")
    config = RouterConfig.from_env()
    for secret in (config.openrouter_api_key, config.qdrant_api_key, config.cohere_api_key, config.redis_url):
        assert CANARY in secret.reveal()
    code, text = say("bench", boats, "--json", "o.json", "--html", "o.html", "--keep", "kept", "--answers")
    assert code == 0, text
    assert "nDCG@10" in text
    assert (tmp_path / "o.html").stat().st_size > 0
    made, _ = say("index", "add", "mine", boats / "corpus.jsonl")
    code, text = say("train", boats, "--index", "mine", "--json", "t.json")
    assert (made, code) == (0, 0), text
    result = benchmark(config, boats, embedding=talkative, folder=tmp_path / "held")
    shown = [repr(result), str(result), str(result.to_dict()), result.to_json(), result._repr_html_()]
    assert not [text for text in shown if CANARY in text]
    talkative.down = True  # and quotes the key
    code, failed = say("bench", boats, "--json", "o.json", "--html", "o.html")
    assert code != 0
    assert CANARY not in text + failed
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    for path in files:
        with suppress(FileNotFoundError):  # a database's log is gone when it was closed
            assert CANARY.encode() not in path.read_bytes(), path

"""No key of the settings in anything that an evaluation says or leaves behind."""

from __future__ import annotations

import logging

import pytest
from evaluation_material import DIMENSION
from typer.testing import CliRunner

from agentic_retriever import resources
from agentic_retriever.cli.app import app
from agentic_retriever.config import PREFIX, RouterConfig
from agentic_retriever.evaluation import benchmark, harness
from agentic_retriever.testing import FakeEmbedding

CANARY = "canary-0badc0ffee"
NOWHERE = "127.0.0.1:9"
SECRETS = {
    "OPENROUTER_API_KEY": f"sk-{CANARY}",
    f"{PREFIX}OPENROUTER_BASE_URL": f"http://{NOWHERE}/v1",
    "QDRANT_API_KEY": f"qd-{CANARY}",
    "COHERE_API_KEY": f"co-{CANARY}",
    f"{PREFIX}REDIS_URL": f"redis://:{CANARY}@{NOWHERE}/0",
    f"{PREFIX}QUERY_LOG": f"postgresql://user:{CANARY}@{NOWHERE}/db",
}


class Talkative(FakeEmbedding):
    """A model whose client puts the key into what it raises."""

    down: bool = False

    def _get_query_embedding(self, query):
        if self.down:
            raise ConnectionError(f"401 for Bearer sk-{CANARY}")
        return super()._get_query_embedding(query)


@pytest.fixture
def model():
    return Talkative(dimension=DIMENSION)


@pytest.fixture
def say(tmp_path, monkeypatch, caplog, model):
    """Run a command with the keys set; gives its exit code and all that it printed, raised and logged."""
    monkeypatch.chdir(tmp_path)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    for module in (harness, resources):
        monkeypatch.setattr(module, "resolve_embedding", lambda *_, **__: model)
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


def holding_the_canary(folder):
    return [path for path in folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


def test_the_settings_hold_the_canary(say):
    config = RouterConfig.from_env()
    for secret in (config.openrouter_api_key, config.qdrant_api_key, config.cohere_api_key, config.redis_url):
        assert CANARY in secret.reveal()


def test_a_benchmark_and_its_reports(say, boats, tmp_path):
    pytest.importorskip("matplotlib")
    code, text = say("bench", boats, "--json", "o.json", "--html", "o.html", "--keep", "kept", "--answers")
    assert code == 0, text
    assert "nDCG@10" in text
    assert CANARY not in text
    assert (tmp_path / "o.html").stat().st_size > 0
    assert holding_the_canary(tmp_path) == []


def test_training(say, boats, tmp_path):
    made, _ = say("index", "add", "mine", boats / "corpus.jsonl")
    code, text = say("train", boats, "--index", "mine", "--json", "t.json")
    assert (made, code) == (0, 0), text
    assert CANARY not in text
    assert holding_the_canary(tmp_path) == []


def test_failures_that_quote_the_key(say, model, boats, tmp_path):
    model.down = True
    code, text = say("bench", boats, "--json", "o.json", "--html", "o.html")
    assert code != 0
    assert CANARY not in text
    assert holding_the_canary(tmp_path) == []


def test_the_result_in_python(say, model, boats, tmp_path):
    result = benchmark(RouterConfig.from_env(), boats, embedding=model, folder=tmp_path / "kept")
    shown = [repr(result), str(result), str(result.to_dict()), result.to_json(), result._repr_html_()]
    assert not [text for text in shown if CANARY in text]

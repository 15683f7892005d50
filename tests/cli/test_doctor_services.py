"""``doctor`` on models, Redis and the history: each named, each within a second, each with what to do."""

import json
import os
import shutil
import time
from unittest.mock import Mock

import pytest
from command_line import run_process
from redis_servers import free_port, hang, misbehaving
from typer.testing import CliRunner

from agentic_retriever.cli import doctor as doctor_command
from agentic_retriever.cli.app import app
from agentic_retriever.cli.doctor import Finding
from agentic_retriever.config import PREFIX

QUIET_S = 30.0
"""What the command itself may take on a busy machine, in seconds; the second of each service is measured by itself."""


@pytest.fixture
def doctor(tmp_path, monkeypatch):
    """Runs the command with some settings and returns its exit code and findings."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)

    def run(*, process=False, **settings):
        ours = {"EMBEDDING_MODEL": "local", "AGENTIC_RETRIEVER_DATA_DIR": str(tmp_path / "data"), **settings}
        started = time.monotonic()
        code, out, err = (in_process if process else in_place)(ours)
        assert time.monotonic() - started < QUIET_S
        assert err == ""
        return code, {one["what"]: (one["state"], one["detail"]) for one in json.loads(out)}

    return run


def in_process(settings):
    done = run_process(".", "doctor", "--json", env={**os.environ, **settings})
    return done.returncode, done.stdout, done.stderr


def in_place(settings):
    done = CliRunner().invoke(app, ["doctor", "--json"], env=settings)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def up(make_server):
    """A server that lists models both as Ollama and as OpenRouter do."""
    server = make_server()
    listing = {"models": [{"name": "llama3:8b"}, {"name": "small"}], "data": [{"id": "openai/gpt-4o-mini"}]}
    server.listing = json.dumps(listing).encode()
    return server


def tiers(url):
    return {
        "AGENTIC_RETRIEVER_LLM": "ollama:llama3:8b", "AGENTIC_RETRIEVER_LLM_CLOUD": "openrouter:openai/gpt-4o-mini",
        "AGENTIC_RETRIEVER_LLM_SMALL": "ollama:small", "OLLAMA_BASE_URL": url,
        "AGENTIC_RETRIEVER_OPENROUTER_BASE_URL": f"{url}/api/v1", "OPENROUTER_API_KEY": "sk-canary",
    }  # fmt: skip


ROLES = ("primary model", "cloud model", "small model")


@pytest.mark.parametrize("answers", [True, False])
def test_no_password_in_an_address_is_shown(doctor, up, answers):
    url = (up.url if answers else f"http://127.0.0.1:{free_port()}").replace("//", "//someone:canary@")
    _, found = doctor(**tiers(url), EMBEDDING_MODEL="ollama:llama3:8b")
    assert found["temporary folder"][0] == "ok"
    assert "127.0.0.1" in str(found)
    assert "canary" not in str(found)


@pytest.mark.parametrize("full", [True, False])
def test_a_folder_for_temporary_files_that_is_full_or_gone_is_named(doctor, monkeypatch, full):
    real = shutil.disk_usage
    folder = Mock(return_value="/full") if full else Mock(side_effect=FileNotFoundError("no folder"))
    monkeypatch.setattr("tempfile.gettempdir", folder)
    monkeypatch.setattr("shutil.disk_usage", lambda path: Mock(free=9_000_000) if path == "/full" else real(path))
    code, found = doctor()
    assert (code, found["temporary folder"][0]) == (1, "problem")
    assert ("/full: only 9 MB" if full else "none can be written (FileNotFoundError)") in found["temporary folder"][1]
    assert "TMPDIR" in found["temporary folder"][1]


def test_what_is_up_is_ok_and_what_is_missing_is_named_with_what_to_do(doctor, up):
    code, found = doctor(**tiers(up.url))
    assert code == 0
    for role in ROLES:
        assert found[role][0] == "ok"
        assert found[role][1].endswith("it can be asked")
    assert found["answer cache"][0] == "ok"
    assert found["redis"] == ("note", "not configured; caches are in memory only")
    assert found["query history"][0] == "ok"
    up.listing = json.dumps({"models": [], "data": []}).encode()
    code, found = doctor(**tiers(up.url))
    assert code == 1
    assert "get it with: ollama pull llama3:8b" in found["primary model"][1]
    assert "check the model's name" in found["cloud model"][1]
    assert "get it with: ollama pull small" in found["small model"][1]
    code, found = doctor(**(tiers(up.url) | {"OPENROUTER_API_KEY": "", "AGENTIC_RETRIEVER_LLM": "openrouter:x"}))
    assert code == 1
    assert "OPENROUTER_API_KEY" in found["answering model"][1]


@pytest.fixture
def looks(monkeypatch):
    """The seconds that each kind of check took, for a command that runs in place."""
    took = {}

    def timed(name, check):
        def look(config):
            started = time.monotonic()
            findings = check(config)
            findings = [findings] if isinstance(findings, Finding) else list(findings)
            took[name] = time.monotonic() - started
            return findings[0] if name == "_history" else findings

        return look

    for name in ("_models", "_caches", "_history"):
        monkeypatch.setattr(doctor_command, name, timed(name, getattr(doctor_command, name)))
    return took


def test_what_hangs_is_left_after_a_second(doctor, make_server, looks):
    """Each service has a second; the models are two, what embeds and what answers, the three tiers side by side."""
    pytest.importorskip("redis", reason="the extra 'redis' is not installed")
    pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
    server = make_server()
    server.mode = "hang"
    allowed, slow = {"_models": 2.0, "_caches": 1.0, "_history": 1.0}, {}
    with misbehaving(hang) as hanging:
        where = hanging.rpartition("@")[2].split("/")[0]
        for _ in range(3):  # the first loads packages, and another process may hold up the machine, not three times
            code, found = doctor(
                **tiers(server.url),
                REDIS_URL=f"redis://:secret@{where}/0",
                DATABASE_URL=f"postgresql://me:secret@{where}/none",
            )
            assert_down(code, found)
            slow = {name: seconds for name, seconds in looks.items() if seconds > allowed[name] + 0.25}
            if not slow:
                break
    assert not slow
    assert looks.keys() == allowed.keys()


def assert_down(code, found):
    """Everything is a problem, with what to do, and no password is shown."""
    assert code == 1
    for role in ROLES:
        state, detail = found[role]
        assert state == "problem"
        assert "start it with" in detail or "check" in detail
    assert found["redis"][0] == found["query history"][0] == "problem"
    assert "start it, or check redis_url" in found["redis"][1]
    assert "secret" not in json.dumps(found)
    assert found["answer cache"][0] == "ok"


def test_everything_refused(doctor):
    pytest.importorskip("redis", reason="the extra 'redis' is not installed")
    pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
    where = f"127.0.0.1:{free_port()}"
    code, found = doctor(
        process=True, **tiers(f"http://127.0.0.1:{free_port()}"), REDIS_URL=f"redis://:secret@{where}/0",
        DATABASE_URL=f"postgresql://me:secret@{where}/none",
    )  # fmt: skip
    assert_down(code, found)


@pytest.mark.parametrize(
    ("fault", "says"),
    [("up", "version 1.18"), ("refused", "check that it is up"), ("hang", "gave no answer"), ("key", "QDRANT_API_KEY")],
)
def test_qdrant(doctor, fault, says):
    from qdrant_servers import QdrantServer

    server = QdrantServer(key="canary-4711")
    if fault == "refused":
        server.close()
    server.always = "hang" if fault == "hang" else None
    code, found = doctor(QDRANT_URL=server.url, QDRANT_API_KEY="wrong" if fault == "key" else "canary-4711")
    assert (code, found["qdrant"][0]) == ((0, "ok") if fault == "up" else (1, "problem"))
    assert says in found["qdrant"][1]
    assert "canary-4711" not in json.dumps(found)
    server.released.set()
    if fault != "refused":
        server.close()


def test_qdrant_that_is_not_configured_is_no_problem(doctor):
    assert doctor(QDRANT_URL="")[1]["qdrant"] == ("note", "not configured; indexes are in the data directory")

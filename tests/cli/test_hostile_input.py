"""Settings files that are wrong, and texts that want to drive the terminal."""

from __future__ import annotations

import io
import re

import pytest
from command_line import run_process

from agentic_retriever.cli.console import Console
from agentic_retriever.config import PREFIX, RouterConfig
from agentic_retriever.errors import ConfigError

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202etxt\u2028 <script>x</script> [click](javascript:alert(1)) \x00\x08\r"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("TOP_K=many", "setting top_k must be a whole number"),
        ("TOP_K=0", "setting top_k must be a whole number (1 to"),
        ("DEADLINE_S=nan", "setting deadline_s must be a number"),
        ("SELECTOR=magic", "setting selector must be one of"),
        ("TOPK=3", "AGENTIC_RETRIEVER_TOP_K"),
    ],
)
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


def test_a_settings_file_that_is_a_folder_or_no_text_is_named(tmp_path):
    (tmp_path / "bytes").write_bytes(b"A=\xff\xfe\n")
    (tmp_path / "link").symlink_to(tmp_path / "bytes")
    for name in ("bytes", "link"):
        with pytest.raises(ConfigError, match=f"cannot read .*{name}"):
            RouterConfig.load(tmp_path / name, env={})


def test_the_command_line_tells_a_wrong_settings_file_in_one_line(tmp_path):
    (tmp_path / ".env").write_text(f"{PREFIX}TOP_K=many\n", encoding="utf-8")
    done = run_process(tmp_path, "index", "list")
    assert done.returncode == 3
    assert done.stdout == ""
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
        assert done.returncode == 3
        assert done.stdout == ""
        [line] = done.stderr.splitlines()
        assert line.startswith("error: setting prices_file: ")
        assert file in line
        assert "gone" in file or ("'a/b'" in line and "USD per million tokens" in line)
        assert "canary" not in line


@pytest.mark.parametrize("way", ["line", "piece", "note", "warn", "error", "table"])
def test_nothing_that_drives_a_terminal_is_written(way):
    out, err = io.StringIO(), io.StringIO()
    console = Console(out, err)
    if way == "table":
        console.table(["a"], [[EVIL]])
    else:
        getattr(console, way)(EVIL)
    written = out.getvalue() + err.getvalue()
    assert "click" in written
    assert not any(ord(char) < 32 and char not in "\n\t" for char in written)
    assert not any(char in written for char in "\x7f\x9b\u202e\u2028")


class Terminal(io.StringIO):
    """Where a person looks."""

    def isatty(self):
        return True


MARKUP = "[link=http://evil.example]here[/link] [bold]loud[/bold] [red]r[/] :warning: [1]"


@pytest.mark.parametrize("way", ["line", "piece", "note", "warn", "error", "table", "title"])
def test_markup_of_a_text_is_shown_as_it_stands(way, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    out, err = Terminal(), Terminal()
    console = Console(out, err)
    if way == "table":
        console.table([MARKUP], [[MARKUP]])
    elif way == "title":
        console.table(["a"], [["b" * len(MARKUP)]], title=MARKUP)
    else:
        getattr(console, way)(MARKUP)
    written = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue() + err.getvalue())
    # Nothing but colours was added: no link, no picture for a word between colons.
    assert written.count(MARKUP) == (2 if way == "table" else 1)
    assert "\x1b" not in written


def test_a_sequence_cut_over_two_pieces_does_not_get_through():
    out = io.StringIO()
    console = Console(out, io.StringIO())
    for piece in ("safe \x1b", "]0;ow", "ned\x07and ", "sound\x9b3", "1m.", "\x1b["):
        console.piece(piece)
    console.end_pieces()
    assert out.getvalue() == "safe and sound.\n"

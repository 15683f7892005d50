"""The fenced blocks of the documentation, and what can be checked of each without running it."""

import json
import re
import shlex
import sys
from collections.abc import Container, Iterable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import typer
import yaml
from dotenv import dotenv_values

from agentic_retriever.cli.app import app
from agentic_retriever.config import RouterConfig

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
LANGUAGES = ("python", "sh", "json", "toml", "yaml", "env", "diff", "text")

#: Commands that run in a test, since they need no model, no server and little time; the others are parsed.
RUNNABLE = ("query", "route", "stats", "warm", "index add", "index list", "index show", "index build", "index remove")

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*) *$")
_MARKER = re.compile(r"^<!-- (?P<kind>output|not run|checked only)(?:: (?P<reason>.+?))? -->$")


class BlockError(AssertionError):
    """A block of the documentation that is wrong; the message names page and line."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    page: str
    line: int  # of its first line of content, from 1
    language: str
    text: str
    marker: str = ""  # kind of the comment before the fence
    reason: str = ""

    @property
    def at(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(path: Path) -> list[Block]:
    """Return the blocks of a page in order, or say which fence or marker is wrong."""
    blocks, lines, at = [], path.read_text(encoding="utf-8").splitlines(), 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        if opened is None:
            at += 1
            continue
        end = next((i for i in range(at + 1, len(lines)) if lines[i].strip() == "```"), None)
        where = f"{path.name}:{at + 1}"
        if end is None:
            raise BlockError(f"{where}: the block is not closed")
        if opened["language"] not in LANGUAGES:
            raise BlockError(f"{where}: say which language it is; one of {', '.join(LANGUAGES)}")
        before = next((line.strip() for line in reversed(lines[:at]) if line.strip()), "")
        marker = _MARKER.match(before)
        if marker is not None and marker["kind"] != "output" and not marker["reason"]:
            raise BlockError(f"{where}: the marker must give a reason")
        cut = len(opened["indent"])
        text = "\n".join(line[cut:] for line in lines[at + 1 : end]) + "\n"
        kind, reason = (marker["kind"], marker["reason"] or "") if marker else ("", "")
        blocks.append(Block(path.name, at + 2, opened["language"], text, kind, reason))
        at = end + 1
    return blocks


def shell_commands(block: Block) -> list[list[str]]:
    """Return the commands of a block, one list of words each; continued lines are joined."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def command_name(words: list[str]) -> str:
    """Return the name of our command that a line calls, such as ``index add``."""
    names = [word for word in words[1:3] if not word.startswith("-")]
    return " ".join(names if names[:1] == ["index"] else names[:1])


def check_command(words: list[str], where: str) -> None:
    """Check one command of a shell block without running it: its options, arguments, targets, extras, files."""
    program, rest = words[0], words[1:]
    if program not in _CHECKERS:
        raise BlockError(f"{where}: no test knows {program!r}; mark the block as not run, with a reason")
    try:
        wrong = _CHECKERS[program](rest)
    except BlockError as err:
        wrong = str(err)
    if wrong:
        raise BlockError(f"{where}: {wrong}")


def _our_command(arguments: list[str]) -> str:
    """Parse the arguments as the command line does, down to the last subcommand, and call nothing."""
    command, context, name, rest = typer.main.get_command(app), None, "agentic-retriever", list(arguments)
    try:
        while True:
            context = command.make_context(name, rest, parent=context)
            if not hasattr(command, "resolve_command"):
                return ""
            name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
    except Exception as err:  # click's errors, which typer may bring with it under another module's name
        if type(err).__name__ != "Exit":  # --version and --help say what they have to say while they are parsed
            raise BlockError(f"agentic-retriever {shlex.join(arguments)}: {err}") from err
    return ""


def _make(arguments: list[str]) -> str:
    targets = re.findall(r"^([\w-]+):", _read("Makefile"), re.MULTILINE)
    return _missing("the Makefile has no target", (word for word in arguments if "=" not in word), targets)


def _pip(arguments: list[str]) -> str:
    extras = re.findall(r"^([\w-]+) = \[", _read("pyproject.toml"), re.MULTILINE)
    named = re.findall(r"(?:agentic-retriever|\.)\[([\w,-]+)\]", " ".join(arguments))
    return _missing("agentic-retriever has no extra", ",".join(named).split(",") if named else (), extras)


def _export(arguments: list[str]) -> str:
    return _missing("there is no setting", (word.partition("=")[0] for word in arguments), _read(".env.example"))


def _python(arguments: list[str]) -> str:
    return _copy([word for word in arguments if word.endswith(".py")][:1])


def _copy(arguments: list[str]) -> str:
    return _missing("there is no file", arguments[:1], [name for name in arguments[:1] if (ROOT / name).exists()])


def _docker(arguments: list[str]) -> str:
    """Check that ``docker compose`` names services of our file; further docker commands need a marker."""
    if arguments[:2] not in (["compose", "up"], ["compose", "down"], ["compose", "logs"]):
        return f"no test knows docker {arguments[:2]}; mark the block as not run, with a reason"
    services = yaml.safe_load(_read("docker-compose.yml"))["services"]
    return _missing(
        "docker-compose.yml has no service", (word for word in arguments[2:] if not word.startswith("-")), services
    )


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _missing(what: str, names: Iterable[str], there: Container[str]) -> str:
    return next((f"{what} {name!r}" for name in names if name not in there), "")


_CHECKERS = {
    "agentic-retriever": _our_command, "make": _make, "pip": _pip, "export": _export, "python": _python, "cp": _copy,
    "docker": _docker,
}  # fmt: skip


def check_data(block: Block) -> None:
    """Parse a block of data, and the settings of an ``env`` block as a router does."""
    try:
        _DATA[block.language](block.text)
    except Exception as err:  # each language has a parser of its own, and each parser its own errors
        raise BlockError(f"{block.at}: {err}") from err


def _settings(text: str) -> None:
    RouterConfig.from_env({name: value or "" for name, value in dotenv_values(stream=StringIO(text)).items()})


def _json(text: str) -> None:
    """Read one JSON value, or one a line."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        for line in text.splitlines():
            json.loads(line)


def _toml(text: str) -> None:
    if sys.version_info >= (3, 11):
        import tomllib

        tomllib.loads(text)


_DATA = {"json": _json, "toml": _toml, "yaml": yaml.safe_load, "env": _settings}

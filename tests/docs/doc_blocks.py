"""The fenced blocks of the documentation, and what can be checked of each without running it."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import typer
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
    """One fenced block.

    Attributes:
        page: Name of the file.
        line: Line of its first line of content, from 1.
        language: What the fence says.
        text: The content.
        marker: Kind of the comment on the line before the fence, or ``""``.
        reason: What that comment says further.
    """

    page: str
    line: int
    language: str
    text: str
    marker: str = ""
    reason: str = ""

    @property
    def at(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(path: Path) -> list[Block]:
    """Return the blocks of a page in order.

    Raises:
        BlockError: If a fence is not closed, its language is none of ``LANGUAGES``, or a marker lacks its reason.
    """
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
    """Check one command of a shell block without running it.

    Raises:
        BlockError: If the command, an option, an argument, a target, an extra, a setting or a file does not exist.
    """
    program, rest = words[0], words[1:]
    checker = _CHECKERS.get(program)
    if checker is None:
        raise BlockError(f"{where}: no test knows {program!r}; mark the block as not run, with a reason")
    checker(rest, where)


def _our_command(arguments: list[str], where: str) -> None:
    """Parse the arguments as the command line does, down to the last subcommand, and call nothing."""
    command, context, name, rest = typer.main.get_command(app), None, "agentic-retriever", list(arguments)
    try:
        while True:
            context = command.make_context(name, rest, parent=context)
            if not hasattr(command, "resolve_command"):
                return
            name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
    except Exception as err:  # click's errors, which typer may bring with it under another module's name
        if type(err).__name__ == "Exit":  # --version and --help say what they have to say while they are parsed
            return
        raise BlockError(f"{where}: agentic-retriever {shlex.join(arguments)}: {err}") from err


def _make(arguments: list[str], where: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in (word for word in arguments if "=" not in word):
        if not re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE):
            raise BlockError(f"{where}: the Makefile has no target {target!r}")


def _pip(arguments: list[str], where: str) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, extras in re.findall(r"(agentic-retriever)\[([\w,-]+)\]", " ".join(arguments)):
        for extra in extras.split(","):
            if not re.search(rf"^{re.escape(extra)} = \[", project, re.MULTILINE):
                raise BlockError(f"{where}: {name} has no extra {extra!r}")


def _export(arguments: list[str], where: str) -> None:
    for name in (word.partition("=")[0] for word in arguments):
        if name not in (ROOT / ".env.example").read_text(encoding="utf-8"):
            raise BlockError(f"{where}: there is no setting {name}")


def _python(arguments: list[str], where: str) -> None:
    script = next((word for word in arguments if word.endswith(".py")), None)
    if script is not None and not (ROOT / script).is_file():
        raise BlockError(f"{where}: there is no file {script}")


def _copy(arguments: list[str], where: str) -> None:
    if not (ROOT / arguments[0]).exists():
        raise BlockError(f"{where}: there is no file {arguments[0]}")


def _docker(arguments: list[str], where: str) -> None:
    """Check that ``docker compose`` names services of our file; further docker commands need a marker."""
    import yaml

    if arguments[:2] not in (["compose", "up"], ["compose", "down"], ["compose", "logs"]):
        raise BlockError(f"{where}: no test knows docker {arguments[:2]}; mark the block as not run, with a reason")
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    for name in (word for word in arguments[2:] if not word.startswith("-")):
        if name not in services:
            raise BlockError(f"{where}: docker-compose.yml has no service {name!r}")


_CHECKERS = {
    "agentic-retriever": _our_command,
    "make": _make,
    "pip": _pip,
    "export": _export,
    "python": _python,
    "cp": _copy,
    "docker": _docker,
}


def check_data(block: Block) -> None:
    """Parse a block of data, and the settings of an ``env`` block as a router does.

    Raises:
        BlockError: If it is none, or a setting is unknown or out of range.
    """
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


def _yaml(text: str) -> None:
    import yaml

    yaml.safe_load(text)


_DATA = {"json": _json, "toml": _toml, "yaml": _yaml, "env": _settings}

"""Runs the blocks of a page in order, in a folder with some sources, on a stand-in for the embedding model."""

import contextlib
import io
import os
import re
import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from doc_blocks import RUNNABLE, Block, BlockError, check_command, check_data, command_name, shell_commands
from typer.testing import CliRunner

from agentic_retriever import AgenticRouter, Strategy, config
from agentic_retriever.cli.app import app
from agentic_retriever.config import PREFIX, RouterConfig
from agentic_retriever.retrievers import REGISTRY, unregister_strategy
from agentic_retriever.routing import unregister_language
from agentic_retriever.routing.signals import packaged_languages, table_languages
from agentic_retriever.testing import FakeEmbedding

SOURCES = {
    "docs/handbook/leave.md": "# Leave\n\nEvery employee gets 28 days of annual leave.\n\nAsk a week ahead.\n",
    "docs/handbook/expenses.md": "# Expenses\n\nMeals on a journey are paid up to 40 euros a day.\n",
    "docs/contracts/supply.md": "# Supply\n\nThe supplier delivers within ten days of an order.\n",
    "docs/minutes/2023.md": "---\nyear: 2023\nteam: sales\n---\n# Minutes\n\nThe canteen opens at eight.\n",
    "docs/minutes/2025.md": "---\nyear: 2025\nteam: support\n---\n# Minutes\n\nThe canteen opens at nine.\n",
}
"""What the examples of the documentation are about."""


def write_sources(folder: Path) -> None:
    for name, text in SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


SHARED = tuple(name.upper() for name in config.SHARED)
REAL_CONNECT = socket.socket.connect


def _connect(self, address):
    """Connect to this machine only."""
    if self.family in {socket.AF_INET, socket.AF_INET6} and address[0] not in {"localhost", "127.0.0.1", "::1"}:
        self.close()
        raise AssertionError(f"the documentation reached for the network: {address[0]}")
    return REAL_CONNECT(self, address)


def _embedding(config: RouterConfig, **_):
    """Stand in for the packaged model and for the choice among models."""
    if config.embedding_model not in {"auto", "local"}:
        raise AssertionError(f"no test has the embedding model {config.embedding_model}; mark the block as not run")
    return FakeEmbedding(dimension=64)


def isolate(patch: pytest.MonkeyPatch, folder, *, embedding=_embedding) -> None:
    """Take away the settings of this machine, the network and other embedding models; work in ``folder``."""
    for name in [name for name in os.environ if name.startswith(PREFIX) or name in SHARED]:
        patch.delenv(name)
    patch.setattr(socket.socket, "connect", _connect)
    patch.setattr("agentic_retriever.resources.resolve_embedding", embedding)
    patch.chdir(folder)


@dataclass(slots=True)
class PageRun:
    """What became of the blocks of a page, by their places."""

    folder: Path
    prepared: Path
    run: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)  # only parsed
    not_run: list[str] = field(default_factory=list)  # with the reasons that they give
    printed: str = ""
    names: dict[str, object] = field(default_factory=lambda: {"__name__": "documentation"})

    def take(self, block: Block) -> None:
        """Run or check a block; what is wrong is named with page and line."""
        if block.language == "text":
            if block.marker == "output":
                self._compare(block)
                self.run.append(block.at)
        elif block.language == "diff":
            self.checked.append(block.at)  # compared with the files that it is between by a test of its own
        elif block.marker == "not run":
            if block.language == "python":
                _compiled(block)
            self.not_run.append(f"{block.at}: {block.reason}")
        elif block.language == "python":
            self._python(block)
        elif block.language == "sh":
            self._shell(block)
        else:
            check_data(block)
            self.run.append(block.at)

    def close(self) -> None:
        """Close the routers that the blocks left open and take away what they registered."""
        for value in self.names.values():
            if isinstance(value, AgenticRouter):
                value.close()
        for strategy in [strategy for strategy in REGISTRY if strategy not in tuple(Strategy)]:
            unregister_strategy(strategy)
        for language in {*table_languages()} - {*packaged_languages()}:
            unregister_language(language)

    def _python(self, block: Block) -> None:
        code = _compiled(block)
        if block.marker == "checked only":
            self.checked.append(block.at)
            return
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, self.names)
        self.printed = out.getvalue()
        self.run.append(block.at)

    def _shell(self, block: Block) -> None:
        """Check every command, and run those of ours that can run here."""
        commands = shell_commands(block)
        if block.marker == "checked only":
            commands = [words for words in commands if words[0] in {"agentic-retriever", "make", "export"}]
        for words in commands:
            check_command(words, block.at)
        ours = [words for words in commands if words[0] == "agentic-retriever"]
        runs = block.marker != "checked only" and ours and all(command_name(w) in RUNNABLE for w in ours)
        runnable = [words for words in ours if command_name(words) in RUNNABLE and not block.marker]
        self.printed = "".join(self._command(words, block) for words in runnable)
        (self.run if runs else self.checked).append(block.at)

    def _command(self, words: list[str], block: Block) -> str:
        data = self.folder / "command-line-data"
        if not data.exists():
            shutil.copytree(self.prepared, data)
        done = CliRunner().invoke(app, ["--data-dir", str(data), *words[1:]])
        if done.exit_code:
            raise BlockError(f"{block.at}: {' '.join(words)} ended with {done.exit_code}: {done.output}")
        return done.stdout

    def _compare(self, block: Block) -> None:
        """Compare what the block before printed; ``…`` alone stands for any lines, within a line for any text."""
        got = [line.rstrip() for line in self.printed.strip().splitlines()]
        wanted = [line.rstrip() for line in block.text.strip().splitlines()]
        if not _fits(got, wanted):
            raise BlockError(f"{block.at} says\n{block.text}\nbut the block before it printed\n{self.printed}")


def _fits(got: list[str], wanted: list[str]) -> bool:
    if not wanted:
        return not got
    if wanted[0] == "…":
        return any(_fits(got[skipped:], wanted[1:]) for skipped in range(len(got) + 1))
    pattern = ".*".join(re.escape(part) for part in wanted[0].split("…"))
    return bool(got) and re.fullmatch(pattern, got[0]) is not None and _fits(got[1:], wanted[1:])


def _compiled(block: Block) -> object:
    # Empty lines in front, so that a traceback names the line of the page.
    return compile("\n" * (block.line - 1) + block.text, block.page, "exec")

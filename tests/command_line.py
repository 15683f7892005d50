"""The command line, in a process of its own or, three seconds faster, inside the test's own process."""

import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentic_retriever.cli.app import app
from agentic_retriever.config import PREFIX

COMMAND = [sys.executable, "-m", "agentic_retriever"]


def environment(**changes):
    """The variables of this process without settings, changed."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}, **changes}


def run_process(folder, *args, env=None):
    """Run a command in a folder as people do."""
    return subprocess.run(
        [*COMMAND, *args],
        cwd=folder, env=env or environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def run_here(folder, *args, env, stdin=None):
    """Run a command in a folder with an environment of its own; tells exit code, standard output and error."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name not in env]:
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        patch.chdir(Path(folder))
        patch.setattr(sys, "stdin", io.StringIO(stdin or ""))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            app(list(args), prog_name="agentic-retriever")
            code = 0
        except SystemExit as end:
            code = end.code or 0
    told, warned = (stream.buffer.getvalue().decode("utf-8").replace(os.linesep, "\n") for stream in (out, err))
    return SimpleNamespace(returncode=code, stdout=told, stderr=warned)

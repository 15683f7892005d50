"""The command line inside the test's own process: what a process would say, without its three seconds of imports."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentic_retriever.cli.app import app


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

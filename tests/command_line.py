"""Programs in processes of their own, forked in a tenth of a second from one that has the library loaded, and the
command line, so or inside the test's own process."""

import atexit
import io
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context, reduction
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentic_retriever.cli.app import app
from agentic_retriever.config import PREFIX

COMMAND = [sys.executable, "-m", "agentic_retriever"]
MAIN = "import runpy; runpy.run_module('agentic_retriever', run_name='__main__', alter_sys=True)"
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["agentic_retriever.cli.app", "agentic_retriever.router", "loaded_models"])


def environment(**changes):
    """The variables of this process without settings, changed."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}, **changes}


class Fork:
    """A Python program with arguments, without input; otherwise used as a ``subprocess.Popen``."""

    def __init__(self, code, *args, cwd=".", env=None):
        ends = [os.pipe() for _ in range(2)]
        outputs = [reduction.DupFd(end) for _, end in ends]
        given = code, [*map(str, args)], Path(cwd).absolute(), dict(os.environ if env is None else env), outputs
        self.process = FORKS.Process(target=be_program, args=given)
        self.process.start()
        self.pid, self.kill = self.process.pid, self.process.kill
        for _, end in ends:
            os.close(end)
        self.stdout, self.stderr = (os.fdopen(end, encoding="utf-8") for end, _ in ends)

    def poll(self):
        return self.process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def wait(self, timeout):
        self.process.join(timeout)
        return self.process.exitcode

    def communicate(self, timeout=120):
        late = threading.Timer(timeout, self.kill)
        late.start()
        with self.stdout, self.stderr, ThreadPoolExecutor(2) as pool:
            told = [*pool.map(lambda stream: stream.read(), (self.stdout, self.stderr))]
        self.wait(timeout)
        late.cancel()
        return tuple(told)


def be_program(code, arguments, folder, variables, outputs):
    """Do as an interpreter that was started with ``-c``."""
    for number, output in enumerate(outputs, 1):
        os.dup2(output.detach(), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w", encoding="utf-8"), os.fdopen(2, "w", 1, encoding="utf-8")
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    sys.argv = ["-c", *arguments]
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()


def run_fresh(code, *args, **options):
    """Run a program in an interpreter started for it alone, as indented as the text that holds it."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.run(command, **{"capture_output": True, "text": True, "timeout": 120, **options})


def run_forked(code, *args, **options):
    """Run a program to its end; tells of it as ``subprocess.run`` does."""
    program = Fork(code, *args, **options)
    told = program.communicate()
    return subprocess.CompletedProcess([], program.poll(), *told)


def run_process(folder, *args, env=None):
    """Run a command in a folder as people do."""
    return run_forked(MAIN, *args, cwd=folder, env=env or environment())


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

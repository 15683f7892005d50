"""Print how many of our files one query crosses, and how deep our own frames stand at most.

Usage: python scripts/trace_query.py [--files] [--stack] [--check]

Two small indexes are made in a temporary folder; then their router answers its first question, nothing cached and
nothing warmed up, by extraction and without a server. A file counts once a function of it is called while the question
is answered; what only importing a module runs does not count, nor does the stand-in for an embedding model. The depth
is that of one thread.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from llama_index.core.schema import Document

import agentic_retriever
from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.testing import FakeEmbedding

PACKAGE = str(Path(agentic_retriever.__file__).parent)
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>"}  # frames of their own only before Python 3.12
MOST_FILES = 55
MOST_FRAMES = 22
TEXTS = {
    "animals": {
        "cats": "The cat sleeps sixteen hours a day. A cat purrs when it is content.",
        "dogs": "The dog barks at the postman. A dog walks twice a day.",
        "owls": "The owl hunts at night. An owl turns its head far round.",
    },
    "planets": {
        "venus": "Venus spins backwards. A day on Venus is longer than its year.",
        "mars": "Mars has two moons named Phobos and Deimos.",
    },
}
QUESTION = "How many hours does the cat sleep?"


@dataclass
class Trace:
    """Our files that were crossed, by their path in the package, and the deepest stack of our own frames."""

    files: set[str] = field(default_factory=set)
    deepest: tuple[str, ...] = ()
    _of_thread: threading.local = field(default_factory=threading.local)

    def hook(self, frame: FrameType, event: str, _arg: object) -> None:
        """Follow the calls of one thread, as ``sys.setprofile`` reports them."""
        path = frame.f_code.co_filename
        if not path.startswith(PACKAGE) or event not in {"call", "return"} or frame.f_code.co_name in COMPREHENSIONS:
            return
        stack: list[str] = self._of_thread.__dict__.setdefault("stack", [])
        if event == "return":
            if stack:
                stack.pop()
            return
        name = path[len(PACKAGE) + 1 :]
        stack.append(f"{name}:{frame.f_code.co_name}")
        if any(entry.endswith(":<module>") for entry in stack):
            return
        if not name.startswith("testing"):
            self.files.add(name)
        if len(stack) > len(self.deepest):
            self.deepest = tuple(stack)

    def __call__(self, call: Callable[[], object]) -> None:
        """Run a call with this hook in its thread."""
        sys.setprofile(self.hook)
        try:
            call()
        finally:
            sys.setprofile(None)


def trace_one_query(folder: Path) -> Trace:
    """Make the indexes in a folder and trace the first query that is asked of them, in every thread that it uses."""
    trace, asking = Trace(), threading.Event()

    def hook(frame: FrameType, event: str, arg: object) -> None:
        if asking.is_set():
            trace.hook(frame, event, arg)

    threading.setprofile(hook)
    try:
        with AgenticRouter(RouterConfig(data_dir=folder), embedding=FakeEmbedding(dimension=64)) as router:
            for name, texts in TEXTS.items():
                documents = [Document(text=text, doc_id=doc_id) for doc_id, text in texts.items()]
                router.add_index(name, documents, description=f"About {name}")
                router.build_views(name)
            asking.set()
            trace(lambda: router.query(QUESTION))
            asking.clear()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]  # typeshed forgets that None ends it
    return trace


def main() -> int:
    """Print the two figures; with ``--check``, exit with 1 when one is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="list the files")
    parser.add_argument("--stack", action="store_true", help="list the deepest stack, outermost first")
    parser.add_argument("--check", action="store_true", help="exit with 1 above a limit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # the engine may still lay out its next log
        trace = trace_one_query(Path(folder) / "data")
    lines = [
        f"files of ours that one query crosses: {len(trace.files)} (at most {MOST_FILES})",
        f"deepest stack of our own frames: {len(trace.deepest)} (at most {MOST_FRAMES})",
    ]
    lines += [f"  {name}" for name in sorted(trace.files) if options.files]
    lines += [f"  {name}" for name in trace.deepest if options.stack]
    sys.stdout.write("\n".join(lines) + "\n")
    return int(options.check and (len(trace.files) > MOST_FILES or len(trace.deepest) > MOST_FRAMES))


if __name__ == "__main__":
    sys.exit(main())

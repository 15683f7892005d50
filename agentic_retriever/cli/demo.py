"""``demo``: the whole way from files to cited answers, on the sample corpus."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from agentic_retriever.cli import terminal
from agentic_retriever.cli.indexes import show_report
from agentic_retriever.cli.queries import show_facts
from agentic_retriever.sample import DEMO_QUESTIONS, SAMPLE_INDEXES, VECTORS, load_questions

if TYPE_CHECKING:
    from agentic_retriever.router import AgenticRouter


_ASKED_AGAIN: Final = "en-030"


def demo(ctx: typer.Context) -> None:
    """Build three sample indexes and answer questions in three languages; needs no key and no server."""
    from agentic_retriever.embeddings import PackedVectors
    from agentic_retriever.router import AgenticRouter

    console, given = terminal.Console(), terminal.load_config(ctx.obj)
    # A data directory of its own, and for new indexes the model of the shipped vectors; all else as any command has it.
    model = "local" if given.embedding_model == "auto" else given.embedding_model
    config = given.with_changes(data_dir=given.data_dir / "demo", embedding_model=model)
    start = time.perf_counter()
    with AgenticRouter(config, packed=[PackedVectors(VECTORS)]) as router:
        console.line(f"Indexing the sample corpus into {config.data_dir}", style="bold")
        for sample in SAMPLE_INDEXES:
            with terminal.shown_progress(console) as progress:
                report = router.add_index(sample.name, sample.folder, description=sample.description, progress=progress)
                router.stored_index(sample.name).build_views(progress)
            show_report(console, sample.name, report)
        console.line(f"ready in {time.perf_counter() - start:.1f} s")
        right, asked = _ask(console, router)
    console.line()
    console.line(f"{right} of {asked} questions went to the expected index. Now ask your own:", style="bold")
    again = f"{_program()} --data-dir {shlex.quote(str(config.data_dir))}"
    question = next(str(q["query"]) for q in load_questions() if q["id"] == _ASKED_AGAIN)
    console.line(f"  {again} query {shlex.quote(question)} --explain")
    mine = "README.md" if Path("README.md").is_file() else "FOLDER"
    console.line(f"  {again} index add mine {mine} --description 'what it holds'")


def _program() -> str:
    """Return what calls this program here: its name where the shell finds it, else its path."""
    path = Path(sys.argv[0])
    if path.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m agentic_retriever"
    return path.name if shutil.which(path.name) == str(path) else shlex.quote(os.path.relpath(path))


def _ask(console: terminal.Console, router: AgenticRouter) -> tuple[int, int]:
    """Ask the questions; return how many went to the expected index, and how many have one."""
    questions = {str(q["id"]): q for q in load_questions()}
    right = asked = 0
    for number, key in enumerate(DEMO_QUESTIONS, start=1):
        question = questions[key]
        console.line()
        console.line(f"{number}. {question['query']}", style="bold cyan")
        answer = router.query(str(question["query"]))
        console.line(answer.text, style="bold")
        show_facts(console, answer)
        if question["index"] is not None:
            asked += 1
            right += answer.route.index.name == question["index"]
    return right, asked

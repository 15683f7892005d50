"""The command line itself; what a command needs is loaded only when it runs."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from agentic_retriever.cli import terminal
from agentic_retriever.cli.bench import bench, bench_routing, train
from agentic_retriever.cli.demo import demo
from agentic_retriever.cli.doctor import doctor
from agentic_retriever.cli.documents import documents_app, worker
from agentic_retriever.cli.indexes import index_app
from agentic_retriever.cli.mcp import mcp
from agentic_retriever.cli.queries import query, route, stats, warm
from agentic_retriever.cli.serve import keys_app, serve

EXIT_CODES = (
    "Exit codes: 0 done; 1 something needs attention; 2 wrong command line; 3 setting; 4 question or filter; "
    "5 unknown index or strategy; 6 sources or index on disk; 7 index in use by another process; 8 model; "
    "9 nothing could be routed, retrieved or answered; 10 out of time; 130 interrupted; 141 output closed."
)

app = typer.Typer(
    name="agentic-retriever",
    help="Route questions to the right index and strategy, and answer them with citations.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(index_app, name="index")
app.add_typer(documents_app, name="documents")
app.add_typer(keys_app, name="keys")


def _show_version(value: bool) -> None:
    if value:
        from agentic_retriever import __version__

        terminal.Console().line(f"agentic-retriever {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    ctx: typer.Context,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Folder that holds the indexes.")] = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the stack of an unexpected error.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback reads it
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    ctx.obj = data_dir
    ctx.meta[terminal.SHOW_TRACEBACK] = traceback


for _command in (demo, query, route, doctor, stats, bench_routing, bench, train, warm, worker, serve, mcp):
    app.command()(_command)


def main() -> None:
    """Run the command line; a closed output takes nothing, and must not become the number of a file that is opened."""
    none = Path(os.devnull)
    sys.stdout, sys.stderr = (one or none.open("w") for one in (sys.stdout, sys.stderr))
    app()

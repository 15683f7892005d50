"""The command line itself; what a command needs is loaded only when it runs."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from agentic_retriever.cli import documents, indexes, queries, serve, terminal
from agentic_retriever.cli.bench import bench, bench_routing, train
from agentic_retriever.cli.demo import demo
from agentic_retriever.cli.doctor import doctor

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

# The whole command line: what stands alone, then each group with its help.
_ALONE: tuple[Callable[..., None], ...] = (
    demo, queries.query, queries.route, doctor, queries.stats, bench_routing, bench, train, queries.warm,
    documents.worker, serve.serve, serve.mcp,
)  # fmt: skip
_GROUPS: dict[str, tuple[str, dict[str, Callable[..., None]]]] = {
    "index": (
        "Make, list, show, copy and remove indexes.",
        {
            "add": indexes.add, "list": indexes.list_indexes, "show": indexes.show, "build": indexes.build,
            "copy": indexes.copy, "remove": indexes.remove,
        },
    ),
    "documents": (
        "Upload, list, correct, switch off and remove documents.",
        {
            "upload": documents.upload, "list": documents.list_documents, "show": documents.show,
            "update": documents.update, "reprocess": documents.reprocess, "deactivate": documents.deactivate,
            "activate": documents.activate, "delete": documents.delete,
        },
    ),
    "keys": (
        "Make, list and revoke keys of the service.",
        {"create": serve.create, "list": serve.list_keys, "revoke": serve.revoke},
    ),
}  # fmt: skip
for _command in _ALONE:
    app.command()(terminal.reported(_command))
for _name, (_help, _commands) in _GROUPS.items():
    _group = typer.Typer(help=_help, no_args_is_help=True)
    for _verb, _command in _commands.items():
        _group.command(_verb)(terminal.reported(_command))
    app.add_typer(_group, name=_name)


def _show_version(value: bool) -> None:
    if value:
        from agentic_retriever import __version__

        terminal.Console().line(f"agentic-retriever {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    ctx: typer.Context,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the indexes.")] = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the stack of an unexpected error.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback reads it
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    ctx.obj = data_dir
    ctx.meta[terminal.SHOW_TRACEBACK] = traceback


def main() -> None:
    """Run the command line; a closed output takes nothing, and must not become the number of a file that is opened."""
    none = Path(os.devnull)
    sys.stdout, sys.stderr = (one or none.open("w") for one in (sys.stdout, sys.stderr))
    app()

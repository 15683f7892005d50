"""The commands below ``index``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from agentic_retriever.cli.console import Console
from agentic_retriever.cli.reporting import reported

index_app = typer.Typer(help="Make, list, show, copy and remove indexes.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the index.")]


@index_app.command("add")
@reported
def index_add(
    ctx: typer.Context,
    name: Name,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files or folders to index.")],
    description: Annotated[str, typer.Option("--description", help="What the index holds; helps routing.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make an index from files, or bring it up to date with them."""
    from agentic_retriever.cli.indexes import run_add

    run_add(Console(), ctx.obj, name, paths, description=description, as_json=as_json)


@index_app.command("list")
@reported
def index_list(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the indexes."""
    from agentic_retriever.cli.indexes import run_list

    run_list(Console(), ctx.obj, as_json=as_json)


@index_app.command("show")
@reported
def index_show(ctx: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Show an index: its pins, counts, documents and fields."""
    from agentic_retriever.cli.indexes import run_show

    run_show(Console(), ctx.obj, name, as_json=as_json)


@index_app.command("build")
@reported
def index_build(ctx: typer.Context, name: Name) -> None:
    """Build the leaves and summaries of an index, which some strategies need, however large it is."""
    from agentic_retriever.cli.indexes import run_build

    run_build(Console(), ctx.obj, name)


@index_app.command("copy")
@reported
def index_copy(
    ctx: typer.Context,
    name: Name,
    to: Annotated[str, typer.Option("--to", metavar="server|embedded", help="Where its nodes go.")],
    new_name: Annotated[
        str | None, typer.Option("--as", help="Keep the index and make a copy of this name; else the index moves.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Move an index to the Qdrant server or back, or copy it; run again, it goes on where it was cut off."""
    from agentic_retriever.cli.indexes import run_copy

    run_copy(Console(), ctx.obj, name, to=to, new_name=new_name, as_json=as_json)


@index_app.command("remove")
@reported
def index_remove(
    ctx: typer.Context,
    name: Name,
    documents: Annotated[
        list[str] | None, typer.Option("--document", help="Remove only this document; may be repeated.")
    ] = None,
) -> None:
    """Remove an index, or documents of it."""
    from agentic_retriever.cli.indexes import run_remove

    run_remove(Console(), ctx.obj, name, documents or [])

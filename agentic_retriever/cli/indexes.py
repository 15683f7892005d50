"""``index add``, ``list``, ``show``, ``build``, ``copy`` and ``remove``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentic_retriever.cli import terminal
from agentic_retriever.errors import StoreDamagedError

if TYPE_CHECKING:
    from agentic_retriever.indices import IndexStorage, IngestReport
    from agentic_retriever.router import AgenticRouter


_SHOWN_DOCUMENTS = 20


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the index.")]


def add(
    ctx: typer.Context,
    name: Name,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files or folders to index.")],
    description: Annotated[str, typer.Option(help="What the index holds; helps routing.")] = "",
    chunk_size: Annotated[int | None, typer.Option(help="Largest chunk of a new index, tokens.")] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Make an index from files, or bring it up to date with them; exit code 1 when some of them were not read."""
    console = terminal.Console()
    with terminal.router_of(ctx) as router, terminal.shown_progress(console) as progress:
        report = router.add_index(name, list(paths), description=description, chunk_size=chunk_size, progress=progress)
        router.stored_index(name).build_views(progress)
        documents, nodes = router.stored_index(name).catalog.counts().documents, router.index(name).count()
    if as_json:
        console.json({"name": name, "documents": documents, "total_nodes": nodes, **asdict(report)})
    else:
        show_report(console, name, report)
        console.line(f"{name}: {documents:,} documents, {nodes:,} nodes")
    if report.unread:
        raise typer.Exit(1)


def list_indexes(ctx: typer.Context, as_json: terminal.AsJson = False) -> None:
    """List the indexes."""
    # Opens none, so it works while another process holds them.
    from agentic_retriever.catalog.address import Address
    from agentic_retriever.indices import IndexStorage

    console, config = terminal.Console(), terminal.load_config(ctx.obj)
    storage = IndexStorage(config.data_dir, address=Address.from_config(config))
    rows = [_listed(storage, name) for name in storage.names()]
    if as_json:
        console.json(rows)
    elif rows:
        console.table(["name", "description", "embedding", "store", "created"], [list(row.values()) for row in rows])
    else:
        console.note(f"no index in {storage.data_dir}; add one with: agentic-retriever index add NAME PATH")


def show(ctx: typer.Context, name: Name, as_json: terminal.AsJson = False) -> None:
    """Show an index: its pins, counts, documents and fields."""
    console = terminal.Console()
    with terminal.router_of(ctx) as router:
        facts = index_facts(router, name)
    if as_json:
        console.json(facts)
        return
    documents, fields, numbers = (facts.pop(key) for key in ("documents", "fields", "numbers"))
    console.table(["property", "value"], list(facts.items()), title=name)
    rows: list[tuple[object, ...]] = [(field, len(values), ", ".join(values[:5])) for field, values in fields.items()]
    rows += [(field, "numbers", f"{low:.15g} to {high:.15g}") for field, (low, high) in numbers.items()]
    if rows:
        console.table(["field", "values", "examples"], rows)
    console.table(
        ["document", "kind", "title", "nodes"],
        [(d["doc_id"], d["kind"], d["title"], d["nodes"]) for d in documents[:_SHOWN_DOCUMENTS]],
    )
    if len(documents) > _SHOWN_DOCUMENTS:
        console.note(f"and {len(documents) - _SHOWN_DOCUMENTS:,} more documents; --json lists all")


def build(ctx: typer.Context, name: Name) -> None:
    """Build the leaves and summaries of an index, which some strategies need, however large it is."""
    console = terminal.Console()
    with terminal.router_of(ctx) as router, terminal.shown_progress(console) as progress:
        router.build_views(name, progress=progress)
        views = ", ".join(sorted(view.value for view in router.index(name).views))
    console.line(f"{name}: {views} ready")


def copy(
    ctx: typer.Context,
    name: Name,
    to: Annotated[str, typer.Option(metavar="server|embedded", help="Where its nodes go.")],
    new_name: Annotated[
        str | None, typer.Option("--as", help="Keep the index and make a copy of this name; else the index moves.")
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Move an index to the Qdrant server or back, or copy it; run again, it goes on where it was cut off."""
    console = terminal.Console()
    with terminal.router_of(ctx) as router, terminal.shown_steps(console) as steps:
        report = router.copy_index(name, to=to, new_name=new_name, progress=steps)
    if as_json:
        console.json(asdict(report))
        return
    counts = ", ".join(f"{nodes:,} {collection}" for collection, nodes in report.nodes.items())
    resumed = f", {report.resumed:,} of them by an earlier run" if report.resumed else ""
    what = "moved to" if report.moved else "copied to"
    console.line(f"{report.name}: {counts or 'no nodes'} {what} {report.to}{resumed}")


def remove(
    ctx: typer.Context,
    name: Name,
    documents: Annotated[
        list[str] | None, typer.Option("--document", help="Remove only this document; may be repeated.")
    ] = None,
) -> None:
    """Remove an index, or documents of it."""
    console = terminal.Console()
    config = terminal.load_config(ctx.obj)
    if documents:
        with terminal.opened_router(config) as router:
            report = router.remove_documents(name, documents)
        console.line(f"{name}: {report.removed:,} documents removed")
        return
    from agentic_retriever.indices import IndexStorage

    # Not through a router: a damaged index must be removable, whatever embedding model it was built with.
    IndexStorage.from_config(config).remove(name)
    console.line(f"{name}: removed")


def show_report(console: terminal.Console, name: str, report: IngestReport) -> None:
    """Write what a run of indexing did, and each source that was skipped."""
    console.line(
        f"{name}: {report.added:,} added, {report.updated:,} updated, {report.unchanged:,} unchanged, "
        f"{report.removed:,} removed, {report.nodes:,} nodes written, {report.embedded:,} texts embedded"
    )
    for line in report.skipped_lines():
        console.warn(f"skipped {line}")


def _listed(storage: IndexStorage, name: str) -> dict[str, str]:
    try:
        pins = storage.manifest(name)
    except StoreDamagedError as err:
        return {"name": name, "description": str(err), "embedding": "", "store": "", "created": ""}
    return {"name": name} | {key: getattr(pins, key) for key in ("description", "embedding", "store", "created")}


def index_facts(router: AgenticRouter, name: str) -> dict[str, Any]:
    index = router.stored_index(name)
    counts, profile = index.catalog.counts(), index.profile()
    return {
        **asdict(index.manifest),
        "version": index.version,
        "language": profile.language,
        "document_count": counts.documents,
        "node_count": index.count(),
        "search": ", ".join(f"{name}: {store.search_kind}" for name, store in index.collections().items()),
        "unfinished_documents": counts.unfinished,
        "fields": {field: sorted(values) for field, values in sorted(profile.field_values.items())},
        "numbers": dict(sorted(profile.number_ranges.items())),
        "documents": [
            {name: getattr(entry, name) for name in ("doc_id", "kind", "title", "source")}
            | {"nodes": len(index.catalog.node_ids(entry.doc_id))}
            for entry in index.catalog.documents()
        ],
    }

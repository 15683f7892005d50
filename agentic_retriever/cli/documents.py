"""``documents`` with what is done to them, and ``worker``."""

from __future__ import annotations

import json
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentic_retriever.cli import terminal
from agentic_retriever.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentic_retriever.catalog.records import DocumentRecord
    from agentic_retriever.lifecycle.documents import Documents
    from agentic_retriever.router import AgenticRouter


def _checked(pairs: list[str] | None) -> list[str] | None:
    wrong = next((pair for pair in pairs or () if not pair.partition("=")[0].strip() or "=" not in pair), None)
    if wrong is not None:
        raise typer.BadParameter(f"KEY=VALUE is needed, got {wrong[:80]!r}")
    return pairs


Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of documents, as documents list shows them.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be repeated.")]
Metadata = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", callback=_checked, help="Metadata that goes before what is found; may be repeated."
    ),
]
Title = Annotated[str | None, typer.Option("--title", help="Its title.")]
Kind = Annotated[str | None, typer.Option("--type", help="Its type, such as circular.")]
Number = Annotated[str | None, typer.Option("--number", help="Its number, such as 12/2024.")]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Process it here and show how far it is, or leave it to a worker.")
]


def upload(
    ctx: typer.Context,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files.")],
    index: Annotated[str, typer.Option(help="The index; made if there is none.")],
    title: Title = None,
    document_type: Kind = None,
    number: Number = None,
    tag: Tags = None,
    metadata: Metadata = None,
    description: Annotated[str, typer.Option(help="What a new index holds.")] = "",
    wait: Wait = True,
    as_json: terminal.AsJson = False,
) -> None:
    """Keep files and have them processed; exit code 1 when one of them was refused or failed."""
    console, refused, records = terminal.Console(), 0, []
    said: dict[str, Any] = {"title": title, "tags": tag or [], "description": description}
    said |= {"document_type": document_type or "", "document_number": number or ""}
    with terminal.router_of(ctx) as router:
        for path in paths:
            try:
                records.append(router.documents.upload(path, index=index, metadata=_metadata(metadata), **said))
            except SourceError as err:  # noqa: PERF203 - one that is refused costs no other
                console.error(f"{path}: {err}")
                refused += 1
        records = _followed(console, router, records) if wait else records
        _show(console, records, as_json=as_json)
    if refused or any(record.status.value == "failed" for record in records):
        raise typer.Exit(1)


def list_documents(
    ctx: typer.Context,
    index: Annotated[str | None, typer.Option(help="Of this index only.")] = None,
    status: Annotated[str | None, typer.Option(help="pending, processing, indexed, failed or inactive.")] = None,
    document_type: Kind = None,
    tag: Annotated[str | None, typer.Option(help="With this tag only.")] = None,
    search: Annotated[str | None, typer.Option(help="In title, file name or number.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most that are listed.")] = 50,
    as_json: terminal.AsJson = False,
) -> None:
    """List documents, newest first."""
    console, documents = terminal.Console(), _records(ctx)
    wanted: dict[str, Any] = {"index": index, "status": status, "tag": tag, "search": search}
    wanted["document_type"] = document_type
    records = documents.list(**wanted, limit=limit)
    _show(console, records, as_json=as_json)
    total = documents.count(**wanted)
    if total > len(records):
        console.note(f"{len(records):,} of {total:,}; --limit shows more")


def show(
    ctx: typer.Context,
    document_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the document.")],
    as_json: terminal.AsJson = False,
) -> None:
    """Show all that is known of a document, and where it comes from."""
    console, record = terminal.Console(), _records(ctx).get(document_id)
    known = record.to_dict()
    if as_json:
        console.json(known)
        return
    metadata, sections = (known.pop(name) for name in ("metadata", "section_mappings"))
    origins = metadata.pop("_origins", {})
    console.table(["property", "value"], list(known.items()), title=record.title)
    rows = [(key, value, origins.get(key, "")) for key, value in sorted(metadata.items())]
    if rows:
        console.table(["metadata", "value", "from"], rows)
    if sections:
        console.table(["section", "title"], list(sections.items()))


def update(
    ctx: typer.Context,
    document_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the document.")],
    title: Title = None,
    document_type: Kind = None,
    number: Number = None,
    tag: Tags = None,
    metadata: Metadata = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Correct what is known of a document; KEY= takes a value away."""
    given: dict[str, Any] = {"title": title, "document_type": document_type, "document_number": number, "tags": tag}
    with terminal.router_of(ctx) as router:
        record = router.documents.update(document_id, **given, metadata=_metadata(metadata))
    _show(terminal.Console(), [record], as_json=as_json)


def reprocess(ctx: typer.Context, ids: Ids, wait: Wait = True, as_json: terminal.AsJson = False) -> None:
    """Read, cut and embed documents again; exit code 1 when one of them failed."""
    console = terminal.Console()
    with terminal.router_of(ctx) as router:
        records = [router.documents.reprocess(one) for one in ids]
        records = _followed(console, router, records) if wait else records
    _show(console, records, as_json=as_json)
    if any(record.status.value == "failed" for record in records):
        raise typer.Exit(1)


def deactivate(ctx: typer.Context, ids: Ids) -> None:
    """Take documents out of all results; nothing is lost."""
    _each(ctx, ids, lambda documents, one: documents.deactivate(one).status.value)


def activate(ctx: typer.Context, ids: Ids) -> None:
    """Bring documents back into results; nothing is embedded again."""
    _each(ctx, ids, lambda documents, one: documents.activate(one).status.value)


def delete(ctx: typer.Context, ids: Ids) -> None:
    """Remove documents with what was kept of them."""

    def delete(documents: Documents, one: str) -> str:
        documents.delete(one)
        return "deleted"

    _each(ctx, ids, delete)


def worker(
    ctx: typer.Context,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Documents processed side by side.")] = 1,
) -> None:
    """Process uploaded documents until interrupted; any number may, where catalog and vectors are on servers."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with terminal.router_of(ctx) as router:
        router.start_worker(concurrency)
        terminal.Console().note(f"processing documents, {concurrency} at a time; end with Ctrl-C")
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(60)


def _records(ctx: typer.Context) -> Documents:
    """Open the records alone, which works while another process holds the indexes."""
    router = terminal.router_of(ctx)
    ctx.call_on_close(router.close)
    return router.documents


def _metadata(pairs: list[str] | None) -> dict[str, Any]:
    """Read KEY=VALUE; a value that is JSON counts as that, one that is empty takes the key away."""
    given: dict[str, Any] = {}
    for pair in pairs or ():
        key, _, value = pair.partition("=")
        try:
            given[key.strip()] = json.loads(value) if value else None
        except ValueError:
            given[key.strip()] = value
    return given


def _followed(console: terminal.Console, router: AgenticRouter, records: list[DocumentRecord]) -> list[DocumentRecord]:
    """Process documents and show how far each is, until all are done."""
    router.start_worker()
    with terminal.shown_documents(console) as shown:
        while True:
            records = [router.documents.get(record.id) for record in records]
            shown(records)
            waiting = [record for record in records if record.status.value in {"pending", "processing"}]
            if not waiting:
                return records
            time.sleep(0.2)


def _show(console: terminal.Console, records: list[DocumentRecord], *, as_json: bool) -> None:
    if as_json:
        console.json([record.to_dict() for record in records])
        return
    columns = ["id", "index", "title", "file", "type", "status", "done", "nodes", "note"]
    rows = [
        [r.id, r.index, r.title, r.filename, r.document_type, r.status.value, f"{r.processing_progress} %",
         r.total_chunks, r.error_message]
        for r in records
    ]  # fmt: skip
    if rows:
        console.table(columns, rows)
    else:
        console.note("no documents; upload one with: agentic-retriever documents upload PATH --index NAME")


def _each(ctx: typer.Context, ids: list[str], change: Callable[[Documents, str], str]) -> None:
    console = terminal.Console()
    with terminal.router_of(ctx) as router:
        for one in ids:
            console.line(f"{one}: {change(router.documents, one)}")

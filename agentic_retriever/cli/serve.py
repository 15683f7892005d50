"""``serve``, ``mcp`` and ``keys``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentic_retriever.cli import terminal
from agentic_retriever.errors import AgenticRetrieverError, ConfigError

if TYPE_CHECKING:
    from agentic_retriever.service.keys import KeyTable

_INSTALL = "install it with: pip install 'agentic-retriever[service]'"


def serve(
    ctx: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on; beyond this machine needs keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")] = 8000,
    rate: Annotated[str, typer.Option(help="Requests that a key may send; empty for no limit.")] = "600/minute",
    max_requests: Annotated[
        int, typer.Option(min=0, help="Requests answered at once; 0 for what suits the machine.")
    ] = 0,
    max_uploads: Annotated[int, typer.Option(min=1, help="Uploads received at once.")] = 4,
    workers: Annotated[int, typer.Option(min=0, help="Threads that process documents here.")] = 1,
    warm: Annotated[Path | None, typer.Option(help="File of questions to ask before being ready.")] = None,
    grace_s: Annotated[float, typer.Option(min=0, help="Seconds that answers have at the end.")] = 30.0,
    regulations: Annotated[str, typer.Option(help="Index of /api/admin/regulatory-documents.")] = "regulations",
) -> None:
    """Serve the router by HTTP, with a page, until it is interrupted; in-flight answers are finished then."""
    try:
        from agentic_retriever.service.app import Server, create_app
        from agentic_retriever.service.settings import ServiceSettings
    except ImportError as err:
        raise ConfigError(f"the service needs the extra service ({err.name} is missing); {_INSTALL}") from err
    settings = ServiceSettings(
        host=host, port=port, rate=rate, max_requests=max_requests, max_uploads=max_uploads, document_workers=workers,
        warm=warm, grace_s=grace_s, regulations=regulations,
    )  # fmt: skip
    console = terminal.Console()
    # uvicorn hands the signal on when it has ended; the router is closed on the way out.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(0))
    with terminal.router_of(ctx) as router:
        app = create_app(router, settings)
        server = Server(app, on_start=lambda url: console.line(f"listening on {url}"))
        try:
            server.run()
        except KeyboardInterrupt:
            console.note("interrupted")
        except SystemExit as err:
            if not server.started:
                raise AgenticRetrieverError(f"cannot listen on {host} port {port}; is another program there?") from err
            raise


def mcp(ctx: typer.Context) -> None:
    """Serve the router to one agent by MCP, over standard input and output; the agent's program starts this."""
    try:
        from agentic_retriever.service.mcp import serve_stdio
    except ImportError as err:
        raise ConfigError(f"mcp needs the extra service ({err.name} is missing); {_INSTALL}") from err
    with terminal.router_of(ctx) as router:
        serve_stdio(router)


def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is.")],
    role: Annotated[str, typer.Option(help="ask, write (documents) or admin (everything).")] = "ask",
    as_json: terminal.AsJson = False,
) -> None:
    """Make a key and show it, this once."""
    from agentic_retriever.service.settings import Role

    console, key = terminal.Console(), _table(ctx).create(name, Role.named(role))
    if as_json:
        console.json({"name": name, "role": role, "key": key})
    else:
        console.line(key)
        console.note("keep it: only its hash is stored")


def list_keys(ctx: typer.Context, as_json: terminal.AsJson = False) -> None:
    """List the keys, without themselves."""
    console, found = terminal.Console(), _table(ctx).all()
    if as_json:
        console.json([one.shown() for one in found])
        return
    console.table(["id", "name", "role", "created", "revoked"], [list(one.shown().values()) for one in found])


def revoke(
    ctx: typer.Context, key_id: Annotated[str, typer.Argument(metavar="ID", help="As keys list shows it.")]
) -> None:
    """Make a key worthless; a running service notices within a second."""
    terminal.Console().line(f"revoked {_table(ctx).revoke(key_id).name}")


def _table(ctx: typer.Context) -> KeyTable:
    from agentic_retriever.catalog.address import Address
    from agentic_retriever.catalog.database import Database
    from agentic_retriever.service.keys import KeyTable

    return KeyTable(Database(Address.from_config(terminal.load_config(ctx.obj))))

"""``mcp``."""

from __future__ import annotations

import typer

from agentic_retriever.cli import terminal
from agentic_retriever.errors import ConfigError


@terminal.reported
def mcp(ctx: typer.Context) -> None:
    """Serve the router to one agent by MCP, over standard input and output; the agent's program starts this."""
    try:
        from agentic_retriever.service.mcp import serve_stdio
    except ImportError as err:
        install = "install it with: pip install 'agentic-retriever[service]'"
        raise ConfigError(f"mcp needs the extra service ({err.name} is missing); {install}") from err
    with terminal.opened_router(terminal.load_config(ctx.obj)) as router:
        serve_stdio(router)

"""The application: everything that is served, behind one guard; and the server that runs it, one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
from fastapi import APIRouter, FastAPI

from agentic_retriever import __version__
from agentic_retriever.config import host_and_port
from agentic_retriever.router import AgenticRouter
from agentic_retriever.service import documents, legacy, mcp, openai, page, queries, responses, system
from agentic_retriever.service.guard import Guard, Limits
from agentic_retriever.service.settings import ServiceSettings
from agentic_retriever.service.state import Service

_ROUTERS: tuple[APIRouter, ...] = (  # of each part, in the order in which their paths are tried
    system.health, legacy.open_to_all, queries.asking, queries.history, documents.reading, documents.changing,
    system.caches, legacy.asking, legacy.writing, legacy.managing, openai.chats, page.anybody,
    page.page, page.changing, page.managing,
)  # fmt: skip


def create_app(router: AgenticRouter, settings: ServiceSettings | None = None) -> FastAPI:
    """Make the application over a router, which stays the caller's to close.

    Args:
        router: What answers.
        settings: What is allowed.

    Raises:
        ConfigError: If others can reach the service and there is no key.
    """
    service = Service(router, settings or ServiceSettings())
    app = FastAPI(
        title="agentic-retriever", version=__version__, docs_url=None, redoc_url=None, lifespan=_lifespan,
        separate_input_output_schemas=False,
    )  # fmt: skip
    app.state.service = service
    app.add_middleware(Guard, service=service, limits=Limits(service))
    responses.install(app)
    for part in _ROUTERS:
        app.include_router(part)
    app.mount("/static", page.static)
    app.state.mcp = mcp.Endpoint(service)
    app.router.routes.append(app.state.mcp.route)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    if service.settings.document_workers:
        await service.run(service.router.start_worker, service.settings.document_workers)
    warming = asyncio.create_task(service.warm_up())
    try:
        async with app.state.mcp.running():
            yield
    finally:
        service.ending.set()
        await warming
        service.close()


class Server(uvicorn.Server):
    """Runs an application of ``create_app``; ``on_start`` hears its address."""

    def __init__(self, app: FastAPI, *, on_start: Callable[[str], object] = lambda _url: None) -> None:
        self._service: Service = app.state.service
        self._on_start = on_start
        settings = self._service.settings
        config = uvicorn.Config(
            app, host=settings.host, port=settings.port, log_level="warning", access_log=False, server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.grace_s)),
        )  # fmt: skip
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            host, port = server.sockets[0].getsockname()[:2]
            self._on_start(f"http://{host_and_port(host, port)}")
            break

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Before connections are waited for: who watches a document would hold one until the time is up.
        self._service.ending.set()
        await super().shutdown(sockets)

"""The application: everything that is served, behind one guard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI

from agentic_retriever import __version__
from agentic_retriever.router import AgenticRouter
from agentic_retriever.service import documents, mcp, openai, problems, queries
from agentic_retriever.service.api import legacy, system
from agentic_retriever.service.guard import Guard, Limits
from agentic_retriever.service.page import views
from agentic_retriever.service.settings import ServiceSettings
from agentic_retriever.service.state import Service

_ROUTERS: tuple[APIRouter, ...] = (  # of each part, in the order in which their paths are tried
    system.health, legacy.open_to_all, queries.asking, queries.history, documents.reading, documents.changing,
    system.caches, legacy.asking, legacy.writing, legacy.managing, openai.chats, views.anybody,
    views.page, views.changing, views.managing,
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
    problems.install(app)
    for part in _ROUTERS:
        app.include_router(part)
    app.mount("/static", views.static)
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

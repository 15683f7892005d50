"""The server that runs the application: one process, which ends when answers under way are finished."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from agentic_retriever.config import host_and_port
from agentic_retriever.service.state import Service


class Server(uvicorn.Server):
    """Runs an application of ``create_app``; ``on_start`` hears its address."""

    def __init__(self, app: FastAPI, *, on_start: Callable[[str], object] = lambda _url: None) -> None:
        self._service: Service = app.state.service
        self._on_start = on_start
        settings = self._service.settings
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.grace_s)),
        )
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

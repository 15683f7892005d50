"""One running service: its router, keys, figures and threads, and the one way by which every handler asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

from fastapi import Request

from agentic_retriever.catalog.address import Address
from agentic_retriever.catalog.database import Database
from agentic_retriever.errors import ConfigError
from agentic_retriever.pipeline.answers import AsyncAnswerStream
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import Answer
from agentic_retriever.service.keys import KeyRing, KeyTable
from agentic_retriever.service.metrics import Metrics
from agentic_retriever.service.settings import ServiceSettings
from agentic_retriever.threads import Workers

P = ParamSpec("P")
T = TypeVar("T")


class Service:
    """What handlers share; made by ``create_app``, found by :func:`service_of`."""

    def __init__(self, router: AgenticRouter, settings: ServiceSettings) -> None:
        self.router, self.settings = router, settings
        self.metrics = Metrics()
        self.workers = Workers(settings.threads, "agentic-service", at_once=True)
        self.database = Database(Address.from_config(router.config))
        self.keys = KeyRing(KeyTable(self.database), self.workers)
        self.keys.load()
        self.ending = asyncio.Event()  # set when the service is to end: who watches lets go
        self.is_warm = settings.warm is None
        if not settings.is_local and self.keys.is_empty:
            raise ConfigError(
                f"{settings.host} can be reached by others, so the service needs keys: make one with "
                "'agentic-retriever keys create NAME', or listen on 127.0.0.1"
            )

    @property
    def is_open(self) -> bool:
        """Whether everybody on this machine may do everything, as no key was ever made."""
        return self.settings.is_local and self.keys.is_empty

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what blocks in one of the service's threads."""
        return await self.workers.run(call, *args, **kwargs)

    async def query(self, query: str, **wanted: Any) -> Answer:  # noqa: ANN401 - those of AgenticRouter.aquery
        """Answer a question as ``router.aquery``, and count it."""
        try:
            answer = await self.router.aquery(query, **wanted)
        except Exception as err:
            self.metrics.failed(err)
            raise
        self.metrics.answered(answer)
        return answer

    @asynccontextmanager
    async def stream(self, query: str, **wanted: Any) -> AsyncIterator[AsyncAnswerStream]:  # noqa: ANN401 - likewise
        """Answer piece by piece as ``router.astream``, and count it; who leaves the block gives the answer up."""
        async with self.router.astream(query, **wanted) as pieces:
            try:
                yield pieces
            except Exception as err:
                self.metrics.failed(err)
                raise
            if pieces.answer is not None:
                self.metrics.answered(pieces.answer)


def service_of(request: Request) -> Service:
    """Return the service that a request came to, as a dependency."""
    found = request.app.state.service
    assert isinstance(found, Service)  # noqa: S101 - create_app puts it there
    return found

"""One running service: its router, keys, figures and threads, and the one way by which every handler asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, ParamSpec, TypeVar

from fastapi import Request

from agentic_retriever.cache import read_questions
from agentic_retriever.catalog.address import Address
from agentic_retriever.catalog.database import Database
from agentic_retriever.errors import AgenticRetrieverError, ConfigError
from agentic_retriever.pipeline.answers import AsyncAnswerStream
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import Answer
from agentic_retriever.service.keys import KeyRing, KeyTable
from agentic_retriever.service.metrics import Metrics
from agentic_retriever.service.sending import AnswerWriter
from agentic_retriever.service.settings import ServiceSettings
from agentic_retriever.threads import Workers

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)


class Service:
    """What handlers share; made by ``create_app``, found by :func:`service_of`."""

    def __init__(self, router: AgenticRouter, settings: ServiceSettings) -> None:
        self.router, self.settings = router, settings
        self.metrics = Metrics()
        self.workers = Workers(settings.threads, "agentic-service", at_once=True)
        self.database = Database(Address.from_config(router.config))
        self.keys = KeyRing(KeyTable(self.database), self.workers)
        self.keys.load()
        self.write = AnswerWriter().write
        self.ending = asyncio.Event()  # set when the service is to end: who watches lets go
        self._warming, problems = ((), ()) if settings.warm is None else read_questions(settings.warm)
        for problem in problems:
            logger.warning("%s", problem)
        self.is_warm = not self._warming
        if not settings.is_local and self.keys.is_empty:
            raise ConfigError(
                f"{settings.host} can be reached by others, so the service needs keys: make one with "
                "'agentic-retriever keys create NAME', or listen on 127.0.0.1"
            )

    @property
    def is_open(self) -> bool:
        """Whether everybody on this machine may do everything, as no key was ever made."""
        return self.settings.is_local and self.keys.is_empty

    async def warm_up(self) -> None:
        """Ask the questions that are to be answered from the cache, one after the other, until the service ends."""
        for question in self._warming:
            if self.ending.is_set():
                return
            with suppress(AgenticRetrieverError):  # who asks it will hear what is wrong
                await self.router.aquery(question)
        self.is_warm = True

    def close(self) -> None:
        """Let go of what is the service's own; the router is not."""
        self.workers.close(wait=False)
        self.database.close()

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what blocks in one of the service's threads."""
        return await self.workers.run(call, *args, **kwargs)

    async def ends_within(self, seconds: float) -> bool:
        """Wait so long, or until the service ends; tell whether it does."""
        try:
            await asyncio.wait_for(self.ending.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

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

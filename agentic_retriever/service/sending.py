"""How answers leave: JSON that is written once for all hits of the cache, events, and an ear for who hangs up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime
from typing import Any, Final, TypeVar

from cachetools import LRUCache
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.schema import Answer, RouteDecision
from agentic_retriever.service.problems import problem_of

T = TypeVar("T")

_OWN: Final = ("query_id", "cached", "timings_ms")  # what differs between two hits of one answer
_MOST_KEPT: Final = 500


def json_bytes(value: object) -> bytes:
    """Write JSON, moments in ISO 8601; a lone surrogate, which has no UTF-8, as JSON's own escape."""
    form: dict[str, Any] = {"allow_nan": False, "separators": (",", ":"), "default": datetime.isoformat}
    try:
        return json.dumps(value, ensure_ascii=False, **form).encode()
    except UnicodeEncodeError:
        return json.dumps(value, **form).encode()


def as_json(value: object) -> Response:
    return Response(json_bytes(value), media_type="application/json")


class AnswerWriter:
    """Writes answers as JSON; what all hits of one cached answer have in common is written once."""

    def __init__(self) -> None:
        # By the identity of the decision, which the copies of a cached answer share; it is held, so no other gets it.
        self._kept: LRUCache[int, tuple[RouteDecision, bytes]] = LRUCache(_MOST_KEPT)

    def write(self, answer: Answer) -> bytes:
        kept = self._kept.get(id(answer.route))
        if kept is None or kept[0] is not answer.route:
            common = {name: value for name, value in answer.to_dict().items() if name not in _OWN}
            kept = answer.route, json_bytes(common)[1:]
            if answer.cached:
                self._kept[id(answer.route)] = kept
        own = {"query_id": answer.query_id, "cached": answer.cached, "timings_ms": dict(answer.timings_ms)}
        return json_bytes(own)[:-1] + b"," + kept[1]


async def unless_gone(request: Request, call: Coroutine[Any, Any, T]) -> T:
    """Await a call, and give it up as soon as the client hangs up."""
    task, gone = asyncio.ensure_future(call), asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def event(name: str, data: object) -> bytes:
    """Write a server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + (data if isinstance(data, bytes) else json_bytes(data)) + b"\n\n"


def _problem_event(request: Request, error: AgenticRetrieverError) -> bytes:
    return event("error", bytes(problem_of(request.state.request_id, error).body))


async def events(
    request: Request,
    pieces: AsyncIterator[bytes],
    *,
    write_error: Callable[[Request, AgenticRetrieverError], bytes] = _problem_event,
) -> Response:
    """Send events; what fails before the first one is an error of its own, what fails later is an event.

    The iterator is given up when the client hangs up: before the first event here, later by the response itself.
    """
    first = await unless_gone(request, _next(pieces))

    async def sent() -> AsyncIterator[bytes]:
        try:
            yield first
            async for piece in pieces:
                yield piece
        except AgenticRetrieverError as err:
            yield write_error(request, err)

    return StreamingResponse(sent(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _next(pieces: AsyncIterator[bytes]) -> bytes:
    return await anext(pieces, b"")

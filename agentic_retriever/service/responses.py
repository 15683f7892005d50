"""How answers and errors leave: JSON written once for all hits of the cache, events, and problems (RFC 9457)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from cachetools import LRUCache
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from agentic_retriever import errors
from agentic_retriever.schema import Answer, RouteDecision

T = TypeVar("T")

MEDIA_TYPE: Final = "application/problem+json"

# The status of each kind of error; the nearest base counts.
_STATUS: Final[dict[type[errors.AgenticRetrieverError], int]] = {
    errors.ConfigError: 409,  # the service is not set up for what was asked
    errors.InvalidQueryError: 422,
    errors.FilterError: 422,
    errors.UnknownIndexError: 404,
    errors.UnknownStrategyError: 404,
    errors.UnknownQueryError: 404,
    errors.UnknownDocumentError: 404,
    errors.IndexingError: 422,
    errors.IndexExistsError: 409,
    errors.StoreError: 503,
    errors.EmbeddingError: 502,
    errors.LLMError: 502,
    errors.RoutingError: 409,  # there is nothing to choose from
    errors.OutOfScopeError: 422,
    errors.RetrievalError: 503,
    errors.SynthesisError: 502,
    errors.DeadlineExceededError: 504,
    errors.OverloadedError: 503,
}
RETRY_AFTER_S: Final = 1


_OPENAI_PATHS: Final = ("/v1/chat/completions", "/v1/models")
_OPENAI_KINDS: Final = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error",
}  # fmt: skip


class Problem(BaseModel):
    """What is wrong with a request, or with what was to answer it."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    request_id: str


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {  # for the OpenAPI document
    "default": {"description": "A problem", "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}}
}


class Refused(HTTPException):
    """A request that is refused; ``title`` is a kind that programs can tell by its slug."""

    def __init__(self, status: int, title: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.title = title


def busy(detail: str) -> Refused:
    """Say that there is no place now."""
    return Refused(503, "Too busy", detail, {"Retry-After": str(RETRY_AFTER_S)})


class ProblemResponse(Response):
    """A problem as it is sent: on the paths of OpenAI's API in OpenAI's form."""

    def __init__(self, fields: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self._fields, self._given = fields, headers
        super().__init__(json.dumps(fields, ensure_ascii=True), fields["status"], headers, MEDIA_TYPE)

    def as_openai(self) -> dict[str, Any]:
        """Return the problem as OpenAI's API writes errors."""
        status, code = self.status_code, str(self._fields["type"]).rpartition(":")[2].replace("-", "_")
        kind = _OPENAI_KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
        return {"error": {"message": self._fields["detail"], "type": kind, "param": None, "code": code}}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith(_OPENAI_PATHS):
            await super().__call__(scope, receive, send)
            return
        status = 400 if self.status_code == 422 else self.status_code
        await JSONResponse(self.as_openai(), status, self._given)(scope, receive, send)


def problem(
    request_id: str, status: int, title: str, detail: str, headers: Mapping[str, str] | None = None, **fields: object
) -> ProblemResponse:
    """Make the response; what is not text that can be sent is replaced."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    known = {"type": f"urn:agentic-retriever:{slug}", "title": title, "status": status, "detail": detail}
    return ProblemResponse({**known, "request_id": request_id, **fields}, dict(headers or {}))


def problem_of(request_id: str, error: errors.AgenticRetrieverError) -> ProblemResponse:
    """Make the response for an error of ours."""
    status = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__.removesuffix("Error")).capitalize()
    fields: dict[str, Any] = {"error": type(error).__name__, "exit_code": error.exit_code}
    if isinstance(error, errors.RetrievalError) and error.causes:
        fields["causes"] = {name: str(cause) for name, cause in error.causes.items()}
    if attempts := getattr(error, "attempts", ()):
        fields["attempts"] = [str(attempt) for attempt in attempts]
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None
    return problem(request_id, status, title, str(error), headers, **fields)


def install(app: FastAPI) -> None:
    """Have the application answer errors this way."""

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, errors.AgenticRetrieverError):
            return problem_of(request.state.request_id, error)
        if isinstance(error, HTTPException):
            title = getattr(error, "title", None) or str(error.detail)[:80]
            return problem(request.state.request_id, error.status_code, title, str(error.detail), error.headers)
        assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for these three alone
        found = [{"where": list(map(str, one["loc"])), "what": one["msg"]} for one in error.errors()]  # without inputs
        first = f"{'.'.join(found[0]['where'])}: {found[0]['what']}" if found else "it cannot be read"
        return problem(request.state.request_id, 422, "Invalid request", first, errors=found)

    for kind in (errors.AgenticRetrieverError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, answer)


# Answers, whole or as events.

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


async def unless_gone(request: Request, call: Awaitable[T]) -> T:
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


def _problem_event(request: Request, error: errors.AgenticRetrieverError) -> bytes:
    return event("error", bytes(problem_of(request.state.request_id, error).body))


async def events(
    request: Request,
    pieces: AsyncIterator[bytes],
    *,
    write_error: Callable[[Request, errors.AgenticRetrieverError], bytes] = _problem_event,
) -> Response:
    """Send events until the client hangs up; what fails before the first is an error, what fails later an event."""
    first = await unless_gone(request, anext(pieces, b""))

    async def sent() -> AsyncIterator[bytes]:
        try:
            yield first
            async for piece in pieces:
                yield piece
        except errors.AgenticRetrieverError as err:
            yield write_error(request, err)

    return StreamingResponse(sent(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

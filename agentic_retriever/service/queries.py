"""``/v1``: questions asked, routed, retrieved and explained; their history, and what people think of the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response

from agentic_retriever.catalog.records import Analytics, LogEntry
from agentic_retriever.errors import ConfigError
from agentic_retriever.schema import Difference, RouteDecision
from agentic_retriever.service import models
from agentic_retriever.service.guard import allow
from agentic_retriever.service.responses import PROBLEMS, as_json, event, events, unless_gone
from agentic_retriever.service.settings import Role
from agentic_retriever.service.state import Service, service_of

Shared = Annotated[Service, Depends(service_of)]
Limit = Annotated[int, Query(ge=1, le=500)]
Offset = Annotated[int, Query(ge=0, le=1_000_000)]

asking = APIRouter(prefix="/v1", tags=["questions"], dependencies=[allow(Role.ASK)], responses=PROBLEMS)
history = APIRouter(prefix="/v1", tags=["history"], dependencies=[allow(Role.ADMIN)], responses=PROBLEMS)

_COMPARED: Final = ("index", "indexes", "strategy", "complexity", "tier", "confidence_level", "citations")
_TEXT: Final = {"type": "string"}
_EVENT: Final = {"type": "object", "required": ["event", "data"], "properties": {"event": _TEXT, "data": _TEXT}}
_EVENTS: Final[dict[str, Any]] = {"text/event-stream": {"schema": _EVENT}}


@asking.post("/query", response_model=models.AnswerOut, responses={200: {"content": _EVENTS}})
async def query(asked: models.QueryIn, request: Request, service: Shared) -> Response:
    """Answer a question with citations; with ``stream`` as events: piece, nodes, route, citations, answer."""
    wanted = asked.wanted(request.state.caller)
    if asked.stream:
        return await events(request, streamed(service, asked.query, wanted))
    answer = await unless_gone(request, service.query(asked.query, **wanted))
    return Response(service.write(answer), media_type="application/json")


async def streamed(service: Service, query: str, wanted: dict[str, Any]) -> AsyncIterator[bytes]:
    """Yield the events of a streamed answer."""
    async with service.stream(query, **wanted) as pieces:
        async for piece in pieces:
            yield event("piece", {"text": piece})
        answer = pieces.answer
    if answer is None:
        return
    yield event("nodes", [models.NodeOut.of(node).model_dump(mode="json") for node in answer.nodes])
    yield event("route", answer.route.to_dict())
    yield event("citations", [citation.to_dict() for citation in answer.citations])
    yield event("answer", service.write(answer))


@asking.post("/route", response_model=models.RouteOut)
async def route(asked: models.RouteIn, request: Request, service: Shared) -> dict[str, Any]:
    """Decide which index and strategy a question goes to."""
    decision = await unless_gone(request, service.router.aroute(asked.query, **asked.wanted(request.state.caller)))
    return decision.to_dict()


@asking.post("/retrieve")
async def retrieve(asked: models.RetrieveIn, request: Request, service: Shared) -> models.RetrievalOut:
    """Find passages."""
    found = await unless_gone(request, service.router.aretrieve(asked.query, **asked.wanted(request.state.caller)))
    return await service.run(models.RetrievalOut.of, found)


@asking.post("/explain")
async def explain(asked: models.RouteIn, request: Request, service: Shared) -> models.ExplanationOut:
    """Say in words why a question goes where it goes."""
    decision = await unless_gone(request, service.router.aroute(asked.query, **asked.wanted(request.state.caller)))
    explanation = await service.run(service.router.explanation, decision)
    return models.ExplanationOut(**explanation.to_dict())


@asking.post("/feedback", status_code=204)
async def feedback(given: models.FeedbackIn, service: Shared) -> None:
    """Judge the answer to a question."""
    said: dict[str, Any] = {"rating": given.stars, "comment": given.comment, "user_id": given.user_id}
    await service.run(service.router.history.add_feedback, given.query_id, **said)


@history.get("/queries", response_model=list[LogEntry])
async def queries(
    service: Shared,
    limit: Limit = 50,
    offset: Offset = 0,
    conversation_id: models.Identity | None = None,
    user_id: models.Identity | None = None,
) -> Response:
    """List what was asked, the newest first; one of them alone has its citations and judgments, too."""
    found = await service.run(
        service.router.history.list, limit=limit, offset=offset, conversation_id=conversation_id, user_id=user_id
    )
    return as_json([entry.to_dict() for entry in found])


@history.get("/queries/{query_id}", response_model=LogEntry)
async def one_query(query_id: models.QueryId, service: Shared) -> Response:
    """Show one question with the nodes that its answer cited, and what people thought of it."""
    return as_json((await service.run(service.router.history.get, query_id)).to_dict())


@history.post("/queries/{query_id}/replay")
async def replay(query_id: models.QueryId, request: Request, service: Shared) -> models.ReplayOut:
    """Route a recorded question again, and say what is different now."""
    changes, now = await routed_again(query_id, request, service)
    decided = models.RouteOut(**now.to_dict())
    return models.ReplayOut(query=now.query, understood_as=now.understood_as, route=decided, differences=changes)


async def routed_again(query_id: str, request: Request, service: Service) -> tuple[list[Difference], RouteDecision]:
    """Route a recorded question as it would be now; return what is different, and the decision."""
    entry = await service.run(service.router.history.get, query_id)
    if not entry.query:
        raise ConfigError("the history keeps no questions (query_log), so this one cannot be asked again")
    now = await unless_gone(request, service.router.aroute(entry.understood_as or entry.query))
    return _changes(entry, now), replace(now, query=entry.query, understood_as=entry.understood_as)


@history.get("/queries/{query_id}/diff/{other_id}")
async def diff(query_id: models.QueryId, other_id: models.QueryId, service: Shared) -> list[Difference]:
    """Say in what two recorded questions went different ways."""
    before = await service.run(service.router.history.get, query_id)
    return _changes(before, await service.run(service.router.history.get, other_id))


def _changes(before: LogEntry, after: LogEntry | RouteDecision) -> list[Difference]:
    seen, now = _choices(before), _choices(after)
    shared = [name for name in _COMPARED if name in seen and name in now and seen[name] != now[name]]
    return [Difference(path=name, before=seen[name], after=now[name]) for name in shared]


def _choices(one: LogEntry | RouteDecision) -> dict[str, Any]:
    if isinstance(one, RouteDecision):
        names = {"index": one.index.name, "indexes": list(one.index.names), "strategy": one.strategy.name}
        return {**names, "complexity": one.complexity.value}
    return {name: list(value) if isinstance(value := getattr(one, name), tuple) else value for name in _COMPARED}


@history.get("/analytics", response_model=Analytics)
async def analytics(
    service: Shared, since: models.Moment | None = None, until: models.Moment | None = None
) -> Response:
    """Sum up the history over a period; times need a zone."""
    return as_json((await service.run(service.router.analytics, since, until)).to_dict())

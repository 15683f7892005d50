"""How the service is: alive, ready, its figures, its cache."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from agentic_retriever import __version__
from agentic_retriever.cache import CacheStats
from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.service import models
from agentic_retriever.service.guard import allow
from agentic_retriever.service.queries import Shared
from agentic_retriever.service.responses import PROBLEMS, as_json
from agentic_retriever.service.settings import Role
from agentic_retriever.service.state import Service

health = APIRouter(tags=["health"])
caches = APIRouter(prefix="/v1", tags=["cache"], dependencies=[allow(Role.ADMIN)], responses=PROBLEMS)


@health.get("/v1/health/live")
async def live() -> models.Live:
    """Tell that the process answers."""
    return models.Live(status="ok", version=__version__)


@health.get("/v1/health/ready", responses={503: {"model": models.Ready}})
async def ready(service: Shared, response: Response) -> models.Ready:
    """Tell whether questions should be sent here: the catalog can be read, and what was to be warmed is warm."""
    try:
        indexes, problem = len(await service.run(service.router.index_names)), ""
    except AgenticRetrieverError as err:
        indexes, problem = 0, type(err).__name__
    found = models.Ready(ready=False, indexes=indexes, warm=service.is_warm, problem=problem)
    if found.warm and not problem and not service.ending.is_set():
        return found.model_copy(update={"ready": True})
    response.status_code = 503
    return found


@health.get("/metrics", response_class=Response, dependencies=[allow(Role.ASK)])
async def metrics(service: Shared) -> Response:
    """Give the figures of this process in Prometheus' format."""
    await service.run(_look, service)
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _look(service: Service) -> None:
    """Take down how cache, queue and breakers are now."""
    state = service.metrics.state
    for name, value in service.router.cache.stats().to_dict().items():
        if isinstance(value, (int, float)):
            state.labels("cache", name).set(value)
    try:
        for status in ("pending", "processing", "failed"):
            state.labels("documents", status).set(service.router.documents.count(status=status))
    except AgenticRetrieverError:  # the catalog is away: what was seen last would be wrong
        state.remove_by_labels({"part": "documents"})
    model = service.router.resources.model
    for client in () if model is None else model.order():
        state.labels("breaker_open", client.who).set(not client.available)


@caches.get("/cache", response_model=CacheStats)
async def cache(service: Shared) -> Response:
    """Count what the answer cache did since the process began."""
    return as_json((await service.run(service.router.cache.stats)).to_dict())


@caches.delete("/cache")
async def clear_cache(service: Shared) -> models.Cleared:
    """Drop all cached answers."""
    return models.Cleared(cleared_count=await service.run(service.router.cache.clear))

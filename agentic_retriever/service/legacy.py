"""The paths and fields that clients of before call, thin over what ``/v1`` does."""
# ruff: noqa: UP013 - tables of fields

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, File, Form, Request, UploadFile
from pydantic import Field
from typing_extensions import TypedDict

from agentic_retriever import __version__, schema
from agentic_retriever.embeddings import ollama_models
from agentic_retriever.errors import ConfigError, UnknownIndexError
from agentic_retriever.service import documents, models, system
from agentic_retriever.service.guard import allow
from agentic_retriever.service.queries import Limit, Offset, Shared
from agentic_retriever.service.responses import PROBLEMS, Refused, unless_gone
from agentic_retriever.service.settings import Caller, Role
from agentic_retriever.service.state import Service
from agentic_retriever.text.tokens import identifiers

PREVIEW: Final = 200  # characters of an excerpt
_PDF_START: Final = 1_024  # bytes in which the mark of a PDF has to stand
_FALLBACKS: Final = ("synthesis.tier", "synthesis.llm", "synthesis.cloud")  # another model than the first wrote

asking = APIRouter(tags=["existing clients"], dependencies=[allow(Role.ASK)], responses=PROBLEMS)
writing = APIRouter(
    prefix="/api/admin/regulatory-documents", tags=["existing clients"], dependencies=[allow(Role.WRITE)],
    responses=PROBLEMS,
)  # fmt: skip
managing = APIRouter(tags=["existing clients"], dependencies=[allow(Role.ADMIN)], responses=PROBLEMS)
open_to_all = APIRouter(tags=["existing clients"])


# Regulatory documents


@writing.post("")
async def upload(
    service: Shared,
    file: Annotated[UploadFile, File()],
    title: Annotated[str, Form(min_length=1, max_length=500, pattern=models.NO_NUL)],
    document_type: Annotated[Literal["reglamento", "orden", "real_decreto"], Form()],
) -> models.DocumentOut:
    """Take a PDF in."""
    begins = await file.read(_PDF_START)
    await file.seek(0)
    if not (file.filename or "").lower().endswith(".pdf") or b"%PDF-" not in begins:
        raise Refused(400, "Only PDF files allowed", "Only PDF files allowed")
    given = {"index": service.settings.regulations, "title": title, "document_type": document_type}
    return await documents.take_in(service, file, **given)


@writing.get("")
async def list_all(service: Shared, limit: Limit = 50, offset: Offset = 0) -> list[models.DocumentOut]:
    """List the documents, the newest first."""
    index = service.settings.regulations
    try:
        found = await service.run(service.router.documents.list, index=index, limit=limit, offset=offset)
    except UnknownIndexError:  # which the first upload makes
        found = []
    return list(map(models.DocumentOut.of, found))


writing.get("/{document_id}")(documents.document)


@writing.post("/{document_id}/reprocess")
async def reprocess(document_id: models.DocumentId, service: Shared) -> models.DocumentOut:
    """Process a document again."""
    return await documents.act(document_id, "reprocess", service)


@writing.delete("/{document_id}")
async def deactivate(document_id: models.DocumentId, service: Shared) -> models.DocumentOut:
    """Have a document no longer searched."""
    return await documents.act(document_id, "deactivate", service)


# Questions

RagCitation = TypedDict("RagCitation", {
    "document_title": str, "article_number": str, "section_title": str, "page_numbers": list[int],
    "similarity_score": float, "rerank_score": float | None, "content_preview": str,
})  # fmt: skip
Performance = TypedDict("Performance", {
    "embedding_ms": float, "retrieval_ms": float, "rerank_ms": float, "llm_ms": float, "total_ms": float,
    "cache_hit": bool,
})  # fmt: skip
RagAnswer = TypedDict("RagAnswer", {
    "answer": str, "citations": list[RagCitation], "performance": Performance, "query_id": str,
})  # fmt: skip


class RagQuery(models.In):
    """A question, and who asks."""

    query: models.Query
    user_id: models.Identity | None = None
    conversation_id: models.ConversationId | None = None


@asking.post("/api/admin/rag/query")
async def rag_query(asked: RagQuery, request: Request, service: Shared) -> RagAnswer:
    """Answer a question."""
    caller: Caller = request.state.caller
    asker = {"user_id": asked.user_id or "", "conversation_id": caller.own(asked.conversation_id or "")}
    answer = await unless_gone(request, service.query(asked.query, **asker))
    ms = answer.timings_ms
    return {
        "answer": answer.text,
        "citations": list(map(_rag_citation, answer.citations)),
        "performance": {
            "embedding_ms": ms.get("embedding", 0.0), "retrieval_ms": ms.get("retrieval", 0.0),
            "rerank_ms": ms.get("rerank", 0.0), "llm_ms": ms.get("llm", 0.0), "total_ms": ms.get("total", 0.0),
            "cache_hit": answer.cached,
        },
        "query_id": answer.query_id,
    }  # fmt: skip


def _rag_citation(citation: schema.Citation) -> RagCitation:
    scores, final = citation.scores, citation.scores.get("final", citation.score)
    return {
        "document_title": citation.title or citation.doc_id,
        "article_number": citation.article,
        "section_title": citation.section,
        "page_numbers": list(citation.pages or ([citation.page] if citation.page is not None else [])),
        "similarity_score": scores.get("retrieved", final),
        "rerank_score": final if "retrieved" in scores else None,
        "content_preview": citation.quote[:PREVIEW],
    }


ApiCitation = TypedDict("ApiCitation", {
    "id": int, "document": str, "source": str, "reference": str, "page": int | None, "excerpt": str, "url": str,
    "confidence": float,
})  # fmt: skip
ApiMetadata = TypedDict("ApiMetadata", {
    "query_type": str, "entities_detected": list[str], "confidence_overall": float, "sources_count": int,
    "response_time_ms": float,
})  # fmt: skip
ApiAnswer = TypedDict("ApiAnswer", {"answer": str, "citations": list[ApiCitation], "metadata": ApiMetadata})
Source = TypedDict("Source", {"namespace": str, "description": str, "documents": int})
Sources = TypedDict("Sources", {"sources": list[Source], "namespaces": list[str]})
ApiHealth = TypedDict("ApiHealth", {"status": str, "service": str, "version": str})


class ApiQuestion(models.In):
    """A question, to one index if it is named."""

    question: models.Query
    namespace: models.Name | None = None
    top_k: Annotated[int, Field(ge=1, le=100, strict=True)] = 5


@asking.post("/api/query")
async def api_query(asked: ApiQuestion, request: Request, service: Shared) -> ApiAnswer:
    """Answer a question."""
    answer = await unless_gone(request, service.query(asked.question, index=asked.namespace, top_k=asked.top_k))
    return {
        "answer": answer.text,
        "citations": list(map(_api_citation, answer.citations)),
        "metadata": {
            "query_type": answer.route.complexity.value,
            "entities_detected": identifiers(asked.question),
            "confidence_overall": answer.confidence.score,
            "sources_count": len({citation.doc_id for citation in answer.citations}),
            "response_time_ms": answer.timings_ms.get("total", 0.0),
        },
    }


def _api_citation(citation: schema.Citation) -> ApiCitation:
    return {
        "id": citation.number,
        "document": citation.title or citation.doc_id,
        "source": citation.source,
        "reference": citation.section or citation.article,
        "page": citation.page,
        "excerpt": citation.quote[:PREVIEW],
        "url": citation.source if citation.source.startswith(("https://", "http://")) else source_url(citation),
        "confidence": citation.score,
    }


def source_url(citation: schema.Citation) -> str:
    """Return where the page shows the text that a citation points to."""
    at = {"index": citation.index, "doc": citation.doc_id, "start": citation.start, "end": citation.end}
    if citation.page is not None:
        at["page"] = citation.page
    return f"/source?{urlencode(at)}#span"


@asking.get("/api/sources")
async def api_sources(service: Shared) -> Sources:
    """List what can be searched."""
    found = await documents.indexes(service)
    sources: list[Source] = [
        {"namespace": one.name, "description": one.description, "documents": one.documents} for one in found
    ]
    return {"sources": sources, "namespaces": [one.name for one in found]}


@open_to_all.get("/api/health")
async def api_health() -> ApiHealth:
    """Tell that the process answers."""
    return {"status": "ok", "service": "agentic-retriever", "version": __version__}


# History and state

RagEntry = TypedDict("RagEntry", {
    "id": str, "query_text": str, "complexity": str, "llm_tier": str, "was_cache_hit": bool, "total_ms": float | None,
    "created_at": datetime | None,
})  # fmt: skip
RagAnalytics = TypedDict("RagAnalytics", {
    "total_queries": int, "simple_queries": int, "complex_queries": int, "cache_hit_rate": float,
    "avg_response_time_ms": float, "cost_savings_usd": float,
})  # fmt: skip
RagHealth = TypedDict("RagHealth", {"ollama": bool, "qdrant": bool, "reranker": bool, "embeddings_cached": int})
RoutingMetrics = TypedDict("RoutingMetrics", {
    "total_requests": int, "local_requests": int, "cloud_requests": int, "fallback_requests": int,
    "cost_savings_usd": float, "local_percentage": float,
})  # fmt: skip


@managing.get("/api/admin/rag/queries")
async def rag_queries(service: Shared, limit: Limit = 50) -> list[RagEntry]:
    """List what was asked, the newest first."""
    return [
        {
            "id": entry.query_id, "query_text": entry.query, "complexity": entry.complexity, "llm_tier": entry.tier,
            "was_cache_hit": entry.cached, "total_ms": entry.timings_ms.get("total"), "created_at": entry.recorded_at,
        }
        for entry in await service.run(service.router.history.list, limit=limit)
    ]  # fmt: skip


@managing.get("/api/admin/rag/analytics")
async def rag_analytics(service: Shared) -> RagAnalytics:
    """Sum up the history."""
    found = await service.run(service.router.analytics)
    total = found.latency_ms.get("total")
    return {
        "total_queries": found.queries, "simple_queries": found.simple, "complex_queries": found.complex,
        "cache_hit_rate": found.cache_hit_rate or 0.0, "avg_response_time_ms": total.mean_ms if total else 0.0,
        "cost_savings_usd": found.saved_usd or 0.0,
    }  # fmt: skip


managing.post("/api/admin/rag/cache/clear")(system.clear_cache)


@managing.get("/api/admin/rag/health")
async def rag_health(service: Shared) -> RagHealth:
    """Look whether what answers need is there, and how many vectors are kept."""
    return await service.run(_rag_health, service)


def _rag_health(service: Service) -> RagHealth:
    router = service.router
    try:
        served = ollama_models(router.config, timeout_s=1.0)
    except ConfigError:  # where it listens is no address
        served = None
    return {
        "ollama": served is not None,
        "qdrant": all(not one.problem for one in documents.list_indexes(router)),
        "reranker": router.config.reranker != "none",
        "embeddings_cached": router.resources.embedding().cached,
    }


@managing.get("/llm-metrics/routing")
async def llm_routing(service: Shared) -> RoutingMetrics:
    """Count who wrote the answers, and what that saved."""
    found = await service.run(service.router.analytics)
    return {
        "total_requests": found.answered, "local_requests": found.local, "cloud_requests": found.answered - found.local,
        "fallback_requests": sum(found.fallbacks.get(step, 0) for step in _FALLBACKS),
        "cost_savings_usd": found.saved_usd or 0.0, "local_percentage": 100 * (found.local_share or 0.0),
    }  # fmt: skip

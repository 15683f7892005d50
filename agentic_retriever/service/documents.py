"""``/v1/documents`` and ``/v1/indexes``: what can be searched, and the texts that citations point to."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, File, Form, Query, Response, UploadFile
from fastapi.responses import FileResponse, StreamingResponse

from agentic_retriever.errors import AgenticRetrieverError, InvalidQueryError
from agentic_retriever.indices import StoredIndex
from agentic_retriever.resources import measured
from agentic_retriever.router import AgenticRouter
from agentic_retriever.service import models
from agentic_retriever.service.guard import allow
from agentic_retriever.service.queries import Shared
from agentic_retriever.service.responses import PROBLEMS, Refused, event
from agentic_retriever.service.settings import Role
from agentic_retriever.service.state import Service

reading = APIRouter(prefix="/v1", tags=["documents"], dependencies=[allow(Role.ASK)], responses=PROBLEMS)
changing = APIRouter(prefix="/v1", tags=["documents"], dependencies=[allow(Role.WRITE)], responses=PROBLEMS)

POLL_S: Final = 0.5
_SETTLED: Final = frozenset({"indexed", "failed", "inactive"})
Text = Annotated[str, Form(max_length=500, pattern=models.NO_NUL)]


@reading.get("/indexes")
async def indexes(service: Shared) -> list[models.IndexOut]:
    """List what can be searched."""
    return await service.run(list_indexes, service.router)


def list_indexes(router: AgenticRouter) -> list[models.IndexOut]:
    """Describe every index; one that cannot be opened says why."""
    return [_index_out(router, name, description) for name, description in router.descriptions().items()]


def _index_out(router: AgenticRouter, name: str, description: str) -> models.IndexOut:
    try:
        index = router.index(name)
        facts: dict[str, Any] = {"nodes": index.count(), "documents": len(index.doc_ids()), "language": index.language}
        facts |= {"version": index.version, "views": sorted(view.value for view in index.views)}
        facts["search"] = getattr(getattr(index, "vector_store", None), "search_kind", "")
    except AgenticRetrieverError as err:
        facts = {"nodes": 0, "documents": 0, "language": "", "version": 0, "views": [], "problem": str(err)}
    return models.IndexOut(name=name, description=description, **facts)


@reading.get("/indexes/{name}")
async def one_index(name: models.Name, service: Shared) -> models.IndexDetails:
    """Describe one index, with what a benchmark measured on it."""

    def describe() -> models.IndexDetails:
        index = service.router.index(name)
        known, _ = measured(index)
        described = _index_out(service.router, name, index.description)
        return models.IndexDetails(**described.model_dump(), measured=None if known is None else known.to_dict())

    return await service.run(describe)


@reading.get("/indexes/{name}/source")
async def source(
    name: models.Name,
    doc_id: Annotated[str, Query(min_length=1, max_length=2_000, pattern=models.NO_NUL)],
    service: Shared,
) -> models.SourceOut:
    """Return the text that the citations of a document point into."""
    _, text = await service.run(titled_source, service.router, name, doc_id)
    return models.SourceOut(document_id=doc_id, text=text)


def titled_source(router: AgenticRouter, name: str, doc_id: str) -> tuple[str, str]:
    """Return title and text of a document by the id that citations name; ``Refused`` with 404 if there is none."""
    index = router.index(name)
    text = index.source_text(doc_id)
    if text is None:
        raise Refused(404, "Unknown document", f"index {name!r} keeps no text of document {doc_id[:80]!r}")
    entry = index.catalog.get(doc_id) if isinstance(index, StoredIndex) else None
    return "" if entry is None else entry.title, text


@changing.post("/documents", status_code=202)
async def upload(  # noqa: PLR0913, PLR0917 - the fields of a form
    service: Shared,
    file: Annotated[UploadFile, File(description="The document")],
    index: Annotated[str, Form(min_length=1, max_length=64, pattern=models.NO_NUL)],
    title: Text = "",
    document_type: Text = "",
    document_number: Text = "",
    tags: Annotated[list[models.Name], Form(max_length=100)] = [],  # noqa: B006 - FastAPI copies it
    metadata: Annotated[str, Form(max_length=100_000, description="A JSON object")] = "{}",
    description: Text = "",
) -> models.DocumentOut:
    """Take a document in; it is safe when this answers, and turned into nodes afterwards."""
    try:
        known = json.loads(metadata)
    except (ValueError, RecursionError):
        known = None
    if not isinstance(known, dict):
        raise InvalidQueryError('metadata must be a JSON object, such as {"year": 2024}')
    given = {"document_type": document_type, "document_number": document_number, "description": description}
    return await take_in(service, file, index=index, title=title or None, tags=tags, metadata=known, **given)


async def take_in(service: Service, file: UploadFile, **given: Any) -> models.DocumentOut:  # noqa: ANN401 - of upload
    """Hand an upload to the router, from a file of its own: what is large is nowhere in memory."""
    name = re.split(r"[/\\]", file.filename or "")[-1]  # some clients send folders, of whatever system

    def hand_in() -> models.DocumentOut:
        with tempfile.NamedTemporaryFile(suffix=Path(name).suffix[:16]) as copy:
            shutil.copyfileobj(file.file, copy)
            copy.flush()
            return models.DocumentOut.of(service.router.documents.upload(Path(copy.name), filename=name, **given))

    return await service.run(hand_in)


@reading.get("/documents")
async def documents(wanted: Annotated[models.DocumentsQuery, Query()], service: Shared) -> models.DocumentsOut:
    """List documents, the newest first."""
    return await service.run(list_documents, service.router, wanted)


def list_documents(router: AgenticRouter, wanted: models.DocumentsQuery) -> models.DocumentsOut:
    """Return one page of documents."""
    filters = wanted.model_dump(exclude={"limit", "offset"})
    found = router.documents.list(**filters, limit=wanted.limit, offset=wanted.offset)
    shown, total = list(map(models.DocumentOut.of, found)), router.documents.count(**filters)
    return models.DocumentsOut(documents=shown, total=total, limit=wanted.limit, offset=wanted.offset)


@reading.get("/documents/{document_id}")
async def document(document_id: models.DocumentId, service: Shared) -> models.DocumentOut:
    """Return one document."""
    return models.DocumentOut.of(await service.run(service.router.documents.get, document_id))


@changing.patch("/documents/{document_id}")
async def patch(document_id: models.DocumentId, change: models.DocumentPatch, service: Shared) -> models.DocumentOut:
    """Change what is known of a document."""
    changed = change.model_dump(exclude_none=True)
    return models.DocumentOut.of(await service.run(service.router.documents.update, document_id, **changed))


@changing.post("/documents/{document_id}/{action}", status_code=202)
async def act(document_id: models.DocumentId, action: models.Action, service: Shared) -> models.DocumentOut:
    """Process a document again, or have it searched or no longer searched."""
    return models.DocumentOut.of(await service.run(getattr(service.router.documents, action), document_id))


@changing.delete("/documents/{document_id}", status_code=204)
async def delete(document_id: models.DocumentId, service: Shared) -> None:
    """Remove a document with its nodes and its file."""
    await service.run(service.router.documents.delete, document_id)


@reading.get("/documents/{document_id}/text")
async def text(document_id: models.DocumentId, service: Shared) -> models.SourceOut:
    """Return the text of a document; it is data, and never markup."""
    found = await service.run(service.router.documents.text, document_id)
    return models.SourceOut(document_id=document_id, text=found)


@reading.get("/documents/{document_id}/file", response_class=FileResponse)
async def file(document_id: models.DocumentId, service: Shared) -> Response:
    """Return the original file, to be saved: no browser is to take it for a page of this service."""
    record = await service.run(service.router.documents.get, document_id)
    path = await service.run(service.router.documents.file, document_id)
    if path is None or not record.stored_filename:  # a file that lies elsewhere is not ours to give away
        raise Refused(404, "No file", f"document {document_id} was read in place, so no file of it is kept")
    headers = {"Content-Security-Policy": "sandbox; default-src 'none'"}
    return FileResponse(path, media_type="application/octet-stream", filename=record.filename, headers=headers)


@reading.get("/documents/{document_id}/events", response_class=StreamingResponse)
async def progress(document_id: models.DocumentId, service: Shared) -> Response:
    """Tell as events how far the processing of a document is, until it is done."""
    record = await service.run(service.router.documents.get, document_id)

    async def told() -> AsyncIterator[bytes]:
        now = record
        while True:
            shown = models.DocumentOut.of(now)
            yield event("document", shown.model_dump_json().encode())
            while shown.updated_at == now.updated_at and shown.processing_progress == now.processing_progress:
                if shown.status in _SETTLED or await service.ends_within(POLL_S):
                    return
                now = await service.run(service.router.documents.get, document_id)

    return StreamingResponse(told(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

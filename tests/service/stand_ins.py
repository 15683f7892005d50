"""Documents and history in memory, with the interface of the catalog's."""

import hashlib
import inspect
import threading
import uuid
from collections import namedtuple
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

from agentic_retriever import errors
from agentic_retriever.indices.stored_nodes import check_index_name
from agentic_retriever.querylog.records import entry_of

Cited = namedtuple("Cited", "number node_id title section score")


def now():
    return datetime.now(timezone.utc)


@dataclass(frozen=True, kw_only=True)
class DocumentRecord:
    id: str
    index: str
    title: str
    document_type: str = ""
    document_number: str = ""
    filename: str = ""
    stored_filename: str = ""
    file_hash: str = ""
    status: str = "pending"
    processing_progress: int = 0
    total_pages: int = 0
    total_chunks: int = 0
    extraction_method: str = ""
    tags: tuple = ()
    metadata: dict = field(default_factory=dict)
    section_mappings: dict = field(default_factory=dict)
    version: int = 1
    is_active: bool = True
    error_message: str = ""
    created_at: datetime = field(default_factory=now)
    updated_at: datetime = field(default_factory=now)


class Documents:
    def __init__(self, router):
        self.router = router
        self.records, self.files = {}, {}
        self.lock = threading.Lock()

    def upload(self, source, *, index, filename=None, title=None, description="", **known):
        check_index_name(index)
        data = Path(source).read_bytes() if not isinstance(source, bytes) else source
        name = Path(filename or "file.txt").name
        if not data or Path(name).suffix not in {".pdf", ".txt", ".md"}:
            raise errors.SourceError(f"{name}: cannot be read")
        digest = hashlib.sha256(data).hexdigest()
        with self.lock:
            for record in self.records.values():
                if (record.file_hash, record.index) == (digest, index):
                    return record
            record = DocumentRecord(
                id=str(uuid.uuid4()), index=index, title=title or name, filename=name, file_hash=digest, **known
            )
            self.records[record.id], self.files[record.id] = record, data
        return record

    def get(self, document_id):
        if document_id not in self.records:
            raise errors.UnknownDocumentError(f"unknown document {document_id!r}")
        return self.records[document_id]

    def _find(self, **filters):
        search = filters.pop("search", None)
        tag = filters.pop("tag", None)
        wanted = {name: value for name, value in filters.items() if value is not None}
        found = [r for r in self.records.values() if all(getattr(r, n) == v for n, v in wanted.items())]
        found = [r for r in found if (not search or search in r.title) and (not tag or tag in r.tags)]
        return found[::-1]

    def list(self, *, limit=50, offset=0, **filters):
        return self._find(**filters)[offset : offset + limit]

    def count(self, **filters):
        return len(self._find(**filters))

    def _change(self, document_id, **changes):
        self.records[document_id] = replace(self.get(document_id), updated_at=now(), **changes)
        return self.records[document_id]

    def update(self, document_id, **changes):
        return self._change(document_id, **changes)

    def reprocess(self, document_id):
        return self._change(document_id, status="pending")

    def deactivate(self, document_id):
        return self._change(document_id, status="inactive", is_active=False)

    def activate(self, document_id):
        return self._change(document_id, status="pending", is_active=True)

    def delete(self, document_id):
        self.get(document_id)
        del self.records[document_id]

    def text(self, document_id):
        self.get(document_id)
        return self.files[document_id].decode(errors="replace")

    def file(self, document_id):
        self.get(document_id)

    def nodes(self, document_id):
        return []


class History:
    def __init__(self, router):
        self.entries = []
        self.judged = {}
        real = router._pipeline._hand_out

        def hand_out(run, answer, traced, *, cached):
            done = real(run, answer, traced, cached=cached)
            entry = replace(entry_of(done), recorded_at=now())
            cited = [Cited(c.number, c.node_id, c.title, c.section, c.score) for c in done.citations]
            extra = {"user_id": "", "conversation_id": "", "answer_text": done.text, "cited": cited}
            known = {name: getattr(entry, name) for name in entry.__slots__}
            self.entries.append(SimpleNamespace(**known, **extra, totals=entry.totals))
            return done

        router._pipeline._hand_out = hand_out

    def list(self, *, limit=50, offset=0, conversation_id=None, user_id=None):
        return self.entries[::-1][offset : offset + limit]

    def get(self, query_id):
        for entry in self.entries:
            if entry.query_id == query_id:
                entry.feedback = self.judged.get(query_id, [])
                return entry
        raise errors.UnknownQueryError(f"unknown query {query_id!r}")

    def add_feedback(self, query_id, *, rating, comment="", user_id=""):
        self.get(query_id)
        self.judged.setdefault(query_id, []).append(SimpleNamespace(rating=rating, comment=comment, user_id=user_id))


def without_askers(call):
    def without(query, *, user_id="", conversation_id="", **wanted):
        return call(query, **wanted)

    return without


def complete(router):
    """Give a router what it does not have yet."""
    if not hasattr(errors, "UnknownDocumentError"):
        errors.UnknownDocumentError = type("UnknownDocumentError", (errors.UnknownIndexError,), {})
        errors.UnknownQueryError = type("UnknownQueryError", (errors.UnknownIndexError,), {})
    if not hasattr(router, "documents"):
        router.documents = Documents(router)
    if not hasattr(router, "history"):
        router.history = History(router)
    if not hasattr(router, "start_worker"):
        router.start_worker = lambda concurrency=1: None
    if "user_id" not in inspect.signature(router.query).parameters:
        for name in ("aquery", "astream"):
            setattr(router, name, without_askers(getattr(router, name)))
    return router

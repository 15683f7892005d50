"""Workers: they take documents that wait, read, cut and embed them, and write them into their indexes."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from agentic_retriever import errors
from agentic_retriever.catalog.documents import CHANNEL, LEASE_S, Claims
from agentic_retriever.catalog.records import DocumentRecord
from agentic_retriever.indices import Indexer
from agentic_retriever.indices.derived import SilentProgress
from agentic_retriever.ingestion import BoundedReader, SkippedSource, SourceDocument
from agentic_retriever.ingestion.documents import printable
from agentic_retriever.ingestion.enrichment import patterns_file
from agentic_retriever.lifecycle.documents import STREAM, Documents
from agentic_retriever.resources import Resources
from agentic_retriever.threads import BriefThread

logger = logging.getLogger(__name__)

POLL_S: Final = 2.0
_LISTEN_S: Final = 0.5  # a listener looks so often whether it is to end
_STREAM_S: Final = 0.25  # the stream is looked at so often, which costs its server next to nothing
BUILD_EVERY_S: Final = 30.0  # what questions read is built when nothing waits, and that often while something does
# The embedded engine lets no other thread of Python go on while it brings its files to the disk, a tenth of a second.
FLUSH_EVERY_S: Final = 10.0
_LARGE: Final = 200_000  # bytes of a file of any kind that is read by a process of its own
_BUSY_S: Final = 15.0  # an index that another process holds is left alone for so long
_STOP_S: Final = 30.0
# Where a server gives no answer, what was read is written again after so many seconds, and not read again for that.
_WRITE_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0)
_READ, _CUT, _WRITTEN = 10, 20, 95  # percent of a document's way
# What may pass by itself; all else is the document's own fault.
_PASSING: Final = (errors.StoreError, errors.EmbeddingError, errors.LLMError, errors.DeadlineExceededError)


class _LostClaimError(Exception):
    """Somebody else has the document now, or nobody is to have it."""


class DocumentWorker:
    """Processes documents in ``concurrency`` threads until it is stopped."""

    def __init__(
        self, resources: Resources, documents: Documents, *, concurrency: int = 1, lease_s: float = LEASE_S
    ) -> None:
        self._resources = resources
        self._documents = documents
        owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._claims = Claims(documents.records, owner, lease_s=lease_s)
        self._lease_s = lease_s
        self._stopping = threading.Event()
        self._progress: dict[str, int] = {}  # percent of each document under way
        self._lost: set[str] = set()
        self._busy: dict[str, float] = {}  # indexes that others hold, and until when they are left alone
        self._touched: dict[str, float] = {}  # indexes that changed, and since when what questions read is older
        self._unflushed: dict[str, float] = {}  # likewise those with changes that a power cut would cost
        self._building = threading.Lock()
        self._readers: set[BoundedReader] = set()
        jobs = [self._work] * concurrency + [self._keep_claims, self._listen]
        self._threads = [BriefThread(job, "document-worker", at_exit=self.stop) for job in jobs]

    def start(self) -> None:
        self._documents.check_folder()
        self._documents.recover()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after what is under way was broken off, and give its claims back."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._documents.changed.set()
            for reader in list(self._readers):
                reader.stop()
            ends = time.monotonic() + _STOP_S
            for thread in self._threads:
                if thread is not threading.current_thread() and thread.ident is not None:
                    thread.join(max(0.0, ends - time.monotonic()))
            with suppress(errors.StoreError):  # they end by themselves
                self._claims.release()

    def join(self) -> None:
        """Wait until it is stopped."""
        while not self._stopping.wait(1.0):
            pass

    # -- One thread a document

    def _work(self) -> None:
        reader = BoundedReader(patterns=patterns_file(self._resources.config.data_dir), from_bytes=_LARGE)
        self._readers.add(reader)
        with reader:
            while not self._stopping.is_set():
                try:
                    self._settle(FLUSH_EVERY_S, BUILD_EVERY_S)
                    self._documents.check_folder()
                    now = time.monotonic()
                    record = self._claims.take(without=[name for name, until in self._busy.items() if until > now])
                    if record is not None:
                        self._process(record, reader)
                        continue
                    self._settle(0.0, 0.0)
                except errors.StoreClosedError:
                    return
                except errors.AgenticRetrieverError as err:  # the catalog is away; it may come back
                    logger.warning("documents wait: %s", err)
                self._documents.changed.wait(POLL_S)
                self._documents.changed.clear()

    def _process(self, record: DocumentRecord, reader: BoundedReader) -> None:
        self._progress[record.id] = 0
        try:
            self._index_document(record, reader)
        except _LostClaimError:
            logger.info("document %s was taken away while it was processed", record.id)
        except errors.StoreBusyError as err:
            logger.warning("%s", err)
            self._busy[record.index] = time.monotonic() + _BUSY_S
            self._claims.release(record.id)
        except errors.AgenticRetrieverError as err:
            if not self._stopping.is_set():
                self._claims.fail(record, str(err), passes=isinstance(err, _PASSING))
        except Exception as err:  # the last resort: one document must not end the worker
            logger.exception("document %s", record.id)
            what = f"unexpected {type(err).__name__} while it was processed; the worker's log has more"
            self._claims.fail(record, what, passes=True)
        finally:
            self._progress.pop(record.id, None)
            self._lost.discard(record.id)

    def _index_document(self, record: DocumentRecord, reader: BoundedReader) -> None:
        document, notes = self._read(record, reader)
        self._advance(record.id, _READ)
        for pause_s in (*_WRITE_PAUSES_S, None):
            try:
                self._write(record, document, "; ".join(notes)[:2_000])
            except errors.StoreUnreachableError as err:  # noqa: PERF203 - which try fails is the point
                if pause_s is None:
                    raise
                logger.warning("document %s is written again in %g s: %s", record.id, pause_s, err)
                self._stopping.wait(pause_s)
            else:
                return

    def _write(self, record: DocumentRecord, document: SourceDocument, note: str) -> None:
        index = self._resources.stored(record.index, to_change=True)
        said = self._documents.records.columns(record.id, "given")[0].get("said", {})

        def guard() -> None:
            if self._stopping.is_set() or not self._claims.holds(record.id):
                raise _LostClaimError

        progress = _Progress(lambda done: self._advance(record.id, done))
        indexer = Indexer(index, self._resources.config, progress, model=self._resources.section_model, guard=guard)
        indexer.add_document(document, said, note)
        for changed in (self._touched, self._unflushed):
            changed.setdefault(record.index, time.monotonic())

    def _read(self, record: DocumentRecord, reader: BoundedReader) -> tuple[SourceDocument, list[str]]:
        source, root, kind = self._documents.records.columns(record.id, "source", "root", "kind")
        config, folder = self._resources.config, self._documents.folder
        if not record.stored_filename and kind == "document":  # it came as one of LlamaIndex, whose text is kept
            entry = self._resources.stored(record.index).catalog.get(record.doc_id)
            if entry is None:
                raise errors.SourceError("the text of the document is gone; add it again")
            return entry.document, []
        path = folder / record.stored_filename if record.stored_filename else Path(source)
        if not path.is_file():
            self._documents.check_folder()
            where = f"{folder}: upload it again" if record.stored_filename else f"{path.parent}: put it back"
            raise errors.SourceError(f"the file {path.name} is gone from {where}; machines share that folder")
        place, limit = folder if record.stored_filename else Path(root), int(config.max_file_mb * 1_000_000)
        items = list(reader.read(path, root=place, max_bytes=limit, follow_links=config.follow_links))
        notes = [one.reason for one in items if isinstance(one, SkippedSource)]
        found = [one for one in items if isinstance(one, SourceDocument)]
        if record.stored_filename:
            found = [_as_uploaded(one, record) for one in found[:1]]
        else:
            found = [one for one in found if record.doc_id in {one.doc_id, f"{one.doc_id}~"}] or found[:1]
            found = [replace(one, doc_id=record.doc_id) for one in found]
        if not found or not found[0].text.strip():
            raise errors.SourceError(f"{record.filename or path.name} {notes[0] if notes else 'holds no text'}")
        return found[0], notes

    def _advance(self, document_id: str, percent: int) -> None:
        if self._stopping.is_set() or document_id in self._lost:
            raise _LostClaimError
        self._progress[document_id] = percent

    def _settle(self, flush_every_s: float, build_every_s: float) -> None:
        """Bring to the disk what was written, and build what questions read of it; one thread at a time."""
        if not self._building.acquire(blocking=False):
            return
        try:
            for name in _older(self._unflushed, flush_every_s):
                self._resources.stored(name, to_change=True).vector_store.flush()
            for name in _older(self._touched, build_every_s):
                index = self._resources.stored(name, to_change=True)
                index.build_search()
                index.build_in_background()
        finally:
            self._building.release()

    # -- What goes on beside

    def _keep_claims(self) -> None:
        while not self._stopping.wait(self._lease_s / 4):
            try:
                if self._progress:
                    self._lost |= self._claims.renew(dict(self._progress))
            except errors.AgenticRetrieverError as err:  # noqa: PERF203 - claims that are lost are noticed later
                logger.warning("claims could not be renewed: %s", err)

    def _listen(self) -> None:
        """Wake the threads when another process says that there is something to do."""
        database, link = self._documents.records.indexes.database, self._resources.redis
        while not self._stopping.is_set() and database.address.is_shared:
            try:
                for _ in database.notices(CHANNEL, timeout_s=_LISTEN_S):
                    self._documents.changed.set()
                    if self._stopping.is_set():
                        return
            except errors.AgenticRetrieverError as err:  # noqa: PERF203 - the server may come back
                logger.debug("nothing is heard (%s); looking every %s s", err, POLL_S)
                self._stopping.wait(POLL_S)
        newest: object = None
        while link is not None and not self._stopping.wait(_STREAM_S):
            told: Any = link.call(lambda client: client.xrevrange(STREAM, count=1), default=None)
            if told and told[0][0] != newest:
                newest = told[0][0]
                self._documents.changed.set()


class _Progress(SilentProgress):
    """Turns nodes that have their vectors into percent of a document's way."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._total = self._done = 0

    def nodes(self, found: int) -> None:
        self._total += found
        self._advance(_CUT)

    def nodes_done(self, done: int) -> None:
        self._done += done
        self._advance(_CUT + (_WRITTEN - _CUT) * self._done // max(1, self._total, self._done))


def _older(since: dict[str, float], seconds: float) -> list[str]:
    """Take out what is older than so many seconds."""
    names = [name for name, began in list(since.items()) if time.monotonic() - began >= seconds]
    for name in names:
        since.pop(name, None)
    return names


def _as_uploaded(document: SourceDocument, record: DocumentRecord) -> SourceDocument:
    """Name a document as its caller named the file; a title made of the name that it is stored under is none."""
    made = PurePosixPath(record.stored_filename).stem.replace("-", " ")
    title = printable(PurePosixPath(record.filename).stem).replace("_", " ").replace("-", " ").strip()
    named = title if document.title == made else document.title
    return replace(document, doc_id=record.doc_id, source=record.filename, root="", title=named)

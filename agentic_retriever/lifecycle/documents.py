"""The documents of a router: uploaded, listed, corrected, processed again, switched off and on, removed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, TypeAlias
from uuid import UUID, uuid4

import numpy as np
from llama_index.core.schema import TextNode

from agentic_retriever import errors
from agentic_retriever.catalog.contents import Catalog, CatalogEntry
from agentic_retriever.catalog.documents import DocumentRecords
from agentic_retriever.catalog.records import DocumentRecord, DocumentStatus, NodeRecord
from agentic_retriever.catalog.tables import FREE
from agentic_retriever.indices import Indexer, StoredIndex
from agentic_retriever.indices.ingest import node_facts
from agentic_retriever.ingestion.chunking import CHUNKING_VERSION
from agentic_retriever.ingestion.documents import clean_text, flat_metadata, too_large, unreadable
from agentic_retriever.ingestion.readers import SUPPORTED_SUFFIXES, is_readable
from agentic_retriever.json_files import write_atomically
from agentic_retriever.resources import Resources
from agentic_retriever.stores.files import sync

STREAM: Final = "document_processing"  # the Redis stream that says that there is something to do
FILES: Final = "files"  # in the data directory, where no storage_folder is set
DONE: Final = frozenset({DocumentStatus.INDEXED, DocumentStatus.FAILED, DocumentStatus.INACTIVE})
_UPLOADED: Final = f"{', '.join(one for one in SUPPORTED_SUFFIXES if one != '.jsonl')}, and manual pages such as .1"
_Nodes: TypeAlias = list[NodeRecord]  # in the class, list is a method
_BLOCK: Final = 1 << 20
_MAX_NAME: Final = 255
_ORPHANED_S: Final = 86_400.0  # age from which a file without a record is one that an upload was cut off after


class Documents:
    """The documents of the stored indexes of one router, as records; safe to use from many threads.

    ``upload`` and ``reprocess`` only note what is to be done; a worker does it (``router.start_worker()``, or
    ``agentic-retriever worker``). All else is done when the call returns, and nothing is embedded for it but what a new
    title changes.

    Example:
        >>> router.start_worker()
        >>> record = router.documents.upload("handbook.pdf", index="handbook", tags=["policy"])
        >>> router.documents.wait(record.id, timeout_s=60).status.value
        'indexed'
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        named = resources.config.storage_folder
        self.folder = Path(named) if named else resources.config.data_dir / FILES
        self.records = DocumentRecords(resources.storage.indexes)
        self.changed = threading.Event()  # set when there may be something to do for a worker of this process

    def upload(  # noqa: PLR0913 - what may be said of a document
        self,
        source: str | Path | bytes,
        *,
        index: str,
        filename: str | None = None,
        title: str | None = None,
        document_type: str = "",
        document_number: str = "",
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        description: str = "",
    ) -> DocumentRecord:
        """Keep a file and note that it is to be processed; both survive a crash once this returns.

        A file that the index has already is that document, and its record is returned as it is.

        Args:
            source: The file, or its bytes.
            index: Name of the index; made if there is none.
            filename: What to call it; needed for bytes. Folders in it are left out.
            title: Its title, instead of the one found in it.
            document_type: Such as "circular", instead of what is found; likewise ``document_number`` and ``tags``.
            document_number: See above.
            tags: See above.
            metadata: Goes before what is found in the document.
            description: What a new index holds.

        Raises:
            SourceError: If the file is of no kind that can be read, empty, too large, or cannot be kept.
            IndexingError: If the index is an attached one, or a name cannot be used.
            StoreError: If the catalog cannot be written, or the ``storage_folder`` is not there.
        """
        self._resources.attached.refuse(index)
        self.check_folder()
        name = _file_name(source, filename)
        named = {"document_type": document_type or None, "document_number": document_number or None}
        said = _said(metadata, title=title, tags=tags or None, **named)
        document_id, suffix = str(uuid4()), PurePosixPath(name).suffix.lower()
        kept = self.folder / f"{document_id}{suffix}"
        digest = _keep(source, kept, int(self._resources.config.max_file_mb * 1_000_000))
        with ExitStack() as undo:
            undo.callback(kept.unlink, missing_ok=True)
            if not self._resources.storage.holds(index):
                with suppress(errors.IndexExistsError):  # somebody else was faster
                    self._resources.create(index, description=description)
            known = {"filename": name, "stored_filename": kept.name, "file_hash": digest, "given": {"said": said}}
            known |= {"title": title or PurePosixPath(name).stem, **_columns(said)}
            record, is_new = self.records.add(index, document_id, **known)
            if is_new:
                undo.pop_all()
            elif record.stored_filename and not (self.folder / record.stored_filename).exists():
                kept.replace(self.folder / record.stored_filename)  # its file was gone, and is there again
                record = self.reprocess(record.id) if record.status is DocumentStatus.FAILED else record
        self._tell()
        return record

    def list(  # noqa: PLR0913 - the filters of a list
        self,
        *,
        index: str | None = None,
        status: str | DocumentStatus | None = None,
        document_type: str | None = None,
        tag: str | None = None,
        search: str | None = None,
        is_active: bool | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> list[DocumentRecord]:
        """Return records, newest first, that meet all conditions; ``search`` is in title, file name or number."""
        wanted = {"index": index, "status": status, "document_type": document_type, "tag": tag, "search": search}
        return self.records.find(**wanted, is_active=is_active, limit=limit, offset=offset)

    def count(self, **conditions: Any) -> int:  # noqa: ANN401 - those of list
        """Count the records that :meth:`list` would return without a limit."""
        return self.records.count(**conditions)

    def get(self, document_id: str) -> DocumentRecord:
        """Return a record; ``UnknownDocumentError`` if there is none."""
        return self.records.get(document_id)

    def nodes(self, document_id: str) -> _Nodes:
        """Return the nodes of a document, in order."""
        record = self.get(document_id)
        found = self.records.nodes(record.id)
        if all(node.content_hash for node in found):
            return found
        self._describe_nodes(record)
        return self.records.nodes(record.id)

    def text(self, document_id: str) -> str:
        """Return the source text that citations point into; empty while there is none."""
        return str(self.records.columns(document_id, "text")[0])

    def file(self, document_id: str) -> Path | None:
        """Return where its file is: the one that was kept, or the one that was read; ``None`` where neither is."""
        record = self.get(document_id)
        [source] = self.records.columns(record.id, "source")
        path = self.folder / record.stored_filename if record.stored_filename else Path(source)
        return path if path.is_file() and (record.stored_filename or path.is_absolute()) else None

    def wait(self, document_id: str, timeout_s: float) -> DocumentRecord:
        """Wait until a document is indexed, failed or inactive; ``DeadlineExceededError`` when the time is up."""
        ends, pause = time.monotonic() + timeout_s, 0.01
        while (record := self.get(document_id)).status not in DONE:
            left = ends - time.monotonic()
            if left <= 0:
                what = f"document {document_id} is still {record.status.value} after {timeout_s:g} s"
                raise errors.DeadlineExceededError(f"{what}; see that a worker runs (agentic-retriever worker)")
            time.sleep(min(pause, left))
            pause = min(0.5, pause * 1.5)
        return record

    def update(
        self,
        document_id: str,
        *,
        title: str | None = None,
        document_type: str | None = None,
        document_number: str | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> DocumentRecord:
        """Correct what is known of a document; a value of ``None`` in ``metadata`` takes that away.

        All but the title holds at once, and nothing is embedded. A title is part of what is cut and embedded, so that
        a worker processes the document again.

        Raises:
            UnknownDocumentError: If there is none of that id.
            IndexingError: If a value cannot be stored.
            StoreBusyError: If another process holds its index.
        """
        record = self.get(document_id)
        named = {"document_type": document_type, "document_number": document_number}
        new = _said(metadata, title=title, tags=tags, **named)
        given, kind = self.records.columns(record.id, "given", "kind")
        given["said"] = {**given.get("said", {}), **new}
        given["origins"] = {**given.get("origins", {}), **dict.fromkeys(new, "caller")}
        columns = {"given": given, **_columns(new)}
        if title is not None:
            columns["title"] = title
        is_retitled = title is not None and title != record.title
        is_cut_again = is_retitled and record.is_active and kind != "nodes"
        if is_cut_again or record.status in {DocumentStatus.PENDING, DocumentStatus.PROCESSING}:
            columns |= {"status": DocumentStatus.PENDING.value, "tries": 0, **FREE}  # who processes it begins again
        with self._changing(record) as index:
            entry = None if index is None else index.catalog.get(record.doc_id)
            if index is not None and entry is not None and record.total_chunks and not is_cut_again:
                self._rewrite(index, entry, new, columns)
            else:
                self.records.change(record.id, **columns)
        if not record.is_active:
            self._nodes_file(record).unlink(missing_ok=True)  # they say what was known before
        self._tell()
        return self.get(record.id)

    def reprocess(self, document_id: str) -> DocumentRecord:
        """Have a document read, cut and embedded again; the old version is found until the new one is whole.

        Raises:
            UnknownDocumentError: If there is none of that id.
            IndexingError: If it is switched off, or was added as nodes.
        """
        record = self.get(document_id)
        if not record.is_active:
            raise errors.IndexingError(f"document {document_id} is switched off; activate it first")
        if self.records.columns(record.id, "kind")[0] == "nodes":
            raise errors.IndexingError(f"document {document_id} was added as nodes; add them again")
        pending = {"status": DocumentStatus.PENDING.value, "processing_progress": 0, "error_message": "", "tries": 0}
        self.records.change(record.id, **pending, **FREE)
        self._tell()
        return self.get(record.id)

    def deactivate(self, document_id: str) -> DocumentRecord:
        """Take a document out of all results; its nodes are kept beside its file, with their vectors."""
        self.check_folder()
        record = self.get(document_id)
        if record.is_active:
            with self._changing(record) as index:
                off = {"status": DocumentStatus.INACTIVE.value, "is_active": False, "tries": 0}
                self.records.change(record.id, **off, **FREE)  # first, so that a worker that has it gives it up
                if index is not None:
                    self._withdraw(index, record)
        return self.get(record.id)

    def activate(self, document_id: str) -> DocumentRecord:
        """Bring a document back into results without embedding anything; one without kept nodes is processed."""
        record = self.get(document_id)
        if not record.is_active:
            nodes = _load_nodes(self._nodes_file(record))
            with self._changing(record) as index:
                entry = None if index is None else index.catalog.get(record.doc_id)
                if index is not None and entry is not None and entry.content_hash and nodes:
                    Indexer(index).replace_nodes(entry, nodes, {"is_active": True, "version": record.version})
                    index.build_search()
                else:
                    self.records.change(record.id, status=DocumentStatus.PENDING.value, is_active=True, tries=0)
            self._nodes_file(record).unlink(missing_ok=True)
            self._tell()
        return self.get(record.id)

    def delete(self, document_id: str) -> None:
        """Remove a document with its nodes and its kept file; a file that was read where it lies stays there."""
        record = self.get(document_id)
        with self._changing(record) as index:
            off = {"status": DocumentStatus.INACTIVE.value, "is_active": False}
            self.records.change(record.id, **off, **FREE)
            if index is not None:
                Indexer(index).remove_documents([record.doc_id])
                index.build_search()
                index.build_in_background()
            else:
                self.records.remove(record.id)
        self.discard_files([record])

    # -- What is not for users

    def check_folder(self) -> None:
        """Raise a ``StoreError`` where a configured folder is not there, as when it is not mounted, or is read-only."""
        is_there = self.folder.is_dir()
        if self._resources.config.storage_folder and not (is_there and os.access(self.folder, os.W_OK | os.X_OK)):
            what = "cannot be written" if is_there else "is not there"
            raise errors.StoreError(f"storage_folder {self.folder} {what}; mount it, or set storage_folder to another")

    def recover(self) -> None:
        """Go on with what a killed process left: documents half switched off, files of uploads without a record."""
        for record in self.records.find(is_active=False, limit=1_000_000):
            if record.total_chunks or self.records.nodes(record.id):
                with suppress(errors.StoreBusyError), self._changing(record) as index:
                    if index is not None:
                        self._withdraw(index, record)
        self.records.requeue_cut_off()
        if self._resources.config.storage_folder or not self.folder.is_dir():
            return  # a folder that is shared may hold files of others
        for path in self.folder.iterdir():
            with suppress(OSError, ValueError):
                document_id = str(UUID(path.name.lstrip(".")[:36]))  # else it is none of ours
                if path.stat().st_mtime < time.time() - _ORPHANED_S:
                    try:
                        self.get(document_id)
                    except errors.UnknownDocumentError:
                        path.unlink()

    def discard_files(self, records: Sequence[DocumentRecord]) -> None:
        for record in records:
            self._nodes_file(record).unlink(missing_ok=True)
            if record.stored_filename:
                (self.folder / record.stored_filename).unlink(missing_ok=True)

    @contextmanager
    def _changing(self, record: DocumentRecord) -> Iterator[StoredIndex | None]:
        """Keep others from changing a document; yields its index, or ``None`` where nothing was ever written to it."""
        if self.records.columns(record.id, "content_hash")[0] is None:
            yield None
            return
        index = self._resources.stored(record.index, to_change=True)
        with index.writing(record.doc_id):
            yield index

    def _describe_nodes(self, record: DocumentRecord) -> None:
        """Note what is in nodes of which an earlier version noted the ids alone."""
        store = self._resources.stored(record.index).vector_store
        catalog = Catalog(self.records.indexes, record.index)
        held = store.get_nodes(node_ids=catalog.node_ids(record.doc_id))
        nodes = [node for node in held if isinstance(node, TextNode)]
        nodes.sort(key=lambda node: (node.start_char_idx or 0, node.node_id))
        catalog.describe_nodes({node.node_id: node_facts(node, at) for at, node in enumerate(nodes)})

    def _withdraw(self, index: StoredIndex, record: DocumentRecord) -> None:
        """Take the nodes of a document out of its index, and keep them; each step can be done twice."""
        entry, ids = index.catalog.get(record.doc_id), index.catalog.node_ids(record.doc_id)
        if entry is None:
            return
        found = {node.node_id: node for node in index.vector_store.get_nodes(node_ids=ids)} if ids else {}
        if found and entry.content_hash:
            order, vectors = index.vector_store.vectors(ids)
            _save_nodes(self._nodes_file(record), [found[i] for i in order if i in found], vectors)
        off = {"status": DocumentStatus.INACTIVE.value, "version": record.version}
        Indexer(index).replace_nodes(entry, [], off)
        index.build_search()
        index.build_in_background()

    def _rewrite(
        self, index: StoredIndex, entry: CatalogEntry, new: Mapping[str, Any], columns: Mapping[str, Any]
    ) -> None:
        """Give the nodes of a document what is now known of it, with their vectors where their text is as before."""
        ids = index.catalog.node_ids(entry.doc_id)
        held = index.vector_store.get_nodes(node_ids=ids)
        nodes = {node.node_id: node for node in held if isinstance(node, TextNode)}
        order, vectors = index.vector_store.vectors(ids)
        changed = []
        for node_id, vector in zip(order, vectors, strict=True):
            node = nodes[node_id].model_copy(deep=True)
            is_retitled = "title" in new and node.metadata.get("title") != new["title"]
            node.embedding = None if is_retitled else vector.tolist()
            for key, value in new.items():
                node.metadata.pop(key, None) if value is None else node.metadata.update({key: value})
            hidden = [key for key in new if key != "title" and key not in node.excluded_embed_metadata_keys]
            node.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, *hidden]
            changed.append(node)
        metadata = {**entry.metadata, **{key: value for key, value in new.items() if key != "title"}}
        metadata = {key: value for key, value in metadata.items() if value is not None}
        entry = entry._replace(title=new.get("title", entry.title), metadata=metadata)
        if ":" in entry.content_hash:
            entry = entry._replace(content_hash=f"{CHUNKING_VERSION}:{entry.document.content_hash}")
        changed.sort(key=lambda node: node.node_id)
        Indexer(index).replace_nodes(entry, changed, columns)
        index.build_search()

    def _nodes_file(self, record: DocumentRecord) -> Path:
        return self.folder / f"{record.id}.nodes.npz"

    def _tell(self) -> None:
        """Say that there may be something to do: here, and by Redis where the catalog itself tells nobody."""
        self.changed.set()
        if self._resources.redis is not None:
            self._resources.redis.call(
                lambda client: client.xadd(STREAM, {"at": time.time()}, maxlen=1_000), default=None
            )


def _file_name(source: str | Path | bytes, given: str | None) -> str:
    """Return what a file is called, without folders, if it is of a kind that can be read."""
    if given is None and isinstance(source, bytes):
        raise errors.SourceError("bytes need a filename, such as filename='report.pdf'")
    name = str(source if given is None else given).replace("\\", "/")
    name = "".join(char for char in clean_text(PurePosixPath(name).name) if char.isprintable()).strip()
    stem, suffix = PurePosixPath(name).stem, PurePosixPath(name).suffix.lower()
    if not stem.strip(". ") or len(name) > _MAX_NAME:
        raise errors.SourceError(f"the file name {name[:80]!r} cannot be used; take 1 to {_MAX_NAME} characters")
    if suffix == ".jsonl":
        add = "add them with: agentic-retriever index add NAME FILE, or router.add_index"
        raise errors.SourceError(f"{name!r} holds many documents, one a line, and an upload is one; {add}")
    if not is_readable(Path(f"upload{suffix}")):  # the name that it is kept by ends in it
        raise errors.SourceError(f"{name!r} is of no kind that can be read; allowed are {_UPLOADED}")
    return name


def _keep(source: str | Path | bytes, kept: Path, max_bytes: int) -> str:
    """Copy a file to where it is kept, whole and safe from a crash or not at all, and return its digest."""
    try:
        stream: BinaryIO = io.BytesIO(source) if isinstance(source, bytes) else _opened(Path(source))
    except OSError as err:
        raise errors.SourceError(f"{source!s} {unreadable(err)}") from err
    digest, size = hashlib.sha256(), 0
    temporary = kept.with_name(f".{kept.name}")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with stream, temporary.open("xb") as copy:
            while block := stream.read(_BLOCK):
                size += len(block)
                if size > max_bytes:
                    raise too_large(max_bytes)
                digest.update(block)
                copy.write(block)
            if not size:
                raise errors.SourceError("the file is empty")
            copy.flush()
            os.fsync(copy.fileno())
        temporary.replace(kept)
        sync(kept.parent)
    except OSError as err:
        what = f"the file cannot be kept in {kept.parent}: {err.strerror or type(err).__name__}"
        advice = "see that there is room, and permission to write, and upload it again"
        raise errors.SourceError(f"{what}; {advice}") from err
    finally:
        temporary.unlink(missing_ok=True)
    return digest.hexdigest()


def _opened(path: Path) -> BinaryIO:
    if not path.is_file():
        path.stat()  # says if it is not there
        raise errors.SourceError(f"{path} is no regular file")
    return path.open("rb")


def _said(metadata: Mapping[str, Any] | None, **named: Any) -> dict[str, Any]:  # noqa: ANN401 - a title, tags, ...
    """Return what a caller says of a document in one mapping; ``None`` in metadata takes a value away."""
    gone = {key: None for key, value in (metadata or {}).items() if value is None}
    told = {key: list(value) if key == "tags" else value for key, value in named.items() if value is not None}
    return {**flat_metadata(metadata or {}, doc_id=""), **gone, **told}


def _columns(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a record that say the same."""
    columns: dict[str, Any] = {key: str(said[key] or "") for key in ("document_type", "document_number") if key in said}
    if "tags" in said:
        tags = said["tags"] or []
        columns["tags"] = [str(tag) for tag in (tags if isinstance(tags, list) else [tags])]
    return columns


def _save_nodes(path: Path, nodes: Sequence[Any], vectors: Any) -> None:  # noqa: ANN401 - nodes and a matrix
    texts = json.dumps([node.to_json() for node in nodes]).encode()
    buffer = io.BytesIO()
    np.savez_compressed(buffer, nodes=np.frombuffer(texts, dtype=np.uint8), vectors=np.asarray(vectors, np.float32))
    write_atomically(path, buffer.getvalue())


def _load_nodes(path: Path) -> list[TextNode]:
    """Read nodes with their vectors; none where there is no such file, or it cannot be read."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as data:
            texts, vectors = json.loads(data["nodes"].tobytes()), data["vectors"]
        nodes = [TextNode.from_json(text) for text in texts]
        pairs = zip(nodes, vectors, strict=True)
        return [node.model_copy(update={"embedding": vector.tolist()}) for node, vector in pairs]
    except (OSError, ValueError, KeyError, EOFError):
        return []

"""What one index holds: its documents, their texts and nodes, and the version of the whole."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import uuid4

import sqlalchemy as sa

from agentic_retriever import errors
from agentic_retriever.catalog.database import put_rows
from agentic_retriever.catalog.indexes import PAGE, Indexes, IndexRow
from agentic_retriever.catalog.records import utc_now
from agentic_retriever.catalog.tables import DOCUMENTS, FREE, INDEXES, NODES
from agentic_retriever.ingestion import SourceDocument

_D: Final = DOCUMENTS.c
_N: Final = NODES.c


class CatalogEntry(NamedTuple):
    """One document as the catalog knows it; ``content_hash`` is empty while it is being written."""

    doc_id: str
    source: str
    root: str
    kind: str
    title: str
    metadata: Mapping[str, Any]
    text: str
    content_hash: str

    @property
    def document(self) -> SourceDocument:
        return SourceDocument(**{name: value for name, value in self._asdict().items() if name != "content_hash"})

    @property
    def is_altered(self) -> bool:
        """Whether a document that was read from a source is not what its hash says; nodes were added as they are."""
        _, colon, digest = self.content_hash.partition(":")
        return bool(colon) and self.document.content_hash != digest


class CatalogCounts(NamedTuple):
    documents: int
    nodes: int
    unfinished: int  # documents whose writing was cut off
    finished_nodes: int  # nodes of finished documents


_ENTRY: Final = [_D[name] for name in CatalogEntry._fields]


class Catalog:
    """Which documents an index holds, their texts and nodes, and the version of the whole; usable from many threads.

    An intent is noted before a store changes and confirmed after it; what a kill leaves is written under the same ids.
    """

    def __init__(self, indexes: Indexes, name: str, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.indexes = indexes
        self.id = indexes.row(name).id
        self.name = name
        self._clock = clock
        self._pid = os.getpid()
        self._is_closed = False

    @property
    def row(self) -> IndexRow:
        """What the catalog knows of the index itself now."""
        row = self.indexes.rows().get(self.name)
        if self._is_closed or row is None or row.id != self.id:
            self._check_open()
            raise errors.StoreClosedError(f"index {self.name!r} was removed by another process")
        return row

    def version(self) -> int:
        """Return the version, which grows with every confirmed change."""
        return self.row.version

    def counts(self) -> CatalogCounts:
        documents = sa.select(sa.func.count()).select_from(DOCUMENTS).where(*self._written())
        nodes = sa.select(sa.func.count()).select_from(NODES)
        finished = nodes.join(DOCUMENTS, _N.document_id == _D.id).where(self._in_index, _D.content_hash != "")
        unfinished = documents.where(_D.content_hash == "")
        parts = documents, nodes.where(_N.index_id == self.id), unfinished, finished
        return CatalogCounts(*self._read(sa.select(*(part.scalar_subquery() for part in parts)))[0])

    def get(self, doc_id: str) -> CatalogEntry | None:
        found = self._read(sa.select(*_ENTRY).where(*self._written(), _D.doc_id == doc_id))
        return CatalogEntry(*found[0]) if found else None

    def documents(self) -> Iterator[CatalogEntry]:
        for some in _pages(self.doc_ids()):
            wanted = sa.select(*_ENTRY).where(*self._written(), _D.doc_id.in_(some))
            yield from sorted(CatalogEntry(*row) for row in self._read(wanted))

    def hashes(self) -> dict[str, str]:
        """Return the content hash of each document."""
        return dict(map(tuple, self._read(sa.select(_D.doc_id, _D.content_hash).where(*self._written()))))

    def doc_ids(self, *, root: str | None = None) -> list[str]:
        """Return the ids of all documents, or of those that came from one root, in order."""
        from_root = [] if root is None else [_D.root == root]
        return sorted(row[0] for row in self._read(sa.select(_D.doc_id).where(*self._written(), *from_root)))

    def node_ids(self, doc_id: str) -> list[str]:
        """Return the ids of a document's nodes, intended ones included, in order."""
        joined = sa.select(_N.node_id).join(DOCUMENTS, _N.document_id == _D.id)
        return sorted(row[0] for row in self._read(joined.where(self._in_index, _D.doc_id == doc_id)))

    def checksums(self) -> dict[str, int]:
        """Return the checksum of each node's vector; those that earlier versions wrote have none."""
        known = sa.select(_N.node_id, _N.checksum).where(_N.index_id == self.id, _N.checksum.is_not(None))
        return dict(map(tuple, self._read(known)))

    def said(self) -> dict[str, dict[str, Any]]:
        """Return what callers said of documents, by ``doc_id``."""
        rows = self._read(sa.select(_D.doc_id, _D.given).where(self._in_index, _D.given != {}))
        return {row.doc_id: row.given["said"] for row in rows if row.given.get("said")}

    def inactive(self) -> set[str]:
        """Return the ids of documents that are switched off."""
        return {row.doc_id for row in self._read(sa.select(_D.doc_id).where(self._in_index, ~_D.is_active))}

    def begin_source(self, root: str) -> None:
        """Note that a file or folder is being added, until :meth:`end_source`."""
        self._note_adding(lambda roots: sorted({*roots, root}))

    def end_source(self, root: str) -> None:
        self._note_adding(lambda roots: [one for one in roots if one != root])

    def unfinished_sources(self) -> list[str]:
        """Return the files and folders whose adding was cut off."""
        return list(self._read(sa.select(INDEXES.c.adding).where(INDEXES.c.id == self.id))[0][0])

    def begin(self, documents: Sequence[tuple[CatalogEntry, Sequence[str]]]) -> None:
        """Note that these documents are about to get these nodes; what is known of them stays until then."""
        with self._write() as connection:
            ids = self._ids(connection, [entry.doc_id for entry, _ in documents])
            new = [self._row(entry._replace(content_hash=""), ids) for entry, _ in documents if entry.doc_id not in ids]
            if new:
                connection.execute(sa.insert(DOCUMENTS), [{**row, "created_at": self._clock()} for row in new])
            self._mark(connection, [entry.doc_id for entry, _ in documents], status="processing")
            rows = [{"document_id": ids[e.doc_id], "node_id": i} for e, nodes in documents for i in nodes]
            self._put_nodes(connection, rows)

    def confirm(
        self,
        documents: Sequence[tuple[CatalogEntry, Sequence[str]]],
        nodes: Mapping[str, Mapping[str, Any]] | None = None,
        facts: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Note that documents now have exactly these nodes, raise the version, and end the claims to them.

        ``nodes`` are the columns of nodes that are to change, by ids, and ``facts`` those of records by ``doc_id``.
        """
        with self._write() as connection:
            ids = self._ids(connection, [entry.doc_id for entry, _ in documents])
            now = self._clock()
            done = {"status": "indexed", "processing_progress": 100, "error_message": "", "updated_at": now}
            done |= {"tries": 0, "created_at": now, **FREE}
            rows = [{**self._row(entry, ids), **done, "total_chunks": len(held)} for entry, held in documents]
            put_rows(connection, DOCUMENTS, rows, "id", kept="created_at")
            for doc_id, columns in (facts or {}).items():
                connection.execute(sa.update(DOCUMENTS).where(self._in_index, _D.doc_id == doc_id).values(**columns))
            for entry, held in documents:
                self._drop_nodes(connection, ids[entry.doc_id], keep=set(held))
            known = nodes or {}
            self._put_nodes(connection, [
                {"document_id": ids[entry.doc_id], "node_id": i, **known.get(i, {})}
                for entry, held in documents for i in held
            ])  # fmt: skip
            self._raise_version(connection)

    def describe_nodes(self, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        """Note columns of nodes by their ids, of those that are there."""
        with self._write() as connection:
            for node_id, columns in nodes.items():
                change = sa.update(NODES).where(_N.index_id == self.id, _N.node_id == node_id)
                connection.execute(change.values(**columns))

    def begin_removal(self, doc_ids: Sequence[str]) -> None:
        with self._write() as connection:
            self._mark(connection, doc_ids)

    def confirm_removal(self, doc_ids: Sequence[str]) -> None:
        """Note that these documents and their nodes are gone, and raise the version."""
        with self._write() as connection:
            for some in _pages(doc_ids):
                connection.execute(sa.delete(DOCUMENTS).where(self._in_index, _D.doc_id.in_(some)))
            self._raise_version(connection)

    def close(self) -> None:
        self._is_closed = True

    @property
    def _in_index(self) -> sa.ColumnElement[bool]:
        return _D.index_id == self.id

    def _written(self) -> tuple[sa.ColumnElement[bool], ...]:
        return self._in_index, _D.content_hash.is_not(None)

    def _ids(self, connection: sa.Connection, doc_ids: Sequence[str]) -> dict[str, str]:
        """Return the ids of the records of documents that have one."""
        found: dict[str, str] = {}
        for some in _pages(doc_ids):
            rows = connection.execute(sa.select(_D.doc_id, _D.id).where(self._in_index, _D.doc_id.in_(some)))
            found.update((row.doc_id, row.id) for row in rows)
        return found

    def _row(self, entry: CatalogEntry, ids: dict[str, str]) -> dict[str, Any]:
        known = {**entry._asdict(), "metadata": dict(entry.metadata), "updated_at": self._clock()}
        return {"id": ids.setdefault(entry.doc_id, str(uuid4())), "index_id": self.id, **known}

    def _mark(self, connection: sa.Connection, doc_ids: Sequence[str], **changes: object) -> None:
        """Note that documents are being changed; what was whole becomes another version."""
        version = _D.version + sa.case((_D.content_hash > "", 1), else_=0)
        marked = sa.update(DOCUMENTS).values(content_hash="", updated_at=self._clock(), version=version, **changes)
        for some in _pages(doc_ids):
            connection.execute(marked.where(self._in_index, _D.doc_id.in_(some)))

    def _put_nodes(self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        by_columns: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for row in rows:
            by_columns.setdefault(tuple(row), []).append({"index_id": self.id, **row})
        for alike in by_columns.values():
            put_rows(connection, NODES, alike, "index_id", "node_id")

    def _drop_nodes(self, connection: sa.Connection, document_id: str, *, keep: set[str]) -> None:
        held = connection.execute(sa.select(_N.node_id).where(_N.document_id == document_id)).scalars()
        for some in _pages([node_id for node_id in held if node_id not in keep]):
            connection.execute(sa.delete(NODES).where(_N.index_id == self.id, _N.node_id.in_(some)))

    def _raise_version(self, connection: sa.Connection) -> None:
        connection.execute(sa.update(INDEXES).where(INDEXES.c.id == self.id).values(version=INDEXES.c.version + 1))

    def _note_adding(self, change: Callable[[list[str]], list[str]]) -> None:
        mine = INDEXES.c.id == self.id
        with self._write() as connection:
            roots = connection.execute(sa.select(INDEXES.c.adding).where(mine).with_for_update()).scalar_one()
            connection.execute(sa.update(INDEXES).where(mine).values(adding=change(roots)))

    def _read(self, wanted: sa.Select[Any]) -> Sequence[Any]:
        self._check_open()
        with self.indexes.database.reading() as connection:
            return connection.execute(wanted).all()

    def _write(self) -> AbstractContextManager[sa.Connection]:
        self._check_open()
        return self.indexes.changing()

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise errors.StoreClosedError(f"index {self.name!r} was opened before a fork; open it after forking")
        if self._is_closed:
            raise errors.StoreClosedError(f"index {self.name!r} is closed; open it again")


def _pages(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + PAGE] for start in range(0, len(ids), PAGE))

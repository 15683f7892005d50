"""Which documents an index holds, their source texts and nodes, and the version of the whole.

The catalog is written around every change of the vector store: first the intent (the document without its content
hash, and the node ids it is about to get), last the confirmation. A process killed in between leaves documents without
a hash, which the next run writes again under the same ids.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentic_retriever.errors import StoreClosedError, StoreDamagedError, StoreError

CATALOG_FILE = "catalog.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO meta VALUES ('version', 0);
CREATE TABLE IF NOT EXISTS documents (
    doc_id TEXT PRIMARY KEY, source TEXT NOT NULL, root TEXT NOT NULL, kind TEXT NOT NULL, title TEXT NOT NULL,
    metadata TEXT NOT NULL, text TEXT NOT NULL, content_hash TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS documents_root ON documents (root);
CREATE TABLE IF NOT EXISTS nodes (node_id TEXT PRIMARY KEY, doc_id TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS nodes_doc ON nodes (doc_id);
"""
_RAISE_VERSION = "UPDATE meta SET value = value + 1 WHERE key = 'version'"
_DOCUMENT = "SELECT doc_id, source, root, kind, title, metadata, text, content_hash FROM documents"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One document as the catalog knows it; ``content_hash`` is empty while it is being written."""

    doc_id: str
    source: str
    root: str
    kind: str
    title: str
    metadata: Mapping[str, Any]
    text: str
    content_hash: str


@dataclass(frozen=True, slots=True)
class CatalogCounts:
    """Documents, nodes, documents whose writing was cut off, and nodes of finished documents."""

    documents: int
    nodes: int
    unfinished: int
    finished_nodes: int


def damaged(name: str, what: str) -> StoreDamagedError:
    """Make the error for an index whose files cannot be trusted."""
    return StoreDamagedError(
        f"index {name!r} is damaged or incomplete: {what}; remove it (agentic-retriever index remove {name}) "
        "and add its sources again; vectors of unchanged text are still in the embedding cache"
    )


class Catalog:
    """The catalog of one index, in SQLite; usable from many threads."""

    def __init__(self, folder: Path, name: str, *, shared: bool = False) -> None:
        self._name = name
        self._shared = shared
        self._path = folder / CATALOG_FILE
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        with self._guard():
            # isolation_level=None: transactions are opened by name in _write, and never by surprise.
            connection = sqlite3.connect(self._path, timeout=5.0, check_same_thread=False, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
                connection.executescript(_SCHEMA)
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection

    def version(self) -> int:
        """Return the version, which grows with every confirmed change."""
        if self._version is None or self._shared:
            self._version = int(self._read("SELECT value FROM meta WHERE key = 'version'")[0][0])
        return self._version

    def counts(self) -> CatalogCounts:
        """Count documents and nodes."""
        row = self._read(
            "SELECT (SELECT COUNT(*) FROM documents), (SELECT COUNT(*) FROM nodes),"
            " (SELECT COUNT(*) FROM documents WHERE content_hash = ''),"
            " (SELECT COUNT(*) FROM nodes JOIN documents USING (doc_id) WHERE content_hash != '')"
        )[0]
        return CatalogCounts(*(int(value) for value in row))

    def get(self, doc_id: str) -> CatalogEntry | None:
        """Return a document, or ``None``."""
        rows = self._read(f"{_DOCUMENT} WHERE doc_id = ?", (doc_id,))
        return _entry(rows[0]) if rows else None

    def documents(self) -> Iterator[CatalogEntry]:
        """Yield every document in order of its id."""
        for doc_id in self.doc_ids():
            entry = self.get(doc_id)
            if entry is not None:
                yield entry

    def doc_ids(self, *, root: str | None = None) -> list[str]:
        """Return the ids of all documents, or of those that came from one root, in order."""
        if root is None:
            return [row[0] for row in self._read("SELECT doc_id FROM documents ORDER BY doc_id")]
        return [row[0] for row in self._read("SELECT doc_id FROM documents WHERE root = ? ORDER BY doc_id", (root,))]

    def node_ids(self, doc_id: str) -> list[str]:
        """Return the ids of a document's nodes, intended ones included, in order."""
        return [row[0] for row in self._read("SELECT node_id FROM nodes WHERE doc_id = ? ORDER BY node_id", (doc_id,))]

    def begin(self, documents: Sequence[tuple[CatalogEntry, Sequence[str]]]) -> None:
        """Note that these documents are about to get these nodes."""
        with self._write() as connection:
            for entry, node_ids in documents:
                _put(connection, replace(entry, content_hash=""), node_ids)

    def confirm(self, documents: Sequence[tuple[CatalogEntry, Sequence[str]]]) -> None:
        """Note that these documents now have exactly these nodes, and raise the version."""
        with self._write() as connection:
            for entry, node_ids in documents:
                connection.execute("DELETE FROM nodes WHERE doc_id = ?", (entry.doc_id,))
                _put(connection, entry, node_ids)
            connection.execute(_RAISE_VERSION)

    def begin_removal(self, doc_ids: Sequence[str]) -> None:
        """Note that these documents are about to go."""
        with self._write() as connection:
            connection.executemany("UPDATE documents SET content_hash = '' WHERE doc_id = ?", [(i,) for i in doc_ids])

    def confirm_removal(self, doc_ids: Sequence[str]) -> None:
        """Note that these documents and their nodes are gone, and raise the version."""
        with self._write() as connection:
            connection.executemany("DELETE FROM nodes WHERE doc_id = ?", [(i,) for i in doc_ids])
            connection.executemany("DELETE FROM documents WHERE doc_id = ?", [(i,) for i in doc_ids])
            connection.execute(_RAISE_VERSION)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _read(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        with self._guard():
            return self._open().execute(sql, values).fetchall()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._guard():
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
                self._version = None
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreClosedError(f"index {self._name!r} is closed; open it again")
        return self._connection

    @contextmanager
    def _guard(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.OperationalError as err:
                raise StoreError(
                    f"index {self._name!r}: cannot use {self._path}: {err}; check space and permissions"
                ) from err
            except sqlite3.DatabaseError as err:
                raise damaged(self._name, f"{self._path} is not a readable catalog") from err


def _put(connection: sqlite3.Connection, entry: CatalogEntry, node_ids: Sequence[str]) -> None:
    metadata = json.dumps(dict(entry.metadata), ensure_ascii=False, default=str)
    row = (entry.doc_id, entry.source, entry.root, entry.kind, entry.title, metadata, entry.text, entry.content_hash)
    connection.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    connection.executemany("INSERT OR REPLACE INTO nodes VALUES (?, ?)", [(i, entry.doc_id) for i in node_ids])


def _entry(row: Sequence[str]) -> CatalogEntry:
    doc_id, source, root, kind, title, metadata, text, content_hash = row
    return CatalogEntry(doc_id, source, root, kind, title, json.loads(metadata), text, content_hash)

"""Taking over files of earlier versions, each put away only once all of it is written, and a catalog that moves."""

import json
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import sqlalchemy as sa

from agentic_retriever.catalog.address import CATALOG_FILE, Address
from agentic_retriever.catalog.database import Database, discard
from agentic_retriever.catalog.indexes import PAGE, Indexes, copy_contents
from agentic_retriever.catalog.records import utc_now
from agentic_retriever.catalog.tables import DOCUMENTS, INDEXES, NODES, VIEWS
from agentic_retriever.errors import SourceError, StoreError
from agentic_retriever.stores.files import read_files, read_header
from agentic_retriever.stores.sparse import SparseBM25

logger = logging.getLogger(__name__)

FOLDER: Final = "indexes"  # in the data directory
MANIFEST_FILE: Final = "manifest.json"  # in the folder of an index: what it is, should the catalog be lost
MOVED: Final = ".moved"  # what the name of a catalog that is on a server now ends with
_VIEWS: Final = ("leaves", "summaries")
_STATE: Final = "-state"  # what the folder of a collection's state ended with
_VIEW_FILE: Final = "documents.json"


def take_over(indexes: Indexes) -> None:
    """Bring into the catalog what lies in the data directory and is not in it yet."""
    local, places = indexes.data_dir / CATALOG_FILE, indexes.data_dir / FOLDER
    if indexes.database.address.is_shared and local.exists():
        _move_here(indexes, Database(Address(path=local)))
        for extra in ("", "-wal", "-shm"):  # kept for whoever wants the history in it
            with suppress(FileNotFoundError):
                local.with_name(local.name + extra).replace(local.with_name(local.name + MOVED + extra))
    try:
        folders = [one for one in places.iterdir() if (one / MANIFEST_FILE).exists()]
    except FileNotFoundError:
        return
    except OSError as err:
        raise SourceError(f"cannot list the data directory {places}: {err.strerror}; check the path") from err
    if folders:
        _take_folders(indexes, folders)


def _take_folders(indexes: Indexes, folders: list[Path]) -> None:
    known = set[str]()
    if indexes.database.exists:
        with indexes.database.reading() as connection:
            known = set(indexes.all(connection))
    for folder in folders:
        if folder.name not in known and not folder.name.startswith("."):
            _take_folder(indexes, folder)
        discard(folder / CATALOG_FILE)
        for name in _VIEWS:
            shutil.rmtree(folder / f"{name}{_STATE}", ignore_errors=True)


def _take_folder(indexes: Indexes, folder: Path) -> None:
    manifest, old = (folder / MANIFEST_FILE).read_text(encoding="utf-8", errors="replace"), folder / CATALOG_FILE
    try:
        is_embedded = json.loads(manifest).get("store", "embedded") == "embedded"
    except (ValueError, AttributeError):  # opening that index will say so
        is_embedded = True
    if not is_embedded and indexes.database.address.is_shared and not old.exists():
        return  # what is left here of an index that another machine has removed
    with indexes.changing() as connection:
        if folder.name in indexes.all(connection):
            return
        known, states = _derived(folder)
        index_id = indexes.insert(connection, folder.name, manifest, embedded=is_embedded, **known)
        for name, state in states.items():
            connection.execute(sa.insert(VIEWS).values(index_id=index_id, name=name, state=state))
        try:
            with connection.begin_nested():
                if old.exists():
                    with closing(sqlite3.connect(old)) as before:
                        _copy_old(before, connection, index_id)
        except (sqlite3.DatabaseError, ValueError, KeyError) as err:  # without its documents it will be told as damaged
            logger.warning("index %r: %s is not a readable catalog (%s)", folder.name, old, err)


def _copy_old(before: sqlite3.Connection, connection: sa.Connection, index_id: int) -> None:
    """Copy the catalog of one index of the version before."""
    meta = dict(before.execute("SELECT key, value FROM meta"))
    roots = [key.removeprefix("adding ") for key in meta if key.startswith("adding ")]
    connection.execute(sa.update(INDEXES).where(INDEXES.c.id == index_id).values(version=meta["version"], adding=roots))
    now, ids = utc_now(), dict[str, str]()
    always = {"index_id": index_id, "created_at": now, "updated_at": now}
    columns = ["doc_id", "source", "root", "kind", "title", "metadata", "text", "content_hash"]
    for part in _parts(before, "SELECT doc_id, source, root, kind, title, metadata, text, content_hash FROM documents"):
        rows = []
        for values in part:
            row = dict(zip(columns, values, strict=True))
            ids[row["doc_id"]] = row["id"] = str(uuid4())
            status = {"status": "indexed", "processing_progress": 100} if row["content_hash"] else {}
            row["metadata"] = json.loads(row["metadata"])
            rows.append({"status": "processing", "processing_progress": 0, **row, **always, **status})
        connection.execute(sa.insert(DOCUMENTS), rows)
    nodes = "SELECT n.node_id, n.doc_id, c.checksum FROM nodes n LEFT JOIN checksums c USING (node_id)"
    for part in _parts(before, nodes):
        rows = [
            {"index_id": index_id, "node_id": node_id, "document_id": ids[doc_id], "checksum": checksum}
            for node_id, doc_id, checksum in part
            if doc_id in ids
        ]
        connection.execute(sa.insert(NODES), rows)
    counted = sa.select(sa.func.count()).where(NODES.c.document_id == DOCUMENTS.c.id).scalar_subquery()
    connection.execute(sa.update(DOCUMENTS).where(DOCUMENTS.c.index_id == index_id).values(total_chunks=counted))


def _parts(before: sqlite3.Connection, sql: str) -> Iterator[list[Any]]:
    cursor = before.execute(sql)
    while part := cursor.fetchmany(PAGE):
        yield part


def _derived(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what an index kept in files of its folder: columns of its row, and the states of its collections."""
    words, headers, states = None, {}, {}
    with suppress(StoreError):
        words = SparseBM25.load(folder)
    for name in _VIEWS:
        place = folder / f"{name}{_STATE}"
        with suppress(StoreError, ValueError):  # it is made again then
            header = read_header(place)
            if header is not None:
                content = read_files(place, [_VIEW_FILE])[_VIEW_FILE]
                states[name] = json.loads(content.decode("utf-8", "surrogatepass"))
                headers[name] = header
    return {"words": None if words is None else asdict(words), "views": headers}, states


def _move_here(indexes: Indexes, local: Database) -> None:
    """Copy the indexes of a catalog file to the server that the settings name now; those that are there stay."""
    try:
        with local.reading() as source, indexes.changing() as target:
            there = indexes.all(target)
            for row in source.execute(sa.select(INDEXES)).mappings().all():
                if row["name"] in there:
                    logger.warning("index %r is in %s already; that one holds", row["name"], indexes.database.what)
                    continue
                is_embedded = json.loads(row["manifest"]).get("store", "embedded") == "embedded"
                copy_contents(source, row, target, indexes, row["name"], row["manifest"], embedded=is_embedded)
    finally:
        local.close()

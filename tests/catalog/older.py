"""Turns a data directory into one of the version before: a catalog for each index, and a history of its own."""

import json
import secrets
import sqlite3
from contextlib import closing

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from agentic_retriever.catalog.database import _MIGRATIONS
from agentic_retriever.catalog.tables import VERSION_TABLE
from agentic_retriever.stores.files import write_sealed

CATALOG = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE documents (
    doc_id TEXT PRIMARY KEY, source TEXT NOT NULL, root TEXT NOT NULL, kind TEXT NOT NULL, title TEXT NOT NULL,
    metadata TEXT NOT NULL, text TEXT NOT NULL, content_hash TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE nodes (node_id TEXT PRIMARY KEY, doc_id TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE checksums (node_id TEXT PRIMARY KEY, checksum INTEGER NOT NULL) WITHOUT ROWID;
"""
SELECTS = {
    "documents": "SELECT doc_id, source, root, kind, title, metadata, text, content_hash FROM {p}documents "
    "WHERE index_id = ?",
    "nodes": "SELECT node_id, doc_id FROM {p}nodes n JOIN {p}documents d ON d.id = n.document_id WHERE d.index_id = ?",
    "checksums": "SELECT node_id, checksum FROM {p}nodes WHERE index_id = ? AND checksum IS NOT NULL",
}


def make_old(data_dir):
    with closing(sqlite3.connect(data_dir / "catalog.sqlite")) as new:
        indexes = "SELECT id, name, version, adding, views FROM agentic_retriever_indexes"
        for index_id, name, version, adding, views in new.execute(indexes).fetchall():
            folder = data_dir / "indexes" / name
            with closing(sqlite3.connect(folder / "catalog.sqlite")) as old, old:
                old.executescript(CATALOG)
                meta = {"version": version} | {f"adding {root}": 0 for root in json.loads(adding)}
                old.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
                for table, select in SELECTS.items():
                    rows = new.execute(select.format(p="agentic_retriever_"), [index_id]).fetchall()
                    if rows:
                        old.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
            for view, header in json.loads(views).items():
                states = "SELECT state FROM agentic_retriever_views WHERE index_id = ? AND name = ?"
                state = new.execute(states, [index_id, view]).fetchone()[0]
                write_sealed(folder / f"{view}-state", header, {"documents.json": state.encode()})
    for file in data_dir.glob("catalog.sqlite*"):
        file.unlink()


def old_history(path, questions):
    """Make a history of the version before, and return its salt."""
    engine = sa.create_engine(f"sqlite:///{path}")
    salt = secrets.token_hex(32)
    with engine.begin() as connection:
        config = Config(attributes={"connection": connection})
        config.set_main_option("script_location", str(_MIGRATIONS))
        command.upgrade(config, "0001")
        connection.exec_driver_sql(f"DROP TABLE {VERSION_TABLE}")
        facts = [("schema", "1"), ("salt", salt)]
        connection.exec_driver_sql("INSERT INTO agentic_retriever_meta VALUES (?, ?)", facts)
        columns = [row[1:4:2] for row in connection.exec_driver_sql("PRAGMA table_info(agentic_retriever_queries)")]
        row = {name: 0 if needed else None for name, needed in columns} | {"index_names": "[]"}
        for number, question in enumerate(questions):
            given = {"id": None, "entry_id": f"{number:032x}", "recorded_at": "2026-03-01 12:00:00.000000"}
            values = row | given | {"query_text": question, "strategy": "vector", "total_ms": float(number)}
            names = ", ".join(values)
            marks = ", ".join("?" * len(values))
            connection.exec_driver_sql(
                f"INSERT INTO agentic_retriever_queries ({names}) VALUES ({marks})", tuple(values.values())
            )
    engine.dispose()
    return salt

"""The tables of a catalog: indexes, documents, nodes, and the history of queries; the same on SQLite and PostgreSQL.

A change needs a migration (``migrations/versions``) and a new ``REVISION``; a server's database may hold other tables.
"""

import json
from datetime import datetime, timezone
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

REVISION: Final = "0004"  # the newest migration, which these tables are the result of
VERSION_TABLE: Final = "agentic_retriever_revision"


class UtcTime(TypeDecorator[datetime]):
    """A moment in UTC, aware in Python on every database; SQLite keeps it without its zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        utc = value and value.astimezone(timezone.utc)
        return utc and utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        zoned = value and value.replace(tzinfo=timezone.utc) if dialect.name == "sqlite" else value
        return zoned and zoned.astimezone(timezone.utc)


class JsonText(TypeDecorator[Any]):
    """A list or a mapping as compact ASCII JSON in a text, which both databases can count equal ones of."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: object, dialect: Dialect) -> str | None:  # noqa: ARG002 - its signature
        return None if value is None else json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=str)

    def process_result_value(self, value: str | None, dialect: Dialect) -> object:  # noqa: ARG002 - its signature
        return None if value is None else json.loads(value)


METADATA: Final = sa.MetaData()
_PREFIX: Final = "agentic_retriever_"
_NUMBER: Final = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite counts up the plain type alone


def _table(name: str, *parts: Any) -> sa.Table:  # noqa: ANN401 - columns and constraints
    return sa.Table(_PREFIX + name, METADATA, *parts)


def _text(name: str, default: str = "", **more: Any) -> sa.Column[str]:  # noqa: ANN401 - options of a column
    return sa.Column(name, sa.Text, nullable=False, default=default, server_default=default, **more)


def _count(name: str, default: int = 0) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, default=default, server_default=str(default))


def _list(name: str, **more: Any) -> sa.Column[Any]:  # noqa: ANN401 - options of a column
    return sa.Column(name, JsonText, nullable=False, default=list, server_default="[]", **more)


def _mapping(name: str) -> sa.Column[Any]:
    return sa.Column(name, JsonText, nullable=False, default=dict, server_default="{}")


def _reference(table: sa.Table, name: str, kind: Any, key: str = "id", **more: Any) -> sa.Column[Any]:  # noqa: ANN401
    return sa.Column(name, kind, sa.ForeignKey(table.c[key], ondelete="CASCADE"), nullable=False, **more)


META: Final = _table(
    "meta", sa.Column("name", sa.String(40), primary_key=True), sa.Column("value", sa.Text, nullable=False)
)

INDEXES: Final = _table(
    "indexes",
    sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
    # Of which data directory, where vectors lie in one and the catalog does not; else empty.
    _text("home"),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("manifest", sa.Text, nullable=False),  # what is fixed for its life
    _count("version"),  # grows with every confirmed change
    _list("adding"),  # the files and folders whose adding is under way, or was cut off
    sa.Column("words", JsonText),  # how a server weighs the words of its texts
    _mapping("views"),  # by the name of each collection derived from it on a server: what it was made from
    sa.UniqueConstraint("home", "name"),
)

DOCUMENTS: Final = _table(
    "documents",
    sa.Column("id", sa.String(36), primary_key=True),
    _reference(INDEXES, "index_id", _NUMBER),
    # What its index knows of it.
    sa.Column("doc_id", sa.Text, nullable=False),
    *(_text(name) for name in ("source", "root", "kind", "title")),
    _mapping("metadata"),
    _text("text"),
    # None until it is written for the first time, empty while it is being written.
    sa.Column("content_hash", sa.Text),
    # What people know of it.
    *(_text(name) for name in ("document_type", "document_number", "filename", "stored_filename", "file_hash")),
    _text("status", "pending"),
    *(_count(name) for name in ("processing_progress", "total_pages", "total_chunks")),
    _text("extraction_method"),
    _list("tags"),
    _mapping("section_mappings"),
    _mapping("given"),  # what the caller said of it, which goes before what is found
    _count("version", 1),
    sa.Column("is_active", sa.Boolean, nullable=False, default=True, server_default=sa.true()),
    _text("error_message"),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("updated_at", UtcTime, nullable=False),
    # Who processes it, until when, and how often that was tried.
    _text("lease_owner"),
    sa.Column("lease_until", UtcTime),
    _count("tries"),
    sa.UniqueConstraint("index_id", "doc_id"),
    sa.Index(f"ix_{_PREFIX}documents_root", "index_id", "root"),
    sa.Index(f"ix_{_PREFIX}documents_hash", "index_id", "file_hash"),
    sa.Index(f"ix_{_PREFIX}documents_status", "status", "lease_until"),
    sa.Index(f"ix_{_PREFIX}documents_created", "created_at"),
)

FREE: Final[dict[str, Any]] = {"lease_owner": "", "lease_until": None}  # of a document that nobody processes

NODES: Final = _table(
    "nodes",
    _reference(INDEXES, "index_id", _NUMBER, primary_key=True),
    sa.Column("node_id", sa.Text, primary_key=True),
    _reference(DOCUMENTS, "document_id", sa.String(36), index=True),
    _count("position"),
    _text("content"),
    _text("content_hash"),
    _list("page_numbers"),
    *(_text(name) for name in ("section_title", "article_number")),
    _list("heading_hierarchy"),
    *(_count(name) for name in ("char_count", "token_count")),
    _text("chunk_type"),
    sa.Column("checksum", sa.BigInteger),  # of its vector; earlier versions wrote none
)

# What a collection on a server that was derived from an index holds of each document.
VIEWS: Final = _table(
    "views",
    _reference(INDEXES, "index_id", _NUMBER, primary_key=True),
    sa.Column("name", sa.String(40), primary_key=True),
    sa.Column("state", JsonText, nullable=False),
)

# The steps that every version times have a column each; any other is kept in ``other_ms``.
STEPS: Final = ("total", "routing", "embedding", "retrieval", "rerank", "synthesis", "llm")
COUNTS: Final = ("llm_calls", "cloud_calls", "prompt_tokens", "completion_tokens")
_TEXTS: Final = (
    "query_id", "complexity", "index_mode", "strategy", "strategy_mode", "tier", "confidence_level", "error",
)  # fmt: skip
_FIGURES: Final = ("complexity_score", "index_confidence", "strategy_confidence", "confidence", "cloud_only_usd")

# The key of a column is the attribute of LogEntry that it holds.
QUERIES: Final = _table(
    "queries",
    sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
    # Given before the row is written, so that writing it again after a lost confirmation is noticed.
    sa.Column("entry_id", sa.String(32), nullable=False, unique=True),
    sa.Column("recorded_at", UtcTime, nullable=False, index=True),
    sa.Column("query_text", sa.Text, key="query"),
    sa.Column("query_hash", sa.String(64)),
    sa.Column("index_name", sa.Text, key="index", nullable=False),
    sa.Column("index_names", JsonText, key="indexes", nullable=False),
    *(sa.Column(name, sa.Text, nullable=False) for name in _TEXTS),
    *(sa.Column(name, sa.Double) for name in (*_FIGURES, *(f"{step}_ms" for step in STEPS))),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in (*COUNTS, "citations")),
    sa.Column("usd", sa.Double, nullable=False),
    sa.Column("cached", sa.Boolean, nullable=False),
    # The steps alone, so that the database can count equal ones; and each with its reason and fallback.
    *(sa.Column(name, JsonText) for name in ("degraded_steps", "degraded", "spent", "other_ms")),
    *(_text(name) for name in ("user_id", "conversation_id")),
    sa.Column("answer_text", sa.Text),
    _text("understood_as"),
    sa.Index(f"ix_{_PREFIX}queries_query_id", "query_id"),
    sa.Index(f"ix_{_PREFIX}queries_conversation", "conversation_id"),
    sa.Index(f"ix_{_PREFIX}queries_user", "user_id"),
)

QUERY_CITATIONS: Final = _table(
    "query_citations",
    _reference(QUERIES, "entry_id", sa.String(32), "entry_id", primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    *(_text(name) for name in ("index_name", "doc_id", "node_id", "title", "section")),
    sa.Column("score", sa.Double, nullable=False),
    _mapping("scores"),
)

FEEDBACK: Final = _table(
    "feedback",
    sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
    _reference(QUERIES, "entry_id", sa.String(32), "entry_id", index=True),
    sa.Column("rating", sa.Integer, nullable=False),
    *(_text(name) for name in ("comment", "user_id")),
    sa.Column("created_at", UtcTime, nullable=False),
)

API_KEYS: Final = _table(
    "api_keys",
    sa.Column("id", sa.String(8), primary_key=True),
    _text("name"),
    sa.Column("role", sa.Integer, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),  # of the key, which is kept nowhere
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("revoked_at", UtcTime),
)

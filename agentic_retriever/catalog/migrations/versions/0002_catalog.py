"""Indexes, documents and nodes; citations, feedback and askers of queries."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_P = "agentic_retriever_"


def _texts(names: str, default: str = "") -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False, server_default=default) for name in names.split()]


def _counts(names: str, default: str = "0") -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False, server_default=default) for name in names.split()]


def _key(name: str, kind: Any, target: str, **more: Any) -> sa.Column[Any]:  # noqa: ANN401 - a column's type
    return sa.Column(name, kind, sa.ForeignKey(f"{_P}{target}", ondelete="CASCADE"), nullable=False, **more)


def upgrade() -> None:
    op.create_table(
        f"{_P}indexes",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        *_texts("home"),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
        *_counts("version"),
        *_texts("adding", "[]"),
        sa.Column("words", sa.Text),
        *_texts("views", "{}"),
        sa.UniqueConstraint("home", "name"),
    )
    _create_documents()
    _create_nodes()
    _extend_history()


def _create_documents() -> None:
    op.create_table(
        f"{_P}documents",
        sa.Column("id", sa.String(36), primary_key=True),
        _key("index_id", _NUMBER, "indexes.id"),
        sa.Column("doc_id", sa.Text, nullable=False),
        *_texts("source root kind title"),
        *_texts("metadata", "{}"),
        *_texts("text"),
        sa.Column("content_hash", sa.Text),
        *_texts("document_type document_number filename stored_filename file_hash"),
        *_texts("status", "pending"),
        *_counts("processing_progress total_pages total_chunks"),
        *_texts("extraction_method"),
        *_texts("tags", "[]"),
        *_texts("section_mappings given", "{}"),
        *_counts("version", "1"),
        sa.Column("is_active", sa.Boolean, nullable=False, server_default=sa.true()),
        *_texts("error_message"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        *_texts("lease_owner"),
        sa.Column("lease_until", sa.DateTime(timezone=True)),
        *_counts("tries"),
        sa.UniqueConstraint("index_id", "doc_id"),
    )
    for name, columns in {
        "root": ["index_id", "root"],
        "hash": ["index_id", "file_hash"],
        "status": ["status", "lease_until"],
        "created": ["created_at"],
    }.items():
        op.create_index(f"ix_{_P}documents_{name}", f"{_P}documents", columns)


def _create_nodes() -> None:
    op.create_table(
        f"{_P}nodes",
        _key("index_id", _NUMBER, "indexes.id", primary_key=True),
        sa.Column("node_id", sa.Text, primary_key=True),
        _key("document_id", sa.String(36), "documents.id", index=True),
        *_counts("position"),
        *_texts("content content_hash"),
        *_texts("page_numbers", "[]"),
        *_texts("section_title article_number"),
        *_texts("heading_hierarchy", "[]"),
        *_counts("char_count token_count"),
        *_texts("chunk_type"),
        sa.Column("checksum", sa.BigInteger),
    )
    op.create_table(
        f"{_P}views",
        _key("index_id", _NUMBER, "indexes.id", primary_key=True),
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
    )


def _extend_history() -> None:
    for column in (*_texts("user_id conversation_id"), sa.Column("answer_text", sa.Text)):
        op.add_column(f"{_P}queries", column)
    for name, column_name in {"query_id": "query_id", "conversation": "conversation_id", "user": "user_id"}.items():
        op.create_index(f"ix_{_P}queries_{name}", f"{_P}queries", [column_name])
    op.create_table(
        f"{_P}query_citations",
        _key("entry_id", sa.String(32), "queries.entry_id", primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        *_texts("index_name doc_id node_id title section"),
        sa.Column("score", sa.Double, nullable=False),
        *_texts("scores", "{}"),
    )
    op.create_table(
        f"{_P}feedback",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        _key("entry_id", sa.String(32), "queries.entry_id", index=True),
        sa.Column("rating", sa.Integer, nullable=False),
        *_texts("comment user_id"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )

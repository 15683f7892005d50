"""What people know of a document, and of each of its nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from agentic_retriever.schema import Record


class DocumentStatus(str, Enum):
    """Where a document is in its life."""

    PENDING = "pending"  # waits for a worker
    PROCESSING = "processing"  # is read, cut and embedded
    INDEXED = "indexed"  # can be found
    FAILED = "failed"  # could not be processed; ``error_message`` says why
    INACTIVE = "inactive"  # was switched off, and is in no result


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRecord(Record):
    """One document: what it is, where it is in its life, and what was found in it."""

    id: str  # UUID, 36 characters
    index: str  # Name of the index that it is in
    doc_id: str = ""  # What nodes and citations call it
    title: str  # Its title; the caller's, the document's own, or made of the file name
    document_type: str = ""  # Such as "circular"
    document_number: str = ""  # Such as "12/2024"
    filename: str = ""  # As the caller named it, without folders
    stored_filename: str = ""  # Of its bytes in the storage folder; empty for what was read where it lies
    file_hash: str = ""  # SHA-256 of the bytes, hexadecimal
    status: DocumentStatus  # Where it is in its life
    processing_progress: int = 0  # 0 to 100
    total_pages: int = 0  # Pages, where it has some
    total_chunks: int = 0  # Nodes in the index
    extraction_method: str = ""  # How its text was read
    tags: tuple[str, ...] = ()  # Words that it can be listed by
    metadata: Mapping[str, Any] = field(default_factory=dict)  # _origins tells where each comes from
    section_mappings: Mapping[str, str] = field(default_factory=dict)  # Titles of its main sections by their numbers
    version: int = 1  # Grows with each change of its nodes
    is_active: bool = True  # Whether it may be found
    error_message: str = ""  # Why it failed, or what of it could not be read
    created_at: datetime  # When it came, in UTC
    updated_at: datetime  # When it was last changed, in UTC

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types, times in ISO 8601."""
        times = {name: getattr(self, name).isoformat() for name in ("created_at", "updated_at")}
        return Record.to_dict(self) | times


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord(Record):
    """One node of a document, at its ``position`` in it."""

    document_id: str
    position: int
    node_id: str
    content: str
    content_hash: str
    page_numbers: tuple[int, ...] = ()
    section_title: str = ""
    article_number: str = ""
    heading_hierarchy: tuple[str, ...] = ()
    char_count: int = 0
    token_count: int = 0
    chunk_type: str = ""

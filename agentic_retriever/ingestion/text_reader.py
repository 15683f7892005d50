"""Markdown and plain text files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion.blocks import scan_blocks
from agentic_retriever.ingestion.decoding import decode_text
from agentic_retriever.ingestion.documents import SourceDocument
from agentic_retriever.ingestion.front_matter import parse_front_matter
from agentic_retriever.ingestion.metadata import flat_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentic_retriever.ingestion.files import SourceFile

_TOP_HEADING_WITHIN = 20_000
_VISIBLE = re.compile(r"\S")


def read_markdown(file: SourceFile) -> Iterator[SourceDocument]:
    """Read a Markdown file; its front matter becomes metadata and stays in the text, where offsets count it.

    Args:
        file: The file.

    Yields:
        One document; its title is that of the front matter, else its first top-level heading, else the file's name.

    Raises:
        SourceError: If the file cannot be read or decoded, or holds no text.
    """
    text = _decoded(file)
    front = parse_front_matter(text)
    metadata = flat_metadata(front.values, doc_id=file.doc_id) if front else {}
    body_start = front.end if front else 0
    if not _VISIBLE.search(text, body_start):
        raise SourceError("has front matter but no text")
    given = metadata.get("title")
    title = str(given) if isinstance(given, (str, int, float)) else _top_heading(text, body_start)
    yield _document(file, text, metadata, title=title or file.title, kind="md")


def read_plain(file: SourceFile) -> Iterator[SourceDocument]:
    """Read a text file.

    Args:
        file: The file.

    Yields:
        One document, titled by the file's name.

    Raises:
        SourceError: If the file cannot be read or decoded, or holds no text.
    """
    yield _document(file, _decoded(file), {}, title=file.title, kind="txt")


def _decoded(file: SourceFile) -> str:
    text = decode_text(file.read())
    if not text.strip():
        raise SourceError("holds only white space")
    return text


def _document(file: SourceFile, text: str, metadata: dict[str, object], *, title: str, kind: str) -> SourceDocument:
    return SourceDocument(
        doc_id=file.doc_id,
        text=text,
        metadata=metadata,
        source=file.source,
        root=file.root,
        title=title,
        kind=kind,
    )


def _top_heading(text: str, start: int) -> str:
    for block in scan_blocks(text[: start + _TOP_HEADING_WITHIN], start=start):
        if block.heading is not None and block.heading.origin == "markdown" and block.heading.level == 1:
            return block.heading.title
    return ""

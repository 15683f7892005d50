"""What the readers hand on: source documents, their pages, and what had to be left out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class PageSpan:
    """Where one page lies in the text of a document.

    Attributes:
        number: Page number, from 1.
        start: First character.
        end: One past the last character; equal to ``start`` for a page without text.
    """

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDocument:
    r"""One document as it was read, before it is cut into nodes.

    Attributes:
        doc_id: Name of the document, unique within what was read.
        text: The text that every character offset points into. For text files these are the decoded characters with
            line ends translated to ``\n``; for HTML and PDF the text that was extracted; for records and documents
            from memory the text as given. Never stripped. A lone surrogate or a NUL, which no store can hold, stands
            as U+FFFD.
        metadata: Flat values: strings, numbers, booleans, and lists of those.
        source: Absolute path of the file, ``""`` for documents from memory.
        root: Absolute path that the user named, ``""`` for documents from memory.
        title: Title for citations and for the embedding; ``""`` when there is none.
        kind: ``"md"``, ``"txt"``, ``"html"``, ``"pdf"``, ``"jsonl"`` or ``"document"``.
        pages: The pages of a PDF in order, otherwise empty.
    """

    doc_id: str
    text: str
    metadata: Mapping[str, object]
    source: str
    root: str
    title: str
    kind: str
    pages: tuple[PageSpan, ...] = ()

    @property
    def content_hash(self) -> str:
        """SHA-256 over text, metadata, title and kind, in hexadecimal: equal hashes give equal nodes."""
        facts = json.dumps([self.kind, self.title, dict(self.metadata)], sort_keys=True, default=str)
        digest = hashlib.sha256(facts.encode())
        digest.update(b"\0")
        digest.update(self.text.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class SkippedSource:
    """Something that was left out, and why.

    Attributes:
        source: The file, with ``:LINE`` for a line of a ``.jsonl`` file and ``#page=N`` for a page of a PDF, or the
            id of a document from memory.
        reason: What was found and what to do, in one line.
    """

    source: str
    reason: str

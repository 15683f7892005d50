"""PDF files to text with page spans, by pypdf (extra ``pdf``)."""

from __future__ import annotations

import io
import re
import struct
import zlib
from typing import TYPE_CHECKING

from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion.documents import PageSpan, SkippedSource, SourceDocument, clean_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pypdf import PdfReader

    from agentic_retriever.ingestion.files import SourceFile

_PAGE_BREAK = "\n\n"
_NO_TITLE = re.compile(r"\s*$|untitled|.*\.(?:docx?|odt|pdf|tex|indd|qxd|xlsx?|pptx?)$", re.IGNORECASE)
# What pypdf lets through on files that break the format in ways it does not expect, besides its own PyPdfError.
_BREAKAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)


def read_pdf(file: SourceFile) -> Iterator[SourceDocument | SkippedSource]:
    """Extract the text of a PDF, its pages joined by an empty line. Hyphens at line ends are left as they are."""
    try:
        import pypdf  # noqa: PLC0415 - an optional extra
        from pypdf.errors import DependencyError, PyPdfError  # noqa: PLC0415
    except ImportError as err:
        raise SourceError("needs a PDF reader: pip install 'agentic-retriever[pdf]'") from err
    data = file.read()
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise SourceError("is locked by a password; save a copy without one")
        page_count = len(reader.pages)
        title = _title(reader)
    except DependencyError as err:
        raise SourceError("is encrypted; save a copy without encryption") from err
    except (PyPdfError, *_BREAKAGE) as err:
        raise SourceError(f"is no readable PDF ({type(err).__name__}); export it again") from err
    texts: list[str] = []
    for number in range(1, page_count + 1):
        page_text = _page_text(reader, number)
        if page_text is None:
            yield SkippedSource(f"{file.source}#page={number}", "the page is broken; its text is left out")
        texts.append(page_text or "")
    text, pages = _joined(texts)
    if not text.strip():
        raise SourceError("holds no text, perhaps only scanned images; run text recognition (OCR) on it first")
    yield SourceDocument(
        doc_id=file.doc_id,
        text=text,
        metadata={},
        source=file.source,
        root=file.root,
        title=title or file.title,
        kind="pdf",
        pages=pages,
    )


def _page_text(reader: PdfReader, number: int) -> str | None:
    from pypdf.errors import PyPdfError  # noqa: PLC0415 - an optional extra

    try:
        return clean_text(reader.pages[number - 1].extract_text())
    except (PyPdfError, *_BREAKAGE):
        return None


def _title(reader: PdfReader) -> str:
    title = reader.metadata.title if reader.metadata else None
    return "" if not isinstance(title, str) or _NO_TITLE.match(title) else " ".join(clean_text(title).split())


def _joined(texts: list[str]) -> tuple[str, tuple[PageSpan, ...]]:
    spans: list[PageSpan] = []
    at = 0
    for number, text in enumerate(texts, start=1):
        spans.append(PageSpan(number, at, at + len(text)))
        at += len(text) + len(_PAGE_BREAK)
    return _PAGE_BREAK.join(texts), tuple(spans)

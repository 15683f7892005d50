"""Records in BEIR form, one JSON object a line: ``_id``, ``text``, and optionally ``title`` and ``metadata``."""

from __future__ import annotations

import codecs
import json
from typing import TYPE_CHECKING, NoReturn

from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion.documents import SkippedSource, SourceDocument, clean_text, flat_metadata
from agentic_retriever.ingestion.files import too_large, unreadable
from agentic_retriever.ingestion.text_reader import decode_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentic_retriever.ingestion.files import SourceFile

_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
_OWN_FIELDS = frozenset({"_id", "id", "text", "title", "metadata"})


def read_jsonl(file: SourceFile) -> Iterator[SourceDocument | SkippedSource]:
    """Read records as they are asked for, never the whole file at once (unless it is UTF-16).

    ``doc_id`` is ``_id``, or ``id`` where there is no ``_id``. The text is the field ``text`` exactly; a record that
    has only a title takes that as its text, and one that has neither is a document without text: judgments may name
    it, so it must be known. Metadata is the object ``metadata`` and every other field (``metadata``
    wins), flattened as ``flat_metadata`` says.
    """
    if not file.size():
        raise SourceError("is empty")
    first_line: dict[str, int] = {}
    number = 0
    for number, line in _lines(file):
        doc = _read_line(line, number, file)
        first = first_line.setdefault(doc.doc_id, number) if isinstance(doc, SourceDocument) else number
        if isinstance(doc, SourceDocument) and first != number:
            doc = SkippedSource(
                f"{file.source}:{number}", f"the id {doc.doc_id[:80]!r} is that of line {first} already"
            )
        yield doc
    if not number:
        raise SourceError("holds only blank lines")


def _lines(file: SourceFile) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line that is not blank; an overlong one is cut just above the limit."""
    try:
        with file.path.open("rb") as stream:
            head = stream.read(4)
            if head.startswith(_WIDE_MARKS):
                lines: Iterator[bytes] = iter(decode_bytes(file.read()).encode().split(b"\n"))
            else:
                stream.seek(len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0)
                lines = iter(lambda: stream.readline(file.max_bytes + 1), b"")
            number, inside = 1, False
            for line in lines:
                if not inside and line.strip():
                    yield number, line
                inside = len(line) > file.max_bytes and not line.endswith(b"\n")
                number += not inside
    except OSError as err:
        raise unreadable(err) from err


def _read_line(line: bytes, number: int, file: SourceFile) -> SourceDocument | SkippedSource:
    try:
        return _document(_record(line, file.max_bytes), file)
    except SourceError as err:
        return SkippedSource(f"{file.source}:{number}", str(err))


def _record(line: bytes, max_bytes: int) -> Mapping[str, object]:
    if len(line) > max_bytes:
        raise too_large(max_bytes)
    if b"\0" in line:
        raise SourceError("the line is binary, not text (it holds NUL bytes)")
    try:
        record = json.loads(line.decode(), parse_constant=_refuse)
    except UnicodeDecodeError as err:
        raise SourceError("the line is not UTF-8; save the file as UTF-8") from err
    except (ValueError, RecursionError) as err:
        raise SourceError(f"the line is not valid JSON: {str(err)[:120]}") from err
    if not isinstance(record, dict):
        raise SourceError(f"the line holds a JSON {type(record).__name__}, not an object with _id and text")
    return record


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _document(record: Mapping[str, object], file: SourceFile) -> SourceDocument:
    doc_id = _doc_id(record)
    title, text = _string(record, "title"), _string(record, "text")
    if not text.strip():
        text = title if title.strip() else ""
    given = record.get("metadata")
    if given is not None and not isinstance(given, dict):
        raise SourceError(f"metadata of the record {doc_id[:80]!r} is a {type(given).__name__}, not an object")
    fields = {key: value for key, value in record.items() if key not in _OWN_FIELDS}
    metadata = flat_metadata({**fields, **(given or {})}, doc_id=doc_id)
    named = metadata.get("title")
    return SourceDocument(
        doc_id=doc_id,
        text=text,
        metadata=metadata,
        source=file.source,
        root=file.root,
        title=title or (named if isinstance(named, str) else ""),
        kind="jsonl",
    )


def _doc_id(record: Mapping[str, object]) -> str:
    value = record.get("id") if record.get("_id") is None else record["_id"]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not str(value).strip():
        raise SourceError("the record has no _id; give it a string or a number")
    return clean_text(str(value))


def _string(record: Mapping[str, object], field: str) -> str:
    value = record.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise SourceError(f"the field {field!r} is a {type(value).__name__}, not a string")
    return clean_text(value)

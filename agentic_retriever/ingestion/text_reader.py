"""Markdown and plain text files."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion.documents import SourceDocument, flat_metadata
from agentic_retriever.ingestion.structure import scan_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentic_retriever.ingestion.files import SourceFile


# Bytes of a text file to characters.

# UTF-32 first: its little-endian mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_MAX_NON_ASCII = 0.3
_ADVICE = "save it as UTF-8"


def decode_text(data: bytes) -> str:
    r"""Decode a text file.

    UTF-8 (its byte-order mark removed), UTF-16 and UTF-32 with a byte-order mark, and as the last resort Windows-1252
    when the result looks like Western text. Line ends become ``\n``; nothing else changes.
    """
    text = decode_bytes(data)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def decode_bytes(data: bytes) -> str:
    """Decode as ``decode_text`` does, with line ends left as they are."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                text = data[len(mark) :].decode(encoding)
            except UnicodeDecodeError as err:
                raise SourceError(f"begins as {encoding.upper()} but is not valid in it; {_ADVICE}") from err
            break
    else:
        text = _decode_unmarked(data)
    if "\0" in text:
        raise SourceError("is binary, not text (it holds NUL bytes)")
    return text


def _decode_unmarked(data: bytes) -> str:
    if b"\0" in data:
        raise SourceError("is binary, not text (it holds NUL bytes)")
    try:
        return data.decode()
    except UnicodeDecodeError:
        pass
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError as err:
        raise SourceError(f"is neither UTF-8 nor Windows-1252 text; {_ADVICE}") from err
    # Thai, Cyrillic or Chinese legacy encodings decode to a string of accented letters: better refused than indexed.
    if _CONTROL.search(text) or sum(char > "\x7f" for char in text) > _MAX_NON_ASCII * len(text):
        raise SourceError(f"is not UTF-8, and does not look like Windows-1252 text; {_ADVICE}")
    return text


# YAML front matter of Markdown files: the simple ``key: value`` form that people write.

_BLOCK = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(r"([^\s:#\-\[\]{}][^:\n]*?)[ \t]*:(?:[ \t]+(.*))?$")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"[-+]?\d{1,30}\.\d{1,30}(?:[eE][-+]?\d{1,3})?")
_LIST_ITEM = re.compile(r"\s*(\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'|[^,\s\"'][^,]*)")
_ESCAPES = {"n": "\n", "t": "\t"}
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}
_LOOK_AHEAD = 65_536


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """Front matter that was found at the beginning of a text."""

    values: Mapping[str, object]  # Key to string, number, boolean, None or list of those
    end: int  # Where the body begins, in characters


def parse_front_matter(text: str) -> FrontMatter | None:
    """Read the front matter between ``---`` lines at the very beginning of a text.

    Understood are ``key: value`` with plain or quoted scalars, lists in brackets or as ``- item`` lines, and comments.
    The lines below a key that hold anything else (nested mappings, block scalars) become one string, so nothing is
    lost. Dates stay strings. No part of YAML that runs code or multiplies text is implemented.
    """
    found = _BLOCK.match(text, 0, _LOOK_AHEAD) if text.startswith("---") else None
    if found is None:
        return None
    lines = [line for line in found[1].split("\n") if line.strip() and not line.lstrip().startswith("#")]
    if not lines or not _ENTRY.match(lines[0]):
        return None
    values: dict[str, object] = {}
    key, inline, below = "", "", list[str]()
    for line in lines:
        entry = _ENTRY.match(line)
        if entry is None:
            below.append(line)
            continue
        if key:
            values[key] = _value(inline, below)
        key, inline, below = _unquote(entry[1]), (entry[2] or "").strip(), []
    values[key] = _value(inline, below)
    return FrontMatter(values, found.end())


def _value(inline: str, below: list[str]) -> object:
    if not below:
        return _inline(inline)
    items = [line.strip() for line in below]
    if not inline and all(item == "-" or item.startswith("- ") for item in items):
        return [_scalar(item[1:].strip()) for item in items]
    lead = "" if inline in {"|", ">", "|-", ">-", "|+", ">+"} else inline
    return "\n".join(part for part in (lead, *items) if part)


def _inline(value: str) -> object:
    if value.startswith("[") and value.endswith("]"):
        return [_scalar(item.strip()) for item in _LIST_ITEM.findall(value[1:-1]) if item.strip()]
    return _scalar(value)


def _scalar(value: str) -> object:
    if value[:1] in {'"', "'"}:
        return _unquote(value)
    value = re.split(r"\s#", value, maxsplit=1)[0].rstrip()
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if _INTEGER.fullmatch(value):
        return int(value)
    return float(value) if _DECIMAL.fullmatch(value) else value


def _unquote(value: str) -> str:
    quote = value[:1]
    closing = value.rfind(quote) if quote in {'"', "'"} else 0
    if closing <= 0:
        return value
    inner = value[1:closing]
    if quote == "'":
        return inner.replace("''", "'")
    return re.sub(r"\\(.)", lambda hit: _ESCAPES.get(hit[1], hit[1]), inner)


_TOP_HEADING_WITHIN = 20_000
_VISIBLE = re.compile(r"\S")


def read_markdown(file: SourceFile) -> Iterator[SourceDocument]:
    """Read a Markdown file; its front matter becomes metadata and stays in the text, where offsets count it."""
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
    """Read a text file."""
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

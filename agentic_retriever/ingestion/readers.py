"""Files and folders to source documents. A file that cannot be read is reported and left out, the rest goes on."""

import codecs
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString, PreformattedString
from bs4.exceptions import ParserRejectedMarkup

from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion import documents
from agentic_retriever.ingestion.pdf import read_pdf
from agentic_retriever.ingestion.structure import scan_blocks

# HTML to text with Markdown-like structure, by BeautifulSoup.

_CHARSET = re.compile(rb"<(?:meta|\?xml)[^>]{0,300}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]{2,40})", re.IGNORECASE)
_CHARSET_WITHIN = 4096
_DROPPED = ["head", "script", "style", "nav", "noscript", "template", "svg", "iframe", "object", "select", "button"]
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_CONTAINERS = frozenset({"article", "aside", "body", "center", "details", "div", "footer", "form", "header", "main"})
_PARTS = frozenset({"address", "blockquote", "dialog", "fieldset", "figcaption", "figure", "hr", "p", "section"})
_LISTS = frozenset({"dd", "dl", "dt", "legend", "ol", "summary", "ul"})
_TABLES = frozenset({"caption", "table", "tbody", "td", "tfoot", "th", "thead", "tr"})
_BLOCKS = _CONTAINERS | _PARTS | _LISTS | _TABLES
_FENCE = "```"
_MAX_INDENT = 20  # lists in lists; without an end, the text grows with the square of them


def html_to_text(data: bytes) -> tuple[str, str]:
    """Return title and text of a page.

    Scripts, styles, navigation, form controls and hidden elements are removed. Headings become ``#`` lines, list items
    ``- `` lines, tables ``| a | b |`` rows, ``pre`` a fenced block; other block elements are parted by an empty
    line. Tables of one column, and tables around other tables, are page layout and become plain blocks.
    """
    try:
        soup = BeautifulSoup(_decoded_html(data), "lxml")  # Python's own parser may take quadratic time
    except (ParserRejectedMarkup, RecursionError) as err:
        raise SourceError("is HTML that cannot be parsed; save it again from a browser") from err
    headings = soup.find_all("h1", limit=2)
    candidates = [headings[0]] if len(headings) == 1 else []
    if soup.title is not None:
        candidates.append(soup.title)
    titles = (" ".join(tag.get_text(" ").split()) for tag in candidates)
    title = documents.clean_text(next((title for title in titles if title), ""))
    kept: list[Tag] = [soup]
    for tag in kept:  # grows meanwhile; what stands in something dropped is not looked at
        for child in [one for one in tag.contents if isinstance(one, Tag)]:
            if child.name in _DROPPED or child.has_attr("hidden"):
                child.extract()
            else:
                kept.append(child)
    text = documents.clean_text(_Writer(kept).write(soup))
    if not text.strip():
        raise SourceError("holds no text")
    return title, text


def _decoded_html(data: bytes) -> str:
    """Decode as the page says, when it is not UTF-8 anyway."""
    declared = _CHARSET.search(data[:_CHARSET_WITHIN])
    if declared and not data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        for encoding in ("utf-8", declared[1].decode("ascii")):
            try:
                text = data.decode(encoding)
            except (UnicodeError, LookupError):
                continue
            if "\0" not in text:
                return text
    return documents.decode_text(data)


class _Writer:
    """Collects text and block breaks while walking over the elements, without recursion."""

    def __init__(self, tags: Sequence[Tag]) -> None:
        tables = [tag for tag in tags if tag.name == "table"]
        outer = {id(table.find_parent("table")) for table in tables}
        self._data = {id(table) for table in tables if id(table) not in outer and _has_columns(table)}
        self._blocks: list[str] = []
        self._line: list[str] = []
        self._prefix = ""
        self._tight = False

    def write(self, root: Tag) -> str:
        stack: list[object] = [root]
        depth = 0
        while stack:
            item = stack.pop()
            if type(item) is str:  # the name of a block element, where it ends
                depth -= item == "li"
                self._end_block(tight=item == "li")
            elif isinstance(item, Tag):
                depth += self._open(item, depth)
                if item.name != "pre" and id(item) not in self._data:
                    if item.name in {*_BLOCKS, *_HEADINGS, "li"}:
                        stack.append(item.name)
                    stack.extend(reversed(item.contents))
            elif isinstance(item, NavigableString) and not isinstance(item, PreformattedString):
                self._line.append(str(item))
        self._end_block()
        return "".join(self._blocks).strip("\n")

    def _open(self, tag: Tag, depth: int) -> int:
        """Write what a tag begins with, and all of it for ``pre`` and data tables; return 1 for a list item."""
        name = tag.name
        if name == "br":
            self._line.append("\0")
        elif name in _HEADINGS:
            self._end_block()
            self._prefix = "#" * _HEADINGS[name] + " "
        elif name == "li":
            self._end_block(tight=True)
            self._prefix = "  " * min(depth, _MAX_INDENT) + "- "
            return 1
        elif name == "pre":
            self._raw(f"{_FENCE}\n{tag.get_text().strip(chr(10))}\n{_FENCE}")
        elif id(tag) in self._data:
            self._raw(_rows(tag))
        elif name in _BLOCKS:
            self._end_block(tight=bool(self._prefix))
        return 0

    def _raw(self, block: str) -> None:
        self._end_block()
        if block.strip():
            self._append(block, tight=False)

    def _end_block(self, *, tight: bool = False) -> None:
        lines = [" ".join(line.split()) for line in "".join(self._line).split("\0")]
        text = (" " if self._prefix.startswith("#") else "\n").join(line for line in lines if line)
        self._line = []
        if text:
            self._append(self._prefix + text, tight=tight and self._prefix.lstrip().startswith("-"))
            self._prefix = ""
        elif not tight:
            self._prefix = ""

    def _append(self, block: str, *, tight: bool) -> None:
        """Add a block; neighbouring list items stand on neighbouring lines."""
        if self._blocks:
            self._blocks.append("\n" if tight and self._tight else "\n\n")
        self._blocks.append(block)
        self._tight = tight


def _has_columns(table: Tag) -> bool:
    return any(len(row.find_all(["td", "th"], limit=2)) > 1 for row in table.find_all("tr"))


def _rows(table: Tag) -> str:
    caption = table.find("caption")
    lines = [" ".join(caption.get_text(" ").split()), ""] if isinstance(caption, Tag) else []
    for row in table.find_all("tr"):
        cells = [" ".join(cell.get_text(" ").split()).replace("|", "\\|") for cell in row.find_all(["td", "th"])]
        if any(cells):
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).strip("\n")


# Markdown, plain text and HTML

_TOP_HEADING_WITHIN = 20_000


def _read_markdown(file: documents.SourceFile) -> Iterator[documents.SourceDocument]:
    """Read a Markdown file; its front matter becomes metadata and stays in the text, where offsets count it."""
    text = _decoded(file)
    front = documents.parse_front_matter(text)
    metadata, body_start = (documents.flat_metadata(front.values, doc_id=file.doc_id), front.end) if front else ({}, 0)
    if not text[body_start:].strip():
        raise SourceError("has front matter but no text")
    given = metadata.get("title")
    if not isinstance(given, (str, int, float)):
        blocks = scan_blocks(text[: body_start + _TOP_HEADING_WITHIN], start=body_start)
        found = (block.heading for block in blocks if block.heading is not None)
        given = next((head.title for head in found if head.origin == "markdown" and head.level == 1), "")
    yield replace(file.document(text, kind="md", title=str(given)), metadata=metadata)


def _decoded(file: documents.SourceFile) -> str:
    text = documents.decode_text(file.read())
    if not text.strip():
        raise SourceError("holds only white space")
    return text


def _read_html(file: documents.SourceFile) -> Iterator[documents.SourceDocument]:
    title, text = html_to_text(file.read())
    yield file.document(text, kind="html", title=title)


# Records in BEIR form, one JSON object a line: ``_id``, ``text``, and optionally ``title`` and ``metadata``

_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
_OWN_FIELDS = frozenset({"_id", "id", "text", "title", "metadata"})


def _read_jsonl(file: documents.SourceFile) -> Iterator[documents.SourceDocument | documents.SkippedSource]:
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
    for number, line in json_lines(file):
        try:
            doc = _record_document(json_record(line, file.max_bytes), file)
        except SourceError as err:
            yield documents.SkippedSource(f"{file.source}:{number}", str(err))
            continue
        first = first_line.setdefault(doc.doc_id, number)
        said = f"the id {doc.doc_id[:80]!r} is that of line {first} already"
        yield doc if first == number else documents.SkippedSource(f"{file.source}:{number}", said)
    if not number:
        raise SourceError("holds only blank lines")


def json_lines(file: documents.SourceFile) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line that is not blank; an overlong one is cut just above the limit."""
    try:
        with file.path.open("rb") as stream:
            head = stream.read(4)
            if head.startswith(_WIDE_MARKS):
                lines: Iterator[bytes] = iter(documents.decode_bytes(file.read()).encode().split(b"\n"))
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
        raise documents.unreadable(err) from err


def json_record(line: bytes, max_bytes: int) -> Mapping[str, object]:
    if len(line) > max_bytes:
        raise documents.too_large(max_bytes)
    if b"\0" in line:
        raise SourceError("the line is binary, not text (it holds NUL bytes)")
    try:
        record = json.loads(line.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as err:
        raise SourceError("the line is not UTF-8; save the file as UTF-8") from err
    except (ValueError, RecursionError) as err:
        raise SourceError(f"the line is not valid JSON: {str(err)[:120]}") from err
    if not isinstance(record, dict):
        raise SourceError(f"the line holds a JSON {type(record).__name__}, not an object")
    return record


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _record_document(record: Mapping[str, object], file: documents.SourceFile) -> documents.SourceDocument:
    given_id = record.get("id") if record.get("_id") is None else record["_id"]
    if isinstance(given_id, bool) or not isinstance(given_id, (str, int, float)) or not str(given_id).strip():
        raise SourceError("the record has no _id; give it a string or a number")
    doc_id = documents.clean_text(str(given_id))
    title, text = _string(record, "title"), _string(record, "text")
    if not text.strip():
        text = title if title.strip() else ""
    given = record.get("metadata")
    if given is not None and not isinstance(given, dict):
        raise SourceError(f"metadata of the record {doc_id[:80]!r} is a {type(given).__name__}, not an object")
    fields = {key: value for key, value in record.items() if key not in _OWN_FIELDS}
    metadata = documents.flat_metadata({**fields, **(given or {})}, doc_id=doc_id)
    named = metadata.get("title")
    title = title or (named if isinstance(named, str) else "")
    return documents.SourceDocument(
        doc_id=doc_id, text=text, metadata=metadata, source=file.source, root=file.root, title=title, kind="jsonl"
    )


def _string(record: Mapping[str, object], field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str | None):
        raise SourceError(f"the field {field!r} is a {type(value).__name__}, not a string")
    return documents.clean_text(value or "")


# Which reader reads what

_READERS: dict[str, Callable[[documents.SourceFile], Iterator[documents.SourceDocument | documents.SkippedSource]]] = {
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".txt": lambda file: iter([file.document(_decoded(file), kind="txt")]),
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": read_pdf,
    ".jsonl": _read_jsonl,
}
SUPPORTED_SUFFIXES: tuple[str, ...] = tuple(_READERS)  # in lower case; upper case counts the same


def discover(path: Path, *, follow_links: bool = False) -> list[Path]:
    """List the files to read below a path.

    A folder is walked to the bottom. Hidden files and folders and files of other kinds are passed over; each folder is
    visited once, so links in a circle end. A folder inside that cannot be listed, or whose link leads out and is not to
    be followed, is in the result itself, so that ``read_source`` reports it. A file is returned whatever its suffix.
    """
    path = Path(path)
    try:
        if not path.is_dir():
            path.stat()
            return [path]
        with os.scandir(path):
            pass
    except OSError as err:
        raise SourceError(f"{path} {documents.unreadable(err)}") from err
    found: list[Path] = []
    refused: list[OSError] = []
    visited: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(path, onerror=refused.append, followlinks=True):
        here = Path(folder)
        status = here.stat()
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        shown = sorted(here / name for name in folders if not name.startswith("."))
        left = [] if follow_links else [one for one in shown if _leads_out(one, path)]
        found.extend(left)
        folders[:] = [one.name for one in shown if one not in left]
        files = (here / name for name in names if not name.startswith("."))
        found.extend(file for file in files if file.suffix.lower() in SUPPORTED_SUFFIXES)
    found.extend(Path(error.filename) for error in refused)
    return sorted(found)


def _leads_out(path: Path, root: Path) -> bool:
    return not path.resolve().is_relative_to(root.resolve())


def read_source(
    path: Path, *, root: Path, max_bytes: int = documents.MAX_SOURCE_BYTES, follow_links: bool = False
) -> Iterator[documents.SourceDocument | documents.SkippedSource]:
    file = documents.locate(Path(path), root=Path(root), max_bytes=max_bytes)
    reader = _READERS.get(file.path.suffix.lower())
    if not follow_links and _leads_out(file.path, Path(root)):
        yield documents.SkippedSource(file.source, "is a link that leads out of the folder; allow it with follow_links")
    elif file.path.is_dir():
        yield documents.SkippedSource(file.source, "is a folder that cannot be listed; check its permissions")
    elif reader is None:
        allowed = ", ".join(SUPPORTED_SUFFIXES)
        yield documents.SkippedSource(file.source, f"is of no kind that can be read; allowed are {allowed}")
    else:
        try:
            yield from reader(file)
        except SourceError as err:
            yield documents.SkippedSource(file.source, str(err))

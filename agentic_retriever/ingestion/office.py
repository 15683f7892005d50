"""Office documents, books, tables and mail to Markdown: mammoth, python-pptx and openpyxl, else the standard library.

markitdown stands on the same three, and brings pandas, onnxruntime and magika besides: 170 MB.
"""

import csv
import io
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from email import message_from_bytes
from email.header import decode_header, make_header
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import unquote

from lxml import etree

from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion import documents
from agentic_retriever.ingestion.html import html_to_text

_Pieces = Iterator[str | dict[str, str] | tuple[str]]  # blocks of Markdown; properties; names of what is attached

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_MEDIA = (".png", ".jpg", ".jpeg", ".gif", ".emf", ".wmf", ".svg", ".mp3", ".mp4", ".m4a", ".wav", ".ttf", ".otf")
_MEDIA_SHARE = 4  # times max_bytes: python-pptx holds them all in memory
_DOCX_SHARE = 0.2  # of max_bytes: mammoth takes about 2.5 s and 30 MB for each MB of XML
_PROPERTIES = {"title": "title", "creator": "author", "created": "created", "modified": "modified", "date": "created"}
_AS_HTML = {"p": "p", "list": "ul", "list-item": "li", "table": "table", "table-row": "tr", "table-cell": "td"}
_CONTAINER = "META-INF/container.xml"
_UNSAID = frozenset({"annotation", "note-citation", "page-number", "table-of-content", "tracked-changes"})
_MAX_CELL = 32_767  # as in Excel: a million cells may share one string
_MAX_COLUMNS = 16_384
_NAMESPACED = "{*}"


def read_office(file: documents.SourceFile) -> Iterator[documents.SourceDocument | documents.SkippedSource]:
    """Read a file of a kind in ``CONVERTERS``; its text may become no longer than a file may be large."""
    suffix = file.suffix
    try:
        written, properties, attached = _collected(CONVERTERS[suffix](file.read(), file.max_bytes), file.max_bytes)
    except SourceError:
        raise
    except ImportError as err:
        raise SourceError("needs readers of office files: pip install 'agentic-retriever[office]'") from err
    except Exception as err:  # what these raise on broken files has no bounds; it costs this file only
        raise SourceError(f"is no readable {suffix} file ({type(err).__name__}); save it again") from err
    text = documents.clean_text(written).strip("\n")
    if not text.strip():
        raise SourceError("holds no text")
    metadata = {name: documents.clean_text(" ".join(value.split())) for name, value in properties.items() if value}
    yield replace(file.document(text, kind=suffix[1:], title=metadata.get("title", "")), metadata=metadata)
    reason = "is attached to a mail; save it as a file to have it read"
    yield from (documents.SkippedSource(f"{file.source}#{name}", reason) for name in attached)


def _collected(pieces: _Pieces, max_bytes: int) -> tuple[str, dict[str, str], list[str]]:
    blocks: list[str] = []
    properties: dict[str, str] = {}
    attached: list[str] = []
    size = 0
    for piece in pieces:
        if isinstance(piece, dict):
            properties |= piece
        elif isinstance(piece, tuple):
            attached += piece
        else:
            blocks.append(piece)
            size += len(piece)
        if size > max_bytes:
            raise documents.too_large(max_bytes)
    return "".join(blocks), properties, attached


def _opened(data: bytes, max_bytes: float) -> zipfile.ZipFile:
    """Open a zip file that does not claim to unpack to too much; Python's reader holds each entry to its claim."""
    if data.startswith(_OLE):
        raise SourceError("is locked by a password, or of a kind before 2007; save a copy without one, of today's kind")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile as err:
        raise SourceError("does not hold what its suffix says, or is cut off; save it again") from err
    sizes = [(entry.file_size, entry.filename.lower().endswith(_MEDIA)) for entry in archive.infolist()]
    parsed, whole = sum(size for size, media in sizes if not media), sum(size for size, _ in sizes)
    if parsed > max_bytes or whole > _MEDIA_SHARE * max_bytes:
        raise SourceError(f"unpacks to more than {max_bytes / 1e6:,g} MB; split it or raise max_file_mb")
    return archive


def _parsed(data: bytes) -> Any:  # noqa: ANN401 - lxml comes without types
    return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True))


def _properties(root: Any) -> dict[str, str]:  # noqa: ANN401 - lxml comes without types
    found = ((_PROPERTIES.get(etree.QName(one).localname), one.text or "") for one in root.iter(_NAMESPACED + "*"))
    return {name: text for name, text in reversed(list(found)) if name is not None and text.strip()}


def _core_properties(archive: zipfile.ZipFile, part: str = "docProps/core.xml") -> dict[str, str]:
    with suppress(KeyError):  # the date of OpenDocument is that of the last change
        return _properties(_parsed(archive.read(part).replace(b"dc:date>", b"dc:modified>")))
    return {}


def _table(rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Write rows as a Markdown table, the first as its head; empty rows, and missing cells at the end, are left out."""
    width = 0
    for row in rows:
        end = next((at for at in range(len(row), 0, -1) if row[at - 1] is not None), 0)
        cells = [_cell(value) for value in row[:end]]
        if any(cells):
            yield f"| {' | '.join(cells + [''] * (width - len(cells)))} |\n"
            if not width:
                width = len(cells)
                yield f"|{' --- |' * width}\n"


def _cell(value: object) -> str:
    written = "" if value is None else f"{value:.15g}" if isinstance(value, float) else str(value)
    if isinstance(value, datetime):
        written = written.removesuffix(" 00:00:00")
    return " ".join(written.split()).replace("|", "\\|")


def _sheet(title: str, rows: Iterable[Sequence[object]]) -> Iterator[str]:
    for at, line in enumerate(_table(rows)):
        yield line if at else f"\n\n## {title}\n\n{line}"


def _from_docx(data: bytes, max_bytes: int) -> _Pieces:
    archive = _opened(data, max_bytes * _DOCX_SHARE)
    import mammoth  # noqa: PLC0415 - an optional extra

    no_images = mammoth.images.img_element(lambda _: {})
    styles = "p[style-name='Title'] => h1:fresh"
    found = mammoth.convert_to_html(io.BytesIO(data), style_map=styles, convert_image=no_images)
    title, text = html_to_text(found.value.encode())
    yield {"title": title} | _core_properties(archive)
    yield text


def _from_pptx(data: bytes, max_bytes: int) -> _Pieces:
    archive = _opened(data, max_bytes)
    from pptx import Presentation  # noqa: PLC0415 - an optional extra

    yield _core_properties(archive)
    for number, slide in enumerate(Presentation(io.BytesIO(data)).slides, start=1):
        head = slide.shapes.title
        named = " ".join(head.text_frame.text.split()) if head is not None else ""
        yield f"\n\n## {named or f'Slide {number}'}\n\n"
        shapes: list[Any] = [one for one in slide.shapes if head is None or one.shape_id != head.shape_id]
        for shape in shapes:  # grows by what stands in groups
            if hasattr(shape, "shapes"):
                shapes.extend(shape.shapes)
            elif getattr(shape, "has_table", False):
                yield "\n"
                yield from _table([cell.text for cell in row.cells] for row in shape.table.rows)
            elif shape.has_text_frame:
                lines = [(one.level, " ".join(one.text.split())) for one in shape.text_frame.paragraphs]
                yield "\n" + "".join(f"{'  ' * level}- {text}\n" for level, text in lines if text)
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            yield f"\n{slide.notes_slide.notes_text_frame.text}\n"


def _from_xlsx(data: bytes, max_bytes: int) -> _Pieces:
    archive = _opened(data, max_bytes)
    import openpyxl  # noqa: PLC0415 - an optional extra

    yield _core_properties(archive)
    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # what the file claims may be a million rows too many
        rows = ([one[:_MAX_CELL] if isinstance(one, str) else one for one in row] for row in sheet.values)
        yield from _sheet(sheet.title, rows)


def _from_opendocument(data: bytes, max_bytes: int) -> _Pieces:
    """Give the elements of a text or of slides the names of HTML's, and write sheets as tables."""
    archive = _opened(data, max_bytes)
    if b"encryption-data" in archive.read("META-INF/manifest.xml"):
        raise SourceError("is locked by a password; save a copy without one")
    yield _core_properties(archive, "meta.xml")
    root = _parsed(archive.read("content.xml"))
    body = root.find(f"{_NAMESPACED}body")
    if body.find(f"{_NAMESPACED}spreadsheet") is not None:
        for sheet in body.iter(f"{_NAMESPACED}table"):
            rows = map(_odf_cells, sheet.iter(f"{_NAMESPACED}table-row"))
            yield from _sheet(_attributes(sheet).get("name", ""), rows)
        return
    styles = map(_attributes, root.iter(f"{_NAMESPACED}style"))
    titles = {"Title", "title", *(one["name"] for one in styles if one.get("parent-style-name") == "Title")}
    for element in reversed(list(body.iter(f"{_NAMESPACED}*"))):  # what stands in an element before it
        _name_as_in_html(element, titles)
    yield html_to_text(etree.tostring(body, encoding="utf-8"))[1]


def _name_as_in_html(element: Any, titles: set[str]) -> None:  # noqa: ANN401 - lxml comes without types
    name, has = etree.QName(element).localname, _attributes(element)
    element.attrib.clear()
    element.tag = _AS_HTML.get(name, "span")
    if name == "h" or titles & {has.get("style-name"), has.get("class")}:
        element.tag = f"h{min(int(has.get('outline-level', 1 + (name == 'frame'))), 6)}"
    if name in _UNSAID:
        element[:], element.text = [], ""
    elif name in {"s", "tab", "line-break"}:
        element.text = " "
    elif name == "note-body" or element.tag[0] == "h":
        written = " ".join("".join(element.itertext()).split())
        element[:], element.text = [], f" ({written})" if name == "note-body" else written


def _attributes(element: Any) -> dict[str, str]:  # noqa: ANN401 - lxml comes without types
    return {etree.QName(name).localname: value for name, value in element.attrib.items()}


def _odf_cells(row: Any) -> list[str | None]:  # noqa: ANN401 - lxml comes without types
    cells: list[str | None] = []
    for cell in row.iterchildren(f"{_NAMESPACED}table-cell", f"{_NAMESPACED}covered-table-cell"):
        shown = " ".join("".join(one.itertext()) for one in cell.iterchildren(f"{_NAMESPACED}p"))
        times = min(int(_attributes(cell).get("number-columns-repeated", 1)), _MAX_COLUMNS - len(cells))
        cells += [shown[:_MAX_CELL] or None] * times
    return cells


def _from_epub(data: bytes, max_bytes: int) -> _Pieces:
    archive = _opened(data, max_bytes)
    if any(name.endswith("META-INF/rights.xml") for name in archive.namelist()):
        raise SourceError("is protected against copying, so it cannot be read")
    first = next((name for name in archive.namelist() if name.endswith(_CONTAINER)), _CONTAINER)  # or in a folder
    found = _parsed(archive.read(first)).find(f".//{_NAMESPACED}rootfile")
    place = first.removesuffix(_CONTAINER) + found.get("full-path")
    package = _parsed(archive.read(place))
    yield _properties(package.find(f"{_NAMESPACED}metadata"))
    items = {item.get("id"): item for item in package.iter(f"{_NAMESPACED}item")}
    order = [items[one.get("idref")] for one in package.iter(f"{_NAMESPACED}itemref")]
    pages = [one.get("href").partition("#")[0] for one in order if "nav" not in (one.get("properties") or "").split()]
    for page in dict.fromkeys(pages):  # some books list each section of a page
        with suppress(SourceError):  # a page that holds pictures only
            href = posixpath.normpath(posixpath.join(posixpath.dirname(place), unquote(page)))
            yield f"\n\n{html_to_text(archive.read(href))[1]}"


# Lines before a table that are no part of it; a number sign that fills a cell is.
_REMARKS: Final = re.compile(r"(?:#(?![,;|\t]\S).*\n+)+")


def _from_csv(data: bytes, _max_bytes: int) -> _Pieces:
    """What stands behind ``#`` before the rows is text; the last of it is their head where it has no fewer cells."""
    text = documents.decode_text(data).lstrip("\n")
    remarks = found[0] if (found := _REMARKS.match(text)) else ""
    lines, text = [line for line in remarks.splitlines() if line.strip()], text[len(remarks) :]
    rows = [row for row in text[:_MAX_CELL].splitlines() if row.strip()]
    first = rows[0] if rows else ""
    mark = max("\t;,|" if "\t" in first else ";,|", key=first.count)
    if lines and _is_head(lines[-1], rows, mark):
        text = f"{lines.pop().lstrip('# ')}\n{text}"
    yield "".join(f"{line.strip('# ')}\n" for line in [*lines, ""] if lines)
    yield from _table(csv.reader(io.StringIO(text), delimiter=mark))


def _is_head(remark: str, rows: Sequence[str], mark: str) -> bool:
    """Tell whether a remark has no fewer cells than the longest row, and is no sentence with commas."""
    cells = max(map(len, csv.reader(rows, delimiter=mark)), default=0)
    has_cells = 1 < cells <= len(next(csv.reader([remark], delimiter=mark)))
    return has_cells and (f"{mark} " in rows[0] or f"{mark} " not in remark)


def _from_eml(data: bytes, _max_bytes: int) -> _Pieces:
    mail = message_from_bytes(data)
    heads = {name: str(make_header(decode_header(str(mail[name] or "")))) for name in ("Subject", "From", "To", "Date")}
    if not any(heads.values()):
        raise SourceError("does not hold what its suffix says: it has no head of a mail")
    with suppress(ValueError):
        heads["Date"] = parsedate_to_datetime(heads["Date"]).isoformat()
    yield {"title": heads["Subject"], "author": heads["From"], "to": heads["To"], "created": heads["Date"]}
    yield f"# {' '.join(heads['Subject'].split()) or 'Mail'}\n\n"
    told = ((name, " ".join(value.split())) for name, value in heads.items() if name != "Subject" and value)
    yield "".join(f"{name}: {value}\n" for name, value in told)
    parts = [part for part in mail.walk() if not part.is_multipart()]
    attached = [(part.get_content_maintype(), name) for part in parts if (name := part.get_filename())]
    bodies = [part for part in parts if not part.get_filename()]
    plain = [part for part in bodies if part.get_content_type() == "text/plain"]
    for part in plain or [part for part in bodies if part.get_content_type() == "text/html"]:
        yield f"\n{_body(part)}\n"
    yield "".join(f"\nAttached, not read: {name}\n" for _, name in attached)
    yield from ((documents.clean_text(name),) for kind, name in attached if kind not in {"image", "audio", "video"})


def _body(part: Message) -> str:
    data = part.get_payload(decode=True)
    content = data if isinstance(data, bytes) else b""
    if part.get_content_type() == "text/html":
        return html_to_text(content)[1]
    with suppress(LookupError, UnicodeDecodeError):
        return content.decode(part.get_content_charset() or "utf-8").replace("\r\n", "\n")
    return documents.decode_text(content)


CONVERTERS: dict[str, Callable[[bytes, int], _Pieces]] = {
    ".docx": _from_docx,
    ".pptx": _from_pptx,
    ".xlsx": _from_xlsx,
    **dict.fromkeys((".odt", ".ods", ".odp"), _from_opendocument),
    ".epub": _from_epub,
    ".csv": _from_csv,
    ".tsv": _from_csv,
    ".eml": _from_eml,
}

"""HTML to text with Markdown-like structure, by BeautifulSoup."""

import codecs
import re
from typing import NamedTuple

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString, PreformattedString
from bs4.exceptions import ParserRejectedMarkup

from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion.documents import clean_text
from agentic_retriever.ingestion.files import decode_text

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


def html_to_text(data: bytes) -> tuple[str, str]:
    """Return title and text of a page.

    Scripts, styles, navigation, form controls and hidden elements are removed. Headings become ``#`` lines, list items
    ``- `` lines, tables ``| a | b |`` rows, ``pre`` a fenced block; other block elements are parted by an empty
    line. Tables of one column, and tables around other tables, are page layout and become plain blocks.
    """
    try:
        soup = BeautifulSoup(_decoded(data), "html.parser")
    except (ParserRejectedMarkup, RecursionError) as err:
        raise SourceError("is HTML that cannot be parsed; save it again from a browser") from err
    title = _title(soup)
    for tag in [*soup.find_all(_DROPPED), *soup.find_all(hidden=True)]:
        tag.extract()
    text = clean_text(_Writer().write(soup))
    if not text.strip():
        raise SourceError("holds no text")
    return title, text


def _decoded(data: bytes) -> str:
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
    return decode_text(data)


def _title(soup: BeautifulSoup) -> str:
    headings = soup.find_all("h1", limit=2)
    candidates = [headings[0]] if len(headings) == 1 else []
    if soup.title is not None:
        candidates.append(soup.title)
    titles = (" ".join(tag.get_text(" ").split()) for tag in candidates)
    return clean_text(next((title for title in titles if title), ""))


class _End(NamedTuple):
    """The end of a block element, on the stack below its children."""

    name: str


class _Writer:
    """Collects text and block breaks while walking over the elements, without recursion."""

    def __init__(self) -> None:
        self._blocks: list[str] = []
        self._line: list[str] = []
        self._prefix = ""
        self._tight = False

    def write(self, root: Tag) -> str:
        stack: list[object] = [root]
        depth = 0
        while stack:
            item = stack.pop()
            if isinstance(item, _End):
                depth -= item.name == "li"
                self._end_block(tight=item.name == "li")
                continue
            if isinstance(item, Tag):
                depth += self._open(item, depth)
                stack.extend(self._children(item))
            elif isinstance(item, NavigableString) and not isinstance(item, PreformattedString):
                self._line.append(str(item))
        self._end_block()
        return "".join(self._blocks).strip("\n")

    def _children(self, tag: Tag) -> list[object]:
        """Return what remains to be walked below a tag, last first, with the mark of its end at the bottom."""
        if tag.name == "pre" or (tag.name == "table" and _is_data(tag)):
            return []
        children: list[object] = list(reversed(tag.contents))
        return (
            [_End(tag.name), *children]
            if tag.name in _BLOCKS or tag.name in _HEADINGS or tag.name == "li"
            else children
        )

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
            self._prefix = "  " * depth + "- "
            return 1
        elif name == "pre":
            self._raw(f"{_FENCE}\n{tag.get_text().strip(chr(10))}\n{_FENCE}")
        elif name == "table" and _is_data(tag):
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


def _is_data(table: Tag) -> bool:
    if table.find("table") is not None:
        return False
    return any(len(row.find_all(["td", "th"], limit=2)) > 1 for row in table.find_all("tr"))


def _rows(table: Tag) -> str:
    caption = table.find("caption")
    lines = [" ".join(caption.get_text(" ").split()), ""] if isinstance(caption, Tag) else []
    for row in table.find_all("tr"):
        cells = [" ".join(cell.get_text(" ").split()).replace("|", "\\|") for cell in row.find_all(["td", "th"])]
        if any(cells):
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).strip("\n")

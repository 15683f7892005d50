"""HTML to text with Markdown-like structure, by BeautifulSoup."""

import codecs
import re
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString, PreformattedString
from bs4.exceptions import ParserRejectedMarkup

from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion import documents
from agentic_retriever.text.language_files import packaged_json

_CHARSET = re.compile(rb"<(?:meta|\?xml)[^>]{0,300}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]{2,40})", re.IGNORECASE)
_CHARSET_WITHIN = 4096
_XML_HEAD = re.compile(r"\A\s*<\?xml[^>]*>")  # else the parser warns that a page of XHTML is no HTML
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
# What surrounds the text of a page (``furniture``): as HTML says it, and as generators of manuals (Sphinx, DocBook,
# Texinfo, MkDocs, MediaWiki) name it. Of 60 pages of manuals trafilatura keeps 97.7 % of the words, readability 79.4 %,
# this 99.9 % (by a gold text that was cut by some of the same marks, which favours this).
_NAMES: Final = {kind: frozenset(some) for kind, some in packaged_json("ingestion/html.json").items()}
_BLOCKS: Final = _NAMES["lists"] | _NAMES["blocks"]
_FENCE = "```"
_AS_HEADING = re.compile(r"#{1,6} ")
_MIN_ENTRIES = 3
_MOST = 0.9
_MAX_TERM = 120  # characters of a term that is a heading
_MAX_INDENT = 20  # lists in lists; without an end, the text grows with the square of them


def html_to_text(data: bytes) -> tuple[str, str]:
    """Return title and text of a page: its headings, lists and tables as Markdown, without navigation and scripts."""
    try:
        # Python's own parser may take quadratic time.
        soup = BeautifulSoup(_XML_HEAD.sub("", _decoded_html(data)), "lxml")
    except (ParserRejectedMarkup, RecursionError) as err:
        raise SourceError("is HTML that cannot be parsed; save it again from a browser") from err
    candidates = [soup.title] if soup.title is not None else []
    kept: list[Tag] = [soup]
    for tag in kept:  # grows meanwhile; what stands in something dropped is not looked at
        for child in [one for one in tag.contents if isinstance(one, Tag)]:
            if child.name in _NAMES["dropped"] or child.has_attr("hidden"):
                child.extract()
            else:
                kept.append(child)
    terms = _drop_furniture(kept)
    if sum(tag.name in _HEADINGS for tag in kept) < _MIN_ENTRIES:
        _mark_headings(kept)
    headings = soup.find_all("h1", limit=2)
    candidates = [*headings[: len(headings) == 1], *candidates]
    titles = (" ".join(tag.get_text(" ").split()) for tag in candidates)
    title = documents.clean_text(next((title for title in titles if title), ""))
    text = documents.clean_text(_Writer(kept, terms).write(soup))
    if not text.strip():
        raise SourceError("holds no text")
    return title, text


class _Extent(NamedTuple):
    """What a tag holds: characters, those of them in links, links, and those of them that lead into the page."""

    chars: int
    linked: int
    links: int
    leads: int


def _drop_furniture(tags: Sequence[Tag]) -> frozenset[int]:
    """Take out what surrounds the text, never most of its words, and return the ids of terms that can be headings."""
    extents: dict[int, _Extent] = {}
    for tag in reversed(tags):  # children before their parents
        own = sum(len(one.strip()) for one in tag.contents if type(one) is NavigableString)
        inner = [extents[id(one)] for one in tag.contents if isinstance(one, Tag) and id(one) in extents]
        chars, linked, links, leads = map(sum, zip((own, 0, 0, 0), *inner, strict=True))
        if tag.name == "a":
            linked, links, leads = chars, 1, int(str(tag.get("href", "")).startswith("#"))
        extents[id(tag)] = _Extent(chars, linked, links, leads)
    whole = extents[id(tags[0])].chars
    for tag in tags[1:]:
        held = extents[id(tag)]
        marks = {str(tag.get("id", "")).lower(), *(str(one).lower() for one in tag.get_attribute_list("class"))}
        named = tag.get("role") in _NAMES["furniture_roles"] or bool(marks & _NAMES["furniture"])
        only_links = held.linked > held.chars * _MOST
        only_leads = tag.name in _NAMES["lists"] and only_links and held.links == held.leads >= _MIN_ENTRIES
        sign = tag.name == "a" and held.chars == 1 and tag.get_text().strip() in _NAMES["signs"]
        numbers = tag.name in _NAMES["around_numbers"]  # of paragraphs and of notes, which lead to places of the page
        sign = sign or (numbers and held.links == held.leads == 1 and tag.get_text().strip().isdigit())
        if sign or only_leads or (named and (only_links or held.chars * 2 < whole)):
            tag.extract()
    outer = [tag for tag in tags if tag.name == "dl" and tag.parent is not None and tag.parent.name not in {"dd", "dt"}]
    closed = {id(tag) for tag in outer if _ends_section(tag)}
    terms = (tag for tag in tags if tag.name == "dt" and extents[id(tag)].chars <= _MAX_TERM)
    return frozenset(id(tag) for tag in terms if id(tag.parent) in closed)


def _mark_headings(tags: Sequence[Tag]) -> None:
    """Make headings of the legends and bold paragraphs of a page that has hardly any other heading."""
    for tag in tags:
        if tag.name == "legend" or (tag.name == "p" and tag.parent is not None and tag.parent.name not in {"td", "li"}):
            said = [one for one in tag.strings if one.strip()]
            short = 0 < sum(map(len, said)) <= _MAX_TERM and not said[-1].rstrip().endswith((".", ":", ","))
            if short and (tag.name == "legend" or all(one.find_parent(["b", "strong"]) for one in said)):
                tag.name = "h3"


def _ends_section(tag: Tag | None) -> bool:
    """Tell whether nothing follows but a heading or another list of terms: a text would stand below the last term."""
    after = None
    while tag is not None and after is None:
        behind = (one for one in tag.next_siblings if isinstance(one, Tag) and one.name not in {"a", "br", "hr"})
        after, tag = next(behind, None), tag.parent
    ends = after is None
    while after is not None and after.name not in {*_HEADINGS, "dl"}:
        after = next((one for one in after.children if isinstance(one, Tag)), None)
    return ends or after is not None


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

    def __init__(self, tags: Sequence[Tag], terms: Collection[int]) -> None:
        self._terms = terms
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
        elif name == "img" and "math" in str(tag.get("class")):
            self._line.append(str(tag.get("alt", "")))
        elif name in _HEADINGS or id(tag) in self._terms:
            self._end_block()
            self._prefix = "#" * _HEADINGS[name] + " " if name in _HEADINGS else self._term_prefix()
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

    def _term_prefix(self) -> str:
        """Begin a term, or go on with the one just above, which has the same description."""
        before = self._blocks[-1] if self._blocks else ""
        if not before.startswith(documents.TERM) or len(before) > _MAX_TERM:
            return documents.TERM
        del self._blocks[-2:]  # with what parts it from the block above
        return f"{before}, "

    def _raw(self, block: str) -> None:
        self._end_block()
        if block.strip():
            self._append(block, tight=False)

    def _end_block(self, *, tight: bool = False) -> None:
        lines = [" ".join(line.split()) for line in "".join(self._line).split("\0")]
        text = (" " if self._prefix.startswith("#") else "\n").join(line for line in lines if line)
        self._line = []
        if not self._prefix and _AS_HEADING.match(text):  # a comment of a program, or what the system's owner types
            text = f"{_FENCE}\n{text}\n{_FENCE}"
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
    rows = [row.find_all(["td", "th"]) for row in table.find_all("tr")]
    texts = [[" ".join(cell.get_text(" ").split()) for cell in cells] for cells in rows]
    kept = [(cells, tags) for cells, tags in zip(texts, rows, strict=True) if any(cells)]
    headed = len(kept) > 1 and (all(tag.name == "th" for tag in kept[0][1]) or table.find("th") is None)
    return "\n".join([*lines, documents.markdown_table([cells for cells, _ in kept], headed=headed)]).strip("\n")

"""Source documents: the files they come from, their metadata, and what the caller already has as LlamaIndex's own."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast

import yaml

from agentic_retriever.errors import IndexingError, SourceError

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode, Document, TextNode


class PageSpan(NamedTuple):
    """Where one page lies in the text of a document."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDocument:
    """One document as it was read, before it is cut into nodes."""

    doc_id: str
    text: str
    metadata: Mapping[str, object] = field(default_factory=dict)
    source: str = ""
    root: str = ""
    title: str
    kind: str
    pages: tuple[PageSpan, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)  # of metadata that others than the file itself say
    found: Mapping[str, object] = field(default_factory=dict)  # what the user's patterns found in it

    @property
    def content_hash(self) -> str:
        """SHA-256 over text, metadata, title and kind, in hexadecimal: equal hashes give equal nodes."""
        facts = json.dumps([self.kind, self.title, dict(self.metadata)], sort_keys=True, default=str)
        return hashlib.sha256(f"{facts}\0{self.text}".encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class SkippedSource:
    """What was passed over and why; all but what is duplicate or only noted should be looked at."""

    source: str
    reason: str
    kind: Literal["unread", "unsupported", "duplicate", "noted"] = "unread"


# Metadata as a flat dictionary that filters and stores can work with

# LlamaIndex's vector stores write these themselves: metadata of these names would be overwritten silently.
RESERVED_KEYS = frozenset({"_node_content", "_node_type", "doc_id", "document_id", "ref_doc_id"})
TERM = "###### "  # what a term or an option becomes a heading by, below all others


def markdown_table(rows: Sequence[Sequence[str]], *, headed: bool = True) -> str:
    """Write rows as a table of Markdown, the first as its head."""
    lines = ["| {} |".format(" | ".join(cell.replace("|", "\\|") for cell in row)) for row in rows]
    if headed:
        lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines)


_MAX_DEPTH = 4
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Replace lone surrogates and NULs by U+FFFD, one for one, so that offsets stay."""
    return _UNSTORABLE.sub("\ufffd", text)


def flat_metadata(given: Mapping[str, object], *, doc_id: str) -> dict[str, object]:
    """Return metadata without mappings, dates and ``None``: ``{"author": {"name": "x"}}`` becomes ``author_name``.

    Where that name is taken, or four levels down, the mapping is kept as a JSON string.
    """
    flat: dict[str, object] = {}
    for key, value in given.items():
        name = clean_text(str(key))
        if name in RESERVED_KEYS:
            if str(value) == doc_id:
                continue
            raise SourceError(f"the metadata key {name!r} is reserved for the store; rename it")
        if not name.strip():
            raise SourceError("a metadata key is empty; give it a name")
        if not isinstance(value, Mapping):
            flat.update(_leaf(name, value))
    for key, value in given.items():
        if isinstance(value, Mapping):
            _flatten(clean_text(str(key)), cast("Mapping[str, object]", value), flat, 1)
    return flat


def _flatten(name: str, nested: Mapping[str, object], flat: dict[str, object], depth: int) -> None:
    names = [f"{name}_{key}" for key in nested]
    if depth >= _MAX_DEPTH or any(child in flat or child in RESERVED_KEYS for child in names):
        flat[name] = _json(nested)
        return
    for child, value in zip(names, nested.values(), strict=True):
        if isinstance(value, Mapping):
            _flatten(clean_text(child), cast("Mapping[str, object]", value), flat, depth + 1)
        else:
            flat.update(_leaf(clean_text(child), value))


def _leaf(name: str, value: object) -> dict[str, object]:
    if value is None:
        return {}
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (str, bytes)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return {name: [_scalar(item) for item in items if item is not None]}
    return {name: _scalar(value)}


def _scalar(value: object) -> object:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (date, time)):
        return value.isoformat()
    return _json(value) if isinstance(value, (Mapping, list, tuple)) else clean_text(str(value))


def _json(value: object) -> str:
    return clean_text(json.dumps(value, ensure_ascii=False, sort_keys=True, default=str))


# Files on the disk: what each is called, its bytes and its characters.

MAX_SOURCE_BYTES = 50_000_000  # default size limit of one document (50 MB)
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
_NO_TEXT = (b"%PDF-", b"{\\rtf")  # what else may hold no NUL byte
# What printers and terminals show as bold or underlined: "w\bw", "_\bw", "w\b_" and colours.
_STRUCK_OVER = re.compile(r"[^\n\x08]\x08(?!_)|(?<=[^\n\x08])\x08_|\x1b\[[\d;]*m")
_ADVICE = "save it as UTF-8"


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: Path
    source: str
    root: str
    doc_id: str
    max_bytes: int

    @property
    def title(self) -> str:
        """A title for files that have none inside: the name without suffix, ``_`` and ``-`` as spaces."""
        return printable(Path(unpacked_name(self.path)).stem).replace("_", " ").replace("-", " ").strip()

    @property
    def suffix(self) -> str:
        return suffix_of(self.path)

    def document(self, text: str, *, kind: str, title: str = "") -> SourceDocument:
        return SourceDocument(
            doc_id=self.doc_id, text=text, source=self.source, root=self.root, title=title or self.title, kind=kind
        )

    def read(self) -> bytes:
        if self.size() > self.max_bytes:
            raise too_large(self.max_bytes)
        try:
            with gzip.open(self.path) if is_packed(self.path) else self.path.open("rb") as stream:
                data: bytes = stream.read(self.max_bytes + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as err:
            raise SourceError("is no whole gzip file; save it again") from err
        except OSError as err:
            raise unreadable(err) from err
        if not data:
            raise SourceError("is empty")
        if len(data) > self.max_bytes:
            raise too_large(self.max_bytes)
        return data

    def size(self) -> int:
        """Return the size in bytes, without opening the file: opening a pipe would wait for its writer."""
        try:
            status = self.path.stat()
        except OSError as err:
            raise unreadable(err) from err
        if not stat.S_ISREG(status.st_mode):
            raise SourceError("is no regular file")
        return status.st_size


def is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def suffix_of(path: Path) -> str:
    """Return the suffix that says of what kind a file is, in lower case."""
    return Path(unpacked_name(path)).suffix.lower()


def unpacked_name(path: Path) -> str:
    """Return what a file is called without ``.gz``, and without the ``.txt`` behind the suffix of a markup."""
    name = path.stem if is_packed(path) else path.name
    return name[:-4] if name.lower().endswith((".rst.txt", ".md.txt", ".pod.txt")) else name


def locate(path: Path, *, root: Path, max_bytes: int) -> SourceFile:
    """Name a file by its place below the root."""
    source, base = os.path.abspath(path), os.path.abspath(root)  # noqa: PTH100 - resolve() would follow symbolic links
    inside = os.path.relpath(source, base) if source != base else path.name
    return SourceFile(path, printable(source), printable(base), printable(inside.replace(os.sep, "/")), max_bytes)


def printable(name: str) -> str:
    r"""Turn a file name into text that can be stored, bytes that are no UTF-8 as ``\xNN``."""
    return os.fsencode(name).decode("utf-8", errors="backslashreplace")


def too_large(limit: int) -> SourceError:
    return SourceError(f"is larger than {limit / 1e6:,g} MB; split it or raise max_file_mb")


def unreadable(err: OSError) -> SourceError:
    reason = err.strerror or type(err).__name__
    return SourceError(f"cannot be read: {reason}; check that it exists and its permissions")


def decode_text(data: bytes) -> str:
    """Decode UTF-8, UTF-16 or UTF-32, and lines that are none as Windows-1252 where they look like Western text.

    Line ends are those of Unix, and what was struck over to look bold or underlined stands once.
    """
    text = decode_bytes(data).replace("\r\n", "\n").replace("\r", "\n")
    return _STRUCK_OVER.sub("", text) if "\b" in text or "\x1b" in text else text


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
    if data.startswith(_NO_TEXT):
        raise SourceError("does not hold what its suffix says; give it the suffix of its kind")
    with suppress(UnicodeDecodeError):
        return data.decode()
    lines = data.split(b"\n")  # each for itself: some files were written by several programs
    texts = [_utf8_or_western(line) for line in lines]
    western = "".join(text for text, line in zip(texts, lines, strict=True) if text.encode() != line)
    # Thai, Cyrillic or Chinese legacy encodings decode to a string of accented letters: better refused than indexed.
    if _CONTROL.search(western) or sum(char > "\x7f" for char in western) > _MAX_NON_ASCII * len(western):
        raise SourceError(f"is not UTF-8, and does not look like Windows-1252 text; {_ADVICE}")
    return "\n".join(texts)


def _utf8_or_western(line: bytes) -> str:
    with suppress(UnicodeDecodeError):
        return line.decode()
    try:
        return line.decode("cp1252")
    except UnicodeDecodeError as err:
        raise SourceError(f"is neither UTF-8 nor Windows-1252 text; {_ADVICE}") from err


# YAML front matter of Markdown files, by PyYAML.

_BLOCK = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(r"([^\s:#\-\[\]{}][^:\n]*?)[ \t]*:(?=[ \t]|$)")
_LOOK_AHEAD = 65_536
_MAX_ENTRY_CHARS = 2_000  # longer ones stay as written, since reading takes quadratic time
# What explicit tags such as !!int raise on values that are none, besides YAML's own errors.
_UNREADABLE = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


class FrontMatter(NamedTuple):
    entries: Sequence[str]
    end: int  # Where the body begins, in characters

    @property
    def values(self) -> Mapping[str, object]:
        """Each key read for itself: a value that is no YAML, such as ``title: Part 1: lights``, stays as written."""
        return dict(map(_key_and_value, self.entries))


def parse_front_matter(text: str) -> FrontMatter | None:
    """Find the front matter between ``---`` lines at the very beginning of a text."""
    found = _BLOCK.match(text, 0, _LOOK_AHEAD) if text.startswith("---") else None
    if found is None:
        return None
    entries: list[list[str]] = []
    for line in found[1].split("\n"):
        if _ENTRY.match(line):
            entries.append([line])
        elif entries:
            entries[-1].append(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            return None
    return FrontMatter(["\n".join(lines) for lines in entries], found.end()) if entries else None


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML comes without types
    """Reads no aliases, which can multiply a text without bounds; dates, ``yes``, ``007`` and ``12:30`` stay texts."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def compose_node(self, parent: object, index: object) -> object:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(problem="aliases are not read")
        return super().compose_node(parent, index)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9]\d{0,17})", list("-+0123456789")),
    ("float", r"[-+]?\d{1,30}\.\d{1,30}(?:[eE][-+]?\d{1,2})?", list("-+0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def _key_and_value(entry: str) -> tuple[str, object]:
    key, _, written = entry.partition(":")
    loaded = None
    with suppress(*_UNREADABLE):
        if len(entry) <= _MAX_ENTRY_CHARS:
            loaded = yaml.load(entry, _Loader)  # noqa: S506 - a SafeLoader that reads less
    if not isinstance(loaded, dict) or len(loaded) != 1:
        return key.strip(), "\n".join(line.strip() for line in written.split("\n") if line.strip())
    [(loaded_key, value)] = loaded.items()
    name = loaded_key if isinstance(loaded_key, str) else key.strip()
    return name, value.rstrip("\n") if isinstance(value, str) else value


# LlamaIndex documents and nodes that the caller already has


def from_llama_documents(docs: Sequence[Document]) -> Iterator[SourceDocument | SkippedSource]:
    """Take LlamaIndex documents as they are: their id, their text, their metadata.

    Metadata is kept, flattened where it is nested (see ``flat_metadata``). ``title`` is the metadata's ``title``. A
    document that was made without an id has a random one, so adding it again adds it twice: give ids that stay.
    """
    seen: set[str] = set()
    for position, doc in enumerate(docs):
        doc_id = clean_text(doc.doc_id)
        try:
            _check(doc_id, doc.text, seen)
            seen.add(doc_id)
            metadata = flat_metadata(doc.metadata, doc_id=doc_id)
        except SourceError as err:
            yield SkippedSource(doc_id or f"document {position}", str(err))
            continue
        given = metadata.get("title")
        title = given if isinstance(given, str) else ""
        yield SourceDocument(doc_id=doc_id, text=clean_text(doc.text), metadata=metadata, title=title, kind="document")


def nodes_as_they_are(nodes: Sequence[BaseNode], *, on_skip: Callable[[SkippedSource], None]) -> list[TextNode]:
    """Check a caller's own nodes and copy them, changing nothing."""
    kept: list[TextNode] = []
    positions: dict[str, int] = {}
    for position, node in enumerate(nodes):
        if not node.node_id.strip():
            raise IndexingError(f"node {position} has a blank id; give every node an id of its own")
        first = positions.setdefault(node.node_id, position)
        if first != position:
            raise IndexingError(
                f"nodes {first} and {position} share the id {node.node_id[:80]!r}; give every node an id of its own"
            )
        own = _text_node(node)
        if own.text.strip():
            kept.append(own)
        else:
            on_skip(SkippedSource(node.node_id, "the node has no text"))
    return kept


def _check(doc_id: str, text: str, seen: set[str]) -> None:
    if not doc_id.strip():
        raise SourceError("the document has a blank id; give it one that stays the same between runs")
    if doc_id in seen:
        raise SourceError("another document before it has the same id; give every document an id of its own")
    if not text.strip():
        raise SourceError("the document has no text")


def _text_node(node: BaseNode) -> TextNode:
    from llama_index.core.schema import BaseNode, MetadataMode, TextNode  # noqa: PLC0415 - not for who only reads files

    if isinstance(node, TextNode):
        return node.model_copy(deep=True)
    shared = {name: copy(getattr(node, name)) for name in BaseNode.model_fields}
    return TextNode(text=node.get_content(MetadataMode.NONE), **shared)

"""Files and folders to source documents. A file that cannot be read is reported and left out, the rest goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion.documents import SkippedSource, SourceDocument
from agentic_retriever.ingestion.files import MAX_SOURCE_BYTES, SourceFile, locate, unreadable
from agentic_retriever.ingestion.html_reader import read_html
from agentic_retriever.ingestion.jsonl_reader import read_jsonl
from agentic_retriever.ingestion.pdf_reader import read_pdf
from agentic_retriever.ingestion.text_reader import read_markdown, read_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_Reader: TypeAlias = "Callable[[SourceFile], Iterator[SourceDocument | SkippedSource]]"

_READERS: dict[str, _Reader] = {
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".txt": read_plain,
    ".html": read_html,
    ".htm": read_html,
    ".pdf": read_pdf,
    ".jsonl": read_jsonl,
}

SUPPORTED_SUFFIXES: tuple[str, ...] = tuple(_READERS)
"""File name endings that can be read, in lower case; upper case counts the same."""


def discover(path: Path) -> list[Path]:
    """List the files to read below a path.

    A folder is walked to the bottom. Hidden files and folders and files of other kinds are passed over, links are
    followed and each folder is visited once, so links in a circle end. A folder inside that cannot be listed is in the
    result itself, so that ``read_source`` reports it. A file is returned whatever its suffix.
    """
    path = Path(path)
    try:
        if not path.is_dir():
            path.stat()
            return [path]
        with os.scandir(path):
            pass
    except OSError as err:
        raise SourceError(f"{path} {unreadable(err)}") from err
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
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found.extend(here / name for name in names if _is_wanted(name))
    found.extend(Path(error.filename) for error in refused)
    return sorted(found)


def read_source(
    path: Path, *, root: Path, max_bytes: int = MAX_SOURCE_BYTES
) -> Iterator[SourceDocument | SkippedSource]:
    """Read one file."""
    file = locate(Path(path), root=Path(root), max_bytes=max_bytes)
    try:
        yield from _reader(file.path)(file)
    except SourceError as err:
        yield SkippedSource(file.source, str(err))


def _reader(path: Path) -> _Reader:
    if path.is_dir():
        raise SourceError("is a folder that cannot be listed; check its permissions")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise SourceError(f"is of no kind that can be read; allowed are {', '.join(SUPPORTED_SUFFIXES)}")
    return reader


def _is_wanted(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in _READERS  # noqa: PTH122 - a name, no path

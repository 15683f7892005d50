"""What every reader of a file starts from: where the file is, what it is called, and its bytes."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentic_retriever.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path


MAX_SOURCE_BYTES = 50_000_000
"""Default size limit of one document, in bytes (50 MB)."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that is about to be read."""

    path: Path
    source: str
    root: str
    doc_id: str
    max_bytes: int

    @property
    def title(self) -> str:
        """A title for files that have none inside: the name without suffix, ``_`` and ``-`` as spaces."""
        return printable(self.path.stem).replace("_", " ").replace("-", " ").strip()

    def read(self) -> bytes:
        """Return the content."""
        if self.size() > self.max_bytes:
            raise too_large(self.max_bytes)
        try:
            data = self.path.read_bytes()
        except OSError as err:
            raise unreadable(err) from err
        if not data:
            raise SourceError("is empty")
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


def locate(path: Path, *, root: Path, max_bytes: int) -> SourceFile:
    """Name a file by its place below the root."""
    source, base = os.path.abspath(path), os.path.abspath(root)  # noqa: PTH100 - resolve() would follow symbolic links
    inside = os.path.relpath(source, base) if source != base else path.name
    return SourceFile(path, printable(source), printable(base), printable(inside.replace(os.sep, "/")), max_bytes)


def printable(name: str) -> str:
    r"""Turn a file name into text that can be stored, bytes that are no UTF-8 as ``\xNN``."""
    return os.fsencode(name).decode("utf-8", errors="backslashreplace")


def too_large(limit: int) -> SourceError:
    """Return the error for a document over the limit."""
    return SourceError(f"is larger than {limit / 1e6:,g} MB; split it or raise max_file_mb")


def unreadable(err: OSError) -> SourceError:
    """Return the error for a file that the operating system refuses."""
    return SourceError(
        f"cannot be read: {err.strerror or type(err).__name__}; check that it exists and its permissions"
    )

"""Results kept while a long measurement runs, so that an interrupted one goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

from agentic_retriever.errors import StoreError
from agentic_retriever.json_files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self


JOURNAL_FORMAT: Final = 1


def fingerprint(facts: object) -> str:
    """Return 32 hexadecimal digits that stand for what a measurement depends on."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class Journal:
    """Parts of one measurement in one JSON file, written in one step; not for several threads.

    A file that is damaged, or belongs to another measurement, counts as none: everything in it can be measured again.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key
        self._parts: dict[str, Any] = self._read()

    @property
    def parts(self) -> Mapping[str, Any]:
        """What is there, by name."""
        return dict(self._parts)

    def keep(self, name: str, part: Mapping[str, Any]) -> None:
        """Add a part, plain JSON types, and write the file."""
        self._parts[name] = dict(part)
        content = {"format": JOURNAL_FORMAT, "key": self._key, "parts": self._parts}
        write_atomically(self._path, json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass"))

    def remove(self) -> None:
        """Remove the file: the measurement is done."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(self._path.read_bytes().decode("utf-8", "surrogatepass"))
        except (OSError, ValueError, RecursionError):
            return {}
        fits = isinstance(data, dict) and (data.get("format"), data.get("key")) == (JOURNAL_FORMAT, self._key)
        parts = data.get("parts") if fits else None
        return dict(parts) if isinstance(parts, dict) else {}


# A log of single results, one line each, so that an interrupted run goes on where it was.

LOG_FORMAT: Final = 1


class RunLog:
    """Results that are appended one by one; a context manager, not for several threads.

    Each result is one line that is written at once, so after a crash every line is whole but for the last, which then
    counts as not written. A log of another measurement counts as none.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._head = {"format": LOG_FORMAT, "key": key}
        self.records: list[dict[str, Any]] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = self._read()
            self._file: BinaryIO = path.open("r+b" if kept else "wb")
            self._file.truncate(kept)
            self._file.seek(kept)
        except OSError as err:
            raise self._error(err) from err
        if not kept:
            self._write(self._head)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a result."""
        self._write(record)
        self.records.append(dict(record))

    def close(self) -> None:
        """Write everything to disk and close the file."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def remove(self) -> None:
        """Remove the file: the measurement is done."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(record, ensure_ascii=True, allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as err:
            raise self._error(err) from err

    def _error(self, err: OSError) -> StoreError:
        return StoreError(f"cannot use {self._path}: {err.strerror or err}; check the permissions and the free space")

    def _read(self) -> int:
        """Read what fits; return how many bytes of the file are whole lines of this measurement."""
        if not self._path.exists():
            return 0
        kept = 0
        with self._path.open("rb") as file:
            for line in file:
                record = _decoded(line)
                if record is None or (not kept and record != self._head):
                    break
                if kept:
                    self.records.append(record)
                kept += len(line)
        return kept


def _decoded(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


# Hearing how far a long measurement is.


class Watcher(Protocol):
    """Hears how far a long step is."""

    def begin(self, what: str, total: int) -> None:
        """A step of so many parts begins."""

    def advance(self, done: int) -> None:
        """So many more parts are done."""


class SilentWatcher:
    """A watcher that nobody listens to."""

    def begin(self, what: str, total: int) -> None:
        """Ignore it."""

    def advance(self, done: int) -> None:
        """Ignore it."""

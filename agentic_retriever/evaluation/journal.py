"""Results kept while a long measurement runs, so that an interrupted one goes on where it was; and who watches it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from typing_extensions import Self

from agentic_retriever.errors import StoreError

FORMAT: Final = 1


def fingerprint(facts: object) -> str:
    """Return 32 hexadecimal digits that stand for what a measurement depends on."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class Journal:
    """Results that are appended one by one; a context manager, not for several threads.

    Each result is one line that is written at once, so after a crash every line is whole but for the last, which then
    counts as not written. A file that is damaged, or belongs to another measurement, counts as none.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._head = {"format": FORMAT, "key": key}
        self.records: list[dict[str, Any]] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = self._read()
            self._file = path.open("r+b" if kept else "wb")
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

    def latest(self, kind: str) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the records of a kind by row and question; of several of one question the last one counts."""
        return {(one["row"], one.get("query", "")): one for one in self.records if one.get("kind") == kind}

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
                try:
                    record = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:
                    break
                if not isinstance(record, dict) or (not kept and record != self._head):
                    break
                if kept:
                    self.records.append(record)
                kept += len(line)
        return kept


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

"""Results kept while a long measurement runs, so that an interrupted one goes on where it was."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.json_files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

JOURNAL_FORMAT: Final = 1


def fingerprint(facts: object) -> str:
    """Return 32 hexadecimal digits that stand for what a measurement depends on.

    Args:
        facts: Plain JSON types; whatever is none counts by its text.
    """
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class Journal:
    """Parts of one measurement in one JSON file, written in one step; not for several threads.

    A file that is damaged, or belongs to another measurement, counts as none: everything in it can be measured again.

    Args:
        path: The file.
        key: What the measurement depends on, from :func:`fingerprint`.
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
        """Add a part, plain JSON types, and write the file.

        Raises:
            StoreError: If it cannot be written.
        """
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

"""The files of one collection on disk, and what tells a fresh folder from a lost one.

::

    FOLDER/COLLECTION/
        collection.json   format version, name, dimension, distance, state; replaced atomically
        collection.lock   held by the process that has the collection open
        shard/            the engine's own files

``collection.json`` is written before the engine's files, so a folder that has engine files without it, or the other way
round, has lost something and is never taken for an empty one. None of our files holds a pickle.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import unicodedata
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import ConfigError
from agentic_retriever.indices.edge_errors import damaged

if TYPE_CHECKING:
    from typing_extensions import Self

FORMAT_VERSION: Final = 1
MAX_NAME_LENGTH: Final = 100
_MAX_NAME_BYTES: Final = 200  # file systems allow 255 for one name
_RESERVED_NAME: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionFile:
    """What ``collection.json`` says.

    Attributes:
        collection: The collection's name.
        dimension: Length of its vectors.
        created: When it was made, in ISO 8601 with UTC offset.
        ready: Whether the engine's files were completely made.
        points: Number of nodes at the last clean close or flush; ``None`` while changes are under way.
        distance: How vectors are compared; only ``cosine``.
        format_version: Of this file and the layout around it.
    """

    collection: str
    dimension: int
    created: str
    ready: bool = False
    points: int | None = None
    distance: str = "cosine"
    format_version: int = FORMAT_VERSION

    def with_points(self, points: int | None) -> Self:
        """Copy it with another number of nodes.

        Args:
            points: The number, or ``None`` while changes are under way.

        Returns:
            The copy, marked ready.
        """
        return replace(self, ready=True, points=points)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the files of one collection are.

    Attributes:
        folder: The collection's own folder.
    """

    folder: Path

    @property
    def description(self) -> Path:
        """The file that describes the collection."""
        return self.folder / "collection.json"

    @property
    def lock(self) -> Path:
        """The lock file."""
        return self.folder / "collection.lock"

    @property
    def shard(self) -> Path:
        """The engine's folder."""
        return self.folder / "shard"

    def read(self) -> CollectionFile | None:
        """Read the description, checking that the engine's files are there too.

        Returns:
            The description, or ``None`` where the collection was never made.

        Raises:
            StoreDamagedError: The description is missing, unreadable or of another format while engine files exist,
                or the engine's files are missing while the description says that they were made.
        """
        try:
            text = self.description.read_text(encoding="utf-8")
        except FileNotFoundError:
            if self.shard.is_dir() and any(self.shard.iterdir()):
                raise damaged(self.folder, f"{self.description.name} is missing") from None
            return None
        except UnicodeDecodeError as err:
            raise damaged(self.folder, f"{self.description.name} is not text") from err
        found = self._parse(text)
        if found.ready:
            self._check_engine_files()
        return found

    def write(self, description: CollectionFile) -> None:
        """Replace the description as a whole: after a crash the old or the new one is there.

        Args:
            description: What to write.
        """
        handle, name = tempfile.mkstemp(prefix=".collection-", suffix=".tmp", dir=self.folder)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(asdict(description), file, ensure_ascii=False, indent=1)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.description)
        finally:
            temporary.unlink(missing_ok=True)

    def _parse(self, text: str) -> CollectionFile:
        name = self.description.name
        try:
            found = CollectionFile(**json.loads(text))
        except (ValueError, TypeError) as err:
            raise damaged(self.folder, f"{name} cannot be read") from err
        if found.format_version != FORMAT_VERSION or found.distance != "cosine":
            raise damaged(self.folder, f"{name} has format {found.format_version}; this version reads {FORMAT_VERSION}")
        if type(found.dimension) is not int or found.dimension < 1:
            raise damaged(self.folder, f"{name} gives the dimension as {found.dimension!r}")
        return found

    def _check_engine_files(self) -> None:
        segments, log = self.shard / "segments", self.shard / "wal"
        for path in (self.shard / "edge_config.json", segments, log):
            if not path.exists():
                raise damaged(self.folder, f"{path.relative_to(self.folder)} is missing")
        for path in (segments, log):
            if not any(path.iterdir()):
                raise damaged(self.folder, f"{path.relative_to(self.folder)} is empty")


def check_collection_name(name: str) -> str:
    """Check that a collection's name is a plain, portable folder name.

    Args:
        name: Letters and digits of any script with their marks, spaces inside, ``_``, ``-`` and ``.``; at most 100
            characters.

    Returns:
        The name in Unicode normal form C.

    Raises:
        ConfigError: The name is empty, too long, reserved, or has another character.
    """
    normal = unicodedata.normalize("NFC", name)
    wrong = sorted({char for char in normal if not _allowed(char)})
    problem = None
    if not normal or normal != normal.strip(" ."):
        problem = "is empty or starts or ends with a dot or a space"
    elif wrong:
        problem = f"has the characters {wrong[:5]!r}"
    elif len(normal) > MAX_NAME_LENGTH or len(normal.encode()) > _MAX_NAME_BYTES:
        problem = f"is longer than {MAX_NAME_LENGTH} characters or {_MAX_NAME_BYTES} bytes"
    elif _RESERVED_NAME.fullmatch(normal):
        problem = "is reserved on some systems"
    if problem is not None:
        message = (
            f"the collection name {name[:60]!r} {problem}; allowed are letters, digits, spaces, '_', '-' and '.', "
            f"at most {MAX_NAME_LENGTH} characters"
        )
        raise ConfigError(message)
    return normal


def _allowed(char: str) -> bool:
    return char in " _-." or unicodedata.category(char)[0] in "LMN"

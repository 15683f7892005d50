"""What is fixed for the life of an index, in one small JSON file beside it."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from agentic_retriever.errors import IndexingError, StoreDamagedError
from agentic_retriever.json_files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from agentic_retriever.ingestion import ChunkSettings


FORMAT = 1
MANIFEST_FILE = "manifest.json"
EMBEDDED = "embedded"
SERVER = "server"
_NAME = re.compile(r"[^\W_][\w.-]{0,63}", re.UNICODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The pins of one index."""

    name: str
    description: str
    embedding: str
    dimension: int
    chunk_size: int  # Largest chunk, in tokens
    chunk_overlap: int  # Text shared by neighbouring chunks, in tokens
    leaf_size: int  # Largest leaf, in tokens
    created: str  # When it was made, ISO 8601 in UTC
    format: int = FORMAT
    store: str = EMBEDDED
    collection: str = ""

    def write(self, folder: Path) -> None:
        """Write the file in one step: readers see the old one or the new one."""
        write_atomically(folder / MANIFEST_FILE, json.dumps(asdict(self), ensure_ascii=False, indent=2).encode())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the file."""
        path = folder / MANIFEST_FILE
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            version = data["format"]
            manifest = cls(**data) if version == FORMAT else None
        except (OSError, ValueError, TypeError, KeyError) as err:
            raise damaged(folder.name, f"{path} is missing or not a manifest") from err
        if manifest is None:
            raise damaged(folder.name, f"{path} has format {version}, this version reads {FORMAT}")
        return manifest


def damaged(name: str, what: str) -> StoreDamagedError:
    """Make the error for an index whose files cannot be trusted."""
    return StoreDamagedError(
        f"index {name!r} is damaged or incomplete: {what}; remove it (agentic-retriever index remove {name}) "
        "and add its sources again; vectors of unchanged text are still in the embedding cache"
    )


def check_index_name(name: object) -> str:
    """Return an index name that is safe as a folder on every platform, in Unicode's NFC form."""
    normal = unicodedata.normalize("NFC", name) if isinstance(name, str) else ""
    if not _NAME.fullmatch(normal) or normal.endswith("."):
        raise IndexingError(
            f"index name {str(name)[:80]!r} cannot be used; take 1 to 64 letters, digits, '_', '-' or '.', "
            "starting with a letter or a digit"
        )
    return normal


def manifest_for(
    name: str, description: str, *, embedding: str, dimension: int, chunks: ChunkSettings, created: str
) -> Manifest:
    """Make the manifest of a new index."""
    return Manifest(
        name=check_index_name(name),
        description=description.strip(),
        embedding=embedding,
        dimension=dimension,
        chunk_size=chunks.chunk_size,
        chunk_overlap=chunks.chunk_overlap,
        leaf_size=chunks.leaf_size,
        created=created,
    )

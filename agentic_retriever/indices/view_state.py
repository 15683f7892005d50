"""What a derived view remembers of the documents it was made from."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import StoreDamagedError
from agentic_retriever.indices.sealed_folder import read_files, read_header, write_sealed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

logger = logging.getLogger(__name__)

INCOMPLETE: Final = -1
"""The version of a view while it is being brought up to date."""

_FORMAT: Final = 1
_FILE: Final = "documents.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentState:
    """What a view holds of one document.

    Attributes:
        content_hash: Hash of the content that it was derived from; ``""`` where it has to be derived again.
        node_ids: Ids of its nodes in the view.
        facts: What the view knows of it besides, in plain JSON types.
    """

    content_hash: str
    node_ids: tuple[str, ...]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ViewState:
    """What a view holds.

    Attributes:
        version: The index's version that it was made from, or ``INCOMPLETE``.
        documents: What it holds of each document, by id.
    """

    version: int = INCOMPLETE
    documents: Mapping[str, DocumentState] = field(default_factory=dict)

    def node_ids(self) -> set[str]:
        """Return the ids of all nodes that the view should hold."""
        return {node_id for document in self.documents.values() for node_id in document.node_ids}


def save_state(folder: Path, state: ViewState, *, made_with: str) -> None:
    """Seal the state into a folder of its own.

    Args:
        folder: Where to.
        state: What to save.
        made_with: What else the view depends on; a state that was made with something else is not read again.

    Raises:
        StoreError: If it cannot be written.
    """
    header = {"format": _FORMAT, "version": state.version, "made_with": made_with}
    documents = {
        doc_id: {"hash": known.content_hash, "ids": known.node_ids, "facts": dict(known.facts)}
        for doc_id, known in state.documents.items()
    }
    content = json.dumps(documents, ensure_ascii=False).encode("utf-8", "surrogatepass")
    write_sealed(folder, header, {_FILE: content})


def load_state(folder: Path, *, made_with: str) -> ViewState:
    """Read the state back; an empty one where there is none, it cannot be read, or it was made with something else.

    Raises:
        StoreError: If the disk failed.
    """
    version = saved_version(folder, made_with=made_with)
    if version is None:
        return ViewState()
    try:
        saved = json.loads(read_files(folder, [_FILE])[_FILE].decode("utf-8", "surrogatepass"))
    except StoreDamagedError as err:
        logger.warning("%s; making the view again", err)
        return ViewState()
    documents = {
        doc_id: DocumentState(content_hash=known["hash"], node_ids=tuple(known["ids"]), facts=known["facts"])
        for doc_id, known in saved.items()
    }
    return ViewState(version, documents)


def saved_version(folder: Path, *, made_with: str) -> int | None:
    """Return the version of a saved state without reading all of it, or ``None`` where there is none to use.

    Raises:
        StoreError: If the disk failed.
    """
    try:
        header = read_header(folder)
    except StoreDamagedError as err:
        logger.warning("%s; making the view again", err)
        return None
    if header is None or (header.get("format"), header.get("made_with")) != (_FORMAT, made_with):
        return None
    return int(header["version"])
